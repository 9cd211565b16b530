//! Who ZooKeeper's clients are at real nodes: by certificates within TLS, by SASL; and that nobody else is.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use as_etcd::Member;
use md5::{Digest as _, Md5};
use support::tls::{Office, ended};
use support::zookeeper::Client;
use support::{Cluster, free_ports, tidelock, wait_for};
use tidelock_tls::{ClientSettings, Connector, Identity, Names, Protocol, ServerTrust, Trust, Use, Validity};

const NO_AUTH: i32 = -102;
const AUTH_FAILED: i32 = -115;
const REQUIRES_SASL: i32 = -124;
const JAAS: &str = "Server {\n    org.apache.zookeeper.server.auth.DigestLoginModule required\n    \
                    user_super=\"super_secret\"\n    user_ada=\"pass word\";\n};\n";

/// Lets clients that know nothing of TLS speak it: what they send to a local port goes on within TLS.
struct Tunnel {
    port: u16,
    _runtime: tokio::runtime::Runtime,
}

impl Tunnel {
    /// To `port`, showing the certificate `file` if there is one.
    fn new(office: &Office, file: Option<&str>, port: u16) -> Tunnel {
        let trust = Trust { authorities: office.path("ca.pem"), revoked: None };
        let identity = file.map(|file| Identity::Files {
            certificate: office.path(&format!("{file}.pem")),
            key: office.path(&format!("{file}-key.pem")),
        });
        let (servers, names, protocol) = (ServerTrust::Certified(trust), Names::Any, Protocol::default());
        let connector = Arc::new(
            Connector::open(&ClientSettings { identity, servers, names, inside: Vec::new(), protocol }).unwrap(),
        );
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let near = listener.local_addr().unwrap().port();
        runtime.spawn(async move {
            while let Ok((mut plain, _)) = listener.accept().await {
                let connector = Arc::clone(&connector);
                tokio::spawn(async move {
                    let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    if let Ok(mut secure) = connector.connect("localhost", tcp).await {
                        let _ = tokio::io::copy_bidirectional(&mut plain, &mut secure).await;
                    }
                });
            }
        });
        Tunnel { port: near, _runtime: runtime }
    }
}

/// Ports that none of the nodes has: those that were chosen for them are not held yet.
fn more_ports(cluster: &Cluster, count: usize) -> Vec<u16> {
    let taken: Vec<u16> =
        cluster.nodes.iter().flat_map(|node| [node.client_port, node.peer_port, node.admin_port]).collect();
    wait_for("free ports", || Some(free_ports(count)).filter(|ports| !ports.iter().any(|port| taken.contains(port))))
}

/// A node with a plain port and one with TLS, and an authority whose certificates it takes.
struct Secured {
    cluster: Cluster,
    office: Office,
    plain: u16,
    secure: u16,
}

impl Secured {
    fn start(client_auth: &str, more: &[String]) -> Secured {
        let office = Office::new("Test CA");
        office.issue("server", "server", Use::Server);
        office.issue("ada", "ada", Use::Client);
        office.issue("bob", "bob", Use::Client);
        let mut cluster = Cluster::prepare(1, &[]);
        let ports = more_ports(&cluster, 2);
        let (plain, secure) = (ports[0], ports[1]);
        let mut arguments = office.shown("zookeeper-", "server");
        arguments.extend(["--zookeeper-listen".to_owned(), format!("127.0.0.1:{plain}")]);
        arguments.extend(["--zookeeper-secure-listen".to_owned(), format!("127.0.0.1:{secure}")]);
        arguments.extend(["--zookeeper-trusted-ca-file".to_owned(), office.file("ca.pem")]);
        arguments.extend(["--zookeeper-client-auth".to_owned(), client_auth.to_owned()]);
        arguments.extend_from_slice(more);
        cluster.nodes[0].add_arguments(&arguments);
        cluster.start_all();
        Secured { cluster, office, plain, secure }
    }

    fn tunnel(&self, file: Option<&str>) -> Tunnel {
        Tunnel::new(&self.office, file, self.secure)
    }
}

fn session(port: u16) -> std::io::Result<Client> {
    Client::open(port, 4000, 0, &[0; 16], 0)
}

/// Who the server takes a client for, without its address.
fn who_am_i(client: &mut Client) -> Vec<String> {
    let xid = client.ask(107, |_| {});
    let mut fields = client.answer(xid).unwrap();
    let mut known: Vec<String> = (0..fields.int()).map(|_| format!("{}:{}", fields.text(), fields.text())).collect();
    known.retain(|who| !who.starts_with("ip:"));
    known.sort();
    known
}

fn create_for(client: &mut Client, path: &str, scheme: &str, id: &str) -> Result<(), i32> {
    let xid = client.ask(1, |packet| {
        packet.text(path).buffer(Some(b"kept")).int(1).int(31).text(scheme).text(id).int(0);
    });
    client.answer(xid).map(drop)
}

/// The holder of a certificate is its subject, everywhere and to itself: what it keeps for itself is kept from others,
/// with certificates and without. That is what the scheme x509 is for.
#[test]
fn a_certificate_says_who_a_client_is() {
    let node = Secured::start("need", &[]);
    let (to_ada, to_bob) = (node.tunnel(Some("ada")), node.tunnel(Some("bob")));
    let (mut ada, mut bob, mut plain) =
        (Client::connect(to_ada.port), Client::connect(to_bob.port), Client::connect(node.plain));
    assert_eq!(who_am_i(&mut ada), ["x509:CN=ada,O=Tidelock"]);
    assert_eq!((who_am_i(&mut bob).len(), who_am_i(&mut plain).len()), (1, 0));
    create_for(&mut ada, "/hers", "x509", "CN=ada,O=Tidelock").unwrap();
    create_for(&mut ada, "/too", "auth", "").unwrap();
    for path in ["/hers", "/too"] {
        assert_eq!(ada.get(path, false).unwrap().0, b"kept");
        assert_eq!(bob.get(path, false).unwrap_err(), NO_AUTH);
        assert_eq!(plain.get(path, false).unwrap_err(), NO_AUTH);
    }
    // Said a second time it changes nothing; said without a certificate it is a lie.
    let as_x509 = |client: &mut Client| {
        let xid = client.ask(100, |packet| {
            packet.int(0).text("x509").buffer(Some(b"CN=ada,O=Tidelock"));
        });
        client.answer(xid).map(drop)
    };
    assert_eq!(as_x509(&mut bob), Ok(()));
    assert_eq!(bob.get("/hers", false).unwrap_err(), NO_AUTH);
    assert_eq!(as_x509(&mut plain), Err(AUTH_FAILED));
    assert!(plain.is_closed_by_server());
    // A session that goes on at the plain port is still the session, and its client is nobody there.
    let mut again = ada.again(node.plain).unwrap();
    assert_eq!((again.session, again.get("/hers", false).unwrap_err()), (ada.session, NO_AUTH));
}

/// Certificates that nobody trusted has signed, that are over or taken for something else, or none at all.
#[test]
fn strangers_do_not_get_in_and_the_log_says_why() {
    let node = Secured::start("need", &[]);
    node.office.issue_for("late", "ada", Use::Client, ended());
    node.office.issue_for("misused", "ada", Use::Server, Validity::days(1));
    let stranger = Office::new("Test CA");
    let issued = stranger.issue("forged", "ada", Use::Client);
    node.office.write("forged.pem", &issued.certificate);
    node.office.write("forged-key.pem", &issued.key);
    for (file, why) in [
        (None, "showed no certificate"),
        (Some("late"), "has expired"),
        (Some("misused"), "extended key usage"),
        (Some("forged"), "is not trusted here"),
    ] {
        // One line a second is logged.
        wait_for(why, || {
            assert!(session(node.tunnel(file).port).is_err(), "{file:?} got in");
            node.cluster.nodes[0].log().contains(why).then_some(())
        });
    }
    let tunnel = node.tunnel(Some("ada"));
    Client::connect(tunnel.port).ping();
}

/// `ssl.clientAuth=want`: whoever shows nothing is nobody, but whoever shows something must be that.
#[test]
fn a_certificate_that_is_only_wanted_may_be_missing_but_not_bad() {
    let node = Secured::start("want", &[]);
    node.office.issue_for("late", "ada", Use::Client, ended());
    let (none, good, late) = (node.tunnel(None), node.tunnel(Some("ada")), node.tunnel(Some("late")));
    assert_eq!(who_am_i(&mut Client::connect(none.port)), Vec::<String>::new());
    assert_eq!(who_am_i(&mut Client::connect(good.port)), ["x509:CN=ada,O=Tidelock"]);
    assert!(session(late.port).is_err());
}

/// Whoever reaches the port can send anything, or nothing, and must neither keep others out nor be kept for long.
#[test]
fn what_is_no_handshake_is_closed_and_keeps_nobody_waiting() {
    let node = Secured::start("need", &[]);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", node.secure)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    // The greeting of a client without TLS, a word, garbage; and the beginning of a handshake.
    let greeting = [&[0, 0, 0, 45][..], &[0; 45]].concat();
    for plain in [&greeting[..], b"ruok", &[0x16, 3, 1, 0xff, 0xff, 1], &[0xff; 300]] {
        let mut stream = connect();
        stream.write_all(plain).unwrap();
        if plain.len() != 6 {
            let (mut answer, began) = (Vec::new(), Instant::now());
            let _ = stream.read_to_end(&mut answer);
            assert!(!answer.starts_with(b"imok") && answer.len() < 100, "{answer:?}");
            assert!(began.elapsed() < Duration::from_secs(9), "it is closed at once, not by a deadline");
        }
    }
    let hello = [0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3];
    let halves: Vec<TcpStream> = (0..=hello.len())
        .cycle()
        .take(40)
        .map(|length| {
            let mut stream = connect();
            stream.write_all(&hello[..length]).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    Client::connect(node.tunnel(Some("ada")).port).ping();
    assert!(began.elapsed() < Duration::from_secs(9), "others are not waited for: {:?}", began.elapsed());
    for mut half in halves {
        let mut rest = Vec::new();
        let read = half.read_to_end(&mut rest);
        assert!(!read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it is closed in the end");
    }
    assert!(node.cluster.nodes[0].log().contains("is not TLS"), "{}", node.cluster.nodes[0].log());
}

/// Renewed certificates must be shown without a restart, or every renewal costs sessions.
#[test]
fn a_renewed_certificate_is_shown_to_new_clients() {
    let node = Secured::start("need", &[]);
    let tunnel = node.tunnel(Some("ada"));
    let mut old = Client::connect(tunnel.port);
    // A new authority altogether: who trusts only that one is served as soon as its certificate is shown.
    let next = Office::new("Next CA");
    let issued = next.issue("server", "server", Use::Server);
    for file in ["ada.pem", "ada-key.pem"] {
        next.write(file, &std::fs::read_to_string(node.office.path(file)).unwrap());
    }
    node.office.write("server-key.pem", &issued.key);
    node.office.write("server.pem", &issued.certificate);
    let renewed = Tunnel::new(&next, Some("ada"), node.secure);
    wait_for("the new certificate", || session(renewed.port).ok()).ping();
    old.ping();
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    Md5::digest(bytes).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a client answers to a challenge, and what it then expects.
fn answer(challenge: &str, user: &str, password: &str) -> (String, String) {
    let nonce = challenge.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
    let secret = hash(format!("{user}:zk-sasl-md5:{password}").as_bytes());
    let a1 = hex(&hash(&[&secret[..], format!(":{nonce}:0a4f113b").as_bytes()].concat()));
    let uri = "zookeeper/zk-sasl-md5";
    let value = |a2: String| {
        let a2 = hex(&hash(a2.as_bytes()));
        hex(&hash(format!("{a1}:{nonce}:00000001:0a4f113b:auth:{a2}").as_bytes()))
    };
    let response = value(format!("AUTHENTICATE:{uri}"));
    let token = format!(
        "username=\"{user}\",realm=\"zk-sasl-md5\",nonce=\"{nonce}\",cnonce=\"0a4f113b\",nc=00000001,qop=auth,\
         digest-uri=\"{uri}\",response={response},charset=utf-8"
    );
    (token, format!("rspauth={}", value(format!(":{uri}"))))
}

fn sasl(client: &mut Client, token: &[u8]) -> Result<Option<String>, i32> {
    let xid = client.ask(102, |packet| {
        packet.buffer(Some(token));
    });
    client.answer(xid).map(|mut fields| fields.buffer().map(|token| String::from_utf8(token).unwrap()))
}

/// Asks for a challenge.
fn challenged(client: &mut Client) -> String {
    sasl(client, b"").unwrap().unwrap()
}

/// Comes in as a user.
fn come_in(client: &mut Client, user: &str, password: &str) -> Result<(), i32> {
    let challenge = challenged(client);
    let (token, expected) = answer(&challenge, user, password);
    sasl(client, token.as_bytes()).map(|proof| assert_eq!(proof, Some(expected), "the server knows the password, too"))
}

/// A cluster of one with users.
fn with_users(jaas: &str) -> (Cluster, u16, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jaas.conf");
    std::fs::write(&file, jaas).unwrap();
    let mut cluster = Cluster::prepare(1, &[]);
    let port = more_ports(&cluster, 1)[0];
    let file = file.to_str().unwrap().to_owned();
    let listen = ["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")];
    cluster.nodes[0].add_arguments(&[&listen[..], &["--zookeeper-jaas".to_owned(), file]].concat());
    cluster.start_all();
    (cluster, port, dir)
}

/// The right password makes a user, whose znodes are its own; `super` is any user of SASL, as ZooKeeper has it.
#[test]
fn a_user_comes_in_by_sasl_and_keeps_what_is_its_own() {
    let (_cluster, port, _dir) = with_users(JAAS);
    let (mut ada, mut nobody, mut root) = (Client::connect(port), Client::connect(port), Client::connect(port));
    come_in(&mut ada, "ada", "pass word").unwrap();
    assert_eq!(who_am_i(&mut ada), ["sasl:ada"]);
    create_for(&mut ada, "/hers", "sasl", "ada").unwrap();
    create_for(&mut ada, "/too", "auth", "").unwrap();
    come_in(&mut root, "super", "super_secret").unwrap();
    for path in ["/hers", "/too"] {
        assert_eq!(ada.get(path, false).unwrap().0, b"kept");
        assert_eq!(nobody.get(path, false).unwrap_err(), NO_AUTH);
        assert_eq!(root.get(path, false).unwrap().0, b"kept");
    }
}

/// Wrong, unknown, replayed, malformed: all are refused in ZooKeeper's words, and the connection is closed, so that
/// nothing is done for somebody who failed to be who it claims.
#[test]
fn whoever_fails_is_told_so_and_sent_away() {
    let (_cluster, port, _dir) = with_users(JAAS);
    let mut heard = Client::connect(port);
    let challenge = challenged(&mut heard);
    let (overheard, _) = answer(&challenge, "ada", "pass word");
    sasl(&mut heard, overheard.as_bytes()).unwrap();
    let long = vec![b'a'; 100_000];
    for token in [
        answer(&challenge, "ada", "pass word").0.as_bytes(),
        b"",
        b"username",
        b"username=\"ada",
        b"\x60\x82\x01\x00",
        &long,
        &[0; 5000],
    ] {
        let mut client = Client::connect(port);
        challenged(&mut client);
        assert_eq!(sasl(&mut client, token), Err(AUTH_FAILED));
        assert!(client.is_closed_by_server());
    }
    for (user, password) in [("ada", "guess"), ("eve", "pass word"), ("super", ""), ("", "")] {
        let mut client = Client::connect(port);
        assert_eq!(come_in(&mut client, user, password), Err(AUTH_FAILED), "{user}");
        assert!(client.is_closed_by_server());
    }
    // Once is enough on a connection: what was good before is not good again.
    assert_eq!(who_am_i(&mut heard), ["sasl:ada"]);
    assert_eq!(sasl(&mut heard, overheard.as_bytes()), Err(AUTH_FAILED));
    assert!(heard.is_closed_by_server());
}

/// A node without users says nothing to SASL, as ZooKeeper does; clients go on without it.
#[test]
fn without_users_sasl_proves_nothing_and_harms_nobody() {
    let (_cluster, port, _dir) = with_users("");
    let mut client = Client::connect(port);
    for token in [&b""[..], b"username=\"super\""] {
        assert_eq!(sasl(&mut client, token), Ok(None));
    }
    assert_eq!(who_am_i(&mut client), Vec::<String>::new());
}

/// From a zoo.cfg: nobody is served who has not come in by SASL, and the users and certificates named there may do
/// everything.
#[test]
fn a_zoo_cfg_can_demand_sasl_and_name_who_may_do_everything() {
    let dir = tempfile::tempdir().unwrap();
    let office = Office::new("Test CA");
    let server = office.issue("server", "server", Use::Server);
    office.issue("ada", "ada", Use::Client);
    office.write("both.pem", &format!("{}{}", server.key, server.certificate));
    std::fs::write(dir.path().join("jaas.conf"), JAAS).unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let (ports, at) = (free_ports(2), dir.path().display());
    let text = format!(
        "dataDir={at}/data\nclientPort={}\nclientPortAddress=127.0.0.1\nsecureClientPort={}\n\
         secureClientPortAddress=127.0.0.1\nssl.keyStore.location={}\nssl.trustStore.location={}\n\
         java.security.auth.login.config={at}/jaas.conf\nenforce.auth.enabled=true\nenforce.auth.schemes=sasl,x509\n\
         zookeeper.superUser=ada\nX509AuthenticationProvider.superUser=CN=ada,O=Tidelock\n",
        ports[0],
        ports[1],
        office.file("both.pem"),
        office.file("ca.pem"),
    );
    std::fs::write(dir.path().join("zoo.cfg"), text).unwrap();
    let mut command = tidelock();
    command.arg("--zoo-cfg").arg(dir.path().join("zoo.cfg")).stdin(std::process::Stdio::null());
    let mut member = Member::start(command, dir.path(), "node");
    member.wait_until_ready();

    let mut nobody = Client::connect(ports[0]);
    assert_eq!(nobody.exists("/", false), Err(REQUIRES_SASL));
    assert!(nobody.is_closed_by_server());
    let mut wrong = Client::connect(ports[0]);
    assert_eq!(come_in(&mut wrong, "ada", "guess"), Err(REQUIRES_SASL));
    assert!(wrong.is_closed_by_server());
    let mut ada = Client::connect(ports[0]);
    come_in(&mut ada, "ada", "pass word").unwrap();
    assert_eq!(who_am_i(&mut ada), ["sasl:ada", "super:"]);
    create_for(&mut ada, "/root", "digest", "x:y").unwrap();
    let tunnel = Tunnel::new(&office, Some("ada"), ports[1]);
    let mut secure = Client::connect(tunnel.port);
    assert_eq!(who_am_i(&mut secure), ["super:CN=ada,O=Tidelock", "x509:CN=ada,O=Tidelock"]);
    assert_eq!(secure.get("/root", false).unwrap().0, b"kept");
    member.terminate();
}
