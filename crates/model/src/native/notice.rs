//! What a change of a native record means to those who wait.
//!
//! Apply tells every change of a key once, in order; this is the one place outside `state::native` that reads them.
//! One cause, one notice: a release is told to whom it lets in, the end of a phase once. That a member went is told of
//! queues alone: of a meeting, its head says what it means to the others, and a thousand that go with it are no news.
//! Nothing needs the version before, so watchers need not ask for it; with it, [`NativeNotice::Gone`] tells more.

use crate::native::keys::{Slot, parse};
use crate::native::records::{Gate, HazardStage, Place, Stored};
use crate::native::{Kind, Name};
use crate::{Event, EventKind, LeaseId, Record};

/// A change that somebody may wait for. Its revision is the event's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeNotice {
    /// A place in a queue was granted: to be told to its session alone.
    Granted {
        /// A queue.
        kind: Kind,
        /// Which.
        name: Name,
        /// The place.
        place: u64,
        /// The place it was known as before a leader named it as successor; zero: the same.
        moved_from: u64,
        /// Whose.
        session: LeaseId,
        /// Of the grant.
        token: u64,
    },
    /// A holder changed what it shows, or how it holds.
    Changed {
        /// A queue.
        kind: Kind,
        /// Which.
        name: Name,
        /// Whose place.
        session: LeaseId,
        /// Of the grant.
        token: u64,
    },
    /// A place in a queue is gone: it was left, or its session ended. Or the whole thing is, of any kind, because it was
    /// asked to be forgotten: who waits for it without being a member must know.
    Gone {
        /// What kind of thing.
        kind: Kind,
        /// Which.
        name: Name,
        /// The place; zero: all of it.
        place: u64,
        /// Whose it was; nobody's if the version before was not asked for.
        session: LeaseId,
        /// Of its grant; zero if it waited, or if the version before was not asked for.
        token: u64,
    },
    /// A meeting at a barrier took place, ended, or never will.
    Barrier {
        /// Which.
        name: Name,
        /// Which meeting.
        generation: u64,
        /// What it came to.
        gate: Gate,
    },
    /// A latch was set, is open or broken.
    Latch {
        /// Which.
        name: Name,
        /// What it came to.
        gate: Gate,
    },
    /// A phase began, or none will any more.
    Phase {
        /// The root of the tree.
        name: Name,
        /// The phase that began.
        phase: u64,
        /// A party went that the others counted on.
        broken: bool,
    },
    /// A counter changed.
    Counter {
        /// Which.
        name: Name,
        /// What it is.
        value: i64,
    },
    /// A fence lets nothing through any more before this.
    Fence {
        /// Which.
        name: Name,
        /// The highest token so far.
        highest: u64,
    },
    /// There is a new version, or old ones may go.
    Rcu {
        /// Of what.
        name: Name,
        /// The current version.
        version: u64,
        /// The oldest one that somebody may read.
        oldest: u64,
    },
    /// An object was retired.
    Hazard {
        /// Which.
        name: Name,
        /// Its epoch.
        epoch: u64,
        /// Whether it may go: nobody keeps it.
        clear: bool,
    },
}

impl NativeNotice {
    /// What an event of the store is; nothing if it concerns nobody.
    #[must_use]
    pub fn of(event: &Event) -> Option<NativeNotice> {
        let (kind, name, slot) = parse(&event.key)?;
        let deleted = event.kind() == EventKind::Delete;
        match slot {
            Slot::Tally => None,
            // Barriers go by themselves, when their meetings are over.
            Slot::Head if deleted && kind == Kind::Barrier => None,
            Slot::Head if deleted => {
                Some(NativeNotice::Gone { kind, name, place: 0, session: LeaseId::NONE, token: 0 })
            }
            Slot::Head => of_head(name, &event.record),
            Slot::Member { .. } if !kind.is_queue() => None,
            Slot::Member { .. } if deleted && crate::planted!(VacancyNeverTold) => None,
            Slot::Member { number, .. } if deleted => {
                let before = event.previous.as_ref();
                let token = before.and_then(Place::of).map_or(0, |(place, _)| place.token);
                let session = before.map_or(LeaseId::NONE, |before| before.meta().lease);
                Some(NativeNotice::Gone { kind, name, place: number, session, token })
            }
            Slot::Member { number, .. } => of_place(kind, name, number, &event.record),
        }
    }

    /// The session it is for, if it is for one alone.
    #[must_use]
    pub fn addressee(&self) -> Option<LeaseId> {
        match self {
            NativeNotice::Granted { session, .. } => Some(*session),
            _ => None,
        }
    }
}

fn of_place(kind: Kind, name: Name, number: u64, record: &Record) -> Option<NativeNotice> {
    let (place, session) = Place::of(record)?;
    let (token, moved_from) = (place.token, place.moved_from);
    // A grant is what its token names: the revision of this very change.
    match place.is_granted() {
        true if moved_from != 0 && crate::planted!(SuccessorNeverTold) => None,
        true if token == record.meta().modified.0 => {
            Some(NativeNotice::Granted { kind, name, place: number, moved_from, session, token })
        }
        true if kind == Kind::Election && crate::planted!(ProclamationNeverTold) => None,
        true => Some(NativeNotice::Changed { kind, name, session, token }),
        false => None,
    }
}

fn of_head(name: Name, record: &Record) -> Option<NativeNotice> {
    let is_new = record.meta().version == 1;
    Some(match Stored::read(record.value())? {
        Stored::Barrier(barrier) if barrier.gate != Gate::Shut => {
            NativeNotice::Barrier { name, generation: record.meta().created.0, gate: barrier.gate }
        }
        Stored::Latch { gate, .. } => NativeNotice::Latch { name, gate },
        Stored::Phaser(phaser) if phaser.parent.is_none() && !is_new => {
            NativeNotice::Phase { name, phase: phaser.phase, broken: phaser.broken }
        }
        Stored::Counter { value } => NativeNotice::Counter { name, value },
        Stored::Fence { highest } => NativeNotice::Fence { name, highest },
        Stored::Rcu { version, oldest } => NativeNotice::Rcu { name, version, oldest },
        Stored::Hazard { epoch, stage: HazardStage::Retiring } => NativeNotice::Hazard { name, epoch, clear: false },
        Stored::Hazard { epoch, stage: HazardStage::Retired } => NativeNotice::Hazard { name, epoch, clear: true },
        _ => return None,
    })
}
