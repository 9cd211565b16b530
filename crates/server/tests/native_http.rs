//! The native API as people and scripts use it: JSON over HTTP, server-sent events, the OpenAPI document, and every
//! command of docs/native-api.md.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use support::{Cluster, PATIENCE, http};

fn post(port: u16, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = http(port, "POST", path, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}")))
}

fn done(port: u16, path: &str, body: &Value) -> Value {
    let (status, answer) = post(port, path, body);
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn open(port: u16) -> String {
    done(port, "/v1/native/open", &json!({ "ttlMs": 60_000 }))["session"].as_str().unwrap().to_owned()
}

/// A stream of server-sent events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(port: u16, path: &str, last: Option<&str>) -> Events {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{last}\r\n").unwrap();
        let mut events = Events(BufReader::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(events.0.read_line(&mut head).unwrap(), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        events
    }

    /// The next event: id, name, data.
    fn next(&mut self) -> (String, String, Value) {
        let (mut id, mut event) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended");
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("id: ") {
                text.clone_into(&mut id);
            } else if let Some(text) = line.strip_prefix("event: ") {
                text.clone_into(&mut event);
            } else if let Some(text) = line.strip_prefix("data: ") {
                return (id, event, serde_json::from_str(text).unwrap());
            }
        }
    }
}

/// A script with nothing but curl must be able to hold a lock, hand it over, and be told of it.
#[test]
fn a_lock_is_taken_waited_for_and_handed_over_with_json() {
    let (_cluster, ports) = Cluster::start_native(1);
    let port = ports[0];
    let (one, other) = (open(port), open(port));
    let mut told = Events::open(port, &format!("/v1/native/events?session={other}"), None);
    let mut observed = Events::open(port, "/v1/observe?kind=lock&name=a%2Fb", None);
    let first = done(port, "/v1/lock/acquire", &json!({ "session": one, "number": 1, "name": "a/b" }));
    let token = first["answer"]["place"]["token"].as_str().unwrap().to_owned();
    assert!(first["header"]["term"].is_string() && first["header"]["revision"].is_string(), "{first}");
    let again = done(port, "/v1/lock/acquire", &json!({ "session": one, "number": 1, "name": "a/b" }));
    assert_eq!(again["answer"], first["answer"]);
    let waits = done(port, "/v1/lock/acquire", &json!({ "session": other, "number": 1, "name": "a/b" }));
    assert_eq!(waits["answer"]["place"]["token"], Value::Null, "{waits}");
    done(port, "/v1/lock/release", &json!({ "session": one, "number": 2, "name": "a/b", "token": token }));
    let (id, event, data) = told.next();
    let granted = data["granted"]["token"].as_str().unwrap().to_owned();
    assert_eq!((event.as_str(), &id), ("granted", &granted));
    let (first_id, event, _) = observed.next();
    assert_eq!((event.as_str(), &first_id), ("granted", &token));
    // Who comes back is told what it missed.
    let mut resumed = Events::open(port, "/v1/observe?kind=LOCK&name=a%2Fb", Some(&first_id));
    // Both happened at one revision: who was cut between them must not be taken for told of both.
    let gone = resumed.next();
    assert_eq!((gone.0.as_str(), gone.1.as_str()), ("", "gone"));
    assert_eq!(resumed.next().0, granted);
    // A third waits in one call.
    let third = open(port);
    let waiting = std::thread::spawn(move || {
        done(port, "/v1/lock/acquire?wait_ms=20000", &json!({ "session": third, "number": 1, "name": "a/b" }))
    });
    support::wait_for("the third to wait", || {
        let found = done(port, "/v1/lock/describe", &json!({ "name": "a/b", "limit": 10 }));
        (found["count"] == "2").then_some(())
    });
    done(port, "/v1/lock/release", &json!({ "session": other, "number": 2, "name": "a/b", "token": granted }));
    let held = waiting.join().unwrap();
    assert!(held["answer"]["place"]["token"].as_str().unwrap().parse::<u64>().unwrap() > granted.parse().unwrap());
    // And one gives up.
    let body = json!({ "session": one, "number": 3, "name": "a/b" });
    let (status, refused) = post(port, "/v1/lock/acquire?wait_ms=30", &body);
    assert_eq!(
        (status, refused["code"].as_str(), refused["family"].as_str()),
        (409, Some("NOT_IN_TIME"), Some("REFUSED"))
    );
    let found = done(port, "/v1/lock/describe", &json!({ "name": "a/b", "limit": 10 }));
    assert_eq!(found["count"], "1");
    // Who did not hear that, and asks again, must not believe that it waits.
    let (status, lost) = post(port, "/v1/lock/acquire?wait_ms=30", &body);
    assert_eq!((status, lost["code"].as_str()), (409, Some("LOST_PLACE")), "{lost}");
}

/// Most of what a session has that is told at once.
const LISTED_MAX: u64 = 1000;

/// EL3: a leader names who follows it, and that one waits in a call of plain HTTP. It has another place then than the one
/// it asked for, and must be told of the grant all the same, not that its place is lost; others wait on.
#[test]
fn a_successor_that_waits_in_one_call_is_told_of_its_place() {
    let (_cluster, ports) = Cluster::start_native(1);
    let port = ports[0];
    let campaign = |session: &str, wait: &str| {
        let body = json!({ "session": session, "number": 1, "name": "e" });
        done(port, &format!("/v1/election/campaign{wait}"), &body)["answer"]["place"].clone()
    };
    let number = |place: &Value, field: &str| place[field].as_str().unwrap_or("0").parse::<u64>().unwrap();
    let (first, named, third) = (open(port), open(port), open(port));
    // It leads as many others as one answer lists, and all of them come before this one.
    for number in 1..=LISTED_MAX {
        let name = number.to_string();
        let stands = json!({ "session": named, "number": number, "acknowledged": number - 1, "name": name });
        done(port, "/v1/election/campaign", &stands);
    }
    let leads = campaign(&first, "");
    let wait_for_candidates = |count: &str| {
        support::wait_for("the candidates", || {
            let found = done(port, "/v1/election/describe", &json!({ "name": "e", "limit": 10 }));
            (found["count"] == count).then_some(())
        });
    };
    campaign(&third, "");
    wait_for_candidates("2");
    let waiting = std::thread::spawn({
        let named = named.clone();
        move || {
            let body = json!({ "session": named, "number": LISTED_MAX + 1, "name": "e" });
            done(port, "/v1/election/campaign?wait_ms=20000", &body)["answer"]["place"].clone()
        }
    });
    wait_for_candidates("3");
    let resign = json!({ "session": first, "number": 2, "name": "e", "token": leads["token"], "successor": named });
    done(port, "/v1/election/resign-to", &resign);
    let followed = waiting.join().unwrap();
    assert!(number(&followed, "token") > number(&leads, "token"), "{followed}");
    assert_eq!(number(&followed, "place"), number(&leads, "place"), "it has the place of who named it");
    let found = done(port, "/v1/election/leader", &json!({ "name": "e" }))["members"][0].clone();
    assert_eq!((&found["session"], &found["place"]), (&json!(named), &followed["place"]), "{found}");
    // What it was told is what it gives back by.
    let give_up = json!({ "session": named, "number": LISTED_MAX + 3, "name": "e", "place": followed["place"] });
    done(port, "/v1/election/give-up", &give_up);
    let found = done(port, "/v1/election/leader", &json!({ "name": "e" }))["members"][0].clone();
    assert_eq!(found["session"], json!(third));
}

/// An error that does not say what to do costs somebody an afternoon.
#[test]
fn mistakes_are_answered_with_what_is_wrong() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (port, session) = (ports[0], open(ports[0]));
    let long = "x".repeat(1 << 20);
    let cases = [
        ("/v1/lock/aquire", json!({}), 404, "NO_SUCH_PATH"),
        ("/v1/lock/acquire", json!({ "session": session, "number": 1 }), 400, "BAD_NAME"),
        ("/v1/lock/acquire", json!({ "session": session, "name": "n" }), 400, "NUMBER_MISSING"),
        ("/v1/lock/acquire", json!({ "session": session, "number": 1, "nam": "n" }), 400, "BAD_JSON"),
        ("/v1/lock/acquire", json!({ "session": session, "number": 1, "name": "x".repeat(600) }), 400, "BAD_NAME"),
        ("/v1/lock/acquire", json!({ "session": session, "number": 1, "name": long }), 413, "BODY_TOO_LARGE"),
        ("/v1/lock/acquire", json!([1]), 400, "BAD_JSON"),
        ("/v1/lock/acquire", json!({ "session": "77", "number": 1, "name": "n" }), 409, "UNKNOWN_SESSION"),
        (
            "/v1/lock/acquire?wait_ms=soon",
            json!({ "session": session, "number": 1, "name": "n" }),
            400,
            "BAD_PARAMETER",
        ),
        ("/v1/lock/release", json!({ "session": session, "number": 2, "name": "n", "token": 1 }), 409, "STALE_TOKEN"),
        ("/v1/native/open", json!({ "ttlMs": 0 }), 400, "TTL_OUT_OF_RANGE"),
        ("/v1/native/open", json!({ "ttlMs": 31_536_000_000u64 }), 400, "TTL_OUT_OF_RANGE"),
        ("/v1/native/open", json!({ "ttlMs": "31536000000" }), 400, "TTL_OUT_OF_RANGE"),
        ("/v1/native/sessions", json!({ "session": "77" }), 409, "UNKNOWN_SESSION"),
        ("/v1/native/describe", json!({ "name": "n" }), 400, "BAD_KIND"),
    ];
    for (path, body, status, code) in cases {
        let (got, answer) = post(port, path, &body);
        assert_eq!((got, answer["code"].as_str()), (status, Some(code)), "{path}: {answer}");
        assert!(answer["message"].as_str().is_some_and(|text| text.len() > 10), "{answer}");
        assert!(answer["header"]["revision"].is_string() && answer["header"]["term"].is_string(), "{answer}");
    }
    let (status, text) = http(port, "GET", "/v1/lock/acquire", "").unwrap();
    assert!(status == 405 && text.contains("POST"), "{status} {text}");
    let (status, text) = http(port, "GET", "/v1/observe?kind=lock", "").unwrap();
    assert!(status == 400 && text.contains("name="), "{status} {text}");
    let (status, text) = http(port, "POST", "/v1/lock/acquire", "{\"session\"").unwrap();
    assert!(status == 400 && text.contains("BAD_JSON"), "{status} {text}");
}

/// The largest number is a number like any other: it must not end a node for everybody.
#[test]
fn the_largest_numbers_are_refused_and_the_node_lives() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (port, one, other) = (ports[0], open(ports[0]), open(ports[0]));
    let (status, text) = http(port, "GET", &format!("/v1/observe?kind=LOCK&name=n&from={}", u64::MAX), "").unwrap();
    assert!(status == 400 && text.contains("REVISION_NOT_YET"), "{status} {text}");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let path = "/v1/observe?kind=LOCK&name=n";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nLast-Event-ID: {}\r\n\r\n", u64::MAX).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 400"), "{line}");
    done(port, "/v1/lock/acquire", &json!({ "session": one, "number": 1, "name": "n" }));
    let largest = json!({ "session": other, "number": u64::MAX.to_string(), "name": "n" });
    let (status, answer) = post(port, "/v1/lock/acquire?wait_ms=20", &largest);
    assert_eq!((status, answer["code"].as_str()), (400, Some("BAD_NUMBER")), "{answer}");
    done(port, "/v1/lock/describe", &json!({ "name": "n" }));
}

/// Tools make clients of the document: what it refers to must be there, and every path must say what it takes and gives.
#[test]
fn the_openapi_document_is_whole_and_its_paths_exist() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (status, text) = http(ports[0], "GET", "/v1/openapi.json", "").unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 50, "{}", paths.len());
    let mut ids = BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let answer = operation["responses"]["200"]["content"].as_object().unwrap().values().next().unwrap();
            assert!(answer["schema"].is_object(), "{path}");
            if method == "post" {
                assert!(operation["requestBody"]["content"]["application/json"]["schema"].is_object(), "{path}");
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
                let (status, _) = post(ports[0], path, &json!({ "surely": "unknown" }));
                assert_eq!(status, 400, "{path} is served and refuses what it does not know");
            }
        }
    }
    assert_references(&document, &document);
    let place = &document["components"]["schemas"]["Place"];
    assert!(place["description"].as_str().unwrap().contains("queue") && place["properties"]["token"].is_object());
}

fn assert_references(value: &Value, document: &Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reference)) = object.get("$ref") {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            object.values().for_each(|value| assert_references(value, document));
        }
        Value::Array(values) => values.iter().for_each(|value| assert_references(value, document)),
        _ => {}
    }
}

/// Commands that do not work as printed are worse than none.
#[test]
fn every_command_of_the_page_works_as_it_is_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/native-api.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_cluster, ports) = Cluster::start_native(1);
    let (mut session, mut token, mut run) = (String::new(), String::new(), 0);
    for line in page.lines().filter_map(|line| line.strip_prefix("curl -s ")) {
        let (call, expected) = line.split_once(" # ").unwrap_or((line, "200"));
        let (url, body) = call.split_once(" -d ").unwrap();
        let path = url.trim_matches('\'').strip_prefix("http://127.0.0.1:7481").unwrap();
        let body = body.trim_matches('\'').replace("SESSION", &session).replace("TOKEN", &token);
        let (status, answer) = post(ports[0], path, &serde_json::from_str(&body).unwrap());
        assert_eq!(status.to_string(), expected, "{line}: {answer}");
        if let Some(opened) = answer["session"].as_str().filter(|_| path.ends_with("/open")) {
            opened.clone_into(&mut session);
        }
        if let Some(granted) = answer["answer"]["place"]["token"].as_str() {
            granted.clone_into(&mut token);
        }
        run += 1;
    }
    assert!(run > 10, "{run}");
}

/// With a certificate configured the port is encrypted like those of other clients: nothing goes over it in the clear.
#[tokio::test]
async fn the_port_has_tls_where_other_client_ports_do() {
    use tidelock_tls::{ClientSettings, Connector, Names, Protocol, ServerTrust, Trust, Use};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let office = support::tls::Office::new("Ours");
    office.issue("server", "server", Use::Server);
    let mut cluster = Cluster::prepare(1, &[]);
    cluster.nodes[0].add_arguments(&office.shown("", "server"));
    let port = cluster.nodes[0].serve_native();
    cluster.start_all();
    assert!(http(port, "GET", "/v1/openapi.json", "").is_none_or(|(status, _)| status == 400), "plain text");
    let trust = Trust { authorities: office.path("ca.pem"), revoked: None };
    let connector = Connector::open(&ClientSettings {
        identity: None,
        servers: ServerTrust::Certified(trust),
        names: Names::Any,
        inside: vec!["http/1.1"],
        protocol: Protocol::default(),
    })
    .unwrap();
    let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut stream = support::within("a handshake", connector.connect("127.0.0.1", tcp)).await.unwrap();
    let body = json!({ "ttlMs": 60_000 }).to_string();
    let length = body.len();
    let request = format!("POST /v1/native/open HTTP/1.0\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    // However the connection is closed: the answer was there before.
    let _ = support::within("an answer", stream.read_to_end(&mut answer)).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains(" 200 ") && text.contains("\"session\""), "{text}");
}

/// H25: what a script asks again, after an answer that it did not get, must get that answer; and a number that it
/// takes twice by mistake must not tell it that it holds another lock.
#[test]
fn what_is_asked_again_is_told_again_and_a_number_is_taken_once() {
    let (_cluster, ports) = Cluster::start_native(1);
    let port = ports[0];
    let opened = || {
        let answer = done(port, "/v1/native/open", &json!({ "ttlMs": 60_000, "client": "99" }));
        answer["session"].as_str().unwrap().to_owned()
    };
    let session = opened();
    assert_eq!(opened(), session);
    let acquire = |name: &str| json!({ "session": session, "number": 2, "name": name });
    let first = done(port, "/v1/lock/acquire", &acquire("l"));
    let (status, refused) = post(port, "/v1/lock/acquire", &acquire("m"));
    assert_eq!((status, refused["code"].as_str()), (400, Some("NUMBER_REUSED")), "{refused}");
    assert_eq!(done(port, "/v1/lock/acquire", &acquire("l"))["answer"], first["answer"]);
    let close = json!({ "session": session });
    done(port, "/v1/native/close", &close);
    done(port, "/v1/native/close", &close);
    let (status, refused) = post(port, "/v1/native/close", &json!({ "session": "77" }));
    assert_eq!((status, refused["code"].as_str()), (409, Some("UNKNOWN_SESSION")), "{refused}");
    let another = opened();
    assert_ne!(another, session, "a session that is over is no use to who opens one");
    done(port, "/v1/lock/acquire", &json!({ "session": another, "number": 1, "name": "l" }));
}
