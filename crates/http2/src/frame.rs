//! Frames: nine bytes that say what follows, and what follows (RFC 9113, section 4 and 6).

use bytes::{BufMut, BytesMut};

/// What a client must begin with.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The head of a frame.
pub(crate) const HEAD_BYTES: usize = 9;
/// The largest frame we take, and the largest we may send before told otherwise.
pub(crate) const FRAME_BYTES: usize = 16 * 1024;
/// The largest anybody may allow.
pub(crate) const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;
/// The largest window.
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;
/// The window everything begins with.
pub(crate) const WINDOW_FIRST: i64 = 65_535;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

pub(crate) const SETTING_TABLE_BYTES: u16 = 1;
pub(crate) const SETTING_PUSH: u16 = 2;
pub(crate) const SETTING_STREAMS: u16 = 3;
pub(crate) const SETTING_WINDOW: u16 = 4;
pub(crate) const SETTING_FRAME_BYTES: u16 = 5;
pub(crate) const SETTING_LIST_BYTES: u16 = 6;

/// Why a stream or a connection ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// It does not: it just ends.
    NoError = 0,
    /// Something that must not be sent.
    Protocol = 1,
    /// Something broke here.
    Internal = 2,
    /// More than the window allows.
    FlowControl = 3,
    /// Something for a stream that is over.
    StreamClosed = 5,
    /// A frame of a length it cannot have.
    FrameSize = 6,
    /// Nothing was done for this stream; it may be tried again.
    RefusedStream = 7,
    /// Nobody waits for it any more.
    Cancel = 8,
    /// The tables of both sides differ.
    Compression = 9,
    /// Too much of something.
    EnhanceYourCalm = 11,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) fn read(bytes: &[u8; HEAD_BYTES]) -> Head {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *bytes;
        Head {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(crate) fn head(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD_BYTES] {
    let length = (length as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    [length[1], length[2], length[3], kind, flags, stream[0], stream[1], stream[2], stream[3]]
}

pub(crate) fn put_head(length: usize, kind: u8, flags: u8, stream: u32, out: &mut BytesMut) {
    out.put_slice(&head(length, kind, flags, stream));
}

pub(crate) fn put_reset(stream: u32, code: ErrorCode, out: &mut BytesMut) {
    put_head(4, RST_STREAM, 0, stream, out);
    out.put_u32(code as u32);
}

pub(crate) fn put_window(stream: u32, more: u32, out: &mut BytesMut) {
    put_head(4, WINDOW_UPDATE, 0, stream, out);
    out.put_u32(more);
}

pub(crate) fn put_goaway(last: u32, code: ErrorCode, why: &str, out: &mut BytesMut) {
    put_head(8 + why.len(), GOAWAY, 0, 0, out);
    out.put_u32(last);
    out.put_u32(code as u32);
    out.put_slice(why.as_bytes());
}

pub(crate) fn put_ping(payload: [u8; 8], flags: u8, out: &mut BytesMut) {
    put_head(8, PING, flags, 0, out);
    out.put_slice(&payload);
}

pub(crate) fn put_settings(settings: &[(u16, u32)], out: &mut BytesMut) {
    put_head(settings.len() * 6, SETTINGS, 0, 0, out);
    for (name, value) in settings {
        out.put_u16(*name);
        out.put_u32(*value);
    }
}
