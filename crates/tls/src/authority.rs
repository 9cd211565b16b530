//! Making certificates: an authority, and what it issues. For trying TLS out, for small installations, and for
//! tests; who has an authority already needs none of this.
//!
//! Keys are ECDSA on P-256, which every TLS client knows. What is issued carries an extended key usage, so that a
//! client's certificate cannot pass for a server's.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams,
    SerialNumber,
};
use time::OffsetDateTime;

use crate::names::serial;

/// Certificates begin this long before they are made, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Most likely a host that is neither a name nor an address.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A serial number to revoke is not hex.
    #[error("{0:?} is not a serial number in hex")]
    Serial(String),
}

/// From when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl Validity {
    /// From about now on.
    #[must_use]
    pub fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - BACKDATED, until: now + DAY * days }
    }
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To be shown by those who listen.
    Server,
    /// To be shown by those who dial.
    Client,
    /// Both, as members of a cluster do.
    Peer,
}

/// A certificate to be made.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Whom it names: the user, for clients.
    pub common_name: &'a str,
    /// Host names and addresses it is for.
    pub hosts: &'a [String],
    /// What for.
    pub usage: Use,
    /// For how long.
    pub validity: Validity,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate, PEM.
    pub certificate: String,
    /// The key, PEM (PKCS #8).
    pub key: String,
    /// The serial number, in hex.
    pub serial: String,
}

impl Issued {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Issued {
        let serial = serial(certificate.der()).unwrap_or_default();
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }
}

/// One that vouches for others.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    issued: Issued,
}

impl Authority {
    /// A new one.
    pub fn new(name: &str, validity: Validity) -> Result<Authority, MakeError> {
        let mut params = params(name, &[], validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let issued = Issued::new(&params.self_signed(&key)?, &key);
        Ok(Authority { issuer: Issuer::new(params, key), issued })
    }

    /// Its own certificate and key.
    #[must_use]
    pub fn own(&self) -> &Issued {
        &self.issued
    }

    /// Issues a certificate.
    pub fn issue(&self, order: &Order<'_>) -> Result<Issued, MakeError> {
        let mut params = params(order.common_name, order.hosts, order.validity)?;
        params.extended_key_usages = match order.usage {
            Use::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Use::Peer => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Issued::new(&params.signed_by(&key, &self.issuer)?, &key))
    }

    /// A list, PEM, of what it takes back.
    pub fn revoke(&self, serials: &[&str], validity: Validity) -> Result<String, MakeError> {
        let revoked = |serial: &&str| {
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from(hex(serial)?),
                revocation_time: OffsetDateTime::from(validity.from),
                reason_code: Some(RevocationReason::Unspecified),
                invalidity_date: None,
            })
        };
        let list = CertificateRevocationListParams {
            this_update: OffsetDateTime::from(validity.from),
            next_update: OffsetDateTime::from(validity.until),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect::<Result<_, MakeError>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&self.issuer)?.pem()?)
    }

    /// A certificate that vouches for itself, for these hosts.
    pub(crate) fn self_signed(hosts: &[String], validity: Validity) -> Result<Issued, MakeError> {
        let mut params = params("Tidelock", hosts, validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        Ok(Issued::new(&params.self_signed(&key)?, &key))
    }
}

fn params(common_name: &str, hosts: &[String], validity: Validity) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::new(hosts.to_vec())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Tidelock");
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = OffsetDateTime::from(validity.from);
    params.not_after = OffsetDateTime::from(validity.until);
    Ok(params)
}

fn hex(text: &str) -> Result<Vec<u8>, MakeError> {
    let bad = || MakeError::Serial(text.to_owned());
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(bad());
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad())).collect()
}
