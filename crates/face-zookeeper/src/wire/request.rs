//! Requests: what a frame after the handshake asks for.

use bytes::Bytes;

use super::codes::{opcode, xid};
use super::jute::{Defect, MIN_STRING, Reader};
use super::multi::{MultiOp, MultiReadOp};
use super::records::{Acl, AddWatchMode, RemovedWatch};

/// Why a frame is no request. One variant per thing to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Close the connection without a reply: there is no whole header, or credentials cannot be read.
    #[error("an unreadable packet: {defect}")]
    Fatal {
        /// What is wrong with it.
        defect: Defect,
    },
    /// Answer `xid` with [`ErrorCode::MarshallingError`](super::ErrorCode::MarshallingError), in its turn, and
    /// go on.
    #[error("an unreadable record for operation {opcode}: {defect}")]
    Record {
        /// Whom to answer.
        xid: i32,
        /// What was asked for.
        opcode: i32,
        /// What is wrong with it.
        defect: Defect,
    },
}

/// Which of the four creates was called. Only the shape of the reply and the TTL depend on it; what kind of
/// znode it is, the flags say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateCall {
    /// Answered with the path alone.
    Create,
    /// Answered with path and Stat.
    Create2,
    /// Answered with path and Stat.
    CreateContainer,
    /// Answered with path and Stat.
    CreateTtl {
        /// How long the znode may be left alone, in ms; any number can be here.
        ttl_ms: i64,
    },
}

impl CreateCall {
    /// Whether the reply has a Stat.
    #[must_use]
    pub const fn is_answered_with_stat(self) -> bool {
        !matches!(self, CreateCall::Create)
    }
}

/// A create of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRequest {
    /// Which create it is.
    pub call: CreateCall,
    /// Where; for a sequential znode without the number.
    pub path: String,
    /// The data; null stays null.
    pub data: Option<Bytes>,
    /// Who may do what with it. Empty also if it was null: both are -114.
    pub acl: Vec<Acl>,
    /// See [`CreateMode::from_flags`](super::CreateMode::from_flags); any number can be here.
    pub flags: i32,
}

impl CreateRequest {
    pub(super) fn read(reader: &mut Reader, call: CreateCall) -> Result<CreateRequest, Defect> {
        Ok(CreateRequest {
            call,
            path: reader.required_string("path")?,
            data: reader.buffer()?,
            acl: Acl::read_list(reader)?,
            flags: reader.int()?,
        })
    }

    pub(super) fn read_with_ttl(reader: &mut Reader) -> Result<CreateRequest, Defect> {
        let mut request = CreateRequest::read(reader, CreateCall::Create)?;
        request.call = CreateCall::CreateTtl { ttl_ms: reader.long()? };
        Ok(request)
    }
}

/// The watches that a client which is back had, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedPaths {
    /// Set by getData, or by exists on a znode that was there.
    pub data: Vec<String>,
    /// Set by exists on a znode that was not there.
    pub exist: Vec<String>,
    /// Set by getChildren.
    pub child: Vec<String>,
    /// Persistent ones; setWatches2 only.
    pub persistent: Vec<String>,
    /// Persistent recursive ones; setWatches2 only.
    pub persistent_recursive: Vec<String>,
}

/// What a client asks for. Paths are as the client wrote them, legal or not.
///
/// ZooKeeper reads the empty path as "/" in reads and refuses it in writes. Where it does not take a null path
/// for a bad record, that path is empty here, which gets the same answer, or stays null.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Any of the four creates.
    Create(CreateRequest),
    /// Deletes a znode; version -1 means any.
    Delete { path: String, version: i32 },
    /// Deletes an empty container or TTL znode. Meant for ZooKeeper's own reaper, open to all.
    DeleteContainer { path: String },
    /// The Stat of a znode.
    Exists { path: String, watch: bool },
    /// Data and Stat.
    GetData { path: String, watch: bool },
    /// Sets the data; a null path is empty here (-8).
    SetData { path: String, data: Option<Bytes>, version: i32 },
    /// ACL and Stat.
    GetAcl { path: String },
    /// Sets the ACL; a null path is empty here (-8).
    SetAcl { path: String, acl: Vec<Acl>, version: i32 },
    /// The children's names.
    GetChildren { path: String, watch: bool },
    /// The children's names and the Stat.
    GetChildren2 { path: String, watch: bool },
    /// Catches up with the leader. The path means nothing and is sent back as it came, also null.
    Sync { path: Option<String> },
    /// Keeps the session alive.
    Ping,
    /// All of the operations, or none.
    Multi(Vec<MultiOp>),
    /// Several reads, each with its own outcome.
    MultiRead(Vec<MultiReadOp>),
    /// Changes the members.
    Reconfig {
        joining_servers: Option<String>,
        leaving_servers: Option<String>,
        new_members: Option<String>,
        cur_config_id: i64,
    },
    /// Whether this connection has such a watch; a null path is empty here.
    CheckWatches { path: String, kind: RemovedWatch },
    /// Removes such watches; a null path is empty here.
    RemoveWatches { path: String, kind: RemovedWatch },
    /// Credentials. The reply's zxid is 0; failure is -115 and the end of the connection.
    Auth { scheme: String, auth: Bytes },
    /// Watches that a client which is back had; setWatches and setWatches2.
    SetWatches { relative_zxid: i64, paths: WatchedPaths },
    /// A step of a SASL handshake.
    Sasl { token: Bytes },
    /// The session's own ephemerals below a prefix; null means all.
    GetEphemerals { prefix: Option<String> },
    /// How many znodes are below this one.
    GetAllChildrenNumber { path: String },
    /// Sets a watch that stays; a null path is empty here.
    AddWatch { path: String, mode: AddWatchMode },
    /// Who this connection has proved to be.
    WhoAmI,
    /// Ends the session.
    CloseSession,
    /// An operation that is none, or none of a client's; `check` outside of a multi is one (-6).
    Unknown { opcode: i32 },
}

/// Reads one frame: the xid to answer, and what is asked for.
///
/// A ping's xid is always that of pings here, because ZooKeeper answers it so whatever the client wrote.
///
/// # Errors
/// The frame is no request; the error says whether it can be answered.
pub fn parse_request(frame: Bytes) -> Result<(i32, Request), Malformed> {
    let mut reader = Reader::new(frame);
    let header = read_header(&mut reader);
    let (xid, opcode) = header.map_err(|defect| Malformed::Fatal { defect })?;
    match read_record(&mut reader, opcode) {
        Ok(Request::Ping) => Ok((xid::PING, Request::Ping)),
        Ok(request) => Ok((xid, request)),
        Err(defect) if matches!(opcode, opcode::AUTH | opcode::SASL) => Err(Malformed::Fatal { defect }),
        Err(defect) => Err(Malformed::Record { xid, opcode, defect }),
    }
}

fn read_header(reader: &mut Reader) -> Result<(i32, i32), Defect> {
    Ok((reader.int()?, reader.int()?))
}

fn read_record(reader: &mut Reader, opcode: i32) -> Result<Request, Defect> {
    Ok(match opcode {
        opcode::CREATE => Request::Create(CreateRequest::read(reader, CreateCall::Create)?),
        opcode::CREATE2 => Request::Create(CreateRequest::read(reader, CreateCall::Create2)?),
        opcode::CREATE_CONTAINER => Request::Create(CreateRequest::read(reader, CreateCall::CreateContainer)?),
        opcode::CREATE_TTL => Request::Create(CreateRequest::read_with_ttl(reader)?),
        opcode::DELETE => Request::Delete { path: path(reader)?, version: reader.int()? },
        opcode::DELETE_CONTAINER => Request::DeleteContainer { path: path(reader)? },
        opcode::EXISTS => Request::Exists { path: path(reader)?, watch: reader.boolean()? },
        opcode::GET_DATA => Request::GetData { path: path(reader)?, watch: reader.boolean()? },
        opcode::SET_DATA => {
            Request::SetData { path: path_or_empty(reader)?, data: reader.buffer()?, version: reader.int()? }
        }
        opcode::GET_ACL => Request::GetAcl { path: path(reader)? },
        opcode::SET_ACL => {
            Request::SetAcl { path: path_or_empty(reader)?, acl: Acl::read_list(reader)?, version: reader.int()? }
        }
        opcode::GET_CHILDREN => Request::GetChildren { path: path(reader)?, watch: reader.boolean()? },
        opcode::GET_CHILDREN2 => Request::GetChildren2 { path: path(reader)?, watch: reader.boolean()? },
        opcode::SYNC => Request::Sync { path: reader.string()? },
        opcode::PING => Request::Ping,
        opcode::MULTI => Request::Multi(MultiOp::read_list(reader)?),
        opcode::MULTI_READ => Request::MultiRead(MultiReadOp::read_list(reader)?),
        opcode::GET_ALL_CHILDREN_NUMBER => Request::GetAllChildrenNumber { path: path(reader)? },
        opcode::GET_EPHEMERALS => Request::GetEphemerals { prefix: reader.string()? },
        opcode::RECONFIG => Request::Reconfig {
            joining_servers: reader.string()?,
            leaving_servers: reader.string()?,
            new_members: reader.string()?,
            cur_config_id: reader.long()?,
        },
        _ => return read_connection_record(reader, opcode),
    })
}

/// The requests that are about the connection and its watches, not about the tree.
fn read_connection_record(reader: &mut Reader, opcode: i32) -> Result<Request, Defect> {
    Ok(match opcode {
        opcode::CHECK_WATCHES => {
            Request::CheckWatches { path: path_or_empty(reader)?, kind: RemovedWatch::read(reader)? }
        }
        opcode::REMOVE_WATCHES => {
            Request::RemoveWatches { path: path_or_empty(reader)?, kind: RemovedWatch::read(reader)? }
        }
        opcode::ADD_WATCH => Request::AddWatch { path: path_or_empty(reader)?, mode: AddWatchMode::read(reader)? },
        opcode::SET_WATCHES => read_set_watches(reader, false)?,
        opcode::SET_WATCHES2 => read_set_watches(reader, true)?,
        opcode::AUTH => {
            // The packet's own type, always 0 and never looked at.
            let _kind = reader.int()?;
            // No scheme and no credentials are wrong ones, not unreadable ones: -115, then the end.
            let scheme = reader.string()?.unwrap_or_default();
            Request::Auth { scheme, auth: reader.buffer()?.unwrap_or_default() }
        }
        opcode::SASL => Request::Sasl { token: reader.buffer()?.ok_or(Defect::Null("the token"))? },
        opcode::WHO_AM_I => Request::WhoAmI,
        opcode::CLOSE_SESSION => Request::CloseSession,
        opcode => Request::Unknown { opcode },
    })
}

fn read_set_watches(reader: &mut Reader, with_persistent: bool) -> Result<Request, Defect> {
    let relative_zxid = reader.long()?;
    let mut paths = WatchedPaths {
        data: watched_paths(reader)?,
        exist: watched_paths(reader)?,
        child: watched_paths(reader)?,
        ..WatchedPaths::default()
    };
    if with_persistent {
        paths.persistent = watched_paths(reader)?;
        paths.persistent_recursive = watched_paths(reader)?;
    }
    Ok(Request::SetWatches { relative_zxid, paths })
}

fn watched_paths(reader: &mut Reader) -> Result<Vec<String>, Defect> {
    reader.vector(MIN_STRING, path)?.ok_or(Defect::Null("a list of paths"))
}

fn path(reader: &mut Reader) -> Result<String, Defect> {
    reader.required_string("path")
}

/// For the operations that answer a null path as they answer the empty one.
fn path_or_empty(reader: &mut Reader) -> Result<String, Defect> {
    Ok(reader.string()?.unwrap_or_default())
}
