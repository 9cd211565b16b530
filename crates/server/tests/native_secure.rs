//! The client library and the commands that hold things, over TLS and where there are users: who gets in, who does not,
//! and what each is told.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use support::tls::Office;
use support::users::{add_user, authority, guard};
use support::{Cluster, tidelock, within};
use tidelock_client::{Client, Code, Error, Failure, Options};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_native_api::v1;
use tidelock_tls::Use;

/// A node whose native port has TLS and a certificate of `office`; with these arguments, too.
fn secure_node(office: &Office, more: &[String]) -> (Cluster, String) {
    office.issue("server", "server", Use::Server);
    let mut cluster = Cluster::prepare(1, &[]);
    let node = &mut cluster.nodes[0];
    let port = node.serve_native();
    node.add_arguments(&office.shown("", "server"));
    node.add_arguments(more);
    cluster.start_all();
    (cluster, format!("https://127.0.0.1:{port}"))
}

fn demanding(office: &Office) -> Vec<String> {
    office.issue("client", "alice", Use::Client);
    vec!["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), office.file("ca.pem")]
}

fn pem(office: &Office, file: &str) -> Vec<u8> {
    std::fs::read(office.path(file)).unwrap()
}

fn trusting(office: &Office) -> Options {
    Client::options().patience(Duration::from_secs(5)).authority(pem(office, "ca.pem"))
}

async fn lock_once(client: &Client, name: &str) -> Result<(), Error> {
    within("the lock", client.lock(name).acquire()).await?.release().await
}

/// Whoever runs nodes with TLS must be able to hold locks there, and see at once whose authority is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_held_over_tls_and_only_where_the_node_is_who_it_should_be() {
    let (office, others) = (Office::new("Ours"), Office::new("Others"));
    let (_cluster, url) = secure_node(&office, &[]);
    let client = trusting(&office).connect([&url]).await.unwrap();
    lock_once(&client, "l").await.unwrap();
    client.close().await;

    let stranger = trusting(&others).connect([&url]).await.unwrap_err();
    let Error::Failed(Failure::Unreachable(why)) = &stranger else { panic!("{stranger:?}") };
    assert!(why.contains(&url) && why.contains("certificate"), "{why}");
    let elsewhere = trusting(&office).server_name("elsewhere.example").connect([&url]).await.unwrap_err();
    assert!(elsewhere.to_string().contains("certificate"), "{elsewhere}");
    // Without an authority nobody could be trusted, and without TLS nothing of what was said would be true.
    let unsaid = Client::connect([&url]).await.unwrap_err();
    assert!(matches!(&unsaid, Error::Failed(Failure::BadOption(why)) if why.contains("authority")), "{unsaid}");
    let plain = url.replace("https", "http");
    let plain_text = trusting(&office).connect([&plain]).await.unwrap_err();
    assert!(matches!(&plain_text, Error::Failed(Failure::BadOption(_))), "{plain_text}");
}

/// Where nodes demand certificates, one opens the door, and its name is the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_lets_its_owner_in_and_nobody_without_one() {
    let office = Office::new("Ours");
    let (mut cluster, ports) = Cluster::start_native(1);
    let node = &mut cluster.nodes[0];
    add_user(&node.client_url(), "alice", "a", "b").await;
    guard(&node.client_url()).await;
    node.terminate();
    office.issue("server", "server", Use::Server);
    node.add_arguments(&office.shown("", "server"));
    node.add_arguments(&demanding(&office));
    node.start();
    node.wait_until_ready();
    let url = format!("https://127.0.0.1:{}", ports[0]);

    let alice = trusting(&office).identity(pem(&office, "client.pem"), pem(&office, "client-key.pem"));
    let alice = alice.connect([&url]).await.unwrap();
    lock_once(&alice, "a-lock").await.unwrap();
    assert_eq!(lock_once(&alice, "b-lock").await.unwrap_err().code(), Some(Code::Denied));

    // A node says that a certificate is missing only after the client believes to be connected; the end of the
    // connection may come first, and then that is all there is to tell.
    let error = match trusting(&office).patience(Duration::from_secs(2)).connect([&url]).await {
        Ok(nobody) => lock_once(&nobody, "a-lock").await.unwrap_err(),
        Err(error) => error,
    };
    let Error::Failed(Failure::Unreachable(why)) = &error else { panic!("{error:?}") };
    assert!(why.to_lowercase().contains("certificate") || why.contains("closed"), "{why}");
}

fn with_users() -> (Cluster, u16) {
    let (cluster, ports) = Cluster::start_native(1);
    (cluster, ports[0])
}

async fn as_user(port: u16, name: &str, password: &str) -> Client {
    Client::options().user(name, password).connect([format!("127.0.0.1:{port}")]).await.unwrap()
}

fn is_denied(error: &Error) -> bool {
    error.code() == Some(Code::Denied)
}

/// A1: a wrong password must be said to be one at once, and not look like a cluster that does not answer; who may not
/// have a name is told that, and not that the password is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_with_the_right_password_hold_what_they_may_and_others_are_told_why_not() {
    let (cluster, port) = with_users();
    let url = cluster.nodes[0].client_url();
    add_user(&url, "ann", "a", "b").await;
    guard(&url).await;

    let ann = as_user(port, "ann", "secret").await;
    let guard = within("the lock", ann.lock("a-lock").acquire()).await.unwrap();
    assert!(guard.token().get() > 0);
    for forbidden in [
        ann.lock("b-lock").acquire().await.map(drop).unwrap_err(),
        ann.barrier("b-barrier", 2).enter().await.unwrap_err(),
        ann.election("b-election").observe().await.map(drop).unwrap_err(),
        ann.counter("b-counter").get().await.map(drop).unwrap_err(),
        ann.sessions().await.map(drop).unwrap_err(),
    ] {
        assert!(is_denied(&forbidden) && forbidden.to_string().contains("may not"), "{forbidden:?}");
    }
    guard.check().unwrap();
    guard.release().await.unwrap();

    let wrong = as_user(port, "ann", "guessed").await;
    let nobody = Client::connect([format!("127.0.0.1:{port}")]).await.unwrap();
    for (client, words) in [(&wrong, "name and password"), (&nobody, "needs a user")] {
        for refused in [
            within("a refusal", client.lock("a-lock").acquire()).await.map(drop).unwrap_err(),
            within("a refusal", client.barrier("a-barrier", 2).enter()).await.unwrap_err(),
            within("a refusal", client.counter("a-counter").get()).await.map(drop).unwrap_err(),
        ] {
            assert!(is_denied(&refused) && refused.to_string().contains(words), "{refused:?}");
        }
    }
    // What was refused once is tried again when it is asked for again.
    set_password(&url, "ann", "guessed").await;
    lock_once(&wrong, "a-lock").await.unwrap();
}

/// A1: a client that counts from one opens its session with a number that somebody else has. It must learn nothing of
/// theirs, and whoever had the number must still be able to ask again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_with_anothers_number_is_refused_and_a_retry_gets_its_own_session() {
    let (cluster, port) = with_users();
    let url = cluster.nodes[0].client_url();
    add_user(&url, "ann", "a", "b").await;
    add_user(&url, "bob", "b", "c").await;
    guard(&url).await;
    let mut calls = support::native::calls(port).await;
    let mut open = async |user: &str| {
        let mut request = tonic::Request::new(v1::OpenRequest { ttl_ms: 60_000, client: 1 });
        let shown = base64::engine::general_purpose::STANDARD.encode(format!("{user}:secret"));
        request.metadata_mut().insert("authorization", format!("Basic {shown}").parse().unwrap());
        within("an answer", calls.open(request)).await.map(|opened| opened.into_inner().session)
    };
    let ann = open("ann").await.unwrap();
    let refused = open("bob").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
    assert!(!format!("{refused:?}").contains(&ann.to_string()), "{refused:?}");
    assert_eq!(open("ann").await.unwrap(), ann);
}

/// Changes a user's password to one, as root.
async fn set_password(url: &str, name: &str, password: &str) {
    let mut auth = authority(url).await;
    let root = pb::AuthenticateRequest { name: "root".into(), password: "secret".into() };
    let token = auth.authenticate(root).await.unwrap().into_inner().token;
    let change =
        pb::AuthUserChangePasswordRequest { name: name.into(), password: password.into(), ..Default::default() };
    let mut change = tonic::Request::new(change);
    change.metadata_mut().insert("token", token.parse().unwrap());
    auth.user_change_password(change).await.unwrap();
}

/// What a stream has shown ends when its user is changed. Whoever still has the right password must not notice, and
/// whoever has not must be told, not left to wait in a queue for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_shown_again_when_the_user_was_changed_and_refused_once_it_is_wrong() {
    let (cluster, port) = with_users();
    let url = cluster.nodes[0].client_url();
    add_user(&url, "ann", "a", "b").await;
    guard(&url).await;
    let ann = as_user(port, "ann", "secret").await;
    let held = within("the lock", ann.lock("a-lock").acquire()).await.unwrap();
    set_password(&url, "ann", "secret").await;
    within("another lock", ann.lock("a-other").acquire()).await.unwrap().release().await.unwrap();
    held.check().unwrap();
    held.confirm().await.unwrap();

    set_password(&url, "ann", "changed").await;
    let refused = within("a refusal", ann.lock("a-other").acquire()).await.map(drop).unwrap_err();
    assert!(is_denied(&refused), "{refused:?}");
    let lost = within("the end of what is held", held.lost()).await;
    assert!(lost.is_lost(), "{lost:?}");
}

/// A token is shown instead of a password by programs that must not know it. It ends when its time is over, and the
/// client says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_counts_for_as_long_as_it_lives_and_then_says_so() {
    let office = Office::new("Signing");
    office.issue("sign", "signer", Use::Server);
    let (public, private) = (office.file("sign.pem"), office.file("sign-key.pem"));
    let mut cluster = Cluster::prepare(1, &[]);
    let port = cluster.nodes[0].serve_native();
    let kind = format!("jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl=3s");
    cluster.nodes[0].add_arguments(&["--auth-token".to_owned(), kind]);
    cluster.start_all();
    let url = cluster.nodes[0].client_url();
    add_user(&url, "ann", "a", "b").await;
    guard(&url).await;
    let come_in = pb::AuthenticateRequest { name: "ann".into(), password: "secret".into() };
    let token = authority(&url).await.authenticate(come_in).await.unwrap().into_inner().token;
    let client = Client::options().token(&token).connect([format!("127.0.0.1:{port}")]).await.unwrap();
    lock_once(&client, "a-lock").await.unwrap();
    let refused = support::until::until("the token to end", async || lock_once(&client, "a-lock").await.err()).await;
    assert!(is_denied(&refused) && refused.to_string().contains("come in again"), "{refused:?}");
}

/// A command that holds or lists something, at this node; these words about the connection come first.
fn command(url: &str, words: &[&str], connecting: &[&str]) -> Output {
    let mut command = tidelock();
    command.args(&words[..1]).args(["--native", url]).args(connecting).args(&words[1..]);
    command.stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The command ends with this code, and says these words.
fn ends_with(output: &Output, code: i32, words: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(words), "{}", said(output));
}

/// One of each command that talks to the native port.
const EACH: [&[&str]; 5] = [
    &["lock", "a-lock", "--", "true"],
    &["elect", "a-election", "--", "true"],
    &["barrier", "a-barrier", "--parties", "1"],
    &["locks"],
    &["sessions"],
];

/// Scripts that run at nodes with TLS take the same flags as all other commands, and fail by a code when the node is not
/// whom they trust.
#[test]
fn every_command_that_holds_something_goes_over_tls() {
    let (office, others) = (Office::new("Ours"), Office::new("Others"));
    let (_cluster, url) = secure_node(&office, &demanding(&office));
    let (ca, wrong_ca) = (office.file("ca.pem"), others.file("ca.pem"));
    let (cert, key) = (office.file("client.pem"), office.file("client-key.pem"));
    let shown = ["--cert", &cert, "--key", &key];
    let bare = url.trim_start_matches("https://");
    for words in EACH {
        ends_with(&command(bare, words, &[&["--cacert", &ca][..], &shown].concat()), 0, "");
        let anybody = [&["--insecure-skip-tls-verify"][..], &shown].concat();
        ends_with(&command(&url, words, &anybody), 0, "");
        ends_with(&command(&url, words, &[&["--cacert", &wrong_ca][..], &shown].concat()), 69, "certificate");
    }
    let lock = EACH[0];
    ends_with(&command(&url, lock, &shown), 2, "--cacert");
    ends_with(&command(&url, lock, &["--cacert", &ca, "--cert", &cert]), 2, "go together");
    ends_with(&command(&format!("http://{bare}"), lock, &["--cacert", &ca]), 2, "plain text");
    let nothing_shown = ["--cacert", &ca, "--timeout-ms", "2000"];
    ends_with(&command(&url, lock, &nothing_shown), 69, "certificate");
}

/// The same where there are users: the code tells a script that it is not let in from that nobody is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_that_holds_something_takes_a_user() {
    let (cluster, port) = with_users();
    let url = cluster.nodes[0].client_url();
    add_user(&url, "ann", "a", "b").await;
    guard(&url).await;
    let native = format!("127.0.0.1:{port}");
    for words in EACH {
        // Listing everybody's is for root.
        let user = if words.len() == 1 { "root:secret" } else { "ann:secret" };
        ends_with(&command(&native, words, &["--user", user]), 0, "");
        ends_with(&command(&native, words, &["--user", "ann:wrong"]), 77, "name and password");
        ends_with(&command(&native, words, &[]), 77, "--user");
    }
    ends_with(&command(&native, &["lock", "b-lock", "--", "true"], &["--user", "ann:secret"]), 77, "may not");
    ends_with(&command(&native, &["locks"], &["--user", "ann:secret"]), 77, "may not");
    ends_with(&command(&native, EACH[0], &["--user", "ann"]), 2, "password");
}
