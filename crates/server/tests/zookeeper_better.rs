//! What Tidelock promises ZooKeeper's clients beyond what ZooKeeper does: sessions that outlive pauses, connections
//! that outlive leaders, watches that miss nothing, sessions that end in a few bytes, limits that hurt nobody else,
//! zxids that never roll over, and the history of a znode. Real processes, real pauses.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::zookeeper::{Client, EPHEMERAL, Packet};
use support::{Cluster, Process, free_ports, http, tidelock, wait_for};

const CREATED: i32 = 1;
const DELETED: i32 = 2;
const DATA_CHANGED: i32 = 3;
const CHILDREN_CHANGED: i32 = 4;

const ADD_WATCH: i32 = 106;
const SET_WATCHES_2: i32 = 105;
const PERSISTENT: i32 = 0;
const RECURSIVE: i32 = 1;

/// How often an idle client is heard from here: what real ones do every third of their timeout.
const PING_EVERY: Duration = Duration::from_millis(200);

/// These tests pause and measure; two at a time would measure each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A cluster that ZooKeeper's clients are served by, with lines of a zoo.cfg beside what it needs anyway.
struct Zoo {
    cluster: Cluster,
    ports: Vec<u16>,
    _dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Zoo {
    fn prepare(count: usize, lines: &str) -> Zoo {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::prepare(count, &[]);
        let ports = free_ports(count);
        for (node, port) in cluster.nodes.iter_mut().zip(&ports) {
            let file = dir.path().join(format!("{}.cfg", node.name));
            let (data, at) = (dir.path().display(), "clientPortAddress=127.0.0.1");
            let text = format!("tickTime=2000\ndataDir={data}\nclientPort={port}\n{at}\nmaxClientCnxns=0\n{lines}\n");
            std::fs::write(&file, text).unwrap();
            node.add_arguments(&["--zoo-cfg".to_owned(), file.display().to_string()]);
        }
        Zoo { cluster, ports, _dir: dir, _alone: alone }
    }

    fn start(count: usize, lines: &str) -> Zoo {
        let mut zoo = Zoo::prepare(count, lines);
        zoo.cluster.start_all();
        zoo
    }

    /// A new session with this timeout.
    fn client(&self, node: usize, timeout_ms: i32) -> Client {
        Client::open(self.ports[node], timeout_ms, 0, &[0; 16], 0).unwrap()
    }

    fn node(&self, at: usize) -> &Process {
        &self.cluster.nodes[at]
    }
}

/// A figure at `/metrics`.
fn metric(node: &Process, name: &str) -> u64 {
    let text = node.admin_get("/metrics").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.parse().unwrap()
}

fn add_watch(client: &mut Client, path: &str, mode: i32) {
    let xid = client.ask(ADD_WATCH, |packet| {
        packet.text(path).int(mode);
    });
    client.answer(xid).unwrap();
}

fn texts(packet: &mut Packet, texts: &[&str]) {
    packet.int(i32::try_from(texts.len()).unwrap());
    texts.iter().for_each(|text| {
        packet.text(text);
    });
}

/// Gives watches back: of data, persistent, recursive.
fn set_watches(client: &mut Client, seen: i64, data: &[&str], persistent: &[&str], recursive: &[&str]) {
    let xid = client.ask(SET_WATCHES_2, |packet| {
        packet.long(seen);
        for paths in [data, &[], &[], persistent, recursive] {
            texts(packet, paths);
        }
    });
    client.answer(xid).unwrap();
}

/// Creates many znodes in one request.
fn create_many(client: &mut Client, paths: &[String], flags: i32) {
    let xid = client.ask(14, |packet| {
        for path in paths {
            packet.int(1).byte(0).int(-1);
            packet.text(path).buffer(Some(b"")).int(1).int(31).text("world").text("anyone").int(flags);
        }
        packet.int(-1).byte(1).int(-1);
    });
    let mut fields = client.answer(xid).unwrap();
    assert_eq!(fields.int(), 1, "all of them were created");
}

/// Pings everybody until `until`; panics if one is not answered.
fn ping_until(clients: &mut [Client], until: Instant) {
    while Instant::now() < until {
        clients.iter_mut().for_each(Client::ping);
        std::thread::sleep(PING_EVERY);
    }
}

/// Ten thousand idle clients must not make the cluster busy: their pings reach the leader as one message of each
/// node, a few times a tick, and the log does not grow by them. (`replica/tests/cluster.rs` has the ten thousand.)
#[test]
fn idle_sessions_are_kept_alive_by_a_few_messages_and_no_log_entry() {
    // As many as fit under the usual limit of open files.
    const SESSIONS: usize = 800;
    let zoo = Zoo::start(3, "");
    let leader = zoo.cluster.wait_for_leader();
    let follower = (leader + 1) % 3;
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let port = zoo.ports[follower];
            std::thread::spawn(move || {
                let open = |_| Client::open(port, 4000, 0, &[0; 16], 0).unwrap();
                let mut clients: Vec<Client> = (0..SESSIONS / 8).map(open).collect();
                clients.iter_mut().for_each(Client::ping);
                clients
            })
        })
        .collect();
    let mut clients: Vec<Client> = opening.into_iter().flat_map(|opening| opening.join().unwrap()).collect();
    zoo.cluster.wait_until_replicas_agree();

    let node = zoo.node(follower);
    let figures = || ["tidelock_applied_index", "tidelock_renewal_batches_total", "tidelock_renewals_batched_total"];
    let before = figures().map(|name| metric(node, name));
    let began = Instant::now();
    ping_until(&mut clients, began + Duration::from_secs(10));
    let after = figures().map(|name| metric(node, name));
    let ticks = began.elapsed().as_secs_f64() / 2.0;
    // A busy machine may see a new leader meanwhile, whose first entry is one.
    let entries = after[0] - before[0];
    assert!(entries <= 3, "{entries} entries: pings are not in the log");
    let (batches, renewed) = (after[1] - before[1], after[2] - before[2]);
    assert!((batches as f64) <= 4.0 * ticks + 2.0, "{batches} messages in {ticks} ticks");
    assert!(renewed >= 3 * SESSIONS as u64, "{renewed} renewals in {batches} messages");
    // More than two timeouts have passed.
    for client in &mut clients {
        client.exists("/", false).unwrap();
    }
}

/// A server that stood still could hear nobody: its sessions must not pay for that. ZooKeeper ends them all when a
/// long pause is over.
#[test]
fn a_node_alone_that_was_paused_for_three_timeouts_ends_no_session() {
    const TIMEOUT_MS: u64 = 4000;
    let zoo = Zoo::start(1, "");
    let mut clients: Vec<Client> = (0..5).map(|_| zoo.client(0, 4000)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.create(&format!("/lock-{number}"), b"", EPHEMERAL).unwrap();
    }
    zoo.node(0).pause();
    // The pause itself: its length is what this is about.
    std::thread::sleep(Duration::from_millis(3 * TIMEOUT_MS));
    zoo.node(0).resume();
    // Whoever thinks that its connection is lost comes back within its timeout, as clients do.
    let mut back: Vec<Client> =
        clients.iter_mut().map(|client| wait_for("the session goes on", || client.again(zoo.ports[0]).ok())).collect();
    ping_until(&mut back, Instant::now() + Duration::from_millis(TIMEOUT_MS * 3 / 2));
    for (number, client) in back.iter_mut().enumerate() {
        let stat = client.exists(&format!("/lock-{number}"), false).unwrap();
        assert_eq!(stat.owner, client.session, "its ephemeral znode is still there, and still its own");
    }
}

/// A member of three is paused for longer than the sessions' timeout, then goes on. Clients of the others must not
/// even lose their connections; clients of the paused one move, as they do by themselves, and keep their sessions.
fn outlives_the_pause_of(pick: fn(usize) -> usize) {
    const TIMEOUT_MS: u64 = 8000;
    let zoo = Zoo::start(3, "");
    let paused = pick(zoo.cluster.wait_for_leader());
    let (one, other) = ((paused + 1) % 3, (paused + 2) % 3);
    let mut elsewhere: Vec<Client> = [one, other, one, other].into_iter().map(|at| zoo.client(at, 8000)).collect();
    let mut attached: Vec<Client> = (0..3).map(|_| zoo.client(paused, 8000)).collect();
    for client in elsewhere.iter_mut().chain(&mut attached) {
        client.create(&format!("/of-{:x}", client.session), b"", EPHEMERAL).unwrap();
    }
    zoo.node(paused).pause();
    let began = Instant::now();
    // Two thirds of the timeout is when a client gives a silent server up.
    ping_until(&mut elsewhere, began + Duration::from_millis(TIMEOUT_MS * 2 / 3));
    let moved = attached.iter().map(|client| wait_for("the session goes on", || client.again(zoo.ports[one]).ok()));
    elsewhere.extend(moved.collect::<Vec<Client>>());
    ping_until(&mut elsewhere, began + Duration::from_millis(TIMEOUT_MS * 5 / 4));
    zoo.node(paused).resume();
    ping_until(&mut elsewhere, Instant::now() + Duration::from_millis(TIMEOUT_MS * 5 / 4));
    for client in &mut elsewhere {
        let stat = client.exists(&format!("/of-{:x}", client.session), false).unwrap();
        assert_eq!(stat.owner, client.session);
    }
    // The one that was paused believes the same, once it has caught up.
    let mut there = zoo.client(paused, 8000);
    there.sync();
    for client in &elsewhere {
        there.exists(&format!("/of-{:x}", client.session), false).unwrap();
    }
    zoo.cluster.wait_until_replicas_agree();
}

#[test]
fn h8_no_session_is_lost_when_the_leader_is_paused_for_longer_than_its_timeout() {
    outlives_the_pause_of(|leader| leader);
}

#[test]
fn no_session_is_lost_when_a_follower_is_paused_for_longer_than_its_timeout() {
    outlives_the_pause_of(|leader| (leader + 1) % 3);
}

/// Losing the leader costs ZooKeeper every connection, and the cluster the storm of everybody coming back. Here the
/// clients of the other nodes stay, read on, and hear of what was written meanwhile, once.
#[test]
fn two_hundred_connections_with_watches_outlive_the_leader() {
    let mut zoo = Zoo::start(3, "");
    let leader = zoo.cluster.wait_for_leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut writer = zoo.client(one, 8000);
    writer.create("/w", b"before", 0).unwrap();
    let mut clients: Vec<Client> = (0..200).map(|at| zoo.client(if at % 2 == 0 { one } else { other }, 8000)).collect();
    for client in &mut clients {
        client.sync();
        client.get("/w", true).unwrap();
    }
    zoo.cluster.nodes[leader].kill();
    let asked = writer.ask(5, |packet| {
        packet.text("/w").buffer(Some(b"after")).int(-1);
    });
    for client in &mut clients {
        // Reads go on without a leader. Should the next one be elected already, the event comes first.
        let (data, _) = client.get("/w", false).unwrap();
        assert!(data == b"before" || client.events.len() == 1);
    }
    let stat = writer.answer(asked).unwrap().stat();
    assert_eq!(stat.version, 1, "the write was carried out once");
    for client in &mut clients {
        assert_eq!(client.event(), (DATA_CHANGED, "/w".to_owned()));
        assert_eq!(client.get("/w", false).unwrap(), (b"after".to_vec(), stat.clone()));
        client.ping();
        assert!(client.events.is_empty(), "told once");
    }
}

const REPLAY: &str = "tidelock.replayPersistentWatches=true";

/// A cache built on persistent watches is wrong for good if it misses a change while it is disconnected: ZooKeeper
/// loses them. With the extension the client is told everything, in order, with its zxid, before it can read on.
#[test]
fn persistent_watches_are_told_what_they_missed_while_disconnected() {
    let zoo = Zoo::start(1, REPLAY);
    let (mut away, mut writer) = (zoo.client(0, 8000), zoo.client(0, 8000));
    for path in ["/p", "/r", "/other"] {
        writer.create(path, b"", 0).unwrap();
    }
    away.sync();
    add_watch(&mut away, "/p", PERSISTENT);
    add_watch(&mut away, "/r", RECURSIVE);
    away.get("/p", true).unwrap();
    away.get("/r", true).unwrap();
    let seen = away.zxid;
    drop(away.events.drain(..));

    let mut zxids = Vec::new();
    let mut note = |writer: &Client| zxids.push(writer.zxid);
    writer.set("/p", b"1", -1).unwrap();
    note(&writer);
    writer.create("/p/c", b"", 0).unwrap();
    note(&writer);
    writer.set("/p/c", b"not watched", -1).unwrap();
    writer.delete("/p/c", -1).unwrap();
    note(&writer);
    writer.create("/r/a", b"", 0).unwrap();
    note(&writer);
    for data in ["1", "2"] {
        writer.set("/r/a", data.as_bytes(), -1).unwrap();
        note(&writer);
    }
    writer.delete("/r/a", -1).unwrap();
    note(&writer);
    writer.set("/other", b"not watched", -1).unwrap();

    let mut back = away.again(zoo.ports[0]).unwrap();
    set_watches(&mut back, seen, &["/p", "/r"], &["/p"], &["/r"]);
    let expected = [
        (DATA_CHANGED, "/p"),
        (CHILDREN_CHANGED, "/p"),
        (CHILDREN_CHANGED, "/p"),
        (CREATED, "/r/a"),
        (DATA_CHANGED, "/r/a"),
        (DATA_CHANGED, "/r/a"),
        (DELETED, "/r/a"),
    ];
    assert_eq!(back.events, expected.map(|(kind, path)| (kind, path.to_owned())), "all, in order, before the reply");
    assert_eq!(back.event_zxids, zxids, "each with its own zxid");
    // From here on they count as ever; the one at /p that fires once has fired, the one at /r has not.
    back.events.clear();
    writer.set("/p", b"2", -1).unwrap();
    writer.set("/r", b"2", -1).unwrap();
    writer.set("/r", b"3", -1).unwrap();
    let told: Vec<_> = (0..3).map(|_| back.event()).collect();
    let expected = [(DATA_CHANGED, "/p"), (DATA_CHANGED, "/r"), (DATA_CHANGED, "/r")];
    assert_eq!(told, expected.map(|(kind, path)| (kind, path.to_owned())));
    back.ping();
    assert!(back.events.is_empty(), "nothing twice");
}

/// ZooKeeper does not do it, so neither do we unless asked to.
#[test]
fn without_the_extension_persistent_watches_are_only_set_again() {
    let zoo = Zoo::start(1, "");
    let (away, mut writer) = (zoo.client(0, 8000), zoo.client(0, 8000));
    writer.create("/p", b"", 0).unwrap();
    let seen = writer.zxid;
    writer.set("/p", b"1", -1).unwrap();
    let mut back = away.again(zoo.ports[0]).unwrap();
    set_watches(&mut back, seen, &[], &["/p"], &[]);
    assert!(back.events.is_empty());
    writer.set("/p", b"2", -1).unwrap();
    assert_eq!(back.event(), (DATA_CHANGED, "/p".to_owned()));
}

/// The seam between what is replayed and what happens meanwhile: a client that comes and goes under steady writes
/// must be told of each exactly once.
#[test]
fn no_change_is_missed_or_told_twice_by_a_client_that_comes_and_goes() {
    const WRITES: usize = 1500;
    let zoo = Zoo::start(1, REPLAY);
    let mut writer = zoo.client(0, 8000);
    writer.create("/r", b"", 0).unwrap();
    let mut client = zoo.client(0, 8000);
    client.sync();
    let writing = std::thread::spawn(move || {
        for number in 0..WRITES {
            writer.create(&format!("/r/{number}"), b"", 0).unwrap();
        }
        writer
    });
    let (mut told, mut returns) = (Vec::new(), 0);
    while told.len() < WRITES {
        let seen = client.zxid;
        client = client.again(zoo.ports[0]).unwrap();
        set_watches(&mut client, seen, &[], &[], &["/r"]);
        for _ in 0..5 {
            client.ping();
        }
        told.extend(client.events.drain(..));
        returns += 1;
        assert!(returns < 10_000, "told {} of {WRITES}", told.len());
    }
    writing.join().unwrap();
    let expected: Vec<_> = (0..WRITES).map(|number| (CREATED, format!("/r/{number}"))).collect();
    assert_eq!(told, expected, "after {returns} returns");
    assert!(returns > 2, "it came and went while there were writes");
}

/// A history that was compacted cannot be told. Silence would be a lie, so the client is told to look again.
#[test]
fn a_client_whose_history_is_gone_is_told_to_look_again() {
    let zoo = Zoo::start(1, REPLAY);
    let (away, mut writer) = (zoo.client(0, 8000), zoo.client(0, 8000));
    for path in ["/p", "/r", "/gone"] {
        writer.create(path, b"", 0).unwrap();
    }
    let seen = writer.zxid;
    writer.delete("/gone", -1).unwrap();
    writer.create("/r/a", b"", 0).unwrap();
    writer.delete("/r/a", -1).unwrap();
    let body = format!("{{\"revision\": \"{}\", \"physical\": true}}", writer.zxid);
    let (status, answer) = http(zoo.node(0).client_port, "POST", "/v3/kv/compaction", &body).unwrap();
    assert_eq!(status, 200, "{answer}");
    let mut back = away.again(zoo.ports[0]).unwrap();
    set_watches(&mut back, seen, &[], &["/p", "/gone"], &["/r"]);
    let expected = [
        (DATA_CHANGED, "/p"),
        (CHILDREN_CHANGED, "/p"),
        (DELETED, "/gone"),
        (DATA_CHANGED, "/r"),
        (CHILDREN_CHANGED, "/r"),
    ];
    assert_eq!(back.events, expected.map(|(kind, path)| (kind, path.to_owned())));
    back.events.clear();
    writer.create("/r/b", b"", 0).unwrap();
    assert_eq!(back.event(), (CREATED, "/r/b".to_owned()), "and from here on it is told everything");
}

/// Bytes of the journal that are used: segments are filled up with zeros.
fn journal_bytes(node: &Process) -> u64 {
    let files = std::fs::read_dir(node.data_dir()).unwrap().map(|file| file.unwrap().path());
    let segments = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    let used =
        |path| std::fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    segments.map(used).sum()
}

/// ZooKeeper writes every path of a session that ends into its log; enough of them, and no server can read the entry
/// again (ZOOKEEPER-4306). Here the end is a few bytes, and happens at one revision.
#[test]
fn the_end_of_a_session_with_a_hundred_thousand_znodes_is_a_few_bytes_in_the_log() {
    const PARENTS: usize = 10;
    const EACH: usize = 10_000;
    // A snapshot in between would trim the journal.
    let zoo = Zoo::start(1, "maxSessionTimeout=120000");
    let (mut owner, mut watcher) = (zoo.client(0, 120_000), zoo.client(0, 120_000));
    for parent in 0..PARENTS {
        owner.create(&format!("/p{parent}"), b"", 0).unwrap();
        for part in (0..EACH).collect::<Vec<_>>().chunks(1000) {
            let paths: Vec<String> = part.iter().map(|child| format!("/p{parent}/ephemeral-{child:05}")).collect();
            create_many(&mut owner, &paths, EPHEMERAL);
        }
    }
    watcher.sync();
    assert_eq!(watcher.children("/p1", true).unwrap().len(), EACH);
    add_watch(&mut watcher, "/p2", RECURSIVE);
    let (revision, bytes) = (zoo.node(0).status_number("revision"), journal_bytes(zoo.node(0)));
    owner.close();
    let grown = journal_bytes(zoo.node(0)).saturating_sub(bytes);
    assert!(grown < 1024, "the journal grew by {grown} bytes");
    assert_eq!(zoo.node(0).status_number("revision"), revision + 1, "all went at one revision");
    watcher.sync();
    let at = i64::try_from(revision + 1).unwrap();
    let each = i32::try_from(EACH).unwrap();
    for parent in 0..PARENTS {
        let stat = watcher.exists(&format!("/p{parent}"), false).unwrap();
        assert_eq!((stat.children, stat.cversion, stat.pzxid), (0, 2 * each, at));
    }
    assert!(watcher.event_zxids.iter().all(|zxid| *zxid == at));
    let of_p1: Vec<_> = watcher.events.iter().filter(|(_, path)| path == "/p1").collect();
    assert_eq!(of_p1, [&(CHILDREN_CHANGED, "/p1".to_owned())]);
    let deleted = watcher.events.iter().filter(|(kind, path)| *kind == DELETED && path.starts_with("/p2/")).count();
    assert_eq!((deleted, watcher.events.len()), (EACH, EACH + 1), "everyone who watches is told of each");
}

/// A multi that sets the data of one znode several times.
fn set_many(packet: &mut Packet, path: &str, data: &[u8], times: usize) {
    for _ in 0..times {
        packet.int(5).byte(0).int(-1).text(path).buffer(Some(data)).int(-1);
    }
    packet.int(-1).byte(1).int(-1);
}

/// The limit of a packet is one of the door: it ends the connection of whoever sends more, and nothing else. In
/// ZooKeeper what is too large can keep a whole ensemble from electing a leader.
#[test]
fn the_limit_of_a_megabyte_is_the_senders_alone() {
    let zoo = Zoo::start(3, "");
    let mut client = zoo.client(0, 40_000);
    let megabyte = vec![7; 1_000_000];
    client.create("/large", &megabyte, 0).unwrap();
    assert!(client.get("/large", false).unwrap().0 == megabyte);
    // A list of children has no limit of its own.
    client.create("/many", b"", 0).unwrap();
    let names: Vec<String> = (0..16_000).map(|child| format!("/many/{child:05}-{}", "long-name-".repeat(10))).collect();
    names.chunks(2000).for_each(|part| create_many(&mut client, part, 0));
    let listed = client.children("/many", false).unwrap();
    assert!(listed.iter().map(|name| name.len() + 4).sum::<usize>() > 1_500_000);
    assert_eq!(listed.len(), names.len());
    // A request above the limit ends the connection, as with ZooKeeper, and only that.
    let mut other = zoo.client(1, 40_000);
    assert!(client.is_turned_away(14, |packet| set_many(packet, "/large", &vec![8; 400_000], 3)));
    other.sync();
    assert!(other.get("/large", false).unwrap().0 == megabyte, "nothing of it was carried out");
    let mut client = client.again(zoo.ports[0]).unwrap();
    client.set("/large", b"small", -1).unwrap();
    zoo.cluster.wait_until_replicas_agree();
}

/// Raised, the limit is what was asked for, up to what one log entry can carry; beyond, the node says so when it
/// starts, and it is the sender again who is turned away.
#[test]
fn a_raised_limit_lets_larger_requests_pass_and_hurts_no_quorum() {
    let zoo = Zoo::start(3, "jute.maxbuffer=50000000");
    assert!(zoo.node(0).log().contains("jute.maxbuffer is taken as 4194304"), "{}", zoo.node(0).log());
    let (mut client, mut other) = (zoo.client(0, 8000), zoo.client(1, 8000));
    client.create("/large", b"", 0).unwrap();
    let xid = client.ask(14, |packet| set_many(packet, "/large", &vec![8; 1_000_000], 4));
    assert_eq!(client.answer(xid).unwrap().int(), 5, "four megabytes in one request are carried out");
    other.sync();
    let (data, stat) = other.get("/large", false).unwrap();
    assert!(data == vec![8; 1_000_000] && stat.version == 4);
    let too_large = client.is_turned_away(5, |packet| {
        packet.text("/large").buffer(Some(&vec![9; 5_000_000])).int(-1);
    });
    assert!(too_large);
    other.set("/large", b"small", 4).unwrap();
    zoo.cluster.wait_until_replicas_agree();
}

/// ZooKeeper counts writes in 32 bits and elects a new leader, dropping everybody, when they are used up. A revision
/// has 64: writes, watches and sessions go on through the 2^32nd as through any other.
#[test]
fn zxids_go_on_beyond_the_thirty_second_bit() {
    let source = Cluster::start(1);
    source.run(&["put", "a", "1"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved").display().to_string();
    source.run(&["snapshot", "save", &file]);
    let revision = source.nodes[0].status_number("revision");
    drop(source);

    let mut zoo = Zoo::prepare(1, "");
    let node = zoo.node(0);
    let (data, bump) = (node.data_dir().display().to_string(), ((1u64 << 32) - 10 - revision).to_string());
    let peer = format!("127.0.0.1:{}", node.peer_port);
    let restore = ["snapshot", "restore", &file, "--data-dir", &data, "--name", &node.name, "--peer-advertise", &peer];
    let output = tidelock().args(restore).args(["--bump-revision", &bump]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    zoo.cluster.start_all();

    let (mut writer, mut watcher) = (zoo.client(0, 8000), zoo.client(0, 8000));
    writer.create("/z", b"", 0).unwrap();
    let mut last = writer.zxid;
    assert!(last < 1 << 32, "{last:x}");
    for round in 0..20 {
        watcher.sync();
        watcher.get("/z", true).unwrap();
        let stat = writer.set("/z", b"", round).unwrap();
        assert!(stat.mzxid > last && stat.czxid < stat.mzxid, "{:x} after {last:x}", stat.mzxid);
        last = stat.mzxid;
        assert_eq!(watcher.event(), (DATA_CHANGED, "/z".to_owned()));
        assert_eq!(watcher.event_zxids.last(), Some(&last));
    }
    assert!(last > 1 << 32, "{last:x}");
    // What was seen on one side counts on the other: watches given back from before the boundary fire.
    let mut back = watcher.again(zoo.ports[0]).unwrap();
    set_watches(&mut back, (1 << 32) - 1, &["/z"], &[], &[]);
    assert_eq!(back.event(), (DATA_CHANGED, "/z".to_owned()));
    assert!(back.zxid > 1 << 32);
}

/// Who changed this, when, and what was it before? ZooKeeper cannot say.
#[test]
fn the_history_of_a_znode_is_told_back_to_the_horizon() {
    let zoo = Zoo::start(1, "");
    let mut client = zoo.client(0, 8000);
    client.create("/h", b"one", 0).unwrap();
    client.set("/h", "zwei é".as_bytes(), -1).unwrap();
    client.delete("/h", -1).unwrap();
    client.create("/h", b"\xff\0", EPHEMERAL).unwrap();
    let run = |arguments: &[&str]| zoo.cluster.run(&[&["history"], arguments].concat());
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&run(&[arguments, &["--output", "json"]].concat())).unwrap()
    };
    let told = json(&["zk:/h"]);
    let shown = |told: &Value, field: &str| -> Vec<Value> {
        told["versions"].as_array().unwrap().iter().map(|version| version[field].clone()).collect()
    };
    assert_eq!(shown(&told, "kind"), ["created", "changed", "deleted", "created"]);
    assert_eq!(shown(&told, "data"), [Value::from("one"), "zwei é".into(), Value::Null, Value::Null]);
    assert_eq!(told["versions"][3]["data_hex"], "ff00");
    assert_eq!(shown(&told, "version"), [Value::from(0), 1.into(), Value::Null, 0.into()]);
    assert_eq!(told["versions"][3]["owner"], format!("{:016x}", client.session));
    assert_eq!(told["versions"][3]["revision"], client.zxid);
    assert!(told["versions"][1]["time_ms"].as_u64().unwrap() > 1_700_000_000_000);

    let text = run(&["zk:/h"]);
    assert!(text.contains("zwei é") && text.contains("deleted") && text.contains("0xff00"), "{text}");
    assert!(text.contains("what was superseded before revision"), "{text}");
    assert!(run(&["zk:/nobody"]).starts_with("no versions are held"));
    let newest = json(&["zk:/h", "--limit", "1"]);
    assert_eq!((shown(&newest, "kind"), &newest["more"]), (vec![Value::from("created")], &Value::Bool(true)));

    // Keys of etcd's clients, too.
    zoo.cluster.run(&["put", "k", "v1"]);
    zoo.cluster.run(&["put", "k", "v2"]);
    assert_eq!(shown(&json(&["k"]), "data"), ["v1", "v2"]);

    // Compacted: what cannot be read any more is not told, and the horizon is.
    let horizon = client.zxid;
    let body = format!("{{\"revision\": \"{horizon}\", \"physical\": true}}");
    assert_eq!(http(zoo.node(0).client_port, "POST", "/v3/kv/compaction", &body).unwrap().0, 200);
    let told = json(&["zk:/h"]);
    assert_eq!((shown(&told, "kind"), &told["oldest"]), (vec![Value::from("created")], &Value::from(horizon)));

    // It is the administrators' alone: no client's port answers it.
    assert_eq!(http(zoo.node(0).client_port, "POST", "/v1/history", "{\"znode\": \"/h\"}").unwrap().0, 404);
    let wrong = tidelock().args(["history", "zk:no-path", "--admin", &zoo.cluster.admins()]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
}
