//! Numbers with a meaning. Newtypes, so that a log index is never taken for a revision.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// The one clock of the cluster: etcd's revision, ZooKeeper's zxid, Consul's index, a fencing
    /// token. Grows by one with every mutating command, never goes back (R1). A fresh store is at 1.
    Revision(u64)
}
number! {
    /// Position of an entry in the replicated log. Not a revision: reads and refusals take log
    /// entries too, and one entry may carry many commands.
    LogIndex(u64)
}
number! {
    /// Raft's term: at most one leader in each (R5).
    Term(u64)
}
number! {
    /// A member of the cluster. Never reused, not even after the member lost its disk (M1).
    NodeId(u64)
}
number! {
    /// Identity of a cluster; peers of another one are turned away at the handshake.
    ClusterId(u64)
}
number! {
    /// Milliseconds since the Unix epoch by the clock of the leader that proposed an entry. Applying
    /// never lets it run back. No lease depends on it (H20).
    LogTime(u64)
}
number! {
    /// A lease. Zero means "no lease", as on etcd's wire.
    LeaseId(i64)
}

impl Revision {
    /// The revision of an empty store; the first write gets the next one.
    pub const FIRST: Revision = Revision(1);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl LogIndex {
    /// The index after this one.
    #[must_use]
    pub fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }
}

impl LeaseId {
    /// "No lease".
    pub const NONE: LeaseId = LeaseId(0);

    /// Whether this names a lease at all.
    #[must_use]
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }
}
