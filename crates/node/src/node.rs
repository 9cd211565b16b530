//! Puts a node together: data directory, journal, state, replica, threads, peer links.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tidelock_coordinator::Coordinator;
use tidelock_journal::{
    Disk, Journal, JournalConfig, OpenError, OsDisk, OsDiskError, Recovered, SnapshotMeta, SnapshotReader,
};
use tidelock_model::{HardState, LogIndex, Member, MemberRole, NodeId, Term};
use tidelock_replica::{Applier, Input, Replica, Settings, Start, consensus::Consensus};
use tidelock_state::State;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::apply_thread::{ApplyThread, Sweep};
use crate::config::{Bootstrap, NodeConfig};
use crate::handle::NodeHandle;
use crate::identity::{Identity, IdentityError};
use crate::inbound::Inbound;
use crate::inbox::Inbox;
use crate::journal_thread::JournalThread;
use crate::peers::{PeerConfig, PeerNet};
use crate::run::ConsensusThread;
use crate::shared::{Shared, StopReason};
use crate::snapshots::{self, SnapshotLoadError, Snapshots};
use crate::waiters::Waiters;

/// How long a leader that shuts down waits for another to take over.
const HAND_OVER_WAIT: Duration = Duration::from_secs(2);
/// Index and term of the founding state: every founder starts with the same.
const FOUNDING: (LogIndex, Term) = (LogIndex(1), Term(1));

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
    handle: Arc<NodeHandle>,
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

impl Node {
    /// Starts a node. Blocks while it reads its data; call it outside of async tasks.
    pub fn start(config: &NodeConfig, peer_listener: TcpListener, runtime: Handle) -> Result<Node, StartError> {
        check(config)?;
        let disk = OsDisk::open(&config.data_dir)?;
        let journal_config = JournalConfig { segment_bytes: config.limits.segment_bytes, ..JournalConfig::default() };
        let identity = match Identity::read(&disk)? {
            Some(identity) => identity,
            None => bootstrap(&disk, &journal_config, &config.bootstrap)?,
        };
        // In a thread of its own that ends: the allocator gives what a thread allocated back to the system
        // only while that thread goes on allocating, or after it ended.
        let opened = std::thread::scope(|scope| scope.spawn(|| open(&disk, journal_config)).join());
        let (journal, mut recovered, loaded) = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let boot = rand::random::<u64>();
        let shared = Arc::new(share(config, identity, boot, loaded.state));
        // What the journal already holds behind its snapshot counts towards the next, or a node that
        // restarts often would never take one and its journal would grow for ever.
        let unsaved = recovered.entries.iter().map(|entry| entry.payload.len() as u64).sum();
        shared.journal_written.store(unsaved, Ordering::Relaxed);
        let listen = peer_listener.local_addr()?.to_string();
        let inbound = Arc::new(Inbound { shared: shared.clone(), disk: disk.clone() });
        let peer_config = PeerConfig::plain(shared.identity.cluster, shared.identity.node, listen);
        let peers = PeerNet::start(peer_config, peer_listener, inbound, runtime)?;
        let replica = replica(config, &shared, &mut recovered, &loaded.voters)?;
        let known: Vec<Member> = match replica.members().by_id.is_empty() {
            true => shared.identity.first_members.clone(),
            false => replica.members().by_id.values().cloned().collect(),
        };
        peers.set_peers(&Shared::peer_addresses(&known));
        let hard_state = recovered.hard_state;
        let applier = Applier::new(shared.identity.node, boot, &shared.state.read(), loaded.term, loaded.voters);
        let heartbeat = config.heartbeat;
        let mut threads = Vec::new();
        let journal = JournalThread { shared: shared.clone(), journal, peers: peers.clone(), hard_state };
        threads.push(spawn(&shared, "journal", move || journal.run())?);
        let snapshots = Snapshots::new(shared.clone(), disk.clone(), loaded.size);
        let apply = ApplyThread {
            shared: shared.clone(),
            applier,
            snapshots,
            heartbeat,
            expiries: 0,
            sweep: Sweep::GoOn,
            nudges: 0,
        };
        threads.push(spawn(&shared, "apply", move || apply.run())?);
        let consensus = ConsensusThread {
            shared: shared.clone(),
            replica,
            peers: peers.clone(),
            disk,
            heartbeat,
            at_journal: None,
            unwritten: None,
            known: (Term(0), None),
            fatal: None,
        };
        threads.push(spawn(&shared, "consensus", move || consensus.run())?);
        let handle = Arc::new(NodeHandle { shared: shared.clone(), peers });
        Ok(Node { shared, handle, threads })
    }

    /// What faces call.
    #[must_use]
    pub fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.handle.clone()
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
        self.handle.peers.stop().await;
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
fn spawn(shared: &Arc<Shared>, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
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
        let _guard = guard;
        run();
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

/// Makes a data directory: the identity is written last, so that a half-made one is made anew.
fn bootstrap(disk: &OsDisk, journal: &JournalConfig, bootstrap: &Bootstrap) -> Result<Identity, StartError> {
    let (cluster, node, members) = match bootstrap {
        Bootstrap::Found { cluster, node, members } => {
            found(disk, journal, members)?;
            (*cluster, *node, members.clone())
        }
        Bootstrap::Join { cluster, node, members } => (*cluster, *node, members.clone()),
    };
    let identity = Identity { cluster, node, first_members: members };
    identity.write(disk)?;
    Ok(identity)
}

/// Gives a founder the state all founders start with: the members, and nothing else.
fn found(disk: &OsDisk, journal: &JournalConfig, members: &[Member]) -> Result<(), StartError> {
    let (mut journal, _) = Journal::open(disk.clone(), journal.clone())?;
    let (index, term) = FOUNDING;
    let mut state = State::new();
    state.bootstrap_members(members.to_vec());
    state.apply_nothing(index);
    let roles: Vec<(NodeId, MemberRole)> = members.iter().map(|member| (member.id, member.role)).collect();
    let meta = SnapshotMeta { index, term, extra: Consensus::voters_of(&roles) };
    let file = format!("{}/{}", disk.location(), meta.name().file_name());
    snapshots::write_whole(disk, &state, meta).map_err(|error| StartError::Snapshot { file, error: error.into() })?;
    let hard_state = HardState { term, vote: NodeId(0), commit: index };
    journal.restart_from_snapshot(index, term, hard_state).map_err(|error| StartError::Io(std::io::Error::other(error)))
}

struct Loaded {
    state: State,
    term: Term,
    voters: Bytes,
    /// Size of the snapshot file.
    size: u64,
}

/// Reads everything there is.
fn open(disk: &OsDisk, config: JournalConfig) -> Result<(Journal<OsDisk>, Recovered, Loaded), StartError> {
    let began = Instant::now();
    let (journal, recovered) = Journal::open(disk.clone(), config)?;
    recovered.notes.iter().for_each(|note| tracing::warn!("{note}"));
    tracing::info!(entries = recovered.entries.len(), took = ?began.elapsed(), "opened the journal");
    let began = Instant::now();
    let loaded = load_state(disk, &recovered)?;
    tracing::info!(keys = loaded.state.keys(), took = ?began.elapsed(), "loaded the state");
    Ok((journal, recovered, loaded))
}

fn load_state(disk: &OsDisk, recovered: &Recovered) -> Result<Loaded, StartError> {
    let Some(meta) = &recovered.snapshot else {
        return Ok(Loaded { state: State::new(), term: Term(0), voters: Consensus::voters_of(&[]), size: 0 });
    };
    let file = format!("{}/{}", disk.location(), meta.name().file_name());
    let failed = |error| StartError::Snapshot { file: file.clone(), error };
    let mut reader = SnapshotReader::open(disk, meta.name()).map_err(|error| failed(error.into()))?;
    let size = reader.raw_len();
    let state = snapshots::load(&mut reader).map_err(failed)?;
    Ok(Loaded { state, term: meta.term, voters: meta.extra.clone(), size })
}

fn replica(
    config: &NodeConfig,
    shared: &Arc<Shared>,
    recovered: &mut Recovered,
    voters: &Bytes,
) -> Result<Replica, StartError> {
    let ticks = |duration: Duration| duration.as_millis().div_ceil(config.heartbeat.as_millis()) as u64;
    let node = shared.identity.node;
    let settings = Settings { node, boot: shared.boot, timeout_ticks: ticks(config.request_timeout) };
    let start = Start {
        node,
        seed: shared.boot,
        election_ticks: ticks(config.election_timeout) as usize,
        hard_state: recovered.hard_state,
        voters: voters.clone(),
        snapshot: recovered.snapshot.as_ref().map_or((LogIndex(0), Term(0)), |meta| (meta.index, meta.term)),
        entries: std::mem::take(&mut recovered.entries),
    };
    let members = shared.state.read().members().clone();
    Replica::new(settings, start, members).map_err(StartError::Config)
}

fn share(config: &NodeConfig, identity: Identity, boot: u64, state: State) -> Shared {
    let members = state.members().clone();
    let standing = tidelock_replica::Standing {
        role: tidelock_replica::Role::Follower,
        leader: None,
        term: Term(0),
        committed: state.applied(),
        leader_changes: 0,
        leader_full: false,
        progress: Vec::new(),
    };
    Shared {
        identity,
        boot,
        limits: config.limits.clone(),
        request_timeout: config.request_timeout,
        state: RwLock::new(state),
        pins: Mutex::default(),
        consensus: Inbox::new(),
        apply: Inbox::new(),
        journal: Inbox::new(),
        proposals: Waiters::new(),
        proposal_bytes: AtomicU64::new(0),
        reads: Waiters::new(),
        leases: Waiters::new(),
        member_calls: Waiters::new(),
        transfers: Waiters::new(),
        term: AtomicU64::new(0),
        standing: Mutex::new(standing),
        members: Mutex::new(members),
        disk_full: AtomicBool::new(false),
        leader_full: AtomicBool::new(false),
        disk_bytes: AtomicU64::new(0),
        journal_written: AtomicU64::new(0),
        proposals_failed: AtomicU64::new(0),
        watchers: AtomicU64::new(0),
        next_subscriber: AtomicU64::new(1),
        received: Mutex::default(),
        installs: AtomicU64::new(0),
        snapshots_begun: AtomicU64::new(0),
        snapshots_finished: watch::Sender::default(),
        sweeping: watch::Sender::new(true),
        stopped: watch::Sender::new(None),
    }
}
