//! The load generator against real nodes: every workload does some hundred operations and none fails. How long they
//! take is nobody's business here.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::tls::Office;
use support::users::guard;
use support::{Cluster, free_ports, tidelock};
use tidelock_load::{
    Fill, Kind, Lines, Load, LockLoad, NativeSessions, Parties, PhaserLoad, Protocol, Until, Values, Workload,
    ZnodeFill, lock_natively, run, run_over, spread,
};
use tidelock_tls::Use;

const KEYS: u64 = 1_500;
const VALUE_BYTES: usize = 256;

/// Three nodes with a port for each protocol.
fn start() -> (Cluster, Vec<SocketAddr>, Vec<SocketAddr>) {
    let mut cluster = Cluster::prepare(3, &[]);
    let ports = free_ports(3);
    for (node, port) in cluster.nodes.iter_mut().zip(&ports) {
        node.add_arguments(&["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")]);
    }
    cluster.start_all();
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let etcd = cluster.nodes.iter().map(|node| address(node.client_port)).collect();
    (cluster, etcd, ports.into_iter().map(address).collect())
}

/// A benchmark whose operations fail, or that reads something else than it wrote, measures nothing.
#[test]
fn every_workload_does_what_it_says_at_three_nodes() {
    let (_cluster, etcd, zookeeper) = start();
    let values = Values::new(VALUE_BYTES);
    for (protocol, endpoints) in [(Protocol::Etcd, etcd), (Protocol::Zookeeper, zookeeper)] {
        let mut fill: Box<dyn Workload> = match protocol {
            Protocol::Etcd => Box::new(Fill::new(KEYS, values.clone())),
            Protocol::Zookeeper => Box::new(ZnodeFill::new(KEYS, values.clone())),
        };
        let filled = run(protocol, &endpoints[..1], fill.as_mut(), &Load::closed(8, Until::Done)).unwrap();
        filled.check(0).unwrap();
        if protocol == Protocol::Zookeeper {
            // Its reads are of whatever a member has: one that is behind has not seen the last of the keys.
            let mut sync = Kind::SyncGet.start(KEYS, &values, 0);
            for endpoint in &endpoints {
                run(protocol, &[*endpoint], sync.as_mut(), &Load::closed(1, Until::Operations(1))).unwrap();
            }
        }
        let mut lines = Lines::open(protocol, &spread(&endpoints, 6)).unwrap();
        // Puts and transactions come before the reads that check what they wrote.
        for kind in Kind::all(protocol) {
            let mut workload = kind.start(KEYS, &values, 0);
            let done = run_over(&mut lines, workload.as_mut(), &Load::closed(50, Until::Operations(400))).unwrap();
            assert_eq!((done.failed, done.first_failure.as_deref()), (0, None), "{kind:?}");
            assert_eq!(done.latencies.count(), 400, "{kind:?}");
        }
    }
}

/// Requests above the 16 KiB of a frame and the 64 KiB of a window go out in pieces, many at once.
#[test]
fn large_values_are_written_and_read_back() {
    let (_cluster, etcd, _) = start();
    let values = Values::new(100_000);
    let mut fill = Fill::new(10, values.clone());
    run(Protocol::Etcd, &etcd[..1], &mut fill, &Load::closed(1, Until::Done)).unwrap().check(0).unwrap();
    for kind in [Kind::Put, Kind::Get] {
        let mut workload = kind.start(10, &values, 0);
        let done = run(Protocol::Etcd, &etcd, workload.as_mut(), &Load::closed(16, Until::Operations(100))).unwrap();
        assert_eq!((done.latencies.count(), done.first_failure.as_deref()), (100, None), "{kind:?}");
    }
}

/// Sessions without their lock, or a phase that ends without all of its parties, would look cheap.
#[test]
fn native_sessions_get_their_locks_and_parties_of_phasers_meet() {
    let (_cluster, ports) = Cluster::start_native(3);
    let native: Vec<SocketAddr> = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
    let addresses = spread(&native, 6);
    let mut sessions = NativeSessions::connect(&addresses).unwrap();
    sessions.open(301).unwrap();
    sessions.lock().unwrap();
    for (name, children) in [("flat", 0), ("tree", 7)] {
        let load = PhaserLoad { addresses: &addresses, name, sessions: 5, parties: 200, children };
        let mut parties = Parties::set_up(&load).unwrap();
        let phased = parties.run(4).unwrap();
        assert_eq!((phased.phases.count(), phased.arrivals), (4, 800), "{name}");
        assert!(phased.bytes > 800, "{name}");
        parties.close().unwrap();
    }
}

/// Workers that share streams must each get answers to what they asked, whether they wait in line or not.
#[test]
fn workers_take_and_give_back_native_locks() {
    let (_cluster, ports) = Cluster::start_native(3);
    let native: Vec<SocketAddr> = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
    for contended in [false, true] {
        let (addresses, time) = (&spread(&native, 6), Duration::from_millis(500));
        let locked = lock_natively(&LockLoad { addresses, name: "bench", workers: 20, contended, time }).unwrap();
        assert_eq!((locked.failed, locked.first_failure), (0, None));
        assert!(locked.cycles > 0, "contended: {contended}");
    }
}

/// An open load sends when it is due, not when the server likes; all of it must be accounted for.
#[test]
fn an_open_load_is_answered_whole() {
    let (_cluster, etcd, _) = start();
    let mut workload = Kind::Put.start(KEYS, &Values::new(16), 0);
    let load = Load::open(500.0, Until::Operations(300));
    let done = run(Protocol::Etcd, &etcd, workload.as_mut(), &load).unwrap();
    assert_eq!((done.latencies.count(), done.failed), (300, 0));
}

/// The same for users: the command finds the server, writes its keys, says how it went.
#[test]
fn the_command_line_loads_a_node_and_says_how_it_took_it() {
    let (cluster, _, zookeeper) = start();
    let etcd = format!("127.0.0.1:{}", cluster.nodes[0].client_port);
    let bench = |arguments: &[&str]| tidelock().arg("bench").args(arguments).output().unwrap();
    let output = bench(&["--endpoints", &etcd, "--ops", "200", "--keys", "100", "--output", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("\"operations\":200") && said.contains("\"failed\":0"), "{said}");
    let twice = ["--protocol", "zookeeper", "--endpoints", &zookeeper[0].to_string(), "--workload", "set"];
    for _ in 0..2 {
        let output = bench(&[&twice[..], &["--ops", "200", "--keys", "100"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("200 operations"));
    }
    let output = bench(&["--endpoints", &etcd, "--workload", "create"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("serializable-get"));
}

/// Servers worth measuring have certificates and users. Whoever may not come in is told so at once, not by figures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_loads_a_node_that_has_certificates_and_users() {
    let office = Office::new("Bench");
    office.issue("server", "server", Use::Server);
    let mut cluster = Cluster::prepare(1, &[]);
    let secure_zookeeper = free_ports(1)[0];
    let node = &mut cluster.nodes[0];
    node.add_arguments(&office.shown("", "server"));
    node.add_arguments(&office.shown("zookeeper-", "server"));
    node.add_arguments(&["--zookeeper-secure-listen".to_owned(), format!("127.0.0.1:{secure_zookeeper}")]);
    cluster.start_all();
    let (url, authority) = (cluster.nodes[0].secure_url(), office.file("ca.pem"));
    let bench = |endpoint: &str, arguments: &[&str]| {
        let usual = ["--ops", "300", "--keys", "100", "--value-bytes", "20000"];
        let output = tidelock().arg("bench").args(["--endpoints", endpoint]).args(usual).args(arguments).output();
        let output = output.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let done = |(code, said, error): (Option<i32>, String, String)| {
        assert!(code == Some(0) && said.starts_with("300 operations") && !said.contains("failed"), "{said}{error}");
    };
    let trusting = ["--cacert", authority.as_str()];
    done(bench(&url, &[&trusting[..], &["--workload", "mixed"]].concat()));
    let zookeeper = [&trusting[..], &["--protocol", "zookeeper", "--workload", "set"]].concat();
    done(bench(&format!("https://127.0.0.1:{secure_zookeeper}"), &zookeeper));

    let with_users = Cluster::start(1);
    let guarded = with_users.nodes[0].client_url();
    guard(&guarded).await;
    done(bench(&guarded, &["--user", "root:secret"]));
    let (code, _, error) = bench(&guarded, &["--user", "root:wrong"]);
    assert!(code == Some(1) && error.contains("authentication failed"), "{code:?} {error}");

    let stranger = Office::new("Stranger");
    let (code, _, error) = bench(&url, &["--cacert", &stranger.file("ca.pem"), "--timeout-ms", "1000"]);
    assert!(code == Some(1) && error.contains("--cacert"), "{code:?} {error}");
}
