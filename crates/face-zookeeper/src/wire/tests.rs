//! Packets as they are on the wire: requests written by ZooKeeper's own Java records and by kazoo 2.11, replies
//! recorded from a ZooKeeper 3.9.3, and what that server did with bad input.

use bytes::{Bytes, BytesMut};

use super::*;

/// Reads hexadecimal digits; blanks are for the eye.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn parsed(frame: &str) -> Result<(i32, Request), Malformed> {
    parse_request(Bytes::from(hex(frame)))
}

/// A request with xid 7 whose record is these bytes.
fn with_record(opcode: i32, record: &str) -> Result<(i32, Request), Malformed> {
    let mut frame = hex("00000007");
    frame.extend_from_slice(&opcode.to_be_bytes());
    frame.extend_from_slice(&hex(record));
    parse_request(Bytes::from(frame))
}

fn is_answered_with_marshalling_error(outcome: &Result<(i32, Request), Malformed>) -> bool {
    matches!(outcome, Err(Malformed::Record { xid: 7, .. }))
}

fn written(xid: i32, zxid: i64, reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    write_reply(&mut out, xid, zxid, reply);
    out
}

fn everyone() -> Vec<Acl> {
    vec![Acl { perms: 31, scheme: "world".into(), id: "anyone".into() }]
}

fn create(call: CreateCall, path: &str, data: Option<&'static [u8]>, flags: i32) -> CreateRequest {
    CreateRequest { call, path: path.into(), data: data.map(Bytes::from_static), acl: everyone(), flags }
}

/// A znode that zxid made and nothing has touched since.
fn untouched(zxid: i64, time: i64) -> Stat {
    Stat { czxid: zxid, mzxid: zxid, ctime: time, mtime: time, pzxid: zxid, ..Stat::default() }
}

/// The four creates differ in a number and a tail; a mistake there makes Curator's or kazoo's znodes of the
/// wrong kind, or gives them a reply they cannot read.
#[test]
fn creates_of_java_and_kazoo_are_read_as_they_were_meant() {
    let kazoo = "00000005 00000001 00000002 2f63 00000002 6869 00000001 0000001f 00000005 776f726c64 00000006
                 616e796f6e65 00000001";
    let ephemeral = Request::Create(create(CreateCall::Create, "/c", Some(b"hi"), 1));
    assert_eq!(parsed(kazoo), Ok((5, ephemeral)));

    let java = "000000030000000f000000022f63000000026869000000010000001f00000005776f726c6400000006616e796f6e6500000003";
    let sequential = Request::Create(create(CreateCall::Create2, "/c", Some(b"hi"), 3));
    assert_eq!(parsed(java), Ok((3, sequential)));

    let java = "0000000300000015000000022f74ffffffff000000010000001f00000005776f726c6400000006616e796f6e65
                0000000500000000000186a0";
    let with_ttl = Request::Create(create(CreateCall::CreateTtl { ttl_ms: 100_000 }, "/t", None, 5));
    assert_eq!(parsed(java), Ok((3, with_ttl)));
}

/// A multi is the only atomic write ZooKeeper's clients have; every operation must arrive, in order.
#[test]
fn a_multi_of_all_operations_is_read_whole() {
    let java =
        "000000030000000e0000000d00ffffffff000000022f63000000010000000100ffffffff000000022f6300000002686900000001
        0000001f00000005776f726c6400000006616e796f6e65000000030000001300ffffffff000000022f6bffffffff000000010000001f
        00000005776f726c6400000006616e796f6e65000000040000001500ffffffff000000022f74ffffffff000000010000001f00000005
        776f726c6400000006616e796f6e650000000500000000000000090000000500ffffffff000000022f6300000000000000020000000200
        ffffffff000000022f63ffffffffffffffff01ffffffff";
    let operations = vec![
        MultiOp::Check { path: "/c".into(), version: 1 },
        MultiOp::Create(create(CreateCall::Create, "/c", Some(b"hi"), 3)),
        MultiOp::Create(create(CreateCall::CreateContainer, "/k", None, 4)),
        MultiOp::Create(create(CreateCall::CreateTtl { ttl_ms: 9 }, "/t", None, 5)),
        MultiOp::SetData { path: "/c".into(), data: Some(Bytes::new()), version: 2 },
        MultiOp::Delete { path: "/c".into(), version: -1 },
    ];
    assert_eq!(parsed(java), Ok((3, Request::Multi(operations))));

    let java = "00000003000000160000000400ffffffff000000022f63000000000800ffffffff000000012f00ffffffff01ffffffff";
    let reads = vec![
        MultiReadOp::GetData { path: "/c".into(), watch: false },
        MultiReadOp::GetChildren { path: "/".into(), watch: false },
    ];
    assert_eq!(parsed(java), Ok((3, Request::MultiRead(reads))));
}

/// A list in the wrong table is a watch that never fires after a reconnect.
#[test]
fn watches_of_a_client_that_is_back_land_in_their_tables() {
    let mut paths = WatchedPaths {
        data: vec!["/d".into()],
        exist: vec!["/e".into()],
        child: vec!["/c".into()],
        ..WatchedPaths::default()
    };
    let java = "fffffff800000065000000000000004d00000001000000022f6400000001000000022f6500000001000000022f63";
    assert_eq!(parsed(java), Ok((xid::SET_WATCHES, Request::SetWatches { relative_zxid: 77, paths: paths.clone() })));

    paths.persistent = vec!["/p".into()];
    paths.persistent_recursive = vec!["/r".into()];
    let java = "fffffff800000069000000000000004d00000001000000022f6400000001000000022f6500000001000000022f63
                00000001000000022f7000000001000000022f72";
    assert_eq!(parsed(java), Ok((xid::SET_WATCHES, Request::SetWatches { relative_zxid: 77, paths })));
}

/// The smaller requests, each as the Java client writes it.
#[test]
fn requests_about_the_connection_are_read_as_java_writes_them() {
    let recursive = Request::AddWatch { path: "/w".into(), mode: AddWatchMode::PersistentRecursive };
    assert_eq!(parsed("00000003 0000006a 00000002 2f77 00000001"), Ok((3, recursive)));
    let removal = Request::RemoveWatches { path: "/w".into(), kind: RemovedWatch::Data };
    assert_eq!(parsed("00000003 00000012 00000002 2f77 00000002"), Ok((3, removal)));
    let digest = Request::Auth { scheme: "digest".into(), auth: Bytes::from_static(b"u:p") };
    assert_eq!(parsed("fffffffc00000064000000000000000664696765737400000003753a70"), Ok((xid::AUTH, digest)));
    let sasl = Request::Sasl { token: Bytes::from_static(b"tok") };
    assert_eq!(parsed("000000030000006600000003746f6b"), Ok((3, sasl)));
    let ephemerals = Request::GetEphemerals { prefix: Some("/e".into()) };
    assert_eq!(parsed("0000000300000067000000022f65"), Ok((3, ephemerals)));
    assert_eq!(parsed("000000030000006b"), Ok((3, Request::WhoAmI)));
    assert_eq!(parsed("00000003fffffff5"), Ok((3, Request::CloseSession)));
    let reconfig = Request::Reconfig {
        joining_servers: Some("server.4=h:1:2;3".into()),
        leaving_servers: None,
        new_members: None,
        cur_config_id: -1,
    };
    let java = "0000000300000010000000107365727665722e343d683a313a323b33ffffffffffffffffffffffffffffffff";
    assert_eq!(parsed(java), Ok((3, reconfig)));
}

/// Clients match answers to pings by xid -2, and ZooKeeper gives that one whatever was asked.
#[test]
fn a_ping_is_answered_as_a_ping_whatever_its_xid() {
    assert_eq!(parsed("00000007 0000000b"), Ok((xid::PING, Request::Ping)));
    assert_eq!(parsed("fffffffe 0000000b"), Ok((xid::PING, Request::Ping)));
}

/// Clients learn from -6 that a server lacks an operation; `check` alone is one, with or without a body.
#[test]
fn unknown_operations_are_requests_and_not_broken_frames() {
    assert_eq!(with_record(500, "010203"), Ok((7, Request::Unknown { opcode: 500 })));
    assert_eq!(with_record(opcode::CHECK, ""), Ok((7, Request::Unknown { opcode: opcode::CHECK })));
    // createSession is ZooKeeper's own; a client must not get at it.
    assert_eq!(with_record(-10, "00001388"), Ok((7, Request::Unknown { opcode: -10 })));
}

/// A client with one broken request keeps its session: the server answers -5 and goes on.
#[test]
fn a_broken_record_can_be_answered_and_the_connection_goes_on() {
    let broken = [
        ("the path is longer than the frame", opcode::GET_DATA, "00000064 2f61"),
        ("no record", opcode::GET_DATA, ""),
        ("no watch flag", opcode::GET_DATA, "00000002 2f61"),
        ("a null path", opcode::GET_DATA, "ffffffff 00"),
        ("a path of -2 bytes", opcode::GET_DATA, "fffffffe 00"),
        ("a null path to create", opcode::CREATE, "ffffffff 00000000 00000000 00000000"),
        ("a buffer of -2 bytes", opcode::CREATE, "00000002 2f62 fffffffe 00000000 00000000"),
        ("a buffer of 2^31-1 bytes", opcode::CREATE, "00000002 2f62 7fffffff 00000000 00000000"),
        ("2^31-1 ACL entries", opcode::CREATE, "00000002 2f62 00000000 7fffffff 00000000"),
        ("a TTL znode without its TTL", opcode::CREATE_TTL, "00000002 2f62 00000000 00000000 00000005"),
        ("a null path to delete", opcode::DELETE, "ffffffff ffffffff"),
        ("a multi without its end", opcode::MULTI, "00000002 00 ffffffff 00000002 2f7a ffffffff"),
        ("a read in a multi", opcode::MULTI, "00000004 00 ffffffff 00000002 2f61 00 ffffffff 01 ffffffff"),
        (
            "a write in a multiRead",
            opcode::MULTI_READ,
            "00000002 00 ffffffff 00000002 2f61 00000000 ffffffff 01 ffffffff",
        ),
        ("a type of -1 that is not the end", opcode::MULTI, "ffffffff 00 ffffffff ffffffff 01 ffffffff"),
        (
            "a null path in a multi's setData",
            opcode::MULTI,
            "00000005 00 ffffffff ffffffff 00000000 00000000 ffffffff 01 ffffffff",
        ),
        ("a null list of watches", opcode::SET_WATCHES, "0000000000000000 ffffffff ffffffff ffffffff"),
        ("a null path among watches", opcode::SET_WATCHES, "0000000000000000 00000001 ffffffff 00000000 00000000"),
        ("2^31-1 watches", opcode::SET_WATCHES, "0000000000000000 7fffffff"),
        ("no such kind of watch", opcode::REMOVE_WATCHES, "00000002 2f61 00000006"),
        ("no such mode of watch", opcode::ADD_WATCH, "00000002 2f61 00000002"),
        (
            "an ACL for nobody in the world",
            opcode::SET_ACL,
            "00000002 2f61 00000001 0000001f 00000005 776f726c64 ffffffff 00000000",
        ),
    ];
    for (what, opcode, record) in broken {
        let outcome = with_record(opcode, record);
        assert!(is_answered_with_marshalling_error(&outcome), "{what}: {outcome:?}");
    }
}

/// Four bytes from a stranger must not reserve gigabytes: a count is checked against the bytes that are left
/// before there is a list.
#[test]
fn a_count_is_not_believed_without_the_bytes_for_it() {
    let acl = |count: &str| with_record(opcode::SET_ACL, &format!("00000002 2f61 {count} 00000000 00000000 00000000"));
    let too_many = |count| {
        Err(Malformed::Record { xid: 7, opcode: opcode::SET_ACL, defect: Defect::TooManyItems { count, left: 12 } })
    };
    assert_eq!(acl("7fffffff"), too_many(i32::MAX));
    assert_eq!(acl("00000002"), too_many(2));
    let watches = with_record(opcode::SET_WATCHES, "0000000000000000 7fffffff");
    let defect = Defect::TooManyItems { count: i32::MAX, left: 0 };
    assert_eq!(watches, Err(Malformed::Record { xid: 7, opcode: opcode::SET_WATCHES, defect }));
}

/// Without an xid there is nobody to answer, and ZooKeeper hangs up on credentials it cannot read.
#[test]
fn frames_that_cannot_be_answered_end_the_connection() {
    for cut in 0..8 {
        let header = Bytes::from(hex("00000007 0000000b")).slice(..cut);
        assert!(matches!(parse_request(header), Err(Malformed::Fatal { .. })), "{cut} bytes");
    }
    for (opcode, record) in [(opcode::AUTH, "00000000"), (opcode::SASL, ""), (opcode::SASL, "ffffffff")] {
        let outcome = with_record(opcode, record);
        assert!(matches!(outcome, Err(Malformed::Fatal { .. })), "{opcode}: {outcome:?}");
    }
}

/// Null where ZooKeeper lives with it: refusing the frame would be an answer its clients have never seen.
#[test]
fn nulls_that_zookeeper_takes_are_taken() {
    let set_data = Request::SetData { path: String::new(), data: None, version: -1 };
    assert_eq!(with_record(opcode::SET_DATA, "ffffffff ffffffff ffffffff"), Ok((7, set_data)));
    assert_eq!(with_record(opcode::SYNC, "ffffffff"), Ok((7, Request::Sync { path: None })));
    assert_eq!(with_record(opcode::GET_EPHEMERALS, "ffffffff"), Ok((7, Request::GetEphemerals { prefix: None })));
    let auth = Request::Auth { scheme: String::new(), auth: Bytes::new() };
    assert_eq!(with_record(opcode::AUTH, "00000000 ffffffff ffffffff"), Ok((7, auth)));
    // Any negative count is a null list, and that is an ACL like the empty one.
    for count in ["ffffffff", "fffffffe"] {
        let outcome = with_record(opcode::SET_ACL, &format!("00000002 2f61 {count} 00000000"));
        assert_eq!(outcome, Ok((7, Request::SetAcl { path: "/a".into(), acl: vec![], version: 0 })));
    }
}

/// Bytes that are not UTF-8 must not end up in the tree: they turn into a character that no path may have.
#[test]
fn bytes_that_are_not_utf8_become_an_illegal_path() {
    let outcome = with_record(opcode::GET_DATA, "00000002 2fff 02");
    assert_eq!(outcome, Ok((7, Request::GetData { path: "/\u{fffd}".into(), watch: true })));
    // What the Java client makes of a character beyond U+FFFF.
    let outcome = with_record(opcode::GET_ACL, "00000007 2f eda0bd edb880");
    assert!(matches!(&outcome, Ok((7, Request::GetAcl { path })) if path.contains('\u{fffd}')), "{outcome:?}");
}

/// ZooKeeper reads what it needs and leaves the rest, in records and after the end of a multi.
#[test]
fn bytes_after_a_record_are_ignored() {
    let outcome = with_record(opcode::GET_ACL, "00000002 2f61 7a7a7a7a");
    assert_eq!(outcome, Ok((7, Request::GetAcl { path: "/a".into() })));
    // Only the flag ends a multi, whatever the type beside it says.
    assert_eq!(with_record(opcode::MULTI, "00000000 01 00000000 7a7a"), Ok((7, Request::Multi(vec![]))));
}

/// An old client that gets the readOnly byte takes the handshake for broken and never connects.
#[test]
fn the_handshake_mentions_read_only_exactly_if_the_client_did() {
    let java = "00000000 0000000000001122 00007530 00000000000100aa 00000010 0102030405060708090a0b0c0d0e0f10 01";
    let request = ConnectRequest::parse(Bytes::from(hex(java))).unwrap();
    let password = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    let expected = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0x1122,
        timeout_ms: 30_000,
        session_id: 0x0001_00aa,
        password: Bytes::copy_from_slice(&password),
        read_only: Some(true),
    };
    assert_eq!(request, expected);

    let response = ConnectResponse { timeout_ms: 30_000, session_id: 0x0001_00aa, password, read_only: Some(false) };
    let mut out = Vec::new();
    response.write(&mut out);
    let java = "00000025 00000000 00007530 00000000000100aa 00000010 0102030405060708090a0b0c0d0e0f10 00";
    assert_eq!(out, hex(java));

    let old = "00000000 0000000000000000 00002710 0000000000000000 ffffffff";
    let request = ConnectRequest::parse(Bytes::from(hex(old))).unwrap();
    assert_eq!((request.read_only, &request.password), (None, &Bytes::new()));
    let mut out = Vec::new();
    ConnectResponse::session_over(&request).write(&mut out);
    let zeros = "00000000000000000000000000000000";
    assert_eq!(out, hex(&format!("00000024 00000000 00000000 0000000000000000 00000010 {zeros}")));

    assert!(ConnectRequest::parse(Bytes::from(hex(&old[..old.len() - 2]))).is_err());
}

/// Replies about one znode, byte for byte as ZooKeeper 3.9.3 sent them.
#[test]
fn replies_about_a_znode_are_what_zookeeper_sends() {
    let stat = Stat { data_length: 5, ..untouched(0x1cc, 0x01a1_e084_d998) };
    let data = Reply::Data { data: Some(Bytes::from_static(b"hello")), stat };
    let real =
        "0000005d0000000700000000000001cc000000000000000568656c6c6f00000000000001cc00000000000001cc000001a1e084d998
        000001a1e084d9980000000000000000000000000000000000000000000000050000000000000000000001cc";
    assert_eq!(written(7, 0x1cc, &data), hex(real));

    let real = "0000006f0000000700000000000001cc00000000000000010000001f00000005776f726c6400000006616e796f6e65
        00000000000001cc00000000000001cc000001a1e084d998000001a1e084d99800000000000000000000000000000000000000000000
        00050000000000000000000001cc";
    assert_eq!(written(7, 0x1cc, &Reply::Acl { acl: everyone(), stat }), hex(real));

    let parent = Stat { cversion: 1, num_children: 1, pzxid: 0x1cd, ..stat };
    let children = Reply::Children { children: vec![Bytes::from_static(b"a")], stat: Some(parent) };
    let real =
        "0000005d0000000700000000000001cd0000000000000001000000016100000000000001cc00000000000001cc000001a1e084d998
        000001a1e084d9980000000000000001000000000000000000000000000000050000000100000000000001cd";
    assert_eq!(written(7, 0x1cd, &children), hex(real));
    let children = Reply::Children { children: vec![Bytes::from_static(b"a")], stat: None };
    assert_eq!(written(7, 0x1cd, &children), hex("000000190000000700000000000001cd00000000000000010000000161"));

    let owned = Stat { ephemeral_owner: 0x0100_023b_9dbc_00c2, ..untouched(0x1ce, 0x01a1_e084_d9a0) };
    let created = Reply::Created { path: "/h/e".into(), stat: Some(owned) };
    let real =
        "0000005c0000000700000000000001ce00000000000000042f682f6500000000000001ce00000000000001ce000001a1e084d9a0
        000001a1e084d9a00000000000000000000000000100023b9dbc00c2000000000000000000000000000001ce";
    assert_eq!(written(7, 0x1ce, &created), hex(real));

    let missing = written(7, 0x1cd, &Reply::Error(ErrorCode::NoNode));
    assert_eq!(missing, hex("000000100000000700000000000001cdffffff9b"));
}

/// Null data is not empty data: clients show the difference to their users.
#[test]
fn null_data_goes_out_as_null() {
    let body = |data| written(7, 0, &Reply::Data { data, stat: Stat::default() })[20..24].to_vec();
    assert_eq!(body(None), hex("ffffffff"));
    assert_eq!(body(Some(Bytes::new())), hex("00000000"));
}

/// The small replies, byte for byte as ZooKeeper 3.9.3 sent them.
#[test]
fn replies_about_the_connection_are_what_zookeeper_sends() {
    let header = "0000000700000000000001d000000000";
    let small = [
        (Reply::Empty, String::from("00000010")),
        (Reply::Ephemerals(vec!["/h/e".into()]), String::from("0000001c | 00000001000000042f682f65")),
        (Reply::AllChildrenNumber(2), String::from("00000014 | 00000002")),
        (
            Reply::WhoAmI(vec![AuthId { scheme: "ip".into(), user: "127.0.0.1".into() }]),
            String::from("00000027 | 00000001000000026970000000093132372e302e302e31"),
        ),
        (Reply::WatchAdded, String::from("00000014 | 00000000")),
        (Reply::Synced { path: Some("/h".into()) }, String::from("00000016 | 000000022f68")),
        (Reply::Synced { path: None }, String::from("00000014 | ffffffff")),
        (Reply::SaslToken(None), String::from("00000014 | ffffffff")),
    ];
    for (reply, real) in small {
        let (length, body) = real.split_once('|').unwrap_or((&real, ""));
        assert_eq!(written(7, 0x1d0, &reply), hex(&format!("{length}{header}{body}")), "{reply:?}");
    }
    // The one error with something behind its header.
    let refused = written(2, 0, &Reply::SaslRefused(ErrorCode::AuthFailed));
    assert_eq!(refused, hex("00000014 00000002 0000000000000000 ffffff8d ffffffff"));
}

/// Kazoo and Curator take the results of a multi apart by these types.
#[test]
fn a_multi_that_worked_tells_each_result() {
    let stat = untouched(0x1d0, 0x01a1_e084_d9b2);
    let results = vec![
        MultiResult::Created { path: "/m5".into(), stat: None },
        MultiResult::Created { path: "/m6".into(), stat: Some(stat) },
        MultiResult::DataSet(Stat { version: 1, data_length: 1, ..stat }),
        MultiResult::Checked,
        MultiResult::Deleted,
        MultiResult::Deleted,
    ];
    let real =
        "000000e50000000700000000000001d000000000000000010000000000000000032f6d350000000f0000000000000000032f6d36
        00000000000001d000000000000001d0000001a1e084d9b2000001a1e084d9b200000000000000000000000000000000000000000000
        00000000000000000000000001d000000005000000000000000000000001d000000000000001d0000001a1e084d9b2000001a1e084d9b2
        0000000100000000000000000000000000000000000000010000000000000000000001d00000000d00000000000000000200000000000000
        00020000000000ffffffff01ffffffff";
    assert_eq!(written(7, 0x1d0, &Reply::Multi(results)), hex(real));
    assert_eq!(written(7, 0, &Reply::Multi(vec![]))[20..], hex("ffffffff 01 ffffffff"));
}

/// The header of a failed multi tells success; a client that got an error there would not look for which
/// operation it was, and one that found no error inside would believe that it was done.
#[test]
fn a_multi_that_failed_tells_which_operation_it_was() {
    let real = "000000400000000700000000000001cf00000000 ffffffff000000000000000000 ffffffff00ffffff9bffffff9b
        ffffffff00fffffffefffffffe ffffffff01ffffffff";
    let failed = Reply::MultiFailed { operations: 3, failed: 1, error: ErrorCode::NoNode };
    assert_eq!(written(7, 0x1cf, &failed), hex(real));
}

/// One missing znode must not hide what the other reads found.
#[test]
fn a_multi_read_tells_each_result_by_itself() {
    let results = vec![
        MultiReadResult::Data { data: None, stat: untouched(0x1cd, 0x01a1_e084_d99c) },
        MultiReadResult::Children(vec![Bytes::from_static(b"a"), Bytes::from_static(b"e")]),
        MultiReadResult::Error(ErrorCode::NoNode),
    ];
    let real = "0000008e0000000700000000000001ce00000000000000040000000000ffffffff00000000000001cd00000000000001cd
        000001a1e084d99c000001a1e084d99c0000000000000000000000000000000000000000000000000000000000000000000001cd
        0000000800000000000000000200000001610000000165ffffffff00ffffff9bffffff9bffffffff01ffffffff";
    assert_eq!(written(7, 0x1ce, &Reply::MultiRead(results)), hex(real));
}

/// A request of a megabyte may ask for the same megabyte sixty thousand times. Sharing makes that cheap until
/// it is written out.
#[test]
fn a_reply_without_measure_becomes_an_error_and_what_was_there_before_stays() {
    let big = MultiReadResult::Data { data: Some(Bytes::from(vec![0; 1 << 20])), stat: Stat::default() };
    let reply = Reply::MultiRead(vec![big; 600]);
    let mut out = b"before".to_vec();
    write_reply(&mut out, 7, 9, &reply);
    assert_eq!(out[..6], *b"before");
    assert_eq!(out[6..], hex("00000010 00000007 0000000000000009 fffffffb"));
    assert!(out.capacity() < 3 * MAX_REPLY, "took {} bytes", out.capacity());
}

/// Recorded from ZooKeeper 3.9.3: a child of /h went away.
#[test]
fn events_are_what_zookeeper_sends() {
    let mut out = Vec::new();
    write_event(&mut out, 0x1d1, EventKind::NodeChildrenChanged, KeeperState::SyncConnected, "/h");
    assert_eq!(out, hex("0000001e ffffffff 00000000000001d1 00000000 00000004 00000003 00000002 2f68"));
}

/// Operators' scripts send words to the same port; anything else there is a length, and no stranger's bytes
/// may make the server wait for a gigabyte.
#[test]
fn the_first_four_bytes_are_a_word_or_a_length() {
    let opens = |first: &[u8; 4]| opening(*first, DEFAULT_MAX_FRAME);
    assert_eq!(FourLetterWord::ALL.len(), 18);
    for word in FourLetterWord::ALL {
        let bytes = word.as_str().as_bytes().first_chunk().expect("words have four letters");
        assert_eq!(opens(bytes), Ok(Opening::Word(*word)));
    }
    assert_eq!(opens(&[0, 0, 0, 45]), Ok(Opening::Frame(45)));
    for stranger in [b"RUOK", b"GET ", b"abcd"] {
        assert!(matches!(opens(stranger), Err(BadLength::TooLong { .. })), "{stranger:?}");
    }
    assert_eq!(opens(&[0xff, 0xff, 0xff, 0xfb]), Err(BadLength::Negative(-5)));
}

/// The limit is the last length that works, as in ZooKeeper; the next one ends the connection at once, before
/// its bytes are waited for.
#[test]
fn frames_come_out_whole_and_those_too_long_not_at_all() {
    let mut buffer = BytesMut::new();
    assert_eq!(take_frame(&mut buffer, 8), Ok(None));
    buffer.extend_from_slice(&hex("00000002 6162 00000000 00000008 01020304"));
    assert_eq!(take_frame(&mut buffer, 8), Ok(Some(Bytes::from_static(b"ab"))));
    assert_eq!(take_frame(&mut buffer, 8), Ok(Some(Bytes::new())));
    assert_eq!(take_frame(&mut buffer, 8), Ok(None));
    buffer.extend_from_slice(&hex("05060708 00000009"));
    assert_eq!(take_frame(&mut buffer, 8), Ok(Some(Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]))));
    assert_eq!(take_frame(&mut buffer, 8), Err(BadLength::TooLong { length: 9, limit: 8 }));

    assert_eq!(frame_length([0, 0x0f, 0xff, 0xff], DEFAULT_MAX_FRAME), Ok(1_048_575));
    assert!(frame_length([0, 0x10, 0, 0], DEFAULT_MAX_FRAME).is_err());
}
