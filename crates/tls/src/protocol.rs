//! Versions and cipher suites, by the names that etcd's flags and Go's library have for them.
//!
//! As there, a list of suites is about TLS 1.2: those of 1.3 are all good and not to be chosen among.

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::SupportedProtocolVersion;
use rustls::crypto::{CryptoProvider, ring};

use crate::load::{Part, TlsError};

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    fn parse(text: &str) -> Result<Version, TlsError> {
        match text {
            "TLS1.2" => Ok(Version::Tls12),
            "TLS1.3" => Ok(Version::Tls13),
            other => Err(TlsError::new(Part::Versions, format!("{other:?} is no version"), "give TLS1.2 or TLS1.3")),
        }
    }
}

/// What may be spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    min: Version,
    max: Version,
    /// Names of suites of TLS 1.2, as rustls writes them; `None`: all there are.
    suites: Option<Vec<String>>,
}

impl Default for Protocol {
    fn default() -> Protocol {
        Protocol { min: Version::Tls12, max: Version::Tls13, suites: None }
    }
}

impl Protocol {
    /// Reads versions ("" is none) and suites as etcd's flags have them. The second part of the answer names the
    /// suites that were left out because nobody should use them any more.
    pub fn parse(min: Option<&str>, max: Option<&str>, suites: &[String]) -> Result<(Protocol, Vec<String>), TlsError> {
        let version =
            |text: Option<&str>, default| text.filter(|text| !text.is_empty()).map_or(Ok(default), Version::parse);
        let (min, max) = (version(min, Version::Tls12)?, version(max, Version::Tls13)?);
        if min > max {
            let what = "the oldest version allowed is newer than the newest";
            return Err(TlsError::new(Part::Versions, what, "lower the one or raise the other"));
        }
        if suites.is_empty() {
            return Ok((Protocol { min, max, suites: None }, Vec::new()));
        }
        if min == Version::Tls13 {
            let what = "suites cannot be chosen when only TLS 1.3 is allowed";
            return Err(TlsError::new(Part::Suites, what, "leave them out, or allow TLS1.2 too"));
        }
        let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
        for given in suites {
            let name = our_name(given);
            if supported().any(|suite| name_of(suite) == name) {
                chosen.push(name);
            } else if is_outdated(&name) {
                left_out.push(given.clone());
            } else {
                let fix = format!("choose among {}", supported().map(name_of).collect::<Vec<_>>().join(", "));
                return Err(TlsError::new(Part::Suites, format!("{given:?} is not a suite that is known here"), fix));
            }
        }
        let usable = supported().any(|suite| is_tls12(suite) && chosen.contains(&name_of(suite)));
        if !usable && max == Version::Tls12 {
            let fix = "add one with ECDHE and GCM or CHACHA20, or allow TLS1.3";
            return Err(TlsError::new(Part::Suites, "none of these can be used with TLS 1.2", fix));
        }
        Ok((Protocol { min, max, suites: Some(chosen) }, left_out))
    }

    /// Cryptography, reduced to the suites that may be used.
    pub(crate) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        if let Some(chosen) = &self.suites {
            provider.cipher_suites.retain(|suite| !is_tls12(suite) || chosen.contains(&name_of(suite)));
        }
        Arc::new(provider)
    }

    /// The versions that may be used.
    pub(crate) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let all = [(Version::Tls13, &rustls::version::TLS13), (Version::Tls12, &rustls::version::TLS12)];
        all.into_iter().filter(|(version, _)| (self.min..=self.max).contains(version)).map(|(_, known)| known).collect()
    }
}

fn supported() -> impl Iterator<Item = &'static SupportedCipherSuite> {
    ring::ALL_CIPHER_SUITES.iter()
}

fn name_of(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite())
}

fn is_tls12(suite: &SupportedCipherSuite) -> bool {
    matches!(suite, SupportedCipherSuite::Tls12(_))
}

/// Go's names for suites of TLS 1.3 have no number in them, and two of TLS 1.2 have a short form.
fn our_name(given: &str) -> String {
    match given {
        "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => {
            given.replacen("TLS_", "TLS13_", 1)
        }
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => format!("{given}_SHA256"),
        other => other.to_owned(),
    }
}

/// Suites that etcd takes and that are known to be weak: leaving them out makes nothing less safe, and lists
/// that name them among better ones go on working.
fn is_outdated(name: &str) -> bool {
    name.starts_with("TLS_RSA_WITH_")
        || name.starts_with("TLS_ECDHE_") && (name.contains("_CBC_") || name.contains("_RC4_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// A list copied from an etcd configuration must choose what it names, whatever Go calls it.
    #[test]
    fn suites_are_known_by_the_names_etcd_has_for_them() {
        let given = suites(&[
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            "TLS_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
        ]);
        let (protocol, left_out) = Protocol::parse(None, None, &given).unwrap();
        assert_eq!(left_out, ["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"]);
        let kept: Vec<String> =
            protocol.provider().cipher_suites.iter().filter(|suite| is_tls12(suite)).map(name_of).collect();
        assert_eq!(kept, ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        let tls13 = protocol.provider().cipher_suites.iter().filter(|suite| !is_tls12(suite)).count();
        assert_eq!(tls13, 3, "those of TLS 1.3 stay");
    }

    /// A misspelt version or suite must not silently mean "the default".
    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (min, max, list, expected) in [
            (Some("TLS1.1"), None, suites(&[]), "TLS1.1"),
            (None, Some("1.3"), suites(&[]), "1.3"),
            (Some("TLS1.3"), Some("TLS1.2"), suites(&[]), "newer"),
            (None, None, suites(&["TLS_ECDHE_RSA_WITH_AES_512"]), "TLS_ECDHE_RSA_WITH_AES_512"),
            (Some("TLS1.3"), None, suites(&["TLS_AES_128_GCM_SHA256"]), "only TLS 1.3"),
            (None, Some("TLS1.2"), suites(&["TLS_RSA_WITH_AES_128_CBC_SHA"]), "none of these"),
        ] {
            let error = Protocol::parse(min, max, &list).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert_eq!(Protocol::parse(Some(""), Some(""), &[]).unwrap().0, Protocol::default());
    }

    #[test]
    fn versions_are_those_between_the_bounds() {
        let count = |min, max| Protocol::parse(min, max, &[]).unwrap().0.versions().len();
        assert_eq!((count(None, None), count(Some("TLS1.3"), None), count(None, Some("TLS1.2"))), (2, 1, 1));
    }
}
