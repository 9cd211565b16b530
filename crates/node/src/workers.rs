//! A node without its threads: the parts, wired together over any disk and any links. `node` gives each
//! worker a thread, the machine's disk and TCP; the simulator gives them turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tidelock_coordinator::Coordinator;
use tidelock_journal::{Disk, Journal, JournalConfig, Recovered, SnapshotReader};
use tidelock_model::{HardState, LogIndex, Member, Term};
use tidelock_replica::{Applier, Replica, Settings, Start, consensus::Consensus};
use tidelock_state::State;
use tokio::sync::watch;

use crate::acquaintances::Acquaintances;
use crate::apply_worker::{ApplyWorker, RunSnapshot};
use crate::config::NodeConfig;
use crate::consensus_worker::ConsensusWorker;
use crate::founding::bootstrap;
use crate::handle::NodeHandle;
use crate::identity::Identity;
use crate::inbound::Inbound;
use crate::inbox::Inbox;
use crate::journal_worker::JournalWorker;
use crate::links::Links;
use crate::node::StartError;
use crate::shared::{Shared, StopReason};
use crate::snapshots::{self, Snapshots};
use crate::waiters::Waiters;

/// Numbers a node draws when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// Names this life of the node; no other has the same.
    pub boot: u64,
    /// Names the disk, if the data directory is made now.
    pub disk: u64,
}

/// A node that has read everything its disk holds and has no links yet.
pub struct Prepared<D: Disk + Clone> {
    disk: D,
    heartbeat: Duration,
    shared: Arc<Shared>,
    inbound: Arc<Inbound<D>>,
    replica: Replica,
    applier: Applier,
    journal: Journal<D>,
    hard_state: HardState,
    snapshots: Snapshots<D>,
    was_cut: bool,
}

/// A node that is ready to work.
pub struct Workers<D: Disk + Clone, L> {
    /// Feeds the replica.
    pub consensus: ConsensusWorker<D, L>,
    /// Owns the journal.
    pub journal: JournalWorker<D, L>,
    /// Owns the state.
    pub apply: ApplyWorker<D>,
    /// What faces call.
    pub coordinator: Arc<dyn Coordinator>,
    pub(crate) shared: Arc<Shared>,
}

impl<D: Disk + Clone + 'static> Prepared<D> {
    /// Reads what `disk` holds, or makes it what `config` says if it is empty.
    pub fn open(config: &NodeConfig, disk: D, draws: Draws) -> Result<Prepared<D>, StartError> {
        let journal_config = JournalConfig {
            segment_bytes: config.limits.segment_bytes,
            free_floor_bytes: config.limits.free_floor_bytes,
            ..JournalConfig::default()
        };
        let identity = match Identity::read(&disk)? {
            Some(identity) => identity,
            None => bootstrap(&disk, &journal_config, &config.bootstrap, draws.disk)?,
        };
        let acquaintances = Arc::new(Acquaintances::open(disk.clone())?);
        let (journal, mut recovered, loaded) = read_everything(&disk, journal_config)?;
        let shared = Arc::new(share(config, identity, draws.boot, loaded.state));
        // What the journal already holds behind its snapshot counts towards the next, or a node that
        // restarts often would never take one and its journal would grow for ever.
        let unsaved = recovered.entries.iter().map(|entry| entry.payload.len() as u64).sum();
        shared.journal_written.store(unsaved, Ordering::Relaxed);
        let inbound = Arc::new(Inbound { shared: shared.clone(), disk: disk.clone(), acquaintances });
        let replica = replica(config, &shared, &mut recovered, &loaded.voters)?;
        let applier = Applier::new(shared.identity.node, draws.boot, &shared.state.read(), loaded.term, loaded.voters);
        let snapshots = Snapshots::new(shared.clone(), disk.clone(), loaded.size);
        let (hard_state, was_cut) = (recovered.hard_state, !recovered.notes.is_empty());
        let heartbeat = config.heartbeat;
        Ok(Prepared { disk, heartbeat, shared, inbound, replica, applier, journal, hard_state, snapshots, was_cut })
    }

    /// Whether the end of the journal was cut off as torn, or something else was worth a note.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.was_cut
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Where what peers say is to be delivered.
    #[must_use]
    pub fn inbound(&self) -> Arc<Inbound<D>> {
        self.inbound.clone()
    }

    /// Wires the workers to their links.
    pub fn connect<L: Links>(self, links: L, run_snapshot: RunSnapshot<D>) -> Workers<D, L> {
        let Prepared { disk, heartbeat, shared, inbound, replica, applier, journal, hard_state, snapshots, .. } = self;
        let acquaintances = inbound.acquaintances.clone();
        let known: Vec<Member> = match replica.members().by_id.is_empty() {
            true => shared.identity.first_members.clone(),
            false => replica.members().by_id.values().cloned().collect(),
        };
        links.set_peers(&Shared::peer_addresses(&known));
        Workers {
            consensus: ConsensusWorker::new(shared.clone(), replica, links.clone(), disk, acquaintances, heartbeat),
            journal: JournalWorker::new(shared.clone(), journal, links.clone(), hard_state),
            apply: ApplyWorker::new(shared.clone(), applier, snapshots, run_snapshot, heartbeat),
            coordinator: Arc::new(NodeHandle { shared: shared.clone(), links }),
            shared,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// Which workers have something to do at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The consensus worker.
    pub consensus: bool,
    /// The journal worker.
    pub journal: bool,
    /// The apply worker.
    pub apply: bool,
}

impl<D: Disk + Clone, L> Workers<D, L> {
    /// Which workers have something to do at once.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        Waiting {
            consensus: self.shared.consensus.len() > 0,
            journal: self.shared.journal.len() > 0,
            apply: self.shared.apply.len() > 0,
        }
    }

    /// Why the node stopped, if it has.
    #[must_use]
    pub fn stopped(&self) -> Option<StopReason> {
        self.shared.stopped.borrow().clone()
    }

    /// Asks the node to stop.
    pub fn stop(&self) {
        self.shared.stop(StopReason::Requested);
    }

    /// The term this node leads in, if it does.
    #[must_use]
    pub fn leads_in(&self) -> Option<Term> {
        let standing = self.shared.standing.lock();
        (standing.role == tidelock_replica::Role::Leader).then_some(standing.term)
    }

    /// The leader this node knows.
    #[must_use]
    pub fn leader(&self) -> Option<tidelock_model::NodeId> {
        self.shared.standing.lock().leader
    }

    /// Whether the disk was found to be full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared.disk_full.load(Ordering::Relaxed)
    }

    /// Hands leadership over, if this node leads.
    pub fn step_down(&self) {
        self.shared.consensus.push(tidelock_replica::Input::StepDown);
    }

    /// Looks at the state between two turns.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state.read())
    }
}

struct Loaded {
    state: State,
    term: Term,
    voters: Bytes,
    /// Size of the snapshot file.
    size: u64,
}

/// Reads everything there is. In a thread of its own that ends: the allocator gives what a thread allocated
/// back to the system only while that thread goes on allocating, or after it ended.
fn read_everything<D: Disk + Clone>(
    disk: &D,
    config: JournalConfig,
) -> Result<(Journal<D>, Recovered, Loaded), StartError> {
    let read = std::thread::scope(|scope| scope.spawn(|| open(disk, config)).join());
    read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn open<D: Disk + Clone>(disk: &D, config: JournalConfig) -> Result<(Journal<D>, Recovered, Loaded), StartError> {
    let began = Instant::now();
    let (journal, recovered) = Journal::open(disk.clone(), config)?;
    recovered.notes.iter().for_each(|note| tracing::warn!("{note}"));
    tracing::info!(entries = recovered.entries.len(), took = ?began.elapsed(), "opened the journal");
    let began = Instant::now();
    let loaded = load_state(disk, &recovered)?;
    tracing::info!(keys = loaded.state.keys(), took = ?began.elapsed(), "loaded the state");
    Ok((journal, recovered, loaded))
}

fn load_state(disk: &impl Disk, recovered: &Recovered) -> Result<Loaded, StartError> {
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
    let (members, auth) = (state.members().clone(), Arc::clone(state.auth()));
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
        reads: Waiters::new(),
        leases: Waiters::numbered_from(boot),
        renewals: Waiters::numbered_from(boot),
        member_calls: Waiters::numbered_from(boot),
        transfers: Waiters::numbered_from(boot),
        term: AtomicU64::new(0),
        standing: Mutex::new(standing),
        members: Mutex::new(members),
        checks: AtomicBool::new(auth.enabled),
        auth: RwLock::new(auth),
        disk_full: AtomicBool::new(false),
        leader_full: AtomicBool::new(false),
        disk_bytes: AtomicU64::new(0),
        journal_written: AtomicU64::new(0),
        proposals_failed: AtomicU64::new(0),
        watchers: AtomicU64::new(0),
        measurements: Arc::default(),
        next_subscriber: AtomicU64::new(1),
        received: Mutex::default(),
        regained: AtomicBool::new(false),
        installs: AtomicU64::new(0),
        snapshots_begun: AtomicU64::new(0),
        snapshots_finished: watch::Sender::default(),
        sweeping: watch::Sender::new(true),
        stopped: watch::Sender::new(None),
    }
}
