//! What no well-behaved ZooKeeper client sends, against the real binary: each is answered with an error or ends its own
//! connection, another client is served all the while, and the node's memory stays bounded: the most it ever held
//! counts, not what it holds afterwards.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]
// Memory is read from /proc.
#![cfg(target_os = "linux")]

#[path = "zookeeper_bad_input/mutations.rs"]
mod mutations;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::zookeeper::{Client, EPHEMERAL, Packet, SEQUENTIAL};
use support::{Cluster, free_ports, wait_for};

const MARSHALLING: i32 = -5;
const UNIMPLEMENTED: i32 = -6;
const BAD_ARGUMENTS: i32 = -8;
const NO_NODE: i32 = -101;

const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const MULTI: i32 = 14;
const MULTI_READ: i32 = 22;
const SET_WATCHES: i32 = 101;
const ADD_WATCH: i32 = 106;

/// `jute.maxbuffer` unless somebody sets it.
const MAX_FRAME: i32 = 0xf_ffff;
/// `maxClientCnxns` unless somebody sets it.
const CONNECTIONS_MAX: usize = 60;
/// What one client may cost, whatever it does: what is read ahead, one log entry on its way, what was found and is
/// unsent, its watches; and the data that it wrote.
const MEMORY_MAX: usize = 512 << 20;

/// How long a bystander's request may take on a busy machine, whatever others do.
const BYSTANDER_PATIENCE: Duration = Duration::from_secs(10);
/// How often the bystander asks.
const BYSTANDER_PAUSE: Duration = Duration::from_millis(20);

/// A node with something to lose, somebody who uses it, and a bystander who does so all the while.
struct Server {
    cluster: Cluster,
    port: u16,
    witness: Client,
    resident: usize,
    bystander: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Server {
        let mut cluster = Cluster::prepare(1, &[]);
        let port = free_ports(1)[0];
        cluster.nodes[0].add_arguments(&["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")]);
        cluster.start_all();
        let mut witness = Client::open(port, 40_000, 0, &[0; 16], 0).unwrap();
        witness.create("/precious", b"kept", 0).unwrap();
        witness.create("/alive", b"", 0).unwrap();
        let resident = cluster.nodes[0].resident_bytes_max();
        let is_over = Arc::new(AtomicBool::new(false));
        let bystander = Some(stand_by(Client::open(port, 40_000, 0, &[0; 16], 0).unwrap(), Arc::clone(&is_over)));
        Server { cluster, port, witness, resident, bystander, is_over }
    }

    /// What was there is there, writing works, nothing panicked, and memory is bounded.
    fn check_unharmed(&mut self, after: &str) {
        assert_eq!(self.witness.get("/precious", false).unwrap().0, b"kept", "after {after}");
        self.witness.set("/alive", after.as_bytes(), -1).unwrap();
        assert!(!self.cluster.nodes[0].has_ended(), "the node ended after {after}");
        let stood = self.bystander.as_ref().is_some_and(|bystander| !bystander.is_finished());
        assert!(stood, "a bystander was not served, up to {after}");
        let log = self.cluster.nodes[0].log();
        assert!(!log.contains("panicked"), "after {after}: {log}");
        let grown = self.cluster.nodes[0].resident_bytes_max().saturating_sub(self.resident);
        assert!(grown < MEMORY_MAX, "{} MiB more after {after}", grown >> 20);
    }

    fn client(&self) -> Client {
        wait_for("a connection", || Client::open(self.port, 40_000, 0, &[0; 16], 0).ok())
    }

    /// Sends bytes on a fresh connection, says that nothing follows, and gives what comes back.
    fn told(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // It may be closed while we still talk.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "neither answered nor closed: {bytes:?}");
        }
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.bystander.take().map(JoinHandle::join);
    }
}

/// Reads and writes until it is over; ends early if that does not work, or takes too long.
fn stand_by(mut client: Client, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let since = Instant::now();
            client.get("/precious", false).unwrap();
            client.set("/alive", b"", -1).unwrap();
            assert!(since.elapsed() < BYSTANDER_PATIENCE, "a bystander waited {:?}", since.elapsed());
            std::thread::sleep(BYSTANDER_PAUSE);
        }
    })
}

/// Whether the server closes this connection; whatever else it sends first is read.
fn ends(stream: &mut TcpStream) -> bool {
    let mut sink = [0; 64 * 1024];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&i32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat()
}

fn greeting() -> Packet {
    let mut packet = Packet::default();
    packet.int(0).long(0).int(4000).long(0).buffer(Some(&[0; 16])).byte(0);
    packet
}

fn long_path(number: usize) -> String {
    format!("/{number:08}{}", "x".repeat(60_000))
}

/// A frame that lies about its length, or comes before anybody said hello, must cost a connection and no more.
#[test]
fn frames_that_lie_end_their_own_connection() {
    let mut server = Server::start();
    let hello = greeting().0;
    for length in [-1, i32::MIN, MAX_FRAME + 1, i32::MAX, 0] {
        assert!(server.told(&[&length.to_be_bytes()[..], &hello].concat()).is_empty(), "length {length}");
    }
    for end in 0..hello.len() - 1 {
        let answer = server.told(&framed(&hello[..end]));
        assert!(answer.is_empty(), "a greeting of {end} bytes: {answer:?}");
        assert!(server.told(&framed(&hello)[..end]).is_empty(), "a greeting that breaks off after {end} bytes");
    }
    let mut early = Packet::default();
    early.int(1).int(GET_DATA).text("/precious").byte(0);
    assert!(server.told(&framed(&early.0)).is_empty(), "a request before the greeting");
    server.check_unharmed("bad greetings");

    for length in [-1, i32::MIN, MAX_FRAME + 1, i32::MAX, 0, 3, 7] {
        let mut client = server.client();
        client.stream.write_all(&length.to_be_bytes()).unwrap();
        let _ = client.stream.write_all(&[0; 7]);
        assert!(ends(&mut client.stream), "length {length}");
    }
    // Announced and never sent: it is waited for, and nothing is held for what has not come.
    let waiting: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = server.client();
            client.stream.write_all(&MAX_FRAME.to_be_bytes()).unwrap();
            client
        })
        .collect();
    server.check_unharmed("forty frames that never come");
    drop(waiting);

    let mut client = server.client();
    client.send(&greeting()).unwrap();
    let answer = client.receive().unwrap();
    assert_eq!(answer[..4], 0i32.to_be_bytes(), "a second greeting is a request with the xid 0");
    assert_eq!(answer[12..16], UNIMPLEMENTED.to_be_bytes());
    client.ping();
    server.check_unharmed("a second greeting");
}

/// Clients match answers to requests by xid and order alone: whatever number they choose comes back, in turn.
#[test]
fn any_xid_comes_back_as_it_was_sent() {
    let mut server = Server::start();
    let mut client = server.client();
    let xids = [0, -1, -2, -4, -8, -9, -10, -11, i32::MIN, i32::MAX, 5, 5, 5];
    for xid in xids {
        let mut packet = Packet::default();
        packet.int(xid).int(EXISTS).text("/precious").byte(0);
        client.send(&packet).unwrap();
    }
    for xid in xids {
        let answer = client.receive().unwrap();
        assert_eq!(answer[..4], xid.to_be_bytes());
        assert_eq!(answer.len(), 16 + 68, "xid {xid}");
    }
    server.check_unharmed("wild xids");
}

/// A path that is illegal must not become a znode, by whatever operation: nobody could delete it again.
#[test]
fn illegal_paths_are_refused_by_every_operation() {
    let mut server = Server::start();
    let mut client = server.client();
    let bad: Vec<Vec<u8>> = [
        "",
        "a",
        "//",
        "/a/",
        "//a",
        "/.",
        "/..",
        "/./a",
        "/../a",
        "/\0",
        "/a\0b",
        "/\u{1}",
        "/\u{1f}",
        "/\u{7f}",
        "/\u{9f}",
        "/\u{e000}",
        "/\u{f8ff}",
        "/\u{fff0}",
        "/\u{ffff}",
    ]
    .iter()
    .map(|path| path.as_bytes().to_vec())
    .chain([b"/\xff".to_vec(), b"/\xc3".to_vec(), b"/\xed\xa0\x80".to_vec(), [b"/", &b"x".repeat(70_000)[..]].concat()])
    .collect();
    for path in &bad {
        let shown = String::from_utf8_lossy(&path[..path.len().min(20)]).into_owned();
        // With a number behind them some would be legal.
        for flags in [0, EPHEMERAL] {
            let xid = client.ask(CREATE, |packet| {
                packet.buffer(Some(path)).buffer(None).int(1).int(31).text("world").text("anyone").int(flags);
            });
            let refused = client.answer(xid).expect_err(&shown);
            assert!([BAD_ARGUMENTS, NO_NODE].contains(&refused), "{shown:?}: {refused}");
        }
        // delete, setData, getACL, setACL, getAllChildrenNumber, getChildren2; the empty path is the root to reads.
        for opcode in [2, 5, 6, 7, 104, 12] {
            let xid = client.ask(opcode, |packet| {
                packet.buffer(Some(path));
                match opcode {
                    2 => packet.int(-1),
                    5 => packet.buffer(None).int(-1),
                    7 => packet.int(1).int(31).text("world").text("anyone").int(-1),
                    12 => packet.byte(1),
                    _ => packet,
                };
            });
            let answer = client.answer(xid);
            assert!(answer.is_err() || path.is_empty(), "{shown:?} with {opcode}");
        }
    }
    assert_eq!(client.children("/", false).unwrap(), ["alive", "precious", "zookeeper"]);
    server.check_unharmed("illegal paths");
}

/// Paths may be deep. A change far down must not cost a look at everything above it while everybody waits.
#[test]
fn a_path_of_thousands_of_parts_is_like_any_other() {
    let mut server = Server::start();
    let mut client = server.client();
    let deepest = "/d".repeat(10_000);
    assert_eq!(client.create(&deepest, b"", 0), Err(NO_NODE));
    assert_eq!(client.exists(&deepest, true), Err(NO_NODE));
    let xid = client.ask(ADD_WATCH, |packet| {
        packet.text("/d").int(1);
    });
    client.answer(xid).unwrap();
    let asked: Vec<i32> = (1..=2000).map(|depth| client.ask_create(&"/d".repeat(depth), b"", 0)).collect();
    for xid in asked {
        client.answer(xid).unwrap();
    }
    assert_eq!(client.events.len(), 2000);
    let (path, since) = ("/d".repeat(2000), Instant::now());
    for _ in 0..50 {
        client.set(&path, b"", -1).unwrap();
    }
    assert!(since.elapsed() < Duration::from_secs(20), "fifty changes took {:?}", since.elapsed());
    server.check_unharmed("deep paths");
}

/// A small request can name the same large thing thousands of times. What would be too long a reply is refused (-5)
/// before memory is taken for it.
#[test]
fn requests_that_ask_for_far_more_than_they_weigh_are_refused() {
    let mut server = Server::start();
    let mut client = server.client();
    client.create("/large", &vec![7; 900_000], 0).unwrap();
    client.create("/many", b"", 0).unwrap();
    let asked: Vec<i32> = (0..5000).map(|_| client.ask_create("/many/n-", b"", SEQUENTIAL)).collect();
    for xid in asked {
        client.answer(xid).unwrap();
    }
    server.check_unharmed("some large znodes");
    for (opcode, path) in [(GET_DATA, "/large"), (GET_CHILDREN, "/many")] {
        let xid = client.ask(MULTI_READ, |packet| {
            for _ in 0..40_000 {
                packet.int(opcode).byte(0).int(-1).text(path).byte(0);
            }
            packet.int(-1).byte(1).int(-1);
        });
        assert_eq!(client.answer(xid).unwrap_err(), MARSHALLING, "{path}");
        server.check_unharmed("a multiRead of forty thousand");
    }
    let xid = client.ask(MULTI, |packet| {
        for _ in 0..40_000 {
            packet.int(13).byte(0).int(-1).text("/many").int(99);
        }
        packet.int(-1).byte(1).int(-1);
    });
    assert_eq!(client.answer(xid).unwrap().int(), -1, "the first check fails, and every one has a result");
    let xid = client.ask(MULTI, |packet| {
        packet.int(13).byte(0).int(-1).text("/many").int(-1);
    });
    assert_eq!(client.answer(xid).unwrap_err(), MARSHALLING, "a multi without an end");
    server.check_unharmed("huge multis");
}

/// Many large requests at once are one client's own problem: read ahead and written together within limits.
#[test]
fn large_requests_that_come_all_at_once_are_taken_bit_by_bit() {
    let mut server = Server::start();
    let mut client = server.client();
    client.create("/a", b"", 0).unwrap();
    let identity = format!("user:{}", "x".repeat(2000));
    let asked: Vec<i32> = (0..150)
        .map(|_| {
            client.ask(SET_ACL, |packet| {
                packet.text("/a").int(451);
                for _ in 0..450 {
                    packet.int(31).text("digest").text(&identity);
                }
                packet.int(31).text("world").text("anyone").int(-1);
            })
        })
        .collect();
    for xid in asked {
        client.answer(xid).unwrap();
    }
    let paths: Vec<i32> = (0..300).map(|number| client.ask_create(&long_path(number), b"", EPHEMERAL)).collect();
    for xid in paths {
        client.answer(xid).unwrap();
    }
    server.check_unharmed("large requests all at once");
}

/// Who asks for much and reads it late gets it all; meanwhile only a little of it is held.
#[test]
fn replies_that_nobody_reads_are_held_back_and_arrive_in_the_end() {
    let mut server = Server::start();
    let mut client = server.client();
    client.create("/large", &vec![7; 900_000], 0).unwrap();
    let asked: Vec<i32> = (0..600)
        .map(|_| {
            client.ask(GET_DATA, |packet| {
                packet.text("/large").byte(0);
            })
        })
        .collect();
    for round in 0..20 {
        server.check_unharmed(&format!("replies that nobody reads, look {round}"));
        std::thread::sleep(Duration::from_millis(50));
    }
    for xid in asked {
        assert_eq!(client.answer(xid).unwrap().buffer().unwrap().len(), 900_000);
    }
    server.check_unharmed("half a gigabyte of replies");
}

/// Events cannot be held back: they are the store's changes. Who does not take them is closed, and holds nothing.
#[test]
fn a_client_that_takes_no_events_is_closed() {
    let mut server = Server::start();
    let mut deaf = server.client();
    let path = long_path(1);
    let mut writer = server.client();
    writer.create(&path, b"", 0).unwrap();
    let xid = deaf.ask(ADD_WATCH, |packet| {
        packet.text(&path).int(0);
    });
    deaf.answer(xid).unwrap();
    // 180 MB of events, far more than is held for anybody.
    for _ in 0..30 {
        let asked: Vec<i32> = (0..100)
            .map(|_| {
                writer.ask(5, |packet| {
                    packet.text(&path).buffer(None).int(-1);
                })
            })
            .collect();
        for xid in asked {
            writer.answer(xid).unwrap();
        }
    }
    // It is gone without having taken anything: what the kernel holds for it is all that comes.
    let ping = framed(&[0, 0, 0, 1, 0, 0, 0, 11]);
    wait_for("the connection to be closed", || deaf.stream.write_all(&ping).err());
    server.check_unharmed("events that nobody takes");
}

/// Watches are memory that a client takes by asking. A hundred thousand are fine; without a limit it would be all there is.
#[test]
fn a_client_may_have_many_watches_but_not_any_number() {
    let mut server = Server::start();
    let mut client = server.client();
    let mut asked = Vec::new();
    for number in 0..100_000 {
        asked.push(client.ask(EXISTS, |packet| {
            packet.text(&format!("/watched/{number}")).byte(1);
        }));
        if asked.len() == 1000 {
            for xid in asked.drain(..) {
                assert_eq!(client.answer(xid).unwrap_err(), NO_NODE);
            }
        }
    }
    server.witness.create("/watched", b"", 0).unwrap();
    server.witness.create("/watched/77777", b"", 0).unwrap();
    assert_eq!(client.event(), (1, "/watched/77777".to_owned()));
    server.check_unharmed("a hundred thousand watches");

    // Too many by the bytes of their paths: 4,500 times 60 kB.
    let mut greedy = server.client();
    for number in 0..4500 {
        let mut packet = Packet::default();
        packet.int(1).int(ADD_WATCH).text(&long_path(number)).int(0);
        if greedy.send(&packet).is_err() {
            break;
        }
    }
    assert!(ends(&mut greedy.stream), "270 MB of watches are not too many");
    server.check_unharmed("too many watches");
}

/// A client that comes back gives its watches back in one request, as many as fit. Its counts may lie.
#[test]
fn watches_given_back_are_taken_as_they_are_or_refused() {
    let mut server = Server::start();
    let mut client = server.client();
    for count in [i32::MAX, 1 << 20, -2, i32::MIN, -1] {
        let xid = client.ask(SET_WATCHES, |packet| {
            packet.long(0).int(count).text("/a").int(0).int(0);
        });
        assert!(client.answer(xid).is_err(), "a count of {count}");
    }
    let xid = client.ask(SET_WATCHES, |packet| {
        packet.long(i64::MAX).int(1).text("/precious").int(80_000);
        for number in 0..80_000 {
            packet.text(&format!("/{number:06}"));
        }
        packet.int(1).text("/gone");
    });
    client.answer(xid).unwrap();
    assert_eq!(client.event(), (2, "/gone".to_owned()), "what it watched and is not there is told as gone");
    server.check_unharmed("eighty thousand watches given back");
}

/// Words are for people and scripts, who mistype: an answer or a closed connection, never a node that waits.
#[test]
fn words_that_are_none_end_the_connection() {
    let mut server = Server::start();
    assert!(server.told(b"srvr").starts_with(b"Zookeeper version: "));
    assert!(server.told(b"srvr and more, which nobody reads").starts_with(b"Zookeeper version: "));
    assert!(server.told(b"ruok").ends_with(b"not in the whitelist.\n"));
    for garbage in
        [&b"RUOK"[..], b"ruo", b"xxxx", b"\0ruok", b"sr\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0"]
    {
        assert!(server.told(garbage).is_empty(), "{garbage:?}");
    }
    let mut client = server.client();
    client.stream.write_all(b"srvr").unwrap();
    assert!(ends(&mut client.stream), "inside a session a word is a length, and far too long");
    server.check_unharmed("words that are none");
}

/// Connections that say nothing are counted like any other, and end by themselves: a scanner must not lock clients out.
#[test]
fn connections_that_say_nothing_make_room_again() {
    let mut server = Server::start();
    let connect = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX * 3).map(|_| connect()).collect();
    assert!(Client::open(server.port, 4000, 0, &[0; 16], 0).is_err(), "beyond maxClientCnxns nobody is let in");
    server.witness.ping();
    let since = Instant::now();
    wait_for("room for others", || Client::open(server.port, 4000, 0, &[0; 16], 0).ok());
    assert!(since.elapsed() < Duration::from_secs(20), "room after {:?}", since.elapsed());
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert!(ends(&mut stream));
    }
    server.check_unharmed("connections that say nothing");
}

/// Every field of every request, wrong in every way that can be told from outside.
#[test]
fn every_request_with_any_part_of_it_wrong_is_survived() {
    let mut server = Server::start();
    mutations::systematic(&mut server);
    server.check_unharmed("systematic mutations");
}

/// And whatever else chance brings. The seed is fixed: what fails once fails again.
#[test]
fn random_changes_to_valid_requests_are_survived() {
    let mut server = Server::start();
    mutations::random(&mut server, 0x7469_6465, Duration::from_secs(10));
    server.check_unharmed("random mutations");
}
