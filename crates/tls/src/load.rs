//! Files into what rustls works with. Every problem names its file and says what to do, since the one who reads
//! it has several files before him and is in a hurry.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::authority::{Authority, Validity};
use crate::names;
use crate::settings::{Identity, Trust};
use crate::version_1;

/// Largest file read; lists of revoked certificates are the largest, and far below this.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// How long a certificate made at start is good for. It is made anew at every start, and nobody checks it.
const SELF_SIGNED_DAYS: u32 = 3650;
/// A certificate that ends sooner than this is worth a line in the log.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// Which of the things that were given is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The certificate to show.
    Certificate,
    /// Its key.
    Key,
    /// The authorities to trust.
    Authorities,
    /// The list of revoked certificates.
    Revoked,
    /// Names to let in.
    Names,
    /// Protocol versions.
    Versions,
    /// Cipher suites.
    Suites,
}

/// Why TLS cannot be had as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub struct TlsError {
    /// What it is about.
    pub part: Part,
    /// What is wrong, with the file's name.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl TlsError {
    pub(crate) fn new(part: Part, what: impl Into<String>, fix: impl Into<String>) -> TlsError {
        TlsError { part, what: what.into(), fix: fix.into() }
    }

    fn file(part: Part, file: &Path, why: impl fmt::Display, fix: &str) -> TlsError {
        TlsError::new(part, format!("{} {why}", file.display()), fix)
    }
}

/// What to show, ready to sign.
pub(crate) fn identity(
    identity: &Identity,
    may_be_version_1: bool,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key) = match identity {
        Identity::Files { certificate, key } => (certificates(Part::Certificate, certificate)?, private_key(key)?),
        Identity::SelfSigned { hosts } => self_signed(hosts)?,
    };
    let certified = match version_1::certified(&chain, &key, provider).filter(|_| may_be_version_1) {
        Some(certified) => certified,
        None => CertifiedKey::from_der(chain, key, provider),
    };
    let certified = certified.map_err(|error| mismatch(identity, &error))?;
    if let Identity::Files { certificate, .. } = identity {
        warn_of_expiry(certificate, &certified.cert);
    }
    Ok(Arc::new(certified))
}

fn mismatch(identity: &Identity, error: &rustls::Error) -> TlsError {
    let Identity::Files { certificate, key } = identity else {
        return TlsError::new(Part::Certificate, format!("no certificate could be made: {error}"), "report this");
    };
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::file(
            Part::Key,
            key,
            format_args!("is not the key of {}", certificate.display()),
            "give the key that the certificate was made for",
        ),
        rustls::Error::InvalidCertificate(why) => TlsError::file(
            Part::Certificate,
            certificate,
            format_args!("begins with a certificate that cannot be read: {why:?}"),
            "give an X.509 certificate of version 3 as PEM",
        ),
        other => TlsError::file(
            Part::Key,
            key,
            format_args!("holds a key that cannot be used: {other}"),
            "give an ECDSA (P-256, P-384), Ed25519 or RSA key of 2048 bits or more",
        ),
    }
}

fn self_signed(hosts: &[String]) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let broken = |why: String| {
        TlsError::new(Part::Certificate, format!("no certificate could be made: {why}"), "give --cert-file instead")
    };
    let issued = Authority::self_signed(hosts, Validity::days(SELF_SIGNED_DAYS)).map_err(|e| broken(e.to_string()))?;
    let certificate =
        CertificateDer::from_pem_slice(issued.certificate.as_bytes()).map_err(|error| broken(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).map_err(|error| broken(error.to_string()))?;
    Ok((vec![certificate], key))
}

fn warn_of_expiry(file: &Path, chain: &[CertificateDer<'_>]) {
    let Some(end) = chain.first().and_then(|certificate| names::ends(certificate)) else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let file = file.display();
    match end.checked_sub(now) {
        None => {
            tracing::warn!(%file, "this certificate has expired: others will refuse it; put a new one in its place");
        }
        Some(left) if left < EXPIRY_WARNING => {
            let days = left.as_secs() / (24 * 3600);
            tracing::warn!(%file, days, "this certificate expires soon; put a new one in its place");
        }
        Some(_) => {}
    }
}

/// Authorities, and what they revoked.
pub(crate) fn trust(
    trust: &Trust,
) -> Result<(Arc<RootCertStore>, Vec<CertificateRevocationListDer<'static>>), TlsError> {
    let file = &trust.authorities;
    let authorities = certificates(Part::Authorities, file)?;
    let mut roots = RootCertStore::empty();
    for authority in &authorities {
        roots.add(authority.clone()).map_err(|error| {
            TlsError::file(
                Part::Authorities,
                file,
                format_args!("holds a certificate that cannot be trusted: {error}"),
                "give certificates of authorities as PEM",
            )
        })?;
    }
    let revoked = match &trust.revoked {
        Some(file) => revocation_lists(file, &authorities)?,
        None => Vec::new(),
    };
    Ok((Arc::new(roots), revoked))
}

/// The certificates of a file.
pub(crate) fn certificates(part: Part, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(part, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let fix = "give certificates as PEM (-----BEGIN CERTIFICATE-----)";
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::file(part, file, "holds no certificate", fix)),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::file(part, file, format_args!("cannot be understood: {error}"), fix)),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(Part::Key, file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let why = match error {
            rustls::pki_types::pem::Error::NoItemsFound => "holds no private key that is not encrypted".to_owned(),
            other => format!("cannot be understood: {other}"),
        };
        TlsError::file(Part::Key, file, why, "give a private key as PEM, without a passphrase")
    })
}

fn revocation_lists(
    file: &Path,
    authorities: &[CertificateDer<'_>],
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = read(Part::Revoked, file)?;
    let fix = "give a revocation list (X.509 CRL, version 2) as PEM or DER";
    let bad = |why: String| TlsError::file(Part::Revoked, file, why, fix);
    let mut lists: Vec<CertificateRevocationListDer<'static>> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("cannot be understood: {error}")))?;
    if lists.is_empty() {
        lists.push(bytes.into());
    }
    for list in &lists {
        let issuer = names::revocation_issuer(list).map_err(|why| bad(format!("is no revocation list: {why}")))?;
        // An intermediate authority's list is good although only the root is in our file, so this is no error.
        if !authorities.iter().any(|authority| names::subject(authority).as_ref() == Some(&issuer)) {
            let file = file.display();
            tracing::warn!(%file, "this revocation list is of none of the trusted authorities: it counts only for \
                certificates that come with its issuer's");
        }
    }
    Ok(lists)
}

fn read(part: Part, file: &Path) -> Result<Vec<u8>, TlsError> {
    let fix = "check the path, and that the node may read it";
    let unreadable = |error: std::io::Error| TlsError::file(part, file, format_args!("cannot be read: {error}"), fix);
    let opened = File::open(file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::file(part, file, "is too large", "give a file of certificates"));
    }
    Ok(bytes)
}
