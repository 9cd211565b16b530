//! What a frame between members says, for people and for observers: traces of a simulated run, and the
//! check that no round of "do I still lead?" is asked twice under one name (H7). No decision is made here.

use bytes::Bytes;
use tidelock_model::NodeId;

use crate::consensus;
use crate::peer_message::PeerMessage;

/// The round of "do I still lead?" that a frame asks for: who asks, in which life, its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadRound {
    /// Who asks.
    pub node: NodeId,
    /// Which of its lives.
    pub boot: u64,
    /// Its count within that life.
    pub counter: u64,
}

/// The round a frame asks the leader for, if that is what it does. Cheap for all other frames.
#[must_use]
pub fn read_round(frame: &Bytes) -> Option<ReadRound> {
    consensus::read_round(frame.strip_prefix(&[1])?)
}

/// One line about a frame.
#[must_use]
pub fn describe(frame: &Bytes) -> String {
    match PeerMessage::from_frame(frame.clone()) {
        Ok(PeerMessage::Raft(message)) => consensus::describe(message),
        Ok(PeerMessage::Forward(proposals)) => format!("{} proposals for the leader", proposals.len()),
        Ok(PeerMessage::LeaseCalls(calls)) => format!("{} calls about leases", calls.len()),
        Ok(PeerMessage::LeaseReplies(replies)) => format!("{} answers about leases", replies.len()),
        Ok(PeerMessage::Renewal(renewal)) => format!("{} leases to renew", renewal.leases.len()),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("malformed: {error}"),
    }
}
