//! What a node needs to know to start. Parsed and explained to users by the server crate; checked
//! once here and passed on whole.

use std::path::PathBuf;
use std::time::Duration;

use tidelock_model::{ClusterId, Member, NodeId};
use tidelock_replica::watch_hub::QueueLimits;

/// Everything a node needs to start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This node's name, shown in member lists.
    pub name: String,
    /// Where journal, snapshots and identity live. Created 0700 if missing.
    pub data_dir: PathBuf,
    /// URLs clients reach this node at, shown in member lists.
    pub client_urls: Vec<String>,
    /// What to become if the data directory is empty; ignored if it is not.
    pub bootstrap: Bootstrap,
    /// How often the leader tells its followers that it lives.
    pub heartbeat: Duration,
    /// How long followers wait for that before they seek election; at least five heartbeats.
    pub election_timeout: Duration,
    /// How long a proposal or read may wait for an answer.
    pub request_timeout: Duration,
    /// Bounds on what may be waiting and kept.
    pub limits: NodeLimits,
}

/// What a node with an empty data directory becomes.
#[derive(Clone, Debug)]
pub enum Bootstrap {
    /// One of the founding members of a new cluster; every one is started with the same list.
    Found {
        /// The cluster.
        cluster: ClusterId,
        /// This node's id, one of the members.
        node: NodeId,
        /// All founding members.
        members: Vec<Member>,
    },
    /// A member that an existing cluster was told about before (`tidelock member add`, `--join`).
    Join {
        /// The cluster.
        cluster: ClusterId,
        /// The id the cluster gave this node.
        node: NodeId,
        /// The members at that time, to know whom to talk to.
        members: Vec<Member>,
    },
}

/// Bounds on what may be waiting and kept.
#[derive(Clone, Debug)]
pub struct NodeLimits {
    /// Proposals that may wait for an outcome at this node.
    pub proposals_waiting: usize,
    /// Bytes of proposals that may wait for an outcome at this node.
    pub proposal_bytes_waiting: usize,
    /// Linearizable reads that may wait for confirmation at this node.
    pub reads_waiting: usize,
    /// Journal bytes written since the last snapshot that call for a new one, at least.
    pub snapshot_journal_bytes: u64,
    /// Log entries kept on disk behind a snapshot, so that a follower that was away for a while
    /// catches up from the log.
    pub catch_up_entries: u64,
    /// Size of a journal segment file.
    pub segment_bytes: u64,
    /// Free space on disk below which nothing is accepted that makes the store grow.
    pub free_floor_bytes: u64,
    /// Bytes of a snapshot made under one hold of the state's lock.
    pub snapshot_page_bytes: usize,
    /// What may wait for one stream of watches; its watchers lag behind beyond that.
    pub watch_queue: QueueLimits,
}

impl Default for NodeLimits {
    fn default() -> NodeLimits {
        NodeLimits {
            proposals_waiting: 5_000,
            proposal_bytes_waiting: 64 << 20,
            reads_waiting: 50_000,
            snapshot_journal_bytes: 64 << 20,
            catch_up_entries: 20_000,
            segment_bytes: 16 << 20,
            free_floor_bytes: 64 << 20,
            snapshot_page_bytes: 128 << 10,
            watch_queue: QueueLimits::default(),
        }
    }
}
