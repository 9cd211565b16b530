//! All the IO of a node: threads, journal files, peer links, clock. What is decided is decided in
//! `replica` and `state`; this crate performs it.
//!
//! A write's way: `handle` -> `run` (consensus thread) -> `journal_thread` (the only fsync) and
//! `peers` -> `run` -> `apply_thread` -> back to the caller in `handle`. `node` puts the parts together,
//! `shared` is what they share, `snapshots` writes and moves whole states.

mod apply_thread;
mod config;
mod handle;
mod identity;
mod inbound;
mod inbox;
mod journal_thread;
mod node;
pub mod peers;
mod run;
mod shared;
mod snapshots;
mod subscription;
mod waiters;

pub use config::{Bootstrap, NodeConfig, NodeLimits};
pub use identity::{Identity, IdentityError};
pub use node::{Node, StartError, existing_identity};
pub use shared::StopReason;
pub use snapshots::SnapshotLoadError;
