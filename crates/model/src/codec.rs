//! The byte encoding used in log entries, snapshots and between peers: LEB128 numbers and
//! length-prefixed bytes. Small, ours, and safe on hostile input: every length is checked against
//! what is really there before anything is allocated.

use bytes::Bytes;

/// Why bytes could not be read. Whoever stored or sent them is at fault, never the reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside a value.
    #[error("the input ends early")]
    Truncated,
    /// A number does not fit, or is not written in its shortest form.
    #[error("a number is malformed")]
    BadNumber,
    /// A length, count or depth is over its limit.
    #[error("{what} is over its limit")]
    TooLarge {
        /// What was too large.
        what: &'static str,
    },
    /// A tag byte means nothing here.
    #[error("unknown {what} {tag}")]
    UnknownTag {
        /// What kind of thing was expected.
        what: &'static str,
        /// The byte found.
        tag: u8,
    },
    /// Text is not UTF-8.
    #[error("text is not UTF-8")]
    BadText,
    /// Bytes are left over after the value.
    #[error("{count} bytes follow the value")]
    Trailing {
        /// How many.
        count: usize,
    },
}

/// Room for the byte form of most values. Without it a short command's is moved five times while it grows.
const USUAL_BYTES: usize = 128;

/// A value with a byte form.
pub trait Wire: Sized {
    /// Appends the byte form to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads one value from the front of `input`.
    fn decode(input: &mut Reader) -> Result<Self, DecodeError>;

    /// The byte form alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        self.encode(&mut out);
        out
    }

    /// Reads a value that must fill `bytes` exactly.
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

/// Appends `value` as LEB128.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`put_varint`] appends.
#[must_use]
pub(crate) fn varint_len(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends a length and then the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads values off the front of a shared buffer; byte strings come out as slices of it, uncopied.
pub struct Reader {
    bytes: Bytes,
    at: usize,
    depth: usize,
}

impl Reader {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Reader {
        Reader { bytes, at: 0, depth: 0 }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Succeeds if everything was read.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing { count }),
        }
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// A flag written as 0 or 1.
    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::UnknownTag { what: "flag", tag }),
        }
    }

    /// A LEB128 number. Only the shortest form is taken, so that equal values have equal bytes.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(DecodeError::BadNumber);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                let padded = byte == 0 && shift != 0;
                return if padded { Err(DecodeError::BadNumber) } else { Ok(value) };
            }
        }
        Err(DecodeError::BadNumber)
    }

    /// A number that must fit 32 bits.
    pub fn varint32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::BadNumber)
    }

    /// How many items follow: at most `max`, and no more than the bytes left could hold.
    pub fn count(&mut self, what: &'static str, max: usize) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::BadNumber)?;
        if count > max {
            return Err(DecodeError::TooLarge { what });
        }
        if count > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// So many items, one after the other; `count` comes from [`Reader::count`].
    pub fn items<T>(
        &mut self,
        count: usize,
        decode: impl Fn(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        /// Room that is made before it is known whether the items are there.
        const ROOM_MAX: usize = 1024;
        // Collecting would not know how many to expect, and copy those it has again and again.
        let mut items = Vec::with_capacity(count.min(ROOM_MAX));
        for _ in 0..count {
            items.push(decode(self)?);
        }
        Ok(items)
    }

    /// A length-prefixed byte string, shared with the input.
    pub fn bytes(&mut self, max: usize) -> Result<Bytes, DecodeError> {
        let len = self.count("a byte string", max)?;
        let start = self.at;
        self.at += len;
        Ok(self.bytes.slice(start..self.at))
    }

    /// A length-prefixed byte string, borrowed: cheaper than [`Reader::bytes`] for what is copied anyway.
    pub fn short_bytes(&mut self, max: usize) -> Result<&[u8], DecodeError> {
        let len = self.count("a byte string", max)?;
        let start = self.at;
        self.at += len;
        Ok(&self.bytes[start..self.at])
    }

    /// Length-prefixed UTF-8.
    pub fn text(&mut self, max: usize) -> Result<String, DecodeError> {
        let bytes = self.short_bytes(max)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::BadText)
    }

    /// Runs `read` one level deeper, refusing input nested beyond `max`.
    pub fn nested<T>(
        &mut self,
        max: usize,
        read: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.depth >= max {
            return Err(DecodeError::TooLarge { what: "nesting" });
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }
}

macro_rules! wire_number {
    ($($name:ident),*) => {$(
        impl Wire for crate::$name {
            fn encode(&self, out: &mut Vec<u8>) {
                put_varint(out, self.0);
            }
            fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
                Ok(crate::$name(input.varint()?))
            }
        }
    )*};
}
wire_number!(Revision, LogIndex, Term, NodeId, ClusterId, LogTime);

impl Wire for crate::LeaseId {
    fn encode(&self, out: &mut Vec<u8>) {
        // Clients may choose negative ids; as two's complement they cost ten bytes and stay exact.
        put_varint(out, self.0 as u64);
    }
    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(crate::LeaseId(input.varint()? as i64))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode(out);
        }
    }
    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if input.flag()? { Some(T::decode(input)?) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive_the_round_trip(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut input = Reader::new(out.into());
            prop_assert_eq!(input.varint(), Ok(value));
            prop_assert_eq!(input.finish(), Ok(()));
        }
    }

    /// Digests and checksums compare bytes: one value must not have two spellings.
    #[test]
    fn a_padded_number_is_refused() {
        let mut input = Reader::new(Bytes::from_static(&[0x80, 0x00]));
        assert_eq!(input.varint(), Err(DecodeError::BadNumber));
    }

    /// A hostile length must not make us allocate before noticing that the bytes are not there.
    #[test]
    fn a_length_beyond_the_input_is_refused() {
        let mut input = Reader::new(Bytes::from_static(&[0xff, 0xff, 0x03, 1]));
        assert_eq!(input.bytes(1 << 20), Err(DecodeError::Truncated));
    }
}
