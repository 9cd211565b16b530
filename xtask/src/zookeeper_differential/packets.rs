//! Bytes of ZooKeeper's protocol, from the client's side: big-endian numbers, strings and lists with a length in
//! front.
//!
//! Written apart from the server's codec on purpose: a fault that both ends share would not be seen.

/// Bytes to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Packet(pub(super) Vec<u8>);

impl Packet {
    pub(super) fn flag(&mut self, value: bool) -> &mut Packet {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn int(&mut self, value: i32) -> &mut Packet {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, value: i64) -> &mut Packet {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// The length of what follows; nothing here is longer than a frame may be.
    pub(super) fn count(&mut self, count: usize) -> &mut Packet {
        self.int(i32::try_from(count).unwrap_or(i32::MAX))
    }

    pub(super) fn data(&mut self, value: Option<&[u8]>) -> &mut Packet {
        match value {
            None => self.int(-1),
            Some(bytes) => {
                self.count(bytes.len());
                self.0.extend_from_slice(bytes);
                self
            }
        }
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Packet {
        self.data(Some(value.as_bytes()))
    }

    pub(super) fn texts(&mut self, values: &[String]) -> &mut Packet {
        self.count(values.len());
        for value in values {
            self.text(value);
        }
        self
    }

    /// The packet with its length in front.
    pub(super) fn framed(&self) -> Vec<u8> {
        let mut framed = Packet(Vec::with_capacity(self.0.len() + 4));
        framed.data(Some(&self.0));
        framed.0
    }
}

/// A packet ended before its record did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncated;

/// Bytes that came, read from the front.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Truncated> {
        self.take::<1>().map(|[byte]| byte != 0)
    }

    pub(super) fn int(&mut self) -> Result<i32, Truncated> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Truncated> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn data(&mut self) -> Result<Option<Vec<u8>>, Truncated> {
        let Ok(length) = usize::try_from(self.int()?) else { return Ok(None) };
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Truncated)?;
        self.0 = rest;
        Ok(Some(bytes.to_vec()))
    }

    pub(super) fn text(&mut self) -> Result<Option<String>, Truncated> {
        Ok(self.data()?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A list of strings; none at all is told from an empty one.
    pub(super) fn texts(&mut self) -> Result<Option<Vec<String>>, Truncated> {
        let count = self.int()?;
        if count < 0 {
            return Ok(None);
        }
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.text()?.unwrap_or_default());
        }
        Ok(Some(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply that ends early must be told as such, not read as something else.
    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_noticed() {
        let mut packet = Packet::default();
        packet.int(-5).long(1 << 40).flag(true).data(None).text("é").texts(&["a".to_string()]);
        let mut fields = Fields(&packet.0);
        assert_eq!((fields.int(), fields.long(), fields.flag()), (Ok(-5), Ok(1 << 40), Ok(true)));
        assert_eq!((fields.data(), fields.text()), (Ok(None), Ok(Some("é".to_string()))));
        assert_eq!(fields.texts(), Ok(Some(vec!["a".to_string()])));
        assert!(fields.0.is_empty());
        assert_eq!(Fields(&[0, 0, 0, 9, 1]).data(), Err(Truncated));
        assert_eq!(&packet.framed()[..4], (packet.0.len() as u32).to_be_bytes());
    }
}
