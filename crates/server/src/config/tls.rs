//! The checks of what belongs to TLS. Unlike the others they read files: whether a certificate and a key are
//! there, can be read and belong together is what goes wrong most, and must be said before anything starts.

use std::path::{Path, PathBuf};

use tidelock_tls::{
    Acceptor, ClientSettings, Connector, Identity, Leniency, Names, Part, Protocol, ServerSettings, ServerTrust,
    TlsError, Trust,
};

use super::Checks;
use crate::settings::Settings;

/// What etcd clients speak inside: gRPC, and the JSON gateway.
const CLIENT_PROTOCOLS: [&str; 2] = ["h2", "http/1.1"];
/// What a certificate made at start is for, beside the hosts that are listened on.
const OWN_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// TLS as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// At client addresses; `None`: there is none.
    pub(crate) clients: Option<ServerSettings>,
    /// Between members; `None`: there is none.
    pub(crate) peers: Option<PeerTls>,
    /// Allowed but unwise.
    pub(super) warnings: Vec<String>,
}

/// TLS between members, which both listen and dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerTls {
    pub(crate) server: ServerSettings,
    pub(crate) client: ClientSettings,
}

/// Whether an address has TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    /// There is none at this kind of address.
    Never,
    /// If there is a certificate, unless the address begins with `http://`: etcd serves both side by side too.
    AsAddressSays(bool),
    /// If there is a certificate, at every address of the kind.
    Everywhere(bool),
}

impl Encryption {
    /// What to do about an address without it that others can reach.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Encryption::Never => {
                "listen on 127.0.0.1, or add --insecure if the network is trusted; there is no TLS here"
            }
            Encryption::AsAddressSays(false) => {
                "add --cert-file and --key-file (`tidelock certs init` makes them), listen on 127.0.0.1, or add --insecure \
                 if the network is trusted"
            }
            Encryption::AsAddressSays(true) => {
                "write it with https://, listen on 127.0.0.1, or add --insecure if the network is trusted"
            }
            Encryption::Everywhere(_) => {
                "add --peer-cert-file, --peer-key-file and --peer-trusted-ca-file (`tidelock certs init` makes them), listen \
                 on 127.0.0.1, or add --insecure if the network is trusted"
            }
        }
    }
}

/// A URL's scheme, if there is one, and the rest without a slash at its end.
pub(super) fn split_scheme(text: &str) -> (Option<&str>, &str) {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (Some(scheme), rest),
        _ => (None, text),
    };
    (scheme, rest.trim_end_matches('/'))
}

/// The names of one side's settings, for messages.
pub(super) struct Named {
    pub(super) certificate: &'static str,
    pub(super) key: &'static str,
    pub(super) authorities: &'static str,
    pub(super) revoked: &'static str,
    pub(super) common: &'static str,
    pub(super) hosts: &'static str,
}

const CLIENTS: Named = Named {
    certificate: "cert-file",
    key: "key-file",
    authorities: "trusted-ca-file",
    revoked: "client-crl-file",
    common: "client-cert-allowed-cn",
    hosts: "client-cert-allowed-hostname",
};
const PEERS: Named = Named {
    certificate: "peer-cert-file",
    key: "peer-key-file",
    authorities: "peer-trusted-ca-file",
    revoked: "peer-crl-file",
    common: "peer-cert-allowed-cn",
    hosts: "peer-cert-allowed-hostname",
};

impl Checks {
    /// Everything about TLS.
    pub(super) fn tls(&mut self, settings: &Settings) -> Tls {
        let mut warnings = Vec::new();
        let suites: Vec<String> = list(settings.cipher_suites.as_deref());
        let versions = (settings.tls_min_version.as_deref(), settings.tls_max_version.as_deref());
        let protocol = match Protocol::parse(versions.0, versions.1, &suites) {
            Ok((protocol, left_out)) => {
                if !left_out.is_empty() {
                    warnings
                        .push(format!("cipher suites that nobody should use are left out: {}", left_out.join(", ")));
                }
                protocol
            }
            Err(error) => {
                self.tls_problem(&CLIENTS, error);
                Protocol::default()
            }
        };
        let clients = self.client_tls(settings, &protocol, &mut warnings);
        let peers = self.peer_tls(settings, &protocol, &mut warnings);
        // What is being set up counts as there, even if it has problems of its own: one complaint is enough.
        let wants_tls = |automatic: Option<bool>, certificate: &Option<PathBuf>| {
            automatic.unwrap_or(false) || given(certificate.as_deref()).is_some()
        };
        self.clients = Encryption::AsAddressSays(wants_tls(settings.auto_tls, &settings.cert_file));
        self.peers = Encryption::Everywhere(wants_tls(settings.peer_auto_tls, &settings.peer_cert_file));
        Tls { clients, peers, warnings }
    }

    /// An address without its scheme, and whether it is one with TLS. People coming from etcd write addresses as
    /// URLs; a scheme that says something else than the certificates do is refused.
    pub(super) fn address<'a>(
        &mut self,
        setting: &'static str,
        text: &'a str,
        encryption: Encryption,
    ) -> (&'a str, bool) {
        let (scheme, rest) = split_scheme(text);
        let tls = match (scheme, encryption) {
            (None, Encryption::AsAddressSays(tls) | Encryption::Everywhere(tls)) => tls,
            (Some("https"), Encryption::AsAddressSays(true) | Encryption::Everywhere(true)) => true,
            (Some("https"), Encryption::Never) => {
                self.problem(
                    setting,
                    format!("{text:?} asks for TLS, which is not served here"),
                    "write it with http://",
                );
                true
            }
            (Some("https"), Encryption::AsAddressSays(false)) => {
                let fix = "add --cert-file and --key-file, or --auto-tls, or write it with http://";
                self.problem(setting, format!("{text:?} asks for TLS, and there is no certificate"), fix);
                true
            }
            (Some("https"), Encryption::Everywhere(false)) => {
                let fix = "add --peer-cert-file, --peer-key-file and --peer-trusted-ca-file, or write it with http://";
                self.problem(setting, format!("{text:?} asks for TLS, and there is no certificate"), fix);
                true
            }
            (_, Encryption::Everywhere(true)) => {
                let what = format!("{text:?} says plain text, but --peer-cert-file or --peer-auto-tls is set");
                self.problem(setting, what, "write it with https://, or without anything before the host");
                true
            }
            (_, Encryption::Never | Encryption::AsAddressSays(_) | Encryption::Everywhere(false)) => false,
        };
        (rest, tls)
    }

    fn client_tls(
        &mut self,
        settings: &Settings,
        protocol: &Protocol,
        warnings: &mut Vec<String>,
    ) -> Option<ServerSettings> {
        let identity = self.identity(&CLIENTS, settings.cert_file.as_deref(), settings.key_file.as_deref());
        let automatic = settings.auto_tls.unwrap_or(false);
        let demands = settings.client_cert_auth.unwrap_or(false);
        let trust = self.trust(&CLIENTS, settings.trusted_ca_file.as_deref(), settings.client_crl_file.as_deref());
        let names = self.names(
            &CLIENTS,
            list(settings.client_cert_allowed_cn.as_deref()),
            list(settings.client_cert_allowed_hostname.as_deref()),
        );
        if demands && trust.is_none() {
            let what = "demands certificates, but nobody is trusted to have issued them";
            self.problem(
                "client-cert-auth",
                what,
                "add --trusted-ca-file with the authority of the clients' certificates",
            );
        }
        if names != Names::Any && trust.is_none() {
            let setting = if matches!(names, Names::Common(_)) { CLIENTS.common } else { CLIENTS.hosts };
            self.problem(
                setting,
                "names certificates that nobody asks for",
                "add --client-cert-auth and --trusted-ca-file",
            );
        }
        let identity = match identity {
            Some(identity) => identity,
            None if automatic => {
                warnings.push(
                    "--auto-tls is set: client traffic is encrypted, but clients cannot tell this node from another"
                        .to_owned(),
                );
                Identity::SelfSigned { hosts: hosts(settings.client_listen.as_deref().unwrap_or_default()) }
            }
            None => {
                if demands || trust.is_some() {
                    let setting = if demands { "client-cert-auth" } else { CLIENTS.authorities };
                    let what =
                        "certificates of clients are only asked for within TLS, and this node has no certificate";
                    self.problem(setting, what, "add --cert-file and --key-file (`tidelock certs init` makes them)");
                }
                return None;
            }
        };
        let server = ServerSettings {
            identity,
            clients: trust,
            names,
            common_name_is_user: demands,
            leniency: Leniency::default(),
            inside: CLIENT_PROTOCOLS.to_vec(),
            protocol: protocol.clone(),
        };
        if let Err(error) = Acceptor::open(&server) {
            self.tls_problem(&CLIENTS, error);
        }
        Some(server)
    }

    fn peer_tls(&mut self, settings: &Settings, protocol: &Protocol, warnings: &mut Vec<String>) -> Option<PeerTls> {
        let identity = self.identity(&PEERS, settings.peer_cert_file.as_deref(), settings.peer_key_file.as_deref());
        let automatic = settings.peer_auto_tls.unwrap_or(false);
        let trust = self.trust(&PEERS, settings.peer_trusted_ca_file.as_deref(), settings.peer_crl_file.as_deref());
        let names = self.names(
            &PEERS,
            list(settings.peer_cert_allowed_cn.as_deref()),
            list(settings.peer_cert_allowed_hostname.as_deref()),
        );
        let (identity, servers) = match (identity, &trust) {
            (Some(identity), Some(trust)) => (identity, ServerTrust::Certified(trust.clone())),
            (Some(_), None) => {
                let what = "needs to know whose certificates other members must have";
                self.problem(
                    PEERS.certificate,
                    what,
                    "add --peer-trusted-ca-file with the authority of the members' certificates",
                );
                return None;
            }
            (None, None) if automatic => {
                warnings.push(
                    "--peer-auto-tls is set: traffic between members is encrypted, but whoever reaches the peer port is \
                     taken for a member"
                        .to_owned(),
                );
                let listen = settings.peer_listen.as_slice();
                (Identity::SelfSigned { hosts: hosts(listen) }, ServerTrust::Anybody)
            }
            (None, trust) => {
                if trust.is_some() || names != Names::Any || settings.peer_client_cert_auth.unwrap_or(false) {
                    let what = "is missing, but other settings ask for TLS between members";
                    self.problem(
                        PEERS.certificate,
                        what,
                        "add --peer-cert-file, --peer-key-file and --peer-trusted-ca-file",
                    );
                }
                return None;
            }
        };
        let names = if trust.is_some() { names } else { Names::Any };
        let client = ClientSettings {
            identity: Some(identity.clone()),
            servers,
            names: names.clone(),
            inside: Vec::new(),
            protocol: protocol.clone(),
        };
        let server = ServerSettings {
            identity,
            clients: trust,
            names,
            common_name_is_user: false,
            leniency: Leniency::default(),
            inside: Vec::new(),
            protocol: protocol.clone(),
        };
        if let Err(error) = Acceptor::open(&server).map(drop).and_then(|()| Connector::open(&client).map(drop)) {
            self.tls_problem(&PEERS, error);
        }
        Some(PeerTls { server, client })
    }

    pub(super) fn identity(
        &mut self,
        named: &Named,
        certificate: Option<&Path>,
        key: Option<&Path>,
    ) -> Option<Identity> {
        match (given(certificate), given(key)) {
            (Some(certificate), Some(key)) => Some(Identity::Files { certificate, key }),
            (None, None) => None,
            (Some(certificate), None) => {
                let what = format!("{} is of no use without its key", certificate.display());
                self.problem(named.certificate, what, format!("add --{}", named.key));
                None
            }
            (None, Some(key)) => {
                let what = format!("{} is of no use without its certificate", key.display());
                self.problem(named.key, what, format!("add --{}", named.certificate));
                None
            }
        }
    }

    pub(super) fn trust(&mut self, named: &Named, authorities: Option<&Path>, revoked: Option<&Path>) -> Option<Trust> {
        let revoked = given(revoked);
        match given(authorities) {
            Some(authorities) => Some(Trust { authorities, revoked }),
            None => {
                if let Some(revoked) = revoked {
                    let what = format!("{} revokes certificates that nobody asks for", revoked.display());
                    self.problem(named.revoked, what, format!("add --{}", named.authorities));
                }
                None
            }
        }
    }

    fn names(&mut self, named: &Named, common: Vec<String>, hosts: Vec<String>) -> Names {
        match (common.is_empty(), hosts.is_empty()) {
            (true, true) => Names::Any,
            (false, true) => Names::Common(common),
            (true, false) => Names::Hosts(hosts),
            (false, false) => {
                let what = format!("cannot be combined with --{}", named.hosts);
                self.problem(named.common, what, "keep one of the two");
                Names::Any
            }
        }
    }

    pub(super) fn tls_problem(&mut self, named: &Named, error: TlsError) {
        let setting = match error.part {
            Part::Certificate => named.certificate,
            Part::Key => named.key,
            Part::Authorities => named.authorities,
            Part::Revoked => named.revoked,
            Part::Names => named.hosts,
            Part::Versions => "tls-min-version",
            Part::Suites => "cipher-suites",
        };
        self.problem(setting, error.what, error.fix);
    }
}

/// A variable that is set to nothing is not a file.
fn given(path: Option<&Path>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned)
}

fn list(given: Option<&[String]>) -> Vec<String> {
    given.unwrap_or_default().iter().filter(|text| !text.is_empty()).cloned().collect()
}

/// What a certificate made at start is for.
fn hosts(listen: &[String]) -> Vec<String> {
    let own = OWN_HOSTS.into_iter().map(str::to_owned);
    let named = listen.iter().filter_map(|text| {
        let (host, _port) = split_scheme(text).1.rsplit_once(':')?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        (!bare.is_empty() && bare.parse::<std::net::IpAddr>().is_ok_and(|ip| !ip.is_unspecified()))
            .then(|| bare.to_owned())
    });
    let mut hosts: Vec<String> = own.chain(named).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}
