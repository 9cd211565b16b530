//! What a watcher asks for and what it is told.

use crate::{AuthRefusal, Caller, KeyRange, LeaseId, Revision, SharedEvents};

/// Names a watcher within its subscription; chosen by the face.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatcherId(pub i64);

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Name of the watcher, unused in this subscription.
    pub id: WatcherId,
    /// Which keys.
    pub range: KeyRange,
    /// First revision to report; `None` is whatever comes after now. May be in the future.
    pub from: Option<Revision>,
    /// Whether events shall carry the version they replaced.
    pub want_previous: bool,
    /// On whose behalf. Asked again whenever users and roles change.
    pub caller: Caller,
}

/// What a subscription is told, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchNotice {
    /// The watcher exists; precedes all its events.
    Opened {
        /// Which.
        id: WatcherId,
        /// The store's revision at that moment.
        revision: Revision,
    },
    /// Changes, in order; a revision is never split over two notices (W4).
    Events {
        /// To which watcher.
        id: WatcherId,
        /// The store's revision when the notice was made; at least that of the last event.
        revision: Revision,
        /// The changes, shared by all watchers that are told the same.
        events: SharedEvents,
    },
    /// Every watcher of this subscription was told everything up to `revision` (W6). Answers
    /// a request for progress.
    Progress {
        /// Up to which revision.
        revision: Revision,
    },
    /// The watcher is gone; nothing more will come for it (W8).
    Closed {
        /// Which.
        id: WatcherId,
        /// Why.
        why: WatchClosed,
    },
}

/// Native sessions that ended, as who follows them is told. They have no keys of their own, so no watcher sees their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedSessions {
    /// Which, in the order in which they ended.
    pub sessions: Vec<LeaseId>,
    /// Others may have ended, too, and nobody can tell which: only looking helps.
    pub missed: bool,
}

/// Why a watcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchClosed {
    /// It was closed on request.
    Requested,
    /// What it still had to be told was compacted.
    Compacted {
        /// The oldest revision that can still be watched from.
        compacted: Revision,
    },
    /// The caller may not, or no longer, read all of the range. If this is said of a watcher that was never
    /// opened, it was not allowed to be.
    Refused(AuthRefusal),
}
