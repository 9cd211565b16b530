//! B1: meetings at barriers, as the ledger tells them, revision by revision.
//!
//! - a barrier opens when as many are there as were expected, and not before; who went is not expected any more, and
//!   when all that are left have come it opens at once;
//! - nobody is told that all have left a double barrier while somebody is inside; when nobody is, it is told at once;
//! - where a death breaks the meeting, those who wait are told that it broke, before it opens and inside, and never
//!   anything else; nothing else breaks one;
//! - a meeting that is over leaves nothing, and who comes then begins the next one.
//!
//! A session that asked to leave and ended before it was told may have left or died: then neither is held against it.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Barrier, Gate, Stored};
use tidelock_model::{Kind, Name, OnDeath};

use super::native_replay::{Thing, Things, ends, stored, unsigned};
use super::native_sessions::Leaving;
use super::{Findings, Prepared};
use crate::history::{NativeChange, NativeRecord, NativeRevision, Stamp};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut walk = Walk {
        things: Things::default(),
        gone: BTreeMap::new(),
        ends: ends(prepared.history),
        leaving: Leaving::new(prepared.history),
    };
    for (revision, at) in &prepared.history.ledger.native {
        let of_barriers = at.changes.iter().filter(|change| change.kind == Kind::Barrier);
        for name in of_barriers.map(|change| &change.name).collect::<BTreeSet<_>>() {
            let step = walk.take(unsigned(*revision), name, at);
            let gone = walk.count_gone(name, &step);
            if let Err(what) = step.judge(gone) {
                findings.add("B1", format_args!("barrier {name} at {revision}: {what}; {gone} gone, {step:?}"));
            }
        }
    }
}

struct Walk {
    things: Things,
    /// How many went from a meeting before it opened.
    gone: BTreeMap<Name, u32>,
    ends: BTreeMap<i64, (Stamp, u64)>,
    leaving: Leaving,
}

/// What one revision did to a meeting.
#[derive(Debug)]
struct Step {
    /// The meeting before.
    was: Option<Barrier>,
    /// What it said last.
    says: Option<Barrier>,
    /// Whether nothing is left of it.
    is_over: bool,
    /// Those that went before it said anything: all of them, those that surely died, those that may have.
    went: u32,
    died: u32,
    may_have_died: u32,
    /// Those that were there and did not go by themselves.
    left: u32,
    came: u32,
}

impl Walk {
    fn take(&mut self, revision: u64, name: &Name, at: &NativeRevision) -> Step {
        let before = self.things.get(Kind::Barrier, name);
        let was = before.and_then(Thing::stored_head).and_then(barrier);
        let there = before.map_or(0, |thing| thing.members.len() as u32);
        let (mut says, mut went, mut died, mut may_have_died, mut came) = (None, 0, 0, 0, 0);
        for change in at.changes.iter().filter(|change| (change.kind, &change.name) == (Kind::Barrier, name)) {
            let before = self.things.apply(change);
            match (change.slot, &change.became) {
                (Slot::Head, Some(record)) => says = stored(record).and_then(barrier),
                (Slot::Member { .. }, Some(_)) => came += 1,
                // Those that go later go with the meeting.
                (Slot::Member { .. }, None) if says.is_none() => {
                    went += 1;
                    let (ends, asked) = before.map_or((false, false), |gone| self.fate(revision, change, &gone));
                    died += u32::from(ends && !asked);
                    may_have_died += u32::from(ends);
                }
                _ => {}
            }
        }
        let after = self.things.get(Kind::Barrier, name);
        let is_over = after.is_none_or(|thing| thing.head.is_none() && thing.members.is_empty());
        Step { was, says, is_over, went, died, may_have_died, left: there.saturating_sub(went), came }
    }

    /// Whether the session of one that went ended then, and whether it had asked to leave.
    fn fate(&self, revision: u64, change: &NativeChange, gone: &NativeRecord) -> (bool, bool) {
        let ends = self.ends.get(&gone.session).is_some_and(|(_, ended)| *ended == revision);
        (ends, self.leaving.asked(gone, change))
    }

    /// How many went from this meeting before it opened, those of this step among them.
    fn count_gone(&mut self, name: &Name, step: &Step) -> u32 {
        let gone = self.gone.entry(name.clone()).or_default();
        if step.was_shut() {
            *gone += step.went;
        }
        let gone = *gone;
        if step.is_over {
            self.gone.remove(name);
        }
        gone
    }
}

fn barrier(stored: &Stored) -> Option<Barrier> {
    match stored {
        Stored::Barrier(barrier) => Some(*barrier),
        _ => None,
    }
}

fn holds(right: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if right { Ok(()) } else { Err(otherwise) }
}

impl Step {
    /// Whether it had not opened before.
    fn was_shut(&self) -> bool {
        self.was.is_none_or(|was| was.gate == Gate::Shut)
    }

    /// `gone`: how many went before it opened.
    fn judge(&self, gone: u32) -> Result<(), &'static str> {
        let Some(now) = self.says.or(self.was) else { return Err("there is no meeting") };
        let breaks = now.on_death == OnDeath::Break;
        // Before it opens it does not matter how one goes: it is not there.
        let must_break = breaks && (self.died > 0 || (self.was_shut() && self.went > 0));
        let ends = self.says.is_some_and(|says| says.gate != Gate::Shut && !(says.double && says.gate == Gate::Open));
        holds(!ends || self.is_over, "it ended, and something is left of it")?;
        match self.says.map(|says| says.gate) {
            Some(Gate::Open) => {
                // Whoever opens one that is not double is there without a record.
                let there = self.left + if self.went == 0 { self.came.max(1) } else { self.came };
                holds(self.was_shut(), "it opened twice")?;
                holds(there >= now.expected && now.expected + gone >= now.parties, "it opened early")?;
                holds(!must_break, "it opened, and somebody had gone")
            }
            Some(Gate::Left) => {
                holds(!self.was_shut(), "all left what had not opened")?;
                holds(self.left == 0, "all left, and somebody is inside")?;
                holds(!must_break, "all left, and somebody died inside")
            }
            Some(Gate::Broken) => {
                let may_break = breaks && (self.may_have_died > 0 || (self.was_shut() && self.went > 0));
                holds(may_break, "it broke, and nobody had gone")
            }
            _ if self.is_over => {
                holds(self.was_shut() && self.left + self.came == 0, "it went, and nobody was told why")
            }
            _ => {
                holds(!must_break, "somebody went, and nobody was told")?;
                let there = self.left + self.came;
                match now.gate {
                    Gate::Shut => holds(there + gone < now.parties, "all who are left came, and it did not open"),
                    _ => holds(there > 0, "all left, and nobody was told"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::native_records::{Gate, Stored};
    use tidelock_model::{Kind, LeaseId, NativeAnswer, NativeOp, OnDeath};

    use crate::check::native_tests::{Maker, assert_found, name, violations};
    use crate::history::{History, NativeChange, NativeTold, NativeValue};

    fn enter(maker: &mut Maker, session: LeaseId, parties: u32, double: bool, on_death: OnDeath) -> u64 {
        let entered = maker.ask(session, NativeOp::Enter { name: name("b"), parties, double, on_death });
        let Ok(NativeAnswer::Entered { place, .. }) = entered else { panic!("{entered:?}") };
        place
    }

    fn leave(maker: &mut Maker, session: LeaseId, place: u64) {
        maker.ask(session, NativeOp::Leave { name: name("b"), place }).unwrap();
    }

    /// Two inside a double barrier: the first leaves, the second leaves or dies.
    fn left(on_death: OnDeath, dies: bool) -> History {
        let mut maker = Maker::new();
        let sessions = [maker.open(1), maker.open(2)];
        let places = sessions.map(|session| enter(&mut maker, session, 2, true, on_death));
        leave(&mut maker, sessions[0], places[0]);
        if dies {
            maker.end(sessions[1]);
        } else {
            leave(&mut maker, sessions[1], places[1]);
        }
        maker.done()
    }

    /// Two wait for a third and one of them dies; then the third comes, if it is still waited for.
    fn waited(on_death: OnDeath) -> History {
        let mut maker = Maker::new();
        let sessions = [maker.open(1), maker.open(2), maker.open(3)];
        enter(&mut maker, sessions[0], 3, false, on_death);
        enter(&mut maker, sessions[1], 3, false, on_death);
        maker.end(sessions[0]);
        if on_death == OnDeath::Shrink {
            enter(&mut maker, sessions[2], 3, false, on_death);
        }
        maker.done()
    }

    fn last(history: &mut History) -> &mut Vec<NativeChange> {
        &mut history.ledger.native.values_mut().next_back().unwrap().changes
    }

    fn say(changes: &mut [NativeChange], gate: Gate) {
        for change in changes {
            if let Some(NativeValue::Stored(Stored::Barrier(barrier))) =
                change.became.as_mut().map(|record| &mut record.value)
            {
                barrier.gate = gate;
            }
        }
    }

    #[test]
    fn meetings_that_are_left_shrink_and_break_pass() {
        for on_death in [OnDeath::Break, OnDeath::Shrink] {
            for dies in [false, true] {
                assert_eq!(violations(&left(on_death, dies)), [] as [&str; 0], "{on_death:?} {dies}");
            }
            assert_eq!(violations(&waited(on_death)), [] as [&str; 0], "{on_death:?}");
        }
    }

    /// Who is told that all have left may tear down what the last one still uses.
    #[test]
    fn b1_all_left_while_somebody_is_inside_is_caught() {
        let mut history = left(OnDeath::Shrink, false);
        let changes = last(&mut history);
        assert_eq!(changes.len(), 3, "it goes, it is told, nothing is left: {changes:?}");
        changes.swap(0, 1);
        assert_found(&history, "B1 native_barriers");
        let mut history = left(OnDeath::Shrink, false);
        let leaving = history.native.iter_mut().rev().find_map(|call| match &mut call.told {
            NativeTold::Decided { result: Ok(NativeAnswer::Leaving { inside, .. }), .. } => Some(inside),
            _ => None,
        });
        *leaving.unwrap() += 1;
        assert_found(&history, "B1 native_answers");
    }

    /// The end of a meeting takes nobody along who had not left.
    #[test]
    fn k3_one_inside_that_never_asked_to_leave_is_missed() {
        let mut history = left(OnDeath::Shrink, false);
        history.native.pop();
        assert_found(&history, "K3 native_sessions");
    }

    /// Where a death breaks the meeting, what the dead one had to do was not done: it must not look like an end.
    #[test]
    fn b1_a_death_inside_that_is_told_as_leaving_is_caught() {
        let mut history = left(OnDeath::Break, true);
        say(last(&mut history), Gate::Left);
        assert_found(&history, "B1 native_barriers");
        let mut history = left(OnDeath::Break, false);
        say(last(&mut history), Gate::Broken);
        assert_found(&history, "B1 native_barriers");
    }

    /// They would wait for ever.
    #[test]
    fn b1_a_meeting_that_nobody_hears_the_end_of_is_caught() {
        let mut history = waited(OnDeath::Break);
        last(&mut history).truncate(1);
        assert_found(&history, "B1 native_barriers");
        for dies in [false, true] {
            let mut history = left(OnDeath::Shrink, dies);
            last(&mut history).truncate(1);
            assert_found(&history, "B1 native_barriers");
        }
        let mut history = waited(OnDeath::Shrink);
        let is_member = |change: &&NativeChange| change.kind == Kind::Barrier && change.became.is_some();
        let came = history.ledger.native.values().flat_map(|at| &at.changes).filter(is_member).nth(1).cloned();
        let mut came = came.unwrap();
        came.slot = super::Slot::Member { number: 99, version: 0 };
        *last(&mut history) = vec![came];
        assert_found(&history, "B1 native_barriers");
    }
}
