//! HTTP/2 for a server whose requests are mostly small calls: many on a connection, one message each way.
//!
//! The protocol has no sockets, tasks or clock: [`Connection`] takes bytes in and gives [`Event`]s and bytes out, so that one task
//! per connection ([`serve`]) can read whatever has come, answer whatever is done, and write it all at once. That is what it is
//! for: a general server spends most of its time on a task, a map of headers and a body of channels per request
//! (docs/decisions/0017-own-http2.md).
//!
//! What holds: windows are kept to, both ways; everything a client can make us keep is bounded, by [`Limits`] and by what
//! `connection/waiting` and `serve/requests` say; whatever is no HTTP/2 ends in a reset of the stream or in the end of the
//! connection, told in its own words.
//!
//! Not here: pushes, priorities, CONNECT, the client's side.

mod connection;
mod frame;
pub mod hpack;
mod out;
mod request_head;
pub mod serve;
mod streams;

pub use connection::{Connection, Event, Fatal, Limits};
pub use frame::{ErrorCode, PREFACE};
pub use request_head::RequestHead;
