//! The random stream of requests: the same seed and the same answers give the same requests.

use std::collections::VecDeque;

use bytes::Bytes;
use clap::ValueEnum;
use tidelock_etcd_api::etcdserverpb::WatchCreateRequest;

use super::call::Call;
use super::keys::{key, one_in, range_end};
use super::world::{World, odd_number};
use super::{auth_requests, kv_requests, other_requests, txn_requests};
use crate::random::Random;

/// Streams whose watchers may begin in the past: their events come when the server gets round to it.
pub(super) const PAST_STREAMS: u64 = 3;
/// Watch streams: the others' watchers begin now or later, so that their progress can be told exactly.
pub(super) const STREAMS: u64 = 5;
/// How often in a million requests the watch streams are compared although nothing asks for it.
const COMPARED: u64 = 4_000;

/// What the stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Phase {
    /// Ranges, puts, deletes.
    Kv,
    /// Transactions.
    Txn,
    /// Leases.
    Lease,
    /// Watches.
    Watch,
    /// Compactions.
    Compact,
    /// Alarms, hashes, status, members.
    Maintenance,
    /// Locks and elections.
    Recipes,
    /// Users, roles, permissions, and requests by users.
    Auth,
}

impl Phase {
    /// Out of a million requests, about.
    fn weight(self) -> u64 {
        match self {
            Phase::Kv => 550_000,
            Phase::Txn => 250_000,
            Phase::Lease => 120_000,
            Phase::Watch => 15_000,
            Phase::Compact => 2_000,
            Phase::Maintenance => 15_000,
            Phase::Recipes => 8_000,
            Phase::Auth => 24_000,
        }
    }
}

/// What to do next. A step is one request to each server, or a few that belong together.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// One request.
    Call(Call),
    /// One request by this user, if authentication is on.
    CallAs(&'static str, Call),
    /// A lease whose id the servers choose, and its end.
    GrantUnnamed,
    /// A lock, or a leadership with this value, if nobody is before the caller.
    Acquire { name: Bytes, lease: i64, election: Option<Bytes> },
    /// Who leads, from a stream, if anyone does.
    Observe(Bytes),
    /// A new watcher.
    WatchCreate { stream: usize, request: WatchCreateRequest },
    /// The end of a watcher: of one that exists if `pick` finds one.
    WatchCancel { stream: usize, pick: u64 },
    /// How far a stream is.
    WatchProgress { stream: usize },
    /// A new stream in place of an old one.
    WatchReopen { stream: usize },
    /// Everything that watchers were told so far is compared.
    WatchCompare,
}

/// Draws requests.
pub(super) struct Generator {
    random: Random,
    phases: Vec<Phase>,
    ahead: VecDeque<Step>,
}

impl Generator {
    pub(super) fn new(seed: u64, phases: &[Phase]) -> Generator {
        Generator { random: Random::new(seed), phases: phases.to_vec(), ahead: VecDeque::new() }
    }

    /// Which connection the next request takes.
    pub(super) fn client(&mut self, clients: usize) -> usize {
        self.random.below(clients as u64) as usize
    }

    /// Who sends the next request.
    pub(super) fn caller(&mut self, world: &World) -> Option<&'static str> {
        if world.auth { auth_requests::caller(&mut self.random) } else { None }
    }

    /// The next step.
    pub(super) fn next(&mut self, world: &World) -> Step {
        match self.draw(world) {
            Step::Call(call) => Step::Call(auth_requests::askable(call, world)),
            step => step,
        }
    }

    fn draw(&mut self, world: &World) -> Step {
        if let Some(step) = self.ahead.pop_front() {
            return step;
        }
        let total: u64 = self.phases.iter().map(|phase| phase.weight()).sum();
        let mut at = self.random.below(total + COMPARED);
        let chosen = self.phases.iter().find(|phase| {
            let here = at < phase.weight();
            at = at.saturating_sub(phase.weight());
            here
        });
        let (random, ahead) = (&mut self.random, &mut self.ahead);
        match chosen {
            None => return Step::WatchCompare,
            Some(Phase::Kv) => return Step::Call(kv_requests::call(random, world)),
            Some(Phase::Txn) => return Step::Call(Call::Txn(txn_requests::txn(random, world))),
            Some(Phase::Compact) => return Step::Call(Call::Compact(kv_requests::compaction(random, world))),
            Some(Phase::Watch) => return watch(random, world),
            Some(Phase::Lease) => other_requests::lease(random, world, ahead),
            Some(Phase::Maintenance) => other_requests::maintenance(random, world, ahead),
            Some(Phase::Recipes) => other_requests::recipes(random, world, ahead),
            Some(Phase::Auth) => auth_requests::auth(random, world, ahead),
        }
        self.ahead.pop_front().unwrap_or(Step::WatchCompare)
    }
}

fn watch(random: &mut Random, world: &World) -> Step {
    let at = random.below(STREAMS);
    let stream = at as usize;
    match random.below(20) {
        0..11 => Step::WatchCreate { stream, request: watch_create(random, world, at < PAST_STREAMS) },
        11..17 => Step::WatchCancel { stream, pick: random.next() },
        17 | 18 => Step::WatchProgress { stream },
        _ => Step::WatchReopen { stream },
    }
}

fn watch_create(random: &mut Random, world: &World, past: bool) -> WatchCreateRequest {
    let key = key(random);
    let start_revision = match random.below(10) {
        0..4 => 0,
        4 => -odd_number(random).saturating_abs(),
        _ if !past => world.revision + 1 + random.below(12) as i64,
        5 => (world.compacted - 1 + random.below(3) as i64).clamp(0, world.revision),
        _ => world.past(random),
    };
    let filters = match random.below(12) {
        0 => vec![0],
        1 => vec![1],
        2 => vec![0, 1],
        3 => vec![5],
        _ => Vec::new(),
    };
    WatchCreateRequest {
        range_end: range_end(random, &key),
        key,
        start_revision,
        progress_notify: one_in(random, 5),
        filters,
        prev_kv: one_in(random, 2),
        // Zero lets the server choose; the others may be taken.
        watch_id: if one_in(random, 3) { [1, 2, 3, 7, -5, i64::MAX][random.below(6) as usize] } else { 0 },
        fragment: one_in(random, 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A difference that cannot be replayed cannot be understood.
    #[test]
    fn a_seed_gives_the_same_requests_again() {
        let phases = [Phase::Kv, Phase::Txn, Phase::Lease, Phase::Watch, Phase::Maintenance, Phase::Recipes];
        let stream = |seed| {
            let (mut generator, world) = (Generator::new(seed, &phases), World::default());
            (0..500).map(|_| format!("{:?}", generator.next(&world))).collect::<Vec<_>>()
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }
}
