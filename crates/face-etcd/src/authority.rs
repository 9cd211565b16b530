//! Lets old clients in that put a URL where HTTP/2 wants a host: `etcdctl` 3.4 sends
//! `:authority: http://host:port` with some commands. Servers written in Go do not look at it; our HTTP/2
//! library refuses the request before anyone here is asked.
//!
//! So the bytes are mended on their way in. In an authority that begins with `http://` or `https://` the
//! `://` is replaced by three letters that a host may have. They were chosen so that nothing else changes:
//! as many bytes, as many bits in the compressed form (HPACK's Huffman code), so that no length in the frame
//! and no entry in the compression tables of either side comes out different. Later requests on the
//! connection that refer to the entry get the mended one. Nobody here reads the authority of a gRPC call.
//!
//! What holds: every other byte passes unchanged, and what is not understood (another protocol, a frame that
//! is too large, a header block cut in the middle) passes as it is, for the library to judge. At most one
//! frame of headers is held back, until it is complete.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length, type, flags and stream of a frame.
const FRAME_HEAD_BYTES: usize = 9;

/// The largest frame that clients may send unless told otherwise, which we do not.
const FRAME_BYTES_MAX: usize = 16 * 1024;

const HEADERS: u8 = 1;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;

/// The place of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;

/// A connection whose requests are mended as they are read.
pub(crate) struct Mended<IO> {
    io: IO,
    requests: Requests,
    /// The beginning of a frame, to be looked at when all of it is there.
    held: Vec<u8>,
    /// Looked at, to be handed out; `handed` bytes of it are.
    ready: Vec<u8>,
    handed: usize,
}

impl<IO> Mended<IO> {
    pub(crate) fn new(io: IO) -> Mended<IO> {
        Mended { io, requests: Requests::Unknown, held: Vec::new(), ready: Vec::new(), handed: 0 }
    }

    fn hand_out(&mut self, out: &mut ReadBuf<'_>) {
        let rest = &self.ready[self.handed..];
        let count = rest.len().min(out.remaining());
        out.put_slice(&rest[..count]);
        self.handed += count;
        if self.handed == self.ready.len() {
            // Given back: most connections are idle, and there may be many.
            self.ready = Vec::new();
            self.handed = 0;
        }
    }
}

/// Where in a client's bytes we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    /// Before the first bytes.
    Unknown,
    /// In HTTP/2, with so many bytes left of a frame that does not matter.
    Frames { passing: usize },
    /// Not HTTP/2.
    Other,
}

impl Requests {
    /// Looks at what came, mends what has to be, and says how much of it can go on. The rest begins a frame
    /// that is not complete: to be shown again with what comes after it.
    fn look_at(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        if *self == Requests::Unknown {
            let known = bytes.len().min(PREFACE.len());
            if bytes[..known] != PREFACE[..known] {
                *self = Requests::Other;
            } else if known == PREFACE.len() {
                *self = Requests::Frames { passing: 0 };
                at = known;
            } else {
                return 0;
            }
        }
        let Requests::Frames { passing } = self else { return bytes.len() };
        loop {
            let passed = (*passing).min(bytes.len() - at);
            *passing -= passed;
            at += passed;
            let frame = &mut bytes[at..];
            if frame.len() < FRAME_HEAD_BYTES {
                return at;
            }
            let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
            let (kind, flags) = (frame[3], frame[4]);
            let whole = FRAME_HEAD_BYTES + length;
            if kind != HEADERS || length > FRAME_BYTES_MAX {
                *passing = whole;
            } else if frame.len() < whole {
                return at;
            } else {
                // What cannot be read to its end is passed on as far as it was mended.
                let _ = mend_frame(flags, &mut frame[FRAME_HEAD_BYTES..whole]);
                at += whole;
            }
        }
    }
}

/// Mends the headers of a request. `None`: they could not be read to their end.
fn mend_frame(flags: u8, payload: &mut [u8]) -> Option<()> {
    let mut start = 0;
    let mut end = payload.len();
    if flags & FLAG_PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        start += 1;
    }
    if flags & FLAG_PRIORITY != 0 {
        start += 5;
    }
    mend_block(payload.get_mut(start..end)?)
}

/// Walks the fields of a header block (RFC 7541, section 6) without decoding them: only the lengths matter,
/// and the one name that every encoder takes from the static table.
fn mend_block(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        match first {
            // A field out of the tables, or a new size of the table.
            0x80.. => drop(number(block, &mut at, 7)?),
            0x20..0x40 => drop(number(block, &mut at, 5)?),
            _ => {
                let name = number(block, &mut at, if *first >= 0x40 { 6 } else { 4 })?;
                if name == 0 {
                    text(block, &mut at)?;
                }
                let (is_compressed, value) = text(block, &mut at)?;
                if name == AUTHORITY {
                    mend_authority(is_compressed, block.get_mut(value)?);
                }
            }
        }
    }
    Some(())
}

/// A number whose first `bits` are in the low bits of the first byte (section 5.1).
fn number(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    /// More than a header block can be long, and no overflow.
    const SHIFT_MAX: u32 = 21;
    let most = (1 << bits) - 1;
    let mut number = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if number < most {
        return Some(number);
    }
    let mut shift = 0;
    loop {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        number += (byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return Some(number);
        }
        if shift > SHIFT_MAX {
            return None;
        }
    }
}

/// A text: whether it is compressed, and where it is (section 5.2).
fn text(block: &[u8], at: &mut usize) -> Option<(bool, std::ops::Range<usize>)> {
    let is_compressed = block.get(*at)? & 0x80 != 0;
    let length = number(block, at, 7)?;
    let range = *at..at.checked_add(length)?;
    *at = range.end;
    Some((is_compressed, range))
}

/// A character in HPACK's Huffman code: the bits, and how many (RFC 7541, appendix B).
type Code = (u64, u32);
const H: Code = (0b10_0111, 6);
const T: Code = (0b0_1001, 5);
const P: Code = (0b10_1011, 6);
const S: Code = (0b0_1000, 5);
const COLON: Code = (0b101_1100, 7);
const SLASH: Code = (0b01_1000, 6);
/// As many bits as a colon.
const B: Code = (0b101_1101, 7);
/// As many bits as a slash.
const DASH: Code = (0b01_0110, 6);

/// The characters one after the other, and how many bits they are.
const fn joined(codes: &[Code]) -> Code {
    let (mut joined, mut bits, mut at) = (0, 0, 0);
    while at < codes.len() {
        joined = joined << codes[at].1 | codes[at].0;
        bits += codes[at].1;
        at += 1;
    }
    (joined, bits)
}

/// A beginning of an authority, and what takes its place, plain and compressed.
struct Scheme {
    plain: (&'static [u8], &'static [u8]),
    compressed: (Code, Code),
}

const SCHEMES: [Scheme; 2] = [
    Scheme {
        plain: (b"http://", b"httpB--"),
        compressed: (joined(&[H, T, T, P, COLON, SLASH, SLASH]), joined(&[H, T, T, P, B, DASH, DASH])),
    },
    Scheme {
        plain: (b"https://", b"httpsB--"),
        compressed: (joined(&[H, T, T, P, S, COLON, SLASH, SLASH]), joined(&[H, T, T, P, S, B, DASH, DASH])),
    },
];

fn mend_authority(is_compressed: bool, value: &mut [u8]) {
    for scheme in &SCHEMES {
        if !is_compressed && value.starts_with(scheme.plain.0) {
            value[..scheme.plain.1.len()].copy_from_slice(scheme.plain.1);
            return;
        }
        if is_compressed && let Some(first) = value.first_chunk_mut::<8>() {
            let bits = u64::from_be_bytes(*first);
            let ((url, length), (mended, _)) = scheme.compressed;
            let below = u64::BITS - length;
            if bits >> below == url {
                let rest = bits & ((1 << below) - 1);
                *first = (mended << below | rest).to_be_bytes();
                return;
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Mended<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ready.is_empty() {
            this.hand_out(out);
            return Poll::Ready(Ok(()));
        }
        loop {
            let before = out.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, out))?;
            let read = &mut out.filled_mut()[before..];
            if read.is_empty() {
                // The end, in the middle of a frame perhaps: not ours to judge.
                std::mem::swap(&mut this.ready, &mut this.held);
                this.hand_out(out);
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                let passed = this.requests.look_at(read);
                this.held.extend_from_slice(&read[passed..]);
                out.set_filled(before + passed);
            } else {
                this.held.extend_from_slice(read);
                out.set_filled(before);
                let passed = this.requests.look_at(&mut this.held);
                let rest = this.held.split_off(passed);
                this.ready = std::mem::replace(&mut this.held, rest);
                this.hand_out(out);
            }
            // Nothing at all would mean the end.
            if out.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Mended<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    const URL: &[u8] = &[0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97, 0x5f];
    const MENDED: &[u8] = &[0x9d, 0x29, 0xae, 0xea, 0xcb, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97, 0x5f];
    const URL_S: &[u8] =
        &[0x9d, 0x29, 0xad, 0x17, 0x18, 0x60, 0x22, 0x75, 0x70, 0x2e, 0x05, 0xc3, 0x70, 0x4c, 0xba, 0xff];
    const MENDED_S: &[u8] =
        &[0x9d, 0x29, 0xad, 0x17, 0x56, 0x58, 0x22, 0x75, 0x70, 0x2e, 0x05, 0xc3, 0x70, 0x4c, 0xba, 0xff];

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Fields around an authority, as an encoder writes them: `:method POST`, a new table size, the
    /// authority, and a field of its own name.
    fn block(authority: &[u8], compressed: bool) -> Vec<u8> {
        let mark = if compressed { 0x80 } else { 0 };
        [&[0x83, 0x3f, 0xe1, 0x1f, 0x41, mark | authority.len() as u8], authority, &[0x40, 1, b'x', 2, b'y', b'z']]
            .concat()
    }

    /// What comes out if `sent` arrives in pieces of this size.
    async fn received(sent: &[u8], piece: usize) -> Vec<u8> {
        let mut source = in_pieces(sent, piece);
        let mut out = Vec::new();
        source.read_to_end(&mut out).await.unwrap();
        out
    }

    /// A connection on which `piece` bytes arrive at a time.
    fn in_pieces(sent: &[u8], piece: usize) -> Mended<Pieces> {
        Mended::new(Pieces { bytes: sent.to_vec(), at: 0, piece })
    }

    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        piece: usize,
    }

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let end = (self.at + self.piece.min(out.remaining())).min(self.bytes.len());
            out.put_slice(&self.bytes[self.at..end]);
            self.at = end;
            Poll::Ready(Ok(()))
        }
    }

    /// A connection of an old etcdctl: every command of it must get through, however its bytes are cut.
    #[tokio::test]
    async fn urls_are_mended_wherever_the_bytes_are_cut_and_nothing_else_changes() {
        let connection = |values: [(&[u8], bool); 3]| {
            let padded = [&[3], &block(values[1].0, values[1].1)[..], &[0; 3]].concat();
            let prioritised = [&[0; 5], &block(values[2].0, values[2].1)[..]].concat();
            let data = frame(0, 1, &block(URL, true));
            [
                PREFACE,
                &frame(4, 0, &[]),
                &frame(HEADERS, 4, &block(values[0].0, values[0].1)),
                &data,
                &frame(HEADERS, 4 | FLAG_PADDED, &padded),
                &frame(HEADERS, 4 | FLAG_PRIORITY, &prioritised),
                &frame(0, 1, &[7; 300]),
            ]
            .concat()
        };
        let sent = connection([(URL, true), (URL_S, true), (b"http://host:2379", false)]);
        let expected = connection([(MENDED, true), (MENDED_S, true), (b"httpB--host:2379", false)]);
        for piece in 1..sent.len() + 1 {
            assert_eq!(received(&sent, piece).await, expected, "in pieces of {piece}");
        }
    }

    /// The example of RFC 7541, C.4.1: an authority as it should be.
    #[tokio::test]
    async fn proper_authorities_other_protocols_and_broken_frames_pass_unchanged() {
        let good =
            [0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let h2 = |frames: &[u8]| [PREFACE, frames].concat();
        let cut = &frame(HEADERS, 4, &block(URL, true))[..20];
        let huge = frame(HEADERS, 4, &[&block(URL, true)[..], &[0; FRAME_BYTES_MAX]].concat());
        let lies = frame(HEADERS, 4 | FLAG_PADDED, &[200, 0x41]);
        let endless = frame(HEADERS, 4, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let longer = frame(HEADERS, 4, &[0x41, 0x8f, 0x9d]);
        let cases = [
            h2(&frame(HEADERS, 4, &good)),
            b"POST /v3/kv/range HTTP/1.1\r\nhost: http://x\r\n\r\n".to_vec(),
            b"PRI * HTTP/3.0".to_vec(),
            b"P".to_vec(),
            Vec::new(),
            h2(cut),
            h2(&huge),
            h2(&lies),
            h2(&endless),
            h2(&longer),
        ];
        for sent in cases {
            for piece in [1, 7, 50, 1 << 20] {
                assert_eq!(received(&sent, piece).await, sent);
            }
        }
    }

    proptest::proptest! {
        /// The first bytes of a connection are anyone's: they must not stop the node, nor be changed in length.
        #[test]
        fn no_header_block_stops_the_reader(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80), flags: u8) {
            let mut mended = bytes.clone();
            let _ = mend_frame(flags, &mut mended);
            let mut requests = Requests::Frames { passing: 0 };
            proptest::prop_assert!(requests.look_at(&mut mended) <= bytes.len());
        }
    }
}
