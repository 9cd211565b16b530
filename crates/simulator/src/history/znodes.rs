//! The part of a history that is about ZooKeeper: what every connection asked and was told, and what really became
//! of the tree.

use tidelock_face_zookeeper::wire::Request;
use tidelock_face_zookeeper::wire::client::Found;
use tidelock_model::NodeId;

use super::Stamp;

/// One connection of one client, from the attempt to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeLog {
    /// Who.
    pub client: u32,
    /// At which node.
    pub node: NodeId,
    /// When it asked for a session.
    pub called: Stamp,
    /// The session it wants to go on with; 0: a new one.
    pub wanted: i64,
    /// The newest zxid that the client had been told.
    pub seen: i64,
    /// What it was told about the session.
    pub greeted: Option<(Stamp, Greeted)>,
    /// What it asked and was told, in order.
    pub steps: Vec<(Stamp, Step)>,
    /// When the client noticed the end, or ended it itself.
    pub closed: Option<Stamp>,
}

/// The answer to a client that wants a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeted {
    /// It has one.
    Session {
        /// Which.
        id: i64,
        /// For how long without a word of it.
        timeout_ms: u32,
    },
    /// The one it wants is over.
    Over,
}

/// Something that went over a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client asked.
    Asked {
        /// The number of the request.
        xid: i32,
        /// What.
        request: Request,
    },
    /// The client was answered.
    Replied {
        /// The number of the request.
        xid: i32,
        /// From the header.
        zxid: i64,
        /// 0, or why not.
        error: i32,
        /// What it was told.
        found: Found,
    },
    /// A watch fired.
    Fired {
        /// From the header.
        zxid: i64,
        /// The number of its kind.
        kind: i32,
        /// Where.
        path: String,
    },
}

impl ZnodeLog {
    /// The session it has, and its timeout in milliseconds.
    #[must_use]
    pub fn session(&self) -> Option<(i64, u32)> {
        match self.greeted {
            Some((_, Greeted::Session { id, timeout_ms })) => Some((id, timeout_ms)),
            _ => None,
        }
    }
}

/// A change of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeChange {
    /// Of a znode.
    Znode {
        /// Where.
        path: String,
        /// What it became; `None`: deleted.
        became: Option<Znode>,
    },
    /// Of a session's own record.
    Session {
        /// Which.
        id: i64,
        /// The connection it goes on at, counted from 1; `None`: it is over.
        generation: Option<u64>,
    },
    /// Of something that hangs on a znode.
    Aside {
        /// The name of the record.
        name: Vec<u8>,
        /// What it became.
        became: Option<Vec<u8>>,
    },
}

/// A znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// Its data.
    pub data: String,
    /// The session it goes with; 0: none.
    pub owner: i64,
    /// Whether it may go by itself: a container, or one with a time to live.
    pub goes_by_itself: bool,
    /// Revision of its creation.
    pub created: i64,
    /// Revision of its last change.
    pub modified: i64,
    /// Times written since its creation; the first is 1.
    pub version: i64,
}
