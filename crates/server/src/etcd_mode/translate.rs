//! From etcd's flags to settings of ours. Pure: nothing is opened or looked up here.
//!
//! Defaults are etcd's where the two differ (name, data directory, `localhost`), because a unit file written
//! for etcd relies on them. Whatever is left out of a setting keeps our default, which is etcd's as well.
//!
//! `http://` at an address others can reach is what the operator asked for, so it counts as `--insecure`; the
//! warning stays.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::{Given, Source, Values, parse_bool};
use super::duration;
use super::environment::variable;
use super::flags::{FEATURE_GATES, find};
use crate::fate::Fate;
use crate::settings::Settings;

const NAME_DEFAULT: &str = "default";
const TOKEN_DEFAULT: &str = "etcd-cluster";
const CLIENT_URL_DEFAULT: &str = "http://localhost:2379";
const PEER_URL_DEFAULT: &str = "http://localhost:2380";

/// What the flags come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) settings: Settings,
    /// What was given and has no effect, and why.
    pub(crate) notes: Vec<String>,
}

/// Translates everything that was given; all problems together.
pub(crate) fn translate(values: &Values) -> Result<Translated, Vec<String>> {
    let mut translation = Translation { values, problems: Vec::new(), notes: Vec::new() };
    translation.judge();
    let settings = translation.settings();
    let Translation { problems, notes, .. } = translation;
    if problems.is_empty() { Ok(Translated { settings, notes }) } else { Err(problems) }
}

struct Translation<'a> {
    values: &'a Values,
    problems: Vec<String>,
    notes: Vec<String>,
}

/// How a flag is to be called in a message: as it was given.
fn shown(name: &str, given: &Given) -> String {
    match given.source {
        Source::Flag => format!("--{name}"),
        Source::Variable => variable(name),
        Source::File => format!("{name} in the config file"),
    }
}

impl Translation<'_> {
    /// Refuses what must not be ignored and takes note of what is.
    fn judge(&mut self) {
        for (name, given) in self.values {
            let Some(flag) = find(name) else { continue };
            match flag.fate {
                Fate::Honoured => {}
                Fate::NoEffect(why) => {
                    self.notes.push(format!("{} has no effect: {why}", shown(name, given)));
                }
                Fate::Refused { harmless, instead } => {
                    let is_false = parse_bool(&given.value) == Some(false) && harmless.contains(&"false");
                    if !is_false && !harmless.contains(&given.value.as_str()) {
                        let (shown, value) = (shown(name, given), &given.value);
                        self.problems.push(format!("{shown}={value} is not supported\n      what to do: {instead}"));
                    }
                }
            }
        }
    }

    fn problem(&mut self, name: &str, what: &str, fix: &str) {
        let shown = self.values.get(name).map_or_else(|| format!("--{name}"), |given| shown(name, given));
        self.problems.push(format!("{shown}: {what}\n      what to do: {fix}"));
    }

    fn settings(&mut self) -> Settings {
        let name = self.text("name").unwrap_or_else(|| NAME_DEFAULT.into());
        let data_dir = self.text("data-dir").unwrap_or_else(|| format!("{name}.etcd"));
        let peer_urls = self.list("listen-peer-urls").unwrap_or_else(|| vec![PEER_URL_DEFAULT.into()]);
        if peer_urls.len() > 1 {
            let fix = "give one, such as http://0.0.0.0:2380; --initial-advertise-peer-urls may still list several";
            self.problem("listen-peer-urls", "members are served at one address only", fix);
        }
        let client_urls = self.list("listen-client-urls").unwrap_or_else(|| vec![CLIENT_URL_DEFAULT.into()]);
        let http_urls = self.list("listen-client-http-urls").unwrap_or_default();
        let metrics_urls = self.list("listen-metrics-urls").unwrap_or_default();
        let advertised = self.advertised_client_urls();
        let initial_cluster = self.members(&name);
        let open = |url: &String| url.starts_with("http://") && !is_loopback(url);
        let insecure = [&peer_urls, &client_urls, &http_urls, &metrics_urls].into_iter().flatten().any(open);
        let serving: Vec<String> = client_urls.iter().chain(&http_urls).cloned().collect();
        Settings {
            data_dir: Some(PathBuf::from(data_dir)),
            client_listen: Some(self.listening("listen-client-urls", &serving)),
            advertise_client_urls: Some(advertised),
            peer_listen: self.listening("listen-peer-urls", &peer_urls).into_iter().next(),
            // etcd has no such port; one that opens unasked would surprise, and clash with the next member's.
            admin_listen: Some("none".into()),
            metrics_listen: Some(self.listening("listen-metrics-urls", &metrics_urls)).filter(|list| !list.is_empty()),
            insecure: Some(insecure),
            initial_cluster: Some(initial_cluster),
            initial_cluster_state: self.text("initial-cluster-state"),
            cluster_token: Some(self.text("initial-cluster-token").unwrap_or_else(|| TOKEN_DEFAULT.into())),
            name: Some(name),
            ..self.behaviour().over(self.security())
        }
    }

    /// Timing, limits, log: whatever is neither an address nor a certificate.
    fn behaviour(&mut self) -> Settings {
        self.check_feature_gates();
        let log_level = self.log_level();
        let log_format = self.log_format();
        Settings {
            heartbeat_ms: self.number("heartbeat-interval"),
            election_ms: self.number("election-timeout"),
            max_request_bytes: self.number("max-request-bytes"),
            max_txn_ops: self.number("max-txn-ops"),
            max_streams_per_connection: self.number("max-concurrent-streams"),
            max_learners: self.number("max-learners").or_else(|| self.number("experimental-max-learners")),
            catch_up_entries: self
                .number("snapshot-catchup-entries")
                .or_else(|| self.number("experimental-snapshot-catchup-entries")),
            ping_after_ms: self.milliseconds("grpc-keepalive-interval"),
            ping_timeout_ms: self.milliseconds("grpc-keepalive-timeout"),
            progress_notify_ms: self
                .milliseconds("watch-progress-notify-interval")
                .or_else(|| self.milliseconds("experimental-watch-progress-notify-interval")),
            quota_bytes: self.quota(),
            auto_compaction_mode: self.text("auto-compaction-mode"),
            auto_compaction_retention: self.text("auto-compaction-retention"),
            // etcd forgets what it is told to, and nothing else.
            max_history_revisions: Some(0),
            metrics_detail: self.text("metrics"),
            auth_token: self.text("auth-token"),
            auth_token_ttl_s: self.number("auth-token-ttl"),
            bcrypt_cost: self.number("bcrypt-cost"),
            log_level,
            log_format,
            log_outputs: self.log_outputs(),
            ..Settings::default()
        }
    }

    /// TLS: the settings have the names of the flags.
    fn security(&mut self) -> Settings {
        let file = |name: &str| self.text(name).map(PathBuf::from);
        Settings {
            cert_file: file("cert-file"),
            key_file: file("key-file"),
            client_cert_auth: self.truth("client-cert-auth"),
            trusted_ca_file: file("trusted-ca-file"),
            client_crl_file: file("client-crl-file"),
            client_cert_allowed_hostname: self.list("client-cert-allowed-hostname"),
            auto_tls: self.truth("auto-tls"),
            peer_cert_file: file("peer-cert-file"),
            peer_key_file: file("peer-key-file"),
            peer_client_cert_auth: self.truth("peer-client-cert-auth"),
            peer_trusted_ca_file: file("peer-trusted-ca-file"),
            peer_crl_file: file("peer-crl-file"),
            peer_cert_allowed_cn: self.list("peer-cert-allowed-cn"),
            peer_cert_allowed_hostname: self.list("peer-cert-allowed-hostname"),
            peer_auto_tls: self.truth("peer-auto-tls"),
            tls_min_version: self.text("tls-min-version"),
            tls_max_version: self.text("tls-max-version"),
            cipher_suites: self.list("cipher-suites"),
            ..Settings::default()
        }
    }

    /// The initial cluster as `name=URL`, one URL each; the scheme says whether there is TLS between members.
    fn members(&mut self, name: &str) -> Vec<String> {
        let own = self.list("initial-advertise-peer-urls");
        let own_addresses =
            own.as_ref().map(|urls| self.addresses("initial-advertise-peer-urls", urls)).unwrap_or_default();
        let Some(list) = self.list("initial-cluster") else {
            let urls = own.unwrap_or_else(|| vec![PEER_URL_DEFAULT.into()]);
            return urls.iter().map(|url| format!("{name}={url}")).collect();
        };
        let mut own_listed = Vec::new();
        for item in &list {
            let Some((member, url)) = item.split_once('=') else {
                let what = format!("{item:?} has no '='");
                self.problem("initial-cluster", &what, "write it as a=http://host:2380,b=http://host:2380");
                continue;
            };
            let addresses = self.addresses("initial-cluster", &[url.to_owned()]);
            if member.trim() == name {
                own_listed.extend(addresses);
            }
        }
        if let Some(missing) = own_addresses.iter().find(|address| !own_listed.contains(address)) {
            let what = format!("{missing} is not what --initial-cluster says of {name:?}");
            self.problem("initial-advertise-peer-urls", &what, "make the two equal, on every member");
        }
        list
    }

    fn advertised_client_urls(&mut self) -> Vec<String> {
        let advertised = self.list("advertise-client-urls");
        if advertised.is_none() && self.values.contains_key("listen-client-urls") {
            let what = "is required when --listen-client-urls is set explicitly";
            self.problem("advertise-client-urls", what, "give the URLs at which clients reach this member");
        }
        advertised.unwrap_or_else(|| vec![CLIENT_URL_DEFAULT.into()])
    }

    /// URLs to listen on, with their schemes, which say whether there is TLS. `localhost` is the IPv4 loopback, as
    /// it is for etcd.
    fn listening(&mut self, name: &str, urls: &[String]) -> Vec<String> {
        let mut addresses = Vec::new();
        for url in urls {
            let scheme = if url.starts_with("https://") { "https" } else { "http" };
            for address in self.addresses(name, std::slice::from_ref(url)) {
                addresses.push(match address.strip_prefix("localhost:") {
                    Some(port) => format!("{scheme}://127.0.0.1:{port}"),
                    None => format!("{scheme}://{address}"),
                });
            }
        }
        addresses
    }

    /// `host:port` of URLs.
    fn addresses(&mut self, name: &str, urls: &[String]) -> Vec<String> {
        let mut addresses = Vec::new();
        for url in urls {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            match rest.map(|rest| rest.trim_end_matches('/')).filter(|rest| !rest.is_empty()) {
                Some(address) => addresses.push(address.to_owned()),
                None => {
                    let what = format!("{url:?} is not a URL that begins with http:// or https://");
                    self.problem(name, &what, "write it like http://10.0.0.1:2379; Unix sockets are not served");
                }
            }
        }
        addresses
    }

    fn check_feature_gates(&mut self) {
        for gate in self.list("feature-gates").unwrap_or_default() {
            let (gate_name, value) = gate.split_once('=').unwrap_or((gate.as_str(), ""));
            match FEATURE_GATES.iter().find(|(known, _)| *known == gate_name.trim()) {
                Some((known, why)) if parse_bool(value.trim()).is_some() => {
                    self.notes.push(format!("feature gate {known} has no effect: {why}"));
                }
                Some(_) => {
                    let what = format!("{gate:?} says neither true nor false");
                    self.problem("feature-gates", &what, "write it as Name=true,Other=false");
                }
                None => {
                    let known: Vec<&str> = FEATURE_GATES.iter().map(|(known, _)| *known).collect();
                    let what = format!("unrecognized feature gate: {gate_name}");
                    self.problem("feature-gates", &what, &format!("these exist: {}", known.join(", ")));
                }
            }
        }
    }

    fn quota(&mut self) -> Option<i64> {
        self.text("quota-backend-bytes").and_then(|text| text.parse().ok())
    }

    fn log_level(&mut self) -> Option<String> {
        let debug = self.truth("debug") == Some(true);
        match self.text("log-level").as_deref() {
            Some(level @ ("debug" | "info" | "warn" | "error")) => Some(level.to_owned()),
            // More than an error ends the process here.
            Some("dpanic" | "panic" | "fatal") => Some("error".to_owned()),
            Some(other) => {
                let what = format!("{other:?} is not a level");
                self.problem("log-level", &what, "give debug, info, warn, error, panic or fatal");
                None
            }
            None => debug.then(|| "debug".to_owned()),
        }
    }

    fn log_format(&mut self) -> Option<String> {
        match self.text("log-format").as_deref() {
            None => None,
            Some("json") => Some("json".to_owned()),
            Some("console") => Some("text".to_owned()),
            Some(other) => {
                self.problem("log-format", &format!("{other:?} is not a format"), "give json or console");
                None
            }
        }
    }

    fn log_outputs(&mut self) -> Option<Vec<String>> {
        let named = |output: String| match output.as_str() {
            // Under systemd standard error is the journal.
            "default" | "systemd/journal" => "stderr".to_owned(),
            _ => output,
        };
        Some(self.list("log-outputs")?.into_iter().map(named).collect())
    }

    fn text(&self, name: &str) -> Option<String> {
        debug_assert!(find(name).is_some_and(|flag| flag.fate == Fate::Honoured), "{name} is not a flag to honour");
        self.values.get(name).map(|given| given.value.clone()).filter(|value| !value.is_empty())
    }

    fn list(&self, name: &str) -> Option<Vec<String>> {
        let items: Vec<String> =
            self.text(name)?.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect();
        (!items.is_empty()).then_some(items)
    }

    fn truth(&self, name: &str) -> Option<bool> {
        parse_bool(&self.text(name)?)
    }

    fn number<T: TryFrom<i64>>(&mut self, name: &str) -> Option<T> {
        let number: i64 = self.text(name)?.parse().ok()?;
        let converted = T::try_from(number).ok();
        if converted.is_none() {
            self.problem(name, &format!("{number} is out of bounds"), "give a smaller number that is not negative");
        }
        converted
    }

    /// A duration; a bare number, which only the config file may have, counts nanoseconds.
    fn milliseconds(&mut self, name: &str) -> Option<u64> {
        let text = self.text(name)?;
        let nanoseconds = text.parse::<u64>().ok().map(Duration::from_nanos);
        let span = nanoseconds.or_else(|| duration::parse(&text).ok())?;
        u64::try_from(span.as_millis()).ok()
    }
}

/// Whether a URL is one that only this machine reaches.
fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
