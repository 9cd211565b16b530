//! Properties of the codec over all inputs: what is written is read, and nothing breaks or bloats the reader.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::request_writer::request_frame;
use super::*;

fn any_string() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::from("/")), "/[a-z]{1,8}", any::<String>()]
}

fn any_data() -> impl Strategy<Value = Option<Bytes>> {
    option::of(vec(any::<u8>(), 0..40).prop_map(Bytes::from))
}

fn any_acl() -> impl Strategy<Value = Vec<Acl>> {
    let entry = (any::<i32>(), any_string(), any_string()).prop_map(|(perms, scheme, id)| Acl { perms, scheme, id });
    vec(entry, 0..4)
}

fn any_create() -> impl Strategy<Value = CreateRequest> {
    let call = prop_oneof![
        Just(CreateCall::Create),
        Just(CreateCall::Create2),
        Just(CreateCall::CreateContainer),
        any::<i64>().prop_map(|ttl_ms| CreateCall::CreateTtl { ttl_ms }),
    ];
    (call, any_string(), any_data(), any_acl(), any::<i32>()).prop_map(|(call, path, data, acl, flags)| CreateRequest {
        call,
        path,
        data,
        acl,
        flags,
    })
}

fn any_multi_op() -> impl Strategy<Value = MultiOp> {
    prop_oneof![
        any_create().prop_map(MultiOp::Create),
        (any_string(), any::<i32>()).prop_map(|(path, version)| MultiOp::Delete { path, version }),
        (any_string(), any_data(), any::<i32>()).prop_map(|(path, data, version)| MultiOp::SetData {
            path,
            data,
            version
        }),
        (any_string(), any::<i32>()).prop_map(|(path, version)| MultiOp::Check { path, version }),
    ]
}

fn any_multi_read_op() -> impl Strategy<Value = MultiReadOp> {
    (any_string(), any::<bool>(), any::<bool>()).prop_map(|(path, watch, children)| match children {
        true => MultiReadOp::GetChildren { path, watch },
        false => MultiReadOp::GetData { path, watch },
    })
}

fn any_removed_watch() -> impl Strategy<Value = RemovedWatch> {
    prop_oneof![
        Just(RemovedWatch::Children),
        Just(RemovedWatch::Data),
        Just(RemovedWatch::Any),
        Just(RemovedWatch::Persistent),
        Just(RemovedWatch::PersistentRecursive),
    ]
}

fn any_watched_paths() -> impl Strategy<Value = WatchedPaths> {
    let paths = || vec(any_string(), 0..4);
    (paths(), paths(), paths(), paths(), paths()).prop_map(|(data, exist, child, persistent, persistent_recursive)| {
        WatchedPaths { data, exist, child, persistent, persistent_recursive }
    })
}

fn any_tree_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any_create().prop_map(Request::Create),
        (any_string(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        any_string().prop_map(|path| Request::DeleteContainer { path }),
        (any_string(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        (any_string(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        (any_string(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        (any_string(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        (any_string(), any_data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData {
            path,
            data,
            version
        }),
        any_string().prop_map(|path| Request::GetAcl { path }),
        (any_string(), any_acl(), any::<i32>()).prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
        any_string().prop_map(|path| Request::GetAllChildrenNumber { path }),
        vec(any_multi_op(), 0..6).prop_map(Request::Multi),
        vec(any_multi_read_op(), 0..6).prop_map(Request::MultiRead),
    ]
}

fn any_connection_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        option::of(any_string()).prop_map(|path| Request::Sync { path }),
        option::of(any_string()).prop_map(|prefix| Request::GetEphemerals { prefix }),
        (option::of(any_string()), option::of(any_string()), option::of(any_string()), any::<i64>()).prop_map(
            |(joining_servers, leaving_servers, new_members, cur_config_id)| Request::Reconfig {
                joining_servers,
                leaving_servers,
                new_members,
                cur_config_id
            }
        ),
        (any_string(), any_removed_watch()).prop_map(|(path, kind)| Request::CheckWatches { path, kind }),
        (any_string(), any_removed_watch()).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        any_string().prop_map(|path| Request::AddWatch { path, mode: AddWatchMode::Persistent }),
        any_string().prop_map(|path| Request::AddWatch { path, mode: AddWatchMode::PersistentRecursive }),
        (any_string(), vec(any::<u8>(), 0..20))
            .prop_map(|(scheme, auth)| Request::Auth { scheme, auth: Bytes::from(auth) }),
        vec(any::<u8>(), 0..20).prop_map(|token| Request::Sasl { token: Bytes::from(token) }),
        (any::<i64>(), any_watched_paths())
            .prop_map(|(relative_zxid, paths)| Request::SetWatches { relative_zxid, paths }),
        Just(Request::WhoAmI),
        Just(Request::CloseSession),
        (108..i32::MAX).prop_map(|opcode| Request::Unknown { opcode }),
    ]
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![any_tree_request(), any_connection_request()]
}

/// Every operation there is, and some that are none.
fn any_opcode() -> impl Strategy<Value = i32> {
    prop_oneof![-12..24_i32, 99..109_i32, any::<i32>()]
}

/// Bytes in which lengths and counts, sane and insane, are frequent.
fn jute_like() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        (-3..40_i32).boxed(),
        Just(i32::MAX).boxed(),
        Just(i32::MIN).boxed(),
        (0..0x0020_0000_i32).boxed(),
        any::<i32>().boxed()
    ];
    let piece = prop_oneof![number.prop_map(|number| number.to_be_bytes().to_vec()), vec(any::<u8>(), 0..9)];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// The memory a request holds beside its frame, by what its vectors and strings have room for.
fn memory_of(request: &Request) -> usize {
    let string = String::capacity;
    let strings = |list: &Vec<String>| list.capacity() * size_of::<String>() + list.iter().map(string).sum::<usize>();
    let acl = |list: &Vec<Acl>| {
        list.capacity() * size_of::<Acl>()
            + list.iter().map(|entry| string(&entry.scheme) + string(&entry.id)).sum::<usize>()
    };
    match request {
        Request::Create(create) => string(&create.path) + acl(&create.acl),
        Request::SetAcl { path, acl: list, .. } => string(path) + acl(list),
        Request::SetWatches { paths, .. } => {
            [&paths.data, &paths.exist, &paths.child, &paths.persistent, &paths.persistent_recursive]
                .into_iter()
                .map(strings)
                .sum()
        }
        Request::Multi(operations) => {
            let inside = |operation: &MultiOp| match operation {
                MultiOp::Create(create) => string(&create.path) + acl(&create.acl),
                MultiOp::Delete { path, .. } | MultiOp::SetData { path, .. } | MultiOp::Check { path, .. } => {
                    string(path)
                }
            };
            operations.capacity() * size_of::<MultiOp>() + operations.iter().map(inside).sum::<usize>()
        }
        Request::MultiRead(operations) => operations.capacity() * size_of::<MultiReadOp>(),
        _ => 0,
    }
}

/// The most memory a byte of a frame may turn into. The worst is a list of deletes of the empty path: 17 bytes
/// each, and the list has room for up to twice as many as there are.
const MEMORY_PER_BYTE: usize = 24;

/// A list starts with room for a few.
const MEMORY_AT_LEAST: usize = 1024;

fn assert_memory_is_bounded(frame: &Bytes) {
    if let Ok((_, request)) = parse_request(frame.clone()) {
        let memory = memory_of(&request);
        let allowed = MEMORY_AT_LEAST + MEMORY_PER_BYTE * frame.len();
        assert!(memory <= allowed, "{} bytes became {memory}: {request:?}", frame.len());
    }
}

proptest! {
    /// What a client writes is what the server acts on.
    #[test]
    fn every_request_is_read_as_it_was_written(xid in any::<i32>(), request in any_request()) {
        prop_assert_eq!(parse_request(request_frame(xid, &request)), Ok((xid, request)));
    }

    /// A connection that breaks within a packet must not turn a request into another, shorter one.
    #[test]
    fn a_request_that_was_cut_is_never_taken_for_a_whole_one(
        xid in any::<i32>(), request in any_request(), cut in any::<prop::sample::Index>()
    ) {
        let frame = request_frame(xid, &request);
        let outcome = parse_request(frame.slice(..cut.index(frame.len())));
        prop_assert!(outcome.is_err(), "{:?}", outcome);
    }

    /// Whoever can reach the port can send anything. It must not bring the node down.
    #[test]
    fn any_bytes_are_a_request_or_an_error(xid in any::<i32>(), opcode in any_opcode(), record in jute_like()) {
        let frame = Bytes::from([&xid.to_be_bytes()[..], &opcode.to_be_bytes(), &record].concat());
        assert_memory_is_bounded(&frame);
        let _ = ConnectRequest::parse(Bytes::from(record));
    }

    /// The same for frames that were right but for one byte, which get deeper into the reader.
    #[test]
    fn a_wrong_byte_is_survived(
        request in any_request(), place in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let mut frame = request_frame(1, &request).to_vec();
        let place = place.index(frame.len());
        frame[place] = byte;
        assert_memory_is_bounded(&Bytes::from(frame));
    }

    /// However the network cuts a stream into pieces, the same frames come out.
    #[test]
    fn frames_do_not_depend_on_how_the_bytes_arrive(
        frames in vec(vec(any::<u8>(), 0..30), 0..6), piece in 1..20_usize
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            jute::put_bytes(&mut stream, frame);
        }
        let (mut buffer, mut taken) = (BytesMut::new(), Vec::new());
        for bytes in stream.chunks(piece) {
            buffer.extend_from_slice(bytes);
            while let Some(frame) = take_frame(&mut buffer, 30).expect("no frame is longer") {
                taken.push(frame.to_vec());
            }
        }
        prop_assert_eq!(taken, frames);
    }
}

/// The lists that grow most per byte, at the length of the longest frame there is: a client must not be able
/// to make a megabyte into a gigabyte.
#[test]
fn the_longest_lists_of_the_smallest_things_stay_small() {
    let smallest = DEFAULT_MAX_FRAME / 17 - 1;
    let deletes = vec![MultiOp::Delete { path: String::new(), version: 0 }; smallest];
    let paths = WatchedPaths { data: vec![String::new(); DEFAULT_MAX_FRAME / 4 - 8], ..WatchedPaths::default() };
    let nobody = Acl { perms: 0, scheme: String::new(), id: String::new() };
    let acl = vec![nobody; DEFAULT_MAX_FRAME / 12 - 2];
    for request in [
        Request::Multi(deletes),
        Request::SetWatches { relative_zxid: 0, paths },
        Request::SetAcl { path: String::new(), acl, version: 0 },
    ] {
        let frame = request_frame(1, &request);
        assert!(frame.len() <= DEFAULT_MAX_FRAME);
        assert!(parse_request(frame.clone()).is_ok());
        assert_memory_is_bounded(&frame);
    }
}
