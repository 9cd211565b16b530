//! One node of the cluster without IO: agreement on the log, who waits for what, reads that are never
//! stale, watch delivery, the lease clock.
//!
//! Two halves, so that they can run on two threads: [`Replica`] agrees on entries and never touches
//! the state; [`Applier`] carries them out and never talks to peers. Between them flow plain values
//! ([`Task`] down, [`Input`] back). A simulator runs both in one thread.
//!
//! Not here: any IO, clock or randomness; wire protocols of clients; what a command means (`state`).

mod applier;
mod broken_link;
// The engine's message types are generated; setting their fields one by one is their own idiom.
#[allow(clippy::field_reassign_with_default)]
pub mod consensus;
mod digests;
mod effects;
pub mod glance;
mod lease_clock;
mod member_calls;
mod peer_message;
mod proposals;
mod read_barrier;
mod renewals;
mod replica;
pub mod watch_hub;

pub use applier::{Applier, DIGEST_EVERY, Observer, Report, expiry_proposal};
pub use consensus::{PeerFault, Ready, Role, Start};
pub use effects::{
    Call, CallFailure, Committed, Effects, Fatal, Input, LeaseCall, LeaseReply, MemberRefusal, Renewal, RenewalReply,
    Reply, Standing, Task, Token,
};
pub use lease_clock::LeaseClock;
pub use renewals::RENEWALS_MAX;
pub use replica::{Replica, Settings, carries_entries};
