use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData as _, SigningKey as _,
};
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const ECDSA_WITH_SHA256: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_WITH_SHA384: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
const SEQUENCE: u8 = 0x30;

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = match u8::try_from(content.len()) {
        Ok(short @ 0..0x80) => vec![short],
        _ => vec![0x82, (content.len() >> 8) as u8, content.len() as u8],
    };
    [&[tag][..], &length, &content].concat()
}

fn common_name(name: &str) -> Vec<u8> {
    let attribute = der(SEQUENCE, &[&[0x06, 3, 0x55, 4, 3], &der(0x0c, &[name.as_bytes()])]);
    der(SEQUENCE, &[&der(0x31, &[&attribute])])
}

/// What makes one certificate of version 1 differ from another.
#[derive(Clone)]
struct Drawn {
    issuer: String,
    algorithm_inside: &'static [u8],
    /// Seconds from now.
    from: i64,
    until: i64,
    version_3_in_name: bool,
}

impl Default for Drawn {
    fn default() -> Drawn {
        Drawn {
            issuer: "ca".into(),
            algorithm_inside: ECDSA_WITH_SHA256,
            from: -60,
            until: 600,
            version_3_in_name: false,
        }
    }
}

fn time(seconds: i64) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let at = ::time::OffsetDateTime::from_unix_timestamp(i64::try_from(now).unwrap() + seconds).unwrap();
    let text = format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}Z",
        at.year(),
        at.month() as u8,
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    );
    der(0x18, &[text.as_bytes()])
}

fn version_1(drawn: &Drawn, key: &KeyPair, authority: &KeyPair) -> CertificateDer<'static> {
    let version = der(0xa0, &[&[2, 1, 2]]);
    let tbs = der(
        SEQUENCE,
        &[
            if drawn.version_3_in_name { &version } else { &[] },
            &[2, 1, 7],
            &der(SEQUENCE, &[drawn.algorithm_inside]),
            &common_name(&drawn.issuer),
            &der(SEQUENCE, &[&time(drawn.from), &time(drawn.until)]),
            &common_name("client"),
            &key.subject_public_key_info(),
        ],
    );
    let signature = authority.sign(&tbs).unwrap();
    let algorithm = der(SEQUENCE, &[ECDSA_WITH_SHA256]);
    der(SEQUENCE, &[&tbs, &algorithm, &der(3, &[&[0], &signature])]).into()
}

fn authority(name: &str, key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    params.self_signed(key).unwrap().der().clone()
}

fn judge(authorities: &[CertificateDer<'static>]) -> VersionOneToo {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    authorities.iter().for_each(|authority| roots.add(authority.clone()).unwrap());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    VersionOneToo::new(builder.build().unwrap(), authorities, &provider)
}

fn verdict(judge: &VersionOneToo, certificate: &CertificateDer<'_>) -> Result<(), Error> {
    judge.verify_client_cert(certificate, &[], UnixTime::now()).map(drop)
}

/// Whoever is let in by an old certificate may act as its subject. Each of these would let in somebody whom no
/// trusted authority vouches for now.
#[test]
fn only_what_a_trusted_authority_signed_and_is_valid_now_is_taken() {
    let (ca_key, other, key) =
        (KeyPair::generate().unwrap(), KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let good = judge(&[authority("ca", &ca_key, |_| {})]);
    let made = |drawn: &Drawn| version_1(drawn, &key, &ca_key);
    assert_eq!(verdict(&good, &made(&Drawn::default())), Ok(()));

    let drawn = Drawn::default();
    for (certificate, expected) in [
        (made(&Drawn { until: -1, ..drawn.clone() }), CertificateError::Expired),
        (made(&Drawn { from: 60, ..drawn.clone() }), CertificateError::NotValidYet),
        (made(&Drawn { issuer: "stranger".into(), ..drawn.clone() }), CertificateError::UnknownIssuer),
        (made(&Drawn { algorithm_inside: ECDSA_WITH_SHA384, ..drawn.clone() }), CertificateError::BadEncoding),
        (version_1(&drawn, &key, &other), CertificateError::BadSignature),
        (version_1(&drawn, &key, &key), CertificateError::BadSignature),
    ] {
        assert_eq!(verdict(&good, &certificate), Err(expected.into()));
    }
    let genuine = made(&drawn);
    // Only the tag that precedes the algorithm's name outside of what is signed is overlooked by the parser.
    let end_of_signed = 4 + parse(&genuine).unwrap().tbs_certificate.as_ref().len();
    for at in (0..genuine.len()).filter(|at| *at != end_of_signed + 2) {
        let mut altered = genuine.to_vec();
        altered[at] ^= 1;
        assert!(verdict(&good, &altered.into()).is_err(), "byte {at} can be altered");
    }
    for length in 0..genuine.len() {
        assert!(verdict(&good, &genuine[..length].to_vec().into()).is_err(), "{length} bytes are enough");
    }
    assert!(verdict(&good, &[&genuine[..], &[0]].concat().into()).is_err(), "bytes may follow");
    // One that calls itself version 3 is webpki's business, which finds it wanting or good by its own rules.
    assert!(parse(&made(&Drawn { version_3_in_name: true, ..drawn })).is_none());
}

/// A certificate pinned in the trust store is trusted for itself. Were it an authority, its holder could make others.
#[test]
fn only_authorities_that_may_sign_anything_vouch_for_version_1() {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let certificate = version_1(&Drawn::default(), &key, &ca_key);
    let with = |change: fn(&mut CertificateParams)| verdict(&judge(&[authority("ca", &ca_key, change)]), &certificate);
    assert_eq!(with(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]), Ok(()));
    let unknown = Err(CertificateError::UnknownIssuer.into());
    assert_eq!(with(|params| params.is_ca = IsCa::ExplicitNoCa), unknown);
    assert_eq!(with(|params| params.is_ca = IsCa::NoCa), unknown);
    assert_eq!(with(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]), unknown);
    let constrained = |params: &mut CertificateParams| {
        params.name_constraints = Some(rcgen::NameConstraints {
            permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName("example.org".into())],
            excluded_subtrees: Vec::new(),
        });
    };
    assert_eq!(with(constrained), unknown);
}

/// A certificate is public; only the key behind it proves anything. In both versions of TLS.
#[tokio::test]
async fn whoever_shows_a_certificate_of_version_1_must_have_its_key() {
    let (ca_key, key, other) =
        (KeyPair::generate().unwrap(), KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let ca = authority("ca", &ca_key, |_| {});
    let certificate = version_1(&Drawn::default(), &key, &ca_key);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (shown, expected) in [(&key, true), (&other, false)] {
            let provider = Arc::new(ring::default_provider());
            let signing = |key: &KeyPair| {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
                provider.key_provider.load_private_key(key).unwrap()
            };
            let own = CertifiedKey::new(vec![certificate.clone()], signing(shown));
            let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_client_cert_verifier(Arc::new(judge(std::slice::from_ref(&ca))))
                .with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(
                    vec![ca.clone()],
                    signing(&ca_key),
                ))));
            let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[version])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(
                    crate::verify::of_servers(&crate::ServerTrust::Anybody, &crate::Names::Any, &provider).unwrap(),
                )
                .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
            let (near, far) = tokio::io::duplex(64 * 1024);
            let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
            let (accepted, _connected) = tokio::time::timeout(Duration::from_secs(20), async {
                tokio::join!(
                    TlsAcceptor::from(Arc::new(server)).accept(near),
                    TlsConnector::from(Arc::new(client)).connect(name, far)
                )
            })
            .await
            .unwrap();
            assert_eq!(accepted.is_ok(), expected, "{version:?}: {:?}", accepted.err());
        }
    }
}

/// A key that is not the certificate's would make every handshake fail, so it is found at start.
#[test]
fn a_certificate_of_version_1_is_shown_only_with_its_own_key() {
    let (ca_key, key, other) =
        (KeyPair::generate().unwrap(), KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let provider = ring::default_provider();
    let chain = [version_1(&Drawn::default(), &key, &ca_key)];
    let pkcs8 = |key: &KeyPair| PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    assert!(certified(&chain, &pkcs8(&key), &provider).unwrap().is_ok());
    let wrong = certified(&chain, &pkcs8(&other), &provider).unwrap().err();
    assert_eq!(wrong, Some(InconsistentKeys::KeyMismatch.into()));
    assert!(certified(&[authority("ca", &ca_key, |_| {})], &pkcs8(&ca_key), &provider).is_none());
}
