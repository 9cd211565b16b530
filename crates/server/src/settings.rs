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

    /// Addresses to serve etcd clients on, comma separated, or none [default: 127.0.0.1:2379]
    #[arg(
        long,
        env = "TIDELOCK_CLIENT_LISTEN",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        help_heading = "Addresses"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_listen: Option<Vec<String>>,

    /// Address to serve the native API on, gRPC and HTTP/JSON, or none [default: none]
    #[arg(long, env = "TIDELOCK_NATIVE_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) native_listen: Option<String>,

    /// Address to serve ZooKeeper clients on [default: none]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_listen: Option<String>,

    /// Address to serve ZooKeeper's admin commands on, over HTTP: the figures of a node, as JSON [default: none]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_ADMIN_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_admin_listen: Option<String>,
    /// Address to serve ZooKeeper clients on with TLS [default: none]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_SECURE_LISTEN", value_name = "HOST:PORT", help_heading = "Addresses")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_secure_listen: Option<String>,

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

    /// Addresses to serve /metrics and /health alone on, comma separated [default: none]
    #[arg(
        long,
        env = "TIDELOCK_METRICS_LISTEN",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        help_heading = "Addresses"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_listen: Option<Vec<String>>,

    /// Allow addresses other than loopback although they are not protected by TLS
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

    /// Certificate shown to clients, PEM, followed by those of intermediate authorities; turns TLS on
    #[arg(long, env = "TIDELOCK_CERT_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert_file: Option<PathBuf>,

    /// Private key of --cert-file, PEM
    #[arg(long, env = "TIDELOCK_KEY_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,

    /// Demand a certificate of --trusted-ca-file from clients; its common name is the user it speaks for
    #[arg(
        long,
        env = "TIDELOCK_CLIENT_CERT_AUTH",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_cert_auth: Option<bool>,

    /// Authorities whose certificates clients must have, PEM; given alone it demands them too, as in etcd
    #[arg(long, env = "TIDELOCK_TRUSTED_CA_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted_ca_file: Option<PathBuf>,

    /// List of client certificates that were revoked, PEM or DER
    #[arg(long, env = "TIDELOCK_CLIENT_CRL_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_crl_file: Option<PathBuf>,

    /// Common names of client certificates that are let in, comma separated [default: any]
    #[arg(
        long,
        env = "TIDELOCK_CLIENT_CERT_ALLOWED_CN",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_cert_allowed_cn: Option<Vec<String>>,

    /// Host names or addresses in client certificates that are let in, comma separated [default: any]
    #[arg(
        long,
        env = "TIDELOCK_CLIENT_CERT_ALLOWED_HOSTNAME",
        value_name = "HOST",
        value_delimiter = ',',
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_cert_allowed_hostname: Option<Vec<String>>,

    /// Encrypt client traffic with a certificate made at start, which nobody can check
    #[arg(
        long,
        env = "TIDELOCK_AUTO_TLS",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auto_tls: Option<bool>,

    /// Certificate shown to other members, by listening and by dialing node alike; turns TLS between members on
    #[arg(long, env = "TIDELOCK_PEER_CERT_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_cert_file: Option<PathBuf>,

    /// Private key of --peer-cert-file, PEM
    #[arg(long, env = "TIDELOCK_PEER_KEY_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_key_file: Option<PathBuf>,

    /// Demand certificates from other members; always so with --peer-cert-file, known for etcd's sake
    #[arg(
        long,
        env = "TIDELOCK_PEER_CLIENT_CERT_AUTH",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_client_cert_auth: Option<bool>,

    /// Authorities whose certificates other members must have, PEM
    #[arg(long, env = "TIDELOCK_PEER_TRUSTED_CA_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_trusted_ca_file: Option<PathBuf>,

    /// List of member certificates that were revoked, PEM or DER
    #[arg(long, env = "TIDELOCK_PEER_CRL_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_crl_file: Option<PathBuf>,

    /// Common names of member certificates that are let in, comma separated [default: any]
    #[arg(
        long,
        env = "TIDELOCK_PEER_CERT_ALLOWED_CN",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_cert_allowed_cn: Option<Vec<String>>,

    /// Host names or addresses in member certificates that are let in, comma separated [default: any]
    #[arg(
        long,
        env = "TIDELOCK_PEER_CERT_ALLOWED_HOSTNAME",
        value_name = "HOST",
        value_delimiter = ',',
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_cert_allowed_hostname: Option<Vec<String>>,

    /// Encrypt traffic between members with certificates made at start, which nobody can check
    #[arg(
        long,
        env = "TIDELOCK_PEER_AUTO_TLS",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "TLS"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_auto_tls: Option<bool>,

    /// Oldest protocol taken: TLS1.2 or TLS1.3 [default: TLS1.2]
    #[arg(long, env = "TIDELOCK_TLS_MIN_VERSION", value_name = "VERSION", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_min_version: Option<String>,

    /// Newest protocol taken: TLS1.2 or TLS1.3 [default: TLS1.3]
    #[arg(long, env = "TIDELOCK_TLS_MAX_VERSION", value_name = "VERSION", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_max_version: Option<String>,

    /// Cipher suites of TLS 1.2 that may be used, comma separated [default: all that are safe]
    #[arg(long, env = "TIDELOCK_CIPHER_SUITES", value_name = "SUITE", value_delimiter = ',', help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cipher_suites: Option<Vec<String>>,

    /// Certificate shown to ZooKeeper clients, PEM
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_CERT_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_cert_file: Option<PathBuf>,

    /// Its key, PEM
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_KEY_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_key_file: Option<PathBuf>,

    /// Authorities of ZooKeeper clients' certificates, PEM
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_TRUSTED_CA_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_trusted_ca_file: Option<PathBuf>,

    /// What those authorities have revoked, PEM or DER
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_CRL_FILE", value_name = "FILE", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_crl_file: Option<PathBuf>,

    /// Whether ZooKeeper clients must show a certificate: need, want or none [default: need, with authorities]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_CLIENT_AUTH", value_name = "WORD", help_heading = "TLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_client_auth: Option<String>,

    /// JAAS file with the users that come in to ZooKeeper by SASL (DIGEST-MD5) [default: nobody]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_JAAS", value_name = "FILE", help_heading = "Users")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_jaas: Option<PathBuf>,

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

    /// Whether --initial-cluster is founded (new), or runs and lists this node, which was added before with
    /// `etcdctl member add` (existing); only looked at while the data directory is empty [default: new]
    #[arg(long, env = "TIDELOCK_INITIAL_CLUSTER_STATE", value_name = "STATE", help_heading = "Cluster")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) initial_cluster_state: Option<String>,

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

    /// How long followers wait for that before they seek election, at least five heartbeats [default: 600]
    #[arg(long, env = "TIDELOCK_ELECTION_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) election_ms: Option<u64>,

    /// How long a request may wait for its answer [default: 5000]
    #[arg(long, env = "TIDELOCK_REQUEST_TIMEOUT_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_timeout_ms: Option<u64>,

    /// How long a client's connection may be silent before it is pinged [default: 7200000]
    #[arg(long, env = "TIDELOCK_PING_AFTER_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ping_after_ms: Option<u64>,

    /// How long the answer to such a ping may take before the connection is closed [default: 20000]
    #[arg(long, env = "TIDELOCK_PING_TIMEOUT_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ping_timeout_ms: Option<u64>,

    /// How often watchers that asked for it are told how far they are, at least 100 [default: 600000]
    #[arg(long, env = "TIDELOCK_PROGRESS_NOTIFY_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress_notify_ms: Option<u64>,

    /// ZooKeeper's unit of time: its clients' sessions time out after 2 to 20 of it [default: 2000]
    #[arg(long, env = "TIDELOCK_ZOOKEEPER_TICK_MS", value_name = "MS", help_heading = "Timing")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_tick_ms: Option<u64>,

    /// Tell persistent watches of ZooKeeper's clients what they missed while disconnected, which ZooKeeper does not
    #[arg(
        long,
        env = "TIDELOCK_ZOOKEEPER_REPLAY_WATCHES",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Limits"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper_replay_watches: Option<bool>,

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

    /// Calls and streams one client connection may have open [default: 16384]
    #[arg(long, env = "TIDELOCK_MAX_STREAMS_PER_CONNECTION", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_streams_per_connection: Option<u32>,

    /// Learners that may be in the cluster at a time [default: 1]
    #[arg(long, env = "TIDELOCK_MAX_LEARNERS", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_learners: Option<usize>,

    /// Log entries kept for members that were away for a while [default: 20000]
    #[arg(long, env = "TIDELOCK_CATCH_UP_ENTRIES", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) catch_up_entries: Option<u64>,

    /// How much the store may hold, history included, before it takes nothing that grows; 0: the default,
    /// negative: no limit [default: 2147483648]
    #[arg(
        long,
        env = "TIDELOCK_QUOTA_BYTES",
        value_name = "BYTES",
        allow_negative_numbers = true,
        help_heading = "Limits"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota_bytes: Option<i64>,

    /// Threads that serve connections [default: the number of cores, at most 4]
    #[arg(long, env = "TIDELOCK_WORKER_THREADS", value_name = "N", help_heading = "Limits")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker_threads: Option<usize>,

    /// How clients that gave a password are known again: simple, or as etcd has it
    /// jwt,pub-key=FILE,priv-key=FILE,sign-method=RS256,ttl=10m [default: simple]
    #[arg(long, env = "TIDELOCK_AUTH_TOKEN", value_name = "KIND", help_heading = "Users")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auth_token: Option<String>,

    /// How long a simple token counts without being used, in seconds [default: 300]
    #[arg(long, env = "TIDELOCK_AUTH_TOKEN_TTL_S", value_name = "S", help_heading = "Users")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auth_token_ttl_s: Option<u64>,

    /// The cost of hashing a password, 4 to 31; each step doubles it [default: 10]
    #[arg(long, env = "TIDELOCK_BCRYPT_COST", value_name = "N", help_heading = "Users")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bcrypt_cost: Option<u32>,

    /// How history is forgotten by itself: periodic or revision [default: periodic]
    #[arg(long, env = "TIDELOCK_AUTO_COMPACTION_MODE", value_name = "MODE", help_heading = "History")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auto_compaction_mode: Option<String>,

    /// What to keep: hours or a duration such as 30m (periodic), a number of revisions (revision); 0 forgets nothing
    /// this way, so that --max-history-revisions alone decides [default: 0]
    #[arg(long, env = "TIDELOCK_AUTO_COMPACTION_RETENTION", value_name = "RETENTION", help_heading = "History")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auto_compaction_retention: Option<String>,

    /// Most revisions that are kept, whatever is to be kept by time; beyond that, and when half of the quota is used, the
    /// older half is forgotten. 0: no limit [default: 1000000]
    #[arg(long, env = "TIDELOCK_MAX_HISTORY_REVISIONS", value_name = "COUNT", help_heading = "History")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_history_revisions: Option<u64>,

    /// What /metrics tells: basic, or extensive with histograms of every call [default: basic]
    #[arg(long, env = "TIDELOCK_METRICS_DETAIL", value_name = "DETAIL", help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_detail: Option<String>,

    /// What to log: error, warn, info, debug, trace, or a filter like "info,tidelock_node=debug" [default: info]
    #[arg(long, env = "TIDELOCK_LOG_LEVEL", value_name = "FILTER", help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_level: Option<String>,

    /// How log lines look on standard error: text or json [default: text]
    #[arg(long, env = "TIDELOCK_LOG_FORMAT", value_name = "FORMAT", help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_format: Option<String>,

    /// Where log lines go, comma separated: stderr, stdout, or a file to append to [default: stderr]
    #[arg(long, env = "TIDELOCK_LOG_OUTPUTS", value_name = "OUTPUT", value_delimiter = ',', help_heading = "Log")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_outputs: Option<Vec<String>>,
}

impl Settings {
    /// These settings, and `below` wherever they say nothing.
    pub(crate) fn over(self, below: Settings) -> Settings {
        Settings {
            name: self.name.or(below.name),
            data_dir: self.data_dir.or(below.data_dir),
            client_listen: self.client_listen.or(below.client_listen),
            native_listen: self.native_listen.or(below.native_listen),
            zookeeper_listen: self.zookeeper_listen.or(below.zookeeper_listen),
            zookeeper_admin_listen: self.zookeeper_admin_listen.or(below.zookeeper_admin_listen),
            zookeeper_secure_listen: self.zookeeper_secure_listen.or(below.zookeeper_secure_listen),
            advertise_client_urls: self.advertise_client_urls.or(below.advertise_client_urls),
            peer_listen: self.peer_listen.or(below.peer_listen),
            peer_advertise: self.peer_advertise.or(below.peer_advertise),
            admin_listen: self.admin_listen.or(below.admin_listen),
            metrics_listen: self.metrics_listen.or(below.metrics_listen),
            insecure: self.insecure.or(below.insecure),
            cert_file: self.cert_file.or(below.cert_file),
            key_file: self.key_file.or(below.key_file),
            client_cert_auth: self.client_cert_auth.or(below.client_cert_auth),
            trusted_ca_file: self.trusted_ca_file.or(below.trusted_ca_file),
            client_crl_file: self.client_crl_file.or(below.client_crl_file),
            client_cert_allowed_cn: self.client_cert_allowed_cn.or(below.client_cert_allowed_cn),
            client_cert_allowed_hostname: self.client_cert_allowed_hostname.or(below.client_cert_allowed_hostname),
            auto_tls: self.auto_tls.or(below.auto_tls),
            peer_cert_file: self.peer_cert_file.or(below.peer_cert_file),
            peer_key_file: self.peer_key_file.or(below.peer_key_file),
            peer_client_cert_auth: self.peer_client_cert_auth.or(below.peer_client_cert_auth),
            peer_trusted_ca_file: self.peer_trusted_ca_file.or(below.peer_trusted_ca_file),
            peer_crl_file: self.peer_crl_file.or(below.peer_crl_file),
            peer_cert_allowed_cn: self.peer_cert_allowed_cn.or(below.peer_cert_allowed_cn),
            peer_cert_allowed_hostname: self.peer_cert_allowed_hostname.or(below.peer_cert_allowed_hostname),
            peer_auto_tls: self.peer_auto_tls.or(below.peer_auto_tls),
            tls_min_version: self.tls_min_version.or(below.tls_min_version),
            tls_max_version: self.tls_max_version.or(below.tls_max_version),
            cipher_suites: self.cipher_suites.or(below.cipher_suites),
            zookeeper_cert_file: self.zookeeper_cert_file.or(below.zookeeper_cert_file),
            zookeeper_key_file: self.zookeeper_key_file.or(below.zookeeper_key_file),
            zookeeper_trusted_ca_file: self.zookeeper_trusted_ca_file.or(below.zookeeper_trusted_ca_file),
            zookeeper_crl_file: self.zookeeper_crl_file.or(below.zookeeper_crl_file),
            zookeeper_client_auth: self.zookeeper_client_auth.or(below.zookeeper_client_auth),
            zookeeper_jaas: self.zookeeper_jaas.or(below.zookeeper_jaas),
            initial_cluster: self.initial_cluster.or(below.initial_cluster),
            initial_cluster_state: self.initial_cluster_state.or(below.initial_cluster_state),
            cluster_token: self.cluster_token.or(below.cluster_token),
            join: self.join.or(below.join),
            heartbeat_ms: self.heartbeat_ms.or(below.heartbeat_ms),
            election_ms: self.election_ms.or(below.election_ms),
            request_timeout_ms: self.request_timeout_ms.or(below.request_timeout_ms),
            ping_after_ms: self.ping_after_ms.or(below.ping_after_ms),
            ping_timeout_ms: self.ping_timeout_ms.or(below.ping_timeout_ms),
            progress_notify_ms: self.progress_notify_ms.or(below.progress_notify_ms),
            zookeeper_tick_ms: self.zookeeper_tick_ms.or(below.zookeeper_tick_ms),
            zookeeper_replay_watches: self.zookeeper_replay_watches.or(below.zookeeper_replay_watches),
            max_request_bytes: self.max_request_bytes.or(below.max_request_bytes),
            max_txn_ops: self.max_txn_ops.or(below.max_txn_ops),
            max_proposals_waiting: self.max_proposals_waiting.or(below.max_proposals_waiting),
            max_watchers_per_stream: self.max_watchers_per_stream.or(below.max_watchers_per_stream),
            max_streams_per_connection: self.max_streams_per_connection.or(below.max_streams_per_connection),
            max_learners: self.max_learners.or(below.max_learners),
            catch_up_entries: self.catch_up_entries.or(below.catch_up_entries),
            quota_bytes: self.quota_bytes.or(below.quota_bytes),
            worker_threads: self.worker_threads.or(below.worker_threads),
            auth_token: self.auth_token.or(below.auth_token),
            auth_token_ttl_s: self.auth_token_ttl_s.or(below.auth_token_ttl_s),
            bcrypt_cost: self.bcrypt_cost.or(below.bcrypt_cost),
            auto_compaction_mode: self.auto_compaction_mode.or(below.auto_compaction_mode),
            auto_compaction_retention: self.auto_compaction_retention.or(below.auto_compaction_retention),
            max_history_revisions: self.max_history_revisions.or(below.max_history_revisions),
            metrics_detail: self.metrics_detail.or(below.metrics_detail),
            log_level: self.log_level.or(below.log_level),
            log_format: self.log_format.or(below.log_format),
            log_outputs: self.log_outputs.or(below.log_outputs),
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
#[path = "settings_tests.rs"]
mod tests;
