//! TLS: for everything that listens or dials, from files that may change while it runs.
//!
//! | file        | what it holds                                                              |
//! |-------------|----------------------------------------------------------------------------|
//! | `settings`  | what a listener or a dialer is to show, whom it trusts, what it speaks     |
//! | `load`      | certificates, keys, authorities and revocation lists out of files          |
//! | `reload`    | the same again when the files have changed                                 |
//! | `protocol`  | versions and cipher suites, by the names that etcd's flags have            |
//! | `verify`    | names a certificate must carry, beside being good                          |
//! | `server`    | [`Acceptor`]                                                               |
//! | `client`    | [`Connector`]                                                              |
//! | `refusal`   | why a handshake failed, in words for whoever has to mend it                |
//! | `authority` | making certificates                                                        |
//!
//! What holds: whatever is opened here was loaded once, whole and matching, so that a bad file is found at
//! start. A file that turns bad later changes nothing but the log. No session is resumed: every connection shows
//! and is shown certificates that are good now.
//!
//! Refused: TLS before 1.2, suites without forward secrecy, certificates that name their host by common name alone.
//!
//! Not here: deadlines and bounds on handshakes under way (those who listen have them), what a name may do.

mod authority;
mod client;
mod load;
mod names;
mod protocol;
mod refusal;
mod reload;
mod server;
mod settings;
mod stream;
mod verify;

#[cfg(test)]
mod tests;

pub use authority::{Authority, Issued, MakeError, Order, Use, Validity};
pub use client::Connector;
pub use load::{Part, TlsError};
pub use names::{common_name, serial};
pub use protocol::{Protocol, Version};
pub use refusal::{Refusal, RefusalLog};
pub use server::{Accepted, Acceptor};
pub use settings::{ClientSettings, Identity, Names, ServerSettings, ServerTrust, Trust};
pub use stream::SecureStream;
