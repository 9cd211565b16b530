//! Users for tests; everybody's password is `secret`.

use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::auth_client::AuthClient;
use tonic::transport::Channel;

/// Users and roles of a node.
pub async fn authority(url: &str) -> AuthClient<Channel> {
    AuthClient::new(Channel::from_shared(url.to_owned()).unwrap().connect().await.unwrap())
}

/// Turns authentication on, with the user root.
pub async fn guard(url: &str) {
    let mut auth = authority(url).await;
    add(&mut auth, "root").await;
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

/// Adds a user who may read and write from `start` to `end`, by a role of the same name.
pub async fn add_user(url: &str, name: &str, start: &str, end: &str) {
    let mut auth = authority(url).await;
    auth.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.unwrap();
    let permission = tidelock_etcd_api::authpb::Permission {
        perm_type: tidelock_etcd_api::authpb::permission::Type::Readwrite.into(),
        key: start.to_owned().into(),
        range_end: end.to_owned().into(),
    };
    let grant = pb::AuthRoleGrantPermissionRequest { name: name.into(), perm: Some(permission) };
    auth.role_grant_permission(grant).await.unwrap();
    add(&mut auth, name).await;
}

async fn add(auth: &mut AuthClient<Channel>, name: &str) {
    let user = pb::AuthUserAddRequest { name: name.into(), password: "secret".into(), ..Default::default() };
    auth.user_add(user).await.unwrap();
    auth.user_grant_role(pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() }).await.unwrap();
}
