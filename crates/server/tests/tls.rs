//! TLS, end to end: real nodes, real files, our own commands and etcdctl.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use support::tls::{Office, ended};
use support::users::{add_user, guard};
use support::{Cluster, Process, http, tidelock, wait_for, within};
use tidelock_tls::{
    ClientSettings, Connector, Identity, Names, Protocol, Refusal, SecureStream, ServerTrust, Trust, Use, serial,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The settings of a node that demands certificates of `office`.
fn demands(office: &Office) -> Vec<String> {
    office.issue("server", "server", Use::Server);
    office.issue("client", "alice", Use::Client);
    let mut arguments = office.shown("", "server");
    arguments.extend(["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), office.file("ca.pem")]);
    arguments
}

/// A node that demands certificates of `office`, not started.
fn demanding(office: &Office) -> Cluster {
    let mut cluster = Cluster::prepare(1, &[]);
    cluster.nodes[0].add_arguments(&demands(office));
    cluster
}

/// A command of ours at a node with TLS.
fn run(node: &Process, command: &[&str], connecting: &[String]) -> Output {
    tidelock()
        .args(command)
        .args(["--endpoints", &node.secure_url()])
        .args(connecting)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn succeeds(node: &Process, command: &[&str], connecting: &[String]) -> String {
    let output = run(node, command, connecting);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Why a command fails.
fn fails(node: &Process, command: &[&str], connecting: &[String]) -> String {
    let output = run(node, command, connecting);
    assert!(!output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Waits for a line in a node's log.
fn logs(node: &Process, words: &str) {
    wait_for(&format!("{words:?} in the log of {}", node.name), || node.log().contains(words).then_some(()));
}

fn etcdctl(arguments: &[&str], connecting: &[String]) -> Option<Output> {
    let output = Command::new("etcdctl").env("ETCDCTL_API", "3").args(arguments).args(connecting).output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("etcdctl is not installed; this part is skipped");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn connector(office: &Office, file: Option<&str>, inside: &'static str) -> Connector {
    let identity = file.map(|file| Identity::Files {
        certificate: office.path(&format!("{file}.pem")),
        key: office.path(&format!("{file}-key.pem")),
    });
    let trust = Trust { authorities: office.path("ca.pem"), revoked: None };
    Connector::open(&ClientSettings {
        identity,
        servers: ServerTrust::Certified(trust),
        names: Names::Any,
        inside: vec![inside],
        protocol: Protocol::default(),
    })
    .unwrap()
}

async fn dial(node: &Process, connector: &Connector) -> Result<SecureStream<TcpStream>, Refusal> {
    let tcp = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, node.client_port))).await.unwrap();
    within("a TLS handshake", connector.connect("127.0.0.1", tcp)).await
}

/// One request and its answer on a connection that stays open.
async fn ask(stream: &mut SecureStream<TcpStream>, method: &str, path: &str, body: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    within("an answer", async {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        loop {
            let count = stream.read_buf(&mut answer).await.unwrap();
            assert!(count > 0, "closed after {answer:?}");
            let text = String::from_utf8_lossy(&answer).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.is_some_and(|length| length.parse() == Ok(body.len())) {
                return text;
            }
        }
    })
    .await
}

/// Whoever the authority vouches for needs no password. The gateway cannot be told whose certificate it was, as in
/// etcd, so there the name counts for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_in_a_certificate_is_a_user_but_not_at_the_gateway() {
    let office = Office::new("Ours");
    office.issue("stranger", "bob", Use::Client);
    let mut cluster = Cluster::start(1);
    let node = &mut cluster.nodes[0];
    add_user(&node.client_url(), "alice", "/a/", "/a0").await;
    guard(&node.client_url()).await;
    node.terminate();
    node.add_arguments(&demands(&office));
    node.start();
    node.wait_until_ready();

    let alice = office.connecting("client");
    succeeds(node, &["put", "/a/1", "hers"], &alice);
    assert_eq!(succeeds(node, &["get", "/a/1", "--value-only"], &alice), "hers\n");
    let refused = fails(node, &["put", "/b", "not hers"], &alice);
    assert!(refused.contains("permission denied"), "{refused}");
    let refused = fails(node, &["get", "/a/1"], &office.connecting("stranger"));
    assert!(refused.contains("permission denied"), "{refused}");

    let mut gateway = dial(node, &connector(&office, Some("client"), "http/1.1")).await.unwrap();
    let told = ask(&mut gateway, "POST", "/v3/kv/range", r#"{"key":"L2EvMQ=="}"#).await;
    assert!(told.contains("user name is empty"), "{told}");
}

/// What `tidelock certs init` prints is what somebody types next: certificates, a node with TLS, a client.
#[test]
fn the_certificates_that_init_makes_work_with_our_commands_and_with_etcdctl() {
    let dir = tempfile::tempdir().unwrap();
    let init = || {
        tidelock()
            .args(["certs", "init", "--dir", "certs", "--client", "alice"])
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    let made = init();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(text.contains("--cert-file certs/server.pem") && text.contains("--cacert certs/ca.pem"), "{text}");
    let certs = dir.path().join("certs");
    for name in ["ca-key.pem", "server-key.pem", "peer-key.pem", "client-root-key.pem", "client-alice-key.pem"] {
        let mode = std::fs::metadata(certs.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let key = std::fs::read(certs.join("ca-key.pem")).unwrap();
    let again = init();
    assert_eq!(again.status.code(), Some(2), "a key that is overwritten is gone");
    assert!(String::from_utf8_lossy(&again.stderr).contains("certs/ca-key.pem"), "what is in the way is named");
    assert_eq!(std::fs::read(certs.join("ca-key.pem")).unwrap(), key);

    let file = |name: &str| certs.join(name).to_str().unwrap().to_owned();
    let mut cluster = Cluster::prepare(1, &["--client-cert-auth"]);
    let words = |pairs: &[(&str, &str)]| -> Vec<String> {
        pairs.iter().flat_map(|(flag, name)| [(*flag).to_owned(), file(name)]).collect()
    };
    cluster.nodes[0].add_arguments(&words(&[
        ("--cert-file", "server.pem"),
        ("--key-file", "server-key.pem"),
        ("--trusted-ca-file", "ca.pem"),
        ("--peer-cert-file", "peer.pem"),
        ("--peer-key-file", "peer-key.pem"),
        ("--peer-trusted-ca-file", "ca.pem"),
    ]));
    cluster.start_all();
    let node = &cluster.nodes[0];
    let connecting = words(&[("--cacert", "ca.pem"), ("--cert", "client-root.pem"), ("--key", "client-root-key.pem")]);
    succeeds(node, &["put", "greeting", "hello"], &connecting);
    assert_eq!(succeeds(node, &["get", "greeting", "--value-only"], &connecting), "hello\n");
    let ready = format!("ready to serve client requests on {}", node.secure_url());
    support::wait_for("the line that says so", || node.log().contains(&ready).then_some(()));

    if let Some(output) = etcdctl(&["--endpoints", &node.secure_url(), "get", "greeting"], &connecting) {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "greeting\nhello\n", "{output:?}");
        let output = etcdctl(&["--endpoints", &node.secure_url(), "endpoint", "status"], &connecting).unwrap();
        assert!(output.status.success(), "{output:?}");
        let output = etcdctl(&["--endpoints", &node.secure_url(), "member", "list"], &connecting).unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains(&node.secure_url()), "{output:?}");
    }
}

/// With `client-cert-auth` a certificate is the key to the data: nobody else gets in, and the log says why.
#[test]
fn clients_without_a_good_certificate_are_refused_and_the_log_says_why() {
    let (office, other) = (Office::new("Ours"), Office::new("Theirs"));
    let mut cluster = demanding(&office);
    let stolen = office.issue("stolen", "alice", Use::Client);
    office.issue_for("late", "alice", Use::Client, ended());
    other.issue("foreign", "alice", Use::Client);
    let list = office.authority.revoke(&[&stolen.serial], tidelock_tls::Validity::days(1)).unwrap();
    office.write("crl.pem", &list);
    cluster.nodes[0].add_arguments(&["--client-crl-file".to_owned(), office.file("crl.pem")]);
    cluster.start_all();
    let node = &cluster.nodes[0];
    succeeds(node, &["put", "k", "v"], &office.connecting("client"));

    let trusting = ["--cacert".to_owned(), office.file("ca.pem")];
    let mut foreign = other.connecting("foreign");
    foreign[1] = office.file("ca.pem");
    for (connecting, told, logged) in [
        (&trusting[..], "demands a certificate", "showed no certificate"),
        (&foreign, "does not trust the authority", "authority that is not trusted"),
        (&office.connecting("late"), "has expired", "has expired"),
        (&office.connecting("stolen"), "revoked", "was revoked"),
    ] {
        // Refusals are logged once a second at most, so this one may have to be repeated to be seen.
        wait_for(&format!("{logged:?} in the log"), || {
            let error = fails(node, &["get", "k"], connecting);
            assert!(error.contains(told), "{told}: {error}");
            node.log().contains(logged).then_some(())
        });
    }
    // The other direction: a client that trusts somebody else does not talk to this node.
    let error = fails(node, &["get", "k"], &["--cacert".to_owned(), other.file("ca.pem")]);
    assert!(error.contains("authority that is not trusted"), "{error}");
    let error = fails(node, &["get", "k"], &["--insecure-skip-tls-verify".to_owned()]);
    assert!(error.contains("demands a certificate"), "{error}");
    succeeds(node, &["get", "k"], &office.connecting("client"));
}

/// The gateway shares the port; and whoever takes the wrong protocol is sent away instead of kept waiting.
#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_speaks_tls_too_and_the_wrong_protocol_ends_at_once() {
    let office = Office::new("Ours");
    office.issue("server", "server", Use::Server);
    let mut cluster = Cluster::prepare(1, &[]);
    cluster.nodes[0].add_arguments(&office.shown("", "server"));
    cluster.start_all();
    let node = &cluster.nodes[0];
    let mut stream = dial(node, &connector(&office, None, "http/1.1")).await.unwrap();
    let answer = ask(&mut stream, "POST", "/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(ask(&mut stream, "GET", "/health", "").await.contains("\"health\":\"true\""));

    for plain in
        [&b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"]
    {
        let mut tcp = TcpStream::connect(("127.0.0.1", node.client_port)).await.unwrap();
        tcp.write_all(plain).await.unwrap();
        let mut rest = Vec::new();
        within("a clean end", tcp.read_to_end(&mut rest)).await.unwrap();
        assert!(!rest.starts_with(b"HTTP/"), "{rest:?}");
    }
    logs(node, "is not TLS");

    let plain = Cluster::start(1);
    let why = dial(&plain.nodes[0], &connector(&office, None, "h2")).await.unwrap_err().to_string();
    assert!(why.contains("not TLS") || why.contains("closed"), "{why}");
    let error = fails(&plain.nodes[0], &["get", "k"], &["--cacert".to_owned(), office.file("ca.pem")]);
    assert!(error.contains("no node can be reached"), "{error}");
}

/// Certificates are renewed every few weeks and nodes must not be restarted for it.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_are_shown_to_new_connections_while_old_ones_go_on() {
    let office = Office::new("Ours");
    let mut cluster = demanding(&office);
    let first = office.issue("server", "server", Use::Server);
    cluster.start_all();
    let node = &cluster.nodes[0];
    let connector = connector(&office, Some("client"), "http/1.1");
    let mut old = dial(node, &connector).await.unwrap();
    assert_eq!(serial(&old.certificates()[0]).unwrap(), first.serial);
    ask(&mut old, "GET", "/health", "").await;

    // Rubbish in between changes nothing.
    office.write("server.pem", "rubbish");
    let shown = async || serial(&dial(node, &connector).await.unwrap().certificates()[0]).unwrap();
    support::until::until("a warning", async || {
        assert_eq!(shown().await, first.serial);
        node.log().contains("the old ones go on").then_some(())
    })
    .await;

    let second = office.issue("server", "server", Use::Server);
    support::until::until("the new certificate", async || (shown().await == second.serial).then_some(())).await;
    assert!(ask(&mut old, "GET", "/health", "").await.starts_with("HTTP/1.1 200"), "open connections go on");
    succeeds(node, &["put", "k", "v"], &office.connecting("client"));
}

/// What the three of a cluster need to talk to each other within TLS.
fn peering(office: &Office, file: &str) -> Vec<String> {
    let mut arguments = office.shown("peer-", file);
    arguments.extend(["--peer-trusted-ca-file".to_owned(), office.file("ca.pem")]);
    arguments
}

/// Members trust each other's bytes with everything. One without a certificate of the cluster's authority must not
/// get a word in, whatever it knows of the cluster.
#[test]
fn members_work_within_tls_and_strangers_cannot_join() {
    let (office, other) = (Office::new("Ours"), Office::new("Theirs"));
    office.issue("peer", "node", Use::Peer);
    other.issue("peer", "node", Use::Peer);
    let mut cluster = Cluster::prepare(3, &["--peer-cert-allowed-cn", "node"]);
    cluster.nodes.iter_mut().for_each(|node| node.add_arguments(&peering(&office, "peer")));
    cluster.start_all();
    cluster.run(&["put", "k", "v"]);
    let (_, members) = http(cluster.nodes[0].client_port, "POST", "/v3/cluster/member/list", "{}").unwrap();
    assert_eq!(members.matches(r#""peerURLs":["https://"#).count(), 3, "{members}");
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    wait_for("a write without the old leader", || {
        let survivor = cluster.nodes.iter().find(|node| node.is_running()).unwrap();
        let output = tidelock().args(["put", "k", "w", "--endpoints", &survivor.client_url()]).output().unwrap();
        output.status.success().then_some(())
    });
    cluster.nodes[leader].start();
    cluster.nodes[leader].wait_until_ready();
    assert_eq!(cluster.run(&["get", "k", "--value-only"]), "w\n");

    let stranger = cluster.add_joining("d");
    stranger.add_arguments(&peering(&other, "peer"));
    stranger.start();
    wait_for("a member to refuse the stranger", || {
        let refused = |node: &Process| node.log().contains("authority that is not trusted");
        cluster.nodes[..3].iter().any(refused).then_some(())
    });
    assert!(cluster.nodes[3].admin_get("/readyz").is_none(), "it must not be part of the cluster");
    // Nor does it trust the others.
    logs(&cluster.nodes[3], "authority that is not trusted");
    cluster.nodes[3].kill();
    let others = cluster.nodes[0].client_url();
    assert_eq!(cluster.run(&["get", "k", "--value-only", "--endpoints", &others]), "w\n", "the others go on");
}

/// A member that still speaks plain text is refused with the reason, in its log and in the others'.
#[test]
fn a_member_without_tls_is_refused_with_the_reason() {
    let office = Office::new("Ours");
    office.issue("peer", "node", Use::Peer);
    let mut cluster = Cluster::prepare(1, &[]);
    cluster.nodes[0].add_arguments(&peering(&office, "peer"));
    cluster.start_all();
    cluster.add_joining("b").start();
    logs(&cluster.nodes[0], "is not TLS");
    logs(&cluster.nodes[1], "does not speak the Tidelock peer protocol");
    assert!(cluster.nodes[1].admin_get("/readyz").is_none());
}

/// Encrypted without preparation, as etcd's `auto-tls`; nobody can tell who is there, and the log says so.
#[test]
fn automatic_certificates_encrypt_and_are_warned_about() {
    let mut cluster = Cluster::prepare(2, &["--auto-tls", "--peer-auto-tls"]);
    cluster.start_all();
    let node = &cluster.nodes[0];
    succeeds(node, &["put", "k", "v"], &["--insecure-skip-tls-verify".to_owned()]);
    let log = node.log();
    assert!(log.contains("--auto-tls is set") && log.contains("--peer-auto-tls is set"), "{log}");
    let error = fails(node, &["get", "k"], &[]);
    assert!(error.contains("--cacert"), "{error}");
}

/// Half of a pair, an authority without a certificate, files that cannot be used: all of it is said before
/// anything starts, with the file's name and what to do.
#[test]
fn settings_that_cannot_work_are_refused_at_start() {
    let office = Office::new("Ours");
    office.issue("server", "server", Use::Server);
    office.issue("other", "server", Use::Server);
    let (certificate, key, authority) =
        (office.file("server.pem"), office.file("server-key.pem"), office.file("ca.pem"));
    let (other_key, gone) = (office.file("other-key.pem"), office.file("gone.pem"));
    let pair = ["--cert-file", &certificate, "--key-file", &key];
    let with = |more: &[&str]| [&pair[..], more].concat().iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    let only = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    for (arguments, expected) in [
        (only(&["--cert-file", &certificate]), ["server.pem is of no use without its key", "add --key-file"]),
        (only(&["--key-file", &key]), ["server-key.pem is of no use", "add --cert-file"]),
        (
            only(&["--cert-file", &certificate, "--key-file", &other_key]),
            ["other-key.pem is not the key of", "--key-file"],
        ),
        (only(&["--cert-file", &gone, "--key-file", &key]), ["gone.pem cannot be read", "--cert-file"]),
        (with(&["--client-cert-auth"]), ["--client-cert-auth", "add --trusted-ca-file"]),
        (with(&["--client-crl-file", &gone]), ["gone.pem revokes", "add --trusted-ca-file"]),
        (with(&["--tls-min-version", "TLS1.0"]), ["TLS1.0", "give TLS1.2 or TLS1.3"]),
        (with(&["--cipher-suites", "MY_SUITE"]), ["MY_SUITE", "choose among"]),
        (only(&["--trusted-ca-file", &authority]), ["has no certificate", "add --cert-file"]),
        (
            only(&["--peer-cert-file", &certificate, "--peer-key-file", &key]),
            ["--peer-cert-file", "add --peer-trusted-ca-file"],
        ),
        (only(&["--client-listen", "https://127.0.0.1:0"]), ["asks for TLS", "add --cert-file"]),
        (only(&["--advertise-client-urls", "https://127.0.0.1:1"]), ["promises TLS", "http://"]),
        (with(&["--advertise-client-urls", "http://127.0.0.1:1"]), ["promises plain text", "https://"]),
        (only(&["--client-listen", "0.0.0.0:0", "--advertise-client-urls", "http://h:1"]), ["TLS", "--cert-file"]),
    ] {
        let output = tidelock().args(["serve", "--check"]).args(&arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        for words in expected {
            assert!(error.contains(words), "{arguments:?}: {words:?} is missing from:\n{error}");
        }
    }
    // With TLS, an address that others can reach needs no --insecure; one without still does.
    let open = ["--client-listen", "0.0.0.0:0", "--advertise-client-urls", "https://10.0.0.1:2379"];
    let output = tidelock().args(["serve", "--check"]).args(with(&open)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mixed = ["--client-listen", "http://0.0.0.0:0", "--advertise-client-urls", "http://10.0.0.1:2379"];
    let output = tidelock().args(["serve", "--check"]).args(with(&mixed)).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("not protected by TLS"));
}
