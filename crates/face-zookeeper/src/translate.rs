//! From what ZooKeeper's clients say to what the core does, and back. Pure.
//!
//! A request becomes a [`Step`]: a write, a read with the watch it asks for, or something this node does alone.
//! Flags and limits that make no sense are answered here; everything that depends on a znode is judged where the
//! command is carried out.

use tidelock_model::{
    AclEntry, CreateZnode, Identity, ZnodeAnswer, ZnodeError, ZnodeFound, ZnodeLife, ZnodeOp, ZnodeOpAnswer, ZnodeRead,
    ZnodeRequest, ZnodeStat,
};

use crate::outbox::zxid;
use crate::watch_table::WatchKind;
use crate::watches::Wish;
use crate::wire::{
    Acl, CreateCall, CreateMode, CreateRequest, ErrorCode, MultiOp, MultiReadOp, MultiReadResult, MultiResult, Reply,
    Request, Stat,
};

/// Longest time to live of a znode, in milliseconds; ZooKeeper has 40 bits for it.
const TTL_MAX_MS: i64 = (1 << 40) - 1;

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Step {
    /// A change.
    Write(ZnodeRequest, WriteShape),
    /// Reads of one moment.
    Read(Vec<ZnodeRead>, ReadShape),
    /// Nothing to do but answer.
    Answer(Reply),
    /// Something else.
    Other(Request),
}

/// How the answer to a change is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteShape {
    Create {
        with_stat: bool,
    },
    Delete,
    SetData,
    SetAcl,
    /// Whether creates are answered with a stat, operation by operation; and which are checks.
    Multi(Vec<MultiShape>),
}

/// How the answer to one operation of several is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultiShape {
    Create { with_stat: bool },
    Delete,
    SetData,
    Check,
}

/// How the answer to a read is written, and which watch it sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadShape {
    pub(crate) kind: ReadKind,
    /// One entry per read.
    pub(crate) wishes: Vec<Option<Wish>>,
}

/// Which read it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadKind {
    Exists,
    Data,
    Children { with_stat: bool },
    Acl,
    Descendants,
    Ephemerals,
    Multi,
}

/// Sorts a request. `session` is whose it is.
pub(crate) fn step(request: Request, session: tidelock_model::LeaseId) -> Step {
    let one = |read, kind, watch: Option<(WatchKind, String)>| {
        let wish = watch.map(|(kind, path)| Wish { kind, path });
        Step::Read(vec![read], ReadShape { kind, wishes: vec![wish] })
    };
    let watching = |watch: bool, kind, path: &String| watch.then(|| (kind, path.clone()));
    match request {
        Request::Create(create) => match create_op(create, false) {
            Ok((op, with_stat)) => Step::Write(ZnodeRequest::One(op), WriteShape::Create { with_stat }),
            Err(error) => Step::Answer(Reply::Error(error)),
        },
        Request::Delete { path, version } => {
            Step::Write(ZnodeRequest::One(ZnodeOp::Delete { path, version }), WriteShape::Delete)
        }
        Request::SetData { path, data, version } => {
            Step::Write(ZnodeRequest::One(ZnodeOp::SetData { path, data, version }), WriteShape::SetData)
        }
        Request::SetAcl { path, acl, version } => {
            let acl = acl.into_iter().map(acl_entry).collect();
            Step::Write(ZnodeRequest::One(ZnodeOp::SetAcl { path, acl, version }), WriteShape::SetAcl)
        }
        Request::Multi(ops) => multi(ops),
        Request::Exists { path, watch } => {
            let path = read_path(path);
            let watch = watching(watch, WatchKind::Data, &path);
            one(ZnodeRead::Stat(path), ReadKind::Exists, watch)
        }
        Request::GetData { path, watch } => {
            let path = read_path(path);
            let watch = watching(watch, WatchKind::Data, &path);
            one(ZnodeRead::Data(path), ReadKind::Data, watch)
        }
        Request::GetChildren { path, watch } => {
            let path = read_path(path);
            let watch = watching(watch, WatchKind::Child, &path);
            one(ZnodeRead::Children(path), ReadKind::Children { with_stat: false }, watch)
        }
        Request::GetChildren2 { path, watch } => {
            let path = read_path(path);
            let watch = watching(watch, WatchKind::Child, &path);
            one(ZnodeRead::Children(path), ReadKind::Children { with_stat: true }, watch)
        }
        Request::GetAcl { path } => one(ZnodeRead::Acl(read_path(path)), ReadKind::Acl, None),
        Request::GetAllChildrenNumber { path } => {
            one(ZnodeRead::Descendants(read_path(path)), ReadKind::Descendants, None)
        }
        Request::GetEphemerals { prefix } => {
            let prefix = prefix.unwrap_or_default();
            one(ZnodeRead::Ephemerals { session, prefix }, ReadKind::Ephemerals, None)
        }
        Request::MultiRead(ops) => multi_read(ops),
        other => Step::Other(other),
    }
}

/// ZooKeeper reads the empty path as the root.
fn read_path(path: String) -> String {
    if path.is_empty() { "/".to_owned() } else { path }
}

fn multi_read(ops: Vec<MultiReadOp>) -> Step {
    // Watches that are asked for in it are not set, as in ZooKeeper.
    let read = |op| match op {
        MultiReadOp::GetData { path, watch: _ } => ZnodeRead::Data(read_path(path)),
        MultiReadOp::GetChildren { path, watch: _ } => ZnodeRead::Children(read_path(path)),
    };
    let reads: Vec<ZnodeRead> = ops.into_iter().map(read).collect();
    let wishes = vec![None; reads.len()];
    Step::Read(reads, ReadShape { kind: ReadKind::Multi, wishes })
}

fn multi(ops: Vec<MultiOp>) -> Step {
    let operations = ops.len();
    let (mut carried, mut shapes) = (Vec::new(), Vec::new());
    for (failed, op) in ops.into_iter().enumerate() {
        let (op, shape) = match op {
            MultiOp::Create(create) => match create_op(create, true) {
                Ok((op, with_stat)) => (op, MultiShape::Create { with_stat }),
                Err(error) => return Step::Answer(Reply::MultiFailed { operations, failed, error }),
            },
            MultiOp::Delete { path, version } => (ZnodeOp::Delete { path, version }, MultiShape::Delete),
            MultiOp::SetData { path, data, version } => (ZnodeOp::SetData { path, data, version }, MultiShape::SetData),
            MultiOp::Check { path, version } => (ZnodeOp::Check { path, version }, MultiShape::Check),
        };
        carried.push(op);
        shapes.push(shape);
    }
    Step::Write(ZnodeRequest::Multi(carried), WriteShape::Multi(shapes))
}

/// Whether a znode is a container says the operation; in a multi the flags, as they say everything else.
fn create_op(request: CreateRequest, in_multi: bool) -> Result<(ZnodeOp, bool), ErrorCode> {
    let CreateRequest { call, path, data, acl, flags } = request;
    let mode = CreateMode::from_flags(flags).ok_or(ErrorCode::BadArguments)?;
    let life = match (call, mode) {
        (CreateCall::CreateTtl { ttl_ms }, mode) if mode.has_ttl() => {
            let ttl = u64::try_from(ttl_ms).ok().filter(|ttl| *ttl > 0 && ttl_ms <= TTL_MAX_MS);
            ZnodeLife::Ttl(ttl.ok_or(ErrorCode::BadArguments)?)
        }
        (CreateCall::CreateTtl { .. }, _) => return Err(ErrorCode::BadArguments),
        (_, mode) if mode.has_ttl() => return Err(ErrorCode::BadArguments),
        (CreateCall::CreateContainer, _) if !in_multi => ZnodeLife::Container,
        (_, CreateMode::Container) if in_multi => ZnodeLife::Container,
        (_, mode) if mode.is_ephemeral() => ZnodeLife::Ephemeral,
        _ => ZnodeLife::Persistent,
    };
    let acl = acl.into_iter().map(acl_entry).collect();
    let create = CreateZnode { path, data, acl, life, sequential: mode.is_sequential() };
    let with_stat = call.is_answered_with_stat() || in_multi && mode == CreateMode::Container;
    Ok((ZnodeOp::Create(create), with_stat))
}

fn acl_entry(acl: Acl) -> AclEntry {
    AclEntry { permissions: acl.perms, who: Identity { scheme: acl.scheme, id: acl.id } }
}

/// The reply to a change.
pub(crate) fn write_reply(result: Result<ZnodeAnswer, ZnodeError>, shape: &WriteShape) -> Reply {
    match (result, shape) {
        (Err(error), _) => Reply::Error(error_code(error)),
        (Ok(ZnodeAnswer::One(ZnodeOpAnswer::Created { path, stat })), WriteShape::Create { with_stat }) => {
            Reply::Created { path, stat: with_stat.then(|| wire_stat(&stat)) }
        }
        (Ok(ZnodeAnswer::One(ZnodeOpAnswer::Changed(stat))), WriteShape::SetData | WriteShape::SetAcl) => {
            Reply::Stat(wire_stat(&stat))
        }
        (Ok(ZnodeAnswer::One(ZnodeOpAnswer::Done)), WriteShape::Delete) => Reply::Empty,
        (Ok(ZnodeAnswer::Multi(answers)), WriteShape::Multi(shapes)) => {
            Reply::Multi(answers.into_iter().zip(shapes).map(|(answer, shape)| multi_result(answer, *shape)).collect())
        }
        (Ok(ZnodeAnswer::MultiFailed { at, error }), WriteShape::Multi(shapes)) => {
            Reply::MultiFailed { operations: shapes.len(), failed: at as usize, error: error_code(error) }
        }
        // An answer to something that was not asked.
        _ => Reply::Error(ErrorCode::SystemError),
    }
}

fn multi_result(answer: ZnodeOpAnswer, shape: MultiShape) -> MultiResult {
    match (answer, shape) {
        (ZnodeOpAnswer::Created { path, stat }, MultiShape::Create { with_stat }) => {
            MultiResult::Created { path, stat: with_stat.then(|| wire_stat(&stat)) }
        }
        (ZnodeOpAnswer::Changed(stat), _) => MultiResult::DataSet(wire_stat(&stat)),
        (_, MultiShape::Check) => MultiResult::Checked,
        _ => MultiResult::Deleted,
    }
}

/// The reply to a read, and which of its watches count.
pub(crate) fn read_reply(found: Vec<Result<ZnodeFound, ZnodeError>>, shape: &ReadShape) -> (Reply, Vec<bool>) {
    if shape.kind == ReadKind::Multi {
        let granted = found.iter().map(Result::is_ok).collect();
        return (Reply::MultiRead(found.into_iter().map(multi_read_result).collect()), granted);
    }
    let Some(found) = found.into_iter().next() else { return (Reply::Error(ErrorCode::SystemError), vec![false]) };
    let granted = match (&found, shape.kind) {
        // Whoever asks whether something exists wants to hear when it does.
        (Err(ZnodeError::NoNode), ReadKind::Exists) => true,
        (found, _) => found.is_ok(),
    };
    let reply = match found {
        Err(error) => Reply::Error(error_code(error)),
        Ok(ZnodeFound::Stat(stat)) => Reply::Stat(wire_stat(&stat)),
        Ok(ZnodeFound::Data { data, stat }) => Reply::Data { data, stat: wire_stat(&stat) },
        Ok(ZnodeFound::Children { names, stat }) => {
            let with_stat = shape.kind == ReadKind::Children { with_stat: true };
            Reply::Children {
                children: names.into_iter().map(Into::into).collect(),
                stat: with_stat.then(|| wire_stat(&stat)),
            }
        }
        Ok(ZnodeFound::Acl { acl, stat }) => {
            let wire = |entry: AclEntry| Acl { perms: entry.permissions, scheme: entry.who.scheme, id: entry.who.id };
            Reply::Acl { acl: acl.into_iter().map(wire).collect(), stat: wire_stat(&stat) }
        }
        Ok(ZnodeFound::Count(count)) => Reply::AllChildrenNumber(i32::try_from(count).unwrap_or(i32::MAX)),
        Ok(ZnodeFound::Paths(paths)) => Reply::Ephemerals(paths),
    };
    (reply, vec![granted])
}

fn multi_read_result(found: Result<ZnodeFound, ZnodeError>) -> MultiReadResult {
    match found {
        Ok(ZnodeFound::Data { data, stat }) => MultiReadResult::Data { data, stat: wire_stat(&stat) },
        Ok(ZnodeFound::Children { names, .. }) => {
            MultiReadResult::Children(names.into_iter().map(Into::into).collect())
        }
        Ok(_) => MultiReadResult::Error(ErrorCode::SystemError),
        Err(error) => MultiReadResult::Error(error_code(error)),
    }
}

fn error_code(error: ZnodeError) -> ErrorCode {
    match error {
        ZnodeError::NoNode => ErrorCode::NoNode,
        ZnodeError::NoAuth => ErrorCode::NoAuth,
        ZnodeError::BadVersion => ErrorCode::BadVersion,
        ZnodeError::NoChildrenForEphemerals => ErrorCode::NoChildrenForEphemerals,
        ZnodeError::NodeExists => ErrorCode::NodeExists,
        ZnodeError::NotEmpty => ErrorCode::NotEmpty,
        ZnodeError::InvalidAcl => ErrorCode::InvalidAcl,
        ZnodeError::BadArguments => ErrorCode::BadArguments,
        ZnodeError::SessionExpired => ErrorCode::SessionExpired,
        ZnodeError::SessionMoved => ErrorCode::SessionMoved,
        ZnodeError::QuotaExceeded => ErrorCode::QuotaExceeded,
    }
}

fn wire_stat(stat: &ZnodeStat) -> Stat {
    let milliseconds = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    Stat {
        czxid: zxid(stat.created),
        mzxid: zxid(stat.modified),
        ctime: milliseconds(stat.created_ms),
        mtime: milliseconds(stat.modified_ms),
        version: stat.version,
        cversion: stat.child_version,
        aversion: stat.acl_version,
        ephemeral_owner: stat.owner.0,
        data_length: i32::try_from(stat.data_length).unwrap_or(i32::MAX),
        num_children: i32::try_from(stat.children).unwrap_or(i32::MAX),
        pzxid: zxid(stat.children_modified),
    }
}
