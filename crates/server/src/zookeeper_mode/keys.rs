//! Every key of a zoo.cfg of ZooKeeper 3.4 to 3.9, and what becomes of it here: one row each. System properties of the
//! form `zookeeper.key` are the same keys, as with ZooKeeper.
//!
//! Three things can happen to a key, as to a flag of etcd (see [`crate::etcd_mode`]): it is honoured, it has no effect
//! and a line in the log says why that does no harm, or it is refused because ignoring it would do harm. Ignoring what
//! restricts clients does harm; ignoring what would let more of them in does not, and is told.
//!
//! ZooKeeper takes keys it does not know for system properties. Here they are refused, with the nearest known one:
//! a misspelt `maxClientCnxns` must not pass for a limit.
//!
//! To add one: a row here, in order, and, if it is honoured, a line in `translate`.

/// One key. A name that ends with a dot or an underscore stands for all keys that begin with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) fate: Fate,
}

use crate::fate::Fate::{self, Honoured, NoEffect};

const fn key(name: &'static str, fate: Fate) -> Key {
    Key { name, fate }
}

const fn refused(name: &'static str, harmless: &'static [&'static str], instead: &'static str) -> Key {
    Key { name, fate: Fate::Refused { harmless, instead } }
}

const NO_ADMIN: &str = "the admin commands are served over HTTP, and change nothing that would need a limit";
const NO_ADMIN_TLS: &str = "leave it out and give admin.serverAddress=127.0.0.1; admin commands have no TLS";
const NO_FORWARDING: &str = "addresses that others tell of a client are not believed";
const NO_JVM: &str = "there is no Java virtual machine";
const NO_LIMIT_NEEDED: &str = "what waits is bounded for every connection and for the whole node";
const NO_LOG_FILES: &str = "journal and snapshots are trimmed by size, as soon as they are not needed";
const NO_METRICS_PROVIDER: &str = "/metrics is for Prometheus always; --metrics-listen opens an address for it";
const NO_OBSERVERS: &str = "observers learn from the leader, as all others do";
const NO_POOLS: &str = "threads are set with --worker-threads";
const NO_QUORUM_SASL: &str =
    "let members show certificates instead: --peer-cert-file, --peer-key-file, --peer-trusted-ca-file";
const NO_KERBEROS: &str = "there is no Kerberos: clients come in by SASL with passwords, or with certificates";
const NO_SESSIONS_APART: &str = "all sessions are known to the whole cluster";
const ONE_KIND_OF_TLS: &str =
    "TLS 1.2 and 1.3 with suites that have forward secrecy; --tls-min-version and --cipher-suites narrow it";
const NO_REVOCATION_BY_JAVA: &str = "leave it out, and give the list of revoked certificates with --zookeeper-crl-file";
const NO_WATCH_TUNING: &str = "there is one way to keep watches";
const OWN_TIMING: &str = "members have timing of their own: --heartbeat-ms and --election-ms";
const OWN_TRANSPORT: &str = "members talk to each other in Tidelock's way";
const PEER_TLS: &str = "TLS between members is set with --peer-cert-file, --peer-key-file, --peer-trusted-ca-file";
const ALWAYS_COMPARED: &str = "members always compare their data";
const FALSE: &[&str] = &["", "false"];

/// All of them, by name.
pub(crate) const KEYS: &[Key] = &[
    key("4lw.commands.whitelist", Honoured),
    refused("DigestAuthenticationProvider.digestAlg", &["", "sha1"], "use SHA1; znodes hold such digests"),
    refused("DigestAuthenticationProvider.enabled", &["", "true"], "leave it out; the scheme digest is always there"),
    key("DigestAuthenticationProvider.superDigest", Honoured),
    key("IPAuthenticationProvider.usexforwardedfor", NoEffect(NO_FORWARDING)),
    refused("SASLAuthenticationProvider.superPassword", &[""], "leave it out; write user_super into the JAAS file"),
    key("X509AuthenticationProvider.superUser", Honoured),
    key("admin.", NoEffect(NO_ADMIN)),
    key("admin.commandURL", Honoured),
    key("admin.enableServer", Honoured),
    refused("admin.forceHttps", FALSE, NO_ADMIN_TLS),
    refused("admin.needClientAuth", FALSE, NO_ADMIN_TLS),
    key("admin.serverAddress", Honoured),
    key("admin.serverPort", Honoured),
    key("allowSaslFailedClients", NoEffect("whoever fails SASL is turned away")),
    refused("audit.enable", FALSE, "leave it out; no audit log is written yet"),
    key("audit.impl.class", NoEffect("no audit log is written yet")),
    key("authProvider.", Honoured),
    key("autopurge.", NoEffect(NO_LOG_FILES)),
    key("bitHashCacheSize", NoEffect(NO_WATCH_TUNING)),
    key("client.certReload", NoEffect("certificates are always read again when they change")),
    refused("client.portUnification", FALSE, "give clients with TLS a secureClientPort of their own"),
    key("clientPort", Honoured),
    key("clientPortAddress", Honoured),
    key("clientPortListenBacklog", NoEffect("the system's queue of new connections has its usual length")),
    key("clientTcpKeepAlive", NoEffect("sessions end connections that are silent")),
    key("closeSessionTxn.enabled", NoEffect("closing a session is always one entry of the log")),
    key("cnxTimeout", NoEffect(OWN_TIMING)),
    key("commitLogCount", NoEffect("entries are kept for members that were away with --catch-up-entries")),
    key("commitProcessor.", NoEffect(NO_POOLS)),
    key("connectToLearnerMasterLimit", NoEffect(NO_OBSERVERS)),
    key("connection_throttle_", NoEffect(NO_LIMIT_NEEDED)),
    key("controllerPort", NoEffect("there is no controller for tests")),
    key("dataDir", Honoured),
    key("dataLogDir", NoEffect("the journal is in dataDir, with everything else")),
    key("datadir.autocreate", Honoured),
    refused("db.autocreate", &["", "true"], "leave it out; a member whose data is gone is not let in as if it had it"),
    key("digest.enabled", NoEffect(ALWAYS_COMPARED)),
    key("dynamicConfigFile", Honoured),
    key("electionAlg", NoEffect("members elect by Raft")),
    key("electionPortBindRetry", NoEffect("there is no port for elections")),
    key("emulate353TTLNodes", NoEffect("there are no znodes of ZooKeeper 3.5.3")),
    key("enableEagerACLCheck", NoEffect("ACLs are judged where changes are carried out")),
    key("enforce.auth.enabled", Honoured),
    key("enforce.auth.schemes", Honoured),
    key("enforceQuota", Honoured),
    refused("ensembleAuthName", &[""], "leave it out; the name of an ensemble is not checked"),
    key("extendedTypesEnabled", NoEffect("znodes with a time to live are always served")),
    key("fastleader.", NoEffect("members elect by Raft")),
    key("fips-mode", NoEffect(ONE_KIND_OF_TLS)),
    key("flushDelay", NoEffect("entries that wait together are written together")),
    key("follower.", NoEffect(OWN_TRANSPORT)),
    key("forceSnapshotSync", NoEffect("a member gets a snapshot when it needs one")),
    key("forceSync", NoEffect("what is acknowledged is always on disk")),
    key("forward_learner_requests_to_commit_processor_disabled", NoEffect(OWN_TRANSPORT)),
    key("fsync.warningthresholdms", NoEffect("see the histogram of fdatasync at /metrics")),
    key("globalOutstandingLimit", NoEffect(NO_LIMIT_NEEDED)),
    refused("group.", &[], "leave it out; every member has one vote"),
    key("initLimit", NoEffect(OWN_TIMING)),
    key("intBufferStartingSizeBytes", NoEffect(NO_LIMIT_NEEDED)),
    key("java.", NoEffect(NO_JVM)),
    key("java.security.auth.login.config", Honoured),
    key("jute.maxbuffer", Honoured),
    key("jute.maxbuffer.extrasize", NoEffect("the limit is that of requests; nothing is added to it")),
    key("jvm.", NoEffect(NO_JVM)),
    key("kerberos.", NoEffect(NO_KERBEROS)),
    key("kinit", NoEffect(NO_KERBEROS)),
    key("largeRequestMaxBytes", NoEffect(NO_LIMIT_NEEDED)),
    key("largeRequestThreshold", NoEffect(NO_LIMIT_NEEDED)),
    key("leader.", NoEffect(OWN_TRANSPORT)),
    key("leaderConnectDelayDuringRetryMs", NoEffect(OWN_TIMING)),
    key("leaderServes", NoEffect("every member serves clients, the leader too")),
    key("learner.", NoEffect(OWN_TRANSPORT)),
    key("letAnySaslUserDoX", NoEffect("ACLs name the users they are for; `super` is any of them")),
    key("localSessionsEnabled", NoEffect(NO_SESSIONS_APART)),
    key("localSessionsUpgradingEnabled", NoEffect(NO_SESSIONS_APART)),
    key("maxBatchSize", NoEffect("entries that wait together are written together")),
    key("maxClientCnxns", Honoured),
    key("maxCnxns", NoEffect("connections are limited for each address (maxClientCnxns), not for all together")),
    key("maxGetChildrenResponseCacheSize", NoEffect("replies are not cached")),
    key("maxInProcessingDeadWatchers", NoEffect(NO_WATCH_TUNING)),
    key("maxResponseCacheSize", NoEffect("replies are not cached")),
    key("maxSessionTimeout", Honoured),
    key("maxWriteQueuePollTime", NoEffect("entries that wait together are written together")),
    key("messageTracker.", NoEffect("messages between members are not recorded")),
    key("metricsProvider.", NoEffect(NO_METRICS_PROVIDER)),
    key("minSessionTimeout", Honoured),
    key("multiAddress.", NoEffect("servers have one address each")),
    key("netty.", NoEffect(NO_POOLS)),
    key("nio.", NoEffect(NO_POOLS)),
    key("observer.", NoEffect(NO_OBSERVERS)),
    key("observerMaster.", NoEffect(NO_OBSERVERS)),
    key("observerMasterPort", NoEffect(NO_OBSERVERS)),
    refused("oraclePath", &[""], "leave it out; nothing but a majority of members decides"),
    key("pathStats.", NoEffect("requests are not counted by path")),
    key("peerType", Honoured),
    refused("portUnification", FALSE, PEER_TLS),
    key("preAllocSize", NoEffect(NO_LOG_FILES)),
    key("quorum.auth.", NoEffect("members do not use SASL with each other")),
    refused("quorum.auth.enableSasl", FALSE, NO_QUORUM_SASL),
    refused("quorum.auth.learnerRequireSasl", FALSE, NO_QUORUM_SASL),
    refused("quorum.auth.serverRequireSasl", FALSE, NO_QUORUM_SASL),
    key("quorum.cnxn.threads.size", NoEffect(NO_POOLS)),
    key("quorumCnxnTimeoutMs", NoEffect(OWN_TIMING)),
    key("quorumListenOnAllIPs", Honoured),
    key("readonlymode", NoEffect("the key is readonlymode.enabled")),
    key("readonlymode.enabled", Honoured),
    key("reconfigEnabled", Honoured),
    key("request_", NoEffect(NO_LIMIT_NEEDED)),
    key("request_throttler.", NoEffect(NO_LIMIT_NEEDED)),
    key("requireClientAuthScheme", Honoured),
    key("requireKerberosConfig", NoEffect(NO_KERBEROS)),
    key("sasl.", NoEffect("the service is zookeeper, and the mechanism DIGEST-MD5")),
    refused("sasl.serverconfig", &["", "server"], "leave it out; name the section of the JAAS file Server"),
    key("secureClientPort", Honoured),
    key("secureClientPortAddress", Honoured),
    key("security.auth_to_local", NoEffect(NO_KERBEROS)),
    key("serializeLastProcessedZxid.enabled", NoEffect("a snapshot always says how far it goes")),
    key("server.", Honoured),
    key("serverCnxnFactory", NoEffect("connections are served in one way")),
    key("sessionRequireClientSASLAuth", Honoured),
    refused("skipACL", &["", "no"], "leave it out; come in as the one of superDigest to do everything"),
    key("snapCount", NoEffect("snapshots are taken by how much the journal grew, beside everything else")),
    key("snapSizeLimitInKb", NoEffect("snapshots are taken by how much the journal grew, beside everything else")),
    key("snapshot.", NoEffect("ZooKeeper's snapshots are neither read nor written")),
    key("snapshotSizeFactor", NoEffect("a member gets a snapshot when it needs one")),
    key("ssl.", NoEffect(ONE_KIND_OF_TLS)),
    refused("ssl.authProvider", &["", "x509"], "leave it out; clients are known by their certificates' subjects"),
    key("ssl.clientAuth", Honoured),
    refused(
        "ssl.clientHostnameVerification",
        FALSE,
        "leave it out; a client's host is not compared with its certificate",
    ),
    refused("ssl.context.supplier.class", &[""], "leave it out; there is no Java here"),
    refused("ssl.crl", FALSE, NO_REVOCATION_BY_JAVA),
    key("ssl.hostnameVerification", NoEffect("it is for those who dial: clients check the name of this server")),
    key("ssl.keyStore.location", Honoured),
    key("ssl.keyStore.password", NoEffect("PEM files are read, and keys in them have no passphrase")),
    key("ssl.keyStore.passwordPath", NoEffect("PEM files are read, and keys in them have no passphrase")),
    key("ssl.keyStore.type", Honoured),
    refused("ssl.ocsp", FALSE, NO_REVOCATION_BY_JAVA),
    key("ssl.quorum.", NoEffect(PEER_TLS)),
    key("ssl.trustStore.location", Honoured),
    key("ssl.trustStore.password", NoEffect("PEM files are read, which have none")),
    key("ssl.trustStore.passwordPath", NoEffect("PEM files are read, which have none")),
    key("ssl.trustStore.type", Honoured),
    refused("ssl.x509.", &["", "subject"], "leave it out; clients are known by their certificates' subjects"),
    refused("sslQuorum", FALSE, PEER_TLS),
    key("sslQuorumReloadCertFiles", NoEffect("certificates are always read again when they change")),
    key("standaloneEnabled", NoEffect("a cluster of one may grow at any time")),
    key("superDigest", Honoured),
    key("superUser", Honoured),
    key("syncEnabled", NoEffect(NO_OBSERVERS)),
    key("syncLimit", NoEffect(OWN_TIMING)),
    key("tcpKeepAlive", NoEffect(OWN_TRANSPORT)),
    key("throttled_op_wait_time", NoEffect(NO_LIMIT_NEEDED)),
    key("tickTime", Honoured),
    key("tidelock.replayPersistentWatches", Honoured),
    key("traceFile", NoEffect("requests are not recorded")),
    key("txnLogSizeLimitInKb", NoEffect(NO_LOG_FILES)),
    key("watchManagerName", NoEffect(NO_WATCH_TUNING)),
    key("watcherCleanIntervalInSeconds", NoEffect(NO_WATCH_TUNING)),
    key("watcherCleanThreadsNum", NoEffect(NO_WATCH_TUNING)),
    key("watcherCleanThreshold", NoEffect(NO_WATCH_TUNING)),
    refused("weight.", &[], "leave it out; every member has one vote"),
];

/// The row for a key, without `zookeeper.` before it: its own if it has one, else the longest that it begins with.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    let begins = |key: &&Key| key.name.ends_with(['.', '_']) && name.starts_with(key.name);
    let own = KEYS.iter().find(|key| key.name == name);
    own.or_else(|| KEYS.iter().filter(begins).max_by_key(|key| key.name.len()))
}

/// The key whose name is nearest to `name`, if one is near enough to be meant.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    crate::etcd_mode::nearest_of(name, KEYS.iter().map(|key| key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that comes twice says two things about one key.
    #[test]
    fn the_table_is_sorted_and_names_every_key_once() {
        for pair in KEYS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} and {}", pair[0].name, pair[1].name);
        }
    }

    /// TLS between members is refused or not by its own row, whatever the rows for all keys of a kind say.
    #[test]
    fn the_longest_row_counts() {
        let name = |name| find(name).map(|key| key.name);
        assert_eq!(name("ssl.quorum.keyStore.location"), Some("ssl.quorum."));
        assert_eq!(name("ssl.protocol"), Some("ssl."));
        assert_eq!(name("quorum.auth.enableSasl"), Some("quorum.auth.enableSasl"));
        assert_eq!(name("server.12"), Some("server."));
        assert_eq!((name("servers"), name("tick"), name("")), (None, None, None));
    }

    /// The hint must help with a typing mistake and must not guess at random.
    #[test]
    fn a_mistyped_key_is_told_the_name_that_was_meant() {
        assert_eq!(nearest("maxClientCnxn"), Some("maxClientCnxns"));
        assert_eq!(nearest("ticktime"), Some("tickTime"));
        assert_eq!(nearest("xyzzy"), None);
    }
}
