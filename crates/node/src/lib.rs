//! All the IO of a node: threads, journal files, peer links, clock. What is decided is decided in
//! `replica` and `state`; this crate performs it.
//!
//! A write's way: `handle` -> `consensus_worker` -> `journal_worker` (the only fsync) and `peers` ->
//! `consensus_worker` -> `apply_worker` -> back to the caller in `handle`. `workers` wires the parts together,
//! `node` gives each worker a thread, `shared` is what they share, `snapshots` writes and moves whole states.

mod acquaintances;
mod apply_worker;
mod brief;
mod clock;
mod config;
mod consensus_worker;
mod founding;
mod handle;
mod held_watches;
mod identity;
mod inbound;
mod inbox;
mod journal_worker;
mod links;
mod measurements;
mod node;
pub mod peers;
mod quota_log;
mod restore;
mod shared;
mod snapshots;
mod state_copy;
mod subscription;
mod waiters;
mod workers;

pub use acquaintances::OTHER_DISK;
pub use apply_worker::{ApplyWorker, RunSnapshot};
pub use clock::{Moment, Turn};
pub use config::{Bootstrap, NodeConfig, NodeLimits};
pub use consensus_worker::ConsensusWorker;
pub use identity::{Identity, IdentityError};
pub use inbound::Inbound;
pub use journal_worker::JournalWorker;
pub use links::Links;
pub use measurements::{BUCKET_BOUNDS_US, Histogram, HistogramReading, Measured};
pub use node::{Node, StartError, adopt_identity, existing_identity};
pub use restore::{Founder, RestoreError, Restored, check_vacant, restore};
pub use shared::StopReason;
pub use snapshots::{SnapshotJob, SnapshotLoadError};
pub use tidelock_state::{ImportError, StateImport};
pub use workers::{Draws, Prepared, Waiting, Workers};
