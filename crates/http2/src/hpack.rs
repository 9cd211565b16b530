//! HPACK (RFC 7541): how the fields of a request are squeezed into a few bytes.
//!
//! Both sides keep a table of fields that were sent before and name them by number. Reading is in [`Decoder`], in
//! full; writing in [`Encoder`], which sends what every answer has as numbers and everything else plainly.

mod decoder;
mod encoder;
mod huffman;
mod table;

pub use decoder::{Decoder, HpackError};
pub use encoder::Encoder;

use bytes::Bytes;

/// A name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// In lower case; begins with a colon if it is the protocol's own.
    pub name: Bytes,
    /// Any bytes.
    pub value: Bytes,
}

impl Field {
    /// What it counts in tables and lists: 32 bytes stand for its bookkeeping.
    #[must_use]
    pub fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}
