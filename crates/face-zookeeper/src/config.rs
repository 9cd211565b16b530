//! What can be set about this face. Defaults are ZooKeeper's.

use std::time::Duration;

use crate::security::Security;
use crate::wire::DEFAULT_MAX_FRAME;

/// Everything that can be set about this face.
#[derive(Clone, Debug)]
pub struct FaceConfig {
    /// The unit of time (`tickTime`).
    pub tick: Duration,
    /// Shortest session timeout (`minSessionTimeout`, two ticks).
    pub session_timeout_min: Duration,
    /// Longest (`maxSessionTimeout`, twenty ticks).
    pub session_timeout_max: Duration,
    /// Largest packet from a client (`jute.maxbuffer`).
    pub max_frame: usize,
    /// Most connections from one address; 0 is no limit (`maxClientCnxns`).
    pub connections_per_address: usize,
    /// `base64(sha1(user:password))` with the user before it, of who may do everything (`superDigest`).
    pub super_digest: Option<String>,
    /// Who clients are beyond their addresses, and who they must be.
    pub security: Security,
    /// Four-letter words that are answered (`4lw.commands.whitelist`); `None` stands for all.
    pub words: Option<Vec<String>>,
    /// This server's number (`myid`).
    pub server_number: u64,
    /// Whether persistent watches that are given back are told what they missed; ZooKeeper does not do so.
    pub replay_watches: bool,
    /// Whether clients may change the members (`reconfigEnabled`).
    pub reconfig: bool,
    /// Whether reads are answered without a majority, to clients that ask for it (`readonlymode.enabled`).
    pub read_only_mode: bool,
    /// Whether what would break a hard limit of a quota is refused (`enforceQuota`).
    pub enforce_quota: bool,
    /// How often containers and znodes with a time to live are looked at.
    pub reap_interval: Duration,
    /// What operators are told of where this node runs.
    pub about: About,
}

/// Where a node runs and what it was started with, as operators are told; nothing depends on it.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The port of ZooKeeper's clients.
    pub client_port: Option<u16>,
    /// The one with TLS.
    pub secure_client_port: Option<u16>,
    /// Where the data is.
    pub data_dir: String,
    /// The configuration file of a ZooKeeper that this node was started with, without secrets.
    pub initial_configuration: Option<String>,
}

impl Default for FaceConfig {
    fn default() -> FaceConfig {
        FaceConfig::with_tick(Duration::from_secs(2))
    }
}

impl FaceConfig {
    /// The defaults that follow from the tick.
    #[must_use]
    pub fn with_tick(tick: Duration) -> FaceConfig {
        FaceConfig {
            tick,
            session_timeout_min: tick * 2,
            session_timeout_max: tick * 20,
            max_frame: DEFAULT_MAX_FRAME,
            connections_per_address: 60,
            super_digest: None,
            security: Security::default(),
            words: Some(vec!["srvr".to_owned()]),
            server_number: 1,
            replay_watches: false,
            reconfig: false,
            read_only_mode: false,
            enforce_quota: false,
            reap_interval: Duration::from_secs(60),
            about: About::default(),
        }
    }
}
