//! The checks of what belongs to running a node rather than to its addresses: quota, history, log, pings.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidelock_face_etcd::{BCRYPT_COST, JwtKeys, PROGRESS_INTERVAL_MIN, TOKEN_TTL, TokenKind};

use super::{Checks, Listen};
use crate::auto_compaction::Retention;
use crate::etcd_mode::duration;
use crate::history_bound::HistoryBound;
use crate::quota::Quota;
use crate::settings::Settings;

/// Most revisions that are kept unless told otherwise: of values of 256 bytes some 400 MB.
const MAX_HISTORY_REVISIONS: u64 = 1_000_000;
/// Most addresses for metrics alone.
const METRICS_LISTEN_MAX: usize = 16;
/// Most places log lines go to.
const LOG_OUTPUTS_MAX: usize = 8;

/// Where log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogOutput {
    Stderr,
    Stdout,
    File(PathBuf),
}

/// How clients are known again.
#[derive(Clone, Debug)]
pub(crate) struct Token(pub(crate) TokenKind);

/// Keys are compared by being the same, not by being equal.
impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        match (&self.0, &other.0) {
            (TokenKind::Simple { ttl }, TokenKind::Simple { ttl: other }) => ttl == other,
            (TokenKind::Jwt(keys), TokenKind::Jwt(other)) => Arc::ptr_eq(keys, other),
            _ => false,
        }
    }
}

impl Eq for Token {}

/// Everything about running a node that is checked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// Where `/metrics` and `/health` alone are served.
    pub(crate) metrics_listen: Vec<Listen>,
    /// Whether `/metrics` has histograms of every call.
    pub(crate) extensive_metrics: bool,
    pub(crate) log_outputs: Vec<LogOutput>,
    pub(crate) quota: Quota,
    /// `None`: history is kept until somebody compacts it.
    pub(crate) retention: Option<Retention>,
    /// `None`: however much history there is.
    pub(crate) history_bound: Option<HistoryBound>,
    pub(crate) ping_after: Duration,
    pub(crate) ping_timeout: Duration,
    pub(crate) progress_interval: Duration,
    pub(crate) max_streams_per_connection: u32,
    pub(crate) max_learners: usize,
    pub(crate) catch_up_entries: u64,
    pub(crate) token: Token,
    pub(crate) bcrypt_cost: u32,
}

/// Keys for `jwt,name=value,...`, as etcd writes it; the files are read here.
fn jwt(text: &str) -> Result<JwtKeys, String> {
    let mut words = text.split(',');
    if words.next() != Some("jwt") {
        return Err(format!("{text:?} is neither simple nor jwt"));
    }
    let (mut method, mut public, mut private, mut ttl) = ("", None, None, Duration::from_secs(300));
    let read = |file: &str| std::fs::read(file).map_err(|error| format!("cannot read {file}: {error}"));
    for word in words {
        match word.split_once('=') {
            Some(("sign-method", value)) => method = value,
            Some(("pub-key", file)) => public = Some(read(file)?),
            Some(("priv-key", file)) => private = Some(read(file)?),
            Some(("ttl", value)) => ttl = duration::parse(value)?,
            _ => return Err(format!("{word:?} is none of sign-method, pub-key, priv-key and ttl with a value")),
        }
    }
    JwtKeys::new(method, public.as_deref(), private.as_deref(), ttl)
}

impl Checks {
    pub(super) fn service(&mut self, settings: &Settings) -> Service {
        // A day, which is as good as never.
        const PING_MS_MAX: u64 = 24 * 3600 * 1000;
        let progress_min = u64::try_from(PROGRESS_INTERVAL_MIN.as_millis()).unwrap_or(u64::MAX);
        // 0 turns pings off, as with etcd: once a day comes to the same.
        let off_if_zero = |ms: Option<u64>| ms.map(|ms| if ms == 0 { PING_MS_MAX } else { ms });
        let ping_after = off_if_zero(settings.ping_after_ms);
        let ping_timeout = off_if_zero(settings.ping_timeout_ms);
        let streams = settings.max_streams_per_connection.unwrap_or(16_384);
        if streams == 0 {
            let fix = "give a number from 1 to 4294967295";
            self.problem("max-streams-per-connection", "0 is out of bounds", fix);
        }
        let quota = Quota::from_setting(settings.quota_bytes);
        let revisions_max = NonZeroU64::new(settings.max_history_revisions.unwrap_or(MAX_HISTORY_REVISIONS));
        Service {
            metrics_listen: self.metrics_listen(settings.metrics_listen.as_deref().unwrap_or_default()),
            extensive_metrics: self.metrics_detail(settings.metrics_detail.as_deref()),
            log_outputs: self.log_outputs(settings.log_outputs.as_deref().unwrap_or_default()),
            quota,
            retention: self.retention(settings),
            history_bound: revisions_max.map(|revisions_max| HistoryBound { revisions_max, quota }),
            ping_after: Duration::from_millis(self.within("ping-after-ms", ping_after, 7_200_000, 1_000, PING_MS_MAX)),
            ping_timeout: Duration::from_millis(self.within("ping-timeout-ms", ping_timeout, 20_000, 100, PING_MS_MAX)),
            progress_interval: Duration::from_millis(self.within(
                "progress-notify-ms",
                settings.progress_notify_ms,
                600_000,
                progress_min,
                PING_MS_MAX,
            )),
            max_streams_per_connection: streams,
            max_learners: self.count("max-learners", settings.max_learners, 1, 0..=64),
            catch_up_entries: self.within("catch-up-entries", settings.catch_up_entries, 20_000, 1, 100_000_000),
            token: Token(self.token(settings)),
            bcrypt_cost: self.bcrypt_cost(settings.bcrypt_cost),
        }
    }

    fn bcrypt_cost(&mut self, cost: Option<u32>) -> u32 {
        let cost = self.within("bcrypt-cost", cost.map(u64::from), u64::from(BCRYPT_COST), 4, 31);
        u32::try_from(cost).unwrap_or(BCRYPT_COST)
    }

    fn token(&mut self, settings: &Settings) -> TokenKind {
        const YEAR_S: u64 = 366 * 24 * 3600;
        let ttl = self.within("auth-token-ttl-s", settings.auth_token_ttl_s, TOKEN_TTL.as_secs(), 1, YEAR_S);
        let simple = TokenKind::Simple { ttl: Duration::from_secs(ttl) };
        match settings.auth_token.as_deref() {
            None | Some("simple") => simple,
            Some(text) => match jwt(text) {
                Ok(keys) => TokenKind::Jwt(Arc::new(keys)),
                Err(what) => {
                    let fix = "give simple, or jwt,pub-key=FILE,priv-key=FILE,sign-method=RS256,ttl=10m";
                    self.problem("auth-token", what, fix);
                    simple
                }
            },
        }
    }

    fn metrics_listen(&mut self, list: &[String]) -> Vec<Listen> {
        if list.len() > METRICS_LISTEN_MAX {
            let fix = format!("give at most {METRICS_LISTEN_MAX}");
            self.problem("metrics-listen", "lists too many addresses", fix);
        }
        list.iter().map(|text| self.listen("metrics-listen", Some(text), "127.0.0.1:2381")).collect()
    }

    fn metrics_detail(&mut self, detail: Option<&str>) -> bool {
        match detail {
            None | Some("basic") => false,
            Some("extensive") => true,
            Some(other) => {
                let what = format!("{other:?} is no detail that is known");
                self.problem("metrics-detail", what, "give basic or extensive");
                false
            }
        }
    }

    fn log_outputs(&mut self, list: &[String]) -> Vec<LogOutput> {
        if list.len() > LOG_OUTPUTS_MAX {
            self.problem("log-outputs", "lists too many places", format!("give at most {LOG_OUTPUTS_MAX}"));
        }
        let output = |text: &String| match text.as_str() {
            "stderr" | "/dev/stderr" => LogOutput::Stderr,
            "stdout" | "/dev/stdout" => LogOutput::Stdout,
            path => LogOutput::File(path.into()),
        };
        let outputs: Vec<LogOutput> = list.iter().filter(|text| !text.is_empty()).map(output).collect();
        if outputs.is_empty() { vec![LogOutput::Stderr] } else { outputs }
    }

    fn retention(&mut self, settings: &Settings) -> Option<Retention> {
        let (mode, retention) =
            (settings.auto_compaction_mode.as_deref(), settings.auto_compaction_retention.as_deref());
        Retention::parse(mode, retention).unwrap_or_else(|what| {
            let fix = "give periodic with hours (1) or a duration (30m), or revision with a number; 0 turns it off";
            self.problem("auto-compaction-retention", what, fix);
            None
        })
    }
}
