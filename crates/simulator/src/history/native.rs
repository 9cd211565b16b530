//! The part of a history that is about native primitives: what clients asked and were told, what each node's own
//! subscription was told, what clients believed to hold, and what really became of the records.

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{
    Kind, LeaseId, LogIndex, Mode, Name, NativeAnswer, NativeCommand, NativeError, NativeNotice, NodeId,
};

use super::{Micros, Stamp};

/// One attempt at a request: asking again with the same number is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeCall {
    /// Who asked.
    pub client: u32,
    /// The node it asked.
    pub node: NodeId,
    /// When it asked.
    pub called: Stamp,
    /// When it was told; `None` if the run ended first.
    pub returned: Option<Stamp>,
    /// What it asked.
    pub ask: NativeAsk,
    /// What it was told.
    pub told: NativeTold,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeAsk {
    /// Something that goes through the log; for the opening of a session, the number the client names itself by.
    Command(NativeCommand, u64),
    /// To renew a session.
    KeepAlive(LeaseId),
    /// To be told at this node when a session ends.
    Attach(LeaseId),
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeTold {
    /// It was decided.
    Decided {
        /// The store's revision right after.
        revision: u64,
        /// The entry.
        index: LogIndex,
        /// How.
        result: Result<NativeAnswer, NativeError>,
    },
    /// The session was renewed, or there is none.
    KeptAlive(bool),
    /// The client is told from now on, or there is no such session.
    Attached(bool),
    /// It certainly did not happen. Why.
    Refused(String),
    /// It may or may not have happened, or may still happen. Why.
    Unknown(String),
}

impl NativeCall {
    /// The session it is about, if that is known already.
    #[must_use]
    pub fn session(&self) -> Option<LeaseId> {
        match &self.ask {
            NativeAsk::Command(NativeCommand::Open { .. }, _) => None,
            NativeAsk::Command(NativeCommand::Close { session }, _)
            | NativeAsk::KeepAlive(session)
            | NativeAsk::Attach(session) => Some(*session),
            NativeAsk::Command(NativeCommand::Request(request), _) => Some(request.session),
        }
    }
}

/// What one life of one node was told by its own subscription, which is what its clients hear from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativePush {
    /// At which node.
    pub node: NodeId,
    /// When it was asked for.
    pub began: Stamp,
    /// When it was opened, and the store's revision then: everything after it is to be told. `None`: not opened.
    pub opened: Option<(Stamp, u64)>,
    /// What it was told, and at which revision that happened.
    pub notices: Vec<(Stamp, u64, NativeNotice)>,
    /// The sessions of whose end it was told.
    pub ended: Vec<(Stamp, LeaseId)>,
    /// When it ended, with its node or because the node said so; `None`: it was open when the run ended.
    pub closed: Option<Stamp>,
}

impl NativePush {
    /// Nothing was told yet.
    #[must_use]
    pub fn new(node: NodeId, began: Stamp) -> NativePush {
        NativePush { node, began, opened: None, notices: Vec::new(), ended: Vec::new(), closed: None }
    }
}

/// A client that wants to be told at a node when its session ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeFollow {
    /// Who.
    pub client: u32,
    /// Which session.
    pub session: LeaseId,
    /// Whose log it hears from.
    pub push: usize,
    /// Since when.
    pub from: Stamp,
    /// When it last heard all there was to hear.
    pub heard: Stamp,
    /// When it was told of the end.
    pub told: Option<Stamp>,
}

/// What a client believes to hold, by what it was told and by its own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeBelief {
    /// Who.
    pub client: u32,
    /// By which session.
    pub session: LeaseId,
    /// A queue.
    pub kind: Kind,
    /// Which.
    pub name: Name,
    /// How.
    pub mode: Mode,
    /// Of the grant.
    pub token: u64,
    /// Since when.
    pub from: Micros,
    /// Until when: four fifths of the time to live after the last acknowledged renewal was sent, or until it began to
    /// give it back.
    pub until: Micros,
}

/// What happened to native records at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRevision {
    /// The entry that did it.
    pub index: LogIndex,
    /// When a node first carried it out.
    pub seen: Stamp,
    /// The changes, in order.
    pub changes: Vec<NativeChange>,
}

/// One change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeChange {
    /// What kind of thing.
    pub kind: Kind,
    /// Which.
    pub name: Name,
    /// What of it.
    pub slot: Slot,
    /// What it became; `None`: deleted.
    pub became: Option<NativeRecord>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRecord {
    /// Whose; 0: nobody's.
    pub session: i64,
    /// Revision of its creation.
    pub created: u64,
    /// What it says.
    pub value: NativeValue,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeValue {
    /// A place in a queue.
    Place(Place),
    /// Anything else.
    Stored(Stored),
    /// Nothing: that it is there is all.
    Nothing,
}
