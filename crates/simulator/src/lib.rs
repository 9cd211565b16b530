//! A whole cluster in one thread, with every choice drawn from one seed.
//!
//! The nodes are the production code: the etcd face's translation, the ZooKeeper face, the coordinator, the three workers, the
//! replica, the state and the journal. Simulated are the machines around them: clocks, network, disks, and the
//! moments at which anything happens. `world` is where to begin; a request's way: `client` -> `doors` -> the
//! node -> `world` carries what the node sends -> other nodes -> back. What happened is a `history`, judged by
//! `check`. How it is meant to be used: `docs/internals/simulation.md`.

pub mod arguments;
pub mod campaign;
pub mod check;
pub mod client;
pub mod coverage;
pub mod doors;
pub mod executor;
pub mod history;
mod links;
mod machine;
pub mod minimise;
mod native_push;
pub mod network;
pub mod plan;
pub mod random;
mod tap;
pub mod trace;
pub mod workload;
pub mod world;
mod zookeeper;
