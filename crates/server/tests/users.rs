//! Users of a cluster, from the command line and over a backup and a restart.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use support::tls::Office;
use support::users::{add_user, authority, guard};
use support::{Cluster, Process, tidelock};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_tls::Use;
use tonic::{Code, Request, Status};

fn run(cluster: &Cluster, arguments: &[&str], user: Option<&str>) -> Output {
    let mut command = tidelock();
    command.args(arguments).env("TIDELOCK_ENDPOINTS", cluster.endpoints());
    if let Some(user) = user {
        command.env("TIDELOCK_USER", user);
    }
    command.output().unwrap()
}

/// Whoever turned authentication on must still get in with our own commands, on every member, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_users_lets_in_who_has_the_password_also_after_a_restart() {
    let mut cluster = Cluster::start(3);
    guard(&cluster.nodes[0].client_url()).await;
    let put = run(&cluster, &["put", "greeting", "hello"], Some("root:secret"));
    assert!(put.status.success(), "{put:?}");
    for node in 0..3 {
        cluster.nodes[node].kill();
        cluster.nodes[node].start();
        cluster.nodes[node].wait_until_ready();
    }
    let get = run(&cluster, &["get", "greeting", "--value-only"], Some("root:secret"));
    assert_eq!(String::from_utf8_lossy(&get.stdout), "hello\n", "{get:?}");
    for (user, words) in [(None, "come in with --user"), (Some("root:wrong"), "authentication failed")] {
        let refused = run(&cluster, &["get", "greeting"], user);
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains(words), "{refused:?}");
    }
}

/// What cannot be read would take everybody's requests of its entry with it: it is refused at the door.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_too_long_is_refused_and_hurts_nobody_else() {
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let mut auth = authority(&url).await;
    let long = "n".repeat(1025);
    let user = |name: &str| pb::AuthUserAddRequest { name: name.into(), password: "p".into(), ..Default::default() };
    let refusals = [
        auth.user_add(user(&long)).await.map(drop),
        auth.role_add(pb::AuthRoleAddRequest { name: long.clone() }).await.map(drop),
        auth.user_grant_role(pb::AuthUserGrantRoleRequest { user: long.clone(), role: long.clone() }).await.map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "etcdserver: request is too large"));
    }
    auth.user_add(user(&long[..1024])).await.unwrap();
}

async fn get_with(node: &Process, token: &str) -> Result<pb::RangeResponse, Status> {
    let mut request = Request::new(pb::RangeRequest { key: "/a/1".into(), ..Default::default() });
    request.metadata_mut().insert("token", token.parse().unwrap());
    node.kv().await.range(request).await.map(tonic::Response::into_inner)
}

/// A JWT is checked with a key and nothing else: every member takes it, nobody who lacks the key can make one, and it
/// ends when the rights it was made under change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jwt_counts_at_every_member_until_rights_change_and_cannot_be_forged() {
    let office = Office::new("Signing");
    let forger = Office::new("Forging");
    let mut cluster = Cluster::prepare(3, &[]);
    for (office, nodes) in [(&office, 0..2), (&forger, 2..3)] {
        office.issue("sign", "signer", Use::Server);
        let (public, private) = (office.file("sign.pem"), office.file("sign-key.pem"));
        let kind = format!("jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl=10m");
        let arguments = ["--auth-token".to_owned(), kind];
        nodes.for_each(|node| cluster.nodes[node].add_arguments(&arguments));
    }
    cluster.start_all();
    let urls: Vec<String> = cluster.nodes.iter().map(Process::client_url).collect();
    add_user(&urls[0], "alice", "/a/", "/a0").await;
    guard(&urls[0]).await;

    let come_in = || pb::AuthenticateRequest { name: "alice".into(), password: "secret".into() };
    let token = authority(&urls[0]).await.authenticate(come_in()).await.unwrap().into_inner().token;
    assert_eq!(token.split('.').count(), 3, "{token}");
    get_with(&cluster.nodes[0], &token).await.unwrap();
    get_with(&cluster.nodes[1], &token).await.unwrap();
    let elsewhere = get_with(&cluster.nodes[2], &token).await.unwrap_err();
    let forged = authority(&urls[2]).await.authenticate(come_in()).await.unwrap().into_inner().token;
    let forged = get_with(&cluster.nodes[0], &forged).await.unwrap_err();
    for refused in [elsewhere, forged] {
        assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, "etcdserver: invalid auth token"));
    }

    let root = pb::AuthenticateRequest { name: "root".into(), password: "secret".into() };
    let mut auth = authority(&urls[1]).await;
    let root = auth.authenticate(root).await.unwrap().into_inner().token;
    let mut change = Request::new(pb::AuthRoleAddRequest { name: "another".into() });
    change.metadata_mut().insert("token", root.parse().unwrap());
    auth.role_add(change).await.unwrap();
    let old = get_with(&cluster.nodes[1], &token).await.unwrap_err();
    assert_eq!(old.message(), "etcdserver: revision of auth store is old");
    let renewed = authority(&urls[0]).await.authenticate(come_in()).await.unwrap().into_inner().token;
    get_with(&cluster.nodes[1], &renewed).await.unwrap();
}
