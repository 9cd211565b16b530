//! The checks of what belongs to serving ZooKeeper clients.

mod jaas;
mod security;

use std::net::SocketAddr;
use std::time::Duration;

use super::{Checks, Listen};
use crate::settings::Settings;

pub(crate) use security::ZookeeperSecurity;

/// ZooKeeper's client port: its clients find us without being told.
pub(crate) const ZOOKEEPER_LISTEN_DEFAULT: &str = "127.0.0.1:2181";
/// The port of ZooKeeper's admin commands.
const ADMIN_LISTEN_DEFAULT: &str = "127.0.0.1:8080";
/// That of ZooKeeper's sample file.
const TICK_MS_DEFAULT: u64 = 2_000;

/// ZooKeeper's protocol at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zookeeper {
    /// Where it is served; `None`: nowhere.
    pub(crate) listen: Option<Listen>,
    /// Where its admin commands are served; `None`: nowhere.
    pub(crate) admin_listen: Option<Listen>,
    /// The unit of session timeouts.
    pub(crate) tick: Duration,
    /// Whether persistent watches are told what they missed.
    pub(crate) replay_watches: bool,
    pub(crate) security: ZookeeperSecurity,
    pub(crate) details: ZookeeperDetails,
}

/// What only a zoo.cfg sets. `None`: ZooKeeper's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZookeeperDetails {
    /// `host:port` that other members tell clients; `None`: what is listened on.
    pub(crate) advertise: Option<String>,
    pub(crate) session_timeout_min: Option<Duration>,
    pub(crate) session_timeout_max: Option<Duration>,
    /// Largest packet from a client.
    pub(crate) max_frame: Option<usize>,
    /// 0 is no limit.
    pub(crate) connections_per_address: Option<usize>,
    pub(crate) super_digest: Option<String>,
    /// Four-letter words that are answered; `*` among them stands for all.
    pub(crate) words: Option<Vec<String>>,
    pub(crate) server_number: Option<u64>,
    /// Names of founders that do not vote.
    pub(crate) observers: Vec<String>,
    /// What `/zookeeper/config` says of elections; `None`: the port beside the peer port.
    pub(crate) election_port: Option<u16>,
    /// Where clients are served, as it is written; `None`: what is listened on.
    pub(crate) client_address: Option<String>,
    /// Whether clients may change the members.
    pub(crate) reconfig: bool,
    /// Whether reads are answered without a majority, to who asks for it.
    pub(crate) read_only_mode: bool,
    /// The address of admin commands, below which each has its own; `None`: `/commands`.
    pub(crate) admin_path: Option<String>,
    /// Whether nobody asked for admin commands by a flag: then a port that is taken is no reason not to start.
    pub(crate) admin_may_fail: bool,
    /// The file this node was started with, without secrets.
    pub(crate) initial_configuration: Option<String>,
    /// The user of SASL who may do everything.
    pub(crate) sasl_super_user: Option<String>,
    /// The subject of the certificate whose holder may do everything.
    pub(crate) x509_super_user: Option<String>,
    /// Schemes of which clients must have proven one; empty: none.
    pub(crate) required_schemes: Vec<String>,
    /// Whether hard limits of quotas refuse requests.
    pub(crate) enforce_quota: bool,
}

impl Zookeeper {
    /// Serves at the usual port, or a free one if that is taken.
    pub(crate) fn serve_by_default(&mut self) {
        let address = SocketAddr::from(([127, 0, 0, 1], 2181));
        self.listen.get_or_insert(Listen { address, is_default: true, tls: false });
    }
}

impl Checks {
    pub(super) fn zookeeper(&mut self, settings: &Settings) -> Zookeeper {
        let given = settings.zookeeper_listen.as_deref().filter(|text| *text != "none");
        let listen = given.map(|text| self.listen("zookeeper-listen", Some(text), ZOOKEEPER_LISTEN_DEFAULT));
        let given = settings.zookeeper_admin_listen.as_deref().filter(|text| *text != "none");
        let admin_listen = given.map(|text| self.listen("zookeeper-admin-listen", Some(text), ADMIN_LISTEN_DEFAULT));
        if let (None, Some(_)) = (listen, admin_listen) {
            let what = "there is nothing to tell of without ZooKeeper's clients";
            self.problem("zookeeper-admin-listen", what, "give --zookeeper-listen too, or leave it out");
        }
        let tick = self.within("zookeeper-tick-ms", settings.zookeeper_tick_ms, TICK_MS_DEFAULT, 10, 600_000);
        let security = self.zookeeper_security(settings);
        Zookeeper {
            listen,
            admin_listen,
            tick: Duration::from_millis(tick),
            replay_watches: settings.zookeeper_replay_watches == Some(true),
            security,
            details: ZookeeperDetails::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn check(toml: &str) -> Result<Config, String> {
        Config::check(Settings::from_toml(toml).unwrap()).map_err(|failure| failure.to_string())
    }

    /// A port that opens unasked is a door nobody watches; one that others can reach must be asked for twice.
    #[test]
    fn zookeeper_clients_are_served_only_where_it_was_asked_for() {
        assert_eq!(check("").unwrap().zookeeper.listen, None);
        assert_eq!(check("zookeeper-listen = 'none'").unwrap().zookeeper.listen, None);
        let asked = check("zookeeper-listen = '127.0.0.1:2182'\nzookeeper-tick-ms = 500").unwrap().zookeeper;
        assert_eq!(asked.listen.unwrap().address.port(), 2182);
        assert_eq!(asked.tick, Duration::from_millis(500));
        let open = check("zookeeper-listen = '0.0.0.0:2181'").unwrap_err();
        assert!(open.contains("--zookeeper-listen: 0.0.0.0:2181 can be reached from other machines"), "{open}");
        let clash = check("zookeeper-listen = '127.0.0.1:2379'").unwrap_err();
        assert!(clash.contains("already used by another listener"), "{clash}");
        let admin = check("zookeeper-admin-listen = '127.0.0.1:8080'").unwrap_err();
        assert!(admin.contains("there is nothing to tell of"), "{admin}");
        let tick = check("zookeeper-tick-ms = 0").unwrap_err();
        assert!(tick.contains("--zookeeper-tick-ms: 0 is out of bounds"), "{tick}");
    }

    /// Trying it out beside a running ZooKeeper must work, so the default port may be exchanged for a free one.
    #[test]
    fn the_default_port_counts_as_a_default() {
        let mut zookeeper = check("").unwrap().zookeeper;
        zookeeper.serve_by_default();
        let listen = zookeeper.listen.unwrap();
        assert_eq!((listen.address.to_string().as_str(), listen.is_default), (ZOOKEEPER_LISTEN_DEFAULT, true));
        let mut asked = check("zookeeper-listen = '127.0.0.1:2182'").unwrap().zookeeper;
        asked.serve_by_default();
        assert_eq!(asked.listen.unwrap().address.port(), 2182);
    }
}
