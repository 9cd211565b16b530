//! Settings as users give them: flags, `TIDELOCK_*` variables and a TOML file, all of them optional
//! and none of them checked yet. [`crate::config`] turns them into a checked `Config`.
//!
//! One struct serves all three sources, so a setting cannot exist in one and be forgotten in another:
//! `--heartbeat-ms 50`, `TIDELOCK_HEARTBEAT_MS=50` and `heartbeat-ms = 50` are the same thing. A flag
//! beats a variable, a variable beats the file, the file beats the default.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Everything that can be set. `None` means "not said".
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Name of this node, unique in the cluster [default: tidelock]
    #[arg(long, env = "TIDELOCK_NAME", value_name = "NAME", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,

    /// Where the node keeps its journal, snapshots and identity [default: tidelock-data]
    #[arg(long, env = "TIDELOCK_DATA_DIR", value_name = "DIR", help_heading = "Node")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Addresses to serve etcd clients on, comma separated [default: 127.0.0.1:2379]
    #[arg(
        long,
        env = "TIDELOCK_CLIENT_LISTEN",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        help_heading = "Addresses"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_listen: Option<Vec<String>>,

    /// URLs at which clients reach this node, comma separated [default: what it listens on]
    #[arg(
        long,
        env = "TIDELOCK_ADVERTISE_CLIENT_URLS",
        value_name = "URL",
        value_delimiter = ',',
        help_heading = "Addresses"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise_client_urls: Option<Vec<String>>,

    /// Address to serve other members on [default: this node's address in --initial-cluster, else 127.0.0.1:2380]
    #[arg(long, env = "TIDELOCK_PEER_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_listen: Option<String>,

    /// Address at which other members reach this node [default: what it listens on]
    #[arg(long, env = "TIDELOCK_PEER_ADVERTISE", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_advertise: Option<String>,

    /// Address to serve health, metrics and administration on [default: 127.0.0.1:7480]
    #[arg(long, env = "TIDELOCK_ADMIN_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_listen: Option<String>,

    /// Allow addresses other than loopback although nothing is encrypted or authenticated yet
    #[arg(
        long,
        env = "TIDELOCK_INSECURE",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Addresses"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insecure: Option<bool>,

    /// Founding members of a new cluster, the same list on each of them: a=host:port,b=host:port,c=host:port
    /// [default: this node alone]
    #[arg(
        long,
        env = "TIDELOCK_INITIAL_CLUSTER",
        value_name = "NAME=HOST:PORT",
        value_delimiter = ',',
        help_heading = "Cluster"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) initial_cluster: Option<Vec<String>>,

    /// Tells apart clusters founded from equal lists [default: tidelock]
    #[arg(long, env = "TIDELOCK_CLUSTER_TOKEN", value_name = "TEXT", help_heading = "Cluster")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_token: Option<String>,

    /// Join the running cluster that these members' admin URLs belong to, comma separated
    #[arg(long, env = "TIDELOCK_JOIN", value_name = "ADMIN_URL", value_delimiter = ',', help_heading = "Cluster")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) join: Option<Vec<String>>,

    /// How often the leader shows that it lives, in milliseconds [default: 100]
    #[arg(long, env = "TIDELOCK_HEARTBEAT_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeat_ms: Option<u64>,

    /// How long followers wait for that before they seek election, at least five heartbeats [default: 1000]
    #[arg(long, env = "TIDELOCK_ELECTION_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) election_ms: Option<u64>,

    /// How long a request may wait for its answer [default: 5000]
    #[arg(long, env = "TIDELOCK_REQUEST_TIMEOUT_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_timeout_ms: Option<u64>,

    /// Largest request taken from a client [default: 1572864]
    #[arg(long, env = "TIDELOCK_MAX_REQUEST_BYTES", value_name = "BYTES", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_request_bytes: Option<usize>,

    /// Most operations in one transaction [default: 128]
    #[arg(long, env = "TIDELOCK_MAX_TXN_OPS", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_txn_ops: Option<usize>,

    /// Writes that may wait for their outcome at this node; more are turned away [default: 5000]
    #[arg(long, env = "TIDELOCK_MAX_PROPOSALS_WAITING", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_proposals_waiting: Option<usize>,

    /// Watchers one client stream may open [default: 10000]
    #[arg(long, env = "TIDELOCK_MAX_WATCHERS_PER_STREAM", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_watchers_per_stream: Option<usize>,

    /// Threads that serve connections [default: the number of cores, at most 4]
    #[arg(long, env = "TIDELOCK_WORKER_THREADS", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker_threads: Option<usize>,

    /// What to log: error, warn, info, debug, trace, or a filter like "info,tidelock_node=debug" [default: info]
    #[arg(long, env = "TIDELOCK_LOG_LEVEL", value_name = "FILTER", help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_level: Option<String>,

    /// How log lines look on standard error: text or json [default: text]
    #[arg(long, env = "TIDELOCK_LOG_FORMAT", value_name = "FORMAT", help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_format: Option<String>,
}

impl Settings {
    /// These settings, and `below` wherever they say nothing.
    pub(crate) fn over(self, below: Settings) -> Settings {
        Settings {
            name: self.name.or(below.name),
            data_dir: self.data_dir.or(below.data_dir),
            client_listen: self.client_listen.or(below.client_listen),
            advertise_client_urls: self.advertise_client_urls.or(below.advertise_client_urls),
            peer_listen: self.peer_listen.or(below.peer_listen),
            peer_advertise: self.peer_advertise.or(below.peer_advertise),
            admin_listen: self.admin_listen.or(below.admin_listen),
            insecure: self.insecure.or(below.insecure),
            initial_cluster: self.initial_cluster.or(below.initial_cluster),
            cluster_token: self.cluster_token.or(below.cluster_token),
            join: self.join.or(below.join),
            heartbeat_ms: self.heartbeat_ms.or(below.heartbeat_ms),
            election_ms: self.election_ms.or(below.election_ms),
            request_timeout_ms: self.request_timeout_ms.or(below.request_timeout_ms),
            max_request_bytes: self.max_request_bytes.or(below.max_request_bytes),
            max_txn_ops: self.max_txn_ops.or(below.max_txn_ops),
            max_proposals_waiting: self.max_proposals_waiting.or(below.max_proposals_waiting),
            max_watchers_per_stream: self.max_watchers_per_stream.or(below.max_watchers_per_stream),
            worker_threads: self.worker_threads.or(below.worker_threads),
            log_level: self.log_level.or(below.log_level),
            log_format: self.log_format.or(below.log_format),
        }
    }

    /// Settings from the text of a TOML file.
    pub(crate) fn from_toml(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Settings from a TOML file.
    pub(crate) fn from_file(path: &Path) -> Result<Settings, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read the settings file {shown}: {error}"))
                .hint("give an existing file to --config, or leave it out to use the defaults")
        })?;
        Settings::from_toml(&text).map_err(|error| {
            Failure::usage(format!("the settings file {shown} cannot be understood:\n{error}"))
                .hint("compare it with crates/server/tidelock.sample.toml; names are those of the flags, without --")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting given on the command line must win, or an operator could not override a file in an
    /// emergency; what is not given must still come from the file.
    #[test]
    fn what_is_said_first_wins_and_the_rest_is_kept() {
        let flags = Settings { name: Some("flag".into()), ..Settings::default() };
        let file = Settings::from_toml("name = 'file'\nheartbeat-ms = 50").unwrap();
        let merged = flags.over(file);
        assert_eq!(merged.name.as_deref(), Some("flag"));
        assert_eq!(merged.heartbeat_ms, Some(50));
    }

    /// A misspelt name in the file must not be ignored: the operator believes it is in force.
    #[test]
    fn an_unknown_name_in_the_file_is_refused_by_name() {
        let error = Settings::from_toml("heartbeet-ms = 50").unwrap_err();
        assert!(error.contains("heartbeet-ms"), "{error}");
    }

    /// Every flag must also be readable from the file: a flag missing from `over` or from the file
    /// would silently do nothing.
    #[test]
    fn every_setting_survives_the_file_and_the_merge() {
        use clap::Args as _;
        let names: Vec<String> = Settings::augment_args(clap::Command::new("t"))
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        assert!(names.len() > 15);
        for name in names {
            let value = match name.as_str() {
                "insecure" => "true",
                "client-listen" | "advertise-client-urls" | "initial-cluster" | "join" => "['x']",
                _ if name.ends_with("-ms") || name.starts_with("max-") || name == "worker-threads" => "7",
                _ => "'x'",
            };
            let file = Settings::from_toml(&format!("{name} = {value}")).unwrap();
            assert_ne!(file, Settings::default(), "{name}");
            assert_eq!(Settings::default().over(file.clone()), file, "{name}");
            assert_eq!(file.clone().over(Settings::default()), file, "{name}");
        }
    }
}
