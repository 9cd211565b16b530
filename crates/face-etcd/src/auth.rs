//! The Auth service: users, roles, permissions, and coming in.
//!
//! Changes are commands like any other and are judged like any other. What is slow and secret happens here,
//! before the log: passwords are hashed, tokens made.

use tidelock_coordinator::Consistency;
use tidelock_etcd_api::authpb;
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::auth_server::Auth as AuthService;
use tidelock_model::{
    Auth, AuthCommand, AuthQuery, Caller, Command, Key, KeyRange, Need, Permission, Query, QueryAnswer, ROOT, Revision,
    Space,
};
use tonic::{Request, Response, Status};

use crate::error_map::FaceError;
use crate::key_range::{from_key_end, key_range};
use crate::kv::MISMATCH;
use crate::services::Services;

/// A permission to grant, as a range and what may be done with it.
pub fn permission_to_grant(permission: Option<authpb::Permission>) -> Result<(KeyRange, Permission), FaceError> {
    let permission = permission.ok_or(FaceError::PermissionNotGiven)?;
    let kind = match authpb::permission::Type::try_from(permission.perm_type) {
        Ok(authpb::permission::Type::Read) => Permission::Read,
        Ok(authpb::permission::Type::Write) => Permission::Write,
        Ok(authpb::permission::Type::Readwrite) => Permission::ReadWrite,
        Err(_) => return Err(FaceError::InvalidAuthManagement),
    };
    let range = key_range(&permission.key, &permission.range_end).map_err(|_| FaceError::InvalidAuthManagement)?;
    if range.is_empty() {
        return Err(FaceError::InvalidAuthManagement);
    }
    Ok((range, kind))
}

/// A permission as etcd writes it.
#[must_use]
pub fn wire_permission(range: &KeyRange, permission: Permission) -> authpb::Permission {
    let range_end = match range.as_single() {
        Some(_) => Vec::new(),
        None if range.end == Key::end_of(Space::User) => from_key_end().to_vec(),
        None => range.end.name().to_vec(),
    };
    let perm_type = match permission {
        Permission::Read => authpb::permission::Type::Read,
        Permission::Write => authpb::permission::Type::Write,
        Permission::ReadWrite => authpb::permission::Type::Readwrite,
    };
    authpb::Permission {
        perm_type: perm_type.into(),
        key: range.start.name().to_vec().into(),
        range_end: range_end.into(),
    }
}

/// What the role root may do, as etcd spells "everything".
fn root_permission() -> authpb::Permission {
    authpb::Permission {
        perm_type: authpb::permission::Type::Readwrite.into(),
        key: bytes::Bytes::new(),
        range_end: from_key_end().to_vec().into(),
    }
}

impl Services {
    async fn change_auth(&self, caller: &Caller, command: AuthCommand) -> Result<pb::ResponseHeader, FaceError> {
        let (revision, _) = self.propose(caller, Command::Auth(command)).await?;
        Ok(self.headers.at(revision))
    }

    async fn ask_auth(&self, caller: &Caller, query: AuthQuery) -> Result<(Revision, std::sync::Arc<Auth>), FaceError> {
        match self.read(caller, Query::Auth(query), Consistency::Linearizable).await? {
            QueryAnswer::Auth { revision, auth } => Ok((revision, auth)),
            _ => Err(MISMATCH),
        }
    }

    /// Only who may do it gets a password hashed: that is slow on purpose.
    async fn hash_for(&self, caller: &Caller, password: String) -> Result<String, FaceError> {
        self.coordinator.auth().check(caller, &Need::Admin)?;
        Ok(self.passwords.hash(password).await?)
    }

    /// The first to come in after a restore finds no secret: a backup does not hold it.
    async fn draw_secret(&self) -> Result<std::sync::Arc<Auth>, FaceError> {
        let command = AuthCommand::DrawSecret { token_secret: rand::random() };
        self.change_auth(&Caller::Internal, command).await?;
        Ok(self.ask_auth(&Caller::Internal, AuthQuery::Status).await?.1)
    }

    async fn come_in(&self, name: &str, password: String) -> Result<(Revision, String), FaceError> {
        let (revision, auth) = self.ask_auth(&Caller::Internal, AuthQuery::Status).await?;
        if !auth.enabled {
            return Err(FaceError::AuthNotEnabled);
        }
        let user = auth.users().get(name);
        if user.is_some_and(|user| user.password_hash.is_none()) {
            return Err(FaceError::NoPasswordUser);
        }
        let hash = user.and_then(|user| user.password_hash.as_deref());
        if !self.passwords.matches(password, hash).await? {
            return Err(FaceError::AuthFailed);
        }
        let auth = if auth.has_secret() { auth } else { self.draw_secret().await? };
        let token = self.tokens.make(&auth, name).ok_or(FaceError::InvalidAuthToken)?;
        Ok((revision, token))
    }
}

#[tonic::async_trait]
impl AuthService for Services {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let header = self.change_auth(&caller, AuthCommand::Enable { token_secret: rand::random() }).await?;
        Ok(Response::new(pb::AuthEnableResponse { header: Some(header) }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let header = self.change_auth(&caller, AuthCommand::Disable).await?;
        Ok(Response::new(pb::AuthDisableResponse { header: Some(header) }))
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        self.refuse_on_learner()?;
        self.caller(&request)?;
        // Whoever asks: a client must be able to find out that it has to come in.
        let (revision, auth) = self.ask_auth(&Caller::Anonymous, AuthQuery::Status).await?;
        let header = Some(self.headers.at(revision));
        Ok(Response::new(pb::AuthStatusResponse { header, enabled: auth.enabled, auth_revision: auth.revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        self.refuse_on_learner()?;
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let (revision, token) = self.come_in(&name, password).await?;
        Ok(Response::new(pb::AuthenticateResponse { header: Some(self.headers.at(revision)), token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let password_hash = match request.options {
            Some(options) if options.no_password => None,
            _ => Some(self.hash_for(&caller, request.password).await?),
        };
        let header = self.change_auth(&caller, AuthCommand::UserAdd { user: request.name, password_hash }).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header: Some(header) }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let name = request.into_inner().name;
        let (revision, auth) = self.ask_auth(&caller, AuthQuery::User(name.clone())).await?;
        let user = auth.users().get(&name).ok_or(FaceError::UserNotFound)?;
        let roles = user.roles.iter().cloned().collect();
        Ok(Response::new(pb::AuthUserGetResponse { header: Some(self.headers.at(revision)), roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let (revision, auth) = self.ask_auth(&caller, AuthQuery::Everything).await?;
        let users = auth.users().keys().cloned().collect();
        Ok(Response::new(pb::AuthUserListResponse { header: Some(self.headers.at(revision)), users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let user = request.into_inner().name;
        let header = self.change_auth(&caller, AuthCommand::UserDelete { user }).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header: Some(header) }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let password_hash = self.hash_for(&caller, request.password).await?;
        let command = AuthCommand::UserChangePassword { user: request.name, password_hash };
        let header = self.change_auth(&caller, command).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header: Some(header) }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let pb::AuthUserGrantRoleRequest { user, role } = request.into_inner();
        let header = self.change_auth(&caller, AuthCommand::UserGrantRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header: Some(header) }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let pb::AuthUserRevokeRoleRequest { name: user, role } = request.into_inner();
        let header = self.change_auth(&caller, AuthCommand::UserRevokeRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header: Some(header) }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let role = request.into_inner().name;
        let header = self.change_auth(&caller, AuthCommand::RoleAdd { role }).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header: Some(header) }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let name = request.into_inner().role;
        let (revision, auth) = self.ask_auth(&caller, AuthQuery::Role(name.clone())).await?;
        let role = auth.roles().get(&name).ok_or(FaceError::RoleNotFound)?;
        let perm = match name.as_str() {
            ROOT => vec![root_permission()],
            _ => role.permissions.iter().map(|(range, permission)| wire_permission(range, *permission)).collect(),
        };
        Ok(Response::new(pb::AuthRoleGetResponse { header: Some(self.headers.at(revision)), perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let (revision, auth) = self.ask_auth(&caller, AuthQuery::Everything).await?;
        let roles = auth.roles().keys().cloned().collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: Some(self.headers.at(revision)), roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let role = request.into_inner().role;
        let header = self.change_auth(&caller, AuthCommand::RoleDelete { role }).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header: Some(header) }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let pb::AuthRoleGrantPermissionRequest { name: role, perm } = request.into_inner();
        self.coordinator.auth().check(&caller, &Need::Admin).map_err(FaceError::from)?;
        let (range, permission) = permission_to_grant(perm)?;
        let command = AuthCommand::RoleGrantPermission { role, range, permission };
        let header = self.change_auth(&caller, command).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header: Some(header) }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        // What cannot have been granted is not granted: the answer is the state's.
        let nothing = KeyRange { start: Key::end_of(Space::User), end: Key::start_of(Space::User) };
        let range = key_range(&key, &range_end).unwrap_or(nothing);
        let header = self.change_auth(&caller, AuthCommand::RoleRevokePermission { role, range }).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header: Some(header) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(key: &str, range_end: &[u8]) -> authpb::Permission {
        authpb::Permission {
            perm_type: authpb::permission::Type::Write.into(),
            key: key.as_bytes().to_vec().into(),
            range_end: range_end.to_vec().into(),
        }
    }

    /// etcdctl prints what was granted; it must read as it was typed.
    #[test]
    fn permissions_come_back_as_they_were_granted() {
        for (key, range_end) in [("a", &b""[..]), ("a", b"b"), ("a", b"\0"), ("\0", b"\0"), ("a/", b"a0")] {
            let granted = permission(key, range_end);
            let (range, kind) = permission_to_grant(Some(granted.clone())).unwrap();
            assert_eq!(wire_permission(&range, kind), granted);
        }
    }

    #[test]
    fn a_permission_for_nothing_is_refused() {
        assert_eq!(permission_to_grant(None), Err(FaceError::PermissionNotGiven));
        for (key, range_end) in [("", &b""[..]), ("b", b"a"), ("a", b"a")] {
            let refused = permission_to_grant(Some(permission(key, range_end)));
            assert_eq!(refused, Err(FaceError::InvalidAuthManagement));
        }
    }
}
