//! etcd's messages as bytes, for the requests that are sent by the hundred thousand; field numbers are those of
//! `etcd-api/proto`. Seldom ones are made by `prost`, and so is every answer that is looked at closely.

/// Paths of the calls.
pub(crate) mod method {
    pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
    pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
    pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
    pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
    pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    pub(crate) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    pub(crate) const LOCK: &str = "/v3lockpb.Lock/Lock";
    pub(crate) const UNLOCK: &str = "/v3lockpb.Lock/Unlock";
}

const VARINT: u32 = 0;
const LENGTH: u32 = 2;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// A number.
pub(crate) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field << 3 | VARINT));
    varint(out, value);
}

/// The head of a field of `length` bytes; they follow.
pub(crate) fn length(out: &mut Vec<u8>, field: u32, length: usize) {
    varint(out, u64::from(field << 3 | LENGTH));
    varint(out, length as u64);
}

/// Bytes.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    length(out, field, value.len());
    out.extend_from_slice(value);
}

/// Bytes of a field of ours (numbers below 16) with `length` bytes in it.
pub(crate) fn field_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}

/// A PutRequest of a value of `value_bytes` bytes that `value` writes.
pub(crate) fn put(out: &mut Vec<u8>, key: &[u8], value_bytes: usize, value: impl FnOnce(&mut Vec<u8>)) {
    bytes(out, 1, key);
    length(out, 2, value_bytes);
    value(out);
}

/// The length of what [`put`] writes.
pub(crate) fn put_bytes(key: &[u8], value_bytes: usize) -> usize {
    field_bytes(key.len()) + field_bytes(value_bytes)
}

/// A field of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    /// A number.
    Number(u64),
    /// Bytes: a string, or a message inside.
    Bytes(&'a [u8]),
}

/// The fields of a message, one after the other, for answers that come too often to be decoded whole. Ends at the first
/// byte that makes no sense.
pub(crate) fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        let key = take_varint(&mut message)?;
        let field = match (key & 7) as u32 {
            VARINT => Field::Number(take_varint(&mut message)?),
            LENGTH => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                let (bytes, rest) = message.split_at_checked(length)?;
                message = rest;
                Field::Bytes(bytes)
            }
            _ => return None,
        };
        Some((key >> 3, field))
    })
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tidelock_etcd_api::etcdserverpb::PutRequest;

    use super::*;

    /// A length that is off by one makes the server refuse, or worse, read something else.
    #[test]
    fn a_put_written_by_hand_is_read_as_one() {
        for value_bytes in [0usize, 1, 127, 128, 16_384] {
            let mut out = Vec::new();
            put(&mut out, b"key", value_bytes, |out| out.resize(out.len() + value_bytes, b'v'));
            assert_eq!(out.len(), put_bytes(b"key", value_bytes));
            let read = PutRequest::decode(&out[..]).unwrap();
            assert_eq!((&read.key[..], read.value.len()), (&b"key"[..], value_bytes));
        }
    }

    /// What is read field by field must be what the generated code reads; noise ends the reading and nothing else.
    #[test]
    fn fields_are_read_as_the_generated_code_writes_them() {
        let put = PutRequest { key: "k".into(), value: vec![7; 300].into(), lease: 1 << 40, ..PutRequest::default() };
        let bytes = put.encode_to_vec();
        let read: Vec<_> = fields(&bytes).collect();
        assert_eq!(read, [(1, Field::Bytes(b"k")), (2, Field::Bytes(&[7; 300])), (3, Field::Number(1 << 40))]);
        assert_eq!(fields(&[0x0a, 200, 1]).count(), 0);
        assert_eq!(fields(&[0xff; 12]).count(), 0);
    }
}
