//! What certificates say of themselves. Read only in certificates that were verified, or that are our own.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(certificate).ok().map(|(_, parsed)| parsed)
}

/// The common name of the certificate's subject; the last, if it has several, as Go's library takes it.
#[must_use]
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = parse(certificate)?;
    let name = parsed.subject().iter_common_name().last()?.as_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The serial number, in hex as tools print it.
#[must_use]
pub fn serial(certificate: &CertificateDer<'_>) -> Option<String> {
    parse(certificate).map(|parsed| parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// When it ends, since 1970.
pub(crate) fn ends(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let end = parse(certificate)?.validity().not_after.timestamp();
    Some(Duration::from_secs(u64::try_from(end).unwrap_or(0)))
}

/// Whom it is about, as bytes to compare.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    parse(certificate).map(|parsed| parsed.subject().as_raw().to_vec())
}

/// Who wrote a revocation list, as bytes to compare with a subject.
pub(crate) fn revocation_issuer(list: &CertificateRevocationListDer<'_>) -> Result<Vec<u8>, String> {
    let (_, parsed) = CertificateRevocationList::from_der(list).map_err(|error| error.to_string())?;
    Ok(parsed.issuer().as_raw().to_vec())
}
