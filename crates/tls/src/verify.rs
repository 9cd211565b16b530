//! Judges of certificates: rustls' own, and around it what a certificate must say beside being good.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

use crate::load::{self, Part, TlsError};
use crate::names::common_name;
use crate::settings::{Leniency, Names, ServerTrust, Trust};
use crate::version_1::VersionOneToo;

/// The judge of those who dial us.
pub(crate) fn of_clients(
    trust: &Trust,
    names: &Names,
    leniency: Leniency,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (roots, revoked) = load::trust(trust)?;
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    if !revoked.is_empty() {
        // As in etcd, what is not on the list is good: there need not be a list of every authority in the chain.
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    if leniency.no_certificate {
        builder = builder.allow_unauthenticated();
    }
    let mut judge = builder.build().map_err(|error| unusable(trust, &error))?;
    // Whether one of version 1 was revoked is not looked up, so with a list none is taken.
    if leniency.version_1 && trust.revoked.is_none() {
        let authorities = load::certificates(Part::Authorities, &trust.authorities)?;
        judge = Arc::new(VersionOneToo::new(judge, &authorities, provider));
    }
    let names = Allowed::new(names)?;
    Ok(match names {
        Allowed::Any => judge,
        names => Arc::new(NamedClients { judge, names }),
    })
}

/// The judge of those we dial.
pub(crate) fn of_servers(
    trust: &ServerTrust,
    names: &Names,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let trust = match trust {
        ServerTrust::Anybody => return Ok(Arc::new(Anybody(Arc::clone(provider)))),
        ServerTrust::Certified(trust) => trust,
    };
    let (roots, revoked) = load::trust(trust)?;
    let mut builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider));
    if !revoked.is_empty() {
        builder = builder.with_crls(revoked).allow_unknown_revocation_status();
    }
    let judge = builder.build().map_err(|error| unusable(trust, &error))?;
    let names = Allowed::new(names)?;
    Ok(match names {
        Allowed::Any => judge,
        names => Arc::new(NamedServers { judge, names }),
    })
}

fn unusable(trust: &Trust, error: &VerifierBuilderError) -> TlsError {
    let (part, file) = match (error, &trust.revoked) {
        (VerifierBuilderError::InvalidCrl(_), Some(file)) => (Part::Revoked, file),
        _ => (Part::Authorities, &trust.authorities),
    };
    TlsError::new(part, format!("{} cannot be used: {error}", file.display()), "make it anew")
}

/// [`Names`], read once.
#[derive(Debug)]
enum Allowed {
    Any,
    Common(Vec<String>),
    Hosts(Vec<ServerName<'static>>),
}

/// Why a good certificate was not enough.
#[derive(Debug, thiserror::Error)]
#[error("its certificate is good, but its {what} is not among those that are let in")]
struct NotLetIn {
    what: String,
}

impl Allowed {
    fn new(names: &Names) -> Result<Allowed, TlsError> {
        Ok(match names {
            Names::Any => Allowed::Any,
            Names::Common(names) => Allowed::Common(names.clone()),
            Names::Hosts(hosts) => Allowed::Hosts(hosts.iter().map(|host| host_name(host)).collect::<Result<_, _>>()?),
        })
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let what = match self {
            Allowed::Any => return Ok(()),
            Allowed::Common(names) => {
                let name = common_name(certificate).unwrap_or_default();
                if names.contains(&name) {
                    return Ok(());
                }
                format!("common name {name:?}")
            }
            Allowed::Hosts(hosts) => {
                let parsed = ParsedCertificate::try_from(certificate)?;
                if hosts.iter().any(|host| verify_server_name(&parsed, host).is_ok()) {
                    return Ok(());
                }
                "host".to_owned()
            }
        };
        let why: Arc<dyn std::error::Error + Send + Sync> = Arc::new(NotLetIn { what });
        Err(CertificateError::Other(OtherError(why)).into())
    }
}

fn host_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        TlsError::new(
            Part::Names,
            format!("{host:?} is neither a host name nor an address"),
            "write it like host.example or 10.0.0.1",
        )
    })
}

#[derive(Debug)]
struct NamedClients {
    judge: Arc<dyn ClientCertVerifier>,
    names: Allowed,
}

impl ClientCertVerifier for NamedClients {
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
        let verified = self.judge.verify_client_cert(end_entity, intermediates, now)?;
        self.names.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.judge.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.judge.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.judge.supported_verify_schemes()
    }
}

#[derive(Debug)]
struct NamedServers {
    judge: Arc<dyn ServerCertVerifier>,
    names: Allowed,
}

impl ServerCertVerifier for NamedServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.judge.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.names.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.judge.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.judge.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.judge.supported_verify_schemes()
    }
}

/// Believes every certificate, but still makes sure that the other side has its key: without that, not even
/// the encryption would mean anything.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
