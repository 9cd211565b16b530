//! Agreement on the log. The only module that names the Raft library; everything it takes and gives
//! is in our own words, so the library could be replaced here and nowhere else.
//!
//! Rules it keeps (design section 2):
//! - the library's one source of randomness, the election timeout, is overwritten after every call
//!   from (seed, node, term) and the voters, so that a run can be replayed bit by bit;
//! - a read context is never used twice ([`ReadContext`] has no constructor that could);
//! - nothing is proposed on a follower: the library would forward it silently, we do so ourselves;
//! - bytes from the network or the disk never reach the library's protobuf parser ([`wire`]), and what no correct peer
//!   says never reaches the library ([`improper`]).
//!
//! Not here: who waits for what (`proposals`, `read_barrier`), applying (`applier`), any IO.

mod answers;
mod appends;
mod changes;
mod elections;
mod improper;
mod log_store;
mod message;
mod own_removal;
#[cfg(test)]
mod tests;
mod wire;

use bytes::Bytes;
use raft::eraftpb::{ConfState, EntryType, Message, MessageType};
use raft::{Config, RawNode, SnapshotStatus, StateRole};
use tidelock_model::{HardState, LogEntry, LogIndex, MemberChange, MemberRole, NodeId, Term, Wire};

use self::answers::Acknowledged;
use self::changes::conf_change;
pub(crate) use self::elections::Asked;
use self::elections::Held;
pub use self::improper::PeerFault;
pub use self::log_store::Fetch;
use self::log_store::LogStore;
pub(crate) use self::message::{describe, is_append, read_round};
use self::own_removal::OwnRemoval;
use crate::effects::Committed;
use crate::peer_message::ENGINE_TAG;

/// Entries for one append message. Large enough to fill a pipe, small enough that a lost message is
/// cheap to send again.
const APPEND_MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Append messages on their way to one follower.
const APPEND_MESSAGES_IN_FLIGHT_MAX: usize = 256;
/// Committed entries taken from the engine at a time.
const COMMITTED_BYTES_MAX: u64 = 16 << 20;
/// Bytes of entries that a leader takes on before any of them is agreed on: what its memory holds while followers or
/// disks stand still.
const UNCOMMITTED_BYTES_MAX: u64 = 256 << 20;

/// Index and term of the state every founder starts with.
pub const FOUNDING: (LogIndex, Term) = (LogIndex(1), Term(1));

/// What a node knows when it starts.
pub struct Start {
    /// This node.
    pub node: NodeId,
    /// Source of the election timeouts.
    pub seed: u64,
    /// Ticks without a leader before a node seeks election.
    pub election_ticks: usize,
    /// What it promised its peers.
    pub hard_state: HardState,
    /// Who votes, as of `snapshot` (see [`Consensus::voters_of`]).
    pub voters: Bytes,
    /// Index and term of the state the node starts with.
    pub snapshot: (LogIndex, Term),
    /// Entries after the snapshot.
    pub entries: Vec<LogEntry>,
}

impl Start {
    /// Whether nothing was promised or stored since the cluster was founded, as far as this disk tells.
    fn holds_only_the_founding_state(&self) -> bool {
        let promised = self.hard_state.term > FOUNDING.1 || self.hard_state.vote != NodeId(0);
        self.snapshot == FOUNDING && self.entries.is_empty() && !promised
    }
}

/// Names one round of "do I still lead?". Unique by construction: a reused one would let a deposed
/// leader serve stale reads (H7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadContext {
    node: NodeId,
    boot: u64,
    counter: u64,
}

/// Draws [`ReadContext`]s, each once.
#[derive(Debug)]
pub struct ReadContexts(ReadContext);

impl ReadContexts {
    /// For one life of one node; `boot` must differ between lives.
    #[must_use]
    pub fn new(node: NodeId, boot: u64) -> ReadContexts {
        ReadContexts(ReadContext { node, boot, counter: 0 })
    }

    /// The next one.
    pub fn draw(&mut self) -> ReadContext {
        if !tidelock_model::planted!(ReadContextReused) {
            self.0.counter += 1;
        }
        self.0
    }
}

impl ReadContext {
    const BYTES: usize = 24;

    fn to_bytes(self) -> Vec<u8> {
        [self.node.0, self.boot, self.counter].iter().flat_map(|part| part.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<ReadContext> {
        let part = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(ReadContext { node: NodeId(part(0)?), boot: part(8)?, counter: part(16)? })
    }
}

/// Part in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads.
    Leader,
    /// Follows, or learns.
    Follower,
    /// Seeks election.
    Candidate,
}

/// What has to be done next, in this order: send `send_now`; persist; then send `send_after`.
#[derive(Default)]
pub struct Ready {
    /// To be named when it is durable ([`Consensus::persisted`]).
    pub number: u64,
    /// Entries to append; they replace what has the same or a later index.
    pub entries: Vec<LogEntry>,
    /// The promise to store.
    pub hard_state: Option<HardState>,
    /// Whether anything here must be durable before `send_after` goes out.
    pub must_sync: bool,
    /// Frames that may leave at once.
    pub send_now: Vec<(NodeId, Bytes)>,
    /// Frames that may leave once this and all before it is durable.
    pub send_after: Vec<(NodeId, Bytes)>,
    /// Followers that need a snapshot rather than entries, with the message to deliver after it.
    pub snapshots: Vec<SnapshotWanted>,
    /// Entries that are agreed on, to be carried out in order.
    pub committed: Vec<Committed>,
    /// Rounds that were confirmed, and the index a reader must have seen applied.
    pub reads: Vec<(ReadContext, LogIndex)>,
    /// A snapshot from the leader that replaces state and log.
    pub install: Option<(LogIndex, Term)>,
    /// Entries to read back from the journal.
    pub fetches: Vec<Fetch>,
}

/// A follower that has to be sent a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotWanted {
    /// Who.
    pub to: NodeId,
    /// The snapshot's index.
    pub index: LogIndex,
    /// What it must be told once it has the snapshot.
    pub message: Bytes,
}

/// The agreement engine of one node.
pub struct Consensus {
    raw: RawNode<LogStore>,
    seed: u64,
    /// The term and election timeout that were last fixed.
    fixed: Option<(u64, usize)>,
    introduced: bool,
    /// Readies handed out whose term or vote is not durable yet.
    unsynced_promise: Option<u64>,
    /// The last ready that agreed on a change of members, while it is not durable.
    unsynced_membership: Option<u64>,
    /// The last ready with entries or a snapshot, while it is not durable.
    unsynced_log: Option<u64>,
    /// Who asked for a pre-vote too early, lately.
    held: Option<Held>,
    /// Ticks for which this node does not agree to whoever comes after it.
    insists: u32,
    /// See [`Consensus::take_asked`].
    asked: Option<Asked>,
    /// What a leader was told last.
    acknowledged: Option<Acknowledged>,
    own_removal: OwnRemoval,
    /// Index up to which entries were handed out as committed.
    handed_out: u64,
    /// Index up to which they were carried out. A snapshot may be carried out before the log's restart
    /// behind it is durable; the engine is told once both are true.
    carried_out: u64,
}

impl Consensus {
    /// Starts the engine. Fails only on a configuration no cluster can have.
    pub fn new(start: Start) -> Result<Consensus, String> {
        Consensus::with_uncommitted_max(start, UNCOMMITTED_BYTES_MAX)
    }

    /// As [`Consensus::new`], for tests that do not want to fill so much memory.
    pub(crate) fn with_uncommitted_max(start: Start, uncommitted_bytes_max: u64) -> Result<Consensus, String> {
        let config = Config {
            id: start.node.0,
            election_tick: start.election_ticks,
            heartbeat_tick: 1,
            applied: start.snapshot.0.0,
            max_size_per_msg: APPEND_MESSAGE_BYTES_MAX,
            max_inflight_msgs: APPEND_MESSAGES_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            max_uncommitted_size: uncommitted_bytes_max,
            read_only_option: match tidelock_model::planted!(LeaseBasedReads) {
                true => raft::ReadOnlyOption::LeaseBased,
                false => raft::ReadOnlyOption::Safe,
            },
            ..Config::default()
        };
        config.validate().map_err(|error| error.to_string())?;
        let (seed, handed_out) = (start.seed, start.snapshot.0.0);
        let introduced = !start.holds_only_the_founding_state();
        let store = LogStore::new(start)?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, store, &logger).map_err(|error| error.to_string())?;
        let mut consensus = Consensus {
            raw,
            seed,
            fixed: None,
            introduced,
            unsynced_promise: None,
            unsynced_membership: None,
            unsynced_log: None,
            held: None,
            insists: 0,
            asked: None,
            acknowledged: None,
            own_removal: OwnRemoval::default(),
            handed_out,
            carried_out: handed_out,
        };
        consensus.fix_election_timeout();
        Ok(consensus)
    }

    /// The voters of a cluster founded by `members`, in the form snapshots keep them.
    #[must_use]
    pub fn voters_of(members: &[(NodeId, MemberRole)]) -> Bytes {
        let ids = |role| members.iter().filter(move |(_, r)| *r == role).map(|(id, _)| id.0).collect::<Vec<_>>();
        wire::encode_voters(&ConfState::from((ids(MemberRole::Voter), ids(MemberRole::Learner)))).into()
    }

    /// Every other founder knows this node by its disk: from now on it may promise things. Until then a
    /// founder that holds nothing but the founding state, which may be new or may have lost its disk,
    /// neither votes nor acknowledges nor seeks election (H21).
    pub fn introduce(&mut self) {
        self.introduced = true;
    }

    /// Whether this node may make promises.
    #[must_use]
    pub fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// One tick of time.
    pub fn tick(&mut self) {
        if !self.introduced {
            return;
        }
        if self.is_leader() || !self.must_wait_for_disk() {
            self.raw.tick();
        } else {
            // It hears no leader all the same, and votes for who asks.
            self.raw.raft.election_elapsed += 1;
        }
        self.fix_election_timeout();
        self.tick_held();
    }

    /// Takes a message from a peer.
    pub fn step(&mut self, from: NodeId, message: Bytes) -> Result<(), PeerFault> {
        let message = wire::decode_message(message)?;
        match message.get_msg_type() {
            // The engine would install what is not here.
            MessageType::MsgSnapshot => Err(PeerFault::Improper("a snapshot without its content")),
            _ => self.take(from, message),
        }
    }

    /// Takes the message of a snapshot that was received whole.
    pub fn step_snapshot(&mut self, from: NodeId, message: Bytes) -> Result<(), PeerFault> {
        let message = wire::decode_message(message)?;
        match message.get_msg_type() {
            MessageType::MsgSnapshot => self.take(from, message),
            _ => Err(PeerFault::Improper("another message with a snapshot's content")),
        }
    }

    fn take(&mut self, from: NodeId, message: Message) -> Result<(), PeerFault> {
        if message.from != from.0 {
            return Err(PeerFault::Improper("a message in another node's name"));
        }
        self.check(&message)?;
        if !self.introduced || self.is_ignored(&message) {
            return Ok(());
        }
        self.own_removal.note(&message);
        self.step_or_hold(message);
        Ok(())
    }

    /// What a correct peer may say, and the library must not hear.
    fn is_ignored(&self, message: &Message) -> bool {
        match message.get_msg_type() {
            // A follower would pass it on in the asker's name, and nobody takes it from there. Who asks, asks again.
            MessageType::MsgReadIndex => !self.is_leader(),
            // It may make a voter that is alone the leader on the spot.
            MessageType::MsgTimeoutNow
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgRequestVoteResponse => self.must_wait_for_disk(),
            _ => false,
        }
    }

    /// Appends an entry to the log. `false`: nothing was appended. This node does not lead, is handing leadership over
    /// (a matter of moments), or holds as much as it may of what is not agreed on (which lasts while disks or followers
    /// stand still).
    #[must_use]
    pub fn propose(&mut self, payload: Vec<u8>) -> bool {
        self.is_leader() && self.raw.propose(Vec::new(), payload).is_ok()
    }

    /// Proposes a change of members. `false`: does not lead, or another change is under way.
    #[must_use]
    pub fn propose_change(&mut self, change: &MemberChange) -> bool {
        if !self.is_leader() || self.raw.raft.has_pending_conf() || self.is_joint() {
            return false;
        }
        self.raw.propose_conf_change(change.to_bytes(), conf_change(change)).is_ok()
    }

    /// Starts a round of "do I (or does the leader) still lead?". A lost round is simply never
    /// answered: start another, with another context.
    pub fn read_index(&mut self, context: ReadContext) {
        self.raw.read_index(context.to_bytes());
    }

    /// Everything up to the ready of this number is durable.
    pub fn persisted(&mut self, number: u64) {
        self.raw.on_persist_ready(number);
        if self.unsynced_promise.is_some_and(|unsynced| unsynced <= number) {
            self.unsynced_promise = None;
        }
        if self.unsynced_membership.is_some_and(|unsynced| unsynced <= number) {
            self.unsynced_membership = None;
        }
        if self.unsynced_log.is_some_and(|unsynced| unsynced <= number) {
            self.unsynced_log = None;
        }
        self.tell_applied();
        self.fix_election_timeout();
    }

    /// Entries up to `index` were carried out.
    pub fn applied(&mut self, index: LogIndex) {
        // A snapshot may have overtaken entries that were still being carried out.
        self.carried_out = self.carried_out.max(index.0);
        self.tell_applied();
    }

    fn tell_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let index = self.carried_out.min(log.persisted).min(log.committed);
        if index > log.applied() {
            self.raw.advance_apply_to(index);
        }
        let keep_from = self.raw.raft.raft_log.applied().min(self.raw.raft.raft_log.persisted);
        self.raw.mut_store().evict(keep_from);
    }

    /// The journal answered a [`Fetch`]; no entries means that it could not. Then the log begins behind them from now on,
    /// and who needs them is sent a snapshot: asked again at once, a disk with a bad place would do nothing else.
    pub fn entries_fetched(&mut self, fetch: Fetch, entries: Vec<LogEntry>) {
        if entries.is_empty() {
            self.raw.mut_store().trim(fetch.from.0 + 1);
        }
        let context = self.raw.mut_store().keep_fetched(fetch, entries);
        self.raw.on_entries_fetched(context);
        self.raw.mut_store().forget_fetched();
    }

    /// The journal now starts at `first_index`.
    pub fn trimmed(&mut self, first_index: LogIndex) {
        self.raw.mut_store().trim(first_index.0);
    }

    /// A snapshot of this node's state is durable and may be sent to followers.
    pub fn snapshot_taken(&mut self, index: LogIndex, term: Term, voters: &Bytes) {
        if let Ok(voters) = wire::decode_voters(voters) {
            self.raw.mut_store().set_snapshot(index.0, term.0, voters);
        }
    }

    /// Whether a follower asked for a snapshot and there was none to send.
    pub fn take_snapshot_wish(&mut self) -> bool {
        self.raw.mut_store().take_snapshot_wish()
    }

    /// A snapshot was delivered to `to`, or was not.
    pub fn snapshot_sent(&mut self, to: NodeId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    /// The last message to `to` was probably lost.
    pub fn unreachable(&mut self, to: NodeId) {
        self.raw.report_unreachable(to.0);
    }

    /// Begins to hand leadership to `to`.
    pub fn transfer(&mut self, to: NodeId) {
        self.raw.transfer_leader(to.0);
        self.fix_election_timeout();
    }

    /// Seeks election at once.
    pub fn campaign(&mut self) {
        if self.must_wait_for_disk() {
            return;
        }
        let _ = self.raw.campaign();
        self.fix_election_timeout();
    }

    /// What to do next, if anything.
    pub fn ready(&mut self) -> Option<Ready> {
        if !self.raw.has_ready() && !self.raw.store().has_fetches() {
            return None;
        }
        let mut given = self.raw.ready();
        let mut ready = Ready { number: given.number(), must_sync: given.must_sync(), ..Ready::default() };
        ready.hard_state = given.hs().map(wire::hard_state_from);
        if self.agrees_on_membership(&given) {
            ready.must_sync = true;
            ready.hard_state = Some(wire::hard_state_from(&self.raw.raft.hard_state()));
            self.unsynced_membership = Some(given.number());
        }
        if self.promises(&given) {
            self.unsynced_promise = Some(given.number());
        }
        if !given.entries().is_empty() || !given.snapshot().is_empty() {
            self.unsynced_log = Some(given.number());
        }
        if !given.snapshot().is_empty() {
            let metadata = given.snapshot().get_metadata();
            ready.install = Some((LogIndex(metadata.index), Term(metadata.term)));
            self.handed_out = metadata.index;
            self.own_removal.held_back.clear();
            self.raw.mut_store().restart(metadata);
            self.voters_changed();
        }
        let entries = given.take_entries();
        ready.entries = entries.iter().map(wire::entry_from).collect();
        if let Some(hard_state) = given.hs() {
            self.raw.mut_store().set_hard_state(hard_state.clone());
        }
        self.raw.mut_store().append(entries);
        ready.reads = given
            .take_read_states()
            .iter()
            .filter_map(|read| Some((ReadContext::from_bytes(&read.request_ctx)?, LogIndex(read.index))))
            .collect();
        // A leader sends before its own sync, but not in a term that it may forget: a voter that is alone elects itself.
        let wait = self.unsynced_membership.is_some() || self.unsynced_promise.is_some();
        self.route(given.take_messages(), wait, &mut ready);
        self.route(given.take_persisted_messages(), true, &mut ready);
        let committed = given.take_committed_entries();
        self.raw.advance_append_async(given);
        ready.committed = self.hand_out(committed);
        ready.fetches = self.raw.mut_store().take_fetches();
        self.fix_election_timeout();
        Some(ready)
    }

    /// Whether this ready enters a term or gives a vote. That more is known to be committed promises nothing.
    fn promises(&self, given: &raft::Ready) -> bool {
        let known = self.raw.store().hard_state();
        given.hs().is_some_and(|now| (now.term, now.vote) != (known.term, known.vote))
    }

    /// Whether this ready is where a change of members is agreed on or carried out. That it is agreed on must be
    /// durable here before anybody is told: whoever is removed leaves when told, and a node that came back without
    /// knowing would wait for its vote for ever.
    fn agrees_on_membership(&self, given: &raft::Ready) -> bool {
        let pending = self.raw.raft.pending_conf_index;
        let known = self.raw.store().hard_state().commit;
        given.committed_entries().iter().any(|entry| entry.get_entry_type() != EntryType::EntryNormal)
            || given.hs().is_some_and(|now| known < pending && pending <= now.commit)
    }

    /// Sorts messages into those that may leave now, those that must wait for the disk, and snapshots.
    fn route(&self, messages: Vec<Message>, wait: bool, ready: &mut Ready) {
        for mut message in messages {
            let to = NodeId(message.to);
            if !self.mend(&mut message) {
                continue;
            }
            // These say nothing about entries, so a slow disk must not hold them back: a follower
            // whose disk is busy is alive. They do speak in the name of a term, which must be durable.
            let quick = matches!(message.get_msg_type(), MessageType::MsgHeartbeatResponse | MessageType::MsgReadIndex)
                && self.unsynced_promise.is_none()
                || tidelock_model::planted!(FollowerAcksBeforeSync);
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let index = LogIndex(message.get_snapshot().get_metadata().index);
                let message = wire::encode_message(&[], &message).into();
                ready.snapshots.push(SnapshotWanted { to, index, message });
                continue;
            }
            let frame = Bytes::from(wire::encode_message(&[ENGINE_TAG], &message));
            match wait && !quick {
                true => ready.send_after.push((to, frame)),
                false => ready.send_now.push((to, frame)),
            }
        }
    }

    /// Whether this node leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// This node's part.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// The leader, if one is known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        Some(NodeId(self.raw.raft.leader_id)).filter(|id| id.0 != 0)
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// The last index agreed on, as far as known here.
    #[must_use]
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// The last index handed out for applying.
    #[must_use]
    pub fn handed_out(&self) -> LogIndex {
        LogIndex(self.handed_out)
    }

    /// The last index of the log.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index())
    }

    /// Whether the cluster is between two sets of voters.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.raw.store().voters().voters_outgoing.is_empty()
    }

    /// On the leader: what is known of each other member: the last index it holds, and whether it was
    /// heard of lately.
    pub fn progress(&self) -> impl Iterator<Item = (NodeId, LogIndex, bool)> + '_ {
        let me = self.raw.raft.id;
        let known = self.raw.raft.prs().iter().filter(move |(id, _)| **id != me);
        known.map(|(id, progress)| (NodeId(*id), LogIndex(progress.matched), progress.recent_active))
    }
}
