//! What is to be written to a client: bytes, and at their end perhaps some that other clients get too.
//!
//! Those are not copied as long as nothing comes after them. When hundreds of clients are told the same, that is what
//! spares the memory of each of them from being fetched and filled, which takes longer than anything else about it.

use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Below this, copying is cheaper than a second part of a write.
const SHARED_BYTES_MIN: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Out {
    bytes: BytesMut,
    /// Comes after `bytes`.
    shared: Bytes,
}

impl Out {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.shared.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, to put more at its end.
    pub(crate) fn end(&mut self) -> &mut BytesMut {
        if !self.shared.is_empty() {
            let shared = std::mem::take(&mut self.shared);
            self.bytes.extend_from_slice(&shared);
        }
        &mut self.bytes
    }

    /// Puts something at the end that others get too.
    pub(crate) fn put_shared(&mut self, shared: Bytes) {
        let bytes = self.end();
        if shared.len() < SHARED_BYTES_MIN {
            bytes.extend_from_slice(&shared);
        } else {
            self.shared = shared;
        }
    }

    /// The two parts of it, to be written one after the other.
    pub(crate) fn parts(&self) -> [IoSlice<'_>; 2] {
        [IoSlice::new(&self.bytes), IoSlice::new(&self.shared)]
    }

    /// So much of it was written. What is kept of the memory then is `bytes_kept` at most.
    pub(crate) fn wrote(&mut self, count: usize, bytes_kept: usize) {
        let first = count.min(self.bytes.len());
        self.bytes.advance(first);
        self.shared.advance(count - first);
        if self.shared.is_empty() {
            // Others may be done with it.
            self.shared = Bytes::new();
        }
        if self.bytes.is_empty() && self.bytes.capacity() > bytes_kept {
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waiting(out: &Out) -> Vec<u8> {
        out.parts().iter().flat_map(|part| part.iter().copied()).collect()
    }

    proptest! {
        /// A byte that is lost or told twice between two parts of a write breaks every stream of the connection.
        #[test]
        fn whatever_is_shared_and_however_it_is_written_the_bytes_come_in_order(
            steps in proptest::collection::vec((any::<bool>(), 0usize..900, 0usize..2000), 1..40)
        ) {
            let (mut out, mut expected, mut written) = (Out::default(), Vec::new(), Vec::new());
            for (number, (is_shared, bytes, taken)) in (0u8..).zip(steps) {
                let data = vec![number; bytes];
                expected.extend_from_slice(&data);
                if is_shared {
                    out.put_shared(data.into());
                } else {
                    out.end().extend_from_slice(&data);
                }
                let taken = taken.min(out.len());
                written.extend_from_slice(&waiting(&out)[..taken]);
                out.wrote(taken, 16);
            }
            written.extend_from_slice(out.end());
            prop_assert_eq!(written, expected);
        }
    }
}
