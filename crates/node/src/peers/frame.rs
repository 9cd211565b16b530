//! Frames on the wire: length (u32), checksum (u32), payload; little-endian.
//!
//! The CRC32C covers the length bytes and the payload, so a flipped length is noticed too. A length
//! over the limit is refused before anything is allocated for it, and the buffer grows only as bytes
//! really arrive. An empty payload is a pulse: it says "I am here" and is never delivered.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Hard cap on a frame's payload, whatever is configured. Eight times the largest command.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(super) const HEADER_BYTES: usize = 8;

/// How much room a read is offered: enough for many small frames at one system call.
const READ_BYTES: usize = 64 * 1024;
/// Below this much room a read is not worth its system call, and the buffer is renewed first.
const READ_BYTES_MIN: usize = 8 * 1024;
/// How much a buffer grows at least while a large frame arrives.
const GROW_BYTES_MIN: usize = 256 * 1024;
/// Frames up to this size are copied into one buffer; larger ones are handed to the system as they are.
const COALESCE_BYTES_MAX: usize = 8 * 1024;
/// Most slices per system call; Linux takes 1,024 but gains nothing beyond some dozens.
const SLICES_MAX: usize = 64;

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenLink {
    #[error("the other side closed the connection")]
    Closed,
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    #[error("a frame of {len} bytes is over the limit of {max}")]
    Oversized { len: usize, max: usize },
    #[error("a frame does not match its checksum")]
    Corrupt,
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    #[error("no byte could be written for {0:?}")]
    Stalled(Duration),
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl BrokenLink {
    /// Whether the bytes themselves were wrong, as opposed to a peer or a network that went away.
    pub(super) fn is_garbage(&self) -> bool {
        matches!(self, Self::Truncated | Self::Oversized { .. } | Self::Corrupt | Self::Unexpected(_))
    }
}

/// The header of a frame whose payload is `parts`, one after the other. `None` if that is too large.
pub(super) fn header(parts: &[&[u8]], frame_max: usize) -> Option<[u8; HEADER_BYTES]> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    if len > frame_max.min(FRAME_BYTES_MAX) {
        return None;
    }
    let len = u32::try_from(len).ok()?.to_le_bytes();
    let crc = parts.iter().fold(crc32c::crc32c(&len), |crc, part| crc32c::crc32c_append(crc, part));
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&len);
    header[4..].copy_from_slice(&crc.to_le_bytes());
    Some(header)
}

/// A payload as it goes over the wire; `None` if it is too large. The links themselves copy less; this is
/// for a simulated network.
#[must_use]
pub fn seal(payload: &[u8]) -> Option<Bytes> {
    let mut sealed = BytesMut::with_capacity(HEADER_BYTES + payload.len());
    sealed.put_slice(&header(&[payload], FRAME_BYTES_MAX)?);
    sealed.put_slice(payload);
    Some(sealed.freeze())
}

/// The payload of one sealed frame, checked as the links check it.
pub fn unseal(sealed: Bytes) -> io::Result<Bytes> {
    let mut reader = FrameReader { buffer: sealed.into(), frame_max: FRAME_BYTES_MAX };
    match reader.next() {
        Ok(Some(payload)) => Ok(payload),
        Ok(None) => Err(io::Error::other(BrokenLink::Truncated)),
        Err(broken) => Err(io::Error::other(broken)),
    }
}

/// Splits what arrives into frames. The frames share the read buffer; nothing is copied.
pub(super) struct FrameReader {
    buffer: BytesMut,
    frame_max: usize,
}

impl FrameReader {
    pub(super) fn new(frame_max: usize) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), frame_max: frame_max.min(FRAME_BYTES_MAX) }
    }

    /// From now on frames may be this large: after the handshake the bound is another one.
    pub(super) fn set_frame_max(&mut self, frame_max: usize) {
        self.frame_max = frame_max.min(FRAME_BYTES_MAX);
    }

    /// The payload length announced by the header at the front, once the header is there.
    fn announced(&self) -> Option<usize> {
        let len = self.buffer.get(..4)?;
        Some(u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)
    }

    /// The next whole frame, pulses included, or `None` until more bytes are read.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, BrokenLink> {
        let Some(len) = self.announced() else { return Ok(None) };
        if len > self.frame_max {
            return Err(BrokenLink::Oversized { len, max: self.frame_max });
        }
        if self.buffer.len() < HEADER_BYTES + len {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(HEADER_BYTES + len).freeze();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..4]), &frame[HEADER_BYTES..]);
        if frame[4..HEADER_BYTES] != crc.to_le_bytes() && !tidelock_model::planted!(FrameChecksumIgnored) {
            return Err(BrokenLink::Corrupt);
        }
        frame.advance(HEADER_BYTES);
        Ok(Some(frame))
    }

    /// Makes room for one read. Never for more than twice what has arrived, so that a lie in a length
    /// field costs us nothing.
    fn make_room(&mut self) {
        let missing = self.announced().map_or(0, |len| (HEADER_BYTES + len).saturating_sub(self.buffer.len()));
        if missing > READ_BYTES {
            self.buffer.reserve(missing.min(self.buffer.len().max(GROW_BYTES_MIN)));
        } else if self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN.max(missing) {
            self.buffer.reserve(READ_BYTES);
        }
    }

    /// Reads once, as much as is there. Safe to cancel: no byte is lost.
    pub(super) async fn fill<S: AsyncRead + Unpin + ?Sized>(&mut self, stream: &mut S) -> Result<(), BrokenLink> {
        self.make_room();
        match stream.read_buf(&mut self.buffer).await? {
            0 if self.buffer.is_empty() => Err(BrokenLink::Closed),
            0 => Err(BrokenLink::Truncated),
            _ => Ok(()),
        }
    }

    /// Reads until one frame is whole. Safe to cancel.
    pub(super) async fn read<S: AsyncRead + Unpin + ?Sized>(&mut self, stream: &mut S) -> Result<Bytes, BrokenLink> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(frame);
            }
            self.fill(stream).await?;
        }
    }
}

/// Frames on their way out: small ones copied together, large ones as they are, all of them handed to
/// the system with as few calls as it takes.
pub(super) struct FrameWriter {
    segments: VecDeque<Bytes>,
    small: BytesMut,
    stall: Duration,
    frame_max: usize,
}

impl FrameWriter {
    /// A writer that gives up when no byte can be written for `stall`.
    pub(super) fn new(stall: Duration, frame_max: usize) -> FrameWriter {
        FrameWriter { segments: VecDeque::new(), small: BytesMut::new(), stall, frame_max }
    }

    /// Adds one frame whose payload is `tag` and then `payload`.
    pub(super) fn push(&mut self, tag: &[u8], payload: Bytes) -> Result<(), BrokenLink> {
        let max = self.frame_max;
        let header = header(&[tag, &payload], max)
            .ok_or(BrokenLink::Oversized { len: tag.len().saturating_add(payload.len()), max })?;
        self.small.put_slice(&header);
        self.small.put_slice(tag);
        if payload.len() <= COALESCE_BYTES_MAX {
            self.small.put_slice(&payload);
        } else {
            self.segments.push_back(self.small.split().freeze());
            self.segments.push_back(payload);
        }
        Ok(())
    }

    /// Adds the end of a frame whose beginning was written already, before everything else.
    pub(super) fn push_rest(&mut self, rest: Bytes) {
        if !rest.is_empty() {
            self.segments.push_back(rest);
        }
    }

    /// Adds a frame without payload.
    pub(super) fn push_pulse(&mut self) -> Result<(), BrokenLink> {
        self.push(&[], Bytes::new())
    }

    /// Writes everything added. Not safe to cancel: a frame may be cut, so the link must go with it.
    pub(super) async fn flush<S: AsyncWrite + Unpin + ?Sized>(&mut self, stream: &mut S) -> Result<(), BrokenLink> {
        if !self.small.is_empty() {
            self.segments.push_back(self.small.split().freeze());
        }
        while !self.segments.is_empty() {
            let written = match &self.segments.make_contiguous()[..] {
                [only] => timeout(self.stall, stream.write(only)).await,
                many => {
                    let slices = many.iter().take(SLICES_MAX).map(|one| IoSlice::new(one)).collect::<Vec<_>>();
                    timeout(self.stall, stream.write_vectored(&slices)).await
                }
            };
            match written {
                Ok(Ok(0)) => return Err(BrokenLink::Closed),
                Ok(Ok(count)) => self.consume(count),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(BrokenLink::Stalled(self.stall)),
            }
        }
        match timeout(self.stall, stream.flush()).await {
            Ok(flushed) => Ok(flushed?),
            Err(_) => Err(BrokenLink::Stalled(self.stall)),
        }
    }

    fn consume(&mut self, mut count: usize) {
        while let Some(first) = self.segments.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.segments.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STALL: Duration = Duration::from_secs(5);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Writes `payloads` into a pipe that takes `pipe` bytes at a time and returns what arrives.
    fn through_a_pipe(payloads: &[Bytes], pipe: usize) -> Vec<Bytes> {
        block_on(async {
            let (mut near, mut far) = tokio::io::duplex(pipe);
            let mut writer = FrameWriter::new(STALL, FRAME_BYTES_MAX);
            for payload in payloads {
                writer.push(&[], payload.clone()).unwrap();
            }
            let mut reader = FrameReader::new(FRAME_BYTES_MAX);
            let mut arrived = Vec::new();
            let reading = async {
                for _ in payloads {
                    arrived.push(reader.read(&mut far).await.unwrap());
                }
            };
            let (written, ()) = tokio::join!(writer.flush(&mut near), reading);
            written.unwrap();
            arrived
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A message that arrived cut, joined or out of order would be a wrong log entry on a follower.
        #[test]
        fn frames_survive_any_way_the_network_cuts_them(
            sizes in proptest::collection::vec(0usize..20_000, 0..20),
            pipe in 1usize..9_000,
        ) {
            let payloads: Vec<Bytes> =
                sizes.iter().enumerate().map(|(at, size)| Bytes::from(vec![at as u8; *size])).collect();
            prop_assert_eq!(through_a_pipe(&payloads, pipe), payloads);
        }

        /// Bytes off the wire decide nothing but whether the link goes on: no panic, no frame that its
        /// sender did not checksum.
        #[test]
        fn random_bytes_never_become_a_frame(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = FrameReader::new(64);
            reader.buffer.extend_from_slice(&garbage);
            while let Ok(Some(frame)) = reader.next() {
                let header = header(&[&frame], 64).unwrap();
                let whole = [&header[..], &frame[..]].concat();
                prop_assert!(garbage.windows(whole.len()).any(|window| window == whole));
            }
        }

        /// Silent corruption between two members must not reach the log (H16).
        #[test]
        fn a_flipped_bit_is_always_noticed(
            payload in proptest::collection::vec(any::<u8>(), 1..100),
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            let mut bytes = header(&[&payload], FRAME_BYTES_MAX).unwrap().to_vec();
            bytes.extend_from_slice(&payload);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let mut reader = FrameReader::new(FRAME_BYTES_MAX);
            reader.buffer.extend_from_slice(&bytes);
            prop_assert!(!matches!(reader.next(), Ok(Some(_))));
        }
    }

    /// A stranger that announces 64 MiB and sends nothing must not cost 64 MiB.
    #[test]
    fn a_large_length_allocates_only_as_bytes_arrive() {
        let mut reader = FrameReader::new(FRAME_BYTES_MAX);
        reader.buffer.extend_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
        reader.buffer.extend_from_slice(&[0; 4]);
        assert!(matches!(reader.next(), Ok(None)));
        reader.make_room();
        assert!(reader.buffer.capacity() <= 2 * GROW_BYTES_MIN, "{}", reader.buffer.capacity());
    }

    /// The cap is checked on the length alone, before the bytes are waited for.
    #[test]
    fn a_length_over_the_limit_is_refused_at_once() {
        let mut reader = FrameReader::new(1000);
        reader.buffer.extend_from_slice(&1001u32.to_le_bytes());
        assert!(matches!(reader.next(), Err(BrokenLink::Oversized { len: 1001, max: 1000 })));
        assert!(header(&[&[0; 1001]], 1000).is_none());
    }

    /// A peer that stopped reading must not hold the writer for ever.
    #[test]
    fn a_write_without_progress_is_given_up() {
        block_on(async {
            let (mut near, _far) = tokio::io::duplex(16);
            let mut writer = FrameWriter::new(Duration::from_millis(20), FRAME_BYTES_MAX);
            writer.push(&[], Bytes::from(vec![7; 100])).unwrap();
            assert!(matches!(writer.flush(&mut near).await, Err(BrokenLink::Stalled(_))));
        });
    }
}
