//! A load generator for servers that speak etcd's or ZooKeeper's protocol, or Redis' as far as locks need it, lean enough that the server is what is
//! measured.
//!
//! `lines` holds connections and the loop that serves them; `grpc`, `zookeeper` and `redis` are the protocols as bytes, without
//! IO; `workload` says what an operation is, `load` how many of them are sent and when. Used by `cargo xtask bench` and
//! by `tidelock bench`.
//!
//! It shares nothing with the servers' side of the protocols on purpose: a fault that both ends share would not be seen.
//! It refuses answers that break a protocol, and counts as failed what is not the answer to what was asked.

mod etcd_messages;
mod grpc;
mod histogram;
mod hpack;
mod huffman;
mod lines;
mod load;
mod probe;
mod random;
mod redis;
mod socket;
mod timeline;
mod values;
mod workload;
mod zookeeper;

pub use grpc::StreamId;
pub use histogram::Histogram;
pub use lines::{Access, Actor, Answer, Language, Lines, Protocol, Status, Tag, Turn};
pub use load::{Call, Done, Load, Pace, Until, run, run_over, spread};
pub use probe::first_read;
pub use random::Random;
pub use redis::Value;
pub use socket::Tls;
pub use timeline::Timeline;
pub use values::{KEY_BYTES, Values, key};
pub use workload::{
    FanOut, FannedOut, Fill, Kind, LeaseGrants, LeasePuts, LockLoad, Locked, NativeSessions, Parties, Phased,
    PhaserLoad, Renewed, Watchers, Workload, ZnodeFill, lock_by_recipe, lock_by_rpc, lock_by_set, lock_natively, renew,
};
