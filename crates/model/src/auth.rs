//! Who asks, and who may do what: callers, users, roles, and the commands that change them.
//!
//! The rules are in two places and nowhere else: what a request needs is in [`crate::access`], whether a caller
//! has it is decided by [`Auth::check`]. Users and roles are part of the replicated state; how a face finds
//! out who its caller is (a token, a certificate) is the face's business.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::Need;
use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{AUTH_NAME_BYTES_MAX, AUTH_NAMES_MAX, PASSWORD_HASH_BYTES_MAX, ROLE_PERMISSIONS_MAX};
use crate::{Key, KeyRange, Space, intervals::Intervals};

/// The user that may turn authorisation on, and the role that may do everything.
pub const ROOT: &str = "root";
/// Bytes of the secret that tokens are made with.
pub const TOKEN_SECRET_BYTES: usize = 32;

/// On whose behalf something is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The node itself. Faces never say this for a client.
    Internal,
    /// A client that did not say who it is.
    Anonymous,
    /// A client that proved to be this user.
    User {
        /// The user.
        name: Arc<str>,
        /// The revision of users and roles as of which that was proved. Once it is behind, the proof counts
        /// no longer and must be made again.
        auth_revision: u64,
    },
}

/// What a permission lets a role do with a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Read.
    Read = 0,
    /// Write.
    Write = 1,
    /// Both.
    ReadWrite = 2,
}

/// A change to users and roles. Passwords come hashed: hashing is slow and salted, so it happens before the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthCommand {
    /// Begin to check. Needs a user root with the role root.
    Enable {
        /// Tokens are made with this from now on; drawn by the proposer.
        token_secret: [u8; TOKEN_SECRET_BYTES],
    },
    /// Set the secret if there is none, as after a restore: a backup does not hold it.
    DrawSecret {
        /// Tokens are made with this from now on; drawn by the proposer.
        token_secret: [u8; TOKEN_SECRET_BYTES],
    },
    /// Stop checking.
    Disable,
    /// Create a user.
    UserAdd {
        /// The name.
        user: String,
        /// The hash of the password; `None`: the user has none and comes by certificate.
        password_hash: Option<String>,
    },
    /// Delete a user.
    UserDelete {
        /// Whom.
        user: String,
    },
    /// Give a user another password.
    UserChangePassword {
        /// Whom.
        user: String,
        /// The hash of the new password. Who has none does not get one this way.
        password_hash: String,
    },
    /// Give a role to a user.
    UserGrantRole {
        /// Whom.
        user: String,
        /// Which.
        role: String,
    },
    /// Take a role from a user.
    UserRevokeRole {
        /// Whom.
        user: String,
        /// Which.
        role: String,
    },
    /// Create a role.
    RoleAdd {
        /// The name.
        role: String,
    },
    /// Delete a role, and take it from everybody.
    RoleDelete {
        /// Which.
        role: String,
    },
    /// Let a role do something with a range, or something else than before.
    RoleGrantPermission {
        /// Which role.
        role: String,
        /// Which keys.
        range: KeyRange,
        /// What.
        permission: Permission,
    },
    /// Take a range from a role; it must be exactly one that was granted.
    RoleRevokePermission {
        /// Which role.
        role: String,
        /// Which keys.
        range: KeyRange,
    },
}

/// Why something was not allowed, or a change to users and roles not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// The caller did not say who it is.
    #[error("this needs a user, and the request names none")]
    NoUser = 1,
    /// The caller may not do that.
    #[error("the user may not do that")]
    Denied = 2,
    /// Users or roles were changed since the caller proved who it is.
    #[error("users or roles have changed since the caller came in; authenticate again")]
    OldRevision = 3,
    /// Turning checks on needs a user called root.
    #[error("there is no user root")]
    NoRootUser = 4,
    /// The user root needs the role root.
    #[error("the user root does not have the role root")]
    NoRootRole = 5,
    /// The name is taken.
    #[error("the user exists already")]
    UserExists = 6,
    /// No such user.
    #[error("the user does not exist")]
    UserNotFound = 7,
    /// A name is missing.
    #[error("the name of the user is empty")]
    UserEmpty = 8,
    /// The name is taken.
    #[error("the role exists already")]
    RoleExists = 9,
    /// No such role.
    #[error("the role does not exist")]
    RoleNotFound = 10,
    /// A name is missing.
    #[error("the name of the role is empty")]
    RoleEmpty = 11,
    /// The user does not have the role.
    #[error("the user does not have the role")]
    RoleNotGranted = 12,
    /// The role does not have the permission.
    #[error("the role does not have that permission")]
    PermissionNotGranted = 13,
    /// It would lock everybody out, or makes no sense.
    #[error("that change of users and roles is not possible")]
    InvalidManagement = 14,
    /// There are as many as there may be.
    #[error("there are too many users, roles or permissions")]
    TooMany = 15,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The hash of the password, if there is one.
    pub password_hash: Option<String>,
    /// The roles, by name.
    pub roles: BTreeSet<String>,
    /// Tokens given out before this auth revision count no longer.
    pub tokens_since: u64,
}

/// A role: what may be done with which keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// By range.
    pub permissions: BTreeMap<KeyRange, Permission>,
}

/// What a user may read and write, put together from all roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Access {
    is_root: bool,
    read: Intervals,
    write: Intervals,
}

/// All users and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Whether anything is checked at all.
    pub enabled: bool,
    /// Counts changes.
    pub revision: u64,
    /// Tokens are made with this; all zeros: there is none yet, and no token counts.
    pub token_secret: [u8; TOKEN_SECRET_BYTES],
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Role>,
    /// Follows from the above; not written down.
    access: BTreeMap<String, Access>,
}

impl Default for Auth {
    fn default() -> Auth {
        Auth {
            enabled: false,
            revision: 1,
            token_secret: [0; TOKEN_SECRET_BYTES],
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            access: BTreeMap::new(),
        }
    }
}

impl Auth {
    /// All users, by name.
    #[must_use]
    pub fn users(&self) -> &BTreeMap<String, User> {
        &self.users
    }

    /// All roles, by name.
    #[must_use]
    pub fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// Whether tokens can be made.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.token_secret != [0; TOKEN_SECRET_BYTES]
    }

    /// Whether nobody ever changed anything.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        *self == Auth::default()
    }

    /// Changes users and roles as a whole, and works out anew who may do what.
    pub fn change<T>(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<String, User>, &mut BTreeMap<String, Role>) -> T,
    ) -> T {
        let changed = change(&mut self.users, &mut self.roles);
        self.work_out_access();
        changed
    }

    fn work_out_access(&mut self) {
        let access_of = |user: &User| {
            let mut access = Access { is_root: user.roles.contains(ROOT), ..Access::default() };
            let permissions =
                user.roles.iter().filter_map(|role| self.roles.get(role)).flat_map(|role| &role.permissions);
            for (range, permission) in permissions {
                if *permission != Permission::Write {
                    access.read.add(range);
                }
                if *permission != Permission::Read {
                    access.write.add(range);
                }
            }
            access
        };
        self.access = self.users.iter().map(|(name, user)| (name.clone(), access_of(user))).collect();
    }

    /// Whether `caller` has what a request needs. Needs about a lease are turned into needs about its keys
    /// by whoever knows them.
    pub fn check(&self, caller: &Caller, need: &Need<'_>) -> Result<(), AuthRefusal> {
        if !self.enabled || *caller == Caller::Internal || matches!(need, Need::Nothing) {
            return Ok(());
        }
        let Caller::User { name, auth_revision } = caller else { return Err(AuthRefusal::NoUser) };
        if *auth_revision < self.revision && !matches!(need, Need::User) && !crate::planted!(OldProofCounts) {
            return Err(AuthRefusal::OldRevision);
        }
        let access = self.access.get(&**name).ok_or(AuthRefusal::Denied)?;
        let has_role = |role: &str| self.users.get(&**name).is_some_and(|user| user.roles.contains(role));
        let allowed = access.is_root
            || match need {
                Need::Nothing | Need::User => true,
                Need::Admin => false,
                Need::Read(range) => access.read.cover(range),
                Need::Write(range) => access.write.cover(range),
                Need::WriteKey(key) => access.write.cover_key(key),
                Need::ReadKey(key) => access.read.cover_key(key),
                Need::WriteName(subject) => access.write.cover_key(&key_of(subject)),
                Need::ReadName(subject) => access.read.cover_key(&key_of(subject)),
                Need::Be(user) => **name == **user,
                Need::Have(role) => has_role(role),
                // Not asked here: see `State::authorise`. Unknown keys are nobody's.
                Need::WriteKeysOfLease(_) | Need::ReadKeysOfLease(_) | Need::ReadKeysOfAllLeases => false,
                Need::Session(_) => false,
            };
        if allowed { Ok(()) } else { Err(AuthRefusal::Denied) }
    }

    /// The same, as if the caller had just come in: for what was allowed once and goes on.
    pub fn check_again(&self, caller: &Caller, need: &Need<'_>) -> Result<(), AuthRefusal> {
        self.check(&caller.as_of(self), need)
    }
}

/// The key whose rights a native name has.
fn key_of(name: &str) -> Key {
    Key::new(Space::User, name.as_bytes())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

fn put_hash(out: &mut Vec<u8>, hash: Option<&String>) {
    out.push(u8::from(hash.is_some()));
    if let Some(hash) = hash {
        put_text(out, hash);
    }
}

fn hash(input: &mut Reader) -> Result<Option<String>, DecodeError> {
    input.flag()?.then(|| input.text(PASSWORD_HASH_BYTES_MAX)).transpose()
}

fn name(input: &mut Reader) -> Result<String, DecodeError> {
    input.text(AUTH_NAME_BYTES_MAX)
}

fn secret(input: &mut Reader) -> Result<[u8; TOKEN_SECRET_BYTES], DecodeError> {
    let mut secret = [0; TOKEN_SECRET_BYTES];
    for byte in &mut secret {
        *byte = input.byte()?;
    }
    Ok(secret)
}

impl Wire for Permission {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn decode(input: &mut Reader) -> Result<Permission, DecodeError> {
        Ok(match input.byte()? {
            0 => Permission::Read,
            1 => Permission::Write,
            2 => Permission::ReadWrite,
            tag => return Err(DecodeError::UnknownTag { what: "permission", tag }),
        })
    }
}

impl Wire for AuthRefusal {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn decode(input: &mut Reader) -> Result<AuthRefusal, DecodeError> {
        use AuthRefusal as R;
        const ALL: [AuthRefusal; 15] = [
            R::NoUser,
            R::Denied,
            R::OldRevision,
            R::NoRootUser,
            R::NoRootRole,
            R::UserExists,
            R::UserNotFound,
            R::UserEmpty,
            R::RoleExists,
            R::RoleNotFound,
            R::RoleEmpty,
            R::RoleNotGranted,
            R::PermissionNotGranted,
            R::InvalidManagement,
            R::TooMany,
        ];
        let tag = input.byte()?;
        let found = ALL.into_iter().find(|refusal| *refusal as u8 == tag);
        found.ok_or(DecodeError::UnknownTag { what: "auth refusal", tag })
    }
}

impl Wire for AuthCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AuthCommand::Enable { token_secret } => {
                out.push(1);
                out.extend_from_slice(token_secret);
            }
            AuthCommand::Disable => out.push(2),
            AuthCommand::DrawSecret { token_secret } => {
                out.push(12);
                out.extend_from_slice(token_secret);
            }
            AuthCommand::UserAdd { user, password_hash } => {
                out.push(3);
                put_text(out, user);
                put_hash(out, password_hash.as_ref());
            }
            AuthCommand::UserDelete { user } => {
                out.push(4);
                put_text(out, user);
            }
            AuthCommand::UserChangePassword { user, password_hash } => {
                out.push(5);
                put_text(out, user);
                put_text(out, password_hash);
            }
            AuthCommand::UserGrantRole { user, role } => {
                out.push(6);
                put_text(out, user);
                put_text(out, role);
            }
            AuthCommand::UserRevokeRole { user, role } => {
                out.push(7);
                put_text(out, user);
                put_text(out, role);
            }
            AuthCommand::RoleAdd { role } => {
                out.push(8);
                put_text(out, role);
            }
            AuthCommand::RoleDelete { role } => {
                out.push(9);
                put_text(out, role);
            }
            AuthCommand::RoleGrantPermission { role, range, permission } => {
                out.push(10);
                put_text(out, role);
                range.encode(out);
                permission.encode(out);
            }
            AuthCommand::RoleRevokePermission { role, range } => {
                out.push(11);
                put_text(out, role);
                range.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<AuthCommand, DecodeError> {
        Ok(match input.byte()? {
            1 => AuthCommand::Enable { token_secret: secret(input)? },
            2 => AuthCommand::Disable,
            3 => AuthCommand::UserAdd { user: name(input)?, password_hash: hash(input)? },
            4 => AuthCommand::UserDelete { user: name(input)? },
            5 => AuthCommand::UserChangePassword {
                user: name(input)?,
                password_hash: input.text(PASSWORD_HASH_BYTES_MAX)?,
            },
            6 => AuthCommand::UserGrantRole { user: name(input)?, role: name(input)? },
            7 => AuthCommand::UserRevokeRole { user: name(input)?, role: name(input)? },
            8 => AuthCommand::RoleAdd { role: name(input)? },
            9 => AuthCommand::RoleDelete { role: name(input)? },
            10 => AuthCommand::RoleGrantPermission {
                role: name(input)?,
                range: KeyRange::decode(input)?,
                permission: Permission::decode(input)?,
            },
            11 => AuthCommand::RoleRevokePermission { role: name(input)?, range: KeyRange::decode(input)? },
            12 => AuthCommand::DrawSecret { token_secret: secret(input)? },
            tag => return Err(DecodeError::UnknownTag { what: "auth command", tag }),
        })
    }
}

impl Wire for Auth {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.enabled));
        put_varint(out, self.revision);
        out.extend_from_slice(&self.token_secret);
        put_varint(out, self.users.len() as u64);
        for (name, user) in &self.users {
            put_text(out, name);
            put_hash(out, user.password_hash.as_ref());
            put_varint(out, user.tokens_since);
            put_varint(out, user.roles.len() as u64);
            user.roles.iter().for_each(|role| put_text(out, role));
        }
        put_varint(out, self.roles.len() as u64);
        for (name, role) in &self.roles {
            put_text(out, name);
            put_varint(out, role.permissions.len() as u64);
            for (range, permission) in &role.permissions {
                range.encode(out);
                permission.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Auth, DecodeError> {
        let mut auth =
            Auth { enabled: input.flag()?, revision: input.varint()?, token_secret: secret(input)?, ..Auth::default() };
        for _ in 0..input.count("the number of users", AUTH_NAMES_MAX)? {
            let user_name = name(input)?;
            let (password_hash, tokens_since) = (hash(input)?, input.varint()?);
            let count = input.count("the number of a user's roles", AUTH_NAMES_MAX)?;
            let roles = (0..count).map(|_| name(input)).collect::<Result<_, _>>()?;
            auth.users.insert(user_name, User { password_hash, roles, tokens_since });
        }
        for _ in 0..input.count("the number of roles", AUTH_NAMES_MAX)? {
            let role_name = name(input)?;
            let count = input.count("the number of permissions", ROLE_PERMISSIONS_MAX)?;
            let one = |input: &mut Reader| Ok((KeyRange::decode(input)?, Permission::decode(input)?));
            let permissions = (0..count).map(|_| one(input)).collect::<Result<_, DecodeError>>()?;
            auth.roles.insert(role_name, Role { permissions });
        }
        auth.work_out_access();
        Ok(auth)
    }
}
