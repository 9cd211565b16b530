//! Requests and bytes that no well-behaved client or peer sends, against the real binary. Each is refused
//! in etcd's words (or the connection is closed), and afterwards the node serves as before and has
//! everything it had: no input takes it down.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use support::requests::{get, kv, leases, put, put_op, put_together, watches};
use support::{Cluster, PATIENCE, tidelock, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// etcd's limit on a request, and how much larger a message may be and still be read to say so.
const REQUEST_BYTES_MAX: usize = 1_572_864;
const MESSAGE_SLACK: usize = 512 * 1024;
/// Our limit on a key.
const KEY_BYTES_MAX: usize = 64 * 1024;

/// One node with something to lose.
struct Server {
    cluster: Cluster,
    node: KvClient<Channel>,
    revision: i64,
}

impl Server {
    async fn start() -> Server {
        let cluster = Cluster::start(1);
        let mut node = kv(&cluster.nodes[0].client_url());
        let answer = within("a put", node.put(put("precious", "kept"))).await.unwrap().into_inner();
        Server { cluster, node, revision: answer.header.unwrap().revision }
    }

    /// Checks that what was there is there, that nothing was written meanwhile, and that writing works.
    async fn check_unharmed(&mut self, after: &str) {
        let found = within("a get", self.node.range(get("precious"))).await.unwrap().into_inner();
        assert_eq!(found.kvs[0].value.as_ref(), b"kept", "after {after}");
        assert_eq!(found.header.unwrap().revision, self.revision, "{after} wrote something");
        let answer = within("a put", self.node.put(put("alive", after))).await.unwrap().into_inner();
        self.revision += 1;
        assert_eq!(answer.header.unwrap().revision, self.revision, "R1, after {after}");
    }

    async fn refused<T: std::fmt::Debug>(&mut self, what: &str, answer: Result<T, Status>, code: Code, text: &str) {
        let status = answer.expect_err(what);
        assert_eq!(status.code(), code, "{what}: {status:?}");
        assert!(status.message().contains(text), "{what}: {status:?}");
        self.check_unharmed(what).await;
    }
}

/// H13: an oversized request is refused at the door; taken in, it would be in the log of every node.
#[tokio::test(flavor = "multi_thread")]
async fn h13_requests_that_are_too_large_are_refused_at_the_door() {
    let mut server = Server::start().await;
    let mut node = server.node.clone();
    let sized = |bytes: usize| put("large", vec![b'x'; bytes]);
    let fits = within("a put", node.put(sized(REQUEST_BYTES_MAX - 64))).await.unwrap().into_inner();
    server.revision = fits.header.unwrap().revision;

    let answer = within("a put", node.put(sized(REQUEST_BYTES_MAX + 1))).await;
    server.refused("a put just too large", answer, Code::InvalidArgument, "etcdserver: request is too large").await;
    let half = || vec![b'x'; REQUEST_BYTES_MAX / 2];
    let txn = put_together([put("a", half()), put("b", half()), put("c", "")]);
    let answer = within("a txn", node.txn(txn)).await;
    server.refused("a txn just too large", answer, Code::InvalidArgument, "etcdserver: request is too large").await;
    let answer = within("a put", node.put(sized(REQUEST_BYTES_MAX + MESSAGE_SLACK + 1))).await;
    server.refused("a put far too large", answer, Code::ResourceExhausted, "").await;
    let answer = within("a put", node.put(sized(16 << 20))).await;
    assert!(answer.is_err());
    server.check_unharmed("a put of 16 MiB").await;
}

/// Every client library has a test for these; other answers break their callers' error handling.
#[tokio::test(flavor = "multi_thread")]
async fn keys_and_ranges_that_make_no_sense_are_refused_or_empty() {
    let mut server = Server::start().await;
    let mut node = server.node.clone();
    let no_key = "etcdserver: key is not provided";
    let answer = within("a put", node.put(put("", "v"))).await;
    server.refused("a put without a key", answer, Code::InvalidArgument, no_key).await;
    let answer = within("a get", node.range(get(""))).await;
    server.refused("a get without a key", answer, Code::InvalidArgument, no_key).await;
    let answer = within("a delete", node.delete_range(pb::DeleteRangeRequest::default())).await;
    server.refused("a delete without a key", answer, Code::InvalidArgument, no_key).await;
    let answer = within("a txn", node.txn(put_together([put("ok", ""), put("", "")]))).await;
    server.refused("a txn with an empty key", answer, Code::InvalidArgument, no_key).await;

    let key = |bytes: usize| "k".repeat(bytes);
    let answer = within("a put", node.put(put(key(KEY_BYTES_MAX + 1), ""))).await;
    server.refused("a huge key", answer, Code::InvalidArgument, "etcdserver: request is too large").await;
    let range = pb::RangeRequest { range_end: key(KEY_BYTES_MAX + 2).into(), ..get("k") };
    let answer = within("a get", node.range(range)).await;
    server.refused("a huge range end", answer, Code::InvalidArgument, "etcdserver: request is too large").await;
    let ends: [(&[u8], &[u8], i64); 5] = [
        (b"z", b"a", 0),
        (b"precious", b"precious", 0),
        (b"\0", b"\0", 2),
        (b"q", b"\0", 0),
        (b"\xff\xff", b"\xff\xff\xff", 0),
    ];
    for (start, end, count) in ends {
        let range =
            pb::RangeRequest { key: start.to_vec().into(), range_end: end.to_vec().into(), ..Default::default() };
        let found = within("a get", node.range(range)).await.unwrap().into_inner();
        assert_eq!(found.count, count, "{start:?} to {end:?}");
        if count == 0 {
            let delete = pb::DeleteRangeRequest {
                key: start.to_vec().into(),
                range_end: end.to_vec().into(),
                ..Default::default()
            };
            let answer = within("a delete", node.delete_range(delete)).await.unwrap().into_inner();
            assert_eq!(answer.deleted, 0, "{start:?} to {end:?}");
        }
    }
    let sorted = pb::RangeRequest { sort_order: 7, ..get("precious") };
    let answer = within("a get", node.range(sorted)).await;
    server.refused("an unknown order", answer, Code::InvalidArgument, "etcdserver: invalid sort option").await;
    let wild = pb::RangeRequest { limit: -5, revision: -5, min_mod_revision: -5, ..get("precious") };
    assert_eq!(within("a get", node.range(wild)).await.unwrap().into_inner().count, 1);
    server.check_unharmed("wild ranges").await;
}

/// H6: a revision that is gone, or not there yet, is an error with a name. Silence, or an answer from
/// another revision, would make a client's cache wrong without anybody noticing.
#[tokio::test(flavor = "multi_thread")]
async fn h6_revisions_that_are_gone_or_not_there_yet_are_refused() {
    let mut server = Server::start().await;
    let mut node = server.node.clone();
    let future = "etcdserver: mvcc: required revision is a future revision";
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let at = |revision| pb::RangeRequest { revision, ..get("precious") };
    let compact = |revision| pb::CompactionRequest { revision, physical: true };
    server.check_unharmed("nothing yet").await;
    for revision in [server.revision + 1, i64::MAX] {
        let answer = within("a get", node.range(at(revision))).await;
        server.refused("a get in the future", answer, Code::OutOfRange, future).await;
    }
    let answer = within("a compaction", node.compact(compact(i64::MAX))).await;
    server.refused("a compaction in the future", answer, Code::OutOfRange, future).await;
    for revision in [-1, 0, i64::MIN] {
        let answer = within("a compaction", node.compact(compact(revision))).await;
        server.refused("a compaction before the beginning", answer, Code::OutOfRange, compacted).await;
    }
    let horizon = server.revision;
    within("a compaction", node.compact(compact(horizon))).await.unwrap();
    let answer = within("a compaction", node.compact(compact(horizon))).await;
    server.refused("the same compaction again", answer, Code::OutOfRange, compacted).await;
    let answer = within("a get", node.range(at(horizon - 1))).await;
    server.refused("a get in what is gone", answer, Code::OutOfRange, compacted).await;

    // W8: a watch in what is gone is cancelled, with the revision from which on it can be had.
    let mut watch = watch_at(&server, horizon - 1).await;
    let cancelled = loop {
        let answer = within("an answer", watch.message()).await.unwrap().expect("the stream goes on");
        if answer.canceled {
            break answer;
        }
        assert!(answer.events.is_empty(), "{answer:?}");
    };
    assert_eq!(cancelled.compact_revision, horizon, "{cancelled:?}");
    // W9: a watch from the future says nothing until then.
    let mut watch = watch_at(&server, server.revision + 2).await;
    let created = within("an answer", watch.message()).await.unwrap().unwrap();
    assert!(created.created && !created.canceled && created.events.is_empty(), "{created:?}");
    server.check_unharmed("a watch of the past").await;
    server.check_unharmed("a watch of the future").await;
    let first = within("an event", watch.message()).await.unwrap().unwrap();
    assert_eq!(first.events[0].kv.as_ref().unwrap().mod_revision, server.revision, "{first:?}");
}

/// A watch of everything from `revision` on.
async fn watch_at(server: &Server, revision: i64) -> tonic::Streaming<pb::WatchResponse> {
    let create = pb::WatchCreateRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        start_revision: revision,
        ..Default::default()
    };
    let create = pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) };
    let requests = stream::iter([create]).chain(stream::pending());
    let url = server.cluster.nodes[0].client_url();
    within("a watch", watches(&url).watch(requests)).await.unwrap().into_inner()
}

/// L4, L5: a lease that does not exist must never look alive, and a time to live is never taken literally
/// when that makes no sense.
#[tokio::test(flavor = "multi_thread")]
async fn leases_that_do_not_exist_or_make_no_sense_are_refused_or_bounded() {
    let mut server = Server::start().await;
    let mut node = server.node.clone();
    let mut lease = leases(&server.cluster.nodes[0].client_url());
    let missing = "etcdserver: requested lease not found";
    for id in [4711, -4711, i64::MAX, i64::MIN] {
        let answer = within("a put", node.put(pb::PutRequest { lease: id, ..put("k", "v") })).await;
        server.refused("a put with an unknown lease", answer, Code::NotFound, missing).await;
        let answer = within("a revoke", lease.lease_revoke(pb::LeaseRevokeRequest { id })).await;
        server.refused("a revoke of an unknown lease", answer, Code::NotFound, missing).await;
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let told = within("a question", lease.lease_time_to_live(request)).await.unwrap().into_inner();
        assert_eq!((told.ttl, told.keys.len()), (-1, 0));
        let request = stream::iter([pb::LeaseKeepAliveRequest { id }]);
        let mut answers = within("a renewal", lease.lease_keep_alive(request)).await.unwrap().into_inner();
        assert_eq!(within("a renewal", answers.message()).await.unwrap().unwrap().ttl, 0);
    }
    let grant = |ttl, id| pb::LeaseGrantRequest { ttl, id };
    let answer = within("a grant", lease.lease_grant(grant(9_000_000_001, 0))).await;
    server.refused("a lease of 285 years", answer, Code::OutOfRange, "etcdserver: too large lease TTL").await;
    let answer = within("a grant", lease.lease_grant(grant(i64::MAX, 0))).await;
    server.refused("a lease for ever", answer, Code::OutOfRange, "etcdserver: too large lease TTL").await;
    for ttl in [0, -1, i64::MIN] {
        let granted = within("a grant", lease.lease_grant(grant(ttl, 0))).await.unwrap().into_inner();
        assert!(granted.ttl >= 1, "a lease of {ttl} seconds lives {} seconds", granted.ttl);
    }
    within("a grant", lease.lease_grant(grant(600, 77))).await.unwrap();
    let answer = within("a grant", lease.lease_grant(grant(600, 77))).await;
    server.refused("a taken id", answer, Code::FailedPrecondition, "etcdserver: lease already exists").await;
}

/// R4, Z1: a transaction that cannot be carried out as it stands is refused as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_contradict_themselves_or_are_too_much_are_refused_whole() {
    let mut server = Server::start().await;
    let mut node = server.node.clone();
    let duplicate = "etcdserver: duplicate key given in txn request";
    let too_many = "etcdserver: too many operations in txn request";
    let answer = within("a txn", node.txn(put_together([put("k", "1"), put("k", "2")]))).await;
    server.refused("a key put twice", answer, Code::InvalidArgument, duplicate).await;
    let delete = pb::DeleteRangeRequest { key: "a".into(), range_end: "z".into(), ..Default::default() };
    let delete = pb::RequestOp { request: Some(pb::request_op::Request::RequestDeleteRange(delete)) };
    let txn = pb::TxnRequest { success: vec![put_op(put("k", "1")), delete], ..Default::default() };
    let answer = within("a txn", node.txn(txn)).await;
    server.refused("a key put and deleted", answer, Code::InvalidArgument, duplicate).await;
    let answer = within("a txn", node.txn(put_together((0..129).map(|n| put(format!("k{n}"), ""))))).await;
    server.refused("129 operations", answer, Code::InvalidArgument, too_many).await;
    let nothing = pb::TxnRequest { success: vec![pb::RequestOp { request: None }], ..Default::default() };
    let answer = within("a txn", node.txn(nothing)).await;
    server.refused("an operation that is none", answer, Code::InvalidArgument, "").await;
    let compare = pb::Compare { key: "k".into(), result: 99, ..Default::default() };
    let answer = within("a txn", node.txn(pb::TxnRequest { compare: vec![compare], ..Default::default() })).await;
    server.refused("a compare of no kind", answer, Code::InvalidArgument, "").await;

    let nested = |depth: usize| {
        let innermost = put_together([put("deep", "")]);
        (0..depth).fold(innermost, |inner, _| pb::TxnRequest {
            success: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestTxn(inner)) }],
            ..Default::default()
        })
    };
    let answer = within("a txn", node.txn(nested(20))).await;
    server.refused("20 transactions in each other", answer, Code::InvalidArgument, too_many).await;
    for depth in [90, 500] {
        assert!(within("a txn", node.txn(nested(depth))).await.is_err());
        server.check_unharmed("transactions nested without end").await;
    }
    let missing = pb::PutRequest { lease: 4711, ..put("second", "") };
    let answer = within("a txn", node.txn(put_together([put("first", ""), missing]))).await;
    server
        .refused("a txn with an unknown lease", answer, Code::NotFound, "etcdserver: requested lease not found")
        .await;
}

/// Bytes from a generator nobody expects anything of: different at every call, the same in every run.
fn garbage(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state as u8
    };
    (0..count).map(|_| next(&mut state)).collect()
}

/// Sends bytes to a port and takes whatever comes until the other side closes, or some time passes.
/// Connections the other side keeps open are given back.
fn send(port: u16, bytes: &[u8]) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // The other side may close before it has taken all of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    let begun = Instant::now();
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..count]);
        assert!(begun.elapsed() < PATIENCE, "the other side talks without end");
    }
    (stream, answer)
}

/// Port scanners, health checks of the wrong kind, a browser, a broken client: none of them may disturb
/// the others, and a connection nobody speaks on must not keep a slot for ever in the way of others.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_any_port_harms_nobody() {
    let mut server = Server::start().await;
    let (client, peer, admin) = {
        let node = &server.cluster.nodes[0];
        (node.client_port, node.peer_port, node.admin_port)
    };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut inputs: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        preface.to_vec(),
        // A frame of 16 MiB that never comes.
        [&preface[..], b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"].concat(),
        // The peer protocol: a length of 4 GiB, and a pulse with a wrong checksum.
        b"\xff\xff\xff\xff\x00\x00\x00\x00".to_vec(),
        b"\x00\x00\x00\x00\x01\x02\x03\x04".to_vec(),
    ];
    inputs.extend((0..20).map(|seed| garbage(seed, 1 << (seed % 16))));
    inputs.extend((20..30).map(|seed| [&preface[..], &garbage(seed, 3_000)].concat()));
    inputs.extend((30..34).map(|seed| garbage(seed, 1 << 20)));
    let mut open = Vec::new();
    for port in [client, peer, admin] {
        let senders: Vec<_> =
            inputs.iter().cloned().map(|bytes| std::thread::spawn(move || send(port, &bytes))).collect();
        open.extend(senders.into_iter().map(|sender| sender.join().unwrap()));
        server.check_unharmed(&format!("garbage on port {port}")).await;
    }
    assert!(open.iter().all(|(_, answer)| answer.len() < 1 << 20), "a stranger was told a lot");
    let log = server.cluster.nodes[0].log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Two clusters on the same machines, one wrong digit in a peer address: the two must never mix. The
/// stranger is told why, and the cluster it called does not even notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_turned_away_with_a_reason() {
    let mut server = Server::start().await;
    let term = server.cluster.nodes[0].status_number("term");
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let founders = format!("x=127.0.0.1:{},a=127.0.0.1:{}", free_port(), server.cluster.nodes[0].peer_port);
    let mut stranger = tidelock()
        .args(["serve", "--name", "x", "--cluster-token", "another", "--initial-cluster", &founders])
        .args(["--client-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(dir.path().join("x"))
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    wait_for("the stranger to be told why", || {
        let text = std::fs::read_to_string(&log).unwrap();
        (text.contains("this is cluster") && text.contains("correct the peer addresses")).then_some(())
    });
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    server.check_unharmed("a node of another cluster").await;
    assert_eq!(server.cluster.nodes[0].status_number("term"), term, "the stranger made the cluster vote");
}

fn free_port() -> u16 {
    support::free_ports(1)[0]
}

/// A supervisor starts a second process by mistake. Two processes on one journal would destroy it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let mut server = Server::start().await;
    let founders = format!("a=127.0.0.1:{}", free_port());
    let second = tidelock()
        .args(["serve", "--name", "a", "--initial-cluster", &founders])
        .args(["--client-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(server.cluster.nodes[0].data_dir())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("is in use: another tidelock runs on it") && said.contains("what to do"), "{said}");
    server.check_unharmed("a second process").await;
    server.cluster.nodes[0].kill();
    server.cluster.nodes[0].start();
    server.cluster.nodes[0].wait_until_ready();
    server.check_unharmed("a second process and a restart").await;
}

/// Nothing is encrypted or authenticated yet: whoever opens a port to other machines must say that it is
/// meant.
#[test]
fn addresses_other_machines_can_reach_are_refused_unless_that_is_said_to_be_meant() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--client-listen", "--peer-listen", "--admin-listen"] {
        let refused = tidelock()
            .args(["serve", flag, "0.0.0.0:0"])
            .args(["--advertise-client-urls", "http://127.0.0.1:2379", "--peer-advertise", "127.0.0.1:2380"])
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{flag}: {said}");
        assert!(said.contains(flag) && said.contains("--insecure"), "{flag}: {said}");
    }
    assert!(!dir.path().join("data").exists());
}
