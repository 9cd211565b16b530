//! Znodes: what ZooKeeper's clients ask of the tree, as commands and queries of the one core.
//!
//! A session is a lease that owns a record of itself; ephemeral znodes are keys of that lease, so whatever
//! ends a lease ends a session and all it owns at one revision. Rights are lists on the znodes, judged where a
//! request is carried out, against the identities that came with it.
//!
//! How they lie in the store is in `state::znodes`.

mod changes;
mod event;
pub mod rights;
mod wire;

pub use changes::{Rights, ZnodeChange, znode_changes};
pub use event::{SESSION_KEY, SIDE_KEY, ZNODE_KEY, ZnodeEvent, znode_path};

use bytes::Bytes;

use crate::limits::{
    VALUE_BYTES_MAX, ZNODE_ACL_MAX, ZNODE_IDENTITIES_MAX, ZNODE_IDENTITY_BYTES_MAX, ZNODE_OPS_MAX,
    ZNODE_PATH_BYTES_MAX, ZNODE_PATHS_MAX, ZNODE_REQUESTS_MAX, ZNODE_SCHEME_BYTES_MAX,
};
use crate::{LeaseId, Revision};

/// A change to sessions or znodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeCommand {
    /// Open a session, whose id is made from the log index. Answered with [`SessionAnswer`].
    OpenSession {
        /// How long it lives unheard of.
        timeout_ms: u32,
    },
    /// A new connection takes a session over: requests that came in at older ones are refused from now on, and
    /// its time begins anew. Answered with [`SessionAnswer`].
    AttachSession {
        /// Which.
        session: LeaseId,
        /// How long it lives unheard of from now on; zero: as long as before.
        timeout_ms: u32,
    },
    /// End a session and delete what it owns.
    CloseSession {
        /// Which.
        session: LeaseId,
    },
    /// Requests of one connection, in its order.
    Requests(ZnodeRequests),
    /// The same, and what would break a hard limit of a quota is refused.
    RequestsWithinQuotas(ZnodeRequests),
    /// Sent by the leader alone: delete those of these containers and znodes with a time to live whose time
    /// has come. Each is judged again when applied.
    Reap {
        /// Candidates.
        paths: Vec<String>,
    },
}

/// What one connection asks for, to be carried out in order, each at a revision of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeRequests {
    /// The session.
    pub session: LeaseId,
    /// Which of the session's connections, as [`SessionAnswer`] told.
    pub generation: u64,
    /// Who asks.
    pub identities: Vec<Identity>,
    /// What.
    pub requests: Vec<ZnodeRequest>,
}

/// One request that may change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeRequest {
    /// One operation.
    One(ZnodeOp),
    /// All of them at one revision, or none.
    Multi(Vec<ZnodeOp>),
}

/// One operation. A `version` of -1 stands for any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeOp {
    /// Create a znode.
    Create(CreateZnode),
    /// Delete one that has no children.
    Delete {
        /// Which.
        path: String,
        /// The version it must have.
        version: i32,
    },
    /// Change its data.
    SetData {
        /// Which.
        path: String,
        /// To what; nothing is not the same as empty.
        data: Option<Bytes>,
        /// The version it must have.
        version: i32,
    },
    /// Change who may do what with it.
    SetAcl {
        /// Which.
        path: String,
        /// To what.
        acl: Vec<AclEntry>,
        /// The version its list must have.
        version: i32,
    },
    /// Change nothing, but require a version.
    Check {
        /// Of which.
        path: String,
        /// The version it must have.
        version: i32,
    },
}

/// Create a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateZnode {
    /// Where; a sequential one gets a number behind it.
    pub path: String,
    /// With what.
    pub data: Option<Bytes>,
    /// Who may do what with it.
    pub acl: Vec<AclEntry>,
    /// How long it lives.
    pub life: ZnodeLife,
    /// Whether its name gets a number that grows with every child its parent ever had.
    pub sequential: bool,
}

/// How long a znode lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZnodeLife {
    /// Until it is deleted.
    Persistent,
    /// As long as the session that creates it.
    Ephemeral,
    /// Until its last child is gone.
    Container,
    /// Until it has no children and was not changed for so many milliseconds.
    Ttl(u64),
}

/// Who a connection is, in one scheme; it may be several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// `ip`, `digest`, `x509`, `sasl` or `super`.
    pub scheme: String,
    /// Who, in that scheme's words.
    pub id: String,
}

/// What somebody may do with a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Bits: 1 read, 2 write, 4 create children, 8 delete children, 16 administer.
    pub permissions: i32,
    /// Who.
    pub who: Identity,
}

/// A znode's figures, as ZooKeeper shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZnodeStat {
    /// Revision of its creation.
    pub created: Revision,
    /// Revision of the last change of its data.
    pub modified: Revision,
    /// Milliseconds since 1970 of its creation.
    pub created_ms: u64,
    /// The same of the last change of its data.
    pub modified_ms: u64,
    /// Changes of its data.
    pub version: i32,
    /// Children created and deleted.
    pub child_version: i32,
    /// Changes of its list of rights.
    pub acl_version: i32,
    /// The session it lives as long as, or none.
    pub owner: LeaseId,
    /// Bytes of data.
    pub data_length: u32,
    /// Children.
    pub children: u32,
    /// Revision of the last creation or deletion of a child; its own creation if there was none.
    pub children_modified: Revision,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZnodeError {
    /// There is no such znode, or no such parent.
    #[error("no such znode")]
    NoNode,
    /// The identities are not on the list.
    #[error("not permitted by the znode's list of rights")]
    NoAuth,
    /// Another version.
    #[error("the version is another one")]
    BadVersion,
    /// Ephemeral znodes have no children.
    #[error("an ephemeral znode cannot have children")]
    NoChildrenForEphemerals,
    /// It is there already.
    #[error("the znode exists")]
    NodeExists,
    /// It has children.
    #[error("the znode has children")]
    NotEmpty,
    /// A list of rights that makes no sense, or is empty.
    #[error("the list of rights is not valid")]
    InvalidAcl,
    /// A path or number that makes no sense.
    #[error("an argument is not valid")]
    BadArguments,
    /// The session is over.
    #[error("the session is over")]
    SessionExpired,
    /// The session went on at another connection.
    #[error("the session goes on at another connection")]
    SessionMoved,
    /// A hard quota would be broken.
    #[error("a quota would be exceeded")]
    QuotaExceeded,
}

/// To opening or attaching a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionAnswer {
    /// Its id.
    pub session: LeaseId,
    /// How long it lives unheard of.
    pub timeout_ms: u32,
    /// Counts the connections it was taken over by.
    pub generation: u64,
}

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeOutcome {
    /// The store's revision right after it.
    pub revision: Revision,
    /// The answer, or why nothing was done.
    pub result: Result<ZnodeAnswer, ZnodeError>,
}

/// What a request that was carried out answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeAnswer {
    /// To a single operation.
    One(ZnodeOpAnswer),
    /// To several, all done.
    Multi(Vec<ZnodeOpAnswer>),
    /// To several, none done.
    MultiFailed {
        /// The position of the one that could not be done.
        at: u32,
        /// Why.
        error: ZnodeError,
    },
}

/// What one operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeOpAnswer {
    /// It was created.
    Created {
        /// With its number, if it is sequential.
        path: String,
        /// Its figures.
        stat: ZnodeStat,
    },
    /// Data or rights were changed.
    Changed(ZnodeStat),
    /// Deleted, or checked.
    Done,
}

/// Reads, all of one moment. Those beyond `limits::ZNODE_FOUND_BYTES_MAX` are left out of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeQuery {
    /// Who asks.
    pub identities: Vec<Identity>,
    /// What.
    pub reads: Vec<ZnodeRead>,
}

/// One read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeRead {
    /// Its figures.
    Stat(String),
    /// Its data.
    Data(String),
    /// The names of its children.
    Children(String),
    /// Who may do what with it.
    Acl(String),
    /// How many znodes are below it.
    Descendants(String),
    /// The paths of a session's ephemeral znodes that begin so.
    Ephemerals {
        /// Whose.
        session: LeaseId,
        /// How they begin.
        prefix: String,
    },
    /// Its figures, for who may change its data.
    Writable(String),
    /// Its figures, whoever asks: for the node itself, which tells no one.
    Glance(String),
    /// Paths of containers and znodes with a time to live that could be reaped, at most so many.
    Reapable(u32),
    /// How much there is of everything, whoever asks: for operators.
    Totals,
    /// Some of the sessions, whoever asks: for operators.
    Sessions(SessionsPage),
}

/// Which sessions are asked for, and how much of them: a part at a time, so that nobody is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsPage {
    /// Those after this one, by id; [`LeaseId::NONE`] begins.
    pub after: LeaseId,
    /// At most so many.
    pub sessions_max: u32,
    /// With at most so many ephemeral znodes, of all of them together.
    pub paths_max: u32,
}

/// A session and what lives as long as it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFound {
    /// Its id.
    pub session: LeaseId,
    /// How long it lives unheard of.
    pub timeout_ms: u32,
    /// Paths of its ephemeral znodes, as many as were asked for.
    pub ephemerals: Vec<String>,
    /// Whether it has more of them.
    pub has_more: bool,
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZnodeTotals {
    /// Znodes, the root among them.
    pub znodes: u64,
    /// Those that live as long as a session.
    pub ephemerals: u64,
    /// Bytes of paths and data of all znodes.
    pub bytes: u64,
    /// Sessions.
    pub sessions: u64,
}

/// What one read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeFound {
    /// Figures.
    Stat(ZnodeStat),
    /// Data.
    Data {
        /// The data; nothing is not the same as empty.
        data: Option<Bytes>,
        /// Its figures.
        stat: ZnodeStat,
    },
    /// Names of children, in the order of their bytes.
    Children {
        /// The names.
        names: Vec<String>,
        /// The parent's figures.
        stat: ZnodeStat,
    },
    /// Rights.
    Acl {
        /// The list; digests are masked unless the caller may administer.
        acl: Vec<AclEntry>,
        /// Its figures.
        stat: ZnodeStat,
    },
    /// A number of znodes.
    Count(u64),
    /// Paths.
    Paths(Vec<String>),
    /// How much there is.
    Totals(ZnodeTotals),
    /// Sessions, by id.
    Sessions(Vec<SessionFound>),
}

impl ZnodeFound {
    /// About how much memory it takes, and how long it is in a reply.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>();
        size_of::<ZnodeStat>()
            + match self {
                ZnodeFound::Stat(_) | ZnodeFound::Count(_) | ZnodeFound::Totals(_) => 0,
                ZnodeFound::Sessions(sessions) => sessions.iter().map(|found| texts(&found.ephemerals) + 64).sum(),
                ZnodeFound::Data { data, .. } => data.as_ref().map_or(0, Bytes::len),
                ZnodeFound::Children { names, .. } => texts(names),
                ZnodeFound::Acl { acl, .. } => {
                    acl.iter().map(|entry| entry.who.scheme.len() + entry.who.id.len() + 64).sum()
                }
                ZnodeFound::Paths(paths) => texts(paths),
            }
    }
}

impl ZnodeCommand {
    /// Whether everybody will be able to read this. Senders must ask: an entry that holds a command over a
    /// limit is skipped as a whole, with all other commands in it.
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        match self {
            ZnodeCommand::OpenSession { .. }
            | ZnodeCommand::AttachSession { .. }
            | ZnodeCommand::CloseSession { .. } => true,
            ZnodeCommand::Requests(requests) | ZnodeCommand::RequestsWithinQuotas(requests) => {
                requests.identities.len() <= ZNODE_IDENTITIES_MAX
                    && requests.identities.iter().all(Identity::is_within_limits)
                    && requests.requests.len() <= ZNODE_REQUESTS_MAX
                    && requests.requests.iter().all(ZnodeRequest::is_within_limits)
            }
            ZnodeCommand::Reap { paths } => {
                paths.len() <= ZNODE_PATHS_MAX && paths.iter().all(|path| path.len() <= ZNODE_PATH_BYTES_MAX)
            }
        }
    }

    /// Whether this can make the store larger. Going on with a session and ending one are always possible.
    #[must_use]
    pub fn grows(&self) -> bool {
        match self {
            ZnodeCommand::OpenSession { .. } => true,
            ZnodeCommand::Requests(requests) | ZnodeCommand::RequestsWithinQuotas(requests) => {
                requests.requests.iter().any(|request| match request {
                    ZnodeRequest::One(op) => op.grows(),
                    ZnodeRequest::Multi(ops) => ops.iter().any(ZnodeOp::grows),
                })
            }
            ZnodeCommand::AttachSession { .. } | ZnodeCommand::CloseSession { .. } | ZnodeCommand::Reap { .. } => false,
        }
    }
}

impl ZnodeRequest {
    /// Whether everybody will be able to read this; see [`ZnodeCommand::is_within_limits`].
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        match self {
            ZnodeRequest::One(op) => op.is_within_limits(),
            ZnodeRequest::Multi(ops) => ops.len() <= ZNODE_OPS_MAX && ops.iter().all(ZnodeOp::is_within_limits),
        }
    }
}

impl ZnodeOp {
    /// Whether everybody will be able to read this; see [`ZnodeCommand::is_within_limits`].
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        let data_fits = |data: &Option<Bytes>| data.as_ref().is_none_or(|data| data.len() <= VALUE_BYTES_MAX);
        let acl_fits =
            |acl: &[AclEntry]| acl.len() <= ZNODE_ACL_MAX && acl.iter().all(|entry| entry.who.is_within_limits());
        let (path, fits) = match self {
            ZnodeOp::Create(create) => (&create.path, data_fits(&create.data) && acl_fits(&create.acl)),
            ZnodeOp::SetData { path, data, version: _ } => (path, data_fits(data)),
            ZnodeOp::SetAcl { path, acl, version: _ } => (path, acl_fits(acl)),
            ZnodeOp::Delete { path, version: _ } | ZnodeOp::Check { path, version: _ } => (path, true),
        };
        path.len() <= ZNODE_PATH_BYTES_MAX && fits
    }

    fn grows(&self) -> bool {
        match self {
            ZnodeOp::Create(_) | ZnodeOp::SetData { .. } | ZnodeOp::SetAcl { .. } => true,
            ZnodeOp::Delete { .. } | ZnodeOp::Check { .. } => false,
        }
    }
}

impl Identity {
    /// Whether everybody will be able to read this; see [`ZnodeCommand::is_within_limits`].
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        self.scheme.len() <= ZNODE_SCHEME_BYTES_MAX && self.id.len() <= ZNODE_IDENTITY_BYTES_MAX
    }
}
