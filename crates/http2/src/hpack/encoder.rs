//! Writes header blocks. What nearly every answer has is sent in full once, and by number from then on; all the rest
//! plainly, which any client reads and which costs no table.

use bytes::{BufMut, BytesMut};

/// What is worth a place in the client's table, in the order they are put there.
const REPEATED: [(&str, &str); 2] = [("content-type", "application/grpc"), ("grpc-status", "0")];
/// What these take in it; with a smaller table nothing is put there.
const REPEATED_BYTES: usize = (12 + 16 + 32) + (11 + 1 + 32);
/// The table a client has before it says otherwise.
const TABLE_BYTES_FIRST: usize = 4096;
/// The number of the latest entry of a table.
const LATEST: u8 = 62;
/// The number of `:status: 200`, and of the name alone.
const STATUS_200: u8 = 8;

/// Writes header blocks of one connection, in order.
#[derive(Debug, Default)]
pub struct Encoder {
    /// In the order they were put into the client's table.
    sent: Vec<usize>,
    /// The client's table is too small to be used.
    plain: bool,
    /// The smallest table the client ever asked for.
    table_bytes: Option<usize>,
    /// The client must be told that its table is this small by now.
    tell: Option<usize>,
}

impl Encoder {
    /// The client said how large its table may be.
    pub fn set_table_bytes(&mut self, bytes: usize) {
        // One that grows is of no use here: what is sent fits the smallest or is not put there at all.
        if bytes >= self.table_bytes.unwrap_or(TABLE_BYTES_FIRST) {
            return;
        }
        let plain = bytes < REPEATED_BYTES;
        self.table_bytes = Some(bytes);
        self.tell = Some(if plain { 0 } else { bytes });
        if plain {
            self.plain = true;
            self.sent.clear();
        }
    }

    /// Begins a block. Every block must begin with this.
    pub fn begin(&mut self, out: &mut BytesMut) {
        if let Some(bytes) = self.tell.take() {
            let at = out.len();
            put_number(bytes, 5, out);
            out[at] |= 0x20;
        }
    }

    /// The status of an answer.
    pub fn status(&mut self, status: u16, out: &mut BytesMut) {
        if status == 200 {
            out.put_u8(0x80 | STATUS_200);
        } else {
            out.put_u8(STATUS_200);
            put_text(status.to_string().as_bytes(), out);
        }
    }

    /// A name in lower case, and its value.
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut BytesMut) {
        let repeated = REPEATED.iter().position(|(n, v)| n.as_bytes() == name && v.as_bytes() == value);
        match repeated.filter(|_| !self.plain) {
            None => {
                out.put_u8(0);
                put_text(name, out);
                put_text(value, out);
            }
            Some(field) => match self.sent.iter().rposition(|sent| *sent == field) {
                Some(at) => out.put_u8(0x80 | (LATEST + (self.sent.len() - 1 - at) as u8)),
                None => {
                    self.sent.push(field);
                    out.put_u8(0x40);
                    put_text(name, out);
                    put_text(value, out);
                }
            },
        }
    }
}

/// A text as it is, behind its length.
fn put_text(text: &[u8], out: &mut BytesMut) {
    put_number(text.len(), 7, out);
    out.put_slice(text);
}

fn put_number(number: usize, prefix: u32, out: &mut BytesMut) {
    let mask = (1_usize << prefix) - 1;
    if number < mask {
        out.put_u8(number as u8);
        return;
    }
    out.put_u8(mask as u8);
    let mut rest = number - mask;
    while rest >= 0x80 {
        out.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    fn block(encoder: &mut Encoder, status: u16, fields: &[(&str, &str)]) -> BytesMut {
        let mut out = BytesMut::new();
        encoder.begin(&mut out);
        encoder.status(status, &mut out);
        for (name, value) in fields {
            encoder.field(name.as_bytes(), value.as_bytes(), &mut out);
        }
        out
    }

    fn read(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = decoder.decode(block).unwrap().unwrap();
        fields.iter().map(|field| (text(&field.name), text(&field.value))).collect()
    }

    fn expected(status: &str, fields: &[(&str, &str)]) -> Vec<(String, String)> {
        let all = [(":status", status)].into_iter().chain(fields.iter().copied());
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Whatever was sent before, a reader that kept up must read what was meant.
    #[test]
    fn a_reader_finds_what_was_written() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(1 << 20));
        let long = "x".repeat(20_000);
        let answers: [(u16, &[(&str, &str)]); 5] = [
            (200, &[("grpc-status", "5"), ("grpc-message", &long)]),
            (200, &[("content-type", "application/grpc")]),
            (404, &[("content-type", "application/json")]),
            (200, &[("grpc-status", "0")]),
            (200, &[("content-type", "application/grpc"), ("grpc-status", "0")]),
        ];
        for round in 0..3 {
            for (status, fields) in answers {
                let block = block(&mut encoder, status, fields);
                if round > 0 && fields.len() == 1 && status == 200 {
                    assert_eq!(block.len(), 2, "by number from the second time on");
                }
                assert_eq!(read(&mut decoder, &block), expected(&status.to_string(), fields));
            }
        }
    }

    /// A client may have no room for a table, and may say so at any time.
    #[test]
    fn a_client_without_a_table_is_sent_everything_in_full() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new(4096));
        let fields = [("content-type", "application/grpc")];
        read(&mut decoder, &block(&mut encoder, 200, &fields));
        encoder.set_table_bytes(0);
        for _ in 0..2 {
            let block = block(&mut encoder, 200, &fields);
            assert!(block.len() > 20);
            assert_eq!(read(&mut decoder, &block), expected("200", &fields));
        }
    }

    /// A client that made its table smaller must be told that we know, or it takes the next block for broken.
    #[test]
    fn a_smaller_table_is_acknowledged() {
        let mut encoder = Encoder::default();
        let fields = [("content-type", "application/grpc")];
        encoder.set_table_bytes(8192);
        encoder.set_table_bytes(4096);
        assert_eq!(block(&mut encoder, 200, &fields)[0], 0x88, "nothing became smaller");
        encoder.set_table_bytes(1000);
        encoder.set_table_bytes(200);
        // 200, in five bits and one more byte.
        assert_eq!(block(&mut encoder, 200, &fields)[..], [0x3f, 0xa9, 0x01, 0x88, 0xbe]);
        assert_eq!(block(&mut encoder, 200, &fields)[..], [0x88, 0xbe]);
    }
}
