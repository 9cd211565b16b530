//! Every flag of etcd 3.4 to 3.7, and what becomes of it here: one row each, so that a flag cannot be
//! forgotten in one of the places that read it. Variables and keys of the config file are the same names.
//!
//! Three things can happen to a flag, and nothing else:
//! - it is honoured: [`super::translate`] turns it into a setting of ours;
//! - it has no effect, and a line in the log says at start why that does no harm;
//! - it is refused, because ignoring it would do harm, and the message says what to do instead.
//!
//! To add one: a row here, and, if it is honoured, a line in `translate` (a test finds one that is missing).

/// What a value must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `--x`, `--x=true`; never takes the next word.
    Bool,
    /// Anything.
    Text,
    /// A whole number; some may be negative.
    Number,
    /// A duration as Go writes it: `5s`, `1h30m`; in the config file also a number of nanoseconds.
    Duration,
}

/// One flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) fate: Fate,
}

use crate::fate::Fate::{self, Honoured, NoEffect};
use Kind::{Bool, Duration, Number, Text};

const fn flag(name: &'static str, kind: Kind, fate: Fate) -> Flag {
    Flag { name, kind, fate }
}

const fn refused(name: &'static str, kind: Kind, harmless: &'static [&'static str], instead: &'static str) -> Flag {
    Flag { name, kind, fate: Fate::Refused { harmless, instead } }
}

const NO_BOLT: &str = "there is no bbolt file: data is held in memory and written to a journal";
const NO_WAL_FILES: &str = "journal and snapshot files are trimmed by size, as soon as they are not needed";
const SWEEPS: &str = "what was compacted is freed in small steps, without pauses";
const ALWAYS_COMPARED: &str = "members always compare their data";
const NO_V2: &str = "there is no v2 store";
const LEASES_KEPT: &str = "a new leader gives every lease its full time anew; none ends early";
const FIXED_SOCKETS: &str = "ports are opened so that a restart can take them over at once";
const NO_TRACING: &str = "no traces are sent";
const NO_SLOW_LOG: &str = "slow requests are not logged; see the histograms at /metrics";
const NOT_DISCOVERED: &str = "list all members with --initial-cluster";
const NO_PROXY: &str = "run a member, or put a TCP load balancer before the members; clients balance by themselves";
const ENABLED_V2: &str = "use the v3 API; the v2 API was removed from etcd as well";
const NO_ROTATION: &str =
    "send the log to standard error and let journald, logrotate or the container runtime rotate it";
const FALSE: &[&str] = &["false"];
const EMPTY: &[&str] = &[""];

/// All of them, by name.
pub(crate) const FLAGS: &[Flag] = &[
    flag("advertise-client-urls", Text, Honoured),
    flag("auth-token", Text, Honoured),
    flag("auth-token-ttl", Number, Honoured),
    flag("auto-compaction-mode", Text, Honoured),
    flag("auto-compaction-retention", Text, Honoured),
    flag("auto-tls", Bool, Honoured),
    flag("backend-batch-interval", Duration, NoEffect(NO_BOLT)),
    flag("backend-batch-limit", Number, NoEffect(NO_BOLT)),
    flag("backend-bbolt-freelist-type", Text, NoEffect(NO_BOLT)),
    flag("bcrypt-cost", Number, Honoured),
    flag("bootstrap-defrag-threshold-megabytes", Number, NoEffect("there is nothing to defragment")),
    flag("cert-file", Text, Honoured),
    flag("cipher-suites", Text, Honoured),
    flag("client-cert-allowed-hostname", Text, Honoured),
    flag("client-cert-auth", Bool, Honoured),
    flag("client-cert-file", Text, NoEffect("the JSON gateway is in the same process and needs no certificate")),
    flag("client-crl-file", Text, Honoured),
    flag("client-key-file", Text, NoEffect("the JSON gateway is in the same process and needs no certificate")),
    flag("compact-hash-check-time", Duration, NoEffect(ALWAYS_COMPARED)),
    flag("compaction-batch-limit", Number, NoEffect(SWEEPS)),
    flag("compaction-sleep-interval", Duration, NoEffect(SWEEPS)),
    flag("config-file", Text, Honoured),
    flag("corrupt-check-time", Duration, NoEffect(ALWAYS_COMPARED)),
    flag("cors", Text, NoEffect("web pages of other origins are always refused")),
    flag("data-dir", Text, Honoured),
    flag("debug", Bool, Honoured),
    refused("discovery", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-cacert", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-cert", Text, EMPTY, NOT_DISCOVERED),
    flag("discovery-dial-timeout", Duration, NoEffect("nothing is discovered")),
    refused("discovery-endpoints", Text, EMPTY, NOT_DISCOVERED),
    flag("discovery-fallback", Text, NoEffect("nothing is discovered")),
    flag("discovery-insecure-skip-tls-verify", Bool, NoEffect("nothing is discovered")),
    flag("discovery-insecure-transport", Bool, NoEffect("nothing is discovered")),
    flag("discovery-keepalive-time", Duration, NoEffect("nothing is discovered")),
    flag("discovery-keepalive-timeout", Duration, NoEffect("nothing is discovered")),
    refused("discovery-key", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-password", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-proxy", Text, EMPTY, NOT_DISCOVERED),
    flag("discovery-request-timeout", Duration, NoEffect("nothing is discovered")),
    refused("discovery-srv", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-srv-name", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-token", Text, EMPTY, NOT_DISCOVERED),
    refused("discovery-user", Text, EMPTY, NOT_DISCOVERED),
    flag("distributed-tracing-address", Text, NoEffect(NO_TRACING)),
    flag("distributed-tracing-instance-id", Text, NoEffect(NO_TRACING)),
    flag("distributed-tracing-sampling-rate", Number, NoEffect(NO_TRACING)),
    flag("distributed-tracing-service-name", Text, NoEffect(NO_TRACING)),
    flag("downgrade-check-time", Duration, NoEffect("no downgrade is ever under way")),
    flag("election-timeout", Number, Honoured),
    flag("enable-distributed-tracing", Bool, NoEffect(NO_TRACING)),
    flag("enable-grpc-gateway", Bool, NoEffect("the JSON gateway is always served")),
    refused("enable-log-rotation", Bool, FALSE, NO_ROTATION),
    flag("enable-pprof", Bool, NoEffect("there is no Go runtime to profile; use perf")),
    refused("enable-v2", Bool, FALSE, ENABLED_V2),
    flag("experimental-backend-bbolt-freelist-type", Text, NoEffect(NO_BOLT)),
    flag("experimental-bootstrap-defrag-threshold-megabytes", Number, NoEffect("there is nothing to defragment")),
    flag("experimental-compact-hash-check-enabled", Bool, NoEffect(ALWAYS_COMPARED)),
    flag("experimental-compact-hash-check-time", Duration, NoEffect(ALWAYS_COMPARED)),
    flag("experimental-compaction-batch-limit", Number, NoEffect(SWEEPS)),
    flag("experimental-compaction-sleep-interval", Duration, NoEffect(SWEEPS)),
    flag("experimental-corrupt-check-time", Duration, NoEffect(ALWAYS_COMPARED)),
    flag("experimental-distributed-tracing-address", Text, NoEffect(NO_TRACING)),
    flag("experimental-distributed-tracing-instance-id", Text, NoEffect(NO_TRACING)),
    flag("experimental-distributed-tracing-sampling-rate", Number, NoEffect(NO_TRACING)),
    flag("experimental-distributed-tracing-service-name", Text, NoEffect(NO_TRACING)),
    flag("experimental-downgrade-check-time", Duration, NoEffect("no downgrade is ever under way")),
    flag("experimental-enable-distributed-tracing", Bool, NoEffect(NO_TRACING)),
    flag("experimental-enable-lease-checkpoint", Bool, NoEffect(LEASES_KEPT)),
    flag("experimental-enable-lease-checkpoint-persist", Bool, NoEffect(LEASES_KEPT)),
    refused("experimental-enable-v2v3", Text, EMPTY, ENABLED_V2),
    flag("experimental-initial-corrupt-check", Bool, NoEffect("the journal is checked at every start")),
    flag("experimental-max-learners", Number, Honoured),
    flag("experimental-memory-mlock", Bool, NoEffect("there is no mapped file to keep in memory")),
    flag(
        "experimental-peer-skip-client-san-verification",
        Bool,
        NoEffect("the SAN of a peer's certificate is checked only when peer-cert-allowed-hostname asks for it"),
    ),
    flag(
        "experimental-set-member-localaddr",
        Bool,
        NoEffect("the system chooses the address that peers are dialed from"),
    ),
    flag("experimental-snapshot-catchup-entries", Number, Honoured),
    flag("experimental-stop-grpc-service-on-defrag", Bool, NoEffect("there is nothing to defragment")),
    flag("experimental-txn-mode-write-with-shared-buffer", Bool, NoEffect(NO_BOLT)),
    flag("experimental-warning-apply-duration", Duration, NoEffect(NO_SLOW_LOG)),
    flag("experimental-warning-unary-request-duration", Duration, NoEffect(NO_SLOW_LOG)),
    flag("experimental-watch-progress-notify-interval", Duration, Honoured),
    flag("feature-gates", Text, Honoured),
    refused(
        "force-new-cluster",
        Bool,
        FALSE,
        "start the members that are left, or restore a backup into an empty --data-dir; a majority is not given up silently",
    ),
    flag("grpc-keepalive-interval", Duration, Honoured),
    flag("grpc-keepalive-min-time", Duration, NoEffect("clients that ping often are not turned away")),
    flag("grpc-keepalive-timeout", Duration, Honoured),
    flag("heartbeat-interval", Number, Honoured),
    refused(
        "host-whitelist",
        Text,
        &["", "*"],
        "leave it out: requests are not checked by host name. Serve clients over TLS (--cert-file, --key-file), or on loopback",
    ),
    flag("initial-advertise-peer-urls", Text, Honoured),
    flag("initial-cluster", Text, Honoured),
    flag("initial-cluster-state", Text, Honoured),
    flag("initial-cluster-token", Text, Honoured),
    flag("initial-election-tick-advance", Bool, NoEffect("it only shortens the first election of etcd")),
    flag("key-file", Text, Honoured),
    flag("listen-client-http-urls", Text, Honoured),
    flag("listen-client-urls", Text, Honoured),
    flag("listen-metrics-urls", Text, Honoured),
    flag("listen-peer-urls", Text, Honoured),
    flag("log-format", Text, Honoured),
    flag("log-level", Text, Honoured),
    flag("log-outputs", Text, Honoured),
    flag("log-package-levels", Text, NoEffect("the packages of etcd do not exist here; --log-level counts")),
    flag("log-rotation-config-json", Text, NoEffect("log files are not rotated")),
    flag("logger", Text, NoEffect("there is one logger; --log-format chooses between text and JSON")),
    flag("max-concurrent-streams", Number, Honoured),
    flag("max-learners", Number, Honoured),
    flag("max-request-bytes", Number, Honoured),
    flag("max-snapshots", Number, NoEffect(NO_WAL_FILES)),
    flag("max-txn-ops", Number, Honoured),
    flag("max-wals", Number, NoEffect(NO_WAL_FILES)),
    flag("memory-mlock", Bool, NoEffect("there is no mapped file to keep in memory")),
    flag("metrics", Text, Honoured),
    flag("name", Text, Honoured),
    flag("peer-auto-tls", Bool, Honoured),
    flag("peer-cert-allowed-cn", Text, Honoured),
    flag("peer-cert-allowed-hostname", Text, Honoured),
    flag("peer-cert-file", Text, Honoured),
    flag("peer-client-cert-auth", Bool, Honoured),
    refused(
        "peer-client-cert-file",
        Text,
        EMPTY,
        "leave it out: --peer-cert-file is shown to the peers that are dialed, too",
    ),
    refused("peer-client-key-file", Text, EMPTY, "leave it out: --peer-key-file serves both ways"),
    flag("peer-crl-file", Text, Honoured),
    flag("peer-key-file", Text, Honoured),
    flag(
        "peer-skip-client-san-verification",
        Bool,
        NoEffect("the SAN of a peer's certificate is checked only when peer-cert-allowed-hostname asks for it"),
    ),
    flag("peer-trusted-ca-file", Text, Honoured),
    flag("pre-vote", Bool, NoEffect("elections always begin with a pre-vote")),
    refused("proxy", Text, &["", "off"], NO_PROXY),
    flag("proxy-dial-timeout", Number, NoEffect("there is no proxy mode")),
    flag("proxy-failure-wait", Number, NoEffect("there is no proxy mode")),
    flag("proxy-read-timeout", Number, NoEffect("there is no proxy mode")),
    flag("proxy-refresh-interval", Number, NoEffect("there is no proxy mode")),
    flag("proxy-write-timeout", Number, NoEffect("there is no proxy mode")),
    flag("quota-backend-bytes", Number, Honoured),
    flag("raft-read-timeout", Duration, NoEffect("silent peers are noticed within five seconds")),
    flag("raft-write-timeout", Duration, NoEffect("silent peers are noticed within five seconds")),
    flag("self-signed-cert-validity", Number, NoEffect("generated certificates are made anew at every start")),
    flag("snapshot-catchup-entries", Number, Honoured),
    flag(
        "snapshot-count",
        Number,
        NoEffect("snapshots are taken by how much the journal grew, beside everything else"),
    ),
    flag("socket-reuse-address", Bool, NoEffect(FIXED_SOCKETS)),
    flag("socket-reuse-port", Bool, NoEffect(FIXED_SOCKETS)),
    flag("strict-reconfig-check", Bool, NoEffect("changes of members that would lose the majority are always refused")),
    flag("tls-max-version", Text, Honoured),
    flag("tls-min-version", Text, Honoured),
    flag("trusted-ca-file", Text, Honoured),
    flag("unsafe-no-fsync", Bool, NoEffect("what is acknowledged is always on disk")),
    flag("v2-deprecation", Text, NoEffect(NO_V2)),
    flag("wal-dir", Text, NoEffect("the journal is in --data-dir, with everything else")),
    flag("warning-apply-duration", Duration, NoEffect(NO_SLOW_LOG)),
    flag("warning-unary-request-duration", Duration, NoEffect(NO_SLOW_LOG)),
    flag("watch-progress-notify-interval", Duration, Honoured),
];

/// The flag of that name.
pub(crate) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.binary_search_by(|flag| flag.name.cmp(name)).ok().map(|at| &FLAGS[at])
}

/// The flag whose name is nearest to `name`, if one is near enough to be meant.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    nearest_of(name, FLAGS.iter().map(|flag| flag.name))
}

/// The one of `names` that is nearest to `name`, if one is near enough to be meant.
pub(crate) fn nearest_of(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let (distance, nearest) = names.map(|known| (distance(known, name), known)).min()?;
    (distance <= (name.len() / 3).max(1)).then_some(nearest)
}

/// How many letters must be added, dropped or changed to make one of the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<u8> = to.bytes().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// Feature gates of etcd 3.6 and 3.7, and why none of them changes anything here.
pub(crate) const FEATURE_GATES: &[(&str, &str)] = &[
    ("AllAlpha", "there are no features in alpha"),
    ("AllBeta", "there are no features in beta"),
    ("CompactHashCheck", ALWAYS_COMPARED),
    ("FastLeaseKeepAlive", "keepalives never wait for the log"),
    ("InitialCorruptCheck", "the journal is checked at every start"),
    ("LeaseCheckpoint", LEASES_KEPT),
    ("LeaseCheckpointPersist", LEASES_KEPT),
    ("PriorityRequest", "keepalives and peers have lanes of their own"),
    ("SetMemberLocalAddr", "the system chooses the address that peers are dialed from"),
    ("StopGRPCServiceOnDefrag", "there is nothing to defragment"),
    ("TxnModeWriteWithSharedBuffer", NO_BOLT),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Looking up is by halves; a row out of place could not be found.
    #[test]
    fn the_table_is_sorted_and_names_every_flag_once() {
        assert!(FLAGS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    /// The hint must help with a typing mistake and must not guess at random.
    #[test]
    fn a_mistyped_flag_is_told_the_name_that_was_meant() {
        assert_eq!(nearest("listen-client-url"), Some("listen-client-urls"));
        assert_eq!(nearest("quota-backend-byte"), Some("quota-backend-bytes"));
        assert_eq!(nearest("initial-custer"), Some("initial-cluster"));
        assert_eq!(nearest("xyzzy"), None);
        assert_eq!((distance("abc", "abc"), distance("abc", "axc"), distance("", "ab")), (0, 1, 2));
    }
}
