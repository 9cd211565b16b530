//! Random requests about leases, the cluster, its maintenance, locks and elections.
//!
//! No lease is left to run out and no call to wait: both would compare clocks, not servers. A lease with a short
//! life is revoked by the request after next; Lock and Campaign are sent only where nobody is before the caller
//! (`Step::Acquire`); members are neither added nor removed, only the refusals of it are asked for.

use std::collections::VecDeque;

use tidelock_etcd_api::etcdserverpb::*;
use tidelock_etcd_api::v3electionpb::{LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use tidelock_etcd_api::v3lockpb::UnlockRequest;

use super::auth_requests::ROOT;
use super::call::Call;
use super::generator::Step;
use super::keys::{one_in, value};
use super::world::{World, lease_id, odd_number};
use super::{kv_requests, txn_requests};
use crate::random::Random;

/// Long enough that no run sees its end, in seconds.
const LONG: u64 = 100_000;
/// The longest life etcd takes, in seconds.
const LONGEST: i64 = 9_000_000_000;
/// Leases that exist at a time, about.
const LEASES: usize = 9;
/// Names of locks and elections.
const NAMES: [&str; 4] = ["lock/a", "lock/b", "vote", "k"];

/// Something about leases.
pub(super) fn lease(random: &mut Random, world: &World, steps: &mut VecDeque<Step>) {
    let id = world.lease(random);
    let call = match random.below(12) {
        0..3 if world.leases.len() < LEASES => {
            let ttl = (LONG + random.below(LONG)) as i64;
            Call::LeaseGrant(LeaseGrantRequest { ttl, id: lease_id(random) })
        }
        3 => {
            // Raised to the shortest life there is: gone before anyone can see it end.
            let ttl = [0, -1, 1, i64::MIN, -9][random.below(5) as usize];
            let id = lease_id(random);
            steps.push_back(Step::Call(Call::LeaseGrant(LeaseGrantRequest { ttl, id })));
            steps.push_back(Step::Call(Call::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: true })));
            // By root, who may: it must not be left to run out.
            return steps.push_back(Step::CallAs(ROOT, Call::LeaseRevoke(LeaseRevokeRequest { id })));
        }
        4 => {
            let ttl = [LONGEST, LONGEST + 1, i64::MAX, 1 << 32][random.below(4) as usize];
            let id = lease_id(random);
            steps.push_back(Step::Call(Call::LeaseGrant(LeaseGrantRequest { ttl, id })));
            Call::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: false })
        }
        5 if one_in(random, 3) => return steps.push_back(Step::GrantUnnamed),
        5 | 6 => Call::LeaseRevoke(LeaseRevokeRequest { id: if one_in(random, 20) { 0 } else { id } }),
        7 => Call::LeaseLeases(LeaseLeasesRequest {}),
        8 => Call::KeepAlive((0..1 + random.below(3)).map(|_| world.lease(random)).collect()),
        _ => Call::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: one_in(random, 2) }),
    };
    steps.push_back(Step::Call(call));
}

/// Something about the cluster or its maintenance.
pub(super) fn maintenance(random: &mut Random, world: &World, steps: &mut VecDeque<Step>) {
    let id = [0, 1, 77, u64::MAX][random.below(4) as usize];
    let call = match random.below(40) {
        0..3 => return alarm_episode(random, world, steps),
        3 => Call::Defragment(DefragmentRequest {}),
        4..7 => Call::Hash(HashRequest {}),
        7..13 => Call::HashKv(HashKvRequest { revision: world.revision_to_read(random) }),
        13..19 => Call::MemberList(MemberListRequest { linearizable: one_in(random, 2) }),
        19..25 => Call::Status(StatusRequest {}),
        25..28 => Call::MemberRemove(MemberRemoveRequest { id }),
        28..30 => Call::MemberPromote(MemberPromoteRequest { id }),
        30..32 => Call::MemberUpdate(MemberUpdateRequest { id, peer_ur_ls: vec!["http://127.0.0.1:1".to_string()] }),
        32 => {
            let url =
                ["", "nonsense", "127.0.0.1:1", "ftp://127.0.0.1:1", "http://127.0.0.1"][random.below(5) as usize];
            Call::MemberAdd(MemberAddRequest { peer_ur_ls: vec![url.to_string()], is_learner: one_in(random, 2) })
        }
        33 => Call::MoveLeader(MoveLeaderRequest { target_id: id }),
        34 => {
            let version = ["", "x", "3", "3.9.1", "1.0.0", "3.7.0"][random.below(6) as usize].to_string();
            Call::Downgrade(DowngradeRequest { action: [0, 1, 7][random.below(3) as usize], version })
        }
        35 => Call::Downgrade(DowngradeRequest { action: 2, version: String::new() }),
        _ => Call::Alarm(alarm(random, 0)),
    };
    steps.push_back(Step::Call(call));
}

fn alarm(random: &mut Random, action: i32) -> AlarmRequest {
    AlarmRequest { action, member_id: [0, 77][random.below(2) as usize], alarm: random.below(3) as i32 }
}

/// Alarms are raised, requests of all kinds are tried against them, and all are lowered again. Nothing that needs
/// the marks of the watch streams happens in between: an alarm refuses those as well. No unknown actions, they end
/// etcd 3.7's process; and no unknown kinds, which it keeps where we refuse.
fn alarm_episode(random: &mut Random, world: &World, steps: &mut VecDeque<Step>) {
    for _ in 0..1 + random.below(2) {
        steps.push_back(Step::Call(Call::Alarm(alarm(random, 1))));
    }
    for _ in 0..random.below(12) {
        let call = match random.below(10) {
            0..3 => kv_requests::call(random, world),
            3..6 => Call::Txn(txn_requests::txn(random, world)),
            6 => Call::LeaseGrant(LeaseGrantRequest { ttl: LONG as i64, id: lease_id(random) }),
            7 => Call::LeaseRevoke(LeaseRevokeRequest { id: world.lease(random) }),
            8 => Call::Status(StatusRequest {}),
            _ => Call::Compact(CompactionRequest { revision: i64::MAX, physical: false }),
        };
        steps.push_back(Step::Call(call));
    }
    steps.push_back(Step::Call(Call::Alarm(alarm(random, 0))));
    for member_id in [0, 77] {
        for alarm in [1, 2] {
            steps.push_back(Step::CallAs(ROOT, Call::Alarm(AlarmRequest { action: 2, member_id, alarm })));
        }
    }
}

/// Something about locks and elections.
pub(super) fn recipes(random: &mut Random, world: &World, steps: &mut VecDeque<Step>) {
    let name = NAMES[random.below(NAMES.len() as u64) as usize];
    let lease = match world.lease(random) {
        // The server would choose one, and it would end some time later.
        0 => odd_number(random),
        lease => lease,
    };
    let own_key = || format!("{name}/{lease:x}").into();
    let mut leader = || {
        let known = world.leaderships.len() as u64;
        match random.below(known + 1).checked_sub(1) {
            Some(at) => Some(world.leaderships[at as usize].clone()),
            None if one_in(random, 3) => None,
            None => Some(LeaderKey { name: name.into(), key: own_key(), rev: world.past(random), lease }),
        }
    };
    let step = match leader() {
        _ if one_in(random, 3) => Step::Acquire { name: name.into(), lease, election: None },
        _ if one_in(random, 3) => Step::Acquire { name: name.into(), lease, election: Some(value(random)) },
        leader => Step::Call(match random.below(6) {
            0 | 1 => Call::Unlock(UnlockRequest { key: own_key() }),
            2 => Call::Proclaim(ProclaimRequest { leader, value: value(random) }),
            3 => Call::Resign(ResignRequest { leader }),
            4 => return steps.push_back(Step::Observe(name.into())),
            _ => Call::Leader(LeaderRequest { name: name.into() }),
        }),
    };
    steps.push_back(step);
}
