//! Native primitives: sessions and what they hold, as commands and queries of the one core.
//!
//! A session is a lease; whatever ends the lease ends all that the session holds, at one revision. Every request
//! carries the session and a number of the client's: a request that comes again gets the first answer and has no
//! second effect. Whatever somebody may wait for is a change of a record, so watchers learn of it like of any key
//! ([`NativeNotice`]).
//!
//! How the records lie in the store is in [`keys`] and [`records`]; the rules are in `state::native`.

mod answer;
pub mod keys;
mod notice;
mod query;
pub mod records;
mod wire;
mod write;

pub use answer::{NativeAnswer, NativeError};
pub use notice::NativeNotice;
pub use query::{Holding, MemberFound, NameFound, NativeFound, NativeQuery, NativeSession, ObjectFound};
pub use write::{GuardedWrite, KeyChange, KeyCondition, TokenGuard};

use std::fmt;

use bytes::Bytes;

use crate::limits::{NATIVE_DATA_BYTES_MAX, NATIVE_NAME_BYTES_MAX};
use crate::{LeaseId, Need};

/// The name of a lock, a barrier and so on: some text without a zero byte, not too long. Each kind has its own names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    /// Checks that `text` can be a name.
    pub fn new(text: &str) -> Result<Name, NativeError> {
        let fits = (1..=NATIVE_NAME_BYTES_MAX).contains(&text.len()) && !text.as_bytes().contains(&0);
        if fits { Ok(Name(text.into())) } else { Err(NativeError::BadName) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Some bytes of the client's own that go with a place or a version: an address, a reference. Not a store of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data(Bytes);

impl Data {
    /// Checks that there are not too many.
    pub fn new(bytes: Bytes) -> Result<Data, NativeError> {
        if bytes.len() > NATIVE_DATA_BYTES_MAX { Err(NativeError::DataTooLarge) } else { Ok(Data(bytes)) }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// What a name names. The number is the first byte of its records' keys: append only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A queue of exclusive and shared places.
    Lock = b'L',
    /// A queue for one leader at a time.
    Election = b'E',
    /// A queue for a number of permits.
    Semaphore = b'S',
    /// Parties that meet.
    Barrier = b'B',
    /// A count that opens a gate at zero.
    Latch = b'C',
    /// Parties that go from phase to phase.
    Phaser = b'P',
    /// A number.
    Counter = b'N',
    /// The highest token that was let through.
    Fence = b'F',
    /// A version, and who still reads older ones.
    Rcu = b'R',
    /// An object that must not go while somebody looks at it.
    Hazard = b'H',
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 10] = [
        Kind::Lock,
        Kind::Election,
        Kind::Semaphore,
        Kind::Barrier,
        Kind::Latch,
        Kind::Phaser,
        Kind::Counter,
        Kind::Fence,
        Kind::Rcu,
        Kind::Hazard,
    ];

    /// The kind with that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether its members stand in a queue and get tokens.
    #[must_use]
    pub fn is_queue(self) -> bool {
        matches!(self, Kind::Lock | Kind::Election | Kind::Semaphore)
    }
}

/// What a place in a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Waits for all before it.
    Exclusive,
    /// Waits for the exclusive ones before it.
    Shared,
    /// Waits until so many permits are left by those before it.
    Permits(u32),
}

/// What becomes of the others when one that they count on goes: dies, or gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeath {
    /// They go on without it.
    #[default]
    Shrink,
    /// All of them are told that it cannot be done any more.
    Break,
}

/// Whether to wait for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Be granted at once or be refused.
    Try,
    /// Take a place in the queue, unless so many are before it, holders included; zero: as many as may.
    Queue(u32),
}

/// A token to be let through by a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fencing {
    /// Which fence.
    pub fence: Name,
    /// The token.
    pub token: u64,
}

/// A change to sessions or what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeCommand {
    /// Open a session, whose id is made from the log index. Answered with [`NativeAnswer::Opened`]. A client that
    /// may have to ask again names itself in the proposal's [`crate::RequestId`].
    Open {
        /// How long it lives unheard of.
        ttl_ms: u32,
        /// The user who may use it, while users are asked for; empty: any.
        owner: String,
    },
    /// End a session and all it holds.
    Close {
        /// Which.
        session: LeaseId,
    },
    /// One request of a session.
    Request(NativeRequest),
}

/// What a session asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRequest {
    /// Who asks.
    pub session: LeaseId,
    /// The client's number for it, from one on. The same again gets the same answer.
    pub number: u64,
    /// The client has the answers to all requests up to this one and will ask for none of them again.
    pub acknowledged: u64,
    /// What.
    pub op: NativeOp,
}

/// One request. `place`, `party`, `reader` and `pledge` are what the answer to the request that made them told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeOp {
    /// Take a lock, or permits of a semaphore: by the mode.
    Acquire {
        /// Which.
        name: Name,
        /// What for.
        mode: Mode,
        /// How many permits the semaphore has; zero: whatever it was made with. Zero for locks.
        permits: u32,
        /// Whether to wait.
        wait: Wait,
        /// Shown to who asks.
        data: Data,
    },
    /// Stand for an election.
    Campaign {
        /// Which.
        name: Name,
        /// Whether to wait.
        wait: Wait,
        /// Shown to who observes.
        data: Data,
    },
    /// Give back what was granted under this token.
    Release {
        /// A queue.
        kind: Kind,
        /// Which.
        name: Name,
        /// Of the grant.
        token: u64,
    },
    /// Leave, whether granted or not: a place of any kind that has places.
    GiveUp {
        /// What the place is of.
        kind: Kind,
        /// Which.
        name: Name,
        /// The place.
        place: u64,
    },
    /// Lead no more, and let another that stands for the election follow.
    Resign {
        /// Which.
        name: Name,
        /// Of the grant.
        token: u64,
        /// The session to follow.
        successor: LeaseId,
    },
    /// Hold an exclusive lock as a shared one from now on.
    Downgrade {
        /// Which.
        name: Name,
        /// Of the grant.
        token: u64,
    },
    /// Change what a leader shows.
    Proclaim {
        /// Which.
        name: Name,
        /// Of the grant.
        token: u64,
        /// Shown from now on.
        data: Data,
    },
    /// Begin the session's time anew, if the token is still good.
    Renew {
        /// A queue.
        kind: Kind,
        /// Which.
        name: Name,
        /// Of the grant.
        token: u64,
        /// The session's time to live from now on; zero: as before.
        ttl_ms: u32,
    },
    /// Set how many permits a semaphore has, making it if there is none.
    Resize {
        /// Which.
        name: Name,
        /// How many from now on.
        permits: u32,
    },
    /// Arrive at a barrier.
    Enter {
        /// Which.
        name: Name,
        /// How many shall meet.
        parties: u32,
        /// Whether they meet again when they leave.
        double: bool,
        /// What if one goes.
        on_death: OnDeath,
    },
    /// Leave a double barrier that has opened.
    Leave {
        /// Which.
        name: Name,
        /// The place.
        place: u64,
    },
    /// Make a latch, or set one again that is open or broken.
    SetLatch {
        /// Which.
        name: Name,
        /// How often to count down.
        count: u64,
        /// What if one goes who promised to count down.
        on_death: OnDeath,
    },
    /// Promise to count a latch down once.
    Pledge {
        /// Which.
        name: Name,
    },
    /// Count a latch down.
    CountDown {
        /// Which.
        name: Name,
        /// By how much.
        by: u64,
        /// The promise that is kept by it; zero: none.
        pledge: u64,
    },
    /// Add parties to a phaser, making it if there is none.
    Register {
        /// Which.
        name: Name,
        /// How many.
        parties: u32,
        /// The phaser it is part of.
        parent: Option<Name>,
        /// What if one goes.
        on_death: OnDeath,
    },
    /// Say that parties are done with this phase.
    Arrive {
        /// Which phaser.
        name: Name,
        /// Which parties.
        party: u64,
        /// How many of them; zero: all that are not done yet.
        count: u32,
        /// Whether they go, too.
        deregister: bool,
    },
    /// Add to a counter.
    Add {
        /// Which.
        name: Name,
        /// How much.
        delta: i64,
        /// Only if this fence lets it through.
        fencing: Option<Fencing>,
    },
    /// Set a counter that has an expected value.
    CompareAndSet {
        /// Which.
        name: Name,
        /// What it must be; a new counter is zero.
        expected: i64,
        /// What it becomes.
        value: i64,
        /// Only if this fence lets it through.
        fencing: Option<Fencing>,
    },
    /// Let a token through a fence, and none before it any more.
    Admit(Fencing),
    /// Publish the next version.
    Publish {
        /// Of what.
        name: Name,
        /// The version.
        data: Data,
        /// Only if this fence lets it through.
        fencing: Option<Fencing>,
    },
    /// Begin to read the current version.
    StartReading {
        /// Of what.
        name: Name,
    },
    /// Say that nothing older than a version is read any more.
    Report {
        /// Of what.
        name: Name,
        /// Who.
        reader: u64,
        /// The version.
        version: u64,
    },
    /// Keep an object from going.
    Protect {
        /// Which.
        name: Name,
    },
    /// Let an object go once nobody keeps it.
    Retire {
        /// Which.
        name: Name,
    },
    /// Remove something that nobody uses.
    Forget {
        /// What.
        kind: Kind,
        /// Which.
        name: Name,
    },
    /// Change keys, if every token is good.
    Write(GuardedWrite),
}

impl NativeOp {
    /// The kind and name it is about.
    #[must_use]
    pub fn subject(&self) -> (Kind, &Name) {
        match self {
            NativeOp::Acquire { name, mode: Mode::Permits(_), .. } | NativeOp::Resize { name, .. } => {
                (Kind::Semaphore, name)
            }
            NativeOp::Acquire { name, .. } | NativeOp::Downgrade { name, .. } => (Kind::Lock, name),
            NativeOp::Campaign { name, .. } | NativeOp::Resign { name, .. } | NativeOp::Proclaim { name, .. } => {
                (Kind::Election, name)
            }
            NativeOp::Release { kind, name, .. }
            | NativeOp::GiveUp { kind, name, .. }
            | NativeOp::Renew { kind, name, .. }
            | NativeOp::Forget { kind, name } => (*kind, name),
            NativeOp::Enter { name, .. } | NativeOp::Leave { name, .. } => (Kind::Barrier, name),
            NativeOp::SetLatch { name, .. } | NativeOp::Pledge { name } | NativeOp::CountDown { name, .. } => {
                (Kind::Latch, name)
            }
            NativeOp::Register { name, .. } | NativeOp::Arrive { name, .. } => (Kind::Phaser, name),
            NativeOp::Add { name, .. } | NativeOp::CompareAndSet { name, .. } => (Kind::Counter, name),
            NativeOp::Admit(fencing) => (Kind::Fence, &fencing.fence),
            NativeOp::Publish { name, .. } | NativeOp::StartReading { name } | NativeOp::Report { name, .. } => {
                (Kind::Rcu, name)
            }
            NativeOp::Protect { name } | NativeOp::Retire { name } => (Kind::Hazard, name),
            NativeOp::Write(write) => write.subject(),
        }
    }

    /// The other names it changes something about.
    fn also_about(&self) -> Option<&Name> {
        match self {
            NativeOp::Register { parent, .. } => parent.as_ref(),
            NativeOp::Add { fencing, .. }
            | NativeOp::CompareAndSet { fencing, .. }
            | NativeOp::Publish { fencing, .. } => fencing.as_ref().map(|fencing| &fencing.fence),
            _ => None,
        }
    }

    /// Whether this only gives back, so that it is let through when space is short.
    fn gives_back(&self) -> bool {
        matches!(
            self,
            NativeOp::Release { .. } | NativeOp::GiveUp { .. } | NativeOp::Leave { .. } | NativeOp::Forget { .. }
        )
    }
}

impl NativeCommand {
    /// Whether this can make the store larger (see [`crate::Op::grows`]).
    #[must_use]
    pub fn grows(&self) -> bool {
        match self {
            NativeCommand::Open { .. } => true,
            NativeCommand::Close { .. } => false,
            NativeCommand::Request(request) => !request.op.gives_back(),
        }
    }

    /// Adds what the command needs: whoever may write the key of that name may use what has the name.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        match self {
            NativeCommand::Open { owner, .. } if owner.is_empty() => needs.push(Need::User),
            NativeCommand::Open { owner, .. } => needs.push(Need::Be(owner)),
            NativeCommand::Close { session } => needs.push(Need::Session(*session)),
            NativeCommand::Request(request) => {
                needs.push(Need::Session(request.session));
                if let NativeOp::Write(write) = &request.op {
                    return write.needs(needs);
                }
                needs.push(Need::WriteName(request.op.subject().1.as_str()));
                needs.extend(request.op.also_about().map(|name| Need::WriteName(name.as_str())));
            }
        }
    }
}
