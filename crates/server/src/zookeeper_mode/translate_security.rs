//! The keys of a zoo.cfg about who clients are: TLS, certificates, SASL.

use std::path::PathBuf;

use super::{Clients, Translation, bracketed, numeric_loopback};
use crate::settings::Settings;

/// Schemes that a client can be asked to prove.
const PROVABLE: [&str; 4] = ["digest", "ip", "sasl", "x509"];

impl Translation<'_> {
    /// `secureClientPort` and `secureClientPortAddress`.
    pub(super) fn secure_port(&mut self) -> Option<Clients> {
        let port = self.number::<u16>("secureClientPort").filter(|port| *port != 0);
        let address = self.text("secureClientPortAddress");
        let Some(port) = port else {
            if address.is_some() {
                let what = "secureClientPortAddress is set but secureClientPort is not set";
                self.problem("secureClientPortAddress", what, "give a secureClientPort as well");
            }
            return None;
        };
        let host = address.map_or_else(|| "0.0.0.0".to_owned(), |host| numeric_loopback(&bracketed(&host)));
        Some(Clients { shown_host: host.clone(), host, port })
    }

    /// Certificates and users, as settings of ours.
    pub(super) fn identities(&mut self, secure: Option<&Clients>) -> Settings {
        let users = self.text("java.security.auth.login.config").map(PathBuf::from);
        let Some(secure) = secure else {
            if let Some(key) = self.values.keys().find(|key| key.starts_with("ssl.") && !key.starts_with("ssl.quorum."))
            {
                self.notes.push(format!("{key} and its like have no effect: there is no secureClientPort"));
            }
            return Settings { zookeeper_jaas: users, ..Settings::default() };
        };
        let shown = self.store("ssl.keyStore.location", "ssl.keyStore.type", is_key_store);
        let trusted = self.store("ssl.trustStore.location", "ssl.trustStore.type", is_trust_store);
        if shown.is_none() && self.text("ssl.keyStore.location").is_none() {
            let fix = "give a PEM file with the private key and the certificates of its chain";
            self.problem("secureClientPort", "needs ssl.keyStore.location", fix);
        }
        let asked = self.text("ssl.clientAuth").unwrap_or_else(|| "need".into());
        Settings {
            zookeeper_secure_listen: Some(format!("{}:{}", secure.host, secure.port)),
            zookeeper_cert_file: shown.clone(),
            zookeeper_key_file: shown,
            zookeeper_trusted_ca_file: trusted,
            zookeeper_client_auth: Some(asked),
            zookeeper_jaas: users,
            ..Settings::default()
        }
    }

    /// A file of certificates. ZooKeeper tells the kind by its name if it is not told.
    fn store(&mut self, location: &'static str, kind: &'static str, fix: fn(&str, &str) -> String) -> Option<PathBuf> {
        let file = self.text(location)?;
        let ending = file.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
        let by_name = match ending.as_str() {
            "jks" => "JKS",
            "p12" | "pfx" => "PKCS12",
            "bcfks" => "BCFKS",
            _ => "PEM",
        };
        let told = self.text(kind).unwrap_or_else(|| by_name.to_owned()).to_ascii_uppercase();
        if told == "PEM" {
            return Some(file.into());
        }
        let what = format!("{file} is a key store of the type {told}, which only Java reads");
        let fix = fix(&told, &file);
        self.problem(location, what, fix);
        None
    }

    /// Schemes of which a client must have proven one before it is served.
    pub(super) fn required_schemes(&mut self) -> Vec<String> {
        let sasl = || vec!["sasl".to_owned()];
        if self.truth("sessionRequireClientSASLAuth") == Some(true) {
            return sasl();
        }
        match self.text("requireClientAuthScheme").as_deref() {
            None => {}
            Some(scheme) if scheme.eq_ignore_ascii_case("sasl") => return sasl(),
            Some(other) => {
                self.problem("requireClientAuthScheme", format!("{other} is not known"), "leave it out, or say sasl");
            }
        }
        let schemes: Vec<String> = self.text("enforce.auth.schemes").map_or_else(Vec::new, |text| {
            text.split(',').map(|scheme| scheme.trim().to_owned()).filter(|scheme| !scheme.is_empty()).collect()
        });
        if let Some(unknown) = schemes.iter().find(|scheme| !PROVABLE.contains(&scheme.as_str())) {
            let what = format!("{unknown} is not known");
            self.problem("enforce.auth.schemes", what, format!("choose among {}", PROVABLE.join(", ")));
        }
        if self.truth("enforce.auth.enabled") != Some(true) {
            return Vec::new();
        }
        if schemes.is_empty() {
            let what = "is true, and enforce.auth.schemes does not say what is enforced";
            self.problem("enforce.auth.enabled", what, "add enforce.auth.schemes, such as sasl");
        }
        schemes
    }
}

fn is_key_store(kind: &str, file: &str) -> String {
    let then = "and give that file with ssl.keyStore.type=PEM";
    match kind {
        "PKCS12" => format!("make it PEM: `openssl pkcs12 -in {file} -nodes -out keystore.pem`, {then}"),
        _ => format!(
            "make it PEM: `keytool -importkeystore -srckeystore {file} -destkeystore keystore.p12 -deststoretype PKCS12 && \
             openssl pkcs12 -in keystore.p12 -nodes -out keystore.pem`, {then}"
        ),
    }
}

fn is_trust_store(_kind: &str, file: &str) -> String {
    format!(
        "make it PEM: `keytool -list -rfc -keystore {file} > truststore.pem`, and give that file with \
         ssl.trustStore.type=PEM"
    )
}
