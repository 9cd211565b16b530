//! Why a connection did not come about, or broke, in words that say what to mend. The libraries name alerts and
//! enum variants; whoever set up certificates wants to know which file is wrong and on whose side.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::{AlertDescription, CertificateError, Error};

/// Log lines of one listener at most: one in this time. Whoever can reach a port can fail handshakes at will.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A handshake that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    why: String,
    is_gone: bool,
}

impl Refusal {
    /// From what the library said.
    pub(crate) fn new(error: &io::Error) -> Refusal {
        Refusal { why: explain(error), is_gone: tls_error(error).is_none() }
    }

    /// The other side did not answer in time.
    #[must_use]
    pub fn too_slow(patience: Duration) -> Refusal {
        Refusal { why: format!("the TLS handshake was not done within {patience:?}"), is_gone: true }
    }

    /// Whether the other side just went away, as probes of load balancers do.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        io::Error::other(refusal)
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref::<Error>()
}

/// The error, with what it means.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match tls_error(&error) {
        Some(known) => io::Error::new(error.kind(), explain_tls(known)),
        None => error,
    }
}

fn explain(error: &io::Error) -> String {
    match tls_error(error) {
        Some(known) => explain_tls(known),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was closed in the TLS handshake (does the other side use TLS, and trust our certificate?)"
                .to_owned()
        }
        None => error.to_string(),
    }
}

fn explain_tls(error: &Error) -> String {
    match error {
        Error::InvalidMessage(why) => {
            format!("what the other side sent is not TLS ({why:?}): does it use http:// here?")
        }
        Error::NoCertificatesPresented => "it showed no certificate, and one is demanded here".to_owned(),
        Error::InvalidCertificate(why) => explain_certificate(why),
        Error::AlertReceived(alert) => explain_alert(*alert),
        Error::PeerIncompatible(why) => format!("there is no version or cipher suite that both sides allow ({why:?})"),
        other => other.to_string(),
    }
}

fn explain_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => "its certificate is of an authority that is not trusted here".to_owned(),
        // Two authorities of one name: what differs is their keys.
        CertificateError::BadSignature => {
            "its certificate is of an authority that is not trusted here, although one of that name is".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet (are the clocks right?)".to_owned()
        }
        CertificateError::Revoked => "its certificate was revoked".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("its certificate is not for {}, but for {presented:?}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate may not be used for this (extended key usage)".to_owned()
        }
        CertificateError::Other(why) => why.to_string(),
        other => format!("its certificate is not good: {other:?}"),
    }
}

fn explain_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "it demands a certificate and was shown none".to_owned(),
        AlertDescription::UnknownCA => "it does not trust the authority of our certificate".to_owned(),
        AlertDescription::CertificateExpired => "it says that our certificate has expired".to_owned(),
        AlertDescription::CertificateRevoked => "it says that our certificate was revoked".to_owned(),
        AlertDescription::AccessDenied
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => {
            format!("it refuses our certificate ({alert:?})")
        }
        AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => {
            format!("there is no version or cipher suite that both sides allow ({alert:?})")
        }
        other => format!("it ended the TLS connection ({other:?})"),
    }
}

/// Failed handshakes of one listener, into the log but not at the pace of an attacker.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<(Option<Instant>, u64)>);

impl RefusalLog {
    /// Logs a refusal, or counts it for the next line.
    pub fn note(&self, from: Option<SocketAddr>, refusal: &Refusal) {
        let from = from.map_or_else(|| "somewhere".to_owned(), |from| from.to_string());
        if refusal.is_gone() {
            tracing::debug!(%from, "a connection ended in its TLS handshake: {refusal}");
            return;
        }
        let mut state = self.0.lock();
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < LOG_EVERY) {
            *suppressed += 1;
            return;
        }
        *last = Some(Instant::now());
        let suppressed = std::mem::take(suppressed);
        tracing::warn!(%from, suppressed, "refused a TLS connection: {refusal}");
    }
}
