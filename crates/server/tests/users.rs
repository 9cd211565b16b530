//! Users of a cluster, from the command line and over a backup and a restart.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use support::{Cluster, tidelock};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::auth_client::AuthClient;
use tonic::transport::Channel;

async fn guard(url: &str) {
    let channel = Channel::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let mut auth = AuthClient::new(channel);
    let (name, password) = (String::from("root"), String::from("secret"));
    auth.user_add(pb::AuthUserAddRequest { name, password, ..Default::default() }).await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    auth.user_grant_role(grant).await.unwrap();
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

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
