//! Certificates of X.509 version 1. Keystores of the Java world still hold them, ZooKeeper takes them, and webpki,
//! which judges all others here, does not read them. Only a listener that was told to ([`crate::Leniency`]) takes them.
//!
//! What is checked of one that a client shows: its dates; its signature, by one of the same algorithms as elsewhere
//! and directly by a trusted authority, one of version 3 that says it is an authority; that the client has its key.
//!
//! What is not: what it may be used for, because version 1 has no way to say so. An authority's server certificates of
//! version 1 are therefore good for clients too, as with Java.
//!
//! Refused, because it could not be judged: version 1 anywhere but at the end of a chain, under an authority that
//! constrains names, and at a listener with a list of revoked certificates.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, InconsistentKeys, PeerMisbehaved,
    SignatureScheme,
};
use webpki::RawPublicKeyEntity;
use x509_parser::asn1_rs::{Any, Oid};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};
use x509_parser::x509::AlgorithmIdentifier;

/// The certificate, if it is whole and of version 1.
fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    let is_version_1 = parsed.version() == X509Version::V1
        && parsed.extensions().is_empty()
        && parsed.issuer_uid.is_none()
        && parsed.subject_uid.is_none();
    (rest.is_empty() && is_version_1).then_some(parsed)
}

/// A certificate of version 1 and its key, to be shown. `None`: it is of another version.
pub(crate) fn certified(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Option<Result<CertifiedKey, Error>> {
    let certificate = parse(chain.first()?)?;
    let loaded = match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(loaded) => loaded,
        Err(error) => return Some(Err(error)),
    };
    let is_its_key = loaded.public_key().is_some_and(|public| public.as_ref() == certificate.public_key().raw);
    Some(if is_its_key {
        Ok(CertifiedKey::new(chain.to_vec(), loaded))
    } else {
        Err(InconsistentKeys::KeyMismatch.into())
    })
}

/// A trusted authority.
struct Issuer {
    name: Vec<u8>,
    key: SubjectPublicKeyInfoDer<'static>,
}

impl Issuer {
    /// `None`: it cannot vouch for certificates that say so little.
    fn of(authority: &CertificateDer<'_>) -> Option<Issuer> {
        let (_, parsed) = X509Certificate::from_der(authority).ok()?;
        let is_authority = parsed.version() == X509Version::V3 && parsed.is_ca();
        let usage = parsed.key_usage().ok()?;
        let may_sign = usage.is_none_or(|usage| usage.value.key_cert_sign());
        let is_free = parsed.name_constraints().ok()?.is_none();
        (is_authority && may_sign && is_free).then(|| Issuer {
            name: parsed.subject().as_raw().to_vec(),
            key: SubjectPublicKeyInfoDer::from(parsed.public_key().raw.to_vec()),
        })
    }
}

/// A judge of clients that also takes certificates of version 1.
pub(crate) struct VersionOneToo {
    judge: Arc<dyn ClientCertVerifier>,
    issuers: Vec<Issuer>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl VersionOneToo {
    /// `judge` judges all other certificates.
    pub(crate) fn new(
        judge: Arc<dyn ClientCertVerifier>,
        authorities: &[CertificateDer<'_>],
        provider: &CryptoProvider,
    ) -> VersionOneToo {
        let issuers = authorities.iter().filter_map(Issuer::of).collect();
        VersionOneToo { judge, issuers, algorithms: provider.signature_verification_algorithms }
    }

    fn verify(&self, certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), Error> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < certificate.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > certificate.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        // What lies outside of what is signed must leave nothing to choose: the algorithm is the one inside, and
        // the signature has whole bytes.
        if certificate.signature_algorithm != certificate.tbs_certificate.signature
            || certificate.signature_value.unused_bits != 0
        {
            return Err(CertificateError::BadEncoding.into());
        }
        let named = |issuer: &&Issuer| issuer.name == certificate.issuer().as_raw();
        let mut why = CertificateError::UnknownIssuer;
        for issuer in self.issuers.iter().filter(named) {
            if self.is_signed_by(certificate, issuer) {
                return Ok(());
            }
            why = CertificateError::BadSignature;
        }
        Err(why.into())
    }

    fn is_signed_by(&self, certificate: &X509Certificate<'_>, issuer: &Issuer) -> bool {
        let signed: &[u8] = certificate.tbs_certificate.as_ref();
        let usable = self.algorithms.all.iter().filter(|known| is_of(**known, &certificate.signature_algorithm));
        let Ok(key) = RawPublicKeyEntity::try_from(&issuer.key) else { return false };
        usable.into_iter().any(|known| key.verify_signature(*known, signed, &certificate.signature_value.data).is_ok())
    }
}

/// Whether `algorithm` is what the library knows as `known`.
fn is_of(known: &dyn SignatureVerificationAlgorithm, algorithm: &AlgorithmIdentifier<'_>) -> bool {
    let id = known.signature_alg_id();
    let Ok((rest, oid)) = Oid::from_der(&id) else { return false };
    let parameters = if rest.is_empty() { None } else { Any::from_der(rest).ok().map(|(_, any)| any) };
    oid == algorithm.algorithm && parameters == algorithm.parameters
}

impl fmt::Debug for VersionOneToo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionOneToo").field("judge", &self.judge).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for VersionOneToo {
    fn offer_client_auth(&self) -> bool {
        self.judge.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.judge.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.judge.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match parse(end_entity) {
            Some(certificate) => self.verify(&certificate, now).map(|()| ClientCertVerified::assertion()),
            None => self.judge.verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(certificate) = parse(cert) else {
            return self.judge.verify_tls12_signature(message, cert, dss);
        };
        let offered = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme);
        let (_, possible) = offered.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        // TLS 1.2 does not say on which curve a key is, so each is tried; one that does not fit the key fails.
        if possible.iter().any(|known| key.verify_signature(*known, message, dss.signature()).is_ok()) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(certificate) = parse(cert) else {
            return self.judge.verify_tls13_signature(message, cert, dss);
        };
        let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.judge.supported_verify_schemes()
    }
}

#[cfg(test)]
#[path = "version_1_tests.rs"]
mod tests;
