//! W6: progress at revision r means that everything up to r was told. So whatever matches up to r came
//! before it, nothing up to r comes after it, and it does not go back, neither behind an earlier
//! progress nor behind an event.

use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::Notice;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for watch in &prepared.watches {
        check_watch(watch, findings);
    }
}

fn check_watch(watch: &ToldWatch<'_>, findings: &mut Findings) {
    let (mut told, mut reached, mut progress) = (0, 0, 0);
    for (_, notice) in &watch.log.notices {
        match notice {
            Notice::Events { events, .. } => {
                for revision in events.iter().map(|event| event.kv.modified) {
                    if revision <= progress {
                        let late = format_args!("{watch} was told of revision {revision} after progress at {progress}");
                        findings.add("W6", late);
                    }
                    reached = reached.max(revision);
                }
                told += events.len();
            }
            Notice::Progress { revision } => {
                let needed = watch.due(*revision).len();
                // What was told beyond `revision` does not stand for what was missing below it.
                let had = told_up_to(watch, told, *revision);
                if had < needed {
                    findings.add(
                        "W6",
                        format_args!("{watch} was told {had} of {needed} changes before progress at {revision}"),
                    );
                }
                if *revision < reached.max(progress) {
                    let before = reached.max(progress);
                    findings.add("W6", format_args!("{watch} had reached {before} before progress at {revision}"));
                }
                progress = progress.max(*revision);
            }
            Notice::Created { .. } | Notice::Canceled { .. } => {}
        }
    }
}

fn told_up_to(watch: &ToldWatch<'_>, told: usize, revision: i64) -> usize {
    watch.events[..told].iter().filter(|(_, event)| event.kv.modified <= revision).count()
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, run};
    use crate::history::{History, Notice};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "watch_bookmark")
    }

    /// Opened, two events, progress at 4, one event, progress at 5.
    fn legal() -> History {
        let mut maker = Maker::new();
        let watch = maker.watch(1, "a", Some("z"), 0);
        maker.put(1, "a", "1");
        maker.put(1, "b", "2");
        maker.tell(watch);
        maker.put(1, "zz", "3");
        maker.progress(watch);
        maker.put(1, "c", "4");
        maker.tell(watch);
        maker.progress(watch);
        maker.done()
    }

    #[test]
    fn bookmarks_that_keep_their_word_pass() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
    }

    /// H5: a client that resumes from such a bookmark never sees the event.
    #[test]
    fn progress_ahead_of_an_event_is_caught() {
        let mut history = legal();
        history.watches[0].notices.swap(3, 4);
        assert_eq!(violations(&history), ["W6", "W6"]);
        let mut history = legal();
        history.watches[0].notices.remove(3);
        assert_eq!(violations(&history), ["W6"]);
        let mut history = legal();
        history.watches[0].notices[2].1 = Notice::Progress { revision: 5 };
        assert_eq!(violations(&history), ["W6", "W6"]);
    }

    #[test]
    fn progress_that_goes_back_is_caught() {
        let mut history = legal();
        let stamp = history.watches[0].notices[4].0;
        history.watches[0].notices.push((stamp, Notice::Progress { revision: 4 }));
        assert_eq!(violations(&history), ["W6"]);
        let mut history = legal();
        history.watches[0].notices[2].1 = Notice::Progress { revision: 2 };
        assert_eq!(violations(&history), ["W6"]);
    }
}
