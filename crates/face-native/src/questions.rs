//! Questions, from the wire to the core, and what was found, back. Pure.

use tidelock_model::limits::NATIVE_LIST_MAX;
use tidelock_model::native_records::{HazardStage, Stored};
use tidelock_model::{Holding, LeaseId, MemberFound, Mode, NativeFound, NativeQuery, NativeSession, ObjectFound};
use tidelock_native_api::v1;
use tidelock_native_api::v1::describe_reply::Head;

use crate::problem::Problem;
use crate::translate::{kind, name, wire_gate, wire_kind, wire_on_death};

/// Zero stands for as many as may.
fn limit(asked: u32) -> u32 {
    if asked == 0 { NATIVE_LIST_MAX } else { asked }
}

pub(crate) fn describe(request: &v1::DescribeRequest) -> Result<NativeQuery, Problem> {
    let (kind, name) = (kind(request.kind)?, name(&request.name)?);
    Ok(match request.place {
        0 => NativeQuery::Describe { kind, name, skip: request.skip, limit: request.limit },
        place => NativeQuery::Member { kind, name, place },
    })
}

pub(crate) fn names(request: v1::NamesRequest) -> Result<NativeQuery, Problem> {
    let v1::NamesRequest { kind, prefix, after, limit, stale: _, members } = request;
    let after = (!after.is_empty()).then(|| name(&after)).transpose()?;
    Ok(NativeQuery::Names { kind: self::kind(kind)?, prefix, after, limit: self::limit(limit), members })
}

pub(crate) fn sessions(request: &v1::SessionsRequest) -> NativeQuery {
    match request.session {
        0 if !request.only.is_empty() => NativeQuery::SomeSessions {
            sessions: request.only.iter().copied().map(LeaseId).collect(),
            holdings: request.holdings,
        },
        0 => NativeQuery::Sessions {
            after: LeaseId(request.after),
            limit: limit(request.limit),
            holdings: request.holdings,
        },
        session => {
            NativeQuery::Session { session: LeaseId(session), skip: request.skip, holdings: limit(request.holdings) }
        }
    }
}

/// What was found about one name.
pub(crate) fn described(header: v1::Header, found: NativeFound) -> Result<v1::DescribeReply, Problem> {
    let reply = v1::DescribeReply { header: Some(header), ..Default::default() };
    match found {
        NativeFound::Object(ObjectFound { head, created, tally, root, members, count }) => Ok(v1::DescribeReply {
            head: head.and_then(|head| self::head(head, tally)),
            created,
            root: root.map(|root| root.as_str().to_owned()).unwrap_or_default(),
            members: members.into_iter().map(member).collect(),
            count,
            ..reply
        }),
        NativeFound::Member(found) => Ok(v1::DescribeReply {
            count: found.is_some().into(),
            members: found.into_iter().map(member).collect(),
            ..reply
        }),
        _ => Err(Problem::mismatch()),
    }
}

fn head(head: Stored, tally: Option<Stored>) -> Option<Head> {
    Some(match head {
        Stored::Semaphore(one) => {
            Head::Semaphore(v1::SemaphoreHead { permits: one.permits, used: one.used, granted_to: one.granted_to })
        }
        Stored::Barrier(one) => Head::Barrier(v1::BarrierHead {
            parties: one.parties,
            expected: one.expected,
            double: one.double,
            on_death: wire_on_death(one.on_death).into(),
            gate: wire_gate(one.gate).into(),
        }),
        Stored::Latch { on_death, gate } => {
            let (left, of) = match tally {
                Some(Stored::LatchCount { left, of }) => (left, of),
                _ => (0, 0),
            };
            let (on_death, gate) = (wire_on_death(on_death).into(), wire_gate(gate).into());
            Head::Latch(v1::LatchHead { on_death, gate, left, of })
        }
        Stored::Phaser(one) => {
            let tally = match tally {
                Some(Stored::PhaserTally(tally)) => tally,
                _ => Default::default(),
            };
            Head::Phaser(v1::PhaserHead {
                phase: one.phase,
                on_death: wire_on_death(one.on_death).into(),
                broken: one.broken,
                parent: one.parent.map(|parent| parent.as_str().to_owned()).unwrap_or_default(),
                registered: tally.registered,
                arrived: tally.arrived,
                arrived_phase: tally.phase,
            })
        }
        Stored::Counter { value } => Head::Counter(v1::CounterHead { value }),
        Stored::Fence { highest } => Head::Fence(v1::FenceHead { highest }),
        Stored::Rcu { version, oldest } => {
            let data = match tally {
                Some(Stored::RcuData(data)) => data.as_bytes().clone(),
                _ => Default::default(),
            };
            Head::Rcu(v1::RcuHead { version, oldest, data })
        }
        Stored::Hazard { epoch, stage } => {
            let (retiring, retired) = (stage == HazardStage::Retiring, stage == HazardStage::Retired);
            Head::Hazard(v1::HazardHead { epoch, retiring, retired })
        }
        Stored::LatchCount { .. } | Stored::PhaserTally(_) | Stored::Party { .. } | Stored::RcuData(_) => return None,
    })
}

fn member(found: MemberFound) -> v1::Member {
    let mut member =
        v1::Member { place: found.place, session: found.session.0, version: found.version, ..Default::default() };
    if let Some(place) = found.queued {
        let (mode, weight) = match place.mode {
            Mode::Exclusive => (v1::Mode::Exclusive, 0),
            Mode::Shared => (v1::Mode::Shared, 0),
            Mode::Permits(weight) => (v1::Mode::Permits, weight),
        };
        (member.mode, member.weight) = (mode.into(), weight);
        (member.token, member.moved_from, member.data) = (place.token, place.moved_from, place.data.as_bytes().clone());
    }
    if let Some(Stored::Party { parties, arrived, phase }) = found.parties {
        (member.parties, member.arrived, member.arrived_phase) = (parties, arrived, phase);
    }
    member
}

pub(crate) fn named(header: v1::Header, found: NativeFound) -> Result<v1::NamesReply, Problem> {
    let NativeFound::Names { names, more } = found else { return Err(Problem::mismatch()) };
    let names = names.into_iter().map(|one| v1::NameFound {
        name: one.name.as_str().to_owned(),
        members: one.members,
        first: one.first.into_iter().map(member).collect(),
    });
    Ok(v1::NamesReply { header: Some(header), names: names.collect(), more })
}

/// The sessions that were found; how long each has left is not known here.
pub(crate) fn sessions_found(found: NativeFound) -> Result<Vec<v1::Session>, Problem> {
    let NativeFound::Sessions(sessions) = found else { return Err(Problem::mismatch()) };
    Ok(sessions.into_iter().map(session).collect())
}

fn session(found: NativeSession) -> v1::Session {
    let NativeSession { session, ttl_s, owner, acknowledged, holdings, count } = found;
    let holding = |Holding { kind, name, place, token }: Holding| v1::Holding {
        kind: wire_kind(kind).into(),
        name: name.as_str().to_owned(),
        place,
        token,
    };
    v1::Session {
        session: session.0,
        ttl_ms: ttl_s.saturating_mul(1000),
        owner,
        acknowledged,
        holdings: holdings.into_iter().map(holding).collect(),
        count,
        remaining_ms: 0,
    }
}
