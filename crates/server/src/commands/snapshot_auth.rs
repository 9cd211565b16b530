//! Users and roles of a backup, as the state keeps them.
//!
//! Nothing is guessed: what does not fit is refused, since a user or a permission that is lost on the way locks
//! somebody out or lets somebody in.

use tidelock_etcd_backup::{Auth as FileAuth, Permission as FilePermission, PermissionKind};
use tidelock_model::limits::{
    AUTH_NAME_BYTES_MAX, AUTH_NAMES_MAX, KEY_BYTES_MAX, PASSWORD_HASH_BYTES_MAX, ROLE_PERMISSIONS_MAX,
};
use tidelock_model::{Auth, Key, KeyRange, Permission, Role, Space, User};

/// etcd's way to say "everything from the key on".
const FROM_KEY: &[u8] = &[0];

/// Users, roles and the switch of a file. The secret that tokens are made with is not in there, so that nobody
/// who has the file can make one: the first who comes in has the new cluster draw another.
pub(super) fn auth_of(file: &FileAuth) -> Result<Auth, String> {
    let mut auth = Auth::default();
    if *file == FileAuth::default() {
        return Ok(auth);
    }
    if file.users.len().max(file.roles.len()) > AUTH_NAMES_MAX {
        return Err(format!("more than {AUTH_NAMES_MAX} users or roles"));
    }
    let mut users = Vec::new();
    for user in &file.users {
        let hash = text("the password hash of a user", &user.password_hash, PASSWORD_HASH_BYTES_MAX)?;
        let has_password = !hash.is_empty() && user.no_password != Some(true);
        let roles = user.roles.iter().cloned().collect();
        let user_name = text("the name of a user", &user.name, AUTH_NAME_BYTES_MAX)?;
        users.push((user_name, User { password_hash: has_password.then_some(hash), roles, tokens_since: 0 }));
    }
    let mut roles = Vec::new();
    for role in &file.roles {
        if role.permissions.len() > ROLE_PERMISSIONS_MAX {
            return Err(format!("a role with more than {ROLE_PERMISSIONS_MAX} permissions"));
        }
        let permissions = role.permissions.iter().map(permission_of).collect::<Result<_, _>>()?;
        roles.push((text("the name of a role", &role.name, AUTH_NAME_BYTES_MAX)?, Role { permissions }));
    }
    auth.enabled = file.enabled == Some(true);
    auth.revision = file.revision.unwrap_or(1).max(1);
    auth.change(|into_users, into_roles| {
        into_users.extend(users);
        into_roles.extend(roles);
    });
    Ok(auth)
}

fn text(what: &str, bytes: &[u8], bytes_max: usize) -> Result<String, String> {
    match String::from_utf8(bytes.to_vec()) {
        Ok(text) if text.len() <= bytes_max => Ok(text),
        Ok(_) => Err(format!("{what} has more than {bytes_max} bytes")),
        Err(_) => Err(format!("{what} is not text")),
    }
}

fn permission_of(permission: &FilePermission) -> Result<(KeyRange, Permission), String> {
    let (start, end) = (&permission.key, &permission.range_end);
    if start.len().max(end.len()) > KEY_BYTES_MAX {
        return Err(format!("a permission for a key of more than {KEY_BYTES_MAX} bytes"));
    }
    let key = Key::new(Space::User, start);
    let range = match end.as_slice() {
        [] => KeyRange::single(key),
        FROM_KEY => KeyRange { start: key, end: Key::end_of(Space::User) },
        end => KeyRange { start: key, end: Key::new(Space::User, end) },
    };
    let kind = match permission.kind {
        PermissionKind::Read => Permission::Read,
        PermissionKind::Write => Permission::Write,
        PermissionKind::ReadWrite => Permission::ReadWrite,
    };
    Ok((range, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_etcd_backup as backup;

    fn file() -> FileAuth {
        let permission = |key: &[u8], end: &[u8]| FilePermission {
            kind: PermissionKind::Read,
            key: key.to_vec(),
            range_end: end.to_vec(),
        };
        let user = |name: &str, hash: &str| backup::User {
            name: name.into(),
            password_hash: hash.into(),
            roles: vec!["r".into()],
            no_password: Some(hash.is_empty()),
        };
        FileAuth {
            enabled: Some(true),
            revision: Some(9),
            users: vec![user("certified", ""), user("u", "$2a$10$hash")],
            roles: vec![backup::Role {
                name: b"r".to_vec(),
                permissions: vec![permission(b"k", b""), permission(b"a", b"b"), permission(b"x", b"\0")],
            }],
        }
    }

    /// Authentication that is off after a restore, or a permission that covers more than it did, opens the data
    /// to people who were kept out.
    #[test]
    fn users_roles_and_the_switch_are_as_they_were() {
        let auth = auth_of(&file()).unwrap();
        assert!(auth.enabled);
        assert_eq!(auth.revision, 9);
        assert!(!auth.has_secret());
        assert_eq!(auth.users()["u"].password_hash.as_deref(), Some("$2a$10$hash"));
        assert_eq!(auth.users()["certified"].password_hash, None);
        let user_key = |name: &[u8]| Key::new(Space::User, name);
        let ranges: Vec<&KeyRange> = auth.roles()["r"].permissions.keys().collect();
        let expected = [
            KeyRange { start: user_key(b"a"), end: user_key(b"b") },
            KeyRange::single(user_key(b"k")),
            KeyRange { start: user_key(b"x"), end: Key::end_of(Space::User) },
        ];
        assert_eq!(ranges, expected.iter().collect::<Vec<_>>());
        assert!(auth_of(&FileAuth::default()).unwrap().is_untouched());
        let mut nameless = file();
        nameless.users[0].name = vec![0xff];
        assert!(auth_of(&nameless).is_err());
    }
}
