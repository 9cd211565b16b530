//! Replies: a header, and a body unless the header tells an error.

use bytes::Bytes;

use super::codes::{ErrorCode, opcode};
use super::jute::{put_bool, put_buffer, put_bytes, put_int, put_length, put_long, put_packet, put_string};
use super::records::{Acl, AuthId, Stat};

/// The longest reply, 64 MiB: sixty times what clients take unless told otherwise. A longer one (a multiRead
/// that asks for the same big znode over and over) is answered with `MarshallingError` instead.
pub const MAX_REPLY: usize = 64 << 20;

/// The answer to one request. Names and data are what the store has, without a copy.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Refused: a header only.
    Error(ErrorCode),
    /// Done, and nothing to tell: delete, deleteContainer, ping, checkWatches, removeWatches, setWatches,
    /// auth, closeSession.
    Empty,
    /// The four creates; `stat` as `CreateCall::is_answered_with_stat` says.
    Created { path: String, stat: Option<Stat> },
    /// exists, setData, setACL.
    Stat(Stat),
    /// getData, reconfig.
    Data { data: Option<Bytes>, stat: Stat },
    /// getACL.
    Acl { acl: Vec<Acl>, stat: Stat },
    /// getChildren, and with a Stat getChildren2. Names are UTF-8.
    Children { children: Vec<Bytes>, stat: Option<Stat> },
    /// sync.
    Synced { path: Option<String> },
    /// A multi that was carried out.
    Multi(Vec<MultiResult>),
    /// A multi of that many `operations` of which the one at `failed` (from 0) refused, so that nothing was
    /// done. The header tells success all the same: clients look for the error inside.
    MultiFailed { operations: usize, failed: usize, error: ErrorCode },
    /// multiRead: each read by itself.
    MultiRead(Vec<MultiReadResult>),
    /// sasl.
    SaslToken(Option<Bytes>),
    /// sasl that failed. Unlike other errors it has a record: a token that is null.
    SaslRefused(ErrorCode),
    /// getEphemerals.
    Ephemerals(Vec<String>),
    /// getAllChildrenNumber.
    AllChildrenNumber(i32),
    /// addWatch.
    WatchAdded,
    /// whoAmI.
    WhoAmI(Vec<AuthId>),
}

/// What one operation of a successful multi did.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiResult {
    /// The four creates; `stat` as `CreateCall::is_answered_with_stat` says.
    Created { path: String, stat: Option<Stat> },
    /// delete.
    Deleted,
    /// setData.
    DataSet(Stat),
    /// check.
    Checked,
}

/// What one operation of a multiRead found.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiReadResult {
    /// getData.
    Data { data: Option<Bytes>, stat: Stat },
    /// getChildren.
    Children(Vec<Bytes>),
    /// This one was refused; the others were not.
    Error(ErrorCode),
}

/// Appends a reply packet, length included. `zxid` is the newest one the client may have seen by now, 0 in the
/// replies to auth and sasl.
pub fn write_reply(out: &mut Vec<u8>, xid: i32, zxid: i64, reply: &Reply) {
    let start = out.len();
    let length = put_packet(out, |out| {
        put_header(out, xid, zxid, reply);
        put_body(out, reply);
    });
    if length > MAX_REPLY {
        out.truncate(start);
        put_packet(out, |out| put_header(out, xid, zxid, &Reply::Error(ErrorCode::MarshallingError)));
    }
}

fn put_header(out: &mut Vec<u8>, xid: i32, zxid: i64, reply: &Reply) {
    put_int(out, xid);
    put_long(out, zxid);
    put_int(
        out,
        match reply {
            Reply::Error(error) | Reply::SaslRefused(error) => error.code(),
            _ => 0,
        },
    );
}

fn put_body(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Error(_) | Reply::Empty => {}
        Reply::Created { path, stat } => put_created(out, path, stat.as_ref()),
        Reply::Stat(stat) => stat.put(out),
        Reply::Data { data, stat } => put_data(out, data.as_deref(), stat),
        Reply::Acl { acl, stat } => {
            put_length(out, acl.len());
            acl.iter().for_each(|entry| entry.put(out));
            stat.put(out);
        }
        Reply::Children { children, stat } => {
            put_names(out, children);
            stat.iter().for_each(|stat| stat.put(out));
        }
        Reply::Synced { path } => put_buffer(out, path.as_ref().map(String::as_bytes)),
        Reply::Multi(results) => {
            results.iter().for_each(|result| put_multi_result(out, result));
            put_end_of_multi(out);
        }
        Reply::MultiFailed { operations, failed, error } => {
            for position in 0..*operations {
                put_error_result(out, outcome_in_failed_multi(position, *failed, *error));
            }
            put_end_of_multi(out);
        }
        Reply::MultiRead(results) => put_multi_read(out, results),
        Reply::SaslToken(token) => put_buffer(out, token.as_deref()),
        Reply::SaslRefused(_) => put_buffer(out, None),
        Reply::Ephemerals(paths) => put_names(out, paths),
        Reply::AllChildrenNumber(number) => put_int(out, *number),
        Reply::WatchAdded => put_int(out, 0), // An error response that tells no error.
        Reply::WhoAmI(ids) => {
            put_length(out, ids.len());
            for id in ids {
                put_string(out, &id.scheme);
                put_string(out, &id.user);
            }
        }
    }
}

fn put_created(out: &mut Vec<u8>, path: &str, stat: Option<&Stat>) {
    put_string(out, path);
    if let Some(stat) = stat {
        stat.put(out);
    }
}

fn put_data(out: &mut Vec<u8>, data: Option<&[u8]>, stat: &Stat) {
    put_buffer(out, data);
    stat.put(out);
}

fn put_names(out: &mut Vec<u8>, names: &[impl AsRef<[u8]>]) {
    put_length(out, names.len());
    for name in names {
        put_bytes(out, name.as_ref());
    }
}

fn put_multi_result(out: &mut Vec<u8>, result: &MultiResult) {
    match result {
        // Containers and TTL znodes are told as create2, for that is the shape of their result.
        MultiResult::Created { path, stat } => {
            put_multi_header(out, if stat.is_some() { opcode::CREATE2 } else { opcode::CREATE }, 0);
            put_created(out, path, stat.as_ref());
        }
        MultiResult::Deleted => put_multi_header(out, opcode::DELETE, 0),
        MultiResult::DataSet(stat) => {
            put_multi_header(out, opcode::SET_DATA, 0);
            stat.put(out);
        }
        MultiResult::Checked => put_multi_header(out, opcode::CHECK, 0),
    }
}

fn put_multi_read(out: &mut Vec<u8>, results: &[MultiReadResult]) {
    let start = out.len();
    for result in results {
        // Data that is shared in memory is not shared here, so this is where a reply can get out of hand.
        if out.len() - start > MAX_REPLY {
            return;
        }
        match result {
            MultiReadResult::Data { data, stat } => {
                put_multi_header(out, opcode::GET_DATA, 0);
                put_data(out, data.as_deref(), stat);
            }
            MultiReadResult::Children(children) => {
                put_multi_header(out, opcode::GET_CHILDREN, 0);
                put_names(out, children);
            }
            MultiReadResult::Error(error) => put_error_result(out, error.code()),
        }
    }
    put_end_of_multi(out);
}

/// What each operation of a failed multi is told: those before the culprit that they would have worked, those
/// after it that nobody tried.
fn outcome_in_failed_multi(position: usize, failed: usize, error: ErrorCode) -> i32 {
    match position.cmp(&failed) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => error.code(),
        std::cmp::Ordering::Greater => ErrorCode::RuntimeInconsistency.code(),
    }
}

fn put_multi_header(out: &mut Vec<u8>, op: i32, error: i32) {
    put_int(out, op);
    put_bool(out, false);
    put_int(out, error);
}

fn put_error_result(out: &mut Vec<u8>, error: i32) {
    put_multi_header(out, opcode::ERROR, error);
    put_int(out, error);
}

fn put_end_of_multi(out: &mut Vec<u8>) {
    put_int(out, opcode::ERROR);
    put_bool(out, true);
    put_int(out, -1);
}
