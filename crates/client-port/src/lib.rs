//! What the faces share that speak gRPC and JSON over HTTP: connections, frames, JSON by descriptors, and who a client is.
//!
//! A face says what it answers ([`Face`]); this crate has the sockets, and knows nothing of any protocol above HTTP. What
//! a caller may do is not decided here but below the coordinator (A1): all that is decided here is whether the
//! proof of who it is holds.

mod callers;
mod first_bytes;
mod framing;
mod json;
mod listener;
mod passwords;
mod tokens;

pub use callers::{Credential, InvalidToken};
pub use framing::{PREFIX_BYTES, frame, framed, one_message, take_message, time_given};
pub use json::{Shape, Unreadable, is_of_another_origin};
pub use listener::{Allowance, ClientName, Face, serve};
pub use passwords::{BCRYPT_COST, PasswordError, Passwords};
pub use tokens::{JwtKeys, TOKEN_TTL, TokenKind, Tokens};
