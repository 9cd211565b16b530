//! What can be read without a log entry.

use std::sync::Arc;

use crate::{
    Alarm, Auth, AuthQuery, History, HistoryQuery, Key, KeyRange, KeyValue, LeaseId, Member, NativeFound, NativeQuery,
    Op, OpAnswer, RangeOp, Revision, ZnodeError, ZnodeFound, ZnodeQuery,
};

/// A read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Keys in a range.
    Range(RangeOp),
    /// A transaction that writes nothing ([`Op::writes`] is false), all of it at one revision.
    Txn(Op),
    /// Ids of all leases.
    Leases,
    /// The keys a lease owns.
    LeaseKeys(LeaseId),
    /// The members.
    Members,
    /// Part of a range, by key, as of one revision and uncounted: for readers that go through much of the
    /// store without holding anything up. They begin with `at` unset, go on at the revision the answer
    /// names, and are refused if that is compacted meanwhile.
    Page(PageQuery),
    /// The alarms that are raised.
    Alarms,
    /// Users and roles. What is asked for decides who may ask; the answer is always all there is.
    Auth(AuthQuery),
    /// Znodes, all of them at one revision.
    Znodes(ZnodeQuery),
    /// The versions of one key or znode. For administrators: of a znode, the lists of rights are not asked.
    History(HistoryQuery),
    /// Native sessions and what they hold.
    Native(NativeQuery),
}

/// What a [`Query::Page`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// Which keys.
    pub range: KeyRange,
    /// As of which revision; `None` is now.
    pub at: Option<Revision>,
    /// Go on after this key.
    pub after: Option<Key>,
    /// Look at no more than this many keys.
    pub max_keys: usize,
}

/// The answer to a [`Query`], variant by variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryAnswer {
    /// To [`Query::Range`] and [`Query::Txn`].
    Op {
        /// The store's revision when the read was made (not the one asked for).
        revision: Revision,
        /// What was found.
        answer: OpAnswer,
    },
    /// To [`Query::Leases`].
    Leases {
        /// The store's revision when the read was made.
        revision: Revision,
        /// The ids, ascending.
        ids: Vec<LeaseId>,
    },
    /// To [`Query::LeaseKeys`]; `None` if there is no such lease.
    LeaseKeys {
        /// The store's revision when the read was made.
        revision: Revision,
        /// The keys, ascending.
        keys: Option<Vec<Key>>,
    },
    /// To [`Query::Members`].
    Members {
        /// The store's revision when the read was made.
        revision: Revision,
        /// The members by id.
        members: Vec<Member>,
    },
    /// To [`Query::Page`].
    Page {
        /// The store's revision when the read was made.
        revision: Revision,
        /// The items, by key. There may be fewer than keys were looked at, even none.
        items: Vec<KeyValue>,
        /// Where to go on; `None`: that was all.
        next: Option<Key>,
    },
    /// To [`Query::Alarms`].
    Alarms {
        /// The store's revision when the read was made.
        revision: Revision,
        /// The alarms by member and kind.
        alarms: Vec<Alarm>,
    },
    /// To [`Query::Auth`].
    Auth {
        /// The store's revision when the read was made.
        revision: Revision,
        /// Users and roles at that moment.
        auth: Arc<Auth>,
    },
    /// To [`Query::Znodes`].
    Znodes {
        /// The store's revision when the read was made.
        revision: Revision,
        /// What each read found, or why it may not be told.
        found: Vec<Result<ZnodeFound, ZnodeError>>,
    },
    /// To [`Query::History`].
    History {
        /// The store's revision when the read was made.
        revision: Revision,
        /// What was found.
        history: History,
    },
    /// To [`Query::Native`].
    Native {
        /// The store's revision when the read was made.
        revision: Revision,
        /// What was found.
        found: NativeFound,
    },
}

/// What the leader knows of a live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The lease.
    pub id: LeaseId,
    /// Seconds it was granted for.
    pub granted_ttl_s: u32,
    /// Milliseconds it has left.
    pub remaining_ms: u64,
}
