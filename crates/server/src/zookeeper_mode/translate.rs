//! From the keys of a zoo.cfg to settings of ours. Pure: what lies in files was read before ([`Found`]).
//!
//! Defaults are ZooKeeper's where the two differ (clients are served on every address of the machine), because a file
//! written for ZooKeeper relies on them. An address that others can reach is what the operator asked for, so it counts
//! as `--insecure`; the warning stays.
//!
//! Nothing is served here that ZooKeeper does not serve: etcd's clients and administration have ports only if a flag
//! asks for them.

#[path = "translate_security.rs"]
mod security;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tidelock_model::limits::VALUE_BYTES_MAX;

use super::keys::{find, nearest};
use super::properties::Entry;
use super::servers::Server;
use crate::config::ZookeeperDetails;
use crate::fate::Fate;
use crate::settings::Settings;

/// ZooKeeper's own, for a file that does not say.
const TICK_MS_DEFAULT: u64 = 3_000;
/// How long old versions of znodes are kept. No client of ZooKeeper's can ask for them, nor say when to forget them.
const HISTORY_KEPT: &str = "10m";
/// ZooKeeper's own, for its admin commands.
const ADMIN_PORT_DEFAULT: u16 = 8080;
/// Smallest limit on packets; a connection needs some to come about at all.
const MAX_FRAME_MIN: usize = 1024;
/// Schemes whose classes are a part of ZooKeeper, and what becomes of them.
const AUTH_PROVIDERS: &[(&str, &str)] = &[
    ("DigestAuthenticationProvider", "the scheme digest is always there"),
    ("IPAuthenticationProvider", "the scheme ip is always there"),
    ("SASLAuthenticationProvider", "the scheme sasl is always there; java.security.auth.login.config names its users"),
    ("X509AuthenticationProvider", "the scheme x509 is always there, at secureClientPort"),
];

/// What lies in the directory that the file names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Whether it exists.
    pub(crate) directory: bool,
    /// The text of `myid`.
    pub(crate) myid: Option<String>,
    /// Whether a real ZooKeeper has written there.
    pub(crate) zookeepers_data: bool,
}

/// What a file comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) settings: Settings,
    pub(crate) details: ZookeeperDetails,
    /// What was given and has no effect, and why.
    pub(crate) notes: Vec<String>,
}

/// A key as ZooKeeper's table has it: system properties have the same names with `zookeeper.` before them.
pub(crate) fn name(key: &str) -> &str {
    key.strip_prefix("zookeeper.").unwrap_or(key)
}

/// Translates a file and the one it names for its servers; all problems together. `serves_otherwise` says that
/// clients are served somewhere even if the files do not say where.
pub(crate) fn translate(
    entries: &[Entry],
    dynamic: &[Entry],
    found: &Found,
    serves_otherwise: bool,
) -> Result<Translated, Vec<String>> {
    let mut translation = Translation { values: BTreeMap::new(), found, problems: Vec::new(), notes: Vec::new() };
    translation.collect(entries, dynamic);
    translation.judge();
    let servers = translation.servers();
    let (settings, details) = translation.settings(&servers, serves_otherwise);
    let Translation { problems, notes, .. } = translation;
    if problems.is_empty() { Ok(Translated { settings, details, notes }) } else { Err(problems) }
}

struct Translation<'a> {
    values: BTreeMap<&'a str, &'a Entry>,
    found: &'a Found,
    problems: Vec<String>,
    notes: Vec<String>,
}

/// Where clients are served.
struct Clients {
    host: String,
    /// As it is written.
    shown_host: String,
    port: u16,
}

impl<'a> Translation<'a> {
    fn problem(&mut self, key: &str, what: impl Display, fix: impl Display) {
        let line = self.values.get(key).map(|entry| format!(" (line {})", entry.line)).unwrap_or_default();
        self.problems.push(format!("{key}{line}: {what}\n      what to do: {fix}"));
    }

    /// The last value of each key counts, as with Java; servers may be in the other file instead.
    fn collect(&mut self, entries: &'a [Entry], dynamic: &'a [Entry]) {
        for entry in entries {
            if let Some(before) = self.values.insert(name(&entry.key), entry) {
                let (key, line) = (&entry.key, entry.line);
                self.notes.push(format!("{key} is given on lines {} and {line}; the last one counts", before.line));
            }
        }
        let is_member = |key: &str| ["server.", "group.", "weight."].iter().any(|kind| key.starts_with(kind));
        if !dynamic.is_empty() && self.values.keys().any(|key| is_member(key)) {
            let fix = "list them in one of the two, best in dynamicConfigFile";
            self.problem("dynamicConfigFile", "there are servers in this file and in the one it names", fix);
        }
        for entry in dynamic.iter().filter(|entry| entry.key != "version") {
            if is_member(&entry.key) {
                self.values.insert(&entry.key, entry);
            } else {
                let what = format!("{} does not belong into the file it names", entry.key);
                self.problem("dynamicConfigFile", what, "list only servers there");
            }
        }
    }

    /// Refuses what must not be ignored and takes note of what is.
    fn judge(&mut self) {
        let values: Vec<(&str, &str)> = self.values.iter().map(|(key, entry)| (*key, entry.value.as_str())).collect();
        for (key, value) in values {
            match find(key).map(|row| row.fate) {
                Some(Fate::Honoured) => {}
                Some(Fate::NoEffect(why)) => self.notes.push(format!("{key} has no effect: {why}")),
                Some(Fate::Refused { harmless, .. }) if harmless.contains(&value.to_ascii_lowercase().as_str()) => {}
                Some(Fate::Refused { instead, .. }) => {
                    self.problem(key, format_args!("{value} is not supported"), instead);
                }
                None => {
                    let fix = match nearest(key) {
                        Some(nearest) => format!("did you mean {nearest}?"),
                        None => "leave it out; docs/zookeeper-mode.md lists what is known".to_owned(),
                    };
                    self.problem(key, "unknown key", fix);
                }
            }
            if key.starts_with("authProvider.") {
                self.auth_provider(key, value);
            }
        }
    }

    fn auth_provider(&mut self, key: &str, class: &str) {
        let known = AUTH_PROVIDERS.iter().find(|(name, _)| {
            class.strip_prefix("org.apache.zookeeper.server.auth.").is_some_and(|class| class == *name)
        });
        match known {
            Some((_, why)) => self.notes.push(format!("{key} has no effect: {why}")),
            None => {
                let fix = "leave it out; the schemes are world, auth, digest, ip, sasl and x509";
                self.problem(key, format_args!("{class} cannot be loaded: there is no Java here"), fix);
            }
        }
    }

    fn servers(&mut self) -> Vec<Server> {
        let mut servers: Vec<Server> = Vec::new();
        let lines: Vec<(&str, &str)> = self.values.iter().map(|(key, entry)| (*key, entry.value.as_str())).collect();
        for (key, value) in lines {
            let Some(number) = key.strip_prefix("server.") else { continue };
            match Server::parse(number, value) {
                Ok(server) if servers.iter().any(|other| other.number == server.number) => {
                    self.problem(key, "this server is listed twice", "list every server once");
                }
                Ok(server) => servers.push(server),
                Err(wrong) => self.problem(key, format_args!("{value:?} {}", wrong.what), wrong.fix),
            }
        }
        servers.sort_by_key(|server| server.number);
        if !servers.is_empty() && servers.iter().all(|server| server.observes) {
            let fix = "make one of them a participant";
            self.problems.push(format!("server.N: there are only observers\n      what to do: {fix}"));
        }
        servers
    }

    /// The lines of servers say who votes, at all servers alike; `peerType` only says the same again.
    fn check_peer_type(&mut self, own: Option<&Server>) {
        let observes = own.is_some_and(|own| own.observes);
        let (said, fix) = match self.text("peerType").map(|text| text.to_ascii_lowercase()).as_deref() {
            None | Some("") => return,
            Some("observer") => (true, "list servers, and end this one's line with :observer"),
            Some("participant") => (false, "leave it out"),
            Some(_) => return self.problem("peerType", "unrecognised peer type", "say participant or observer"),
        };
        if own.is_none() && said {
            self.problem("peerType", "an observer alone has nobody to observe", fix);
        } else if said != observes {
            self.notes.push("peerType does not match this server's line server.N, which counts".to_owned());
        }
    }

    fn settings(&mut self, servers: &[Server], serves_otherwise: bool) -> (Settings, ZookeeperDetails) {
        let data_dir = self.data_dir();
        let (number, own) = self.own_server(servers, &data_dir);
        self.check_peer_type(own);
        let secure = self.secure_port();
        let clients = self.clients(own, serves_otherwise || secure.is_some());
        let peer_listen = match own {
            // Nobody else is there to be reached.
            None => "127.0.0.1:0".to_owned(),
            Some(own) if self.truth("quorumListenOnAllIPs") == Some(true) => format!("0.0.0.0:{}", own.peer_port),
            Some(own) => format!("{}:{}", numeric_loopback(&own.host), own.peer_port),
        };
        let clients_are_local = clients.as_ref().is_none_or(|clients| is_loopback(&clients.host));
        let admin_listen = self.admin_listen(clients.as_ref());
        let admin_is_local = admin_listen.as_ref().is_none_or(|admin| is_loopback(host_of(admin)));
        let insecure = !clients_are_local || !admin_is_local || !is_loopback(host_of(&peer_listen));
        let founders = servers.iter().map(|server| format!("{}={}", server.name(), server.peer_address())).collect();
        let settings = Settings {
            name: Some(format!("server.{number}")),
            data_dir: Some(data_dir.join("tidelock")),
            client_listen: Some(vec!["none".into()]),
            admin_listen: Some("none".into()),
            insecure: Some(insecure),
            peer_listen: Some(peer_listen),
            initial_cluster: Some(founders).filter(|founders: &Vec<String>| !founders.is_empty()),
            zookeeper_listen: clients.as_ref().map(|clients| format!("{}:{}", clients.host, clients.port)),
            zookeeper_admin_listen: admin_listen,
            zookeeper_tick_ms: Some(self.number("tickTime").unwrap_or(TICK_MS_DEFAULT)),
            zookeeper_replay_watches: self.truth("tidelock.replayPersistentWatches"),
            auto_compaction_mode: Some("periodic".into()),
            auto_compaction_retention: Some(HISTORY_KEPT.into()),
            ..self.identities(secure.as_ref())
        };
        let details = ZookeeperDetails {
            client_address: clients.as_ref().map(|clients| format!("{}:{}", clients.shown_host, clients.port)),
            advertise: clients.or(secure).and_then(|clients| advertised(&clients, own)),
            server_number: Some(number),
            observers: servers.iter().filter(|server| server.observes).map(Server::name).collect(),
            election_port: own.map(|own| own.election_port),
            admin_path: self.text("admin.commandURL"),
            sasl_super_user: self.text("superUser"),
            x509_super_user: self.text("X509AuthenticationProvider.superUser"),
            required_schemes: self.required_schemes(),
            ..self.limits()
        };
        (settings, details)
    }

    fn data_dir(&mut self) -> PathBuf {
        let Some(data_dir) = self.text("dataDir").map(PathBuf::from) else {
            self.problem("dataDir", "dataDir is not set", "give the directory that is to hold the data");
            return PathBuf::new();
        };
        if !self.found.directory && self.truth("datadir.autocreate") == Some(false) {
            let what = format!("{} is missing, and datadir.autocreate is false", data_dir.display());
            self.problem("dataDir", what, "create it, or mount what belongs there");
        }
        if self.found.zookeepers_data {
            self.notes.push(format!(
                "{} holds the data of a real ZooKeeper, which is not imported and stays untouched; this node has its own in {}",
                data_dir.join("version-2").display(),
                data_dir.join("tidelock").display()
            ));
        }
        data_dir
    }

    /// Which of the servers this one is. One alone needs no file `myid`, as with ZooKeeper.
    fn own_server<'s>(&mut self, servers: &'s [Server], data_dir: &std::path::Path) -> (u64, Option<&'s Server>) {
        let file = data_dir.join("myid");
        let file = file.display();
        let number = match (self.found.myid.as_deref(), servers) {
            (None, []) => return (1, None),
            (None, [only]) => return (only.number, Some(only)),
            (None, _) => {
                let fix = "write the N of this server's own line server.N into it, and nothing else";
                self.problems.push(format!(
                    "{file} file is missing: it says which of the servers this one is\n      what to do: {fix}"
                ));
                return (1, None);
            }
            (Some(text), _) => match u64::from_str(text) {
                Ok(number) => number,
                Err(_) => {
                    let fix = format!("write the number of this server into {file}, and nothing else");
                    self.problems.push(format!("serverid {text:?} is not a number\n      what to do: {fix}"));
                    return (1, None);
                }
            },
        };
        let own = servers.iter().find(|server| server.number == number);
        if own.is_none() && !servers.is_empty() {
            let listed = servers.iter().map(Server::name).collect::<Vec<String>>().join(", ");
            let fix = format!("add a line server.{number}, or write the number of one of {listed} into {file}");
            self.problems.push(format!("My id {number} not in the peer list\n      what to do: {fix}"));
        }
        (number, own)
    }

    /// `clientPort` and `clientPortAddress`, or what this server's own line says of clients.
    fn clients(&mut self, own: Option<&Server>, serves_otherwise: bool) -> Option<Clients> {
        let listed = own.and_then(|own| own.client.as_ref());
        let given = self.number::<u16>("clientPort").filter(|port| *port != 0);
        let address = self.text("clientPortAddress");
        let port = given.or(listed.map(|client| client.port));
        if let (Some(given), Some(listed)) = (given, listed)
            && given != listed.port
        {
            let what = format!("{given} is not the port in the line of this server, {}", listed.port);
            self.problem("clientPort", what, "leave it out, or make the two equal");
        }
        let Some(port) = port else {
            if address.is_some() {
                let what = "clientPortAddress is set but clientPort is not set";
                self.problem("clientPortAddress", what, "give a clientPort as well");
            } else if !serves_otherwise {
                let fix = "give one, such as 2181; without it nobody is served";
                self.problem("clientPort", "clientPort is not set", fix);
            }
            return None;
        };
        let host = address.or_else(|| listed.and_then(|client| client.host.clone()));
        let shown_host = host.map_or_else(|| "0.0.0.0".to_owned(), |host| bracketed(&host));
        Some(Clients { host: numeric_loopback(&shown_host), shown_host, port })
    }

    /// Where admin commands are served: on ZooKeeper's port unless told otherwise, and where its clients are, so that a
    /// server which is for this machine alone stays so.
    fn admin_listen(&mut self, clients: Option<&Clients>) -> Option<String> {
        let clients = clients.filter(|_| self.truth("admin.enableServer") != Some(false))?;
        let host = self.text("admin.serverAddress").map(|host| numeric_loopback(&bracketed(&host)));
        let host = host.unwrap_or_else(|| clients.host.clone());
        let port = self.number::<u16>("admin.serverPort").unwrap_or(ADMIN_PORT_DEFAULT);
        Some(format!("{host}:{port}"))
    }

    fn limits(&mut self) -> ZookeeperDetails {
        let min = self.session_timeout("minSessionTimeout");
        let max = self.session_timeout("maxSessionTimeout");
        let tick: u64 = self.number("tickTime").unwrap_or(TICK_MS_DEFAULT);
        if min.unwrap_or(Duration::from_millis(tick.saturating_mul(2)))
            > max.unwrap_or(Duration::from_millis(tick.saturating_mul(20)))
        {
            let what = "minSessionTimeout must not be larger than maxSessionTimeout";
            self.problem(
                "minSessionTimeout",
                what,
                "lower it, or raise maxSessionTimeout; the defaults are 2 and 20 ticks",
            );
        }
        let words = |text: String| text.split(',').map(|word| word.trim().to_owned()).collect::<Vec<String>>();
        ZookeeperDetails {
            session_timeout_min: min,
            session_timeout_max: max,
            max_frame: self.max_frame(),
            connections_per_address: self.number("maxClientCnxns"),
            super_digest: self.super_digest(),
            words: self.text("4lw.commands.whitelist").map(words),
            reconfig: self.truth("reconfigEnabled").unwrap_or_default(),
            read_only_mode: self.truth("readonlymode.enabled").unwrap_or_default(),
            enforce_quota: self.truth("enforceQuota").unwrap_or(false),
            ..ZookeeperDetails::default()
        }
    }

    /// -1 stands for the default, as with ZooKeeper.
    fn session_timeout(&mut self, key: &'static str) -> Option<Duration> {
        match self.number::<i64>(key)? {
            -1 => None,
            ms => match u64::try_from(ms) {
                Ok(ms) => Some(Duration::from_millis(ms)),
                Err(_) => {
                    self.problem(
                        key,
                        format_args!("{ms} is out of bounds"),
                        "give milliseconds, or -1 for the default",
                    );
                    None
                }
            },
        }
    }

    fn max_frame(&mut self) -> Option<usize> {
        let asked: usize = self.number("jute.maxbuffer")?;
        let taken = asked.clamp(MAX_FRAME_MIN, VALUE_BYTES_MAX);
        if taken != asked {
            self.notes.push(format!(
                "jute.maxbuffer is taken as {taken}: the bounds are {MAX_FRAME_MIN} and {VALUE_BYTES_MAX}"
            ));
        }
        Some(taken)
    }

    /// `user:digest`, by either of its names.
    fn super_digest(&mut self) -> Option<String> {
        let key = "DigestAuthenticationProvider.superDigest";
        let key = if self.values.contains_key(key) { key } else { "superDigest" };
        let digest = self.text(key)?;
        if !digest.split_once(':').is_some_and(|(user, digest)| !user.is_empty() && !digest.is_empty()) {
            // What was given is as good as a password, so it is not repeated.
            self.problem(key, "is not user:digest", "write it as super: and the Base64 of the SHA1 of super:password");
        }
        Some(digest)
    }

    fn text(&self, key: &str) -> Option<String> {
        debug_assert!(find(key).is_some_and(|row| row.fate == Fate::Honoured), "{key} is not a key to honour");
        self.values.get(key).map(|entry| entry.value.clone()).filter(|value| !value.is_empty())
    }

    fn truth(&self, key: &str) -> Option<bool> {
        self.text(key).map(|text| text.eq_ignore_ascii_case("true"))
    }

    fn number<T: FromStr>(&mut self, key: &str) -> Option<T> {
        let text = self.text(key)?;
        let number = text.parse().ok();
        if number.is_none() && !self.problems.iter().any(|problem| problem.starts_with(&format!("{key} "))) {
            self.problem(key, format_args!("{text:?} is not a number that fits"), "give a whole number");
        }
        number
    }
}

/// `localhost` is the IPv4 loopback: the system may know it under several addresses, and only one is listened on.
fn numeric_loopback(host: &str) -> String {
    if host == "localhost" { "127.0.0.1".to_owned() } else { host.to_owned() }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _port)| host)
}

/// Whether only this machine reaches a host.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Where clients reach this server. Every address of the machine is none that can be dialed; its own line has one.
fn advertised(clients: &Clients, own: Option<&Server>) -> Option<String> {
    let anywhere = matches!(clients.host.as_str(), "0.0.0.0" | "[::]");
    let host = if anywhere { &own?.host } else { &clients.host };
    Some(format!("{host}:{}", clients.port))
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
