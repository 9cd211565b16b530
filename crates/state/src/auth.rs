//! Users and roles: what changes them, and who may do what (A1).
//!
//! Every command is judged here again when it is carried out, under the users and roles as they are at
//! that entry, whatever was true where it came in. The order of checks is etcd's, since its clients see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidelock_model::limits::{AUTH_NAME_BYTES_MAX, AUTH_NAMES_MAX, PASSWORD_HASH_BYTES_MAX, ROLE_PERMISSIONS_MAX};
use tidelock_model::{
    Answer, Auth, AuthCommand, AuthRefusal, Caller, Key, KeyRange, Need, Permission, ROOT, Refusal, Role, Space, User,
};

use crate::State;

type Users = BTreeMap<String, User>;
type Roles = BTreeMap<String, Role>;

impl State {
    /// Users and roles as they are now. The same pointer until one of them changes.
    #[must_use]
    pub fn auth(&self) -> &Arc<Auth> {
        &self.auth
    }

    /// Whether `caller` has everything that is needed; `collect` names it, and is not called when nothing is
    /// checked.
    pub fn authorise<'a>(&self, caller: &Caller, collect: impl FnOnce(&mut Vec<Need<'a>>)) -> Result<(), AuthRefusal> {
        if !self.auth.enabled || caller.is_internal() {
            return Ok(());
        }
        let mut needs = Vec::new();
        collect(&mut needs);
        needs.iter().try_for_each(|need| self.check_need(caller, need))
    }

    fn check_need(&self, caller: &Caller, need: &Need<'_>) -> Result<(), AuthRefusal> {
        match need {
            // Whoever it is must be somebody, even if the lease owns nothing.
            Need::WriteKeysOfLease(id) => {
                self.auth.check(caller, &Need::User)?;
                // What a native session holds is its owner's, whoever may use the names besides.
                let is_native = self.native_owner(*id).is_some();
                if is_native {
                    self.check_need(caller, &Need::Session(*id))?;
                }
                let is_asked = |key: &&Key| !is_native || key.space_byte() != Some(Space::Lock as u8);
                let mut keys = self.lease_keys(*id).filter(is_asked);
                keys.try_for_each(|key| self.auth.check(caller, &Need::WriteKey(key)))
            }
            Need::ReadKeysOfLease(id) => {
                self.auth.check(caller, &Need::User)?;
                self.lease_keys(*id).try_for_each(|key| self.auth.check(caller, &Need::ReadKey(key)))
            }
            // Who may read everything need not be asked about every key.
            Need::ReadKeysOfAllLeases if self.auth.check(caller, &Need::Admin).is_ok() => Ok(()),
            Need::ReadKeysOfAllLeases => {
                self.auth.check(caller, &Need::User)?;
                let mut keys = self.leases.iter().flat_map(|(id, _)| self.lease_keys(id));
                keys.try_for_each(|key| self.auth.check(caller, &Need::ReadKey(key)))
            }
            // A session that is over is nobody's, and the request is refused for that.
            Need::Session(id) => match self.native_owner(*id).filter(|owner| !owner.is_empty()) {
                Some(owner) => self.auth.check(caller, &Need::Be(&owner)),
                None => self.auth.check(caller, &Need::User),
            },
            need => self.auth.check(caller, need),
        }
    }

    pub(crate) fn change_auth(&mut self, command: AuthCommand) -> Result<Answer, Refusal> {
        let mut auth = (*self.auth).clone();
        if carry_out(&mut auth, command)? {
            self.auth = Arc::new(auth);
        }
        Ok(Answer::Done)
    }

    /// Sets users and roles as a whole, for a state that is built from a backup.
    pub fn restore_auth(&mut self, auth: Auth) {
        self.auth = Arc::new(auth);
    }
}

/// Says whether anything changed.
fn carry_out(auth: &mut Auth, command: AuthCommand) -> Result<bool, AuthRefusal> {
    let (enabled, next) = (auth.enabled, auth.revision + 1);
    match command {
        AuthCommand::Enable { token_secret } => {
            if enabled {
                return Ok(false);
            }
            let root = auth.users().get(ROOT).ok_or(AuthRefusal::NoRootUser)?;
            if !root.roles.contains(ROOT) {
                return Err(AuthRefusal::NoRootRole);
            }
            // Passwords of ZooKeeper's sessions may have been made with the one there is: it stays (S3).
            if !auth.has_secret() {
                auth.token_secret = token_secret;
            }
            auth.enabled = true;
            return Ok(true);
        }
        AuthCommand::DrawSecret { token_secret } => {
            if auth.has_secret() {
                return Ok(false);
            }
            auth.token_secret = token_secret;
            return Ok(true);
        }
        AuthCommand::Disable => {
            if !enabled {
                return Ok(false);
            }
            auth.enabled = false;
        }
        AuthCommand::UserAdd { user, password_hash } => {
            auth.change(|users, _| add_user(users, user, password_hash, next))?;
        }
        AuthCommand::UserDelete { user } => {
            if enabled && user == ROOT {
                return Err(AuthRefusal::InvalidManagement);
            }
            auth.change(|users, _| users.remove(&user)).ok_or(AuthRefusal::UserNotFound)?;
        }
        AuthCommand::UserChangePassword { user, password_hash } => {
            check_hash(Some(&password_hash))?;
            auth.change(|users, _| {
                let user = users.get_mut(&user).ok_or(AuthRefusal::UserNotFound)?;
                user.password_hash = user.password_hash.take().map(|_| password_hash);
                user.tokens_since = next;
                Ok::<_, AuthRefusal>(())
            })?;
        }
        AuthCommand::UserGrantRole { user, role } => {
            if !auth.change(|users, roles| grant_role(users, roles, &user, role))? {
                return Ok(false);
            }
        }
        AuthCommand::UserRevokeRole { user, role } => {
            if enabled && user == ROOT && role == ROOT {
                return Err(AuthRefusal::InvalidManagement);
            }
            auth.change(|users, _| {
                let user = users.get_mut(&user).ok_or(AuthRefusal::UserNotFound)?;
                let had = user.roles.remove(&role);
                if had { Ok(()) } else { Err(AuthRefusal::RoleNotGranted) }
            })?;
        }
        AuthCommand::RoleAdd { role } => auth.change(|_, roles| add_role(roles, role))?,
        AuthCommand::RoleDelete { role } => {
            if enabled && role == ROOT {
                return Err(AuthRefusal::InvalidManagement);
            }
            auth.change(|users, roles| delete_role(users, roles, &role))?;
        }
        AuthCommand::RoleGrantPermission { role, range, permission } => {
            auth.change(|_, roles| grant_permission(roles, &role, range, permission))?;
        }
        AuthCommand::RoleRevokePermission { role, range } => auth.change(|_, roles| {
            let role = roles.get_mut(&role).ok_or(AuthRefusal::RoleNotFound)?;
            role.permissions.remove(&range).map(drop).ok_or(AuthRefusal::PermissionNotGranted)
        })?,
    }
    auth.revision = next;
    Ok(true)
}

fn check_hash(hash: Option<&String>) -> Result<(), AuthRefusal> {
    match hash {
        Some(hash) if hash.len() > PASSWORD_HASH_BYTES_MAX => Err(AuthRefusal::TooMany),
        _ => Ok(()),
    }
}

fn check_room<T>(named: &BTreeMap<String, T>, name: &str) -> Result<(), AuthRefusal> {
    if named.len() >= AUTH_NAMES_MAX || name.len() > AUTH_NAME_BYTES_MAX { Err(AuthRefusal::TooMany) } else { Ok(()) }
}

fn add_user(users: &mut Users, name: String, password_hash: Option<String>, now: u64) -> Result<(), AuthRefusal> {
    if name.is_empty() {
        return Err(AuthRefusal::UserEmpty);
    }
    if users.contains_key(&name) {
        return Err(AuthRefusal::UserExists);
    }
    check_hash(password_hash.as_ref())?;
    check_room(users, &name)?;
    // A token of an earlier user of that name says nothing about this one.
    users.insert(name, User { password_hash, tokens_since: now, ..User::default() });
    Ok(())
}

fn grant_role(users: &mut Users, roles: &Roles, user: &str, role: String) -> Result<bool, AuthRefusal> {
    let user = users.get_mut(user).ok_or(AuthRefusal::UserNotFound)?;
    // The role root need not be made.
    if role != ROOT && !roles.contains_key(&role) {
        return Err(AuthRefusal::RoleNotFound);
    }
    Ok(user.roles.insert(role))
}

fn add_role(roles: &mut Roles, name: String) -> Result<(), AuthRefusal> {
    if name.is_empty() {
        return Err(AuthRefusal::RoleEmpty);
    }
    if roles.contains_key(&name) {
        return Err(AuthRefusal::RoleExists);
    }
    check_room(roles, &name)?;
    roles.insert(name, Role::default());
    Ok(())
}

fn delete_role(users: &mut Users, roles: &mut Roles, role: &str) -> Result<(), AuthRefusal> {
    roles.remove(role).ok_or(AuthRefusal::RoleNotFound)?;
    for user in users.values_mut() {
        user.roles.remove(role);
    }
    Ok(())
}

fn grant_permission(roles: &mut Roles, role: &str, range: KeyRange, permission: Permission) -> Result<(), AuthRefusal> {
    if range.is_empty() {
        return Err(AuthRefusal::InvalidManagement);
    }
    let permissions = &mut roles.get_mut(role).ok_or(AuthRefusal::RoleNotFound)?.permissions;
    if permissions.len() >= ROLE_PERMISSIONS_MAX && !permissions.contains_key(&range) {
        return Err(AuthRefusal::TooMany);
    }
    permissions.insert(range, permission);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, delete, put, put_leased};
    use proptest::prelude::*;
    use tidelock_model::{Command, Key, LeaseId, Op, Query, RangeOp, Space, Txn};

    const SECRET: [u8; 32] = [1; 32];

    fn key(name: &str) -> Key {
        Key::new(Space::User, name.as_bytes())
    }
    fn keys(start: &str, end: &str) -> KeyRange {
        KeyRange { start: key(start), end: key(end) }
    }
    fn text(text: &str) -> String {
        text.to_owned()
    }
    fn user(name: &str, machine: &Machine) -> Caller {
        Caller::User { name: name.into(), auth_revision: machine.state.auth().revision }
    }

    impl Machine {
        fn auth(&mut self, command: AuthCommand) -> Result<(), AuthRefusal> {
            match self.command(Command::Auth(command)).result {
                Ok(Answer::Done) => Ok(()),
                Err(Refusal::Auth(refusal)) => Err(refusal),
                other => panic!("not an answer to a change of users: {other:?}"),
            }
        }

        /// Whether `caller` may carry out `op`: asked both ways, which must agree.
        fn may(&mut self, caller: &Caller, op: Op) -> Result<(), AuthRefusal> {
            let asked = self.state.authorise(caller, |needs| op.needs(needs));
            let done = match self.command_by(caller.clone(), Command::Write(op)).result {
                Err(Refusal::Auth(refusal)) => Err(refusal),
                _ => Ok(()),
            };
            assert_eq!(asked, done);
            done
        }
    }

    /// Root, and ann who may read and write [b, d).
    fn guarded() -> Machine {
        let mut machine = Machine::new();
        for user in ["root", "ann"] {
            machine.auth(AuthCommand::UserAdd { user: text(user), password_hash: Some(text("hash")) }).unwrap();
        }
        machine.auth(AuthCommand::UserGrantRole { user: text("root"), role: text("root") }).unwrap();
        machine.auth(AuthCommand::RoleAdd { role: text("some") }).unwrap();
        let grant =
            |range| AuthCommand::RoleGrantPermission { role: text("some"), range, permission: Permission::ReadWrite };
        machine.auth(grant(keys("b", "c"))).unwrap();
        machine.auth(grant(keys("c", "d"))).unwrap();
        machine.auth(AuthCommand::UserGrantRole { user: text("ann"), role: text("some") }).unwrap();
        machine.auth(AuthCommand::Enable { token_secret: SECRET }).unwrap();
        machine
    }

    fn range_of(start: &str, end: &str) -> Op {
        Op::Range(RangeOp::all(keys(start, end)))
    }

    /// A1: nobody reads or writes outside what was granted, by whatever way an operation is put.
    #[test]
    fn a1_every_operation_of_every_branch_needs_its_own_permission() {
        let mut machine = guarded();
        let ann = user("ann", &machine);
        assert_eq!(machine.may(&ann, put("b", "1")), Ok(()));
        assert_eq!(machine.may(&ann, range_of("b", "d")), Ok(()), "two permissions that touch add up");
        assert_eq!(machine.may(&ann, range_of("b", "d0")), Err(AuthRefusal::Denied));
        assert_eq!(machine.may(&ann, put("d", "1")), Err(AuthRefusal::Denied));
        assert_eq!(machine.may(&ann, delete("a")), Err(AuthRefusal::Denied));
        let hidden = |op: Op| Op::Txn(Box::new(Txn { failure: vec![op], ..Txn::default() }));
        assert_eq!(machine.may(&ann, hidden(hidden(put("d", "1")))), Err(AuthRefusal::Denied));
        assert_eq!(machine.may(&ann, hidden(hidden(put("c", "1")))), Ok(()));
        assert_eq!(machine.may(&Caller::Anonymous, range_of("b", "c")), Err(AuthRefusal::NoUser));
        let root = user("root", &machine);
        assert_eq!(machine.may(&root, put("z", "1")), Ok(()));
    }

    /// A1: keys that share a lease end together. Who may not write them all must not be able to end one.
    #[test]
    fn a1_a_lease_is_touched_only_by_who_may_write_all_its_keys() {
        let mut machine = guarded();
        let (ann, root) = (user("ann", &machine), user("root", &machine));
        for id in [1, 2] {
            let grant = Command::LeaseGrant { id: LeaseId(id), ttl_s: 9 };
            machine.command_by(ann.clone(), grant).result.unwrap();
        }
        machine.may(&root, put_leased("z", "", 1)).unwrap();
        assert_eq!(machine.may(&ann, put_leased("b", "", 1)), Err(AuthRefusal::Denied));
        assert_eq!(machine.may(&ann, put_leased("b", "", 2)), Ok(()));
        let revoke = |id| Command::LeaseRevoke { id: LeaseId(id) };
        let denied = Err(Refusal::Auth(AuthRefusal::Denied));
        assert_eq!(machine.command_by(ann.clone(), revoke(1)).result, denied);
        assert_eq!(machine.command_by(ann.clone(), revoke(2)).result, Ok(Answer::Done));
        let look = Query::LeaseKeys(LeaseId(1));
        assert_eq!(machine.state.read_as(&ann, &look).err(), Some(AuthRefusal::Denied.into()));
        assert!(machine.state.read_as(&root, &look).is_ok());
    }

    /// A1: what was allowed at the door counts only if nothing changed before it was carried out.
    #[test]
    fn a1_a_write_on_its_way_when_rights_change_is_judged_anew() {
        let mut machine = guarded();
        let ann = user("ann", &machine);
        machine.auth(AuthCommand::RoleAdd { role: text("other") }).unwrap();
        assert_eq!(machine.may(&ann, put("b", "1")), Err(AuthRefusal::OldRevision));
        let ann = user("ann", &machine);
        machine.auth(AuthCommand::UserRevokeRole { user: text("ann"), role: text("some") }).unwrap();
        let late = Caller::User { name: "ann".into(), auth_revision: u64::MAX };
        assert_eq!(machine.may(&ann, put("b", "1")), Err(AuthRefusal::OldRevision));
        assert_eq!(machine.may(&late, put("b", "1")), Err(AuthRefusal::Denied));
    }

    /// H4: a member that was sent a snapshot must decide as the others do, or their states part.
    #[test]
    fn h4_users_and_roles_come_with_a_snapshot() {
        let machine = guarded();
        let head = machine.state.begin_snapshot();
        let loaded = crate::testing::load(&head, crate::testing::pages(&machine.state, &head, 64)).unwrap();
        assert_eq!(loaded.auth(), machine.state.auth());
        assert_eq!(loaded.digest(), machine.state.digest());
        let ann = user("ann", &machine);
        let (inside, outside) = (key("b"), key("d"));
        assert!(loaded.authorise(&ann, |needs| needs.push(Need::ReadKey(&inside))).is_ok());
        assert!(loaded.authorise(&ann, |needs| needs.push(Need::ReadKey(&outside))).is_err());
    }

    /// Nobody locks everybody out, and what is refused changes nothing.
    #[test]
    fn changes_that_make_no_sense_are_refused_in_etcds_order() {
        use AuthCommand as C;
        use AuthRefusal as R;
        let mut machine = Machine::new();
        assert_eq!(machine.auth(C::Enable { token_secret: SECRET }), Err(R::NoRootUser));
        let add = |user: &str| C::UserAdd { user: text(user), password_hash: None };
        machine.auth(add("root")).unwrap();
        assert_eq!(machine.auth(C::Enable { token_secret: SECRET }), Err(R::NoRootRole));
        let mut machine = guarded();
        let before = Arc::clone(machine.state.auth());
        let grant = |user: &str, role: &str| C::UserGrantRole { user: text(user), role: text(role) };
        let revoke = |user: &str, role: &str| C::UserRevokeRole { user: text(user), role: text(role) };
        for (command, refusal) in [
            (add(""), R::UserEmpty),
            (add("ann"), R::UserExists),
            (C::UserDelete { user: text("root") }, R::InvalidManagement),
            (C::UserDelete { user: text("bob") }, R::UserNotFound),
            (C::UserChangePassword { user: text("bob"), password_hash: text("h") }, R::UserNotFound),
            (grant("bob", "some"), R::UserNotFound),
            (grant("ann", "none"), R::RoleNotFound),
            (revoke("root", "root"), R::InvalidManagement),
            (revoke("ann", "none"), R::RoleNotGranted),
            (C::RoleAdd { role: text("") }, R::RoleEmpty),
            (C::RoleAdd { role: text("some") }, R::RoleExists),
            (C::RoleDelete { role: text("root") }, R::InvalidManagement),
            (C::RoleDelete { role: text("none") }, R::RoleNotFound),
            (C::RoleRevokePermission { role: text("some"), range: keys("b", "d") }, R::PermissionNotGranted),
        ] {
            assert_eq!(machine.auth(command), Err(refusal));
        }
        assert_eq!(machine.state.auth(), &before);
        // What is so already is no change, and needs no new proof from anybody.
        let revision = machine.state.auth().revision;
        machine.auth(grant("ann", "some")).unwrap();
        machine.auth(C::Enable { token_secret: [2; 32] }).unwrap();
        assert_eq!((machine.state.auth().revision, machine.state.auth().token_secret), (revision, SECRET));
    }

    /// S3: ZooKeeper's sessions are proved with the secret. A new one would tell every client that comes back that its
    /// session is over, while its ephemerals stay.
    #[test]
    fn switching_checks_on_keeps_the_secret_that_was_drawn_before() {
        let mut machine = guarded();
        machine.auth(AuthCommand::Disable).unwrap();
        machine.auth(AuthCommand::Enable { token_secret: [2; 32] }).unwrap();
        assert_eq!(machine.state.auth().token_secret, SECRET);
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![Just(text("root")), Just(text("ann")), Just(text("bob")), Just(text(""))]
    }
    fn some_range() -> impl Strategy<Value = KeyRange> {
        (0u8..6, 0u8..6).prop_map(|(start, end)| KeyRange {
            start: Key::new(Space::User, &[start]),
            end: Key::new(Space::User, &[end]),
        })
    }
    fn change() -> impl Strategy<Value = AuthCommand> {
        use AuthCommand as C;
        let permission = prop_oneof![Just(Permission::Read), Just(Permission::Write), Just(Permission::ReadWrite)];
        prop_oneof![
            Just(C::Enable { token_secret: SECRET }),
            Just(C::Disable),
            name().prop_map(|user| C::UserAdd { user, password_hash: Some(text("h")) }),
            name().prop_map(|user| C::UserDelete { user }),
            (name(), name()).prop_map(|(user, role)| C::UserGrantRole { user, role }),
            (name(), name()).prop_map(|(user, role)| C::UserRevokeRole { user, role }),
            name().prop_map(|role| C::RoleAdd { role }),
            name().prop_map(|role| C::RoleDelete { role }),
            (name(), some_range(), permission).prop_map(|(role, range, permission)| C::RoleGrantPermission {
                role,
                range,
                permission
            }),
            (name(), some_range()).prop_map(|(role, range)| C::RoleRevokePermission { role, range }),
        ]
    }

    proptest! {
        /// A1, against the plainest reading of the rules: a key is readable if some role of the user says so.
        #[test]
        fn a1_rights_are_what_the_roles_of_a_user_add_up_to(
            changes in proptest::collection::vec(change(), 0..40),
            who in name(),
            asked in some_range(),
        ) {
            let mut machine = Machine::new();
            changes.into_iter().for_each(|change| {
                let _ = machine.auth(change);
            });
            let auth = Arc::clone(machine.state.auth());
            let may = |key: &Key, wanted: Permission| {
                let roles = auth.users().get(&who).map(|user| user.roles.clone()).unwrap_or_default();
                let says = |role: &String| auth.roles().get(role).is_some_and(|role| {
                    role.permissions.iter().any(|(range, has)| {
                        range.contains(key) && (*has == wanted || *has == Permission::ReadWrite)
                    })
                });
                !auth.enabled || roles.contains(ROOT) || roles.iter().any(says)
            };
            let caller = user(&who, &machine);
            // Every key between two numbers has the same rights, so these stand for all.
            let inside: Vec<Key> = (0u8..6).map(|n| Key::new(Space::User, &[n])).filter(|key| asked.contains(key)).collect();
            if !inside.is_empty() {
                let read = inside.iter().all(|key| may(key, Permission::Read));
                let write = inside.iter().all(|key| may(key, Permission::Write));
                prop_assert_eq!(machine.state.authorise(&caller, |needs| needs.push(Need::Read(&asked))).is_ok(), read);
                prop_assert_eq!(machine.state.authorise(&caller, |needs| needs.push(Need::Write(&asked))).is_ok(), write);
            }
            let head = machine.state.begin_snapshot();
            let loaded = crate::testing::load(&head, crate::testing::pages(&machine.state, &head, 64)).unwrap();
            prop_assert_eq!(loaded.auth(), machine.state.auth());
        }
    }
}
