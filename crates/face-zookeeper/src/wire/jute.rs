//! Jute, the encoding of ZooKeeper's records: big-endian numbers, strings, buffers and vectors with a length
//! in front, where a length of -1 means null.
//!
//! [`Reader`] checks every length and count against the bytes that are left before it takes memory for it.
//! The `put_*` functions append to a buffer and cannot fail.

use bytes::{Buf, Bytes};

/// Why bytes are not the record they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The record goes on after the frame's end.
    #[error("{needed} more bytes are needed, {left} are left")]
    Truncated {
        /// How many bytes the next value takes.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A string or buffer has a length below -1.
    #[error("a length of {0}")]
    NegativeLength(i32),
    /// A vector cannot have that many items in the bytes that are left.
    #[error("{count} items in {left} bytes")]
    TooManyItems {
        /// How many items the vector claims to have.
        count: i32,
        /// How many bytes there are for them.
        left: usize,
    },
    /// A value that must be there is null.
    #[error("{0} is null")]
    Null(&'static str),
    /// A number names nothing.
    #[error("{value} is no {what}")]
    UnknownValue {
        /// What it should name.
        what: &'static str,
        /// The number.
        value: i32,
    },
}

/// The fewest bytes a string takes: its length.
pub(super) const MIN_STRING: usize = 4;

/// Reads one frame from its beginning to its end.
pub(super) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(super) fn new(frame: Bytes) -> Reader {
        Reader { rest: frame }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What was not read.
    #[cfg(any(test, feature = "client"))]
    pub(super) fn rest(self) -> Bytes {
        self.rest
    }

    pub(super) fn int(&mut self) -> Result<i32, Defect> {
        self.need(4)?;
        Ok(self.rest.get_i32())
    }

    pub(super) fn long(&mut self) -> Result<i64, Defect> {
        self.need(8)?;
        Ok(self.rest.get_i64())
    }

    /// Any byte but 0 is true, as in Java.
    pub(super) fn boolean(&mut self) -> Result<bool, Defect> {
        self.need(1)?;
        Ok(self.rest.get_u8() != 0)
    }

    /// A slice of the frame, or null.
    pub(super) fn buffer(&mut self) -> Result<Option<Bytes>, Defect> {
        let length = self.int()?;
        if length == -1 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| Defect::NegativeLength(length))?;
        self.need(length)?;
        Ok(Some(self.rest.split_to(length)))
    }

    /// Bytes that are not UTF-8 become U+FFFD: ZooKeeper reads them so, and no legal path has one.
    pub(super) fn string(&mut self) -> Result<Option<String>, Defect> {
        let bytes = self.buffer()?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A string that must not be null.
    pub(super) fn required_string(&mut self, what: &'static str) -> Result<String, Defect> {
        self.string()?.ok_or(Defect::Null(what))
    }

    /// Items of at least `min_item` bytes each, or null. ZooKeeper takes any negative count for null.
    pub(super) fn vector<T>(
        &mut self,
        min_item: usize,
        mut item: impl FnMut(&mut Reader) -> Result<T, Defect>,
    ) -> Result<Option<Vec<T>>, Defect> {
        let count = self.int()?;
        let Ok(items) = usize::try_from(count) else { return Ok(None) };
        let left = self.rest.len();
        // Checked before anything is reserved: the count is the client's word, the bytes are facts.
        if items > left / min_item {
            return Err(Defect::TooManyItems { count, left });
        }
        let mut all = Vec::with_capacity(items);
        for _ in 0..items {
            all.push(item(self)?);
        }
        Ok(Some(all))
    }

    fn need(&self, needed: usize) -> Result<(), Defect> {
        let left = self.rest.len();
        if left < needed { Err(Defect::Truncated { needed, left }) } else { Ok(()) }
    }
}

pub(super) fn put_int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_long(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_bool(out: &mut Vec<u8>, value: bool) {
    out.push(u8::from(value));
}

/// The length or count of what follows. What does not fit is told as `i32::MAX`; such a packet is far longer
/// than `MAX_REPLY` and is never sent.
pub(super) fn put_length(out: &mut Vec<u8>, length: usize) {
    put_int(out, i32::try_from(length).unwrap_or(i32::MAX));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// A buffer that may be null.
pub(super) fn put_buffer(out: &mut Vec<u8>, buffer: Option<&[u8]>) {
    match buffer {
        Some(bytes) => put_bytes(out, bytes),
        None => put_int(out, -1),
    }
}

pub(super) fn put_string(out: &mut Vec<u8>, string: &str) {
    put_bytes(out, string.as_bytes());
}

/// Writes what `body` writes as one packet, with its length in front, and says how long it is.
pub(super) fn put_packet(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    put_int(out, 0);
    body(out);
    let length = out.len() - start - 4;
    let prefix = i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes();
    out[start..start + 4].copy_from_slice(&prefix);
    length
}
