//! Random requests about users, roles and permissions, and who sends a request while authentication is on.
//!
//! Authentication is switched on and off again within a run. While it is on every request is sent by someone: by
//! root, by users with some permissions, with a token that was never given, or by nobody.

use std::collections::VecDeque;

use bytes::Bytes;
use tidelock_etcd_api::authpb::{Permission, UserAddOptions};
use tidelock_etcd_api::etcdserverpb::*;

use super::call::Call;
use super::generator::Step;
use super::keys::{key, one_in, prefix_end, range_end};
use super::world::World;
use crate::random::Random;

/// Who may do everything, and whose password never changes.
pub(super) const ROOT: &str = "root";
const USERS: [&str; 4] = ["u0", "u1", "u2", "root"];
const ROLES: [&str; 4] = ["r0", "r1", "r2", "root"];

/// Who sends a request while authentication is on; the tokens of `stranger` were never given.
pub(super) fn caller(random: &mut Random) -> Option<&'static str> {
    match random.below(20) {
        0 => None,
        1 => Some("stranger"),
        2..9 => Some(ROOT),
        other => Some(USERS[other as usize % 3]),
    }
}

/// The request with its ranges the right way round, while authentication is on: whether a user may touch a range
/// that ends before it begins, and so holds nothing, depends with etcd on the shape of its tree of permissions.
pub(super) fn askable(mut call: Call, world: &World) -> Call {
    if world.auth {
        match &mut call {
            Call::Range(request) | Call::RangeStream(request) => straighten(&mut request.key, &mut request.range_end),
            Call::DeleteRange(request) => straighten(&mut request.key, &mut request.range_end),
            Call::Txn(txn) => straighten_txn(txn),
            _ => {}
        }
    }
    call
}

fn straighten(key: &mut Bytes, range_end: &mut Bytes) {
    if !range_end.is_empty() && **range_end != *b"\0" && *range_end <= *key {
        std::mem::swap(key, range_end);
        if range_end == key {
            range_end.clear();
        }
    }
}

fn straighten_txn(txn: &mut TxnRequest) {
    txn.compare.iter_mut().for_each(|compare| straighten(&mut compare.key, &mut compare.range_end));
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        match &mut op.request {
            Some(request_op::Request::RequestRange(request)) => straighten(&mut request.key, &mut request.range_end),
            Some(request_op::Request::RequestDeleteRange(request)) => {
                straighten(&mut request.key, &mut request.range_end);
            }
            Some(request_op::Request::RequestTxn(txn)) => straighten_txn(txn),
            Some(request_op::Request::RequestPut(_)) | None => {}
        }
    }
}

/// Something about users and roles.
pub(super) fn auth(random: &mut Random, world: &World, steps: &mut VecDeque<Step>) {
    if world.auth && one_in(random, 30) {
        return steps.push_back(Step::CallAs(ROOT, Call::AuthDisable(AuthDisableRequest {})));
    }
    // Once more, when it is on: otherwise root would have to come in first.
    if world.auth && one_in(random, 60) {
        return steps.push_back(Step::Call(Call::AuthEnable(AuthEnableRequest {})));
    }
    if !world.auth && one_in(random, 12) {
        return switch_on(random, steps);
    }
    steps.push_back(Step::Call(call(random)));
}

fn switch_on(random: &mut Random, steps: &mut VecDeque<Step>) {
    let mut add = |call| steps.push_back(Step::Call(call));
    for name in USERS {
        let options = None;
        let (name, password) = (name.to_string(), password(name));
        add(Call::UserAdd(AuthUserAddRequest { name, password, options, hashed_password: String::new() }));
    }
    for name in ROLES {
        add(Call::RoleAdd(AuthRoleAddRequest { name: name.to_string() }));
    }
    for (user, role) in [("root", "root"), ("u0", "r0"), ("u1", "r1"), ("u2", "r2"), ("u2", "r0")] {
        let (user, role) = (user.to_string(), role.to_string());
        add(Call::UserGrantRole(AuthUserGrantRoleRequest { user, role }));
    }
    for _ in 0..6 {
        add(Call::RoleGrantPermission(grant(random)));
    }
    add(Call::AuthEnable(AuthEnableRequest {}));
    for name in [ROOT, "u0", "u1", "u2"] {
        add(Call::Authenticate(AuthenticateRequest { name: name.to_string(), password: password(name) }));
    }
}

fn password(name: &str) -> String {
    format!("password of {name}")
}

fn pick(random: &mut Random, names: &[&str]) -> String {
    match random.below(30) {
        0 => String::new(),
        1 => "nobody".to_string(),
        _ => names[random.below(names.len() as u64) as usize].to_string(),
    }
}

/// Where the permission that begins at `key` ends: always the same. etcd looks a permission up by its key alone, and
/// with several of one key it may keep the old one beside the new.
fn granted_end(key: &[u8]) -> Bytes {
    match key.iter().map(|byte| u32::from(*byte)).sum::<u32>() % 4 {
        0 => Bytes::new(),
        1 => Bytes::from_static(b"\0"),
        2 => prefix_end(key),
        _ => Bytes::from_static(b"k/5/x"),
    }
}

fn grant(random: &mut Random) -> AuthRoleGrantPermissionRequest {
    let key = key(random);
    let permission = Permission { perm_type: random.below(3) as i32, range_end: granted_end(&key), key };
    let perm = if one_in(random, 40) { None } else { Some(permission) };
    AuthRoleGrantPermissionRequest { name: pick(random, &ROLES[..3]), perm }
}

fn call(random: &mut Random) -> Call {
    let (user, role) = (pick(random, &USERS), pick(random, &ROLES));
    match random.below(34) {
        0..2 => {
            // Root always has its password: the run itself comes in as root.
            let no_password = user != ROOT && one_in(random, 6);
            let password =
                if no_password || (user != ROOT && one_in(random, 8)) { String::new() } else { password(&user) };
            let options = (no_password || one_in(random, 3)).then_some(UserAddOptions { no_password });
            Call::UserAdd(AuthUserAddRequest { name: user, password, options, hashed_password: String::new() })
        }
        2 => Call::UserDelete(AuthUserDeleteRequest { name: user }),
        3 if user != ROOT => {
            let password = if one_in(random, 2) { password(&user) } else { "another".to_string() };
            Call::UserChangePassword(AuthUserChangePasswordRequest {
                name: user,
                password,
                hashed_password: String::new(),
            })
        }
        3..7 => Call::UserGet(AuthUserGetRequest { name: user }),
        7..9 => Call::UserList(AuthUserListRequest {}),
        9..12 => Call::UserGrantRole(AuthUserGrantRoleRequest { user, role }),
        12..14 => Call::UserRevokeRole(AuthUserRevokeRoleRequest { name: user, role }),
        14..16 => Call::RoleAdd(AuthRoleAddRequest { name: role }),
        16 => Call::RoleDelete(AuthRoleDeleteRequest { role }),
        17..20 => Call::RoleGet(AuthRoleGetRequest { role }),
        20..22 => Call::RoleList(AuthRoleListRequest {}),
        22..25 => Call::RoleGrantPermission(grant(random)),
        25 | 26 => {
            let key = key(random);
            let range_end = range_end(random, &key);
            Call::RoleRevokePermission(AuthRoleRevokePermissionRequest { role, key, range_end })
        }
        27..30 => Call::AuthStatus(AuthStatusRequest {}),
        _ => {
            let password = if one_in(random, 6) { "wrong".to_string() } else { password(&user) };
            Call::Authenticate(AuthenticateRequest { name: user, password })
        }
    }
}
