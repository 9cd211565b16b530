//! Every path that the OpenAPI document lists, called with what it takes: it must do what its name says.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use support::{Cluster, PATIENCE, http};

/// A client that notes what it called.
struct Client {
    port: u16,
    called: BTreeSet<String>,
    sessions: [Session; 2],
}

#[derive(Default)]
struct Session {
    id: String,
    number: u64,
}

/// Which of the two sessions asks.
#[derive(Clone, Copy)]
enum By {
    One,
    Other,
}
use By::{One, Other};

/// A number of an answer; those that are zero are left out.
fn number(value: &Value) -> u64 {
    match value {
        Value::Null => 0,
        value => value.as_str().map_or_else(|| value.as_u64(), |text| text.parse().ok()).expect("a number"),
    }
}

impl Client {
    /// Calls a path with a whole body; it must succeed.
    fn call(&mut self, path: &str, body: &Value) -> Value {
        let path = format!("/v1{path}");
        let (status, text) = http(self.port, "POST", &path, &body.to_string()).expect("an answer");
        assert_eq!(status, 200, "{path} {body}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(number(&answer["header"]["term"]) > 0, "{path}: {answer}");
        self.called.insert(path);
        answer
    }

    /// Has a session ask with its next number; the answer must be of that kind.
    fn ask(&mut self, by: By, path: &str, mut fields: Value, kind: &str) -> Value {
        let session = &mut self.sessions[by as usize];
        session.number += 1;
        fields["session"] = json!(session.id);
        fields["number"] = json!(session.number);
        fields["acknowledged"] = json!(session.number - 1);
        let answer = self.call(path, &fields)["answer"].clone();
        assert!(answer[kind].is_object(), "{path}: {answer}");
        answer[kind].clone()
    }

    /// What is known of the name that all of this is about.
    fn describe(&mut self, kind: &str) -> Value {
        self.call(&format!("/{kind}/describe"), &json!({ "name": "n", "limit": 10 }))
    }

    /// How many members it has.
    fn count(&mut self, kind: &str) -> u64 {
        number(&self.describe(kind)["count"])
    }

    /// Forgets the name, of which nothing must be left.
    fn forget(&mut self, kind: &str) {
        assert!(self.describe(kind)[kind].is_object(), "there is a {kind}");
        self.ask(One, &format!("/{kind}/forget"), json!({ "name": "n" }), "done");
        assert_eq!(self.describe(kind)[kind], Value::Null);
    }

    /// Listens at a path until the first event: its name.
    fn listen(&mut self, path: &str, happen: impl FnOnce(&mut Client)) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.port).unwrap();
        let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line in time"));
        assert!(lines.next().is_some_and(|line| line.starts_with("HTTP/1.1 200")), "{path}");
        assert!(lines.by_ref().find(String::is_empty).is_some(), "the end of the head");
        happen(self);
        self.called.insert(format!("/v1{}", path.split('?').next().unwrap()));
        lines.find_map(|line| line.strip_prefix("event: ").map(str::to_owned)).expect("an event")
    }
}

fn sessions(client: &mut Client) {
    for at in [One, Other] {
        let opened = client.call("/native/open", &json!({ "ttlMs": 60_000 }));
        opened["session"].as_str().unwrap().clone_into(&mut client.sessions[at as usize].id);
    }
    let session = json!({ "session": client.sessions[0].id });
    let kept = client.call("/native/keep-alive", &session);
    assert_eq!((&kept["session"], number(&kept["ttlMs"])), (&session["session"], 60_000));
    assert_eq!(client.call("/native/sessions", &json!({}))["sessions"].as_array().map(Vec::len), Some(2));
    let Session { id, number: last } = &mut client.sessions[0];
    *last += 1;
    let ask = json!({ "session": *id, "number": *last, "add": { "name": "asked", "delta": 7 } });
    assert_eq!(number(&client.call("/native/ask", &ask)["answer"]["counter"]["after"]), 7);
    let described = client.call("/native/describe", &json!({ "kind": "COUNTER", "name": "asked" }));
    assert_eq!(number(&described["counter"]["value"]), 7);
    let names = client.call("/native/names", &json!({ "kind": "COUNTER", "prefix": "a" }));
    assert_eq!(names["names"][0]["name"], "asked");
}

fn locks(client: &mut Client) {
    let held = client.ask(One, "/lock/acquire", json!({ "name": "n" }), "place");
    let shared = json!({ "name": "n", "mode": "SHARED" });
    let waits = client.ask(Other, "/lock/acquire", shared, "place");
    assert!(number(&held["token"]) > 0 && number(&waits["token"]) == 0, "{held} {waits}");
    let renew = json!({ "name": "n", "token": held["token"], "ttlMs": 90_000 });
    client.ask(One, "/lock/renew", renew, "done");
    let session = json!({ "session": client.sessions[0].id });
    assert_eq!(number(&client.call("/native/sessions", &session)["sessions"][0]["ttlMs"]), 90_000);
    client.ask(One, "/lock/downgrade", json!({ "name": "n", "token": held["token"] }), "done");
    let members = client.describe("lock")["members"].clone();
    let is_shared = |member: &Value| member["mode"] == "SHARED" && number(&member["token"]) > 0;
    assert!(is_shared(&members[0]) && is_shared(&members[1]), "both hold it now: {members}");
    client.ask(One, "/lock/release", json!({ "name": "n", "token": held["token"] }), "left");
    assert_eq!(client.count("lock"), 1);
    client.ask(Other, "/lock/give-up", json!({ "name": "n", "place": waits["place"] }), "left");
    assert_eq!(client.count("lock"), 0);
}

fn semaphores(client: &mut Client) {
    client.ask(One, "/semaphore/resize", json!({ "name": "n", "permits": 3 }), "done");
    let held = client.ask(One, "/semaphore/acquire", json!({ "name": "n", "weight": 2 }), "place");
    let other = client.ask(Other, "/semaphore/acquire", json!({ "name": "n" }), "place");
    let head = client.describe("semaphore")["semaphore"].clone();
    assert_eq!((number(&head["permits"]), number(&head["used"])), (3, 3));
    let renew = json!({ "name": "n", "token": held["token"], "ttlMs": 80_000 });
    client.ask(One, "/semaphore/renew", renew, "done");
    client.ask(One, "/semaphore/release", json!({ "name": "n", "token": held["token"] }), "left");
    assert_eq!(number(&client.describe("semaphore")["semaphore"]["used"]), 1);
    client.ask(Other, "/semaphore/give-up", json!({ "name": "n", "place": other["place"] }), "left");
    assert_eq!(client.count("semaphore"), 0);
    client.forget("semaphore");
}

fn elections(client: &mut Client) {
    let leads = client.ask(One, "/election/campaign", json!({ "name": "n" }), "place");
    let stands = client.ask(Other, "/election/campaign", json!({ "name": "n" }), "place");
    assert!(number(&leads["token"]) > 0 && number(&stands["token"]) == 0, "{leads} {stands}");
    client.ask(One, "/election/proclaim", json!({ "name": "n", "token": leads["token"], "data": "bmV3" }), "done");
    let renew = json!({ "name": "n", "token": leads["token"], "ttlMs": 70_000 });
    client.ask(One, "/election/renew", renew, "done");
    let leader = client.call("/election/leader", &json!({ "name": "n" }))["members"].clone();
    assert_eq!((leader[0]["data"].as_str(), leader.as_array().map(Vec::len)), (Some("bmV3"), Some(1)));
    let successor = client.sessions[1].id.clone();
    let resign = json!({ "name": "n", "token": leads["token"], "successor": successor });
    client.ask(One, "/election/resign-to", resign, "left");
    let leader = client.describe("election")["members"][0].clone();
    assert_eq!(leader["session"], json!(successor));
    let stands = client.ask(One, "/election/campaign", json!({ "name": "n" }), "place");
    client.ask(Other, "/election/resign", json!({ "name": "n", "token": leader["token"] }), "left");
    assert_eq!(client.count("election"), 1);
    client.ask(One, "/election/give-up", json!({ "name": "n", "place": stands["place"] }), "left");
    assert_eq!(client.count("election"), 0);
}

fn barriers(client: &mut Client) {
    let enter = || json!({ "name": "n", "parties": 2, "double": true });
    let first = client.ask(One, "/barrier/enter", enter(), "entered");
    assert_eq!(number(&first["missing"]), 1);
    client.ask(One, "/barrier/give-up", json!({ "name": "n", "place": first["place"] }), "left");
    assert_eq!(client.count("barrier"), 0);
    let first = client.ask(One, "/barrier/enter", enter(), "entered");
    let second = client.ask(Other, "/barrier/enter", enter(), "entered");
    assert_eq!((client.describe("barrier")["barrier"]["gate"].as_str(), number(&second["missing"])), (Some("OPEN"), 0));
    let leaving = client.ask(One, "/barrier/leave", json!({ "name": "n", "place": first["place"] }), "leaving");
    assert_eq!(number(&leaving["inside"]), 1);
    let leaving = client.ask(Other, "/barrier/leave", json!({ "name": "n", "place": second["place"] }), "leaving");
    assert_eq!(number(&leaving["inside"]), 0);
}

fn latches(client: &mut Client) {
    let set = client.ask(One, "/latch/set", json!({ "name": "n", "count": 3 }), "latch");
    assert_eq!(number(&set["left"]), 3);
    let pledged = client.ask(One, "/latch/pledge", json!({ "name": "n" }), "pledged");
    assert_eq!(client.count("latch"), 1);
    let down = json!({ "name": "n", "pledge": pledged["pledge"] });
    assert_eq!(number(&client.ask(One, "/latch/count-down", down, "latch")["left"]), 2);
    let pledged = client.ask(Other, "/latch/pledge", json!({ "name": "n" }), "pledged");
    client.ask(Other, "/latch/give-up", json!({ "name": "n", "place": pledged["pledge"] }), "left");
    assert_eq!(client.count("latch"), 0);
    client.forget("latch");
}

fn phasers(client: &mut Client) {
    let one = client.ask(One, "/phaser/register", json!({ "name": "n", "parties": 1 }), "registered");
    let other = client.ask(Other, "/phaser/register", json!({ "name": "n", "parties": 1 }), "registered");
    let arrived = client.ask(One, "/phaser/arrive", json!({ "name": "n", "party": one["party"] }), "arrived");
    assert_eq!(arrived["now"], arrived["phase"], "the other is missing");
    client.ask(Other, "/phaser/give-up", json!({ "name": "n", "place": other["party"] }), "left");
    let head = client.describe("phaser")["phaser"].clone();
    assert!(number(&head["phase"]) > number(&arrived["phase"]) && number(&head["registered"]) == 1, "{head}");
    let gone = json!({ "name": "n", "party": one["party"], "deregister": true });
    client.ask(One, "/phaser/arrive", gone, "arrived");
    client.forget("phaser");
}

fn counters_and_fences(client: &mut Client) {
    assert_eq!(number(&client.ask(One, "/counter/add", json!({ "name": "n", "delta": 5 }), "counter")["after"]), 5);
    let set = json!({ "name": "n", "expected": 5, "value": 9 });
    client.ask(One, "/counter/compare-and-set", set, "counter");
    assert_eq!(number(&client.describe("counter")["counter"]["value"]), 9);
    client.forget("counter");
    let held = client.ask(One, "/lock/acquire", json!({ "name": "n" }), "place");
    client.ask(One, "/fence/admit", json!({ "fence": "n", "token": held["token"] }), "done");
    assert_eq!(client.describe("fence")["fence"]["highest"], held["token"]);
    let guards = json!([{ "kind": "LOCK", "name": "n", "token": held["token"] }]);
    let put = json!([{ "key": "a2V5", "value": "dmFsdWU=" }]);
    client.ask(One, "/keys/write", json!({ "guards": guards, "puts": put }), "done");
    // The key is there: who wants it to be absent is refused.
    let absent = json!([{ "key": "a2V5" }]);
    let again = json!({ "session": client.sessions[0].id, "number": client.sessions[0].number + 1,
        "guards": guards, "conditions": absent, "puts": put });
    let (status, text) = http(client.port, "POST", "/v1/keys/write", &again.to_string()).unwrap();
    assert!(status == 409 && text.contains("KEY_CHANGED"), "{status} {text}");
    client.sessions[0].number += 1;
    client.ask(One, "/lock/release", json!({ "name": "n", "token": held["token"] }), "left");
}

fn versions(client: &mut Client) {
    let first = client.ask(One, "/rcu/publish", json!({ "name": "n", "data": "djE=" }), "version");
    let reads = client.ask(Other, "/rcu/start-reading", json!({ "name": "n" }), "version");
    let second = client.ask(One, "/rcu/publish", json!({ "name": "n", "data": "djI=" }), "version");
    assert_eq!((&second["oldest"], &reads["version"]), (&first["version"], &first["version"]));
    let report = json!({ "name": "n", "reader": reads["reader"], "version": second["version"] });
    client.ask(Other, "/rcu/report", report, "version");
    let head = client.describe("rcu")["rcu"].clone();
    assert_eq!((&head["oldest"], head["data"].as_str()), (&second["version"], Some("djI=")));
    client.ask(Other, "/rcu/give-up", json!({ "name": "n", "place": reads["reader"] }), "left");
    assert_eq!(client.count("rcu"), 0);
    client.forget("rcu");
}

fn hazards(client: &mut Client) {
    let kept = client.ask(One, "/hazard/protect", json!({ "name": "n" }), "protected");
    assert_eq!(client.count("hazard"), 1);
    let retired = client.ask(Other, "/hazard/retire", json!({ "name": "n" }), "retired");
    assert_ne!(retired["clear"], json!(true), "somebody keeps it");
    assert_eq!(client.describe("hazard")["hazard"]["retiring"], json!(true));
    client.ask(One, "/hazard/give-up", json!({ "name": "n", "place": kept["place"] }), "left");
    let head = client.describe("hazard")["hazard"].clone();
    assert!(head["retiring"] != json!(true) && head["epoch"] == retired["epoch"], "{head}");
    client.forget("hazard");
}

fn listening(client: &mut Client) {
    let held = client.ask(One, "/lock/acquire", json!({ "name": "n" }), "place");
    let waits = client.ask(Other, "/lock/acquire", json!({ "name": "n" }), "place");
    let events = format!("/native/events?session={}", client.sessions[1].id);
    let release = json!({ "name": "n", "token": held["token"] });
    let told = client.listen(&events, |client| drop(client.ask(One, "/lock/release", release, "left")));
    assert_eq!(told, "granted");
    let give_up = json!({ "name": "n", "place": waits["place"] });
    let told = client.listen("/observe?kind=LOCK&name=n", |client| {
        client.ask(Other, "/lock/give-up", give_up, "left");
    });
    assert_eq!(told, "gone");
}

/// A path that nobody ever called may have been broken from the beginning, and whoever reads the document finds out.
#[test]
fn every_path_of_the_document_does_what_its_name_says() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut client = Client { port: ports[0], called: BTreeSet::new(), sessions: Default::default() };
    sessions(&mut client);
    locks(&mut client);
    semaphores(&mut client);
    elections(&mut client);
    barriers(&mut client);
    latches(&mut client);
    phasers(&mut client);
    counters_and_fences(&mut client);
    versions(&mut client);
    hazards(&mut client);
    listening(&mut client);
    for at in 0..2 {
        client.call("/native/close", &json!({ "session": client.sessions[at].id }));
    }
    assert_eq!(client.call("/native/sessions", &json!({}))["sessions"].as_array().map_or(0, Vec::len), 0);
    let (status, text) = http(ports[0], "GET", "/v1/openapi.json", "").unwrap();
    assert_eq!(status, 200);
    client.called.insert("/v1/openapi.json".to_owned());
    let document: Value = serde_json::from_str(&text).unwrap();
    let listed: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let amiss: Vec<&String> = client.called.symmetric_difference(&listed).collect();
    assert!(amiss.is_empty(), "called and not listed, or listed and not called: {amiss:?}");
}
