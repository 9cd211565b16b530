//! The side of a replica that owns the state: carries out what was agreed on, tells watchers, keeps
//! the lease clock.
//!
//! Per batch: change the state, hand the events to the watch hub, and only then let readers and
//! proposers see it (the caller publishes by giving up its lock, then answers). So an event is on its
//! way before any reply that shows its change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidelock_model::native_keys;
use tidelock_model::{Batch, Caller, Command, LeaseExpiry, LogIndex, NodeId, Origin, Outcome, Proposal, Term, Wire};
use tidelock_state::{Effects, LeaseChange, State};

use crate::effects::{Committed, LeaseCall, LeaseReply, Renewal, RenewalReply};
use crate::lease_clock::{LeaseClock, Look, Renewing};
use crate::watch_hub::WatchHub;

/// How often members compare the digests of their states, in log entries.
pub const DIGEST_EVERY: u64 = 1000;

/// What one step of applying brought about.
#[derive(Default)]
pub struct Report {
    /// Outcomes of proposals that came in at this node, by number.
    pub outcomes: Vec<(u64, Outcome)>,
    /// Proposals of this node whose outcome cannot be told: they were carried out before, unseen.
    pub unknown: Vec<u64>,
    /// Answers to calls about leases, by who asked.
    pub lease_replies: Vec<(NodeId, LeaseReply)>,
    /// Digests to compare with the other members.
    pub digests: Vec<(LogIndex, u128)>,
}

/// Sees everything a node carries out, as it happens: how the simulator knows what really changed.
pub trait Observer: Send {
    /// An entry was carried out, with these effects if it held commands.
    fn applied(&mut self, state: &State, effects: Option<&Effects>);

    /// The state was replaced by a snapshot.
    fn installed(&mut self, state: &State);
}

/// What carries out entries on one node.
pub struct Applier {
    node: NodeId,
    boot: u64,
    /// All watchers of this node.
    pub hub: WatchHub,
    /// The leader's clock over leases.
    pub clock: LeaseClock,
    /// Term of the last entry carried out, for snapshots.
    applied_term: Term,
    /// Who votes as of the last entry carried out, for snapshots.
    voters: Bytes,
    /// A term this node leads in, until an entry of that term is carried out.
    about_to_lead: Option<Term>,
    observer: Option<Box<dyn Observer>>,
}

impl Applier {
    /// For a node that starts with `state`.
    #[must_use]
    pub fn new(node: NodeId, boot: u64, state: &State, applied_term: Term, voters: Bytes) -> Applier {
        Applier {
            node,
            boot,
            hub: WatchHub::new(state.revision()),
            clock: LeaseClock::default(),
            applied_term,
            voters,
            about_to_lead: None,
            observer: None,
        }
    }

    /// Has everything that is carried out from now on seen by `observer`.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
    }

    fn show(&mut self, state: &State, effects: Option<&Effects>) {
        if let Some(observer) = &mut self.observer {
            observer.applied(state, effects);
        }
    }

    /// Term of the last entry carried out and who votes as of it.
    #[must_use]
    pub fn position(&self) -> (Term, Bytes) {
        (self.applied_term, self.voters.clone())
    }

    /// Carries out one entry.
    pub fn apply(&mut self, state: &mut State, entry: Committed, report: &mut Report) {
        let (index, term) = (entry.index(), entry.term());
        match entry {
            Committed::Nothing { .. } => {
                state.apply_nothing(index);
                self.show(state, None);
            }
            Committed::Batch { bytes, .. } => self.apply_batch(state, index, term, bytes, report),
            Committed::Membership { change, voters, .. } => {
                let effects = match change {
                    Some(change) => Some(state.apply_membership(index, &change)),
                    None => {
                        state.apply_nothing(index);
                        None
                    }
                };
                if !tidelock_model::planted!(SnapshotForgetsVoters) {
                    self.voters = voters;
                }
                self.show(state, effects.as_ref());
                if let Some(effects) = effects {
                    self.hub.publish(&effects.events, state.revision());
                }
            }
        }
        self.applied_term = term;
        if self.about_to_lead == Some(term) {
            // Everything an earlier leader had agreed on is in the state now.
            self.about_to_lead = None;
            self.clock.lead(term, state.leases());
        }
        if index.0 % DIGEST_EVERY == 0 {
            report.digests.push((index, state.digest()));
        }
    }

    fn apply_batch(&mut self, state: &mut State, index: LogIndex, term: Term, bytes: Bytes, report: &mut Report) {
        let Ok(batch) = Batch::from_bytes(bytes) else {
            // The leader packed what it did not read. All members skip it alike (Z1); whoever sent it
            // gets no answer.
            state.apply_unreadable(index);
            return self.show(state, None);
        };
        let auth = Arc::clone(state.auth());
        let effects = state.apply(index, term, batch);
        if !Arc::ptr_eq(&auth, state.auth()) {
            // Before the events of this very entry are handed out.
            self.hub.check_callers(state.auth());
        }
        self.show(state, Some(&effects));
        self.hub.publish(&effects.events, state.revision());
        for change in effects.leases {
            match change {
                LeaseChange::Granted { id, ttl_s, .. } => self.clock.grant(id, ttl_s),
                LeaseChange::Renewed { id, ttl_s, .. } => self.clock.regrant(id, ttl_s),
                LeaseChange::Ended { id } => {
                    if native_keys::is_session(id) {
                        self.hub.session_ended(id);
                    }
                    let waiting = self.clock.end(id);
                    let gone = |(from, call): (NodeId, LeaseCall)| (from, LeaseReply { token: call.token, info: None });
                    report.lease_replies.extend(waiting.into_iter().map(gone));
                }
            }
        }
        for mut applied in effects.applied {
            if tidelock_model::planted!(HeaderOfTheWholeBatch) {
                applied.outcome.revision = state.revision();
            }
            if applied.origin.node != self.node || applied.origin.boot != self.boot {
                continue;
            }
            match applied.duplicate {
                // Either it was answered when it was first carried out, or that happened inside a
                // snapshot this node was sent, and nobody can tell.
                true => report.unknown.push(applied.origin.number),
                false => report.outcomes.push((applied.origin.number, applied.outcome)),
            }
        }
    }

    /// Follows the node's part: a leader keeps the lease clock, from the first entry of its term on.
    pub fn leading(&mut self, state: &State, term: Option<Term>) {
        match term {
            Some(term) if self.applied_term == term => self.clock.lead(term, state.leases()),
            None if tidelock_model::planted!(ExpiryByDeposedLeader) => {}
            other => {
                self.clock.stop();
                self.about_to_lead = other;
            }
        }
    }

    /// Answers calls about leases. Calls that cannot be answered now get none; they are asked again.
    pub fn lease_calls(&mut self, from: NodeId, calls: Vec<LeaseCall>, report: &mut Report) {
        for call in calls {
            if let Look::Known(info) = self.clock.call(from, call) {
                report.lease_replies.push((from, LeaseReply { token: call.token, info }));
            }
        }
    }

    /// Renews many leases. Who does not lead (any more) gives no answer; the batch is sent again.
    pub fn renew(&mut self, renewal: &Renewal) -> Option<RenewalReply> {
        self.clock.leading()?;
        let mut reply = RenewalReply { token: renewal.token, gone: Vec::new(), ending: Vec::new() };
        for lease in &renewal.leases {
            match self.clock.renew(*lease) {
                Renewing::Renewed => {}
                Renewing::Ending => reply.ending.push(*lease),
                Renewing::Gone => reply.gone.push(*lease),
            }
        }
        Some(reply)
    }

    /// Time passes; to be told before what happened in it is carried out. See [`LeaseClock::advance`].
    pub fn advance(&mut self, elapsed: Duration, believed: Duration) {
        self.clock.advance(elapsed, believed);
    }

    /// The term and the leases to end, if any.
    pub fn due(&mut self, state: &State) -> Option<(Term, Vec<LeaseExpiry>)> {
        // The clock follows every entry, so a lease that it knows is there; one that is not would be judged in `apply`.
        let granted_at = |lease| state.lease(lease).map_or(LogIndex(0), |lease| lease.granted_at);
        let due = self.clock.due(|lease| (granted_at(lease), state.lease_keys_count(lease)));
        let term = self.clock.leading()?;
        (!due.is_empty()).then_some((term, due))
    }

    /// The state was replaced by a snapshot.
    pub fn installed(&mut self, state: &State, term: Term, voters: Bytes) {
        self.hub.check_callers(state.auth());
        self.hub.jumped(state.revision());
        self.clock.stop();
        self.about_to_lead = None;
        self.applied_term = term;
        self.voters = voters;
        if let Some(observer) = &mut self.observer {
            observer.installed(state);
        }
    }
}

/// The proposal with which a leader ends leases.
#[must_use]
pub fn expiry_proposal(origin: Origin, term: Term, leases: Vec<LeaseExpiry>) -> Bytes {
    Proposal { origin, request: None, caller: Caller::Internal, command: Command::LeaseExpire { term, leases } }
        .to_bytes()
        .into()
}
