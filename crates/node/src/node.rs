//! A running node: gives the workers their threads, the disk and the peer links; starts and stops them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidelock_coordinator::Coordinator;
use tidelock_journal::{OpenError, OsDisk, OsDiskError};
use tidelock_model::{ClusterId, Member, NodeId};
use tidelock_replica::Input;
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::identity::{Identity, IdentityError};
use crate::measurements::{Measured, Tally};
use crate::peers::{PeerConfig, PeerNet, PeerSecurity};
use crate::quota_log::QuotaLog;
use crate::shared::{Shared, StopReason};
use crate::snapshots::{SnapshotJob, SnapshotLoadError};
use crate::workers::{Draws, Prepared, Workers};

/// How long a leader that shuts down waits for another to take over.
const HAND_OVER_WAIT: Duration = Duration::from_secs(2);
/// Longest rest between two turns of a snapshot.
const SNAPSHOT_REST_MAX: Duration = Duration::from_millis(50);

/// Why a node did not start. Nothing was changed on disk unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] OsDiskError),
    /// The node's identity cannot be read or written.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The journal is damaged or cannot be read.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The snapshot does not hold a state.
    #[error("{file}: {error}; remove the data directory and add this node again as a new member")]
    Snapshot {
        /// Which file.
        file: String,
        /// What is wrong.
        error: SnapshotLoadError,
    },
    /// The configuration cannot work.
    #[error("configuration: {0}")]
    Config(String),
    /// The system refused a thread or a socket.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    coordinator: Arc<dyn Coordinator>,
    peers: PeerNet,
    threads: Vec<JoinHandle<()>>,
}

/// Who a data directory belongs to; `None` if it is empty or missing. Does not lock it.
pub fn existing_identity(data_dir: &Path) -> Result<Option<Identity>, StartError> {
    if !data_dir.join("identity").exists() {
        return Ok(None);
    }
    let disk = OsDisk::open(data_dir)?;
    Ok(Identity::read(&disk)?)
}

/// Makes an empty data directory that of a member the cluster knows already by this id and disk.
pub fn adopt_identity(
    data_dir: &Path,
    cluster: ClusterId,
    node: NodeId,
    disk: u64,
    first_members: Vec<Member>,
) -> Result<(), StartError> {
    let identity = Identity { cluster, node, disk, first_members };
    Ok(identity.write(&OsDisk::open(data_dir)?)?)
}

impl Node {
    /// Starts a node. Blocks while it reads its data; call it outside of async tasks.
    pub fn start(
        config: &NodeConfig,
        peer_listener: TcpListener,
        security: PeerSecurity,
        runtime: Handle,
    ) -> Result<Node, StartError> {
        check(config)?;
        let disk = OsDisk::open(&config.data_dir)?;
        let draws = Draws { boot: rand::random(), disk: rand::random() };
        let prepared = Prepared::open(config, disk, draws)?;
        let shared = prepared.shared().clone();
        let identity = &shared.identity;
        let own = identity.first_members.iter().find(|member| member.id == identity.node);
        let advertise = match own.and_then(|member| member.peer_addresses.first()) {
            Some(address) => address.clone(),
            None => peer_listener.local_addr()?.to_string(),
        };
        let PeerSecurity { connector, acceptor } = security;
        let plain = PeerConfig::plain(identity.cluster, identity.node, identity.disk, advertise);
        let peer_config = PeerConfig { connector, acceptor, ..plain };
        let peers = PeerNet::start(peer_config, peer_listener, prepared.inbound(), runtime)?;
        let workers = prepared.connect(peers.clone(), Box::new(snapshot_in_a_thread));
        let Workers { consensus, journal, mut apply, coordinator, .. } = workers;
        apply.observe(Box::new(Tally(shared.measurements.clone(), QuotaLog::default())));
        let clock = Clock::start();
        let threads = vec![
            spawn(&shared, "journal", move |shared| shared.journal.serve(Box::new(journal), clock))?,
            spawn(&shared, "apply", move |shared| shared.apply.serve(Box::new(apply), clock))?,
            spawn(&shared, "consensus", move |shared| shared.consensus.serve(Box::new(consensus), clock))?,
        ];
        Ok(Node { shared, coordinator, peers, threads })
    }

    /// What faces call.
    #[must_use]
    pub fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.coordinator.clone()
    }

    /// What this node measures of itself, to be asked at any time.
    pub fn measured(&self) -> impl Fn() -> Measured + Send + Sync + 'static {
        let (shared, peers) = (self.shared.clone(), self.peers.clone());
        move || {
            let (sent, dropped) =
                peers.written().into_iter().map(|(peer, sent, lost)| ((peer, sent), (peer, lost))).unzip();
            Measured { sent, dropped, ..shared.measurements.read() }
        }
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Completes when the node stops, with the reason.
    pub async fn stopped(&self) -> StopReason {
        let mut stopped = self.shared.stopped.subscribe();
        let reason = stopped.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or(StopReason::Requested)
    }

    /// Hands leadership over if this node leads, then stops its threads and closes its files.
    pub async fn shutdown(self) {
        self.hand_over().await;
        self.shared.stop(StopReason::Requested);
        self.peers.stop().await;
        let threads = self.threads;
        let joined = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join())));
        let _ = joined.await;
    }

    async fn hand_over(&self) {
        let me = self.shared.identity.node;
        let leads = || self.shared.standing.lock().leader == Some(me);
        // A node that stopped by itself, such as a leader that was removed, has nothing left to give.
        if !leads() || self.shared.is_stopped() || self.shared.members.lock().by_id.len() < 2 {
            return;
        }
        self.shared.consensus.push(Input::StepDown);
        let deadline = tokio::time::Instant::now() + HAND_OVER_WAIT;
        while leads() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Starts a thread of the node; if it panics, the whole node stops.
fn spawn(
    shared: &Arc<Shared>,
    name: &str,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    struct Guard(Arc<Shared>, String);
    impl Drop for Guard {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.stop(StopReason::Panicked(std::mem::take(&mut self.1)));
            }
        }
    }
    let guard = Guard(shared.clone(), name.into());
    std::thread::Builder::new().name(name.into()).spawn(move || {
        run(&guard.0);
    })
}

fn check(config: &NodeConfig) -> Result<(), StartError> {
    if config.heartbeat < Duration::from_millis(1) || config.election_timeout < config.heartbeat * 5 {
        return Err(StartError::Config("the election timeout must be at least five heartbeats".into()));
    }
    if config.limits.proposals_waiting as u64 > tidelock_state::ORIGIN_WINDOW / 2 {
        let most = tidelock_state::ORIGIN_WINDOW / 2;
        return Err(StartError::Config(format!("at most {most} proposals may wait: more could not be told apart")));
    }
    if config.limits.segment_bytes < 2 * tidelock_model::limits::COMMAND_BYTES_MAX as u64 {
        return Err(StartError::Config("a journal segment must hold the largest command twice".into()));
    }
    Ok(())
}

/// Takes a snapshot beside everything else. Rests after each turn for as long as that took: half of the disk's and of a
/// processor's time is left to requests, and none of them meets two turns in a row.
fn snapshot_in_a_thread(mut job: SnapshotJob<OsDisk>) {
    let take = move || loop {
        let began = Instant::now();
        if !job.turn() {
            return;
        }
        std::thread::sleep(began.elapsed().min(SNAPSHOT_REST_MAX));
    };
    let spawned = std::thread::Builder::new().name("snapshot".into()).spawn(take);
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for a snapshot; it will be tried again");
    }
}
