//! Requests as clients write them; see `client`.

use bytes::Bytes;

use super::codes::opcode;
use super::jute::{put_bool, put_buffer, put_bytes, put_int, put_length, put_long, put_string};
use super::multi::{MultiOp, MultiReadOp};
use super::records::{Acl, AddWatchMode, RemovedWatch};
use super::request::{CreateCall, CreateRequest, Request};

/// A request's frame, without its length. Which setWatches it is depends on whether there are persistent ones.
pub(super) fn request_frame(xid: i32, request: &Request) -> Bytes {
    let mut out = Vec::new();
    put_int(&mut out, xid);
    put_int(&mut out, opcode_of(request));
    put_record(&mut out, request);
    Bytes::from(out)
}

fn opcode_of(request: &Request) -> i32 {
    match request {
        Request::Create(create) => create_opcode(create.call),
        Request::Delete { .. } => opcode::DELETE,
        Request::DeleteContainer { .. } => opcode::DELETE_CONTAINER,
        Request::Exists { .. } => opcode::EXISTS,
        Request::GetData { .. } => opcode::GET_DATA,
        Request::SetData { .. } => opcode::SET_DATA,
        Request::GetAcl { .. } => opcode::GET_ACL,
        Request::SetAcl { .. } => opcode::SET_ACL,
        Request::GetChildren { .. } => opcode::GET_CHILDREN,
        Request::GetChildren2 { .. } => opcode::GET_CHILDREN2,
        Request::Sync { .. } => opcode::SYNC,
        Request::Ping => opcode::PING,
        Request::Multi(_) => opcode::MULTI,
        Request::MultiRead(_) => opcode::MULTI_READ,
        Request::Reconfig { .. } => opcode::RECONFIG,
        Request::CheckWatches { .. } => opcode::CHECK_WATCHES,
        Request::RemoveWatches { .. } => opcode::REMOVE_WATCHES,
        Request::Auth { .. } => opcode::AUTH,
        Request::SetWatches { paths, .. } if paths.persistent.is_empty() && paths.persistent_recursive.is_empty() => {
            opcode::SET_WATCHES
        }
        Request::SetWatches { .. } => opcode::SET_WATCHES2,
        Request::Sasl { .. } => opcode::SASL,
        Request::GetEphemerals { .. } => opcode::GET_EPHEMERALS,
        Request::GetAllChildrenNumber { .. } => opcode::GET_ALL_CHILDREN_NUMBER,
        Request::AddWatch { .. } => opcode::ADD_WATCH,
        Request::WhoAmI => opcode::WHO_AM_I,
        Request::CloseSession => opcode::CLOSE_SESSION,
        Request::Unknown { opcode } => *opcode,
    }
}

fn put_record(out: &mut Vec<u8>, request: &Request) {
    match request {
        Request::Create(create) => put_create(out, create),
        Request::Delete { path, version } => put_path_and_int(out, path, *version),
        Request::DeleteContainer { path } | Request::GetAcl { path } | Request::GetAllChildrenNumber { path } => {
            put_string(out, path);
        }
        Request::Exists { path, watch }
        | Request::GetData { path, watch }
        | Request::GetChildren { path, watch }
        | Request::GetChildren2 { path, watch } => put_path_and_watch(out, path, *watch),
        Request::SetData { path, data, version } => put_set_data(out, path, data.as_deref(), *version),
        Request::SetAcl { path, acl, version } => {
            put_string(out, path);
            put_acl(out, acl);
            put_int(out, *version);
        }
        Request::Sync { path } | Request::GetEphemerals { prefix: path } => put_nullable(out, path.as_ref()),
        Request::Multi(operations) => {
            operations.iter().for_each(|operation| put_multi_op(out, operation));
            put_multi_header(out, -1, true);
        }
        Request::MultiRead(operations) => {
            operations.iter().for_each(|operation| put_multi_read_op(out, operation));
            put_multi_header(out, -1, true);
        }
        Request::Reconfig { joining_servers, leaving_servers, new_members, cur_config_id } => {
            put_nullable(out, joining_servers.as_ref());
            put_nullable(out, leaving_servers.as_ref());
            put_nullable(out, new_members.as_ref());
            put_long(out, *cur_config_id);
        }
        Request::CheckWatches { path, kind } | Request::RemoveWatches { path, kind } => {
            put_path_and_int(out, path, removed_watch_number(*kind));
        }
        Request::AddWatch { path, mode } => {
            put_path_and_int(out, path, i32::from(*mode == AddWatchMode::PersistentRecursive));
        }
        Request::Auth { scheme, auth } => {
            put_int(out, 0);
            put_string(out, scheme);
            put_bytes(out, auth);
        }
        Request::Sasl { token } => put_bytes(out, token),
        Request::SetWatches { relative_zxid, paths } => {
            put_long(out, *relative_zxid);
            for list in [&paths.data, &paths.exist, &paths.child] {
                put_paths(out, list);
            }
            if opcode_of(request) == opcode::SET_WATCHES2 {
                put_paths(out, &paths.persistent);
                put_paths(out, &paths.persistent_recursive);
            }
        }
        Request::Ping | Request::WhoAmI | Request::CloseSession | Request::Unknown { .. } => {}
    }
}

fn create_opcode(call: CreateCall) -> i32 {
    match call {
        CreateCall::Create => opcode::CREATE,
        CreateCall::Create2 => opcode::CREATE2,
        CreateCall::CreateContainer => opcode::CREATE_CONTAINER,
        CreateCall::CreateTtl { .. } => opcode::CREATE_TTL,
    }
}

fn put_create(out: &mut Vec<u8>, create: &CreateRequest) {
    put_string(out, &create.path);
    put_buffer(out, create.data.as_deref());
    put_acl(out, &create.acl);
    put_int(out, create.flags);
    if let CreateCall::CreateTtl { ttl_ms } = create.call {
        put_long(out, ttl_ms);
    }
}

fn put_multi_op(out: &mut Vec<u8>, operation: &MultiOp) {
    match operation {
        MultiOp::Create(create) => {
            put_multi_header(out, create_opcode(create.call), false);
            put_create(out, create);
        }
        MultiOp::Delete { path, version } => {
            put_multi_header(out, opcode::DELETE, false);
            put_path_and_int(out, path, *version);
        }
        MultiOp::SetData { path, data, version } => {
            put_multi_header(out, opcode::SET_DATA, false);
            put_set_data(out, path, data.as_deref(), *version);
        }
        MultiOp::Check { path, version } => {
            put_multi_header(out, opcode::CHECK, false);
            put_path_and_int(out, path, *version);
        }
    }
}

fn put_multi_read_op(out: &mut Vec<u8>, operation: &MultiReadOp) {
    let (op, path, watch) = match operation {
        MultiReadOp::GetData { path, watch } => (opcode::GET_DATA, path, watch),
        MultiReadOp::GetChildren { path, watch } => (opcode::GET_CHILDREN, path, watch),
    };
    put_multi_header(out, op, false);
    put_path_and_watch(out, path, *watch);
}

fn put_multi_header(out: &mut Vec<u8>, op: i32, done: bool) {
    put_int(out, op);
    put_bool(out, done);
    put_int(out, -1);
}

fn put_path_and_int(out: &mut Vec<u8>, path: &str, number: i32) {
    put_string(out, path);
    put_int(out, number);
}

fn put_path_and_watch(out: &mut Vec<u8>, path: &str, watch: bool) {
    put_string(out, path);
    put_bool(out, watch);
}

fn put_set_data(out: &mut Vec<u8>, path: &str, data: Option<&[u8]>, version: i32) {
    put_string(out, path);
    put_buffer(out, data);
    put_int(out, version);
}

fn put_acl(out: &mut Vec<u8>, acl: &[Acl]) {
    put_length(out, acl.len());
    acl.iter().for_each(|entry| entry.put(out));
}

fn put_paths(out: &mut Vec<u8>, paths: &[String]) {
    put_length(out, paths.len());
    paths.iter().for_each(|path| put_string(out, path));
}

fn put_nullable(out: &mut Vec<u8>, string: Option<&String>) {
    put_buffer(out, string.map(String::as_bytes));
}

fn removed_watch_number(kind: RemovedWatch) -> i32 {
    match kind {
        RemovedWatch::Children => 1,
        RemovedWatch::Data => 2,
        RemovedWatch::Any => 3,
        RemovedWatch::Persistent => 4,
        RemovedWatch::PersistentRecursive => 5,
    }
}
