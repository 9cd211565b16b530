//! The checks of who ZooKeeper's clients are: TLS at a port of its own, and users that come in by SASL.

use std::path::Path;

use tidelock_face_zookeeper::SaslUsers;
use tidelock_tls::{Acceptor, Leniency, Names, Protocol, ServerSettings};

use super::jaas;
use crate::config::tls::{Encryption, Named};
use crate::config::{Checks, Listen};
use crate::settings::Settings;

/// ZooKeeper has no default; this is what its documentation uses.
const SECURE_LISTEN_EXAMPLE: &str = "127.0.0.1:2281";
/// Largest file of users. Real ones have some kilobytes.
const USERS_BYTES_MAX: u64 = 1024 * 1024;

const ZOOKEEPER: Named = Named {
    certificate: "zookeeper-cert-file",
    key: "zookeeper-key-file",
    authorities: "zookeeper-trusted-ca-file",
    revoked: "zookeeper-crl-file",
    common: "zookeeper-trusted-ca-file",
    hosts: "zookeeper-trusted-ca-file",
};

/// Who clients of ZooKeeper's protocol are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZookeeperSecurity {
    /// A port with TLS; `None`: there is none.
    pub(crate) secure: Option<SecurePort>,
    /// Who may come in by SASL.
    pub(crate) users: SaslUsers,
}

/// A port with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecurePort {
    pub(crate) listen: Listen,
    pub(crate) tls: ServerSettings,
}

/// What is asked of clients (`ssl.clientAuth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientAuth {
    /// A good certificate.
    Need,
    /// A good one or none.
    Want,
    /// Nothing.
    None,
}

impl Checks {
    pub(super) fn zookeeper_security(&mut self, settings: &Settings) -> ZookeeperSecurity {
        let users = settings.zookeeper_jaas.as_deref().filter(|path| !path.as_os_str().is_empty());
        let users = users.map(|path| self.sasl_users(path)).unwrap_or_default();
        ZookeeperSecurity { secure: self.secure_port(settings), users }
    }

    fn secure_port(&mut self, settings: &Settings) -> Option<SecurePort> {
        let identity =
            self.identity(&ZOOKEEPER, settings.zookeeper_cert_file.as_deref(), settings.zookeeper_key_file.as_deref());
        let trusted = settings.zookeeper_trusted_ca_file.as_deref();
        let trust = self.trust(&ZOOKEEPER, trusted, settings.zookeeper_crl_file.as_deref());
        let given = settings.zookeeper_secure_listen.as_deref().filter(|text| *text != "none")?;
        let encrypted = Encryption::Everywhere(true);
        let listen = self.listen_with("zookeeper-secure-listen", Some(given), SECURE_LISTEN_EXAMPLE, encrypted);
        let default = if trust.is_some() { ClientAuth::Need } else { ClientAuth::None };
        let asked = self.client_auth(settings.zookeeper_client_auth.as_deref()).unwrap_or(default);
        if trust.is_none() && asked != ClientAuth::None {
            let what = "asks for certificates, but nobody is trusted to have issued them";
            let fix = "add --zookeeper-trusted-ca-file with the authority of the clients' certificates, or say none";
            self.problem("zookeeper-client-auth", what, fix);
        }
        let Some(identity) = identity else {
            let what = "asks for TLS, and there is no certificate";
            let fix = "add --zookeeper-cert-file and --zookeeper-key-file (`tidelock certs init` makes them)";
            if settings.zookeeper_cert_file.is_none() && settings.zookeeper_key_file.is_none() {
                self.problem("zookeeper-secure-listen", what, fix);
            }
            return None;
        };
        let suites = settings.cipher_suites.clone().unwrap_or_default();
        let versions = (settings.tls_min_version.as_deref(), settings.tls_max_version.as_deref());
        let tls = ServerSettings {
            identity,
            clients: trust.filter(|_| asked != ClientAuth::None),
            names: Names::Any,
            common_name_is_user: false,
            // Java's tools still make certificates of version 1, and ZooKeeper takes them.
            leniency: Leniency { no_certificate: asked == ClientAuth::Want, version_1: true },
            inside: Vec::new(),
            // What is wrong with them was said where clients of etcd are seen to.
            protocol: Protocol::parse(versions.0, versions.1, &suites)
                .map(|(protocol, _)| protocol)
                .unwrap_or_default(),
        };
        if let Err(error) = Acceptor::open(&tls) {
            self.tls_problem(&ZOOKEEPER, error);
        }
        Some(SecurePort { listen, tls })
    }

    fn client_auth(&mut self, given: Option<&str>) -> Option<ClientAuth> {
        match given.filter(|text| !text.is_empty())?.to_ascii_lowercase().as_str() {
            "need" => Some(ClientAuth::Need),
            "want" => Some(ClientAuth::Want),
            "none" => Some(ClientAuth::None),
            other => {
                self.problem("zookeeper-client-auth", format!("{other:?} is not known"), "give need, want or none");
                None
            }
        }
    }

    fn sasl_users(&mut self, path: &Path) -> SaslUsers {
        let shown = path.display();
        let (what, fix) = match crate::zookeeper_mode::read_bounded(path, USERS_BYTES_MAX) {
            Ok(text) => match jaas::users(&text) {
                Ok(users) => return users,
                Err((what, fix)) => (format!("{shown}, {what}"), fix),
            },
            Err(error) => {
                (format!("{shown} cannot be read: {error}"), "check the path, and that the node may read it".to_owned())
            }
        };
        self.problem("zookeeper-jaas", what, fix);
        SaslUsers::default()
    }
}

#[cfg(test)]
mod tests {
    use tidelock_tls::{Authority, Order, Use, Validity};

    use super::*;
    use crate::config::Config;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            let dir = tempfile::tempdir().unwrap();
            let authority = Authority::new("test", Validity::days(1)).unwrap();
            let hosts = ["localhost".to_owned()];
            let order = Order { common_name: "server", hosts: &hosts, usage: Use::Server, validity: Validity::days(1) };
            let issued = authority.issue(&order).unwrap();
            std::fs::write(dir.path().join("ca.pem"), &authority.own().certificate).unwrap();
            // Both in one file, as ZooKeeper has it.
            std::fs::write(dir.path().join("both.pem"), format!("{}{}", issued.key, issued.certificate)).unwrap();
            std::fs::write(
                dir.path().join("jaas"),
                "Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_a=\"b\"; };",
            )
            .unwrap();
            Files(dir)
        }

        fn check(&self, toml: &str) -> Result<ZookeeperSecurity, String> {
            let text = toml.replace("DIR", self.0.path().to_str().unwrap());
            let config = Config::check(Settings::from_toml(&text).unwrap()).map_err(|failure| failure.to_string())?;
            Ok(config.zookeeper.security)
        }
    }

    const SHOWN: &str = "zookeeper-secure-listen = '0.0.0.0:2281'\nzookeeper-cert-file = 'DIR/both.pem'\n\
                         zookeeper-key-file = 'DIR/both.pem'\n";

    /// A port that others reach is fine once it has TLS; whom it lets in must be what was asked for.
    #[test]
    fn a_port_with_tls_asks_clients_for_what_was_said() {
        let files = Files::new();
        let trusting = format!("{SHOWN}zookeeper-trusted-ca-file = 'DIR/ca.pem'\n");
        let asked = |toml: &str| {
            let tls = files.check(toml).unwrap().secure.unwrap().tls;
            (tls.clients.is_some(), tls.leniency.no_certificate)
        };
        assert_eq!(asked(SHOWN), (false, false));
        assert_eq!(asked(&trusting), (true, false), "an authority is there to be asked for");
        assert_eq!(asked(&format!("{trusting}zookeeper-client-auth = 'want'")), (true, true));
        assert_eq!(asked(&format!("{trusting}zookeeper-client-auth = 'none'")), (false, false));
        assert_eq!(files.check("zookeeper-secure-listen = 'none'").unwrap(), ZookeeperSecurity::default());
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let files = Files::new();
        for (toml, expected) in [
            ("zookeeper-secure-listen = '127.0.0.1:1'".to_owned(), "there is no certificate"),
            (format!("{SHOWN}zookeeper-client-auth = 'need'"), "nobody is trusted"),
            (format!("{SHOWN}zookeeper-client-auth = 'maybe'"), "give need, want or none"),
            (format!("{SHOWN}zookeeper-trusted-ca-file = 'DIR/gone'"), "--zookeeper-trusted-ca-file"),
            (SHOWN.replace("key-file = 'DIR/both", "key-file = 'DIR/ca"), "--zookeeper-key-file"),
            ("zookeeper-cert-file = 'DIR/both.pem'".to_owned(), "add --zookeeper-key-file"),
            (
                "zookeeper-listen = '127.0.0.1:2281'\n".to_owned() + &SHOWN.replace("0.0.0.0", "127.0.0.1"),
                "already used",
            ),
            ("zookeeper-jaas = 'DIR/gone'".to_owned(), "--zookeeper-jaas"),
            ("zookeeper-jaas = 'DIR/ca.pem'".to_owned(), "ca.pem, line 1"),
        ] {
            let text = files.check(&toml).unwrap_err();
            assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
        }
        assert_eq!(files.check("zookeeper-jaas = 'DIR/jaas'").unwrap().users, SaslUsers::new([("a", "b")]));
    }
}
