//! Header blocks (RFC 7541), as far as a gRPC client needs them.
//!
//! Reading: we tell the server that our table has no room (SETTINGS_HEADER_TABLE_SIZE = 0), so every block stands for
//! itself and only the names that gRPC gives a meaning are looked at. Writing: as real clients do, what repeats is put
//! into the server's table by the first request and is one byte in every later one, unless the server has no room.

use crate::huffman;
use crate::lines::Access;

/// Names of the static table that can occur in answers to us; the others are known by their number only.
const STATIC_STATUS: [(usize, &str); 7] =
    [(8, "200"), (9, "204"), (10, "206"), (11, "304"), (12, "400"), (13, "404"), (14, "500")];
/// Entries of the static table; numbers above it point into the dynamic one, which we do not have.
const STATIC_ENTRIES: usize = 61;
const METHOD_POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
const SCHEME_HTTPS: u8 = 0x87;
const NAME_AUTHORITY: u8 = 1;
const NAME_PATH: u8 = 4;
const NAME_CONTENT_TYPE: u8 = 31;
/// A server with less room for its table than this gets literals: ours take some 500 bytes, and a token.
const TABLE_BYTES_WANTED: u32 = 4096;
/// A token that is longer stays out of the table, where it would drive out what else is there.
const TOKEN_BYTES_TABLED: usize = 2048;

/// What a block of headers or trailers said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// `:status`.
    pub(crate) http_status: Option<u32>,
    /// `grpc-status`.
    pub(crate) grpc_status: Option<u32>,
    /// `grpc-message`, if it is there.
    pub(crate) message: String,
}

/// Reads a whole block. The error says what is wrong with it.
pub(crate) fn decode(block: &[u8]) -> Result<Headers, &'static str> {
    let mut headers = Headers::default();
    let mut rest = block;
    while let Some(&first) = rest.first() {
        if first & 0x80 != 0 {
            let index = integer(&mut rest, 7)?;
            if index == 0 || index > STATIC_ENTRIES {
                return Err("a header points into a table that we said we do not have");
            }
            if let Some((_, status)) = STATIC_STATUS.iter().find(|(at, _)| *at == index) {
                headers.http_status = status.parse().ok();
            }
        } else if first & 0xe0 == 0x20 {
            if integer(&mut rest, 5)? != 0 {
                return Err("a header block makes the table larger than we allowed");
            }
        } else {
            // With indexing or without is the same to a table that holds nothing.
            let index = integer(&mut rest, if first & 0x40 != 0 { 6 } else { 4 })?;
            let name = match index {
                0 => string(&mut rest)?,
                8..=14 => b":status".to_vec(),
                index if index > STATIC_ENTRIES => return Err("a header's name points into a table we do not have"),
                _ => Vec::new(),
            };
            let value = string(&mut rest)?;
            headers.note(&name, &value);
        }
    }
    Ok(headers)
}

impl Headers {
    fn note(&mut self, name: &[u8], value: &[u8]) {
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match name {
            b":status" => self.http_status = number(),
            b"grpc-status" => self.grpc_status = number(),
            b"grpc-message" => self.message = message(value),
            _ => {}
        }
    }
}

/// The text of a `grpc-message`, in which whatever is not printable is written as a percent sign and two digits.
fn message(coded: &[u8]) -> String {
    let mut text = Vec::with_capacity(coded.len());
    let mut rest = coded;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn integer(bytes: &mut &[u8], prefix: u32) -> Result<usize, &'static str> {
    const CUT: &str = "a header block ends inside of a number";
    let (&first, mut rest) = bytes.split_first().ok_or(CUT)?;
    let mask = (1usize << prefix) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        // Four more bytes make 28 bits, above any length that we take.
        for shift in [0, 7, 14, 21, 28] {
            let (&next, after) = rest.split_first().ok_or(CUT)?;
            if shift == 28 {
                return Err("a number in a header block is too large");
            }
            rest = after;
            value += usize::from(next & 0x7f) << shift;
            if next & 0x80 == 0 {
                break;
            }
        }
    }
    *bytes = rest;
    Ok(value)
}

fn string(bytes: &mut &[u8]) -> Result<Vec<u8>, &'static str> {
    let huffman_coded = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(bytes, 7)?;
    let (text, rest) = bytes.split_at_checked(length).ok_or("a header block ends inside of a string")?;
    *bytes = rest;
    if huffman_coded {
        return huffman::decode(text).ok_or("a header is not in Huffman's code");
    }
    Ok(text.to_vec())
}

/// The request headers of one connection: what the server's table holds of them, and the blocks that follow from it.
#[derive(Debug)]
pub(crate) struct RequestHeaders {
    authority: String,
    /// Shown with every request, if there is one.
    token: Option<String>,
    is_secure: bool,
    /// What is in the server's table, in the order in which it went in.
    table: Vec<Entry>,
    /// Whether the server keeps a table at all.
    indexed: bool,
    /// Whether the server knows that we know that it keeps none.
    told: bool,
    /// Blocks as they are sent now, by path; emptied when the table changes, because numbers move.
    blocks: Vec<(&'static str, Vec<u8>)>,
}

/// What can be in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Authority,
    Path(&'static str),
    ContentType,
    Trailers,
    Token,
}

impl RequestHeaders {
    pub(crate) fn new(authority: &str, access: &Access) -> RequestHeaders {
        RequestHeaders {
            authority: authority.to_string(),
            token: access.token.clone(),
            is_secure: access.tls.is_some(),
            table: Vec::new(),
            indexed: true,
            told: true,
            blocks: Vec::new(),
        }
    }

    /// The server's room for its table.
    pub(crate) fn server_table(&mut self, bytes: u32) {
        if bytes < TABLE_BYTES_WANTED && self.indexed {
            (self.indexed, self.told) = (false, false);
            self.blocks.clear();
        }
    }

    /// The block of a request to `path`.
    pub(crate) fn write(&mut self, path: &'static str, out: &mut Vec<u8>) {
        if let Some((_, block)) = self.blocks.iter().find(|(of, _)| *of == path) {
            out.extend_from_slice(block);
            return;
        }
        if !std::mem::replace(&mut self.told, true) {
            out.push(0x20);
        }
        let before = self.table.len();
        let mut block = vec![METHOD_POST, if self.is_secure { SCHEME_HTTPS } else { SCHEME_HTTP }];
        // Names with a colon stand before all others, or the request is malformed.
        for entry in [Entry::Authority, Entry::Path(path), Entry::ContentType, Entry::Trailers] {
            self.header(entry, &mut block);
        }
        if self.token.is_some() {
            self.header(Entry::Token, &mut block);
        }
        out.extend_from_slice(&block);
        if self.table.len() == before {
            self.blocks.push((path, block));
        } else {
            self.blocks.clear();
        }
    }

    /// One header: its number in the table, or all of it, which puts it there.
    fn header(&mut self, entry: Entry, block: &mut Vec<u8>) {
        if let Some(at) = self.table.iter().position(|of| *of == entry) {
            // The newest has number 62.
            block.push((0x80 | 62) + (self.table.len() - 1 - at) as u8);
            return;
        }
        let kind = if self.indexed { 0x40 } else { 0 };
        match entry {
            Entry::Authority => literal(block, kind | NAME_AUTHORITY, &[], self.authority.as_bytes()),
            Entry::Path(path) => literal(block, kind | NAME_PATH, &[], path.as_bytes()),
            Entry::ContentType if self.indexed => {
                literal(block, kind | NAME_CONTENT_TYPE, &[], b"application/grpc");
            }
            Entry::ContentType => {
                // The name's number does not fit into four bits: 15, then the rest.
                block.extend_from_slice(&[0x0f, NAME_CONTENT_TYPE - 15]);
                text(block, b"application/grpc");
            }
            Entry::Trailers => literal(block, kind, b"te", b"trailers"),
            Entry::Token => {
                let token = self.token.as_deref().unwrap_or_default().as_bytes();
                let is_tabled = self.indexed && token.len() <= TOKEN_BYTES_TABLED;
                literal(block, if is_tabled { kind } else { 0 }, b"token", token);
                if !is_tabled {
                    return;
                }
            }
        }
        if self.indexed {
            self.table.push(entry);
        }
    }
}

fn literal(out: &mut Vec<u8>, kind: u8, name: &[u8], value: &[u8]) {
    out.push(kind);
    if !name.is_empty() {
        text(out, name);
    }
    text(out, value);
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    // Seven bits of the length, or all of them set and the rest in groups of seven, lowest first.
    match text.len().checked_sub(127) {
        None => out.push(text.len() as u8),
        Some(mut rest) => {
            out.push(127);
            while rest >= 128 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
        }
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What real servers end an answer with: Go's, Huffman-coded names; ours, and a refusal with its text.
    #[test]
    fn the_status_of_an_answer_is_read_in_every_encoding() {
        let plain = [&[0x00, 11][..], b"grpc-status", &[1], b"0"].concat();
        assert_eq!(decode(&plain).unwrap().grpc_status, Some(0));
        let indexed =
            [&[0x20, 0x88, 0x40, 11][..], b"grpc-status", &[2], b"14", &[0x10, 12], b"grpc-message", &[2], b"no"];
        let read = decode(&indexed.concat()).unwrap();
        assert_eq!((read.http_status, read.grpc_status, read.message.as_str()), (Some(200), Some(14), "no"));
        // "grpc-status" and "0" as Go writes them.
        let coded = [0x40, 0x88, 0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f, 0x01, b'0'];
        assert_eq!(decode(&coded).unwrap().grpc_status, Some(0));
        assert_eq!(decode(&[0x48, 3, b'5', b'0', b'3']).unwrap().http_status, Some(503));
    }

    /// Users read it.
    #[test]
    fn a_message_is_told_in_plain_words() {
        for (coded, plain) in [("too%20large", "too large"), ("100%", "100%"), ("%zz%41", "%zzA"), ("%e2%82%ac", "€")]
        {
            let block = [&[0x00, 12][..], b"grpc-message", &[coded.len() as u8], coded.as_bytes()].concat();
            assert_eq!(decode(&block).unwrap().message, plain);
        }
    }

    /// A server that points into a table we do not have, or cuts a block, must be told apart from a good one.
    #[test]
    fn a_block_that_breaks_the_rules_is_refused() {
        for block in [
            &[0xbe][..],
            &[0x80],
            &[0x3f, 0xe1, 0x1f],
            &[0x7f, 0x0a, 1, b'0'],
            &[0x00, 5, b'a'],
            &[0x00],
            &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x40, 0x84, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(decode(block).is_err(), "{block:x?}");
        }
    }

    proptest::proptest! {
        /// Whatever bytes come, the answer is a value.
        #[test]
        fn no_bytes_make_the_reader_panic(block: Vec<u8>) {
            let _ = decode(&block);
        }
    }

    /// A later request must name what the first put into the table, by its right number; after a third method the
    /// numbers have moved.
    #[test]
    fn repeated_requests_are_a_few_numbers() {
        let mut headers = RequestHeaders::new("host", &Access::default());
        let mut block = |path| {
            let mut out = Vec::new();
            headers.write(path, &mut out);
            out
        };
        assert!(block("/a").len() > 20);
        // Newest first: te 62, content-type 63, path 64, authority 65.
        assert_eq!(block("/a"), [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62]);
        // The new path goes in before what follows it is named.
        assert_eq!(block("/b"), [0x83, 0x86, 0x80 | 65, 0x44, 2, b'/', b'b', 0x80 | 64, 0x80 | 63]);
        assert_eq!(block("/a"), [0x83, 0x86, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63]);
        assert_eq!(block("/b"), [0x83, 0x86, 0x80 | 66, 0x80 | 62, 0x80 | 64, 0x80 | 63]);
    }

    /// Whoever comes in shows its token with every request, also one whose length takes two bytes; one that would drive
    /// everything else out of the table stays out of it.
    #[test]
    fn a_token_is_shown_with_every_request() {
        for (token, is_tabled) in [("t".repeat(300), true), ("t".repeat(TOKEN_BYTES_TABLED + 1), false)] {
            let access = Access { token: Some(token.clone()), ..Access::default() };
            let mut headers = RequestHeaders::new("host", &access);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            headers.write("/a", &mut first);
            headers.write("/a", &mut second);
            assert!(first.ends_with(token.as_bytes()));
            // Newest first: the token 62, then as without one.
            let expected = [0x83, 0x86, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];
            match is_tabled {
                true => assert_eq!(second, expected),
                false => assert!(second.ends_with(token.as_bytes())),
            }
            assert_eq!(integer(&mut &first[first.len() - token.len() - 3..], 7).ok(), Some(token.len()), "{token}");
        }
    }

    /// A server without a table must not be sent numbers, and is told once that we know.
    #[test]
    fn a_server_without_a_table_gets_literals() {
        let mut headers = RequestHeaders::new("host", &Access::default());
        headers.server_table(0);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        headers.write("/a", &mut first);
        headers.write("/a", &mut second);
        assert_eq!(first[0], 0x20);
        assert_eq!(first[1..], second);
        assert_eq!(decode(&second), Ok(Headers::default()), "every part of it is a literal or static");
    }
}
