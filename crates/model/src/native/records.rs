//! What is stored of native primitives, and read back by whoever watches or shows them.
//!
//! Reading is total: bytes that are not ours, which no command can have written, are nothing.

use bytes::Bytes;

use crate::codec::{Wire, put_varint, varint_len};
use crate::native::{Data, Mode, Name, OnDeath};
use crate::{LeaseId, Record};

/// A place in a queue. Its session is the record's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What for.
    pub mode: Mode,
    /// The revision of the grant; zero while it waits.
    pub token: u64,
    /// The place it was moved from, when a leader named its successor; zero if it was not.
    pub moved_from: u64,
    /// The client's own.
    pub data: Data,
}

/// Bits of the first byte of a place: the mode, and which numbers follow.
const SHARED: u8 = 1;
const PERMITS: u8 = 2;
const GRANTED: u8 = 4;
const MOVED: u8 = 8;

impl Place {
    /// Whether it holds what it waited for.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.token != 0
    }

    /// The value to store. Few bytes: a million of them lie beside each other.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let weight = if let Mode::Permits(weight) = self.mode { varint_len(u64::from(weight)) } else { 0 };
        let numbers = [self.token, self.moved_from].into_iter().filter(|number| *number != 0);
        // Exactly: what is left over would be given back by asking for memory once more.
        let len = 1 + weight + numbers.clone().map(varint_len).sum::<usize>() + self.data.as_bytes().len();
        let mut out = Vec::with_capacity(len);
        let mode = match self.mode {
            Mode::Exclusive => 0,
            Mode::Shared => SHARED,
            Mode::Permits(_) => PERMITS,
        };
        let granted = if self.token != 0 { GRANTED } else { 0 };
        let moved = if self.moved_from != 0 { MOVED } else { 0 };
        out.push(mode | granted | moved);
        if let Mode::Permits(weight) = self.mode {
            put_varint(&mut out, u64::from(weight));
        }
        numbers.for_each(|number| put_varint(&mut out, number));
        out.extend_from_slice(self.data.as_bytes());
        debug_assert_eq!(out.len(), len);
        out.into()
    }

    /// Reads a stored value.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Place> {
        let (flags, mut rest) = value.split_first()?;
        let mode = match flags & !(GRANTED | MOVED) {
            0 => Mode::Exclusive,
            SHARED => Mode::Shared,
            PERMITS => Mode::Permits(u32::try_from(take_varint(&mut rest)?).ok()?),
            _ => return None,
        };
        let token = if flags & GRANTED != 0 { take_varint(&mut rest)? } else { 0 };
        let moved_from = if flags & MOVED != 0 { take_varint(&mut rest)? } else { 0 };
        Some(Place { mode, token, moved_from, data: Data::new(Bytes::copy_from_slice(rest)).ok()? })
    }

    /// The place that a record is, and its session.
    #[must_use]
    pub fn of(record: &Record) -> Option<(Place, LeaseId)> {
        Some((Place::read(record.value())?, record.meta().lease))
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let (digits, rest) = bytes.split_at(length);
    *bytes = rest;
    // Ten groups of seven bits are more than a number has.
    let group = |(at, byte): (usize, &u8)| u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?);
    digits.iter().enumerate().try_fold(0, |number, digit| Some(number | group(digit)?))
}

/// Everything stored but places in queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The head of a semaphore.
    Semaphore(Semaphore),
    /// The head of a barrier.
    Barrier(Barrier),
    /// The head of a latch.
    Latch {
        /// What if one goes who promised to count down.
        on_death: OnDeath,
        /// What it came to.
        gate: Gate,
    },
    /// The tally of a latch.
    LatchCount {
        /// How much is left to count down.
        left: u64,
        /// How much there was.
        of: u64,
    },
    /// The head of a phaser.
    Phaser(Phaser),
    /// The tally of a phaser.
    PhaserTally(PhaserTally),
    /// A member of a phaser.
    Party {
        /// How many parties it stands for.
        parties: u32,
        /// How many of them arrived in `phase`; in a later phase: none.
        arrived: u32,
        /// When that was noted.
        phase: u64,
    },
    /// The head of a counter.
    Counter {
        /// What it is.
        value: i64,
    },
    /// The head of a fence.
    Fence {
        /// The highest token that was let through.
        highest: u64,
    },
    /// The head of an Rcu.
    Rcu {
        /// The current version.
        version: u64,
        /// The oldest one that somebody may read.
        oldest: u64,
    },
    /// The tally of an Rcu: the current version itself.
    RcuData(Data),
    /// The head of a hazard.
    Hazard {
        /// The revision it was first protected at, or of its retirement.
        epoch: u64,
        /// How far it is on its way out.
        stage: HazardStage,
    },
}

/// How far an object is on its way out. It does not come back; its name is new once it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HazardStage {
    /// Who asks may protect it.
    Alive,
    /// Nobody may any more, and somebody still keeps it.
    Retiring,
    /// It may go.
    Retired,
}

/// The head of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semaphore {
    /// How many permits there are.
    pub permits: u32,
    /// How many are out. More than there are only after a [`crate::NativeOp::Resize`].
    pub used: u64,
    /// All places up to this one are granted, none after it.
    pub granted_to: u64,
}

/// The head of a barrier: one meeting, from its first arrival on. Its generation is the revision it was created at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// How many shall meet.
    pub parties: u32,
    /// How many are still expected to: fewer, once some went.
    pub expected: u32,
    /// Whether they meet again when they leave.
    pub double: bool,
    /// What if one goes.
    pub on_death: OnDeath,
    /// What it came to.
    pub gate: Gate,
}

/// What a barrier or latch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Waits for arrivals, or to be counted down.
    Shut,
    /// All are there.
    Open,
    /// All have left: the end of a double barrier.
    Left,
    /// One went that the others counted on.
    Broken,
}

/// The head of a phaser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phaser {
    /// The phase of the whole tree, if this is its root; zero in others.
    pub phase: u64,
    /// What if a party goes.
    pub on_death: OnDeath,
    /// Whether one went; told in the root alone.
    pub broken: bool,
    /// The phaser it is part of.
    pub parent: Option<Name>,
}

/// The tally of a phaser. A child with parties counts as one party of its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaserTally {
    /// How many parties there are.
    pub registered: u32,
    /// How many of them arrived in `phase`; in a later phase: none.
    pub arrived: u32,
    /// When that was noted.
    pub phase: u64,
}

impl PhaserTally {
    /// The figures in a phase that may be later than the noted one.
    #[must_use]
    pub fn in_phase(self, phase: u64) -> PhaserTally {
        let arrived = if self.phase == phase { self.arrived } else { 0 };
        PhaserTally { arrived, phase, ..self }
    }

    /// Whether there are parties and all are done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.registered > 0 && self.arrived == self.registered
    }
}

impl Stored {
    /// Reads a stored value.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Stored> {
        Stored::from_bytes(Bytes::copy_from_slice(value)).ok()
    }
}
