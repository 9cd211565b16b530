//! Reaching a node's etcd port, and saying in our words why something there did not work.
//!
//! Endpoints are tried in order until one can be connected to. A request that was sent is never sent
//! again to another: a write with no answer may have happened.
//!
//! How a connection is made, and with which certificates, is in [`super::dialing`].

use std::time::Duration;

use bytes::Bytes;
use tidelock_etcd_api::etcdserverpb::AuthenticateRequest;
use tidelock_etcd_api::etcdserverpb::auth_client::AuthClient;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tonic::Code;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use super::dialing::{Dialer, credentials, resolve};
use crate::cli::{ClientArgs, KeysArgs};
use crate::failure::Failure;

/// How long to wait for one endpoint before the next is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer taken; a range of many keys may be far above gRPC's usual 4 MiB.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// A silent peer of a watch or keep-alive is asked this often whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection whose every request must be answered in time.
pub(crate) async fn connect(args: &ClientArgs) -> Result<Connection, Failure> {
    come_in(reach_in_time(args).await?, args).await
}

/// A connection for streams, which are silent as long as nothing happens.
pub(crate) async fn connect_for_streams(args: &ClientArgs) -> Result<Connection, Failure> {
    come_in(reach_first(args, None).await?, args).await
}

/// What whoever comes in gets for the password, for who brings connections of his own. Nothing without a user.
pub(crate) async fn token(args: &ClientArgs) -> Result<Option<String>, Failure> {
    if credentials(&args.connection)?.is_none() {
        return Ok(None);
    }
    authenticate(&reach_in_time(args).await?, args).await
}

async fn reach_in_time(args: &ClientArgs) -> Result<Channel, Failure> {
    reach_first(args, Some(Duration::from_millis(args.connection.timeout_ms))).await
}

async fn reach_first(args: &ClientArgs, timeout: Option<Duration>) -> Result<Channel, Failure> {
    let mut reasons = Vec::new();
    for url in &args.endpoints {
        let (endpoint, tls) = parse_endpoint(url, args)?;
        let endpoint = match timeout {
            Some(timeout) => endpoint.timeout(timeout),
            None => endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_INTERVAL),
        };
        let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
        let connected = match tls {
            Some(dialer) => endpoint.connect_with_connector(dialer).await,
            None => endpoint.connect().await,
        };
        match connected {
            Ok(channel) => return Ok(channel),
            Err(error) => reasons.push(format!("{url}: {}", root_cause(&error))),
        }
    }
    Err(Failure::new(format!("no node can be reached ({})", reasons.join("; "))).hint(
        "start one with `tidelock`, or name running ones with --endpoints or TIDELOCK_ENDPOINTS (port 2379 by default); \
         nodes with TLS need https:// and --cacert",
    ))
}

/// Everything after this carries the token.
async fn come_in(channel: Channel, args: &ClientArgs) -> Result<Connection, Failure> {
    let token = authenticate(&channel, args).await?.map(|token| token.parse()).transpose();
    let token = token.map_err(|_| Failure::new("the node gave a token that cannot be used"))?;
    Ok(Connection::new(channel, Credential(token)))
}

/// Shows the password once, if there is one to show.
async fn authenticate(channel: &Channel, args: &ClientArgs) -> Result<Option<String>, Failure> {
    let Some((name, password)) = credentials(&args.connection)? else { return Ok(None) };
    let request = AuthenticateRequest { name, password };
    let answer = AuthClient::new(channel.clone()).authenticate(request).await;
    Ok(Some(answer.map_err(|status| read_failure(&status))?.into_inner().token))
}

/// A connection that says who uses it.
pub(crate) type Connection = InterceptedService<Channel, Credential>;

/// The token of whoever came in.
#[derive(Clone)]
pub(crate) struct Credential(Option<MetadataValue<Ascii>>);

impl Interceptor for Credential {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

/// Where to go, and with what; `None`: without TLS.
fn parse_endpoint(url: &str, args: &ClientArgs) -> Result<(Endpoint, Option<Dialer>), Failure> {
    let (url, dialer) = resolve(url, &args.connection)?;
    let wrong =
        |error: String| Failure::usage(format!("{url:?} is not an endpoint: {error}")).hint("use http://host:2379");
    let origin: Uri = Uri::try_from(url.as_str()).map_err(|error| wrong(error.to_string()))?;
    // The channel refuses https for which it has no TLS itself, so it is told where to go as if there were none.
    let place = if dialer.is_some() { url.replacen("https", "http", 1) } else { url.clone() };
    let endpoint = Endpoint::from_shared(place).map_err(|error| wrong(error.to_string()))?.origin(origin);
    Ok((endpoint, dialer))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Client of the key-value service.
pub(crate) async fn kv(args: &ClientArgs) -> Result<KvClient<Connection>, Failure> {
    Ok(KvClient::new(connect(args).await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Client of the lease service.
pub(crate) async fn leases(args: &ClientArgs) -> Result<LeaseClient<Connection>, Failure> {
    Ok(LeaseClient::new(connect(args).await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Client of the watch service.
pub(crate) async fn watches(args: &ClientArgs) -> Result<WatchClient<Connection>, Failure> {
    Ok(WatchClient::new(connect_for_streams(args).await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Why a read failed. Reads may always be retried.
pub(crate) fn read_failure(status: &tonic::Status) -> Failure {
    let failure = Failure::new(text_of(status));
    match status.code() {
        Code::Unavailable => failure.hint("check `tidelock status`; a majority of the members must run; then retry"),
        Code::DeadlineExceeded | Code::Cancelled => {
            failure.hint("retry, with a longer --timeout-ms if the cluster is busy; --local reads without a majority")
        }
        Code::ResourceExhausted => failure.hint("wait a moment and retry, or ask for less with --limit"),
        Code::PermissionDenied | Code::Unauthenticated => failure.hint("come in as a user who may, with --user"),
        Code::InvalidArgument if status.message().ends_with("user name is empty") => {
            failure.hint("the cluster asks who you are: come in with --user NAME:PASSWORD")
        }
        Code::OutOfRange => failure.hint("ask for a revision that is still held, or leave --rev out"),
        Code::Unimplemented => failure.hint("check that --endpoints names an etcd port (2379 by default)"),
        _ => failure,
    }
}

/// Why a write failed. Where it may have happened all the same, that is said.
pub(crate) fn write_failure(status: &tonic::Status) -> Failure {
    let failure = Failure::new(text_of(status));
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            failure.hint("the write may or may not have happened: read before you retry; see `tidelock status`")
        }
        Code::ResourceExhausted => {
            failure.hint("nothing was written; wait and retry, send less, or free space if the disk is full")
        }
        Code::PermissionDenied | Code::Unauthenticated => failure.hint("come in as a user who may, with --user"),
        Code::InvalidArgument if status.message().ends_with("user name is empty") => {
            failure.hint("the cluster asks who you are: come in with --user NAME:PASSWORD")
        }
        Code::NotFound => failure.hint("the lease has ended; grant a new one with `tidelock lease grant SECONDS`"),
        Code::Unimplemented => failure.hint("check that --endpoints names an etcd port (2379 by default)"),
        _ => failure,
    }
}

fn text_of(status: &tonic::Status) -> String {
    use std::error::Error as _;
    let text = if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    match status.source() {
        // The connection itself failed; with TLS, a node that refuses our certificate says so only now.
        Some(cause) => format!("{text}: {}", root_cause(cause)),
        None => text,
    }
}

/// Key and range end on etcd's wire: an empty end is the key alone, a zero byte is "everything from
/// the key on".
pub(crate) fn wire_range(keys: &KeysArgs) -> Result<(Bytes, Bytes), Failure> {
    let key = keys.key.as_bytes();
    if key.is_empty() && !keys.prefix && !keys.from_key {
        return Err(Failure::usage("the key is empty").hint("give a key, or add --prefix to mean all keys"));
    }
    Ok(if keys.prefix {
        prefix_range(key)
    } else if keys.from_key {
        (not_empty(key), Bytes::from_static(b"\0"))
    } else {
        let end = keys.range_end.as_ref().map_or_else(Bytes::new, |end| Bytes::copy_from_slice(end.as_bytes()));
        (Bytes::copy_from_slice(key), end)
    })
}

/// The range of all keys that begin with `prefix`.
pub(crate) fn prefix_range(prefix: &[u8]) -> (Bytes, Bytes) {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (not_empty(prefix), end.into());
        }
    }
    // Nothing sorts after a prefix of nothing but 0xff bytes except what begins with it.
    (not_empty(prefix), Bytes::from_static(b"\0"))
}

/// etcd's wire has no empty key; a zero byte sorts before every other.
fn not_empty(key: &[u8]) -> Bytes {
    if key.is_empty() { Bytes::from_static(b"\0") } else { Bytes::copy_from_slice(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `del --prefix` with a range one key too wide deletes somebody else's data.
    #[test]
    fn a_prefix_covers_what_begins_with_it_and_no_more() {
        assert_eq!(prefix_range(b"ab"), (Bytes::from_static(b"ab"), Bytes::from_static(b"ac")));
        assert_eq!(prefix_range(b"a\xff"), (Bytes::from_static(b"a\xff"), Bytes::from_static(b"b")));
        assert_eq!(prefix_range(b"\xff"), (Bytes::from_static(b"\xff"), Bytes::from_static(b"\0")));
        assert_eq!(prefix_range(b""), (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")));
    }

    /// An empty key without --prefix is a forgotten shell variable, not a wish to delete everything.
    #[test]
    fn an_empty_key_is_refused_unless_all_keys_are_meant() {
        let keys = |key: &str, prefix| KeysArgs { key: key.into(), range_end: None, prefix, from_key: false };
        assert!(wire_range(&keys("", false)).is_err());
        assert!(wire_range(&keys("", true)).is_ok());
        assert_eq!(wire_range(&keys("k", false)).unwrap(), (Bytes::from_static(b"k"), Bytes::new()));
    }
}
