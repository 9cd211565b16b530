//! ZooKeeper's wire format: bytes in, values out, and back. No sockets, no clock, no tree.
//!
//! A connection opens with four bytes that are either a four-letter word or the length of the first frame
//! ([`opening`]). The first frame is a [`ConnectRequest`]; each later one is a request ([`parse_request`]).
//! What goes out is whole packets, length included: [`ConnectResponse::write`], [`write_reply`],
//! [`write_event`].
//!
//! What holds:
//! - any bytes give a value or an error, never a panic, and no more memory is taken than a small multiple of
//!   the bytes that really came (a count or length is believed only if that many bytes are left);
//! - data and tokens are slices of the frame they came in. They keep that whole buffer alive, so whoever
//!   stores one for long copies it first;
//! - null and empty data stay apart, as they do in ZooKeeper.
//!
//! What is refused follows a ZooKeeper 3.9.3 that was asked with raw sockets:
//! - a frame without a whole header ends the connection without a word, and so does a bad auth or sasl packet
//!   ([`Malformed::Fatal`]); any other bad record is answered with -5 and the connection goes on
//!   ([`Malformed::Record`]);
//! - bytes that are not UTF-8 are no defect: they are read as U+FFFD, which no path may contain, so such a
//!   path is illegal or not found like any other;
//! - a null path is a bad record (-5), except where ZooKeeper treats it otherwise (see [`Request`]);
//! - bytes after the end of a record are ignored.
//!
//! One difference on purpose: characters beyond U+FFFF are written as UTF-8. ZooKeeper writes each half of the
//! surrogate pair by itself, which is not UTF-8 and which strict clients cannot read.
//!
//! Look next: `jute` (primitives), `request` and `multi` (what comes in), `reply` and `event` (what goes out),
//! `framing`, `connect`, `records`, `codes`.

#[cfg(any(test, feature = "client"))]
pub mod client;
mod codes;
mod connect;
mod event;
mod framing;
mod jute;
mod multi;
mod records;
mod reply;
mod request;

#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "client"))]
mod request_writer;
#[cfg(test)]
mod tests;

pub use codes::{ErrorCode, opcode, xid};
pub use connect::{ConnectRequest, ConnectResponse, PASSWORD_LENGTH};
pub use event::{EventKind, KeeperState, write_event};
pub use framing::{BadLength, DEFAULT_MAX_FRAME, FourLetterWord, Opening, frame_length, opening, take_frame};
pub use jute::Defect;
pub use multi::{MultiOp, MultiReadOp};
pub use records::{Acl, AddWatchMode, AuthId, CreateMode, RemovedWatch, Stat};
pub use reply::{MAX_REPLY, MultiReadResult, MultiResult, Reply, write_reply};
pub use request::{CreateCall, CreateRequest, Malformed, Request, WatchedPaths, parse_request};
