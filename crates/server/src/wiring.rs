//! Putting a node together: ports, the node itself, the faces, the admin address; and taking it
//! apart again in order. The only file that knows both the node and the faces.
//!
//! Order of starting: ports (so that a taken one leaves nothing behind), membership, node, faces, and
//! the ready line only after a read that needs a majority has succeeded. Order of stopping: new
//! connections are refused, leadership is handed over, files are closed, connections are cut. A second
//! signal ends the process at once, which is as safe as a crash: what was acknowledged is on disk.

use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidelock_coordinator::Coordinator;
use tidelock_face_etcd::{EtcdFace, FaceConfig, MetricsText};
use tidelock_face_native::NativeFace;
use tidelock_face_zookeeper::{About, FaceConfig as ZookeeperFaceConfig, Port, Security, ZookeeperFace};
use tidelock_node::peers::PeerSecurity;
use tidelock_node::{Bootstrap, Identity, Node, NodeConfig, NodeLimits, StartError, StopReason, existing_identity};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::added;
use crate::admin::{self, Admin};
use crate::announce;
use crate::auto_compaction;
use crate::config::{Config, Origin, Zookeeper};
use crate::failure::Failure;
use crate::history_bound;
use crate::identity::{Founder, Founding};
use crate::listeners::{Addresses, Listeners, Ports};
use crate::membership;
use crate::metrics::Sources;
use crate::quota::Guarded;
use crate::signals::{self, Signals};
use crate::tls;
use crate::zookeeper_admin;

/// How long the node may take to hand over leadership and close its files.
const NODE_STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long connections get to end by themselves once the node has stopped.
const CONNECTIONS_STOP_PATIENCE: Duration = Duration::from_secs(1);
/// etcd's election timeout, if nobody says otherwise. Its clients know the least time to live that follows from it.
const ETCD_ELECTION: Duration = Duration::from_secs(1);

/// How to run, beside what is configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// What to do about taken ports.
    pub(crate) ports: Ports,
    /// Stop when standard input ends.
    pub(crate) stop_when_stdin_ends: bool,
    /// Greet the person who started a single node by hand.
    pub(crate) greet_single_node: bool,
    /// End by the signal that asked for it, as etcd does, instead of with exit code 0.
    pub(crate) end_by_signal: bool,
}

/// Why a node stopped serving.
enum Ended {
    /// Somebody asked for it, by a signal if there is a number.
    Asked(Option<i32>),
    /// The node cannot go on.
    ByItself(StopReason),
}

/// Ports that are open and not served yet, peers' apart.
struct OpenPorts {
    clients: Vec<TcpListener>,
    admin: Option<TcpListener>,
    metrics: Vec<TcpListener>,
    native: Option<TcpListener>,
    zookeeper: ZookeeperDoors,
}

/// Where ZooKeeper's clients and operators are served, as far as they are.
struct ZookeeperDoors {
    plain: Option<TcpListener>,
    secure: Option<TcpListener>,
    admin: Option<TcpListener>,
}

/// Runs a node until it is told to stop or cannot go on.
pub(crate) fn run(config: &Config, options: &Options) -> Result<(), Failure> {
    announce::start_logging(config)?;
    let listeners = Listeners::bind(config, options.ports)?;
    let addresses = listeners.addresses(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("tidelock-serve")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    let security = tls::for_peers(&config.tls)?;
    let node_config = node_config(config, &addresses, &security, &runtime)?;
    let Listeners { clients, peer, admin, metrics, native, zookeeper, zookeeper_admin, zookeeper_secure } = listeners;
    let node = Node::start(&node_config, peer, security, runtime.handle().clone())
        .map_err(|error| start_failure(config, &error))?;
    if options.greet_single_node {
        announce::greet_single_node(config, &addresses);
    }
    let zookeeper = ZookeeperDoors { plain: zookeeper, secure: zookeeper_secure, admin: zookeeper_admin };
    let ports = OpenPorts { clients, admin, metrics, native, zookeeper };
    let outcome = runtime.block_on(Box::pin(serve(config, options, &addresses, node, ports)));
    runtime.shutdown_timeout(CONNECTIONS_STOP_PATIENCE);
    if let (Ok(Some(signal)), true) = (&outcome, options.end_by_signal) {
        signals::end_by(*signal);
    }
    outcome.map(drop)
}

/// What the node needs to know. Asks the cluster to be added if this node is to join one.
fn node_config(
    config: &Config,
    addresses: &Addresses,
    security: &PeerSecurity,
    runtime: &Runtime,
) -> Result<NodeConfig, Failure> {
    let existing = existing_identity(&config.data_dir).map_err(|error| start_failure(config, &error))?;
    Ok(NodeConfig {
        name: config.name.clone(),
        data_dir: config.data_dir.clone(),
        client_urls: addresses.client_urls.clone(),
        bootstrap: bootstrap(config, addresses, existing.as_ref(), security, runtime)?,
        heartbeat: config.heartbeat,
        election_timeout: config.election_timeout,
        request_timeout: config.request_timeout,
        limits: NodeLimits {
            proposals_waiting: config.max_proposals_waiting,
            catch_up_entries: config.service.catch_up_entries,
            ..NodeLimits::default()
        },
    })
}

fn bootstrap(
    config: &Config,
    addresses: &Addresses,
    existing: Option<&Identity>,
    security: &PeerSecurity,
    runtime: &Runtime,
) -> Result<Bootstrap, Failure> {
    let founders = match (&config.origin, existing) {
        (Origin::Join(_) | Origin::Added { .. }, Some(Identity { cluster, node, first_members, .. })) => {
            return Ok(Bootstrap::Join { cluster: *cluster, node: *node, members: first_members.clone() });
        }
        (Origin::Join(urls), None) => {
            let joined = runtime.block_on(membership::join(urls, &addresses.peer_address))?;
            return Ok(Bootstrap::Join { cluster: joined.cluster, node: joined.node, members: joined.members });
        }
        (Origin::Added { own, others }, None) => {
            let finding = added::become_added(&*security.connector, &config.data_dir, own, others);
            let joined = runtime.block_on(finding)?;
            return Ok(Bootstrap::Join { cluster: joined.cluster, node: joined.node, members: joined.members });
        }
        (Origin::Founders(founders), _) => founders.clone(),
        (Origin::Alone, _) => {
            let (name, peer_address) = (config.name.clone(), addresses.peer_address.clone());
            vec![Founder { name, peer_address, ..Founder::default() }]
        }
    };
    let founding = Founding::derive(&config.cluster_token, &founders);
    if let (Some(existing), Origin::Founders(_)) = (existing, &config.origin)
        && existing.cluster != founding.cluster
    {
        tracing::warn!(
            cluster = %format_args!("{:x}", existing.cluster),
            "the data directory already belongs to another cluster than --initial-cluster describes; the directory counts"
        );
    }
    let node = founding
        .member(&config.name)
        .map(|member| member.id)
        .ok_or_else(|| Failure::usage(format!("--initial-cluster does not list this node, {:?}", config.name)))?;
    Ok(Bootstrap::Found { cluster: founding.cluster, node, members: founding.members })
}

/// Most of the node's own errors say what to do; a directory that cannot be used is the exception.
fn start_failure(config: &Config, error: &StartError) -> Failure {
    use std::error::Error as _;
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    let failure = Failure::new(format!("the node cannot start: {text}"));
    let dir = config.data_dir.display();
    match error {
        StartError::Directory(_) => {
            failure.hint(format!("stop the node that uses {dir}, make {dir} writable, or choose another --data-dir"))
        }
        _ => failure,
    }
}

async fn serve(
    config: &Config,
    options: &Options,
    addresses: &Addresses,
    node: Node,
    ports: OpenPorts,
) -> Result<Option<i32>, Failure> {
    let mut signals = Signals::listen()?;
    let (stop, stopping) = watch::channel(false);
    let quota = config.service.quota;
    let guarded = Guarded::new(node.coordinator(), quota);
    let measured = Box::new(node.measured());
    let metrics = Arc::new(Sources { node: guarded.clone(), measured, quota, calls: OnceLock::new() });
    let coordinator: Arc<dyn Coordinator> = guarded.clone();
    let id = node.identity().node;
    let mut serving = JoinSet::new();
    serve_etcd(config, &coordinator, &metrics, ports.clients, &stopping, &mut serving)?;
    serve_native(config, &coordinator, ports.native, &stopping, &mut serving)?;
    serve_zookeeper(config, &coordinator, ports.zookeeper, &stopping, &mut serving)?;
    let (name, told) = (config.name.as_str().into(), metrics.clone());
    let admin = Admin { coordinator: coordinator.clone(), name, metrics: Arc::new(move || told.text()) };
    if let Some(listener) = ports.admin {
        serve_http(admin::router(admin.clone()), listener, &stopping, &mut serving)?;
    }
    for listener in ports.metrics {
        serve_http(admin::metrics_router(admin.clone()), listener, &stopping, &mut serving)?;
    }

    let published = membership::Published {
        name: config.name.clone(),
        client_urls: addresses.client_urls.clone(),
        zookeeper: addresses.zookeeper_server.clone(),
    };
    let publishing = membership::publish(coordinator.clone(), id, published);
    let mut background = JoinSet::new();
    let announcing = announce::say_when_ready(coordinator.clone(), addresses.clone());
    background.spawn(async move {
        // Whoever waits for the ready line may ask for the members next, and must find this one's URLs.
        publishing.await;
        announcing.await;
    });
    background.spawn(guarded.watch_over());
    if let Some(retention) = config.service.retention {
        background.spawn(auto_compaction::run(coordinator.clone(), retention));
    }
    if let Some(bound) = config.service.history_bound {
        background.spawn(history_bound::run(coordinator.clone(), bound));
    }
    if let Origin::Join(urls) = &config.origin {
        background.spawn(membership::seek_promotion(coordinator.clone(), urls.clone(), id));
    }

    let ended = tokio::select! {
        signal = signals.next_number() => Ended::Asked(Some(signal)),
        () = stdin_end(), if options.stop_when_stdin_ends => Ended::Asked(None),
        reason = node.stopped() => Ended::ByItself(reason),
    };
    background.abort_all();
    let _ = stop.send(true);
    tokio::select! {
        () = signals.next() => return Err(Failure::new("stopped at once, on a second signal")),
        () = take_apart(node, serving) => {}
    }
    match ended {
        Ended::Asked(signal) => {
            tracing::info!("stopped");
            Ok(signal)
        }
        Ended::ByItself(reason) => Err(stopped_by_itself(config, &reason)),
    }
}

async fn take_apart(node: Node, mut serving: JoinSet<()>) {
    tracing::info!("stopping");
    if tokio::time::timeout(NODE_STOP_PATIENCE, node.shutdown()).await.is_err() {
        tracing::warn!("the node did not stop within {NODE_STOP_PATIENCE:?}; leaving it as a crash would");
    }
    let draining = async { while serving.join_next().await.is_some() {} };
    if tokio::time::timeout(CONNECTIONS_STOP_PATIENCE, draining).await.is_err() {
        tracing::debug!("connections that did not end by themselves are cut");
    }
}

fn stopped_by_itself(config: &Config, reason: &StopReason) -> Failure {
    tracing::error!(%reason, "the node stopped by itself");
    Failure::new(format!("the node stopped: {reason}")).hint(advice(config, reason))
}

/// What to do next. Never to delete what may be the only copy.
fn advice(config: &Config, reason: &StopReason) -> String {
    let directory = config.data_dir.display();
    match reason {
        StopReason::JournalFailed(_) => format!(
            "everything acknowledged is on the disk or on other members: start the node again. If the disk fails again, copy \
             {directory} to another one and start from there; if it cannot be read and other members are healthy, remove this \
             member and --join as a new one"
        ),
        StopReason::Fatal(_) => {
            format!("the other members go on without this node: move {directory} away and --join again as a new member")
        }
        StopReason::Panicked(_) | StopReason::Requested => "start the node again; what was acknowledged is kept".into(),
    }
}

fn serve_etcd(
    config: &Config,
    coordinator: &Arc<dyn Coordinator>,
    sources: &Arc<Sources>,
    listeners: Vec<TcpListener>,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) -> Result<(), Failure> {
    let scraped = sources.clone();
    let metrics = Some(MetricsText::new(move || scraped.text()));
    let face = EtcdFace::new(coordinator.clone(), FaceConfig { metrics, ..face_config(config) });
    sources.calls.get_or_init(|| face.counts());
    let acceptor = tls::for_clients(&config.tls)?;
    for (listener, listen) in listeners.into_iter().zip(&config.client_listen) {
        let listener = tokio_listener(listener)?;
        let (face, stop) = (face.clone(), stopped(stopping.clone()));
        let acceptor = acceptor.clone().filter(|_| listen.tls);
        serving.spawn(tidelock_face_etcd::serve(listener, face, acceptor, stop));
    }
    Ok(())
}

fn serve_native(
    config: &Config,
    coordinator: &Arc<dyn Coordinator>,
    listener: Option<TcpListener>,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) -> Result<(), Failure> {
    // A face runs things beside its port, which a node without one does not need.
    let (Some(listener), Some(listen)) = (listener, config.native_listen) else { return Ok(()) };
    let face_config = tidelock_face_native::FaceConfig {
        token: config.service.token.0.clone(),
        bcrypt_cost: config.service.bcrypt_cost,
        ..Default::default()
    };
    let face = NativeFace::new(coordinator.clone(), face_config);
    let acceptor = tls::for_clients(&config.tls)?.filter(|_| listen.tls);
    let (listener, stop) = (tokio_listener(listener)?, stopped(stopping.clone()));
    serving.spawn(tidelock_face_native::serve(listener, face, acceptor, stop));
    Ok(())
}

fn face_config(config: &Config) -> FaceConfig {
    let defaults = FaceConfig::default();
    // As etcd reckons it, whose default is a second: a lease must outlive a change of leader.
    let election = config.election_timeout.max(if config.election_given { Duration::ZERO } else { ETCD_ELECTION });
    let ttl_min = election.mul_f64(1.5).as_millis().div_ceil(1000).max(1);
    let limits = tidelock_face_etcd::Limits {
        request_bytes: config.max_request_bytes,
        txn_ops: config.max_txn_ops,
        lease_ttl_min_s: u32::try_from(ttl_min).unwrap_or(u32::MAX),
        watchers_per_stream: config.max_watchers_per_stream,
        learners_max: config.service.max_learners,
    };
    let service = &config.service;
    FaceConfig {
        limits,
        leader_grace: election * 3,
        scratch_dir: config.data_dir.clone(),
        progress_interval: service.progress_interval,
        streams_per_connection: service.max_streams_per_connection,
        ping_after: service.ping_after,
        ping_timeout: service.ping_timeout,
        quota_bytes: service.quota.told(),
        time_calls: service.extensive_metrics,
        token: service.token.0.clone(),
        peers_use_tls: config.tls.peers.is_some(),
        bcrypt_cost: service.bcrypt_cost,
        ..defaults
    }
}

fn serve_zookeeper(
    config: &Config,
    coordinator: &Arc<dyn Coordinator>,
    doors: ZookeeperDoors,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) -> Result<(), Failure> {
    let ZookeeperDoors { plain, secure, admin } = doors;
    let port = |listener: &Option<TcpListener>| Some(listener.as_ref()?.local_addr().ok()?.port());
    let (client_port, secure_client_port) = (port(&plain), port(&secure));
    let acceptor = tls::for_zookeeper(&config.zookeeper.security)?;
    let mut ports = Vec::new();
    let secure = secure.zip(acceptor).map(|(listener, acceptor)| (listener, Some(acceptor)));
    for (listener, tls) in plain.map(|listener| (listener, None)).into_iter().chain(secure) {
        ports.push(Port { listener: tokio_listener(listener)?, tls });
    }
    // A face runs things beside its ports, which a node without any does not need.
    if ports.is_empty() {
        return Ok(());
    }
    let details = &config.zookeeper.details;
    let about = About {
        client_port,
        secure_client_port,
        data_dir: config.data_dir.display().to_string(),
        initial_configuration: details.initial_configuration.clone(),
    };
    let face_config = ZookeeperFaceConfig { about, ..zookeeper_face_config(&config.zookeeper) };
    let face = ZookeeperFace::new(coordinator.clone(), face_config);
    if let Some(admin) = admin {
        let routes = zookeeper_admin::router(face.clone(), details.admin_path.as_deref());
        serve_http(routes, admin, stopping, serving)?;
    }
    serving.spawn(tidelock_face_zookeeper::serve(ports, face, stopped(stopping.clone())));
    Ok(())
}

fn zookeeper_face_config(zookeeper: &Zookeeper) -> ZookeeperFaceConfig {
    let defaults = ZookeeperFaceConfig::with_tick(zookeeper.tick);
    let details = &zookeeper.details;
    let words = match &details.words {
        Some(words) if words.iter().any(|word| word == "*") => None,
        Some(words) => Some(words.clone()),
        None => defaults.words,
    };
    ZookeeperFaceConfig {
        session_timeout_min: details.session_timeout_min.unwrap_or(defaults.session_timeout_min),
        session_timeout_max: details.session_timeout_max.unwrap_or(defaults.session_timeout_max),
        max_frame: details.max_frame.unwrap_or(defaults.max_frame),
        connections_per_address: details.connections_per_address.unwrap_or(defaults.connections_per_address),
        super_digest: details.super_digest.clone(),
        security: Security {
            sasl_users: zookeeper.security.users.clone(),
            sasl_super_user: details.sasl_super_user.clone(),
            x509_super_user: details.x509_super_user.clone(),
            required_schemes: details.required_schemes.clone(),
        },
        words,
        server_number: details.server_number.unwrap_or(defaults.server_number),
        replay_watches: zookeeper.replay_watches,
        reconfig: details.reconfig,
        read_only_mode: details.read_only_mode,
        enforce_quota: details.enforce_quota,
        ..defaults
    }
}

/// Serves the admin address, or part of what it has.
fn serve_http(
    routes: axum::Router,
    listener: TcpListener,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) -> Result<(), Failure> {
    let listener = tokio_listener(listener)?;
    let stop = stopped(stopping.clone());
    serving.spawn(async move {
        if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop).await {
            tracing::error!(%error, "serving an address for administration or metrics ended");
        }
    });
    Ok(())
}

fn tokio_listener(listener: TcpListener) -> Result<tokio::net::TcpListener, Failure> {
    tokio::net::TcpListener::from_std(listener)
        .map_err(|error| Failure::new(format!("cannot serve an open port: {error}")))
}

/// Completes when the node is told to stop.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means the sender is gone, which is the end too.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Completes when standard input ends. A thread of its own, because reading blocks; it ends with the
/// process.
async fn stdin_end() {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut sink = [0; 1024];
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut sink), Ok(1..)) {}
        let _ = ended.send(());
    });
    let _ = end.await;
}
