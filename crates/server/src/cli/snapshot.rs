//! `tidelock snapshot`, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ClientArgs;

/// `tidelock snapshot`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock snapshot save backup.db              everything there is, to a file of etcd's own format
  tidelock snapshot status backup.db            what is in it, and whether it is sound
  tidelock snapshot restore backup.db --data-dir /var/lib/tidelock

Files of `etcdctl snapshot save`, from here or from a real etcd, are restored here, and files saved here are
restored by `etcdctl snapshot restore` (`etcdutl` since etcd 3.5). See docs/backup-and-migration.md.")]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) action: SnapshotAction,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotAction {
    /// Save everything a node holds to a file, while it goes on serving
    Save {
        /// Where to; a file that is there is replaced once the new one is complete and checked
        file: PathBuf,
    },
    /// Show what is in a file, and whether it is sound
    Status {
        /// The file
        file: PathBuf,
    },
    /// Make the data directory of a member of a new cluster that begins with what is in a file
    Restore(Box<RestoreArgs>),
}

/// `tidelock snapshot restore`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  A single node:
    tidelock snapshot restore backup.db --data-dir ./data
    tidelock serve --data-dir ./data

  A cluster of three, on each host with its own name, from the same file:
    tidelock snapshot restore backup.db --name a --data-dir /var/lib/tidelock --cluster-token october \\
      --initial-cluster a=10.0.0.1:2380,b=10.0.0.2:2380,c=10.0.0.3:2380
    tidelock serve --name a --data-dir /var/lib/tidelock --peer-listen 10.0.0.1:2380 ...

Nothing is restored into a cluster that exists: a restored cluster is a new one. Members made from different
files, or with different flags, turn each other away.")]
pub(crate) struct RestoreArgs {
    /// The file
    pub(crate) file: PathBuf,

    /// The directory to make; it must be empty or not be there at all
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,

    /// Name of this member [default: tidelock]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// All members of the new cluster, the same list on each of them [default: this one alone]
    #[arg(long, value_name = "NAME=HOST:PORT", value_delimiter = ',')]
    pub(crate) initial_cluster: Option<Vec<String>>,

    /// Tells apart clusters restored from one file, the same on each member [default: drawn for a single member,
    /// "restored" for several]
    #[arg(long, value_name = "TEXT")]
    pub(crate) cluster_token: Option<String>,

    /// Address at which other members reach this one, if it is alone [default: 127.0.0.1:2380]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer_advertise: Option<String>,

    /// Begin this many revisions later: more than were given out since the snapshot, so that clients which
    /// saw those are never told about the same revision twice
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) bump_revision: u64,

    /// Forget all history, so that every watch from before is told to begin anew
    #[arg(long, requires = "bump_revision")]
    pub(crate) mark_compacted: bool,

    /// Take a file without looking at its checksum, such as a copy of an etcd member's member/snap/db
    #[arg(long)]
    pub(crate) skip_hash_check: bool,
}
