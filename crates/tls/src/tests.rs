//! Whole handshakes between an [`Acceptor`] and a [`Connector`], over a pipe in memory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Accepted, Acceptor, Authority, ClientSettings, Connector, Identity, Issued, Leniency, Names, Order, Part, Protocol,
    Refusal, SecureStream, ServerSettings, ServerTrust, Trust, Use, Validity, serial,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// An authority and a directory to put its work in.
struct Office {
    dir: TempDir,
    authority: Authority,
}

impl Office {
    fn new() -> Office {
        Office::named("Test CA")
    }

    fn named(name: &str) -> Office {
        let office =
            Office { dir: tempfile::tempdir().unwrap(), authority: Authority::new(name, Validity::days(2)).unwrap() };
        office.write("ca.pem", &office.authority.own().certificate);
        office
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        // Put in place by renaming, as careful tools do.
        let path = self.path(name);
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        path
    }

    fn issue(&self, common_name: &str, usage: Use, validity: Validity) -> Issued {
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let hosts = if usage == Use::Client { &[][..] } else { &hosts };
        self.authority.issue(&Order { common_name, hosts, usage, validity }).unwrap()
    }

    /// Issues a certificate and puts it into files of that name.
    fn identity(&self, name: &str, usage: Use) -> Identity {
        self.place(name, &self.issue(name, usage, Validity::days(1)))
    }

    fn place(&self, name: &str, issued: &Issued) -> Identity {
        let certificate = self.write(&format!("{name}.pem"), &issued.certificate);
        Identity::Files { certificate, key: self.write(&format!("{name}-key.pem"), &issued.key) }
    }

    fn trust(&self) -> Trust {
        Trust { authorities: self.path("ca.pem"), revoked: None }
    }

    /// A listener that demands certificates of this office.
    fn server(&self) -> ServerSettings {
        ServerSettings {
            identity: self.identity("server", Use::Server),
            clients: Some(self.trust()),
            names: Names::Any,
            common_name_is_user: true,
            leniency: Leniency::default(),
            inside: vec!["h2"],
            protocol: Protocol::default(),
        }
    }

    fn client(&self, identity: Option<Identity>) -> ClientSettings {
        ClientSettings {
            identity,
            servers: ServerTrust::Certified(self.trust()),
            names: Names::Any,
            inside: vec!["h2"],
            protocol: Protocol::default(),
        }
    }
}

type Pipe = tokio::io::DuplexStream;

/// Both ends of one handshake.
async fn shake(
    acceptor: &Acceptor,
    connector: &Connector,
    host: &str,
) -> (Result<Accepted<Pipe>, Refusal>, Result<SecureStream<Pipe>, Refusal>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::time::timeout(PATIENCE, async { tokio::join!(acceptor.accept(far), connector.connect(host, near)) })
        .await
        .expect("a handshake in time")
}

/// Why the listener refused.
async fn refused(server: &ServerSettings, client: &ClientSettings) -> String {
    let (acceptor, connector) = (Acceptor::open(server).unwrap(), Connector::open(client).unwrap());
    match shake(&acceptor, &connector, "localhost").await.0 {
        Ok(accepted) => panic!("accepted {accepted:?}"),
        Err(refusal) => refusal.to_string(),
    }
}

/// Why the dialing side refused.
async fn distrusted(server: &ServerSettings, client: &ClientSettings, host: &str) -> String {
    let (acceptor, connector) = (Acceptor::open(server).unwrap(), Connector::open(client).unwrap());
    shake(&acceptor, &connector, host).await.1.unwrap_err().to_string()
}

/// The way it is meant: both sides are sure of each other, and the client's name is known.
#[tokio::test]
async fn both_sides_know_each_other_and_bytes_pass_both_ways() {
    let office = Office::new();
    let acceptor = Acceptor::open(&office.server()).unwrap();
    let connector = Connector::open(&office.client(Some(office.identity("alice", Use::Client)))).unwrap();
    for host in ["localhost", "127.0.0.1"] {
        let (accepted, connected) = shake(&acceptor, &connector, host).await;
        let (mut accepted, mut connected) = (accepted.unwrap(), connected.unwrap());
        assert_eq!(accepted.user.as_deref(), Some("alice"));
        connected.write_all(b"ping").await.unwrap();
        connected.flush().await.unwrap();
        let mut read = [0; 4];
        accepted.stream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ping");
        // A process that is killed says no goodbye; that is an end like any other.
        drop(accepted);
        assert_eq!(connected.read(&mut read).await.unwrap(), 0);
    }
}

/// etcd's rule: a certificate is an identity only where `client-cert-auth` says so.
#[tokio::test]
async fn a_common_name_is_nobody_unless_it_is_asked_for() {
    let office = Office::new();
    let server = ServerSettings { common_name_is_user: false, ..office.server() };
    let client = office.client(Some(office.identity("root", Use::Client)));
    let (acceptor, connector) = (Acceptor::open(&server).unwrap(), Connector::open(&client).unwrap());
    assert_eq!(shake(&acceptor, &connector, "localhost").await.0.unwrap().user, None);
}

/// Each of these is somebody who must not get in, and an operator who must be told why.
#[tokio::test]
async fn strangers_are_refused_with_the_reason() {
    let (office, other, same_name) = (Office::new(), Office::named("Other CA"), Office::new());
    let server = office.server();
    let cases = [
        (None, "showed no certificate"),
        (Some(other.identity("alice", Use::Client)), "authority that is not trusted"),
        (Some(same_name.identity("alice", Use::Client)), "authority that is not trusted"),
        (Some(office.place("late", &office.issue("alice", Use::Client, ended()))), "has expired"),
        (Some(office.identity("server-only", Use::Server)), "may not be used for this"),
    ];
    for (identity, expected) in cases {
        let client = ClientSettings { identity, ..office.client(None) };
        let why = refused(&server, &client).await;
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

fn ended() -> Validity {
    let hour = Duration::from_secs(3600);
    Validity { from: SystemTime::now() - 2 * hour, until: SystemTime::now() - hour }
}

/// A client that talked to a stranger would hand it its writes and its password.
#[tokio::test]
async fn servers_that_are_not_who_was_dialed_are_distrusted() {
    let (office, other) = (Office::new(), Office::named("Other CA"));
    let open = |office: &Office| ServerSettings { clients: None, ..office.server() };
    let client = office.client(None);
    let why = distrusted(&open(&other), &client, "localhost").await;
    assert!(why.contains("authority that is not trusted"), "{why}");
    let why = distrusted(&open(&office), &client, "10.1.2.3").await;
    assert!(why.contains("not for 10.1.2.3"), "{why}");
    let late = office.place("late", &office.issue("server", Use::Server, ended()));
    let why = distrusted(&ServerSettings { identity: late, ..open(&office) }, &client, "localhost").await;
    assert!(why.contains("has expired"), "{why}");
    let anybody = ClientSettings { servers: ServerTrust::Anybody, ..client };
    let (acceptor, connector) = (Acceptor::open(&open(&other)).unwrap(), Connector::open(&anybody).unwrap());
    assert!(shake(&acceptor, &connector, "10.1.2.3").await.1.is_ok(), "who wants to trust anybody may");
}

/// A key that was stolen is taken back by a list; the others go on.
#[tokio::test]
async fn what_is_on_the_revocation_list_is_refused() {
    let office = Office::new();
    let (stolen, good) =
        (office.issue("alice", Use::Client, Validity::days(1)), office.issue("bob", Use::Client, Validity::days(1)));
    let list = office.authority.revoke(&[&stolen.serial], Validity::days(1)).unwrap();
    let trust = Trust { revoked: Some(office.write("crl.pem", &list)), ..office.trust() };
    let server = ServerSettings { clients: Some(trust), ..office.server() };
    let why = refused(&server, &office.client(Some(office.place("alice", &stolen)))).await;
    assert!(why.contains("was revoked"), "{why}");
    let connector = Connector::open(&office.client(Some(office.place("bob", &good)))).unwrap();
    assert!(shake(&Acceptor::open(&server).unwrap(), &connector, "localhost").await.0.is_ok());
}

/// `peer-cert-allowed-cn` and its kin let in a part of those whom the authority vouches for, in both directions.
#[tokio::test]
async fn only_names_that_are_allowed_get_in() {
    let office = Office::new();
    let peer = office.identity("node-a", Use::Peer);
    let client = office.client(Some(peer.clone()));
    for (names, lets_in) in [
        (Names::Common(vec!["node-b".into(), "node-a".into()]), true),
        (Names::Common(vec!["node-b".into()]), false),
        (Names::Hosts(vec!["other.example".into(), "127.0.0.1".into()]), true),
        (Names::Hosts(vec!["other.example".into()]), false),
    ] {
        let server = ServerSettings { names: names.clone(), ..office.server() };
        let acceptor = Acceptor::open(&server).unwrap();
        let taken = shake(&acceptor, &Connector::open(&client).unwrap(), "localhost").await.0;
        assert_eq!(taken.is_ok(), lets_in, "{names:?}");

        let server = ServerSettings { identity: peer.clone(), ..office.server() };
        let dialer = ClientSettings { names: names.clone(), ..client.clone() };
        let acceptor = Acceptor::open(&server).unwrap();
        let dialed = shake(&acceptor, &Connector::open(&dialer).unwrap(), "localhost").await.1;
        assert_eq!(dialed.is_ok(), lets_in, "{names:?}");
        if let Err(refusal) = dialed {
            assert!(refusal.to_string().contains("not among those that are let in"), "{refusal}");
        }
    }
}

/// `tls-max-version` is an operator's promise to an auditor: it must hold.
#[tokio::test]
async fn versions_that_are_not_allowed_are_not_spoken() {
    let office = Office::new();
    let only = |version| Protocol::parse(Some(version), Some(version), &[]).unwrap().0;
    let server = ServerSettings { clients: None, protocol: only("TLS1.3"), ..office.server() };
    let client = ClientSettings { protocol: only("TLS1.2"), ..office.client(None) };
    let why = refused(&server, &client).await;
    assert!(why.contains("version or cipher suite"), "{why}");
    let server = ServerSettings { protocol: only("TLS1.2"), ..server };
    let (acceptor, connector) = (Acceptor::open(&server).unwrap(), Connector::open(&client).unwrap());
    assert!(shake(&acceptor, &connector, "localhost").await.1.is_ok());
}

/// The certificate as a new connection sees it.
async fn shown(acceptor: &Acceptor, connector: &Connector) -> String {
    let connected = shake(acceptor, connector, "localhost").await.1.unwrap();
    serial(&connected.certificates()[0]).unwrap()
}

/// Looks on for longer than it takes to notice a change.
async fn stays_shown(acceptor: &Acceptor, connector: &Connector, expected: &str) {
    let start = Instant::now();
    while start.elapsed() < crate::reload::LOOK_EVERY.mul_f64(1.5) {
        assert_eq!(shown(acceptor, connector).await, expected);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_shown(acceptor: &Acceptor, connector: &Connector, expected: &str) {
    let start = Instant::now();
    while shown(acceptor, connector).await != expected {
        assert!(start.elapsed() < PATIENCE, "the new certificate was never shown");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Certificates are renewed every few weeks, nodes are not restarted for it. While half of a pair is in place, and
/// if what is put there is rubbish, the old one must go on.
#[tokio::test]
async fn renewed_files_are_taken_up_and_bad_ones_are_not() {
    let office = Office::new();
    let first = office.issue("server", Use::Server, Validity::days(1));
    let identity = office.place("server", &first);
    let server = ServerSettings { clients: None, ..office.server() };
    office.place("server", &first);
    let (acceptor, connector) = (
        Acceptor::open(&ServerSettings { identity, ..server }).unwrap(),
        Connector::open(&office.client(None)).unwrap(),
    );
    assert_eq!(shown(&acceptor, &connector).await, first.serial);

    let second = office.issue("server", Use::Server, Validity::days(1));
    office.write("server.pem", &second.certificate);
    // The key is not there yet.
    stays_shown(&acceptor, &connector, &first.serial).await;
    office.write("server-key.pem", &second.key);
    until_shown(&acceptor, &connector, &second.serial).await;

    office.write("server.pem", "rubbish");
    stays_shown(&acceptor, &connector, &second.serial).await;
    std::fs::remove_file(office.path("server.pem")).unwrap();
    stays_shown(&acceptor, &connector, &second.serial).await;

    let third = office.issue("server", Use::Server, Validity::days(1));
    office.place("server", &third);
    until_shown(&acceptor, &connector, &third.serial).await;
}

/// An authority or a revocation list that is replaced counts from then on, for new connections.
#[tokio::test]
async fn authorities_and_revocation_lists_are_reloaded_too() {
    let office = Office::new();
    let alice = office.issue("alice", Use::Client, Validity::days(1));
    let empty = office.authority.revoke(&[], Validity::days(1)).unwrap();
    let trust = Trust { revoked: Some(office.write("crl.pem", &empty)), ..office.trust() };
    let acceptor = Acceptor::open(&ServerSettings { clients: Some(trust), ..office.server() }).unwrap();
    let connector = Connector::open(&office.client(Some(office.place("alice", &alice)))).unwrap();
    assert!(shake(&acceptor, &connector, "localhost").await.0.is_ok());
    office.write("crl.pem", &office.authority.revoke(&[&alice.serial], Validity::days(1)).unwrap());
    let start = Instant::now();
    while shake(&acceptor, &connector, "localhost").await.0.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the list was never read again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Somebody who opens `http://` at an `https://` port, and the other way round, must see an end and not hang.
#[tokio::test]
async fn plain_text_at_a_tls_port_is_told_from_tls_and_closed() {
    let office = Office::new();
    let acceptor = Acceptor::open(&office.server()).unwrap();
    for plain in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let talking = async {
            near.write_all(plain).await.unwrap();
            let mut rest = Vec::new();
            near.read_to_end(&mut rest).await.unwrap();
        };
        let (accepted, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(acceptor.accept(far), talking) }).await.unwrap();
        let refusal = accepted.unwrap_err();
        assert!(refusal.to_string().contains("is not TLS") && !refusal.is_gone(), "{refusal}");
    }
    let (near, far) = tokio::io::duplex(64 * 1024);
    drop(near);
    assert!(acceptor.accept(far).await.unwrap_err().is_gone(), "a probe that only connects is no news");
}

/// Every file that cannot be used is named at start, with what to do.
#[test]
fn bad_files_are_named_with_what_to_do() {
    let office = Office::new();
    let good = office.server();
    let rubbish = office.write("rubbish.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let Identity::Files { certificate, key } = good.identity.clone() else { unreachable!() };
    let Identity::Files { key: another, .. } = office.identity("another", Use::Server) else { unreachable!() };
    let files = |certificate: &Path, key: &Path| Identity::Files { certificate: certificate.into(), key: key.into() };
    let with = |identity| ServerSettings { identity, ..good.clone() };
    let trusting = |authorities: &Path, revoked: Option<&Path>| ServerSettings {
        clients: Some(Trust { authorities: authorities.into(), revoked: revoked.map(Into::into) }),
        ..good.clone()
    };
    let gone = office.path("gone.pem");
    for (settings, part, file, words) in [
        (with(files(&gone, &key)), Part::Certificate, "gone.pem", "cannot be read"),
        (with(files(&key, &key)), Part::Certificate, "server-key.pem", "holds no certificate"),
        (with(files(&rubbish, &key)), Part::Certificate, "rubbish.pem", "cannot be read"),
        (with(files(&certificate, &gone)), Part::Key, "gone.pem", "cannot be read"),
        (with(files(&certificate, &certificate)), Part::Key, "server.pem", "holds no private key"),
        (with(files(&certificate, &another)), Part::Key, "another-key.pem", "is not the key of"),
        (trusting(&gone, None), Part::Authorities, "gone.pem", "cannot be read"),
        (trusting(&rubbish, None), Part::Authorities, "rubbish.pem", "cannot be trusted"),
        (trusting(&office.path("ca.pem"), Some(&gone)), Part::Revoked, "gone.pem", "cannot be read"),
        (trusting(&office.path("ca.pem"), Some(&key)), Part::Revoked, "server-key.pem", "is no revocation list"),
    ] {
        let error = Acceptor::open(&settings).unwrap_err();
        assert_eq!(error.part, part, "{error}");
        assert!(error.what.contains(file) && error.what.contains(words) && !error.fix.is_empty(), "{error}");
    }
    let names = ServerSettings { names: Names::Hosts(vec!["a b".into()]), ..good };
    assert_eq!(Acceptor::open(&names).unwrap_err().part, Part::Names);
}
