//! What can be asked about native primitives, in pages.

use crate::native::records::{Place, Stored};
use crate::native::{Kind, Name};
use crate::{LeaseId, Need};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeQuery {
    /// All about one name.
    Describe {
        /// What kind of thing.
        kind: Kind,
        /// Which.
        name: Name,
        /// Go on after the member that is the so-manieth: as many as were told before.
        skip: u64,
        /// At most so many members; never more than [`crate::limits::NATIVE_LIST_MAX`].
        limit: u32,
    },
    /// One member, if it is there.
    Member {
        /// What kind of thing; not an Rcu.
        kind: Kind,
        /// Which.
        name: Name,
        /// The member.
        place: u64,
    },
    /// The names of one kind.
    Names {
        /// Which kind.
        kind: Kind,
        /// Only those that begin like this.
        prefix: String,
        /// Go on after this name.
        after: Option<Name>,
        /// At most so many.
        limit: u32,
        /// With so many members of each, the first in the queue first. Fewer names, if they were too many in all.
        members: u32,
    },
    /// The sessions with an id after this one.
    Sessions {
        /// Go on after this one.
        after: LeaseId,
        /// At most so many sessions.
        limit: u32,
        /// At most so many things they hold, all together.
        holdings: u32,
    },
    /// Those of these sessions that live.
    SomeSessions {
        /// Which; the first [`crate::limits::NATIVE_LIST_MAX`] are looked at.
        sessions: Vec<LeaseId>,
        /// At most so many things they hold, all together.
        holdings: u32,
    },
    /// One session.
    Session {
        /// Which.
        session: LeaseId,
        /// Go on after so many of the things it holds.
        skip: u64,
        /// At most so many of them.
        holdings: u32,
    },
}

impl NativeQuery {
    /// Adds what the query needs.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        match self {
            NativeQuery::Describe { name, .. } | NativeQuery::Member { name, .. } => {
                needs.push(Need::ReadName(name.as_str()));
            }
            // Lists tell of others' names.
            NativeQuery::Names { .. } | NativeQuery::Sessions { .. } | NativeQuery::SomeSessions { .. } => {
                needs.push(Need::Admin);
            }
            NativeQuery::Session { session, .. } => needs.push(Need::Session(*session)),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeFound {
    /// To [`NativeQuery::Describe`].
    Object(ObjectFound),
    /// To [`NativeQuery::Member`].
    Member(Option<MemberFound>),
    /// To [`NativeQuery::Names`].
    Names {
        /// In order.
        names: Vec<NameFound>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`NativeQuery::Sessions`] and [`NativeQuery::SomeSessions`], and to [`NativeQuery::Session`] with one or
    /// none.
    Sessions(Vec<NativeSession>),
}

/// All about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFound {
    /// What there is one of.
    pub head: Option<Stored>,
    /// The revision the head was created at; zero without one. The generation of a barrier.
    pub created: u64,
    /// Figures that change often.
    pub tally: Option<Stored>,
    /// The phaser whose phase this one goes by, if it is one: itself or the root above it.
    pub root: Option<Name>,
    /// Its members, the first in the queue first.
    pub members: Vec<MemberFound>,
    /// How many members there are in all.
    pub count: u64,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFound {
    /// Its place.
    pub place: u64,
    /// Whose.
    pub session: LeaseId,
    /// Its place in a queue.
    pub queued: Option<Place>,
    /// Its parties, if it is of a phaser.
    pub parties: Option<Stored>,
    /// The version it reads, if it is of an Rcu; otherwise zero.
    pub version: u64,
}

/// One name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFound {
    /// The name.
    pub name: Name,
    /// How many members it has.
    pub members: u64,
    /// The first of them, as many as were asked for.
    pub first: Vec<MemberFound>,
}

/// A session and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeSession {
    /// Its id.
    pub session: LeaseId,
    /// How long it lives unheard of, in whole seconds.
    pub ttl_s: u32,
    /// The user who may use it; empty: any.
    pub owner: String,
    /// All requests up to this one were acknowledged.
    pub acknowledged: u64,
    /// What it holds and waits for.
    pub holdings: Vec<Holding>,
    /// How many things that are in all.
    pub count: u64,
}

/// Something a session holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What kind of thing.
    pub kind: Kind,
    /// Which.
    pub name: Name,
    /// The place there.
    pub place: u64,
    /// Of the grant; zero if it waits, or there is none in that kind.
    pub token: u64,
}
