//! S3, L1, L2: a session lives as long as it must and not much longer.
//!
//! - a client is told that its session is over only after it is;
//! - a session that nobody closed does not end before its timeout has passed since a client was let in with it (the
//!   leader counts from a later moment than that at which the client asked);
//! - nor while a client speaks to a node at least every third of the timeout, and the node neither stands still nor
//!   closes the connection: it must do that before the session could end;
//! - once the faults are over, a session nobody is heard from ends within its timeout, two election timeouts, and a
//!   second and a half.

use super::leases::SECOND;
use super::prepared::At;
use super::tree::Session;
use super::{Findings, Prepared};
use crate::history::{Greeted, Micros, Observation, Stamp, Step, ZnodeLog};

/// How long a packet or the news of a connection's end may be on its way.
const ON_THE_WAY: Micros = 300_000;

/// The longest time that nodes let a request wait.
const REQUEST_MAX: Micros = 7 * SECOND;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for log in &prepared.history.znodes {
        if let Some((told, Greeted::Over)) = log.greeted {
            let session = prepared.tree.sessions.get(&log.wanted);
            if session.and_then(|session| session.ended).is_none_or(|ended| ended.order > told.order) {
                let (client, node, id, told) = (log.client, log.node, log.wanted, At(told));
                findings.add(
                    "S3",
                    format_args!(
                        "client {client} was told by node {node} at {told} that session {id:x} is over; it was not"
                    ),
                );
            }
        }
    }
    for (id, session) in &prepared.tree.sessions {
        check_not_early(prepared, *id, session, findings);
        check_not_late(prepared, *id, session, findings);
    }
}

fn check_not_early(prepared: &Prepared<'_>, id: i64, session: &Session<'_>, findings: &mut Findings) {
    let Some(ended) = session.ended else { return };
    if session.closes.iter().any(|close| close.called.order < ended.order) {
        return;
    }
    let least = session.timeout * 1_000 / (1_000 + prepared.history.bounds.clock_drift_permille);
    let let_in = session.logs.iter().map(|log| log.called).filter(|called| called.order < ended.order).max();
    if let Some(since) = let_in.filter(|since| ended.at < since.at + least) {
        let (early, since, ended) = ((since.at + least - ended.at).div_ceil(1_000), At(since), At(ended));
        findings.add("L1", format_args!("session {id:x}, gone on with at {since}, ended at {ended}, {early} ms early"));
    }
    for log in &session.logs {
        if spoke_all_the_time(prepared, log, session.timeout, ended) {
            let (client, node, ended) = (log.client, log.node, At(ended));
            findings.add(
                "S3",
                format_args!("session {id:x} ended at {ended} while client {client} spoke to node {node} all the time"),
            );
        }
    }
}

/// Whether a client was heard from often enough, up to the end, on a connection that was not closed.
fn spoke_all_the_time(prepared: &Prepared<'_>, log: &ZnodeLog, timeout: Micros, ended: Stamp) -> bool {
    let Some((greeted, _)) = log.greeted else { return false };
    let from = ended.at.saturating_sub(timeout + ON_THE_WAY);
    let open = log.closed.is_none_or(|closed| closed.at > ended.at + ON_THE_WAY);
    // The connection that counts is the last one that was let in.
    let is_last = !prepared.history.znodes.iter().any(|other| {
        other.wanted == log.session().map_or(0, |(id, _)| id)
            && other.called.order > log.called.order
            && other.called.at < ended.at
    });
    if !open || !is_last || greeted.at > from || stood_still(prepared, log, from, ended.at) {
        return false;
    }
    let spoken = log.steps.iter().filter(|(_, step)| matches!(step, Step::Asked { .. })).map(|(stamp, _)| stamp.at);
    let mut last = from;
    for at in spoken.filter(|at| *at > from && *at < ended.at).chain([ended.at]) {
        if at - last > timeout / 3 {
            return false;
        }
        last = at;
    }
    true
}

/// Whether the node of a connection was paused or stopped at any time between these moments.
fn stood_still(prepared: &Prepared<'_>, log: &ZnodeLog, from: Micros, to: Micros) -> bool {
    let mut paused_at = None;
    for (stamp, observation) in &prepared.history.observations {
        match observation {
            Observation::Paused { node } if *node == log.node => paused_at = Some(stamp.at),
            Observation::Resumed { node } | Observation::Stopped { node, .. } if *node == log.node => {
                let began = paused_at.take();
                let stopped = matches!(observation, Observation::Stopped { .. }) && (from..=to).contains(&stamp.at);
                if stopped || began.is_some_and(|began| began <= to && stamp.at >= from) {
                    return true;
                }
            }
            _ => {}
        }
    }
    paused_at.is_some_and(|began| began <= to)
}

fn check_not_late(prepared: &Prepared<'_>, id: i64, session: &Session<'_>, findings: &mut Findings) {
    let bounds = &prepared.history.bounds;
    let (Some(healed), Some(run_ended), Some((granted, ttl_s))) = (bounds.healed, bounds.ended, session.granted) else {
        return;
    };
    let until = session.ended.unwrap_or(run_ended);
    let leads = prepared.history.observations.iter().filter(|(_, seen)| matches!(seen, Observation::Leads { .. }));
    let led = leads.map(|(stamp, _)| stamp).filter(|stamp| stamp.order < until.order).map(|stamp| stamp.at).max();
    // Attempts count as well, answered or not: they may have kept it alive.
    let mut heard = 0;
    for log in prepared.history.znodes.iter().filter(|log| log.wanted == id || log.session().is_some_and(|s| s.0 == id))
    {
        let Some(closed) = log.closed else { return };
        // Who gave up before it was let in may be let in all the same, as late as nodes let requests wait.
        let late = if log.greeted.is_some() { 0 } else { REQUEST_MAX };
        heard = heard.max((closed.at + late).min(until.at));
    }
    let since = healed.at.max(granted.at).max(led.unwrap_or(0)).max(heard);
    let slow = 1_000_u64.saturating_sub(bounds.clock_drift_permille).max(1);
    let ttl = Micros::try_from(ttl_s).unwrap_or(0) * SECOND * 1_000 / slow;
    let bound = ttl + 2 * bounds.election + SECOND * 3 / 2;
    if until.at > since + bound {
        let (over, until) = ((until.at - since - bound) / 1_000, At(until));
        let what = if session.ended.is_some() { "ended" } else { "had not ended" };
        findings
            .add("L2", format_args!("session {id:x} {what} at {until}, {over} ms beyond its bound since {since} us"));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{Greeted, History, Observation};
    use tidelock_model::NodeId;

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "session_kept")
    }

    /// A session of 4 s that ends so long after its client was let in, and is then told as over.
    fn ended_after(micros: u64) -> ZnodeMaker {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        let asked = maker.history().znodes[one].called.at;
        maker.leave(one);
        maker.wait_until(asked + micros);
        maker.expire(one);
        maker.refused(1, one);
        maker
    }

    #[test]
    fn a_session_that_lasts_its_time_passes() {
        assert_eq!(violations(&ended_after(4_000_000).done()), [] as [&str; 0]);
    }

    #[test]
    fn a_session_that_ends_early_is_caught() {
        assert_eq!(violations(&ended_after(3_999_000).done()), ["L1"]);
        let mut drifting = ended_after(3_900_000).done();
        drifting.bounds.clock_drift_permille = 50;
        assert_eq!(violations(&drifting), [] as [&str; 0]);
    }

    /// S3: a client that comes back in time must find its session.
    #[test]
    fn a_session_told_as_over_before_its_end_is_caught() {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        maker.refused(1, one);
        assert_eq!(violations(&maker.done()), ["S3"]);
        let mut history = ended_after(4_000_000).done();
        history.observations.retain(|(_, seen)| !matches!(seen, Observation::LeaseEnded { .. }));
        assert_eq!(violations(&history), ["S3"]);
        history.znodes.last_mut().unwrap().greeted.as_mut().unwrap().1 = Greeted::Over;
    }

    /// A session whose client speaks every second; it ends, after all, or not.
    fn speaking(seconds: u64) -> (ZnodeMaker, usize) {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        for _ in 0..seconds {
            maker.wait(1_000_000);
            maker.ping(one);
        }
        (maker, one)
    }

    #[test]
    fn a_session_that_ends_while_its_client_speaks_is_caught() {
        let (mut maker, one) = speaking(6);
        maker.expire(one);
        maker.wait(1_000_000);
        assert_eq!(violations(&maker.done()), ["S3"]);
        let (mut maker, one) = speaking(6);
        maker.observe(Observation::Paused { node: NodeId(1) });
        maker.wait(1_000_000);
        maker.expire(one);
        maker.wait(1_000_000);
        assert_eq!(violations(&maker.done()), [] as [&str; 0], "the node stood still");
        let (mut maker, one) = speaking(6);
        maker.leave(one);
        maker.wait(4_000_000);
        maker.expire(one);
        assert_eq!(violations(&maker.done()), [] as [&str; 0], "the connection was closed before");
    }

    #[test]
    fn a_session_that_stays_is_caught() {
        for (seconds, caught) in [(7, 0), (9, 1)] {
            let mut maker = ZnodeMaker::new();
            let one = maker.open(1);
            maker.leave(one);
            maker.heal();
            maker.wait(seconds * 1_000_000);
            assert_eq!(violations(&maker.done()).len(), caught, "{seconds}");
        }
    }
}
