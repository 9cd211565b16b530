//! The fields that have numbers: 61 that never change (RFC 7541, appendix A), then those sent most recently.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Field;

/// The fields everybody knows, from number 1 on.
const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The fields that have numbers on one connection, in one direction.
#[derive(Debug)]
pub(super) struct Table {
    /// The latest first.
    recent: VecDeque<Field>,
    size: usize,
    size_max: usize,
    /// Counts what changed what the numbers stand for.
    changes: u64,
}

impl Table {
    pub(super) fn new(size_max: usize) -> Table {
        Table { recent: VecDeque::new(), size: 0, size_max, changes: 0 }
    }

    /// Grows whenever numbers stand for something else than before.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The field with a number.
    pub(super) fn get(&self, number: usize) -> Option<Field> {
        let at = number.checked_sub(1)?;
        match STATIC.get(at) {
            Some((name, value)) => Some(Field { name: Bytes::from_static(name), value: Bytes::from_static(value) }),
            None => self.recent.get(at - STATIC.len()).cloned(),
        }
    }

    /// Adds one; the oldest go until there is room. One that is larger than the table empties it.
    pub(super) fn add(&mut self, field: Field) {
        self.changes += 1;
        let size = field.size();
        self.shrink_to(self.size_max.saturating_sub(size));
        if size <= self.size_max {
            self.size += size;
            self.recent.push_front(field);
        }
    }

    /// Sets how large it may be.
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.changes += 1;
        self.size_max = size_max;
        self.shrink_to(size_max);
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.recent.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}
