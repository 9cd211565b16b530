//! What one side of a connection is to show, whom it trusts and what it speaks. Plain data: nothing is read or
//! checked before [`crate::Acceptor::open`] and [`crate::Connector::open`].

use std::path::PathBuf;

use crate::protocol::Protocol;

/// What one shows of oneself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A certificate and its key, both PEM; the certificate is followed by those of intermediate authorities.
    Files {
        /// The certificate.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// Made when it is opened, for these hosts, and vouched for by nobody: it encrypts and proves nothing.
    SelfSigned {
        /// Names and addresses.
        hosts: Vec<String>,
    },
}

/// Whose certificates are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Certificates of authorities, PEM.
    pub authorities: PathBuf,
    /// What they have revoked, PEM or DER.
    pub revoked: Option<PathBuf>,
}

/// What a good certificate must say, to be let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Anything.
    #[default]
    Any,
    /// One of these common names.
    Common(Vec<String>),
    /// One of these host names or addresses, among its alternative names.
    Hosts(Vec<String>),
}

/// What a side that listens lets pass although it need not; nothing, unless it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leniency {
    /// A client may show no certificate. One that it shows must be good all the same.
    pub no_certificate: bool,
    /// Certificates may be of X.509 version 1: those of clients, and the one that is shown to them.
    pub version_1: bool,
}

/// A side that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// What it shows.
    pub identity: Identity,
    /// Whose certificates it demands; `None`: none are asked for.
    pub clients: Option<Trust>,
    /// Which of those are let in.
    pub names: Names,
    /// Whether a client's common name says who it is. etcd's rule: only if certificates were asked for by name
    /// (`client-cert-auth`), not if an authority was given alone.
    pub common_name_is_user: bool,
    /// What it lets pass.
    pub leniency: Leniency,
    /// Protocols spoken inside, best first; empty: it is not asked.
    pub inside: Vec<&'static str>,
    /// Versions and suites.
    pub protocol: Protocol,
}

/// Whom a side that dials believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTrust {
    /// Those with a certificate for the host that was dialed.
    Certified(Trust),
    /// Anybody: the traffic is encrypted, perhaps for a stranger.
    Anybody,
}

/// A side that dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// What it shows if it is asked.
    pub identity: Option<Identity>,
    /// Whom it believes.
    pub servers: ServerTrust,
    /// Which of those are talked to.
    pub names: Names,
    /// Protocols spoken inside, best first; empty: none are offered.
    pub inside: Vec<&'static str>,
    /// Versions and suites.
    pub protocol: Protocol,
}

impl Identity {
    /// The files to look after.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match self {
            Identity::Files { certificate, key } => vec![certificate.clone(), key.clone()],
            Identity::SelfSigned { .. } => Vec::new(),
        }
    }
}

impl Trust {
    /// The files to look after.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        [Some(&self.authorities), self.revoked.as_ref()].into_iter().flatten().cloned().collect()
    }
}
