//! H6: compaction forgets what it was asked to forget and nothing else. "Compacted" is only said of
//! revisions below one that somebody asked to compact to, "not yet" only of revisions that did not exist
//! when the read was asked for; and what was compacted is not read again.

use super::{Findings, Prepared};
use crate::history::{Op, Operation, Request, Stamp, Told};

/// Parts of etcd's words.
const COMPACTED: &str = "has been compacted";
const FUTURE: &str = "is a future revision";

/// A compaction that may have happened: asked for, answered (if it was), to which revision.
struct Compaction {
    called: Stamp,
    done: Option<Stamp>,
    revision: i64,
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let operations = &prepared.history.operations;
    let compactions: Vec<Compaction> = operations.iter().filter_map(compaction).collect();
    for (index, operation) in operations.iter().enumerate() {
        let (Request::Op(Op::Get { at, serializable, .. }), Some(returned)) = (&operation.request, operation.returned)
        else {
            continue;
        };
        if *at == 0 {
            continue;
        }
        let asked = compactions.iter().filter(|compaction| compaction.called.order < returned.order);
        let lowest_held = asked.map(|compaction| compaction.revision).max().unwrap_or(0);
        let done = compactions
            .iter()
            .filter(|compaction| compaction.done.is_some_and(|done| done.order < operation.called.order));
        let forgotten_below = done.map(|compaction| compaction.revision).max().unwrap_or(0);
        let name = prepared.name(index);
        match &operation.result {
            Told::Error(why) | Told::Refused(why) if why.contains(COMPACTED) && *at >= lowest_held => {
                findings
                    .add("H6", format_args!("nobody asked to forget more than what is below {lowest_held}: {name}"));
            }
            Told::Error(why) | Told::Refused(why)
                if why.contains(FUTURE) && !serializable && *at <= prepared.seen.before(operation.called) =>
            {
                findings.add("R3", format_args!("that revision existed before this was asked: {name}"));
            }
            Told::Answer(_) if !serializable && *at < forgotten_below => {
                findings.add("H6", format_args!("all below {forgotten_below} had been forgotten: {name}"));
            }
            _ => {}
        }
    }
}

fn compaction(operation: &Operation) -> Option<Compaction> {
    let Request::Compact { revision } = operation.request else { return None };
    let done = match operation.result {
        Told::Answer(_) => operation.returned,
        Told::Unknown(_) => None,
        Told::Error(_) | Told::Refused(_) => return None,
    };
    Some(Compaction { called: operation.called, done, revision })
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, get_op, run};
    use crate::history::{History, Request, Told};

    fn reading_at(at: i64, told: Option<&str>) -> History {
        let mut maker = Maker::new();
        for n in 0..5 {
            maker.put(1, "a", &n.to_string());
        }
        maker.ask(1, Request::Compact { revision: 4 });
        let read = maker.ask(1, Request::Op(get_op("a", None, at)));
        let mut history = maker.done();
        if let Some(told) = told {
            history.operations[read].result = Told::Error(format!("etcdserver: mvcc: required revision {told}"));
        }
        history
    }

    fn violations(at: i64, told: Option<&str>) -> Vec<&'static str> {
        run(&reading_at(at, told), "compaction")
    }

    #[test]
    fn what_is_held_is_read_and_what_is_not_is_refused() {
        assert_eq!(violations(4, None), [] as [&str; 0]);
        assert_eq!(violations(3, Some("has been compacted")), [] as [&str; 0]);
        assert_eq!(violations(7, Some("is a future revision")), [] as [&str; 0]);
    }

    #[test]
    fn a_revision_that_should_be_held_and_is_not_is_caught() {
        assert_eq!(violations(4, Some("has been compacted")), ["H6"]);
    }

    #[test]
    fn a_revision_that_was_forgotten_and_is_read_is_caught() {
        assert_eq!(violations(3, None), ["H6"]);
    }

    #[test]
    fn a_revision_that_exists_and_is_said_not_to_is_caught() {
        assert_eq!(violations(6, Some("is a future revision")), ["R3"]);
    }
}
