//! L4, L5: what clients are told of a lease is true at a moment within the call.
//!
//! - a renewal or a put that is accepted was not asked for after the lease's end was seen or answered;
//! - "no such lease" is not said of one whose grant had been answered and whose end came later;
//! - an id is not granted again while its lease lives.
//!
//! An end is observed at the moment it happens; at the same virtual time either order is believed.

use super::carry_out::carried_out;
use super::leases::{Lease, answered};
use super::prepared::At;
use super::{Findings, Prepared};
use crate::history::{Content, Op, Operation, Request, Stamp, Told};

/// etcd's words for a lease that is not there.
const NO_SUCH_LEASE: &str = "lease not found";

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let accepted = answered(operation);
        match (&operation.request, accepted) {
            (Request::KeepAlive { lease }, Some((Content::KeptAlive { ttl_s: Some(_) }, _))) => {
                check_existed(prepared, index, *lease, "L4", findings);
            }
            (Request::KeepAlive { lease }, Some((Content::KeptAlive { ttl_s: None }, returned))) => {
                check_was_gone(prepared, index, *lease, returned, findings);
            }
            (request, Some((content, _))) => {
                for (op, _) in carried_out(request, content) {
                    if let Op::Put { lease, .. } = op
                        && *lease != 0
                    {
                        check_existed(prepared, index, *lease, "L4", findings);
                    }
                }
            }
            (request, None) => check_refused(prepared, index, operation, request, findings),
        }
    }
    for (id, lease) in &prepared.leases {
        check_granted_once(*id, lease, findings);
    }
}

/// When the lease was first known to be over: its end was seen, or a revocation answered.
fn over_since(lease: &Lease<'_>) -> Option<Stamp> {
    let revoked = lease.revokes.iter().filter_map(|revoke| answered(revoke)).map(|(_, returned)| returned);
    lease.ended.map(|(stamp, _)| stamp).into_iter().chain(revoked).min_by_key(|stamp| stamp.order)
}

fn check_existed(prepared: &Prepared<'_>, index: usize, id: i64, invariant: &'static str, findings: &mut Findings) {
    let name = prepared.name(index);
    let Some(lease) = prepared.leases.get(&id).filter(|lease| lease.granted.is_some() || !lease.grants.is_empty())
    else {
        return findings.add(invariant, format_args!("lease {id} was never granted: {name}"));
    };
    if over_since(lease).is_some_and(|over| over.order < name.0.called.order) {
        findings.add(invariant, format_args!("lease {id} was over before this was asked: {name}"));
    }
}

fn check_was_gone(prepared: &Prepared<'_>, index: usize, id: i64, returned: Stamp, findings: &mut Findings) {
    let Some(lease) = prepared.leases.get(&id) else { return };
    let name = prepared.name(index);
    let existed = lease.grant_answered().is_some_and(|granted| granted.order < name.0.called.order);
    let ended_later = lease.ended.is_none_or(|(ended, _)| ended.at > returned.at);
    if existed && ended_later {
        findings.add("L4", format_args!("lease {id} was granted and had not ended: {name}"));
    }
}

fn check_refused(
    prepared: &Prepared<'_>,
    index: usize,
    operation: &Operation,
    request: &Request,
    findings: &mut Findings,
) {
    let (Told::Error(why), Some(returned)) = (&operation.result, operation.returned) else { return };
    if !why.contains(NO_SUCH_LEASE) {
        return;
    }
    match request {
        Request::Revoke { lease } => check_was_gone(prepared, index, *lease, returned, findings),
        // With several leases it is not known which one was meant.
        Request::Op(Op::Put { lease, .. }) => check_was_gone(prepared, index, *lease, returned, findings),
        _ => {}
    }
}

fn check_granted_once(id: i64, lease: &Lease<'_>, findings: &mut Findings) {
    let granted = lease.grants.iter().filter_map(|grant| answered(grant).map(|(_, returned)| (grant.called, returned)));
    let mut granted: Vec<_> = granted.collect();
    granted.sort_unstable_by_key(|(called, _)| called.order);
    for pair in granted.windows(2) {
        let ((_, first), (second, returned)) = (pair[0], pair[1]);
        let ended = lease.ended.is_some_and(|(ended, _)| ended.order < returned.order);
        if first.order < second.order && !ended {
            let at = At(returned);
            findings.add("L5", format_args!("lease {id} was granted again at {at} while it lived"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, put_op, run};
    use crate::history::{Content, History, Op, Request, Told};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "lease_kept")
    }

    fn legal() -> Maker {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.put_leased(1, "a", "1", 7);
        maker.keep_alive(1, 7);
        maker.wait(5_000_000);
        maker.expire(&[7]);
        maker.wait(1_000);
        maker.keep_alive(1, 7);
        maker
    }

    #[test]
    fn truthful_answers_pass() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    /// H8: "renewed" for a lease that is gone; the holder goes on working on a lock it lost.
    #[test]
    fn a_renewal_after_the_end_is_caught() {
        let mut history = legal().done();
        answer_mut(&mut history, 3).content = Content::KeptAlive { ttl_s: Some(2) };
        assert_eq!(violations(&history), ["L4"]);
    }

    #[test]
    fn a_renewal_after_an_answered_revocation_is_caught() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.revoke(1, 7);
        let renewal = maker.keep_alive(1, 7);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        history.observations.clear();
        answer_mut(&mut history, renewal).content = Content::KeptAlive { ttl_s: Some(2) };
        assert_eq!(violations(&history), ["L4"]);
    }

    #[test]
    fn a_lease_that_lives_and_is_said_to_be_gone_is_caught() {
        let mut history = legal().done();
        answer_mut(&mut history, 2).content = Content::KeptAlive { ttl_s: None };
        assert_eq!(violations(&history), ["L4"]);
        let mut history = legal().done();
        history.operations[1].result = Told::Error("etcdserver: requested lease not found".into());
        assert_eq!(violations(&history), ["L4"]);
    }

    /// H9: a lock taken on a lease that is dead is held by nobody, for ever.
    #[test]
    fn a_put_on_a_lease_that_is_over_or_never_was_is_caught() {
        let mut maker = legal();
        maker.put_leased(1, "b", "2", 7);
        assert_eq!(violations(&maker.done()), ["L4"]);
        let mut maker = legal();
        let op = Op::Put { key: "b".into(), value: "2".into(), lease: 8 };
        maker.ask(1, Request::Txn { compares: vec![], then: vec![put_op("c", "3"), op], otherwise: vec![] });
        assert_eq!(violations(&maker.done()), ["L4"]);
    }

    #[test]
    fn an_id_granted_twice_is_caught() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.grant(1, 7, 2);
        assert_eq!(violations(&maker.done()), ["L5"]);
    }
}
