//! Requests of a connection that are carried out together: changes in one log entry, reads in one look at the store.

use bytes::Bytes;
use tidelock_model::{AclEntry, ZnodeOp, ZnodeRead, ZnodeRequest};

use crate::translate::{ReadKind, ReadShape, Step, WriteShape};
use crate::wire::{ErrorCode, Reply};

/// Requests carried out together.
pub(super) const TOGETHER_MAX: usize = 256;
/// Bytes of changes in one log entry, from which on no more are added.
const TOGETHER_BYTES: usize = 512 * 1024;

/// What the log would not take is refused before it can spoil what goes with it.
pub(super) fn within_limits(step: Step) -> Step {
    match step {
        Step::Write(request, _) if !request.is_within_limits() => Step::Answer(Reply::Error(ErrorCode::BadArguments)),
        step => step,
    }
}

/// Steps of one kind that are carried out together.
#[derive(Default)]
pub(super) struct Group {
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
}

/// A change, and to which packet.
pub(super) struct Write {
    pub(super) xid: i32,
    pub(super) request: ZnodeRequest,
    pub(super) shape: WriteShape,
}

/// Reads of one packet.
pub(super) struct Read {
    pub(super) xid: i32,
    pub(super) reads: Vec<ZnodeRead>,
    pub(super) shape: ReadShape,
}

impl Group {
    pub(super) fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    pub(super) fn takes(&self, step: &Step) -> bool {
        match step {
            Step::Write(..) => {
                self.reads.is_empty() && self.writes.iter().map(Write::bytes).sum::<usize>() < TOGETHER_BYTES
            }
            // One barrier serves every sync that waits behind the first, but no read waits for a sync behind it.
            Step::Read(_, shape) => {
                let is_behind_sync = self.reads.first().is_none_or(Read::is_sync);
                self.writes.is_empty() && (is_behind_sync || !matches!(shape.kind, ReadKind::Sync { .. }))
            }
            Step::Answer(_) | Step::Other(_) => self.writes.is_empty() && self.reads.is_empty(),
        }
    }
}

impl Read {
    pub(super) fn is_sync(&self) -> bool {
        matches!(self.shape.kind, ReadKind::Sync { .. })
    }
}

impl Write {
    /// About how large it is in the log.
    fn bytes(&self) -> usize {
        match &self.request {
            ZnodeRequest::One(op) => bytes_of(op),
            ZnodeRequest::Multi(ops) => ops.iter().map(bytes_of).sum(),
        }
    }
}

/// Everything that a client can make long counts: a group that the log refuses ends the connection, with requests in
/// it that were no longer than others (H13).
fn bytes_of(op: &ZnodeOp) -> usize {
    let data = |data: &Option<Bytes>| data.as_ref().map_or(0, Bytes::len);
    let acl =
        |acl: &[AclEntry]| acl.iter().map(|entry| entry.who.scheme.len() + entry.who.id.len() + 16).sum::<usize>();
    100 + match op {
        ZnodeOp::Create(create) => create.path.len() + data(&create.data) + acl(&create.acl),
        ZnodeOp::SetData { path, data: value, .. } => path.len() + data(value),
        ZnodeOp::SetAcl { path, acl: list, .. } => path.len() + acl(list),
        ZnodeOp::Delete { path, .. } | ZnodeOp::Check { path, .. } => path.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::step;
    use crate::wire::Request;
    use tidelock_model::limits::{COMMAND_BYTES_MAX, ZNODE_PATH_BYTES_MAX};

    fn delete(length: usize) -> Step {
        let path = format!("/{}", "x".repeat(length - 1));
        Step::Write(ZnodeRequest::One(ZnodeOp::Delete { path, version: -1 }), WriteShape::Delete)
    }

    /// Requests that each are as long as they may be must not become one that the log refuses: their client would
    /// lose its connection every time it tries.
    #[test]
    fn h13_requests_that_are_carried_out_together_fit_into_the_log() {
        let (mut group, mut bytes) = (Group::default(), 0);
        for _ in 0..TOGETHER_MAX {
            let step = within_limits(delete(ZNODE_PATH_BYTES_MAX));
            if !group.takes(&step) {
                break;
            }
            let Step::Write(request, shape) = step else { panic!("within limits") };
            bytes += ZNODE_PATH_BYTES_MAX;
            group.writes.push(Write { xid: 1, request, shape });
        }
        assert!(bytes + TOGETHER_BYTES < COMMAND_BYTES_MAX, "{bytes}");
    }

    fn takes_after(group: &mut Group, request: Request) -> bool {
        let step = step(request, tidelock_model::LeaseId(1));
        let takes = group.takes(&step);
        let Step::Read(reads, shape) = step else { panic!("no read") };
        group.reads.push(Read { xid: 1, reads, shape });
        takes
    }

    /// A client that syncs before every read pays one round for all that it sent together. But a read that was sent
    /// before a sync must be answered where there is no leader to sync with.
    #[test]
    fn syncs_that_wait_together_share_a_barrier_and_no_read_waits_for_a_sync_behind_it() {
        let sync = || Request::Sync { path: Some("/a".into()) };
        let get = || Request::GetData { path: "/a".into(), watch: false };
        let mut synced = Group::default();
        for request in [sync(), get(), sync(), get()] {
            assert!(takes_after(&mut synced, request));
        }
        let mut plain = Group::default();
        assert!(takes_after(&mut plain, get()) && takes_after(&mut plain, get()));
        assert!(!takes_after(&mut plain, sync()));
    }

    /// What the log would not take is refused where it comes in, never where it is applied.
    #[test]
    fn h13_a_request_over_a_limit_is_refused_by_itself() {
        let refused = within_limits(delete(ZNODE_PATH_BYTES_MAX + 1));
        assert!(matches!(refused, Step::Answer(Reply::Error(ErrorCode::BadArguments))), "{refused:?}");
        let ops = vec![ZnodeOp::Check { path: "/a".into(), version: 0 }; tidelock_model::limits::ZNODE_OPS_MAX + 1];
        let multi = Step::Write(ZnodeRequest::Multi(ops), WriteShape::Multi(Vec::new()));
        assert!(matches!(within_limits(multi), Step::Answer(Reply::Error(ErrorCode::BadArguments))));
    }
}
