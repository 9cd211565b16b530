//! Reads header blocks.
//!
//! Refused, and fatal to the connection, since the two sides' tables differ from then on: numbers that stand for
//! nothing, texts that end in the middle, tables larger than was agreed on. A list that is too long is read to its
//! end without being kept, so that the connection can go on.

use bytes::Bytes;

use super::Field;
use super::huffman;
use super::table::Table;

/// A table is never larger than this on our side; what HTTP/2 begins with.
const TABLE_BYTES: usize = 4096;
/// Numbers take five bytes at most.
const NUMBER_SHIFT_MAX: u32 = 28;

/// A header block that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// It ends in the middle of something.
    #[error("the header block ends early")]
    Truncated,
    /// A number too large.
    #[error("a number in the header block is too large")]
    Number,
    /// A field that has no such number.
    #[error("the header block names a field that is in no table")]
    Unknown,
    /// A text that is no Huffman code, or grows beyond all that is allowed.
    #[error("a text in the header block cannot be read")]
    Text,
    /// A table size that was not agreed on, or at the wrong place.
    #[error("the header block sets a table size that is not allowed")]
    TableSize,
}

/// Reads header blocks of one connection, in order.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    list_bytes_max: usize,
    text: Vec<u8>,
}

impl Decoder {
    /// For lists of up to so many bytes, counted as [`Field::size`] does.
    #[must_use]
    pub fn new(list_bytes_max: usize) -> Decoder {
        Decoder { table: Table::new(TABLE_BYTES), list_bytes_max, text: Vec::new() }
    }

    /// Stays the same as long as a block means what it meant before.
    #[must_use]
    pub fn table_changes(&self) -> u64 {
        self.table.changes()
    }

    /// The fields of a block; `None` if they are too many. Whatever is in `block` was read then.
    pub fn decode(&mut self, block: &[u8]) -> Result<Option<Vec<Field>>, HpackError> {
        let mut input = Input { bytes: block, at: 0 };
        let (mut fields, mut size) = (Vec::with_capacity(16), 0);
        while let Some(first) = input.peek() {
            let field = match first {
                0x80.. => self.table.get(input.number(7)?).ok_or(HpackError::Unknown)?,
                0x40.. => {
                    let field = self.literal(&mut input, 6)?;
                    self.table.add(field.clone());
                    field
                }
                0x20.. => {
                    let size_max = input.number(5)?;
                    if size_max > TABLE_BYTES || size > 0 {
                        return Err(HpackError::TableSize);
                    }
                    self.table.set_size_max(size_max);
                    continue;
                }
                _ => self.literal(&mut input, 4)?,
            };
            size += field.size();
            if size <= self.list_bytes_max {
                fields.push(field);
            }
        }
        Ok((size <= self.list_bytes_max).then_some(fields))
    }

    fn literal(&mut self, input: &mut Input<'_>, prefix: u32) -> Result<Field, HpackError> {
        let name = match input.number(prefix)? {
            0 => self.text(input)?,
            number => self.table.get(number).ok_or(HpackError::Unknown)?.name,
        };
        Ok(Field { name, value: self.text(input)? })
    }

    fn text(&mut self, input: &mut Input<'_>) -> Result<Bytes, HpackError> {
        let is_coded = input.peek().ok_or(HpackError::Truncated)? & 0x80 != 0;
        let length = input.number(7)?;
        let bytes = input.take(length)?;
        if !is_coded {
            // A copy: tables outlive the buffer that a block came in.
            return Ok(Bytes::copy_from_slice(bytes));
        }
        self.text.clear();
        huffman::decode(bytes, self.list_bytes_max, &mut self.text).ok_or(HpackError::Text)?;
        Ok(Bytes::copy_from_slice(&self.text))
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, HpackError> {
        let byte = self.peek().ok_or(HpackError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// A number that begins in the lowest `prefix` bits of the next byte.
    fn number(&mut self, prefix: u32) -> Result<usize, HpackError> {
        let mask = (1_usize << prefix) - 1;
        let mut number = usize::from(self.next()?) & mask;
        if number < mask {
            return Ok(number);
        }
        for shift in (0..=NUMBER_SHIFT_MAX).step_by(7) {
            let byte = self.next()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(HpackError::Number)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], HpackError> {
        let end = self.at.checked_add(length).ok_or(HpackError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(HpackError::Truncated)?;
        self.at = end;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = decoder.decode(block).unwrap().unwrap();
        fields.iter().map(|field| (text(&field.name), text(&field.value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// Three requests on one connection, from the RFC (appendix C.4): the later ones lean on the table that the
    /// earlier ones left.
    #[test]
    fn requests_of_the_rfc_are_read() {
        let mut decoder = Decoder::new(4096);
        let first =
            [0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let host = pair(":authority", "www.example.com");
        let common = [pair(":method", "GET"), pair(":scheme", "http"), pair(":path", "/"), host.clone()];
        assert_eq!(read(&mut decoder, &first), common);
        let changes = decoder.table_changes();
        let second = [0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
        let mut expected = common.to_vec();
        expected.push(pair("cache-control", "no-cache"));
        assert_eq!(read(&mut decoder, &second), expected);
        assert_ne!(decoder.table_changes(), changes, "a block that adds a field changes what numbers mean");
        let third = [
            0x82, 0x87, 0x85, 0xbf, 0x40, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 0x89, 0x25, 0xa8, 0x49,
            0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf,
        ];
        let expected = [
            pair(":method", "GET"),
            pair(":scheme", "https"),
            pair(":path", "/index.html"),
            host,
            pair("custom-key", "custom-value"),
        ];
        assert_eq!(read(&mut decoder, &third), expected);
    }

    /// The table must forget exactly what the sender forgets, or every later number is off (appendix C.5 in small).
    #[test]
    fn the_oldest_fields_give_way() {
        let mut decoder = Decoder::new(4096);
        // A table of 80 bytes holds two fields of 34 bytes.
        let block = [0x3f, 0x31, 0x40, 1, b'a', 1, b'1', 0x40, 1, b'b', 1, b'2', 0x40, 1, b'c', 1, b'3'];
        read(&mut decoder, &block);
        assert_eq!(read(&mut decoder, &[0xbe, 0xbf]), [pair("c", "3"), pair("b", "2")]);
        assert_eq!(decoder.decode(&[0xc0]), Err(HpackError::Unknown));
        // A field larger than the table empties it.
        let mut large = vec![0x40, 1, b'd', 60];
        large.extend([b'x'; 60]);
        read(&mut decoder, &large);
        assert_eq!(decoder.decode(&[0xbe]), Err(HpackError::Unknown));
    }

    /// Too many fields are the request's fault, not the connection's: the table is kept in step.
    #[test]
    fn a_list_too_long_is_read_to_its_end() {
        let mut decoder = Decoder::new(64);
        let block = [0x40, 1, b'a', 1, b'1', 0x40, 1, b'b', 1, b'2'];
        assert_eq!(decoder.decode(&block), Ok(None));
        assert_eq!(read(&mut decoder, &[0xbe]), [pair("b", "2")]);
    }

    #[test]
    fn blocks_that_make_no_sense_are_refused() {
        let refused = |block: &'static [u8]| Decoder::new(4096).decode(block).unwrap_err();
        assert_eq!(refused(&[0x80]), HpackError::Unknown);
        assert_eq!(refused(&[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01]), HpackError::Number);
        assert_eq!(refused(&[0x40, 5, b'a']), HpackError::Truncated);
        assert_eq!(refused(&[0x3f, 0xe2, 0x1f]), HpackError::TableSize);
        assert_eq!(refused(&[0x82, 0x20]), HpackError::TableSize);
        assert_eq!(refused(&[0x40, 0x84, 0xff, 0xff, 0xff, 0xff]), HpackError::Text);
    }

    proptest! {
        /// Bytes of a stranger must end in fields or in an error.
        #[test]
        fn any_bytes_are_read_or_refused(block in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(1000);
            if let Ok(Some(fields)) = decoder.decode(&block) {
                prop_assert!(fields.iter().map(Field::size).sum::<usize>() <= 1000);
            }
        }
    }
}
