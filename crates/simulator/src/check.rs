//! What must hold of every run, one property per file, each with the ids of `reliability.md` 3c.
//!
//! A checker is a pure function of the history: it runs nothing, asks nothing and can be tested on a
//! history made by hand (`testing.rs`). Whatever several of them need is made once, in [`Prepared`]:
//! the reference model replayed from the ledger, what was known when, who wrote which revision.
//!
//! A checker must be sound: it may miss a fault, but what it reports is one. Where only part of a
//! property can be judged from what is recorded, the file says which part.
//!
//! A new property is a new file and a line in [`CHECKERS`].

use std::fmt;

use crate::history::History;

mod agreement;
mod carry_out;
mod claims;
mod compaction;
mod counters;
mod durable;
pub(crate) mod healed;
mod horizon;
mod lease_early;
mod lease_kept;
mod lease_late;
mod lease_removal;
mod leases;
mod linearizable;
mod lists;
mod locks;
mod members;
mod native_answers;
mod native_barriers;
mod native_beliefs;
mod native_ends;
pub(crate) mod native_fenced;
mod native_forgotten;
mod native_meetings;
mod native_notices;
mod native_queues;
mod native_replay;
mod native_sessions;
#[cfg(test)]
mod native_tests;
mod native_writes;
mod one_leader;
mod prepared;
mod read_rounds;
mod register_wgl;
mod replay;
mod resurrection;
mod revision;
mod rights;
mod session_end;
mod session_final;
mod session_kept;
mod session_order;
mod stale_read;
#[cfg(test)]
mod testing;
mod told_watch;
mod transfers;
mod tree;
mod watch_bookmark;
mod watch_ends;
mod watch_gapless;
mod watch_once;
mod watch_order;
mod watch_previous;
#[cfg(test)]
mod znode_maker;
mod znode_writes;

pub(crate) use leases::session_ids;
pub use prepared::Prepared;

/// Violations one checker reports at most: the first few tell, the rest are only counted.
const VIOLATIONS_MAX: usize = 5;

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's id, for example "R2".
    pub invariant: &'static str,
    /// Which checker found it.
    pub checker: &'static str,
    /// What happened.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.invariant, self.checker, self.message)
    }
}

/// One property.
pub struct Checker {
    /// The ids of what it holds.
    pub invariants: &'static str,
    /// Its name, which is its file's.
    pub name: &'static str,
    check: fn(&Prepared<'_>, &mut Findings),
}

impl Checker {
    /// Judges one history.
    #[must_use]
    pub fn check(&self, prepared: &Prepared<'_>) -> Vec<Violation> {
        let mut findings = Findings { checker: self.name, kept: Vec::new(), more: 0 };
        (self.check)(prepared, &mut findings);
        findings.finish()
    }
}

/// Every property there is.
pub const CHECKERS: &[Checker] = &[
    Checker { invariants: "R1 R3 R4", name: "linearizable", check: linearizable::check },
    Checker { invariants: "R3 H7", name: "stale_read", check: stale_read::check },
    Checker { invariants: "R3", name: "register_wgl", check: register_wgl::check },
    Checker { invariants: "R2", name: "durable", check: durable::check },
    Checker { invariants: "R1", name: "revision", check: revision::check },
    Checker { invariants: "R6", name: "resurrection", check: resurrection::check },
    Checker { invariants: "R5", name: "agreement", check: agreement::check },
    Checker { invariants: "R5", name: "one_leader", check: one_leader::check },
    Checker { invariants: "H6", name: "compaction", check: compaction::check },
    Checker { invariants: "W1 W2 W4", name: "watch_order", check: watch_order::check },
    Checker { invariants: "W3 W5 W9", name: "watch_gapless", check: watch_gapless::check },
    Checker { invariants: "W6", name: "watch_bookmark", check: watch_bookmark::check },
    Checker { invariants: "W7", name: "watch_previous", check: watch_previous::check },
    Checker { invariants: "W8", name: "watch_ends", check: watch_ends::check },
    Checker { invariants: "L1", name: "lease_early", check: lease_early::check },
    Checker { invariants: "L2", name: "lease_late", check: lease_late::check },
    Checker { invariants: "L3 S1", name: "lease_removal", check: lease_removal::check },
    Checker { invariants: "L4 L5", name: "lease_kept", check: lease_kept::check },
    Checker { invariants: "H7", name: "read_rounds", check: read_rounds::check },
    Checker { invariants: "R3", name: "lists", check: lists::check },
    Checker { invariants: "R3", name: "counters", check: counters::check },
    Checker { invariants: "R4", name: "transfers", check: transfers::check },
    Checker { invariants: "M1", name: "members", check: members::check },
    Checker { invariants: "H9 K1 K2 K4", name: "locks", check: locks::check },
    Checker { invariants: "A1", name: "rights", check: rights::check },
    Checker { invariants: "S1 H11", name: "session_end", check: session_end::check },
    Checker { invariants: "S2 H11", name: "session_final", check: session_final::check },
    Checker { invariants: "S3 L1 L2", name: "session_kept", check: session_kept::check },
    Checker { invariants: "S4", name: "session_order", check: session_order::check },
    Checker { invariants: "S5", name: "watch_once", check: watch_once::check },
    Checker { invariants: "R2 R3 R4 R6 S4", name: "znode_writes", check: znode_writes::check },
    Checker { invariants: "K1 K2 K5 E1", name: "native_queues", check: native_queues::check },
    Checker { invariants: "K1 K2 E1 H9", name: "native_beliefs", check: native_beliefs::check },
    Checker { invariants: "K4 K6", name: "native_fenced", check: native_fenced::check },
    Checker { invariants: "K3 K6 R3", name: "native_writes", check: native_writes::check },
    Checker { invariants: "K2 K4 B1 P1 U1 R3", name: "native_forgotten", check: native_forgotten::check },
    Checker { invariants: "K4 K5 E1 B1 P1 U1 R3", name: "native_notices", check: native_notices::check },
    Checker { invariants: "B1", name: "native_barriers", check: native_barriers::check },
    Checker { invariants: "B1 P1 U1", name: "native_meetings", check: native_meetings::check },
    Checker { invariants: "S3", name: "native_ends", check: native_ends::check },
    Checker { invariants: "S1 S2 S3 K3 L1 L2", name: "native_sessions", check: native_sessions::check },
    Checker { invariants: "H25 K3 K4 B1 U1 R3", name: "native_answers", check: native_answers::check },
    Checker { invariants: "liveness", name: "healed", check: healed::check },
];

/// Judges a history by every property.
#[must_use]
pub fn all(history: &History) -> Vec<Violation> {
    let prepared = Prepared::new(history);
    CHECKERS.iter().flat_map(|checker| checker.check(&prepared)).collect()
}

/// Collects what a checker finds, a few whole and the rest as a number.
pub(crate) struct Findings {
    checker: &'static str,
    kept: Vec<Violation>,
    more: usize,
}

impl Findings {
    /// Takes a violation. The message is only written out if it is kept.
    pub(crate) fn add(&mut self, invariant: &'static str, message: fmt::Arguments<'_>) {
        if self.kept.len() < VIOLATIONS_MAX {
            self.kept.push(Violation { invariant, checker: self.checker, message: message.to_string() });
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<Violation> {
        if let Some(last) = self.kept.last_mut().filter(|_| self.more > 0) {
            last.message.push_str(&format!(" (and {} more of this checker)", self.more));
        }
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Maker;
    use super::*;

    /// A checker that cries wolf is switched off by the next person: legal histories must pass them all.
    #[test]
    fn a_legal_history_passes_every_checker() {
        let mut maker = Maker::new();
        maker.busy(2_000);
        let violations = all(&maker.done());
        assert_eq!(violations, []);
    }

    /// One broken run can break a property ten thousand times; the report must stay readable.
    #[test]
    fn a_checker_reports_a_few_violations_and_counts_the_rest() {
        let mut findings = Findings { checker: "test", kept: Vec::new(), more: 0 };
        (0..12).for_each(|n| findings.add("R1", format_args!("number {n}")));
        let found = findings.finish();
        assert_eq!(found.len(), VIOLATIONS_MAX);
        assert_eq!(found[4].message, "number 4 (and 7 more of this checker)");
    }
}
