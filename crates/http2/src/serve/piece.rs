//! Part of an answer.

use bytes::{Buf, Bytes};

/// Bytes of its own, and then some that it shares with other answers, which are not copied if that can be helped. Sent as
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Come first.
    pub own: Bytes,
    /// Come after them.
    pub shared: Bytes,
}

impl From<Bytes> for Piece {
    fn from(own: Bytes) -> Piece {
        Piece { own, shared: Bytes::new() }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.own.len() + self.shared.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.own.is_empty() { &self.shared } else { &self.own }
    }

    fn advance(&mut self, count: usize) {
        let first = count.min(self.own.len());
        self.own.advance(first);
        self.shared.advance(count - first);
    }
}
