//! The shape of `tidelock history`.

use clap::Args;

use super::AdminArgs;

/// `tidelock history`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock history zk:/config/db                   a znode of ZooKeeper's clients
  tidelock history greeting                        a key of etcd's clients
  tidelock history zk:/config/db --output json --data-bytes 1000000

Oldest first. How far it reaches back is decided by compaction, and said in the last line. Times are known of znodes
that were written; of deletions and of other keys only the revision is.")]
pub(crate) struct HistoryArgs {
    /// A key, or zk:PATH; key:NAME for a key whose name begins with `zk:`
    #[arg(value_name = "KEY")]
    pub(crate) of: String,

    /// Only versions before this revision
    #[arg(long, value_name = "REVISION")]
    pub(crate) before: Option<u64>,

    /// The newest so many [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// How much of each version's data to ask for [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) data_bytes: Option<usize>,

    /// What the node that is asked has, even if it is behind; works without a majority
    #[arg(long)]
    pub(crate) local: bool,

    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}
