//! The command line, as clap reads it. Only shapes and help live here; what a command does is in
//! [`crate::commands`], [`crate::wiring`] and [`crate::dev`].

mod bench;
mod certs;
mod connection;
mod history;
mod native;
mod snapshot;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::settings::Settings;

pub(crate) use bench::{BenchArgs, BenchProtocol};
pub(crate) use certs::{CertsAction, CertsArgs, CertsInitArgs};
pub(crate) use connection::ConnectionArgs;
pub(crate) use history::HistoryArgs;
pub(crate) use native::{
    BarrierArgs, CompletionsArgs, ElectArgs, HoldArgs, LockArgs, LocksArgs, ManArgs, NativeArgs, SessionsArgs,
    WhenOneGoes,
};
pub(crate) use snapshot::{RestoreArgs, SnapshotAction, SnapshotArgs};

/// Tidelock: one coordination service that etcd and ZooKeeper clients use unmodified, with fenced locks, elections and
/// barriers of its own.
///
/// Without a command it runs a single node on loopback and says what to try next.
#[derive(Debug, Parser)]
#[command(
    name = "tidelock",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  tidelock                               a single node on loopback, data in ./tidelock-data
  tidelock dev                           three nodes on this machine, gone with Ctrl-C
  tidelock serve --config tidelock.toml  a node as configured
  tidelock --zoo-cfg zoo.cfg             a node in the place of a ZooKeeper
  tidelock put greeting hello            write a key
  tidelock get greeting                  read it
  tidelock status                        how the cluster is doing"
)]
pub(crate) struct Cli {
    /// Where the single node keeps its data [default: ./tidelock-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Run a node in the place of a ZooKeeper, with the settings of its configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    pub(crate) zoo_cfg: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Run a node as etcd would: with etcd's flags, ETCD_* variables and config file
    #[command(disable_help_flag = true)]
    Etcd {
        /// As for etcd; `tidelock etcd --help` lists them
        #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Run a small cluster on this machine, for trying things out
    Dev(DevArgs),
    /// Read keys
    Get(GetArgs),
    /// Write a key
    Put(PutArgs),
    /// Delete keys
    Del(DelArgs),
    /// Print changes of keys as they happen
    Watch(WatchArgs),
    /// Show what a key or a znode was, version by version
    History(HistoryArgs),
    /// Do several things at once, if conditions hold
    Txn(TxnArgs),
    /// Grant, renew and end leases
    Lease(LeaseArgs),
    /// List and change the members of the cluster
    Member(MemberArgs),
    /// Save everything to a file, look into one, or begin a new cluster from one
    Snapshot(SnapshotArgs),
    /// Show how the members are doing
    Status(StatusArgs),
    /// Make certificates, to try TLS with
    Certs(CertsArgs),
    /// Run a program while a lock is held
    Lock(Box<LockArgs>),
    /// Run a program while this candidate leads
    Elect(Box<ElectArgs>),
    /// Wait until so many are there
    Barrier(Box<BarrierArgs>),
    /// Show who holds what, and who waits
    Locks(Box<LocksArgs>),
    /// List sessions, or end one
    Sessions(Box<SessionsArgs>),
    /// Print what a shell needs to complete our commands
    Completions(CompletionsArgs),
    /// Print the manual page
    Man(ManArgs),
    /// Load nodes, ours or others that speak etcd's or ZooKeeper's protocol, and say how they took it
    Bench(Box<BenchArgs>),
}

/// `tidelock serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  A single node on loopback:
    tidelock serve

  Founding a cluster of three, on each host with its own name:
    tidelock serve --name a --insecure --data-dir /var/lib/tidelock \\
      --initial-cluster a=10.0.0.1:2380,b=10.0.0.2:2380,c=10.0.0.3:2380 \\
      --client-listen 10.0.0.1:2379 --admin-listen 10.0.0.1:7480

  Joining a running cluster:
    tidelock serve --name d --insecure --data-dir /var/lib/tidelock --join http://10.0.0.1:7480 \\
      --peer-listen 10.0.0.4:2380 --client-listen 10.0.0.4:2379 --admin-listen 10.0.0.4:7480

A flag beats its TIDELOCK_* variable, which beats the file given to --config, which beats the default.")]
pub(crate) struct ServeArgs {
    /// TOML file with settings; names are those of the flags
    #[arg(long, env = "TIDELOCK_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Configuration file of a ZooKeeper, to run in its place; flags and variables beat what it says
    #[arg(long, env = "TIDELOCK_ZOO_CFG", value_name = "FILE", conflicts_with = "config")]
    pub(crate) zoo_cfg: Option<PathBuf>,

    /// Check all settings, print those that were given, and start nothing
    #[arg(long)]
    pub(crate) check: bool,

    /// Stop when standard input ends, so that a node does not outlive the `tidelock dev` it belongs to
    #[arg(long, hide = true)]
    pub(crate) stop_when_stdin_ends: bool,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// `tidelock dev`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock dev                       three nodes, data removed at the end
  tidelock dev --nodes 5 --dir ./d   five nodes, data and logs kept in ./d

Every node is a process of its own on free ports; kill one and see what happens.
Nothing is restarted. Ctrl-C stops them all.")]
pub(crate) struct DevArgs {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) nodes: u8,

    /// Where data and logs go, and stay; without it they go to a temporary directory and are removed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs: one JSON document, or one per line where there are many
    Json,
}

/// Where to find nodes, for the commands that work on data.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClientArgs {
    /// Nodes to talk to, comma separated; the next one is tried if one cannot be reached
    #[arg(
        long,
        env = "TIDELOCK_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "127.0.0.1:2379",
        global = true,
        help_heading = "Connection"
    )]
    pub(crate) endpoints: Vec<String>,

    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,

    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Text, global = true, help_heading = "Connection")]
    pub(crate) output: Output,
}

/// Which keys are meant.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeysArgs {
    /// The key, or where the range begins
    pub(crate) key: String,

    /// Where the range ends; this key is not part of it
    #[arg(value_name = "END", conflicts_with_all = ["prefix", "from_key"])]
    pub(crate) range_end: Option<String>,

    /// All keys that begin with KEY; every key if KEY is empty
    #[arg(long, conflicts_with = "from_key")]
    pub(crate) prefix: bool,

    /// All keys from KEY on
    #[arg(long)]
    pub(crate) from_key: bool,
}

/// `tidelock get`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock get greeting
  tidelock get --prefix services/ --keys-only
  tidelock get --prefix \"\" --count-only      how many keys there are
  tidelock get greeting --rev 17             as it was at revision 17

Exit code 0 even if nothing is found; use --output json to tell.")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) keys: KeysArgs,

    /// As of this revision
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    pub(crate) rev: i64,

    /// At most this many keys
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) limit: i64,

    /// Only the keys, not their values
    #[arg(long, conflicts_with = "count_only")]
    pub(crate) keys_only: bool,

    /// Only how many there are
    #[arg(long)]
    pub(crate) count_only: bool,

    /// Only the values, byte for byte as they are stored, each followed by a newline
    #[arg(long, conflicts_with_all = ["keys_only", "count_only", "output"])]
    pub(crate) value_only: bool,

    /// What the node that is asked has, even if it is behind; works without a majority
    #[arg(long)]
    pub(crate) local: bool,

    /// Largest first
    #[arg(long)]
    pub(crate) descending: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// `tidelock put`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock put greeting hello
  tidelock put config - < config.json        the value from standard input
  tidelock put member/a up --lease 6a1f      gone when the lease ends")]
pub(crate) struct PutArgs {
    /// The key
    pub(crate) key: String,

    /// The value; `-` reads it from standard input
    pub(crate) value: String,

    /// Lease the key shall belong to
    #[arg(long, value_name = "LEASE", value_parser = parse_lease, default_value = "0", hide_default_value = true)]
    pub(crate) lease: i64,

    /// Print what the key was before
    #[arg(long)]
    pub(crate) prev: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// `tidelock del`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock del greeting
  tidelock del --prefix services/")]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) keys: KeysArgs,

    /// Print what the keys were
    #[arg(long)]
    pub(crate) prev: bool,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// `tidelock watch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock watch greeting
  tidelock watch --prefix services/ --rev 17     everything since revision 17, then live
  tidelock watch --prefix \"\" --output json --events 10

Goes on at another endpoint, without losing or repeating a change, when a node goes away.")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) keys: KeysArgs,

    /// Begin at this revision instead of now
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    pub(crate) rev: i64,

    /// Print what keys were before
    #[arg(long)]
    pub(crate) prev: bool,

    /// End after this many changes
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// `tidelock txn`.
#[derive(Debug, Args)]
#[command(
    after_help = "All conditions hold: everything after --then is done, else everything after --else, at one revision.

Conditions:  mod(KEY) create(KEY) version(KEY) lease(KEY) value(KEY), then = != < or >, then what to compare with;
             exists(KEY)  missing(KEY)
Operations:  put KEY VALUE [lease=ID]    get KEY [END] [prefix]    del KEY [END] [prefix]
Quote keys and values with spaces: \"two words\"; \\\" \\\\ \\n \\t and \\x00 work inside.

Examples:
  tidelock txn --if 'missing(leader)' --then 'put leader me' --else 'get leader'
  tidelock txn --if 'mod(doc) = 17' --if 'value(state) = \"open\"' --then 'put doc new' --then 'del draft/ prefix'

From standard input, one condition or operation to a line:
  tidelock txn <<END
  if   missing(leader)
  then put leader me
  else get leader
  END

Exit code 0 whichever branch was taken; the answer says which."
)]
pub(crate) struct TxnArgs {
    /// A condition; may be repeated
    #[arg(long = "if", value_name = "CONDITION")]
    pub(crate) conditions: Vec<String>,

    /// What to do if all conditions hold; may be repeated
    #[arg(long = "then", value_name = "OPERATION")]
    pub(crate) success: Vec<String>,

    /// What to do if not; may be repeated
    #[arg(long = "else", value_name = "OPERATION")]
    pub(crate) failure: Vec<String>,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// `tidelock lease`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock lease grant 30          a lease of 30 seconds; prints its id
  tidelock put up yes --lease ID   gone when the lease ends
  tidelock lease keep-alive ID     renew it until Ctrl-C")]
pub(crate) struct LeaseArgs {
    #[command(subcommand)]
    pub(crate) action: LeaseAction,

    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// What to do with leases. Ids are hex, as they are printed.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseAction {
    /// Create a lease
    Grant {
        /// Seconds it lives without being renewed
        #[arg(value_name = "SECONDS")]
        ttl: i64,
        /// Its id; one is chosen if none is given
        #[arg(long, value_parser = parse_lease, default_value = "0", hide_default_value = true)]
        id: i64,
    },
    /// End a lease and delete its keys
    Revoke {
        /// The lease
        #[arg(value_parser = parse_lease)]
        id: i64,
    },
    /// Renew a lease, again and again until stopped
    KeepAlive {
        /// The lease
        #[arg(value_parser = parse_lease)]
        id: i64,
        /// Renew once only
        #[arg(long)]
        once: bool,
    },
    /// Show how long a lease has to live
    Ttl {
        /// The lease
        #[arg(value_parser = parse_lease)]
        id: i64,
        /// Also show its keys
        #[arg(long)]
        keys: bool,
    },
    /// List all leases
    List,
}

/// Where to find nodes, for the commands that work on the cluster itself.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArgs {
    /// Admin addresses of nodes, comma separated
    #[arg(
        long,
        env = "TIDELOCK_ADMIN",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7480",
        global = true,
        help_heading = "Connection"
    )]
    pub(crate) admin: Vec<String>,

    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Text, global = true, help_heading = "Connection")]
    pub(crate) output: Output,
}

/// `tidelock member`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock member list
  tidelock member transfer b         let b lead, before this leader is stopped
  tidelock member remove c           for good; the name may come back, as a new member

The usual way in is `tidelock serve --join URL` on the new node: it adds itself and is promoted once it caught up.")]
pub(crate) struct MemberArgs {
    #[command(subcommand)]
    pub(crate) action: MemberAction,

    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// What to do with members. A member is meant by its id in hex, or by its name.
#[derive(Debug, Subcommand)]
pub(crate) enum MemberAction {
    /// Add a member, as a learner that becomes a voter by `promote`
    Add {
        /// Where the members reach it, host:port
        peer_address: String,
        /// Its name
        #[arg(long)]
        name: Option<String>,
        /// Let it vote at once; until it has caught up it counts as a failed member
        #[arg(long)]
        voter: bool,
    },
    /// Remove a member for good
    Remove {
        /// Id or name
        member: String,
    },
    /// Make a learner a voter
    Promote {
        /// Id or name
        member: String,
    },
    /// List the members
    List,
    /// Hand leadership to a member
    Transfer {
        /// Id or name
        member: String,
    },
}

/// `tidelock status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock status
  tidelock status --admin http://10.0.0.1:7480,http://10.0.0.2:7480,http://10.0.0.3:7480
  tidelock status --output json

A digest that differs from another node's at the same applied index is marked with '!': the replicas
disagree, which must never happen; keep the data directories and report it.
Exit code 1 if a node that was asked does not answer or replicas disagree.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

/// A lease id as we and etcdctl print it: hex. Zero means "no lease" and only works as a default.
pub(crate) fn parse_lease(text: &str) -> Result<i64, String> {
    i64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
        .map_err(|_| "a lease id is a hex number, as `tidelock lease grant` and `lease list` print it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap finds contradictions among flags only when it runs; this runs it.
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    /// Scripts name endpoints as a list; one flag must not be taken for one strange URL.
    #[test]
    fn endpoints_are_a_comma_separated_list() {
        let cli = Cli::try_parse_from(["tidelock", "get", "k", "--endpoints", "http://a:1,http://b:2"]).unwrap();
        let Some(Command::Get(get)) = cli.command else { panic!("not a get") };
        assert_eq!(get.client.endpoints, ["http://a:1", "http://b:2"]);
    }
}
