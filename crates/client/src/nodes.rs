//! The nodes of a cluster, and which of them is asked now.
//!
//! Any node will do: each leads what must go to the leader there. One that does not answer is left for the next; the
//! first node tried is drawn, so that many clients do not all begin with the same.

use std::sync::Mutex;
use std::time::Duration;

use tidelock_native_api::v1::native_client::NativeClient;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::dial::Dialer;
use crate::error::{Error, Failure};
use crate::options::Options;

/// How long to wait for a connection before another node is tried.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A silent node is asked this often whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Largest answer taken: a page of a thousand members with their data.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Most endpoints: a cluster has a handful of nodes.
const ENDPOINTS_MAX: usize = 64;

/// Says who calls, with every call.
#[derive(Clone)]
pub(crate) struct Credential(Option<MetadataValue<Ascii>>);

impl Interceptor for Credential {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// Calls to one node.
pub(crate) type Calls = NativeClient<InterceptedService<Channel, Credential>>;

/// A node that was chosen.
pub(crate) struct Chosen {
    /// How many were chosen before it: says which is left by [`Nodes::leave`].
    pub(crate) turn: u64,
    pub(crate) calls: Calls,
}

struct Current {
    turn: u64,
    channel: Option<Channel>,
}

/// One of the nodes.
struct Node {
    url: String,
    endpoint: Endpoint,
    /// Makes its connections; nobody does but the endpoint itself.
    dialer: Option<Dialer>,
}

impl Node {
    fn new(url: &str, options: &Options) -> Result<Node, Error> {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let dialer = options.dialer.clone().filter(|_| url.starts_with("https://"));
        let endpoint = endpoint(&url, options, dialer.is_some())?;
        Ok(Node { url, endpoint, dialer })
    }

    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        match &self.dialer {
            Some(dialer) => self.endpoint.connect_with_connector(dialer.clone()).await,
            None => self.endpoint.connect().await,
        }
    }

    fn connect_lazy(&self) -> Channel {
        match &self.dialer {
            Some(dialer) => self.endpoint.connect_with_connector_lazy(dialer.clone()),
            None => self.endpoint.connect_lazy(),
        }
    }
}

pub(crate) struct Nodes {
    nodes: Vec<Node>,
    first: usize,
    credential: Credential,
    current: Mutex<Current>,
}

impl Nodes {
    pub(crate) fn new(options: &Options, urls: &[String]) -> Result<Nodes, Error> {
        if urls.is_empty() || urls.len() > ENDPOINTS_MAX {
            return Err(Failure::BadOption(format!("1 to {ENDPOINTS_MAX} endpoints are needed")).into());
        }
        let nodes = urls.iter().map(|url| Node::new(url, options)).collect::<Result<Vec<_>, Error>>()?;
        let first = rand::random_range(0..nodes.len());
        let credential = Credential(options.credential()?);
        Ok(Nodes { nodes, first, credential, current: Mutex::new(Current { turn: 0, channel: None }) })
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The node that is asked now. Connected to when the first call is made.
    pub(crate) fn current(&self) -> Chosen {
        let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let turn = current.turn;
        let channel = current.channel.get_or_insert_with(|| self.node(turn).connect_lazy());
        let calls = NativeClient::with_interceptor(channel.clone(), self.credential.clone());
        Chosen { turn, calls: calls.max_decoding_message_size(ANSWER_BYTES_MAX) }
    }

    /// The node of that turn does not do: the next one from now on.
    pub(crate) fn leave(&self, turn: u64) {
        let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if current.turn == turn {
            *current = Current { turn: turn + 1, channel: None };
        }
    }

    /// Finds a node that can be connected to.
    pub(crate) async fn reach_any(&self) -> Result<(), Error> {
        let mut reasons = Vec::new();
        for _ in 0..self.nodes.len() {
            let turn = self.current().turn;
            match self.node(turn).connect().await {
                Ok(channel) => {
                    let mut current = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if current.turn == turn {
                        current.channel = Some(channel);
                    }
                    return Ok(());
                }
                Err(error) => reasons.push(format!("{}: {}", self.node(turn).url, root_cause(&error))),
            }
            self.leave(turn);
        }
        Err(Failure::Unreachable(reasons.join("; ")).into())
    }

    fn node(&self, turn: u64) -> &Node {
        let skipped = usize::try_from(turn % self.nodes.len() as u64).unwrap_or(0);
        &self.nodes[(self.first + skipped) % self.nodes.len()]
    }
}

fn endpoint(url: &str, options: &Options, is_dialed: bool) -> Result<Endpoint, Error> {
    let bad = |why: String| Error::Failed(Failure::BadOption(format!("{url:?} is not an endpoint: {why}")));
    let is_tls = url.starts_with("https://");
    let origin = Uri::try_from(url).map_err(|error| bad(error.to_string()))?;
    // The channel refuses https for which it has no TLS itself, so it is told where to go as if there were none.
    let place = if is_dialed { url.replacen("https", "http", 1) } else { url.to_owned() };
    let endpoint = Endpoint::from_shared(place).map_err(|error| bad(root_cause(&error)))?.origin(origin);
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    match &options.tls {
        _ if is_dialed => Ok(endpoint),
        Some(tls) if is_tls => endpoint.tls_config(tls.clone()).map_err(|error| bad(root_cause(&error))),
        None if is_tls => Err(bad("whose certificate must it have? Name the authority".into())),
        // Who speaks of certificates believes that the traffic is protected.
        Some(_) => Err(bad("it is plain text, but certificates are given".into())),
        None => Ok(endpoint),
    }
}

/// Why a call failed, in the words of whoever knows best: of the connection if that failed.
pub(crate) fn why(status: &tonic::Status) -> String {
    match std::error::Error::source(status) {
        Some(cause) => root_cause(cause),
        None => status.message().to_owned(),
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
