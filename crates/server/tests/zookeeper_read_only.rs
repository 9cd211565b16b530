//! The read-only mode of ZooKeeper's protocol: what a server without a majority still does, and for whom.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
#[path = "support/ensemble.rs"]
mod ensemble;
mod support;

use ensemble::{Ensemble, ask, mode};
use support::wait_for;
use support::zookeeper::{Client, EPHEMERAL};

const NOT_READ_ONLY: i32 = -119;
/// Long enough that no session ends while servers are started anew.
const TIMEOUT_MS: i32 = 40_000;

/// A client that asks for it can read what a server that is cut off has, is told that it is so, can change nothing and
/// is never shown less than it saw before. When the majority is back it goes on with its session as if nothing had been.
#[test]
fn without_a_majority_clients_that_ask_for_it_can_read_and_nothing_else() {
    let mut ensemble = Ensemble::start(0, "readonlymode.enabled=true");
    let port = ensemble.port(1);
    let mut first = Client::open_reading(port, TIMEOUT_MS, 0, &[0; 16], 0).unwrap();
    assert!(!first.read_only, "there is a majority");
    first.create("/mine", b"1", EPHEMERAL).unwrap();
    first.create("/a", b"1", 0).unwrap();
    assert_eq!(ask(port, "isro"), "rw");
    ensemble.kill(2);
    ensemble.kill(3);

    let open = |session, password: &[u8], seen| Client::open_reading(port, TIMEOUT_MS, session, password, seen).ok();
    let mut reader = wait_for("a connection for reading", || open(0, &[0; 16], 0).filter(|client| client.read_only));
    assert_eq!((ask(port, "isro").as_str(), mode(port).as_deref()), ("ro", Some("read-only")));
    assert_eq!(reader.get("/a", true).unwrap().0, b"1");
    assert_eq!(reader.create("/b", b"", 0), Err(NOT_READ_ONLY));
    assert_eq!(reader.set("/a", b"2", -1), Err(NOT_READ_ONLY));
    assert_eq!(reader.delete("/a", -1), Err(NOT_READ_ONLY));
    let xid = reader.ask(9, |packet| {
        packet.text("/");
    });
    assert_eq!(reader.answer(xid).unwrap_err(), NOT_READ_ONLY, "there is nobody to catch up with");
    reader.ping();

    // Who does not ask for it is sent away, and so is who has seen more than there is here.
    assert!(Client::open(port, TIMEOUT_MS, 0, &[0; 16], 0).is_err());
    assert!(open(0, &[0; 16], first.zxid + 100).is_none(), "what it has seen, it must not unsee");
    // A session can go on reading, with its password, and cannot be ended.
    assert!(open(first.session, &[7; 16], 0).is_none());
    let mut again = open(first.session, &first.password, first.zxid).unwrap();
    assert!(again.read_only && again.session == first.session);
    assert_eq!(again.exists("/mine", false).unwrap().owner, first.session);
    let xid = again.ask(-11, |_| {});
    assert_eq!(again.answer(xid).unwrap_err(), NOT_READ_ONLY);
    // One that was made here ends as any other.
    wait_for("another one", || open(0, &[0; 16], 0)).close();

    ensemble.start_one(2, 3, &[]);
    ensemble.start_one(3, 3, &[]);
    wait_for("the majority to be back", || (ask(port, "isro") == "rw").then_some(()));
    wait_for("the readers to be closed", || (reader.try_ping().is_err() && again.try_ping().is_err()).then_some(()));
    let mut back = wait_for("a connection", || open(first.session, &first.password, first.zxid));
    assert!(!back.read_only);
    back.set("/mine", b"2", -1).unwrap();
    assert!(open(reader.session, &reader.password, 0).is_none(), "that session lasted as long as its connection");
}

/// Old data is shown to nobody unless the operator wants it.
#[test]
fn the_mode_is_off_unless_the_file_says_otherwise() {
    let mut ensemble = Ensemble::start(0, "");
    let port = ensemble.port(1);
    Client::connect(port).create("/a", b"", 0).unwrap();
    ensemble.kill(2);
    ensemble.kill(3);
    wait_for("the leader to be lost", || mode(port).is_none().then_some(()));
    assert!(Client::open_reading(port, TIMEOUT_MS, 0, &[0; 16], 0).is_err());
    assert_eq!(ask(port, "isro"), "rw");
}
