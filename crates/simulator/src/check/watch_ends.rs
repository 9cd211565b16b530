//! W8: a watcher is never left in silence. If it was open at the end of a run whose faults were over, it
//! has been told everything but the last moments; if the server ended it because of compaction, then what
//! it needed next really was compacted.

use super::leases::{SECOND, had_no_effect};
use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::{Micros, Notice, Request, Stamp};

/// How long a change may be on its way to a watcher when nothing is broken.
const ON_ITS_WAY_MAX: Micros = 2 * SECOND;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for watch in &prepared.watches {
        check_open(prepared, watch, findings);
        let mut next = watch.from.unwrap_or(0);
        for (stamp, notice) in &watch.log.notices {
            if let Notice::Canceled { compact_revision, .. } = notice
                && *compact_revision > 0
            {
                check_compacted(prepared, watch, *stamp, next, *compact_revision, findings);
            }
            next = next.max(told_up_to(notice) + 1);
        }
    }
}

/// The highest revision a notice tells of as done; 0 for none.
fn told_up_to(notice: &Notice) -> i64 {
    match notice {
        Notice::Events { events, .. } => events.iter().map(|event| event.kv.modified).max().unwrap_or(0),
        Notice::Progress { revision } => *revision,
        Notice::Created { .. } | Notice::Canceled { .. } => 0,
    }
}

fn check_open(prepared: &Prepared<'_>, watch: &ToldWatch<'_>, findings: &mut Findings) {
    let bounds = &prepared.history.bounds;
    let (Some(healed), Some(ended)) = (bounds.healed, bounds.ended) else { return };
    if watch.log.closed.is_some() || watch.canceled {
        return;
    }
    // Neither the opening nor the healing may be part of the last moments.
    let due_by = ended.at.saturating_sub(ON_ITS_WAY_MAX);
    if watch.log.called.at.max(healed.at) >= due_by {
        return;
    }
    if watch.created.is_none() {
        findings.add("W8", format_args!("{watch} was open at the end and never told so"));
        return;
    }
    let due = watch.due(prepared.seen.by(due_by));
    if let Some(missing) = due.iter().find(|change| change.revision > watch.reached) {
        let (key, revision, reached) = (missing.key, missing.revision, watch.reached);
        findings.add(
            "W8",
            format_args!("{watch} was open at the end, at {reached}, and not told of {key:?} at revision {revision}"),
        );
    }
}

fn check_compacted(
    prepared: &Prepared<'_>,
    watch: &ToldWatch<'_>,
    stamp: Stamp,
    next: i64,
    compacted: i64,
    findings: &mut Findings,
) {
    if next >= compacted {
        findings.add(
            "W8",
            format_args!(
                "{watch} needed revision {next} and was ended for a compaction at {compacted}, which holds it"
            ),
        );
    }
    let asked = prepared.history.operations.iter().any(|operation| {
        matches!(operation.request, Request::Compact { revision } if revision == compacted)
            && operation.called.order < stamp.order
            && !had_no_effect(operation)
    });
    if !asked {
        findings.add("W8", format_args!("{watch} was ended for a compaction at {compacted} that nobody asked for"));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, run};
    use crate::history::{History, Notice, Request};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "watch_ends")
    }

    fn open(tell: bool) -> Maker {
        let mut maker = Maker::new();
        let watch = maker.watch(1, "a", Some("z"), 0);
        maker.put(1, "a", "1");
        maker.tell(watch);
        maker.heal();
        maker.put(1, "b", "2");
        if tell {
            maker.tell(watch);
        }
        maker.wait(5_000_000);
        maker
    }

    #[test]
    fn a_watcher_that_was_told_everything_passes() {
        assert_eq!(violations(&open(true).done()), [] as [&str; 0]);
    }

    /// H5: lost under starvation; the client waits for ever.
    #[test]
    fn a_watcher_left_in_silence_is_caught() {
        let silent = open(false).done();
        assert_eq!(violations(&silent), ["W8"]);
        let mut closed = silent.clone();
        closed.watches[0].closed = closed.bounds.ended;
        assert_eq!(violations(&closed), [] as [&str; 0]);
        let mut never_healed = silent.clone();
        never_healed.bounds.healed = None;
        assert_eq!(violations(&never_healed), [] as [&str; 0]);
    }

    #[test]
    fn a_change_in_the_last_moments_may_still_be_on_its_way() {
        let mut maker = open(true);
        maker.put(1, "b", "3");
        maker.wait(1_000_000);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    #[test]
    fn a_watcher_that_is_never_told_that_it_is_open_is_caught() {
        let mut history = open(true).done();
        history.watches[0].notices.clear();
        assert_eq!(violations(&history), ["W8"]);
    }

    fn compacted(asked: i64, told: i64) -> Vec<&'static str> {
        let mut maker = Maker::new();
        for n in 0..6 {
            maker.put(1, "a", &n.to_string());
        }
        maker.ask(1, Request::Compact { revision: asked });
        let watch = maker.watch(1, "a", None, 4);
        maker.cancel(watch, told);
        violations(&maker.done())
    }

    #[test]
    fn a_watcher_whose_next_revision_was_compacted_is_rightly_ended() {
        assert_eq!(compacted(5, 5), [] as [&str; 0]);
    }

    /// Off by one, and every restart of a client costs a full listing.
    #[test]
    fn a_watcher_that_is_ended_though_what_it_needs_is_held_is_caught() {
        assert_eq!(compacted(4, 4), ["W8"]);
    }

    #[test]
    fn a_compaction_that_nobody_asked_for_is_caught() {
        assert_eq!(compacted(5, 6), ["W8"]);
        let mut maker = Maker::new();
        let watch = maker.watch(1, "a", None, 0);
        maker.put(1, "a", "1");
        maker.tell(watch);
        maker.cancel(watch, 2);
        let mut history = maker.done();
        assert_eq!(violations(&history), ["W8", "W8"]);
        let last = history.watches[0].notices.last_mut().unwrap();
        last.1 = Notice::Canceled { compact_revision: 0, reason: "etcdserver: no leader".into() };
        assert_eq!(violations(&history), [] as [&str; 0]);
    }
}
