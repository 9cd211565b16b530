//! ZooKeeper's protocol at real nodes: what its clients rely on between requests, sessions, watches and nodes.
//! That single requests are answered as ZooKeeper answers them is compared with a real one elsewhere.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use support::zookeeper::{Client, EPHEMERAL, SEQUENTIAL};
use support::{Cluster, free_ports, wait_for};

const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const CREATED: i32 = 1;
const DELETED: i32 = 2;
const DATA_CHANGED: i32 = 3;
const CHILDREN_CHANGED: i32 = 4;

/// A cluster with a port for ZooKeeper's clients at each node.
fn start(count: usize) -> (Cluster, Vec<u16>) {
    let mut cluster = Cluster::prepare(count, &[]);
    let ports = free_ports(count);
    for (node, port) in cluster.nodes.iter_mut().zip(&ports) {
        node.add_arguments(&["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")]);
    }
    cluster.start_all();
    (cluster, ports)
}

/// The whole life of a session at one node: create, read, change, delete, list, leave.
#[test]
fn a_session_works_on_znodes_and_takes_its_ephemerals_along() {
    let (_cluster, ports) = start(1);
    let (mut one, mut other) = (Client::connect(ports[0]), Client::connect(ports[0]));
    assert_eq!(one.timeout_ms, 4000);
    assert_eq!(one.children("/", false).unwrap(), ["zookeeper"]);
    assert_eq!(one.create("/a", b"1", 0).unwrap(), "/a");
    assert_eq!(one.create("/a", b"1", 0), Err(NODE_EXISTS));
    assert_eq!(one.create("/a/n-", b"", SEQUENTIAL).unwrap(), "/a/n-0000000000");
    assert_eq!(one.create("/a/n-", b"", SEQUENTIAL | EPHEMERAL).unwrap(), "/a/n-0000000001");
    assert_eq!(one.create("/no/parent", b"", 0), Err(NO_NODE));
    let stat = one.set("/a", b"22", 0).unwrap();
    assert_eq!((stat.version, stat.data_length, stat.children, stat.cversion), (1, 2, 2, 2));
    assert_eq!(other.get("/a", false).unwrap(), (b"22".to_vec(), stat.clone()));
    assert_eq!(other.get("/a/n-0000000001", false).unwrap().1.owner, one.session);

    one.close();
    other.sync();
    assert_eq!(other.children("/a", false).unwrap(), ["n-0000000000"]);
    let after = other.exists("/a", false).unwrap();
    assert_eq!((after.mzxid, after.cversion, after.children), (stat.mzxid, 3, 1));
    assert!(after.pzxid > stat.pzxid);
    other.delete("/a/n-0000000000", 0).unwrap();
    other.delete("/a", -1).unwrap();
    assert_eq!(other.exists("/a", false), Err(NO_NODE));
}

/// S3: a client that is told of a change by a reply must have been told by its watch before; otherwise a cache
/// built on watches is wrong without knowing.
#[test]
fn the_event_comes_before_the_reply_that_shows_its_change() {
    let (_cluster, ports) = start(1);
    let (mut watcher, mut writer) = (Client::connect(ports[0]), Client::connect(ports[0]));
    writer.create("/a", b"0", 0).unwrap();
    for round in 1..200u32 {
        let (_, stat) = watcher.get("/a", true).unwrap();
        let told = watcher.events.len();
        writer.set("/a", round.to_string().as_bytes(), -1).unwrap();
        let (data, now) = watcher.get("/a", false).unwrap();
        if now.mzxid > stat.mzxid {
            assert_eq!(watcher.events.len(), told + 1, "round {round}: {data:?} without its event");
        }
        assert_eq!(watcher.event(), (DATA_CHANGED, "/a".to_owned()));
    }
    // The writer's own watch, too: first the event, then the reply.
    writer.exists("/b", true).unwrap_err();
    writer.create("/b", b"", 0).unwrap();
    assert_eq!(writer.events.pop_front(), Some((CREATED, "/b".to_owned())));
    writer.children("/", true).unwrap();
    writer.get("/b", true).unwrap();
    writer.delete("/b", -1).unwrap();
    assert_eq!(writer.events, [(DELETED, "/b".to_owned()), (CHILDREN_CHANGED, "/".to_owned())]);
}

/// A client that sends without waiting gets its answers in order, each write seeing the ones before, each read
/// its own writes.
#[test]
fn pipelined_requests_are_carried_out_in_order() {
    let (_cluster, ports) = start(1);
    let mut client = Client::connect(ports[0]);
    client.create("/p", b"", 0).unwrap();
    let asked: Vec<(i32, i32)> = (0..300)
        .map(|round| {
            let created = client.ask_create("/p/n-", b"", SEQUENTIAL);
            let read = client.ask(8, |packet| {
                packet.text("/p").byte(0);
            });
            assert!(read > created, "{round}");
            (created, read)
        })
        .collect();
    for (round, (created, read)) in asked.into_iter().enumerate() {
        assert_eq!(client.answer(created).unwrap().text(), format!("/p/n-{round:010}"));
        assert_eq!(client.answer(read).unwrap().int(), i32::try_from(round).unwrap() + 1);
    }
}

/// S1: a session is its owner's. Whoever has the password goes on with it anywhere; whoever has not must not even
/// disturb it.
#[test]
fn a_session_goes_on_at_another_node_and_only_with_its_password() {
    let (_cluster, ports) = start(3);
    let mut first = Client::connect(ports[0]);
    first.create("/mine", b"", EPHEMERAL).unwrap();
    assert!(Client::open(ports[1], 4000, first.session, &[7; 16], 0).is_err());
    first.ping();
    let mut second = first.again(ports[1]).unwrap();
    assert_eq!((second.session, second.timeout_ms), (first.session, first.timeout_ms));
    assert_eq!(second.exists("/mine", false).unwrap().owner, first.session, "what it saw before, it sees again");
    assert!(first.is_closed_by_server(), "one session, one connection");
    let mut third = second.again(ports[2]).unwrap();
    third.set("/mine", b"still", -1).unwrap();
    third.close();
    assert!(Client::open(ports[0], 4000, second.session, &second.password, 0).is_err(), "it is over");
}

/// S2: sessions end when nobody is heard of any more, all they own at once, and not before.
#[test]
fn a_session_that_falls_silent_ends_in_time_and_others_are_told() {
    let (_cluster, ports) = start(3);
    let (mut silent, mut other) = (Client::connect(ports[0]), Client::connect(ports[1]));
    for name in ["/e1", "/e2"] {
        silent.create(name, b"", EPHEMERAL).unwrap();
    }
    let since = Instant::now();
    other.sync();
    other.exists("/e1", true).unwrap();
    other.exists("/e2", true).unwrap();
    while other.events.len() < 2 {
        assert!(since.elapsed() < Duration::from_secs(30), "it should have ended");
        other.ping();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(since.elapsed() >= Duration::from_millis(3900), "too early: {:?}", since.elapsed());
    assert_eq!(other.events, [(DELETED, "/e1".to_owned()), (DELETED, "/e2".to_owned())]);
    assert_eq!(other.exists("/e1", false), Err(NO_NODE));
    assert!(silent.is_closed_by_server());
    assert!(silent.again(ports[0]).is_err());
}

/// Losing the leader must cost clients of the other nodes nothing but a moment for their writes: ZooKeeper drops
/// every connection, and thousands of clients come back at once.
#[test]
fn connections_watches_and_reads_outlive_the_leader() {
    let (mut cluster, ports) = start(3);
    let leader = cluster.wait_for_leader();
    let mut clients: Vec<Client> =
        (0..3).filter(|node| *node != leader).map(|node| Client::connect(ports[node])).collect();
    clients[0].create("/a", b"1", 0).unwrap();
    clients[1].sync();
    clients[1].get("/a", true).unwrap();
    cluster.nodes[leader].kill();
    assert_eq!(clients[1].get("/a", false).unwrap().0, b"1", "reads go on without a leader");
    clients[0].set("/a", b"2", -1).unwrap();
    assert_eq!(clients[1].event(), (DATA_CHANGED, "/a".to_owned()));
    assert_eq!(clients[1].get("/a", false).unwrap().0, b"2");
}

/// S4: a node alone cannot know whether a session goes on. Its client must hear that before the session can be over
/// elsewhere, or two would hold the same lock.
#[test]
fn a_client_of_a_node_cut_off_is_let_go_before_its_session_can_end() {
    let (cluster, ports) = start(3);
    let mut client = Client::connect(ports[0]);
    client.create("/lock", b"", EPHEMERAL).unwrap();
    client.ping();
    cluster.nodes[1..].iter().for_each(support::Process::pause);
    let since = Instant::now();
    let mut answered = 0;
    while client.try_ping().is_ok() {
        answered += 1;
        assert!(since.elapsed() < Duration::from_secs(20), "still answered");
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.nodes[1..].iter().for_each(support::Process::resume);
    assert!(answered > 10, "a moment without the others is no reason to close");
    assert!(
        since.elapsed() < Duration::from_millis(4000),
        "{:?} after the last time anybody could know",
        since.elapsed()
    );
    let mut back = wait_for("the session goes on", || client.again(ports[0]).ok());
    back.exists("/lock", false).unwrap();
}

/// What a client missed while it was away is told when it gives its watches back.
#[test]
fn watches_given_back_after_a_reconnection_tell_what_was_missed() {
    let (_cluster, ports) = start(1);
    let (mut away, mut writer) = (Client::connect(ports[0]), Client::connect(ports[0]));
    for path in ["/data", "/gone", "/same", "/list"] {
        writer.create(path, b"", 0).unwrap();
    }
    away.sync();
    let seen = away.zxid;
    writer.set("/data", b"1", -1).unwrap();
    writer.delete("/gone", -1).unwrap();
    writer.create("/new", b"", 0).unwrap();
    writer.create("/list/child", b"", 0).unwrap();
    let mut back = away.again(ports[0]).unwrap();
    let given = |back: &mut Client| {
        let xid = back.ask(101, |packet| {
            packet.long(seen).int(3).text("/data").text("/gone").text("/same");
            packet.int(1).text("/new").int(1).text("/list");
        });
        back.answer(xid).unwrap();
    };
    given(&mut back);
    let mut events: Vec<_> = back.events.drain(..).collect();
    events.sort();
    let expected = [
        (CREATED, "/new".to_owned()),
        (DELETED, "/gone".to_owned()),
        (DATA_CHANGED, "/data".to_owned()),
        (CHILDREN_CHANGED, "/list".to_owned()),
    ];
    assert_eq!(events, expected);
    writer.set("/same", b"1", -1).unwrap();
    assert_eq!(back.event(), (DATA_CHANGED, "/same".to_owned()));
}

/// Nothing a stranger sends may take the node down or hold its memory: it is answered or closed, and others go on.
#[test]
fn garbage_on_the_port_ends_only_its_own_connection() {
    use std::io::{Read, Write};
    let (_cluster, ports) = start(1);
    let mut client = Client::connect(ports[0]);
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x7f\xff\xff\xff", b"\0\0\0\x04abcd", b"GET / HTTP/1.1\r\n\r\n", b"ruo"]
    {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
        // It may be closed before we are done.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // Ended in whatever way, but without an answer.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{garbage:?}: {answer:?}");
    }
    // A record that is cut short is refused, an operation nobody knows too, and the connection goes on.
    let xid = client.ask(1, |packet| {
        packet.int(1 << 30);
    });
    assert_eq!(client.answer(xid).unwrap_err(), -5);
    let xid = client.ask(500, |_| {});
    assert_eq!(client.answer(xid).unwrap_err(), -6);
    wait_for("an answer", || client.exists("/", false).ok());
}

/// S2: a client that comes back counts on the timeout it is granted then: no leader may end its session by an older
/// one, sooner or later than agreed on.
#[test]
fn s2_the_timeout_agreed_on_last_counts_under_the_next_leader() {
    let (mut cluster, ports) = start(3);
    let leader = cluster.wait_for_leader();
    let [one, two] = [1, 2].map(|step| ports[(leader + step) % 3]);
    let again = |client: &Client, port, timeout_ms| {
        Client::open(port, timeout_ms, client.session, &client.password, client.zxid).unwrap()
    };
    let mut longer = again(&Client::open(one, 4000, 0, &[0; 16], 0).unwrap(), two, 12_000);
    let mut shorter = again(&Client::open(one, 40_000, 0, &[0; 16], 0).unwrap(), two, 4000);
    assert_eq!((longer.timeout_ms, shorter.timeout_ms), (12_000, 4000));
    longer.create("/longer", b"", EPHEMERAL).unwrap();
    shorter.create("/shorter", b"", EPHEMERAL).unwrap();
    let since = Instant::now();
    drop((longer, shorter));
    cluster.nodes[leader].kill();

    let mut other = wait_for("a session at another node", || Client::open(one, 40_000, 0, &[0; 16], 0).ok());
    let mut gone_after = |path: &str| {
        while other.exists(path, false) != Err(NO_NODE) {
            assert!(since.elapsed() < Duration::from_secs(35), "{path} should be gone");
            std::thread::sleep(Duration::from_millis(50));
        }
        since.elapsed()
    };
    let shorter = gone_after("/shorter");
    let longer = gone_after("/longer");
    assert!(shorter >= Duration::from_millis(3900) && shorter < longer, "{shorter:?} {longer:?}");
    assert!(longer >= Duration::from_millis(11_900), "too early: {longer:?}");
}
