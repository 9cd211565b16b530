//! The gateway over a real socket, spoken to in plain HTTP/1.1, byte by byte. What etcd itself answers is
//! compared in `conformance/`; here is what must hold whatever the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tidelock_coordinator::{WatchNotice, WatcherId};
use tidelock_etcd_api::etcdserverpb::RangeRequest;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_model::{Event, Key, LeaseId, Record, RecordMeta, Revision, Space};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tonic::transport::Endpoint;

use super::routes::ROUTES;
use super::transcode::methods;
use crate::test_double::{Double, REVISION};
use crate::{EtcdFace, FaceConfig, Limits, MetricsText, serve};

/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// The header of the double's answers.
const HEADER: &str = r#""header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"3"}"#;

struct Served {
    double: Arc<Double>,
    address: String,
    stop: Option<oneshot::Sender<()>>,
}

async fn served(config: FaceConfig) -> Served {
    let double = Double::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let face = EtcdFace::new(double.clone(), config);
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(serve(listener, face, None, async { drop(stopped.await) }));
    Served { double, address, stop: Some(stop) }
}

/// An answer: its code, its headers in lower case, and a connection from which its body is read.
struct Answer {
    code: u16,
    headers: String,
    connection: BufReader<TcpStream>,
}

impl Answer {
    /// The rest of the body, which must have a length or end.
    async fn body(mut self) -> String {
        let mut body = String::new();
        if self.headers.contains("transfer-encoding: chunked") {
            while let Some(chunk) = self.chunk().await {
                body.push_str(&chunk);
            }
        } else {
            let length = self.headers.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut bytes = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            timeout(DEADLINE, self.connection.read_exact(&mut bytes)).await.unwrap().unwrap();
            body = String::from_utf8(bytes).unwrap();
        }
        body
    }

    /// The next chunk; none after the last.
    async fn chunk(&mut self) -> Option<String> {
        let size = line(&mut self.connection).await;
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut bytes = vec![0; size + 2];
        timeout(DEADLINE, self.connection.read_exact(&mut bytes)).await.expect("no chunk").unwrap();
        bytes.truncate(size);
        (size > 0).then(|| String::from_utf8(bytes).unwrap())
    }
}

async fn line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    timeout(DEADLINE, connection.read_line(&mut line)).await.expect("no answer").unwrap();
    line
}

impl Served {
    /// Sends a request head and body as they are.
    async fn send(&self, head: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let text = format!("{head}\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}", self.address, body.len());
        stream.write_all(text.as_bytes()).await.unwrap();
        Served::read_head(stream).await
    }

    async fn read_head(stream: TcpStream) -> Answer {
        let mut connection = BufReader::new(stream);
        let status = line(&mut connection).await;
        let code = status.split(' ').nth(1).expect("a status line").parse().unwrap();
        let mut headers = String::new();
        loop {
            match line(&mut connection).await.to_ascii_lowercase().trim_end() {
                "" => return Answer { code, headers, connection },
                header => headers.push_str(&format!("{header}\n")),
            }
        }
    }

    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let answer = self.send(&format!("POST {path} HTTP/1.1"), body).await;
        (answer.code, answer.body().await)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.send(&format!("GET {path} HTTP/1.1"), "").await;
        (answer.code, answer.body().await)
    }

    /// Opens a websocket, and says how the server agreed.
    async fn websocket(&self, path: &str, headers: &str) -> (WebSocketStream<TcpStream>, Head) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n",
            self.address
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let Answer { code, headers, connection } = Served::read_head(stream).await;
        assert!(connection.buffer().is_empty(), "the server speaks first");
        let socket = WebSocketStream::from_raw_socket(connection.into_inner(), Role::Client, None).await;
        (socket, Head { code, headers })
    }
}

/// The head of an answer without its connection.
struct Head {
    code: u16,
    headers: String,
}

async fn heard(socket: &mut WebSocketStream<TcpStream>) -> String {
    let message = timeout(DEADLINE, socket.next()).await.expect("no message").expect("closed").unwrap();
    message.into_text().unwrap().to_string()
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

fn event(value: &[u8]) -> WatchNotice {
    let meta = RecordMeta { created: REVISION, modified: REVISION, version: 1, lease: LeaseId::NONE, sub: 0 };
    let record = Record::new(meta, value);
    let event = Event { key: Key::new(Space::User, b"k"), record, previous: None };
    WatchNotice::Events { id: WatcherId(0), revision: Revision(8), events: vec![event].into() }
}

const CREATE: &str = r#"{"create_request":{"key":"aw=="}}"#;
const EVENT: &str = r#"{"result":{"header":{"cluster_id":"1","member_id":"2","revision":"8","raft_term":"3"},"events":[{"kv":{"key":"aw==","create_revision":"7","mod_revision":"7","version":"1","value":"dg=="}}]}}"#;

/// A path with a typing mistake would be "unimplemented" for ever, and nobody would know why.
#[test]
fn every_route_of_a_service_that_is_served_leads_to_a_method() {
    let methods = methods();
    assert_eq!(methods.len(), ROUTES.len(), "no path twice");
    for service in ["KV", "Watch", "Lease", "Cluster", "Maintenance"] {
        let prefix = format!("etcdserverpb.{service}/");
        let dead = methods.values().find(|method| method.name.starts_with(&prefix) && method.shape.is_none());
        assert!(dead.is_none(), "{}", dead.unwrap().name);
    }
}

#[tokio::test]
async fn a_call_is_answered_in_json_on_the_port_that_speaks_grpc() {
    let served = served(FaceConfig::default()).await;
    let expected = (200, format!("{{{HEADER}}}"));
    assert_eq!(served.post("/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#).await, expected);
    assert_eq!(served.post("/v3beta/kv/range", r#"{"key":"aw=="}"#).await, expected);
    assert_eq!(served.double.proposals.all().len(), 1);
    let channel = Endpoint::from_shared(format!("http://{}", served.address)).unwrap().connect().await.unwrap();
    assert!(KvClient::new(channel).range(RangeRequest { key: "k".into(), ..Default::default() }).await.is_ok());
}

/// Clients go by the HTTP code, by `code`, or by the text: all three are part of the interface.
#[tokio::test]
async fn errors_have_etcds_code_and_words() {
    let served = served(FaceConfig::default()).await;
    let text = "etcdserver: key is not provided";
    let expected = format!(r#"{{"error":"{text}","code":3,"message":"{text}"}}"#);
    assert_eq!(served.post("/v3/kv/put", "{}").await, (400, expected.clone()));
    assert_eq!(served.post("/v3/kv/put", "").await, (400, expected));
    for (path, body, code) in [
        ("/v3/kv/put", "{", 400),
        ("/v3/kv/nothing", "{}", 404),
        ("/v3alpha/kv/put", "{}", 404),
        ("/v3/maintenance/hash/x", "{}", 404),
        ("/v3/watch", "junk", 400),
    ] {
        assert_eq!(served.post(path, body).await.0, code, "{path}");
    }
    assert_eq!(served.get("/v3/kv/put").await.0, 501);
    assert_eq!(served.double.proposals.all(), []);
}

/// The gateway must not be the way around the limits; and who is told must still be listening.
#[tokio::test]
async fn bodies_beyond_the_limit_are_refused_with_a_reason() {
    let limits = Limits { request_bytes: 1000, ..Limits::default() };
    let served = served(FaceConfig { limits, ..FaceConfig::default() }).await;
    let put = |bytes: usize| format!(r#"{{"key":"aw==","value":"{}"}}"#, "A".repeat(bytes / 3 * 4));
    let (code, body) = served.post("/v3/kv/put", &put(3000)).await;
    assert!(code == 400 && body.contains("etcdserver: request is too large"), "{code} {body}");
    let (code, body) = served.post("/v3/kv/put", &put(600_000)).await;
    assert!(
        code == 429 && body.contains("grpc: received message larger than max (600007 vs. 525288)"),
        "{code} {body}"
    );
    let (code, body) = served.post("/v3/kv/put", &put(9_000_000)).await;
    assert!(code == 429 && body.contains("larger than max"), "{code} {body}");
    assert_eq!(served.double.proposals.all(), []);
}

/// A watch that waits for a buffer to fill tells of a change when the next one comes, or never.
#[tokio::test]
async fn each_event_of_a_watch_is_sent_when_it_happens() {
    let served = served(FaceConfig::default()).await;
    let mut answer = served.send("POST /v3/watch HTTP/1.1", CREATE).await;
    assert_eq!(answer.code, 200);
    assert!(answer.headers.contains("content-type: application/json\n"), "{}", answer.headers);
    assert_eq!(answer.chunk().await.unwrap(), format!("{{\"result\":{{{HEADER},\"created\":true}}}}\n"));
    for _ in 0..3 {
        served.double.notices.send(event(b"v")).await.unwrap();
        assert_eq!(answer.chunk().await.unwrap(), format!("{EVENT}\n"));
    }
}

/// A watcher that was made and then forgotten by a client that is gone would be served for ever.
#[tokio::test]
async fn a_watch_ends_when_its_client_goes_away() {
    let served = served(FaceConfig::default()).await;
    let open = served.double.subscriptions.clone();
    let mut answer = served.send("POST /v3/watch HTTP/1.1", CREATE).await;
    answer.chunk().await.unwrap();
    assert_eq!(open.load(Ordering::SeqCst), 1);
    drop(answer);
    eventually("the subscription is still there", || open.load(Ordering::SeqCst) == 0).await;
    let (mut socket, _) = served.websocket("/v3/watch", "").await;
    socket.send(Message::text(CREATE)).await.unwrap();
    heard(&mut socket).await;
    assert_eq!(open.load(Ordering::SeqCst), 1);
    drop(socket);
    eventually("the websocket's subscription is still there", || open.load(Ordering::SeqCst) == 0).await;
}

/// What a client does not read must stay where a slow watcher costs nothing.
#[tokio::test]
async fn a_client_that_does_not_read_stops_the_taking_of_notices() {
    const NOTICE_BYTES: usize = 256 * 1024;
    // Far above what the buffers of a connection and the queue hold together, far below a leak.
    const TAKEN_MAX: usize = 100;
    let served = served(FaceConfig::default()).await;
    let mut answer = served.send("POST /v3/watch HTTP/1.1", CREATE).await;
    answer.chunk().await.unwrap();
    let mut taken = 0;
    while timeout(Duration::from_secs(1), served.double.notices.send(event(&[b'v'; NOTICE_BYTES]))).await.is_ok() {
        taken += 1;
        assert!(taken < TAKEN_MAX, "{taken} notices were taken for a client that reads none");
    }
    for _ in 0..taken {
        assert!(answer.chunk().await.unwrap().len() > NOTICE_BYTES);
    }
}

/// A stream that is cut without a word looks like one that just has nothing to tell.
#[tokio::test]
async fn a_stream_that_the_server_ends_says_why() {
    let mut served = served(FaceConfig::default()).await;
    let mut answer = served.send("POST /v3/watch HTTP/1.1", CREATE).await;
    answer.chunk().await.unwrap();
    served.stop.take().unwrap().send(()).unwrap();
    let last = answer.chunk().await.unwrap();
    assert!(last.contains("etcdserver: server stopped") && last.contains(r#""http_code":503"#), "{last}");
    assert_eq!(answer.chunk().await, None);
}

#[tokio::test]
async fn keepalives_come_one_per_request_and_the_stream_ends_with_them() {
    let served = served(FaceConfig::default()).await;
    let (code, body) = served.post("/v3/lease/keepalive", r#"{"ID":7}{"ID":"8"}"#).await;
    let expected =
        format!("{{\"result\":{{{HEADER},\"ID\":\"7\",\"TTL\":\"10\"}}}}\n{{\"result\":{{{HEADER},\"ID\":\"8\"}}}}\n");
    assert_eq!((code, body), (200, expected));
    assert_eq!(served.post("/v3/lease/keepalive", "").await, (200, String::new()));
}

/// Requests that come while answers go: the stream is open in both directions.
#[tokio::test]
async fn a_websocket_carries_a_watch_both_ways() {
    let served = served(FaceConfig::default()).await;
    let (mut socket, head) = served.websocket("/v3/watch", "Sec-WebSocket-Protocol: Bearer, token.7\r\n").await;
    assert_eq!(head.code, 101);
    assert!(head.headers.contains("sec-websocket-protocol: bearer\n"), "{}", head.headers);
    // The example of RFC 6455.
    assert!(head.headers.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\n"), "{}", head.headers);
    socket.send(Message::text(CREATE)).await.unwrap();
    assert_eq!(heard(&mut socket).await, format!("{{\"result\":{{{HEADER},\"created\":true}}}}"));
    served.double.notices.send(event(b"v")).await.unwrap();
    assert_eq!(heard(&mut socket).await, EVENT);
    socket.send(Message::text(r#"{"progress_request":{}}"#)).await.unwrap();
    assert_eq!(heard(&mut socket).await, format!("{{\"result\":{{{HEADER},\"watch_id\":\"-1\"}}}}"));
    socket.send(Message::text(r#"{"cancel_request":{"watch_id":"0"}}"#)).await.unwrap();
    assert!(heard(&mut socket).await.contains(r#""canceled":true"#));
}

#[tokio::test]
async fn a_websocket_tells_what_it_did_not_understand_and_closes() {
    let served = served(FaceConfig::default()).await;
    let (mut socket, _) = served.websocket("/v3/watch", "").await;
    socket.send(Message::text("junk")).await.unwrap();
    assert!(heard(&mut socket).await.contains(r#""grpc_code":3"#));
    assert!(matches!(timeout(DEADLINE, socket.next()).await.unwrap(), Some(Ok(Message::Close(_)))));
    let (mut socket, _) = served.websocket("/v3/kv/put", "").await;
    socket.send(Message::text(r#"{"key":"aw=="}"#)).await.unwrap();
    assert_eq!(heard(&mut socket).await, format!("{{{HEADER}}}"));
}

/// A page in somebody's browser can reach loopback. Without this it could write behind their back.
#[tokio::test]
async fn a_web_page_of_another_origin_may_not_call() {
    let served = served(FaceConfig::default()).await;
    let put = r#"{"key":"aw=="}"#;
    for origin in ["http://evil.example", "null", ""] {
        let answer = served.send(&format!("POST /v3/kv/put HTTP/1.1\r\nOrigin: {origin}"), put).await;
        assert_eq!(answer.code, 403, "{origin}");
    }
    assert_eq!(served.double.proposals.all(), []);
    let own = format!("POST /v3/kv/put HTTP/1.1\r\nOrigin: http://{}", served.address);
    assert_eq!(served.send(&own, put).await.code, 200);
}

/// The metadata that only marked headers become: here one that refuses the call.
#[tokio::test]
async fn metadata_reaches_the_services() {
    let served = served(FaceConfig::default()).await;
    served.double.has_leader.store(false, Ordering::SeqCst);
    let head = "POST /v3/kv/range HTTP/1.1\r\nGrpc-Metadata-hasleader: true";
    assert_eq!(served.send(head, r#"{"key":"aw=="}"#).await.code, 503);
    assert_eq!(served.post("/v3/kv/range", r#"{"key":"aw=="}"#).await.0, 200);
}

/// A client that gave a call a time wants its answer in it, not whenever a leader is found.
#[tokio::test]
async fn a_call_that_takes_longer_than_it_was_given_is_answered_in_time() {
    let served = served(FaceConfig::default()).await;
    served.double.renewals_allowed.forget_permits(usize::MAX);
    let answer = served.send("POST /v3/lease/timetolive HTTP/1.1\r\nGrpc-Timeout: 30m", r#"{"ID":7}"#).await;
    let text = "context deadline exceeded";
    assert_eq!(answer.code, 504);
    assert_eq!(answer.body().await, format!(r#"{{"error":"{text}","code":4,"message":"{text}"}}"#));
}

/// Probes restart a node or send clients away on these answers.
#[tokio::test]
async fn health_and_readiness_tell_the_truth_in_etcds_words() {
    let served = served(FaceConfig::default()).await;
    let healthy = (200, r#"{"health":"true","reason":""}"#.to_owned());
    assert_eq!(served.get("/health").await, healthy);
    assert_eq!(served.get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(served.get("/livez?verbose").await, (200, "[+]serializable_read ok\nok\n".to_owned()));
    let all = "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n";
    assert_eq!(served.get("/readyz?verbose").await, (200, all.to_owned()));
    assert_eq!(served.get("/readyz/linearizable_read").await, (200, "ok\n".to_owned()));
    for path in ["/readyz/nothing", "/livez/linearizable_read", "/nothing", "/", "/v2/keys", "/metrics", "/health/x"] {
        assert_eq!(served.get(path).await, (404, "404 page not found\n".to_owned()), "{path}");
    }
    assert_eq!(served.post("/health", "").await, (405, "Method Not Allowed\n".to_owned()));

    served.double.has_leader.store(false, Ordering::SeqCst);
    let ill = (503, "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n".to_owned());
    assert_eq!(served.get("/health").await, ill);
    assert_eq!(served.get("/health?serializable=true").await, healthy);

    served.double.is_learner.store(true, Ordering::SeqCst);
    let (code, body) = served.get("/readyz?exclude=serializable_read").await;
    let learner =
        "[+]data_corruption ok\n[+]linearizable_read ok\n[-]non_learner failed: not supported for learner\n\n";
    assert_eq!((code, body.as_str()), (503, learner));
    assert_eq!(served.get("/readyz?exclude=non_learner").await.0, 200);
}

/// Clients choose what they use by the version; two answers that differ would split them.
#[tokio::test]
async fn the_version_is_the_same_everywhere_and_metrics_are_what_the_process_says() {
    let metrics = Some(MetricsText::new(|| "up 1\n".to_owned()));
    let served = served(FaceConfig { metrics, ..FaceConfig::default() }).await;
    let (_, version) = served.get("/version").await;
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    let (_, status) = served.post("/v3/maintenance/status", "{}").await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&version["etcdserver"], &version["storage"]), (&status["version"], &status["storageVersion"]));
    assert!(version["etcdcluster"].as_str().unwrap().starts_with("3.7"));
    assert_eq!(served.get("/metrics").await, (200, "up 1\n".to_owned()));
}
