//! From what ZooKeeper's clients say to what the core does, and back. Pure.
//!
//! A request becomes a [`Step`]: a write, a read with the watch it asks for, or something this node does alone.
//! Flags that make no sense in a request of its own are answered here; everything that depends on a znode, or on what
//! stands before it in a multi, is judged where the command is carried out.

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

/// A time to live that no znode can have: whoever asks for it is refused when the operation is carried out.
const NO_LIFE: ZnodeLife = ZnodeLife::Ttl(0);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// No read, but a barrier before those that come after it.
    Sync {
        /// Sent back as it came.
        path: Option<String>,
    },
    Exists,
    Data,
    Children {
        with_stat: bool,
    },
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
        Request::Create(create) => match create_alone(create) {
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
            let (watch, path) = (watching(watch, WatchKind::Data, &path), read_path(path));
            one(ZnodeRead::Stat(path), ReadKind::Exists, watch)
        }
        Request::GetData { path, watch } => {
            let (watch, path) = (watching(watch, WatchKind::Data, &path), read_path(path));
            one(ZnodeRead::Data(path), ReadKind::Data, watch)
        }
        Request::GetChildren { path, watch } => {
            let (watch, path) = (watching(watch, WatchKind::Child, &path), read_path(path));
            one(ZnodeRead::Children(path), ReadKind::Children { with_stat: false }, watch)
        }
        Request::GetChildren2 { path, watch } => {
            let (watch, path) = (watching(watch, WatchKind::Child, &path), read_path(path));
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
        Request::Sync { path } => {
            Step::Read(Vec::new(), ReadShape { kind: ReadKind::Sync { path }, wishes: Vec::new() })
        }
        other => Step::Other(other),
    }
}

/// ZooKeeper reads the empty path as the root. A watch of the empty path is one all the same, and never fires.
pub(crate) fn read_path(path: String) -> String {
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
    let (mut carried, mut shapes) = (Vec::new(), Vec::new());
    for op in ops {
        let (op, shape) = match op {
            MultiOp::Create(create) => match create_in_multi(create) {
                Ok((op, with_stat)) => (op, MultiShape::Create { with_stat }),
                Err(error) => return Step::Answer(Reply::Error(error)),
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

/// Whether a znode is a container says the operation; the flags say everything else.
fn create_alone(request: CreateRequest) -> Result<(ZnodeOp, bool), ErrorCode> {
    let mode = CreateMode::from_flags(request.flags).ok_or(ErrorCode::BadArguments)?;
    let life = match (request.call, mode) {
        (CreateCall::CreateTtl { ttl_ms }, mode) if mode.has_ttl() => ttl(ttl_ms),
        (CreateCall::CreateTtl { .. }, _) => return Err(ErrorCode::BadArguments),
        (_, mode) if mode.has_ttl() => return Err(ErrorCode::BadArguments),
        (CreateCall::CreateContainer, _) => ZnodeLife::Container,
        (_, mode) if mode.is_ephemeral() => ZnodeLife::Ephemeral,
        _ => ZnodeLife::Persistent,
    };
    let with_stat = request.call.is_answered_with_stat();
    Ok((create_op(request, life, mode.is_sequential()), with_stat))
}

/// In a multi ZooKeeper goes by the flags first of all, and by the operation where they leave something open. Flags
/// that the operation cannot have are a bad record, whatever stands before them; a bad time to live, and flags
/// that name nothing in createTTL, are judged when their turn comes: as a time to live that no znode can have.
fn create_in_multi(request: CreateRequest) -> Result<(ZnodeOp, bool), ErrorCode> {
    let mode = CreateMode::from_flags(request.flags);
    let sequential = mode.is_some_and(CreateMode::is_sequential);
    let (life, with_stat) = match (request.call, mode) {
        (CreateCall::CreateTtl { .. }, None) => (NO_LIFE, false),
        (CreateCall::CreateTtl { ttl_ms }, Some(mode)) if mode.has_ttl() => (ttl(ttl_ms), true),
        (_, None) => return Err(ErrorCode::MarshallingError),
        (_, Some(mode)) if mode.has_ttl() => return Err(ErrorCode::MarshallingError),
        (_, Some(CreateMode::Container)) | (CreateCall::CreateContainer, _) => (ZnodeLife::Container, true),
        (call, Some(mode)) => {
            let life = if mode.is_ephemeral() { ZnodeLife::Ephemeral } else { ZnodeLife::Persistent };
            (life, call == CreateCall::Create2)
        }
    };
    Ok((create_op(request, life, sequential), with_stat))
}

/// What cannot be one becomes [`NO_LIFE`], which is refused when the operation is carried out.
fn ttl(ttl_ms: i64) -> ZnodeLife {
    u64::try_from(ttl_ms).map_or(NO_LIFE, ZnodeLife::Ttl)
}

fn create_op(request: CreateRequest, life: ZnodeLife, sequential: bool) -> ZnodeOp {
    let CreateRequest { call: _, path, data, acl, flags: _ } = request;
    let acl = acl.into_iter().map(acl_entry).collect();
    ZnodeOp::Create(CreateZnode { path, data, acl, life, sequential })
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
    match &shape.kind {
        ReadKind::Sync { path } => return (Reply::Synced { path: path.clone() }, Vec::new()),
        ReadKind::Multi => {
            let granted = found.iter().map(Result::is_ok).collect();
            return (Reply::MultiRead(found.into_iter().map(multi_read_result).collect()), granted);
        }
        _ => {}
    }
    let Some(found) = found.into_iter().next() else { return (Reply::Error(ErrorCode::SystemError), vec![false]) };
    let granted = match (&found, &shape.kind) {
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
        // What no client asks for.
        Ok(ZnodeFound::Totals(_) | ZnodeFound::Sessions(_)) => Reply::Error(ErrorCode::SystemError),
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

pub(crate) fn wire_stat(stat: &ZnodeStat) -> Stat {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn create(call: CreateCall, flags: i32) -> MultiOp {
        MultiOp::Create(CreateRequest { call, path: "/a".into(), data: None, acl: vec![], flags })
    }

    /// How long a znode lives and whether its Stat is told, if a multi of this is carried out at all.
    fn in_multi(call: CreateCall, flags: i32) -> Result<(ZnodeLife, bool), Reply> {
        match step(Request::Multi(vec![create(call, flags)]), tidelock_model::LeaseId(1)) {
            Step::Answer(reply) => Err(reply),
            Step::Write(ZnodeRequest::Multi(ops), WriteShape::Multi(shapes)) => match (&ops[..], &shapes[..]) {
                ([ZnodeOp::Create(create)], [MultiShape::Create { with_stat }]) => Ok((create.life, *with_stat)),
                other => panic!("not a create: {other:?}"),
            },
            other => panic!("not a multi: {other:?}"),
        }
    }

    /// Seen on the wire of 3.9.4. A client that got another error, or one at another place, would repair the
    /// wrong thing.
    #[test]
    fn in_a_multi_flags_decide_before_the_operation_does() {
        let with_ttl = |ttl_ms| CreateCall::CreateTtl { ttl_ms };
        let bad_record = Err(Reply::Error(ErrorCode::MarshallingError));
        for call in [CreateCall::Create, CreateCall::Create2, CreateCall::CreateContainer] {
            for flags in [5, 6, 7, -1] {
                assert_eq!(in_multi(call, flags), bad_record, "{call:?} {flags}");
            }
            assert_eq!(in_multi(call, 4), Ok((ZnodeLife::Container, true)), "{call:?}");
        }
        assert_eq!(in_multi(CreateCall::Create, 0), Ok((ZnodeLife::Persistent, false)));
        assert_eq!(in_multi(CreateCall::Create2, 3), Ok((ZnodeLife::Ephemeral, true)));
        assert_eq!(in_multi(CreateCall::CreateContainer, 1), Ok((ZnodeLife::Container, true)));
        assert_eq!(in_multi(with_ttl(9), 0), Ok((ZnodeLife::Persistent, false)), "without the Stat");
        assert_eq!(in_multi(with_ttl(9), 3), Ok((ZnodeLife::Ephemeral, false)));
        assert_eq!(in_multi(with_ttl(9), 4), Ok((ZnodeLife::Container, true)));
        assert_eq!(in_multi(with_ttl(9), 6), Ok((ZnodeLife::Ttl(9), true)));
        for (ttl_ms, flags) in [(0, 5), (-1, 5), (i64::MIN, 6)] {
            assert_eq!(in_multi(with_ttl(ttl_ms), flags), Ok((NO_LIFE, true)), "judged in its turn");
        }
        assert_eq!(in_multi(with_ttl(9), 7), Ok((NO_LIFE, false)), "judged in its turn");
    }

    /// A watch of the empty path is kept under it, where nothing ever happens: not under the root's.
    #[test]
    fn the_empty_path_is_read_as_the_root_and_watched_as_itself() {
        let request = Request::Exists { path: String::new(), watch: true };
        let Step::Read(reads, shape) = step(request, tidelock_model::LeaseId(1)) else { panic!("not a read") };
        assert_eq!(reads, [ZnodeRead::Stat("/".into())]);
        assert_eq!(shape.wishes, [Some(Wish { kind: WatchKind::Data, path: String::new() })]);
    }
}
