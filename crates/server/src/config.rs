//! From settings to a checked, immutable [`Config`].
//!
//! Everything that can be checked without touching disk or network is checked here, before anything
//! starts, and all problems are reported together, each with what to do. What a `Config` holds is
//! therefore usable as it is.
//!
//! Refused: any address that is not loopback and not protected by TLS, unless `insecure` says that is
//! meant: whoever reaches such an address, or the network before it, owns the data.

mod native;
mod service;
mod spelling;
mod tls;
mod zookeeper;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use tidelock_model::limits::{MEMBER_URLS_MAX, TXN_OPS_MAX, VALUE_BYTES_MAX};
use tracing_subscriber::EnvFilter;

use crate::admin_client::AdminUrl;
use crate::failure::Failure;
use crate::identity::{Founder, even_number_of_voters};
use crate::settings::Settings;

pub(crate) use service::{LogOutput, Service};
pub(crate) use spelling::check_host_port;
pub(crate) use tls::Tls;
pub(crate) use zookeeper::{Zookeeper, ZookeeperDetails, ZookeeperSecurity};

use spelling::check_name;
use tls::{Encryption, split_scheme};

/// etcd's client port: its clients find us without being told.
pub(crate) const CLIENT_LISTEN_DEFAULT: &str = "127.0.0.1:2379";
/// etcd's peer port.
pub(crate) const PEER_LISTEN_DEFAULT: &str = "127.0.0.1:2380";
/// Our own port, for administration.
pub(crate) const ADMIN_LISTEN_DEFAULT: &str = "127.0.0.1:7480";
/// etcd's limit, which its clients are written for.
const MAX_REQUEST_BYTES_DEFAULT: usize = 1_572_864;
/// etcd's limit, which its clients are written for.
const MAX_TXN_OPS_DEFAULT: usize = 128;
const MAX_PROPOSALS_WAITING_DEFAULT: usize = 5_000;
const MAX_WATCHERS_PER_STREAM_DEFAULT: usize = 10_000;
/// Serving is cheap beside consensus and disk, which have threads of their own.
const WORKER_THREADS_DEFAULT_MAX: usize = 4;
/// Raft's rule of thumb is one order of magnitude; below five, one lost heartbeat is half an election.
const ELECTION_PER_HEARTBEAT_MIN: u64 = 5;
/// A leader that stands still without dying is succeeded within a second (decision 0018): six silent heartbeats, up
/// to two more until somebody asks, and the election.
const ELECTION_MS_DEFAULT: u64 = 600;
/// More voters than this only make writes slower.
const FOUNDERS_MAX: usize = 9;

/// Where this node's membership comes from if its data directory is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It founds a cluster of itself.
    Alone,
    /// It founds a cluster together with others; the list includes this node.
    Founders(Vec<Founder>),
    /// It joins a running cluster through these members.
    Join(Vec<AdminUrl>),
    /// It was added to a running cluster before (`etcdctl member add`) and finds itself through its peers.
    Added {
        /// Where the cluster knows it to be.
        own: Vec<String>,
        /// The other members' peer addresses.
        others: Vec<String>,
    },
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// An address to listen on, and whether the user named it or it is our default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) is_default: bool,
    /// Whether it is served with TLS.
    pub(crate) tls: bool,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) data_dir: PathBuf,
    /// Empty: etcd clients are not served.
    pub(crate) client_listen: Vec<Listen>,
    /// `None`: what is listened on.
    pub(crate) advertise_client_urls: Option<Vec<String>>,
    pub(crate) peer_listen: Listen,
    /// `None`: what is listened on.
    pub(crate) peer_advertise: Option<String>,
    /// `None`: there is no such port.
    pub(crate) admin_listen: Option<Listen>,
    pub(crate) origin: Origin,
    pub(crate) cluster_token: String,
    pub(crate) heartbeat: Duration,
    pub(crate) election_timeout: Duration,
    /// Whether somebody asked for another than the usual one.
    pub(crate) election_given: bool,
    pub(crate) request_timeout: Duration,
    pub(crate) max_request_bytes: usize,
    pub(crate) max_txn_ops: usize,
    pub(crate) max_proposals_waiting: usize,
    pub(crate) max_watchers_per_stream: usize,
    pub(crate) worker_threads: usize,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    pub(crate) service: Service,
    /// `None`: the native API is not served.
    pub(crate) native_listen: Option<Listen>,
    pub(crate) zookeeper: Zookeeper,
    pub(crate) tls: Tls,
    /// Allowed but unwise; said once at start.
    pub(crate) warnings: Vec<String>,
}

/// One thing wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    setting: &'static str,
    what: String,
    fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}: {}\n      {}", self.setting, self.what, self.fix)
    }
}

impl Config {
    /// Checks `settings`, with all problems in one failure.
    pub(crate) fn check(settings: Settings) -> Result<Config, Failure> {
        Config::check_all(settings).map_err(|problems| {
            let list: String = problems.iter().map(|problem| format!("\n  - {problem}")).collect();
            let count = problems.len();
            let noun = if count == 1 { "setting needs" } else { "settings need" };
            Failure::usage(format!("{count} {noun} attention, nothing was started:{list}"))
        })
    }

    fn check_all(settings: Settings) -> Result<Config, Vec<Problem>> {
        let mut checks = Checks {
            problems: Vec::new(),
            insecure: settings.insecure.unwrap_or(false),
            clients: Encryption::AsAddressSays(false),
            peers: Encryption::Everywhere(false),
        };
        let tls = checks.tls(&settings);
        let service = checks.service(&settings);
        let zookeeper = checks.zookeeper(&settings);
        let native_listen = checks.native(settings.native_listen.as_deref());
        let name = checks.name(settings.name);
        let cluster_token = settings.cluster_token.unwrap_or_else(|| "tidelock".into());
        let origin = checks.origin(&name, settings.initial_cluster, settings.join);
        let origin = checks.added(origin, &name, settings.initial_cluster_state.as_deref());
        let own_address = match &origin {
            Origin::Founders(founders) => {
                founders.iter().find(|founder| founder.name == name).map(|founder| founder.peer_address.clone())
            }
            Origin::Added { own, .. } => own.first().cloned(),
            Origin::Alone | Origin::Join(_) => None,
        };
        let client_listen = checks.client_listen(settings.client_listen);
        let advertise_client_urls = checks.advertise_client_urls(settings.advertise_client_urls, &client_listen);
        let peer_listen = checks.peer_listen(settings.peer_listen.as_deref(), own_address.as_deref());
        let peer_advertise = checks.peer_advertise(settings.peer_advertise, own_address, peer_listen);
        let admin_listen = match settings.admin_listen.as_deref() {
            Some("none") => None,
            given => Some(checks.listen("admin-listen", given, ADMIN_LISTEN_DEFAULT)),
        };
        let others = [
            admin_listen.map(|listen| ("admin-listen", listen)),
            native_listen.map(|listen| ("native-listen", listen)),
            zookeeper.listen.map(|listen| ("zookeeper-listen", listen)),
            zookeeper.security.secure.as_ref().map(|port| ("zookeeper-secure-listen", port.listen)),
        ];
        checks.distinct(&client_listen, peer_listen, others, &service.metrics_listen);
        let heartbeat_ms = checks.within("heartbeat-ms", settings.heartbeat_ms, 100, 10, 10_000);
        let election_ms = checks.within("election-ms", settings.election_ms, ELECTION_MS_DEFAULT, 50, 120_000);
        checks.timing(heartbeat_ms, election_ms);
        let request_timeout_ms = checks.within("request-timeout-ms", settings.request_timeout_ms, 5_000, 100, 600_000);
        let config = Config {
            data_dir: checks.data_dir(settings.data_dir),
            max_request_bytes: checks.count(
                "max-request-bytes",
                settings.max_request_bytes,
                MAX_REQUEST_BYTES_DEFAULT,
                1_024..=VALUE_BYTES_MAX,
            ),
            max_txn_ops: checks.count("max-txn-ops", settings.max_txn_ops, MAX_TXN_OPS_DEFAULT, 1..=TXN_OPS_MAX),
            max_proposals_waiting: checks.count(
                "max-proposals-waiting",
                settings.max_proposals_waiting,
                MAX_PROPOSALS_WAITING_DEFAULT,
                // Half of the numbers by which the log tells repeated proposals from new ones.
                1..=8_192,
            ),
            max_watchers_per_stream: checks.count(
                "max-watchers-per-stream",
                settings.max_watchers_per_stream,
                MAX_WATCHERS_PER_STREAM_DEFAULT,
                1..=1_000_000,
            ),
            worker_threads: checks.count("worker-threads", settings.worker_threads, worker_threads_default(), 1..=256),
            log_level: checks.log_level(settings.log_level),
            log_format: checks.log_format(settings.log_format.as_deref()),
            warnings: warnings(&origin, checks.insecure, &tls),
            name,
            client_listen,
            advertise_client_urls,
            peer_listen,
            peer_advertise,
            admin_listen,
            service,
            native_listen,
            zookeeper,
            tls,
            origin,
            cluster_token,
            heartbeat: Duration::from_millis(heartbeat_ms),
            election_timeout: Duration::from_millis(election_ms),
            election_given: election_ms != ELECTION_MS_DEFAULT,
            request_timeout: Duration::from_millis(request_timeout_ms),
        };
        if checks.problems.is_empty() { Ok(config) } else { Err(checks.problems) }
    }
}

fn worker_threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKER_THREADS_DEFAULT_MAX))
}

fn warnings(origin: &Origin, insecure: bool, tls: &Tls) -> Vec<String> {
    let mut warnings = tls.warnings.clone();
    if let Origin::Founders(founders) = origin {
        warnings.extend(even_number_of_voters(founders));
    }
    if insecure {
        warnings.push(
            "--insecure is set: what has no TLS is neither encrypted nor authenticated; keep it on a network you trust"
                .to_owned(),
        );
    }
    warnings
}

/// Collects problems instead of stopping at the first. A check that finds one answers with something
/// harmless so that the others can go on; no `Config` comes of it.
struct Checks {
    problems: Vec<Problem>,
    insecure: bool,
    /// TLS at client addresses.
    clients: Encryption,
    /// TLS between members.
    peers: Encryption,
}

impl Checks {
    fn problem(&mut self, setting: &'static str, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.push(Problem { setting, what: what.into(), fix: fix.into() });
    }

    fn name(&mut self, name: Option<String>) -> String {
        let name = name.unwrap_or_else(|| "tidelock".into());
        if let Err(why) = check_name(&name) {
            self.problem("name", format!("{name:?} {why}"), "use letters, digits, '.', '_' and '-'");
        }
        name
    }

    fn data_dir(&mut self, data_dir: Option<PathBuf>) -> PathBuf {
        let data_dir = data_dir.unwrap_or_else(|| "tidelock-data".into());
        if data_dir.as_os_str().is_empty() {
            self.problem("data-dir", "is empty", "give a directory; it is created if it does not exist");
        } else if data_dir.exists() && !data_dir.is_dir() {
            let what = format!("{} is not a directory", data_dir.display());
            self.problem("data-dir", what, "give a directory; it is created if it does not exist");
        }
        data_dir
    }

    fn origin(&mut self, name: &str, founders: Option<Vec<String>>, join: Option<Vec<String>>) -> Origin {
        let founders = founders.filter(|list| !list.is_empty());
        let join = join.filter(|list| !list.is_empty());
        match (founders, join) {
            (None, None) => Origin::Alone,
            (Some(founders), None) => Origin::Founders(self.founders(name, &founders)),
            (None, Some(urls)) => Origin::Join(self.join(&urls)),
            (Some(_), Some(_)) => {
                self.problem(
                    "join",
                    "cannot be combined with --initial-cluster",
                    "keep --initial-cluster to found a new cluster, or --join to enter a running one",
                );
                Origin::Alone
            }
        }
    }

    fn founders(&mut self, name: &str, list: &[String]) -> Vec<Founder> {
        const SETTING: &str = "initial-cluster";
        const SHAPE: &str = "write it as a=host:port,b=host:port,c=host:port";
        let mut founders: Vec<Founder> = Vec::new();
        for item in list {
            let Some((name, address)) = item.split_once('=') else {
                self.problem(SETTING, format!("{item:?} has no '='"), SHAPE);
                continue;
            };
            let (name, (address, _)) = (name.trim(), self.address(SETTING, address.trim(), self.peers));
            if let Err(why) = check_name(name).and_then(|()| check_host_port(address, false)) {
                self.problem(SETTING, format!("{item:?} {why}"), SHAPE);
            }
            if founders.iter().any(|other| other.has_address(address)) {
                self.problem(SETTING, format!("{item:?} repeats an address"), "list every address once");
            }
            // A name that comes again is one member with several addresses, as with etcd.
            if let Some(founder) = founders.iter_mut().find(|founder| founder.name == name) {
                founder.more_addresses.push(address.to_owned());
                continue;
            }
            founders.push(Founder { name: name.to_owned(), peer_address: address.to_owned(), ..Founder::default() });
        }
        for founder in &mut founders {
            founder.sort_addresses();
        }
        if founders.len() > FOUNDERS_MAX {
            let what = format!("lists {} members; more than {FOUNDERS_MAX} only slow writes down", founders.len());
            self.problem(SETTING, what, "found 3 or 5 members");
        }
        if !founders.iter().any(|founder| founder.name == name) {
            let what = format!("does not list this node, {name:?}");
            self.problem(SETTING, what, "add it to the list, or set --name to the entry that is meant");
        }
        founders
    }

    /// Whether the list is to be founded or was joined already.
    fn added(&mut self, origin: Origin, name: &str, state: Option<&str>) -> Origin {
        const SETTING: &str = "initial-cluster-state";
        match (state, origin) {
            (None | Some("new"), origin) => origin,
            (Some("existing"), Origin::Founders(members)) => {
                let (own, others): (Vec<Founder>, Vec<Founder>) =
                    members.into_iter().partition(|member| member.name == name);
                let addresses = |members: Vec<Founder>| members.into_iter().flat_map(Founder::addresses).collect();
                let (own, others): (_, Vec<String>) = (addresses(own), addresses(others));
                if others.is_empty() {
                    let what = "existing needs the other members in --initial-cluster";
                    self.problem(SETTING, what, "list all members, as `etcdctl member add` prints them");
                }
                Origin::Added { own, others }
            }
            (Some("existing"), origin) => {
                let fix = "list all members there, or use --join alone";
                self.problem(SETTING, "existing goes with --initial-cluster only", fix);
                origin
            }
            (Some(other), origin) => {
                self.problem(SETTING, format!("{other:?} is not a state"), "give new or existing");
                origin
            }
        }
    }

    fn join(&mut self, urls: &[String]) -> Vec<AdminUrl> {
        let mut parsed = Vec::new();
        for url in urls {
            match AdminUrl::parse(url) {
                Ok(url) => parsed.push(url),
                Err(why) => {
                    let fix = "give the admin URL of a running member, such as http://10.0.0.1:7480";
                    self.problem("join", format!("{url:?} {why}"), fix);
                }
            }
        }
        parsed
    }

    fn listen(&mut self, setting: &'static str, given: Option<&str>, default: &str) -> Listen {
        self.listen_with(setting, given, default, Encryption::Never)
    }

    fn listen_with(
        &mut self,
        setting: &'static str,
        given: Option<&str>,
        default: &str,
        encryption: Encryption,
    ) -> Listen {
        let (text, tls) = self.address(setting, given.unwrap_or(default), encryption);
        let listen = |address| Listen { address, is_default: given.is_none(), tls };
        if let Err(why) = check_host_port(text, true) {
            self.problem(setting, format!("{text:?} {why}"), format!("write it like {default}"));
            return listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        }
        let Some(address) = text.to_socket_addrs().ok().and_then(|mut found| found.next()) else {
            let fix = "use an IP address of this machine, or a name that resolves to one";
            self.problem(setting, format!("the host of {text:?} cannot be resolved"), fix);
            return listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        };
        if !address.ip().is_loopback() && !tls && !self.insecure {
            let what = format!("{text} can be reached from other machines, and is not protected by TLS");
            self.problem(setting, what, encryption.advice());
        }
        listen(address)
    }

    fn client_listen(&mut self, given: Option<Vec<String>>) -> Vec<Listen> {
        match given.filter(|list| !list.is_empty()) {
            Some(list) if list == ["none"] => Vec::new(),
            None => vec![self.listen_with("client-listen", None, CLIENT_LISTEN_DEFAULT, self.clients)],
            Some(list) => {
                if list.len() > MEMBER_URLS_MAX {
                    self.problem(
                        "client-listen",
                        "lists too many addresses",
                        format!("give at most {MEMBER_URLS_MAX}"),
                    );
                }
                list.iter()
                    .map(|text| self.listen_with("client-listen", Some(text), CLIENT_LISTEN_DEFAULT, self.clients))
                    .collect()
            }
        }
    }

    fn advertise_client_urls(&mut self, given: Option<Vec<String>>, listen: &[Listen]) -> Option<Vec<String>> {
        const SETTING: &str = "advertise-client-urls";
        let Some(urls) = given.filter(|urls| !urls.is_empty()) else {
            if listen.iter().any(|listen| listen.address.ip().is_unspecified()) {
                let what = "must be given when listening on every address: clients cannot dial 0.0.0.0";
                self.problem(SETTING, what, "give the URL clients reach this node at, such as https://10.0.0.1:2379");
            }
            return None;
        };
        for url in &urls {
            let served = |tls: bool| listen.iter().any(|listen| listen.tls == tls);
            let checked = match split_scheme(url) {
                (Some("https"), _) if !served(true) => Err("promises TLS, and no client address has it".into()),
                (Some("http"), _) if !served(false) => {
                    Err("promises plain text, and every client address has TLS".into())
                }
                (Some(_), rest) => check_host_port(rest, false),
                (None, _) => Err("does not begin with http:// or https://".into()),
            };
            if let Err(why) = checked {
                let scheme = if listen.iter().any(|listen| listen.tls) { "https" } else { "http" };
                self.problem(SETTING, format!("{url:?} {why}"), format!("write it like {scheme}://10.0.0.1:2379"));
            }
        }
        if urls.len() > MEMBER_URLS_MAX {
            self.problem(SETTING, "lists too many URLs", format!("give at most {MEMBER_URLS_MAX}"));
        }
        Some(urls)
    }

    fn peer_listen(&mut self, given: Option<&str>, own_address: Option<&str>) -> Listen {
        self.listen_with("peer-listen", given.or(own_address), PEER_LISTEN_DEFAULT, self.peers)
    }

    fn peer_advertise(&mut self, given: Option<String>, own: Option<String>, listen: Listen) -> Option<String> {
        const SETTING: &str = "peer-advertise";
        let given = given.map(|text| self.address(SETTING, &text, self.peers).0.to_owned());
        if let Some(text) = &given
            && let Err(why) = check_host_port(text, false)
        {
            self.problem(SETTING, format!("{text:?} {why}"), "write it like 10.0.0.1:2380");
        }
        if let (Some(given), Some(own)) = (&given, &own)
            && given != own
        {
            let what = format!("is {given}, but --initial-cluster says {own}");
            self.problem(SETTING, what, "make them equal, or leave --peer-advertise out");
        }
        let advertised = own.or(given);
        if advertised.is_none() && listen.address.ip().is_unspecified() {
            let what = "must be given when listening on every address: peers cannot dial 0.0.0.0";
            self.problem(SETTING, what, "give the address members reach this node at, such as 10.0.0.1:2380");
        }
        advertised
    }

    fn distinct(
        &mut self,
        clients: &[Listen],
        peer: Listen,
        others: [Option<(&'static str, Listen)>; 4],
        metrics: &[Listen],
    ) {
        let named = clients
            .iter()
            .map(|listen| ("client-listen", *listen))
            .chain([("peer-listen", peer)])
            .chain(others.into_iter().flatten())
            .chain(metrics.iter().map(|listen| ("metrics-listen", *listen)));
        let mut seen: Vec<SocketAddr> = Vec::new();
        for (setting, listen) in named {
            // Port 0 asks the system for a free port, a different one each time.
            if listen.address.port() != 0 && seen.contains(&listen.address) {
                let what = format!("{} is already used by another listener of this node", listen.address);
                self.problem(setting, what, "give every listener an address of its own");
            }
            seen.push(listen.address);
        }
    }

    fn within(&mut self, setting: &'static str, given: Option<u64>, default: u64, min: u64, max: u64) -> u64 {
        let value = given.unwrap_or(default);
        if value < min || value > max {
            self.problem(setting, format!("{value} is out of bounds"), format!("give a number from {min} to {max}"));
        }
        value
    }

    fn count(
        &mut self,
        setting: &'static str,
        given: Option<usize>,
        default: usize,
        bounds: std::ops::RangeInclusive<usize>,
    ) -> usize {
        let value = given.unwrap_or(default);
        if !bounds.contains(&value) {
            let fix = format!("give a number from {} to {}", bounds.start(), bounds.end());
            self.problem(setting, format!("{value} is out of bounds"), fix);
        }
        value
    }

    fn timing(&mut self, heartbeat_ms: u64, election_ms: u64) {
        let min = heartbeat_ms.saturating_mul(ELECTION_PER_HEARTBEAT_MIN);
        if election_ms < min {
            let what =
                format!("{election_ms} is less than {ELECTION_PER_HEARTBEAT_MIN} heartbeats of {heartbeat_ms} ms");
            self.problem("election-ms", what, format!("set it to {min} or more, or lower --heartbeat-ms"));
        }
    }

    fn log_level(&mut self, level: Option<String>) -> String {
        let level = level.unwrap_or_else(|| "info".into());
        if let Err(error) = EnvFilter::try_new(&level) {
            let fix = "give error, warn, info, debug or trace, or a filter like info,tidelock_node=debug";
            self.problem("log-level", format!("{level:?} is not a filter: {error}"), fix);
        }
        level
    }

    fn log_format(&mut self, format: Option<&str>) -> LogFormat {
        match format {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => {
                self.problem("log-format", format!("{other:?} is not a format"), "give text or json");
                LogFormat::Text
            }
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
