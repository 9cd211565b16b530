//! What can be asked, and how it is written.
//!
//! A call is the same for both servers. Where it must name a zxid it names an operation of the run, and each side
//! writes its own number for it.

use std::fmt;

use super::packets::Packet;

/// ZooKeeper's numbers for its operations.
pub(super) mod opcode {
    pub(in super::super) const CREATE: i32 = 1;
    pub(in super::super) const DELETE: i32 = 2;
    pub(in super::super) const EXISTS: i32 = 3;
    pub(in super::super) const GET_DATA: i32 = 4;
    pub(in super::super) const SET_DATA: i32 = 5;
    pub(in super::super) const GET_ACL: i32 = 6;
    pub(in super::super) const SET_ACL: i32 = 7;
    pub(in super::super) const GET_CHILDREN: i32 = 8;
    pub(in super::super) const SYNC: i32 = 9;
    pub(in super::super) const PING: i32 = 11;
    pub(in super::super) const GET_CHILDREN2: i32 = 12;
    pub(in super::super) const CHECK: i32 = 13;
    pub(in super::super) const MULTI: i32 = 14;
    pub(in super::super) const CREATE2: i32 = 15;
    pub(in super::super) const CHECK_WATCHES: i32 = 17;
    pub(in super::super) const REMOVE_WATCHES: i32 = 18;
    pub(in super::super) const CREATE_CONTAINER: i32 = 19;
    pub(in super::super) const DELETE_CONTAINER: i32 = 20;
    pub(in super::super) const CREATE_TTL: i32 = 21;
    pub(in super::super) const MULTI_READ: i32 = 22;
    pub(in super::super) const AUTH: i32 = 100;
    pub(in super::super) const SET_WATCHES: i32 = 101;
    pub(in super::super) const GET_EPHEMERALS: i32 = 103;
    pub(in super::super) const ALL_CHILDREN: i32 = 104;
    pub(in super::super) const SET_WATCHES2: i32 = 105;
    pub(in super::super) const ADD_WATCH: i32 = 106;
    pub(in super::super) const WHO_AM_I: i32 = 107;
    pub(in super::super) const CLOSE_SESSION: i32 = -11;
}

/// One entry of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl {
    pub(super) perms: i32,
    pub(super) scheme: String,
    pub(super) id: String,
}

/// What a znode holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Data(pub(super) Vec<u8>);

impl fmt::Debug for Data {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Long data is all of one byte.
        match self.0.len() {
            0..20 => write!(out, "b\"{}\"", self.0.escape_ascii()),
            length => write!(out, "{length} bytes"),
        }
    }
}

/// Which create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Plain,
    WithStat,
    Container,
    Ttl(i64),
}

/// Up to where a client says it has seen everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// What its session was answered last. Not what headers said: a ping's tells more with ZooKeeper than with us.
    AllItWasTold,
    /// All but this many of the last labelled operations.
    Before(usize),
    /// More than there is.
    Future,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create {
        how: How,
        path: String,
        data: Option<Data>,
        acl: Vec<Acl>,
        flags: i32,
    },
    Delete {
        path: String,
        version: i32,
    },
    DeleteContainer {
        path: String,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    GetChildren {
        path: String,
        watch: bool,
    },
    GetChildren2 {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Data>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
        version: i32,
    },
    Check {
        path: String,
        version: i32,
    },
    Sync {
        path: String,
    },
    Ping,
    Multi(Vec<Call>),
    MultiRead(Vec<Call>),
    CheckWatches {
        path: String,
        kind: i32,
    },
    RemoveWatches {
        path: String,
        kind: i32,
    },
    AddWatch {
        path: String,
        mode: i32,
    },
    Auth {
        scheme: String,
        auth: String,
    },
    SetWatches {
        seen: Seen,
        data: Vec<String>,
        exist: Vec<String>,
        child: Vec<String>,
    },
    SetWatches2 {
        seen: Seen,
        lists: [Vec<String>; 5],
    },
    GetEphemerals {
        prefix: String,
    },
    AllChildren {
        path: String,
    },
    WhoAmI,
    CloseSession,
    /// Any number with any bytes: unknown operations, null paths, records that are cut short.
    Raw {
        opcode: i32,
        body: Vec<u8>,
    },
}

impl Call {
    /// Its number.
    pub(super) fn opcode(&self) -> i32 {
        match self {
            Call::Create { how, .. } => match how {
                How::Plain => opcode::CREATE,
                How::WithStat => opcode::CREATE2,
                How::Container => opcode::CREATE_CONTAINER,
                How::Ttl(_) => opcode::CREATE_TTL,
            },
            Call::Delete { .. } => opcode::DELETE,
            Call::DeleteContainer { .. } => opcode::DELETE_CONTAINER,
            Call::Exists { .. } => opcode::EXISTS,
            Call::GetData { .. } => opcode::GET_DATA,
            Call::GetChildren { .. } => opcode::GET_CHILDREN,
            Call::GetChildren2 { .. } => opcode::GET_CHILDREN2,
            Call::SetData { .. } => opcode::SET_DATA,
            Call::GetAcl { .. } => opcode::GET_ACL,
            Call::SetAcl { .. } => opcode::SET_ACL,
            Call::Check { .. } => opcode::CHECK,
            Call::Sync { .. } => opcode::SYNC,
            Call::Ping => opcode::PING,
            Call::Multi(_) => opcode::MULTI,
            Call::MultiRead(_) => opcode::MULTI_READ,
            Call::CheckWatches { .. } => opcode::CHECK_WATCHES,
            Call::RemoveWatches { .. } => opcode::REMOVE_WATCHES,
            Call::AddWatch { .. } => opcode::ADD_WATCH,
            Call::Auth { .. } => opcode::AUTH,
            Call::SetWatches { .. } => opcode::SET_WATCHES,
            Call::SetWatches2 { .. } => opcode::SET_WATCHES2,
            Call::GetEphemerals { .. } => opcode::GET_EPHEMERALS,
            Call::AllChildren { .. } => opcode::ALL_CHILDREN,
            Call::WhoAmI => opcode::WHO_AM_I,
            Call::CloseSession => opcode::CLOSE_SESSION,
            Call::Raw { opcode, .. } => *opcode,
        }
    }

    /// The xid that clients give it, if it is one of its own.
    pub(super) fn reserved_xid(&self) -> Option<i32> {
        match self {
            Call::Ping => Some(-2),
            Call::Auth { .. } => Some(-4),
            Call::SetWatches { .. } | Call::SetWatches2 { .. } => Some(-8),
            _ => None,
        }
    }

    /// A word for it in reports.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Call::Create { how: How::Plain, .. } => "create",
            Call::Create { how: How::WithStat, .. } => "create2",
            Call::Create { how: How::Container, .. } => "createContainer",
            Call::Create { how: How::Ttl(_), .. } => "createTTL",
            Call::Delete { .. } => "delete",
            Call::DeleteContainer { .. } => "deleteContainer",
            Call::Exists { .. } => "exists",
            Call::GetData { .. } => "getData",
            Call::GetChildren { .. } => "getChildren",
            Call::GetChildren2 { .. } => "getChildren2",
            Call::SetData { .. } => "setData",
            Call::GetAcl { .. } => "getACL",
            Call::SetAcl { .. } => "setACL",
            Call::Check { .. } => "check",
            Call::Sync { .. } => "sync",
            Call::Ping => "ping",
            Call::Multi(_) => "multi",
            Call::MultiRead(_) => "multiRead",
            Call::CheckWatches { .. } => "checkWatches",
            Call::RemoveWatches { .. } => "removeWatches",
            Call::AddWatch { .. } => "addWatch",
            Call::Auth { .. } => "auth",
            Call::SetWatches { .. } => "setWatches",
            Call::SetWatches2 { .. } => "setWatches2",
            Call::GetEphemerals { .. } => "getEphemerals",
            Call::AllChildren { .. } => "getAllChildrenNumber",
            Call::WhoAmI => "whoAmI",
            Call::CloseSession => "closeSession",
            Call::Raw { .. } => "raw bytes",
        }
    }

    /// Whether it can change the tree.
    pub(super) fn writes(&self) -> bool {
        matches!(
            self,
            Call::Create { .. }
                | Call::Delete { .. }
                | Call::DeleteContainer { .. }
                | Call::SetData { .. }
                | Call::SetAcl { .. }
                | Call::Multi(_)
                | Call::CloseSession
        )
    }

    /// Whether all that can come of it is a reply on its own connection.
    pub(super) fn only_reads(&self) -> bool {
        matches!(
            self,
            Call::Exists { .. }
                | Call::GetData { .. }
                | Call::GetChildren { .. }
                | Call::GetChildren2 { .. }
                | Call::GetAcl { .. }
                | Call::Sync { .. }
                | Call::MultiRead(_)
                | Call::GetEphemerals { .. }
                | Call::AllChildren { .. }
                | Call::WhoAmI
                | Call::CheckWatches { .. }
        )
    }

    /// Its record. `zxid` says what this side calls what a client has seen.
    pub(super) fn body(&self, zxid: impl Fn(Seen) -> i64) -> Vec<u8> {
        let mut packet = Packet::default();
        match self {
            Call::Multi(calls) | Call::MultiRead(calls) => {
                for call in calls {
                    packet.int(call.opcode()).flag(false).int(-1);
                    call.put(&mut packet);
                }
                packet.int(-1).flag(true).int(-1);
            }
            Call::SetWatches { seen, data, exist, child } => {
                packet.long(zxid(*seen)).texts(data).texts(exist).texts(child);
            }
            Call::SetWatches2 { seen, lists } => {
                packet.long(zxid(*seen));
                for list in lists {
                    packet.texts(list);
                }
            }
            call => call.put(&mut packet),
        }
        packet.0
    }

    fn put(&self, packet: &mut Packet) {
        match self {
            Call::Create { how, path, data, acl, flags } => {
                packet.text(path).data(data.as_ref().map(|data| &data.0[..]));
                put_acl(packet, acl);
                packet.int(*flags);
                if let How::Ttl(ttl) = how {
                    packet.long(*ttl);
                }
            }
            Call::Delete { path, version: number }
            | Call::Check { path, version: number }
            | Call::CheckWatches { path, kind: number }
            | Call::RemoveWatches { path, kind: number }
            | Call::AddWatch { path, mode: number } => {
                packet.text(path).int(*number);
            }
            Call::Exists { path, watch }
            | Call::GetData { path, watch }
            | Call::GetChildren { path, watch }
            | Call::GetChildren2 { path, watch } => {
                packet.text(path).flag(*watch);
            }
            Call::SetData { path, data, version } => {
                packet.text(path).data(data.as_ref().map(|data| &data.0[..])).int(*version);
            }
            Call::SetAcl { path, acl, version } => {
                packet.text(path);
                put_acl(packet, acl);
                packet.int(*version);
            }
            Call::DeleteContainer { path }
            | Call::GetAcl { path }
            | Call::Sync { path }
            | Call::GetEphemerals { prefix: path }
            | Call::AllChildren { path } => {
                packet.text(path);
            }
            Call::Auth { scheme, auth } => {
                packet.int(0).text(scheme).text(auth);
            }
            Call::Raw { body, .. } => packet.0.extend_from_slice(body),
            Call::Ping
            | Call::WhoAmI
            | Call::CloseSession
            | Call::Multi(_)
            | Call::MultiRead(_)
            | Call::SetWatches { .. }
            | Call::SetWatches2 { .. } => {}
        }
    }
}

fn put_acl(packet: &mut Packet, acl: &[Acl]) {
    packet.count(acl.len());
    for entry in acl {
        packet.int(entry.perms).text(&entry.scheme).text(&entry.id);
    }
}
