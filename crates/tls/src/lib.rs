//! TLS: for everything that listens or dials, from files that may change while it runs.
//!
//! | file        | what it holds                                                              |
//! |-------------|----------------------------------------------------------------------------|
//! | `settings`  | what a listener or a dialer is to show, whom it trusts, what it speaks     |
//! | `load`      | certificates, keys, authorities and revocation lists out of files          |
//! | `reload`    | the same again when the files have changed                                 |
//! | `protocol`  | versions and cipher suites, by the names that etcd's flags have            |
//! | `verify`    | names a certificate must carry, beside being good                          |
//! | `version_1` | certificates of X.509 version 1, where they are let in                     |
//! | `distinguished_name` | whom a certificate is about, in one line                          |
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
mod distinguished_name;
mod load;
mod names;
mod protocol;
mod refusal;
mod reload;
mod server;
mod settings;
mod stream;
mod verify;
mod version_1;

#[cfg(test)]
mod tests;

pub use authority::{Authority, Issued, MakeError, Order, Use, Validity};
pub use client::{Connector, host_name};
pub use distinguished_name::distinguished_name;
pub use load::{Part, TlsError};
pub use names::{common_name, serial};
pub use protocol::{Protocol, Version};
pub use refusal::{Refusal, RefusalLog};
pub use rustls::ClientConfig;
pub use server::{Accepted, Acceptor};
pub use settings::{ClientSettings, Identity, Leniency, Names, ServerSettings, ServerTrust, Trust};
pub use stream::SecureStream;
