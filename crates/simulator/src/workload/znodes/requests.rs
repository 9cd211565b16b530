//! What clients of the znodes workload ask for. All data is unique in the run.
//!
//! | path             | what                                                                  |
//! |------------------|-----------------------------------------------------------------------|
//! | `/z/d<n>`        | comes and goes; its data is set all the time; may have children `x<n>` |
//! | `/z/e/<name>`    | ephemeral, under names that clients compete for and names of their own |
//! | `/z/q/q-<number>`| sequential, half of them ephemeral                                    |
//! | `/z/k<n>`        | a container, with a child now and then                                |
//! | `/z/t<n>`        | lives for a second or three unless it is written                      |

use bytes::Bytes;
use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{Acl, AddWatchMode, CreateCall, CreateRequest, MultiOp, RemovedWatch, Request};
use tidelock_model::limits::ZNODE_PATH_BYTES_MAX;

use crate::client::Client;
use crate::zookeeper::MAX_FRAME;

/// Znodes of each kind.
const SOME: u64 = 3;
/// Sequential znodes a client remembers, to delete them.
const REMEMBERED_MAX: usize = 8;
/// `flags` of a create, as ZooKeeper numbers them.
const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;
const SEQUENTIAL: i32 = 2;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;
const WITH_TTL: i32 = 5;
/// Everybody may do everything.
const ALL_PERMISSIONS: i32 = 31;

/// How often, in thousandths, a request is larger than allowed.
const OVERSIZED_PERMILLE: u64 = 4;

/// Whether a request asks for a path that is longer than allowed.
pub(super) fn is_oversized(request: &Request) -> bool {
    matches!(request, Request::Create(create) if create.path.len() > ZNODE_PATH_BYTES_MAX)
}

/// One that must be refused, or one for which the connection must be ended; neither may harm anybody else.
fn oversized(client: &Client) -> Request {
    if client.chance(500) {
        let path = format!("/z/{}", "x".repeat(ZNODE_PATH_BYTES_MAX));
        return Request::Create(create(client, CreateCall::Create, path, PERSISTENT));
    }
    let data = Some(Bytes::from(format!("{}{}", client.unique(), " ".repeat(MAX_FRAME))));
    Request::SetData { path: data_path(client), data, version: -1 }
}

/// What a client remembers of what it did.
#[derive(Default)]
pub(super) struct Mine {
    has_parents: bool,
    sequential: Vec<String>,
}

fn create(client: &Client, call: CreateCall, path: String, flags: i32) -> CreateRequest {
    let acl = vec![Acl { perms: ALL_PERMISSIONS, scheme: "world".to_owned(), id: "anyone".to_owned() }];
    CreateRequest { call, path, data: Some(Bytes::from(client.unique())), acl, flags }
}

fn data_path(client: &Client) -> String {
    let path = format!("/z/d{}", client.below(SOME));
    if client.chance(250) { format!("{path}/x{}", client.below(2)) } else { path }
}

fn ephemeral_path(client: &Client) -> String {
    match client.below(2) {
        0 => format!("/z/e/n{}", client.below(SOME)),
        _ => format!("/z/e/c{}-{}", client.id(), client.below(SOME)),
    }
}

/// Where something may be looked for.
fn some_path(client: &Client) -> String {
    match client.below(12) {
        0..5 => data_path(client),
        5..8 => ephemeral_path(client),
        8 => format!("/z/k{}", client.below(2)),
        9 => format!("/z/t{}", client.below(2)),
        10 => "/z/e".to_owned(),
        _ => "/z".to_owned(),
    }
}

fn some_parent(client: &Client) -> String {
    match client.below(8) {
        0..3 => "/z/e".to_owned(),
        3..5 => "/z/q".to_owned(),
        5 => "/z".to_owned(),
        6 => format!("/z/k{}", client.below(2)),
        _ => format!("/z/d{}", client.below(SOME)),
    }
}

impl Mine {
    /// What everything else is below; asked for once, and there already for all but one client.
    pub(super) fn parents(&mut self) -> Vec<Request> {
        if self.has_parents {
            return Vec::new();
        }
        let acl = || vec![Acl { perms: ALL_PERMISSIONS, scheme: "world".to_owned(), id: "anyone".to_owned() }];
        let parent = |path: &str| {
            // Without data, so that it does not matter whose it is.
            let (call, path) = (CreateCall::Create, path.to_owned());
            Request::Create(CreateRequest { call, path, data: None, acl: acl(), flags: PERSISTENT })
        };
        ["/z", "/z/e", "/z/q"].into_iter().map(parent).collect()
    }

    pub(super) fn answered(&mut self, request: &Request, result: &Result<Found, i32>) {
        match (request, result) {
            (Request::Create(create), _) if create.path == "/z/q" => self.has_parents = true,
            (Request::Create(create), Ok(Found::Created(path, _)))
                if create.flags & SEQUENTIAL != 0 && self.sequential.len() < REMEMBERED_MAX =>
            {
                self.sequential.push(path.clone());
            }
            _ => {}
        }
    }

    pub(super) fn request(&mut self, client: &Client) -> Request {
        if client.chance(OVERSIZED_PERMILLE) {
            return oversized(client);
        }
        match client.below(100) {
            0..35 => self.write(client),
            35..75 => read(client),
            75..80 => multi(client),
            80..86 => Request::Sync { path: Some("/z".to_owned()) },
            86..90 => Request::GetEphemerals { prefix: Some("/".to_owned()) },
            90..93 => {
                let mode = *client.pick(&[AddWatchMode::Persistent, AddWatchMode::PersistentRecursive]);
                Request::AddWatch { path: some_path(client), mode }
            }
            93..95 => Request::RemoveWatches { path: some_path(client), kind: RemovedWatch::Any },
            _ => Request::Ping,
        }
    }

    fn write(&mut self, client: &Client) -> Request {
        let two = client.chance(500);
        let call = if two { CreateCall::Create2 } else { CreateCall::Create };
        match client.below(20) {
            0..3 => Request::Create(create(client, call, data_path(client), PERSISTENT)),
            3..7 => {
                let data = Some(Bytes::from(client.unique()));
                let version = if client.chance(200) { i32::try_from(client.below(3)).unwrap_or(0) } else { -1 };
                Request::SetData { path: some_path(client), data, version }
            }
            7..9 => Request::Delete { path: data_path(client), version: -1 },
            9..13 => Request::Create(create(client, call, ephemeral_path(client), EPHEMERAL)),
            13 => Request::Delete { path: ephemeral_path(client), version: -1 },
            14..17 => {
                let flags = *client.pick(&[SEQUENTIAL, EPHEMERAL_SEQUENTIAL]);
                Request::Create(create(client, call, "/z/q/q-".to_owned(), flags))
            }
            17 => match self.sequential.pop() {
                Some(path) => Request::Delete { path, version: -1 },
                None => Request::Ping,
            },
            18 => container(client),
            _ => {
                let call = CreateCall::CreateTtl { ttl_ms: i64::try_from(client.between(1_000, 3_000)).unwrap_or(1) };
                Request::Create(create(client, call, format!("/z/t{}", client.below(2)), WITH_TTL))
            }
        }
    }
}

fn container(client: &Client) -> Request {
    let path = format!("/z/k{}", client.below(2));
    match client.below(3) {
        0 => Request::Create(create(client, CreateCall::CreateContainer, path, CONTAINER)),
        1 => Request::Create(create(client, CreateCall::Create, format!("{path}/y"), PERSISTENT)),
        _ => Request::Delete { path: format!("{path}/y"), version: -1 },
    }
}

fn read(client: &Client) -> Request {
    let watch = client.chance(500);
    match client.below(10) {
        0..4 => Request::GetData { path: some_path(client), watch },
        4..7 => Request::Exists { path: some_path(client), watch },
        7 => Request::GetChildren { path: some_parent(client), watch },
        _ => Request::GetChildren2 { path: some_parent(client), watch },
    }
}

fn multi(client: &Client) -> Request {
    let data = || Some(Bytes::from(client.unique()));
    let set = || MultiOp::SetData { path: data_path(client), data: data(), version: -1 };
    let ephemeral = || MultiOp::Create(create(client, CreateCall::Create, ephemeral_path(client), EPHEMERAL));
    Request::Multi(match client.below(4) {
        0 => vec![ephemeral(), set()],
        1 => vec![ephemeral(), ephemeral()],
        2 => {
            let numbered = create(client, CreateCall::Create2, "/z/q/q-".to_owned(), EPHEMERAL_SEQUENTIAL);
            vec![MultiOp::Create(numbered.clone()), set(), set()]
        }
        _ => vec![set(), MultiOp::Check { path: data_path(client), version: 1 }, ephemeral()],
    })
}
