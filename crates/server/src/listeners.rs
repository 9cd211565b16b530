//! Opening the ports, all of them before anything else starts: a taken port is the most common reason
//! for not starting, and must not leave half a node behind.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};

use tidelock_model::ZookeeperServer;

use crate::config::{Config, Listen, Zookeeper};
use crate::failure::Failure;

/// What to do about a taken port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Refuse to start.
    AsConfigured,
    /// If nobody asked for that port, take a free one.
    FreeIfDefaultTaken,
}

/// Open ports.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) clients: Vec<TcpListener>,
    pub(crate) peer: TcpListener,
    pub(crate) admin: Option<TcpListener>,
    pub(crate) metrics: Vec<TcpListener>,
    pub(crate) native: Option<TcpListener>,
    pub(crate) zookeeper: Option<TcpListener>,
    pub(crate) zookeeper_admin: Option<TcpListener>,
    pub(crate) zookeeper_secure: Option<TcpListener>,
}

/// Where this node can be reached, as it tells others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Where clients reach it that ask the cluster for its members: etcd clients, or else ZooKeeper's.
    pub(crate) client_urls: Vec<String>,
    pub(crate) peer_address: String,
    pub(crate) admin_url: Option<String>,
    pub(crate) native_url: Option<String>,
    pub(crate) zookeeper: Option<String>,
    /// What this node is to ZooKeeper's clients.
    pub(crate) zookeeper_server: Option<ZookeeperServer>,
    pub(crate) zookeeper_secure: Option<String>,
}

impl Listeners {
    /// Opens all ports, or says which one cannot be opened and what to do.
    pub(crate) fn bind(config: &Config, ports: Ports) -> Result<Listeners, Failure> {
        let clients = config
            .client_listen
            .iter()
            .map(|listen| bind("client-listen", *listen, ports))
            .collect::<Result<_, _>>()?;
        let peer = bind("peer-listen", config.peer_listen, ports)?;
        let admin = config.admin_listen.map(|listen| bind("admin-listen", listen, ports)).transpose()?;
        let metrics = config
            .service
            .metrics_listen
            .iter()
            .map(|listen| bind("metrics-listen", *listen, ports))
            .collect::<Result<_, _>>()?;
        let native = config.native_listen.map(|listen| bind("native-listen", listen, ports)).transpose()?;
        let zookeeper = config.zookeeper.listen.map(|listen| bind("zookeeper-listen", listen, ports)).transpose()?;
        let zookeeper_admin = bind_zookeeper_admin(&config.zookeeper, ports)?;
        let secure = config.zookeeper.security.secure.as_ref();
        let zookeeper_secure = secure.map(|port| bind("zookeeper-secure-listen", port.listen, ports)).transpose()?;
        Ok(Listeners { clients, peer, admin, metrics, native, zookeeper, zookeeper_admin, zookeeper_secure })
    }

    /// What to tell others, from what was opened and what was configured.
    pub(crate) fn addresses(&self, config: &Config) -> Result<Addresses, Failure> {
        let bound: Vec<SocketAddr> = self.clients.iter().map(local_address).collect::<Result<_, _>>()?;
        let zookeeper = self.zookeeper.as_ref().map(local_address).transpose()?;
        let zookeeper = zookeeper.map(|address| address.to_string());
        let secure = self.zookeeper_secure.as_ref().map(local_address).transpose()?;
        let zookeeper_secure = secure.map(|address| address.to_string());
        let client_urls = match (&config.advertise_client_urls, zookeeper.as_ref().or(zookeeper_secure.as_ref())) {
            (Some(urls), _) => urls.clone(),
            // A member without any URL would look like one that never started.
            (None, Some(listening)) if bound.is_empty() => {
                vec![zookeeper_url(config.zookeeper.details.advertise.as_deref().unwrap_or(listening))]
            }
            (None, _) => {
                let url = |(address, listen): (&SocketAddr, &Listen)| {
                    format!("{}://{address}", if listen.tls { "https" } else { "http" })
                };
                bound.iter().zip(&config.client_listen).map(url).collect()
            }
        };
        let peer_address = match &config.peer_advertise {
            Some(address) => address.clone(),
            None => local_address(&self.peer)?.to_string(),
        };
        let admin = self.admin.as_ref().map(local_address).transpose()?;
        let admin_url = admin.map(|address| format!("http://{address}"));
        let native = self.native.as_ref().map(local_address).transpose()?;
        let scheme = if config.native_listen.is_some_and(|listen| listen.tls) { "https" } else { "http" };
        let native_url = native.map(|address| format!("{scheme}://{address}"));
        let zookeeper_server = zookeeper.as_ref().map(|listening| zookeeper_server(config, listening, &peer_address));
        Ok(Addresses {
            client_urls,
            peer_address,
            admin_url,
            native_url,
            zookeeper,
            zookeeper_secure,
            zookeeper_server,
        })
    }
}

/// What `/zookeeper/config` is to say of this node.
fn zookeeper_server(config: &Config, listening: &str, peer_address: &str) -> ZookeeperServer {
    let details = &config.zookeeper.details;
    let (peer_host, peer_port) = peer_address.rsplit_once(':').unwrap_or((peer_address, ""));
    let client_address = details.client_address.as_deref().unwrap_or(listening);
    // Clients take the host from the peer address if they are served on every address. One that only this machine
    // reaches would lead others astray, and they go on with what they were told by hand.
    let anywhere = ["0.0.0.0:", "[::]:"].iter().any(|any| client_address.starts_with(any));
    let is_local = peer_host == "localhost"
        || peer_host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    ZookeeperServer {
        number: details.server_number.unwrap_or_default(),
        // Clients refuse a line whose two ports are the same.
        election_port: details.election_port.or_else(|| Some(peer_port.parse::<u16>().ok()? ^ 1)).unwrap_or_default(),
        client_address: if anywhere && is_local { String::new() } else { client_address.to_owned() },
    }
}

/// How an address of ZooKeeper's protocol is told where etcd's are told as well.
pub(crate) fn zookeeper_url(address: &str) -> String {
    format!("zookeeper://{address}")
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::new(format!("cannot tell an open port's address: {error}")))
}

fn bind(setting: &str, listen: Listen, ports: Ports) -> Result<TcpListener, Failure> {
    let address = listen.address;
    let listener = match TcpListener::bind(address) {
        Err(error)
            if error.kind() == ErrorKind::AddrInUse && listen.is_default && ports == Ports::FreeIfDefaultTaken =>
        {
            let listener = TcpListener::bind(SocketAddr::new(address.ip(), 0));
            if let Some(instead) = listener.as_ref().ok().and_then(|listener| listener.local_addr().ok()) {
                println!("port {} is taken, using {} instead (--{setting})", address.port(), instead.port());
            }
            listener
        }
        other => other,
    };
    let listener = listener.map_err(|error| cannot_listen(setting, address, &error))?;
    listener.set_nonblocking(true).map_err(|error| cannot_listen(setting, address, &error))?;
    Ok(listener)
}

/// ZooKeeper starts without its admin server if the port is taken, and says so; so does a node in its place.
fn bind_zookeeper_admin(zookeeper: &Zookeeper, ports: Ports) -> Result<Option<TcpListener>, Failure> {
    let Some(listen) = zookeeper.admin_listen else { return Ok(None) };
    match bind("zookeeper-admin-listen", listen, ports) {
        Ok(listener) => Ok(Some(listener)),
        Err(failure) if zookeeper.details.admin_may_fail => {
            tracing::warn!("ZooKeeper's admin commands (admin.serverPort) are not served: {failure}");
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

fn cannot_listen(setting: &str, address: SocketAddr, error: &std::io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen on {address} (--{setting}): {error}"));
    match error.kind() {
        ErrorKind::AddrInUse => failure.hint(format!(
            "another program has port {port} (`ss -ltnp 'sport = :{port}'` shows which); stop it or choose another --{setting}",
            port = address.port()
        )),
        ErrorKind::AddrNotAvailable => {
            failure.hint(format!("{} is not an address of this machine; choose one that is", address.ip()))
        }
        ErrorKind::PermissionDenied => failure.hint("ports below 1024 need privileges; choose a higher one"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn config(toml: &str) -> Config {
        Config::check(Settings::from_toml(toml).unwrap()).unwrap()
    }

    fn taken() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// A port the operator named must never be swapped for another: clients would not find the node.
    #[test]
    fn a_taken_port_that_was_asked_for_is_an_error_that_names_it() {
        let (_held, address) = taken();
        for ports in [Ports::AsConfigured, Ports::FreeIfDefaultTaken] {
            let failure = bind("client-listen", Listen { address, is_default: false, tls: false }, ports)
                .unwrap_err()
                .to_string();
            assert!(failure.contains(&address.to_string()) && failure.contains("--client-listen"), "{failure}");
        }
    }

    /// Trying Tidelock beside a running etcd must work at the first attempt.
    #[test]
    fn a_taken_default_port_is_replaced_by_a_free_one_when_that_is_allowed() {
        let (_held, address) = taken();
        let listen = Listen { address, is_default: true, tls: false };
        let instead = bind("client-listen", listen, Ports::FreeIfDefaultTaken).unwrap().local_addr().unwrap();
        assert_ne!(instead.port(), address.port());
        assert!(bind("client-listen", listen, Ports::AsConfigured).is_err());
    }

    /// What is advertised must be dialable: the port that was really opened, unless told otherwise.
    #[test]
    fn the_addresses_told_to_others_are_those_really_opened() {
        let config = config(
            "client-listen = ['127.0.0.1:0']\npeer-listen = '127.0.0.1:0'\nadmin-listen = '127.0.0.1:0'\n\
             peer-advertise = '10.0.0.1:2380'",
        );
        let listeners = Listeners::bind(&config, Ports::AsConfigured).unwrap();
        let addresses = listeners.addresses(&config).unwrap();
        assert_eq!(addresses.client_urls, [format!("http://{}", listeners.clients[0].local_addr().unwrap())]);
        assert_eq!((addresses.peer_address.as_str(), addresses.zookeeper_server), ("10.0.0.1:2380", None));
    }

    /// Curator goes where this says after its first look at it. An address that leads nowhere from another machine is
    /// worse than none.
    #[test]
    fn zookeepers_clients_are_told_addresses_that_they_can_reach() {
        let told = |client: &str, listening: &str, peer: &str| {
            let mut config = config("");
            config.zookeeper.details.client_address = Some(client.to_owned()).filter(|client| !client.is_empty());
            let server = zookeeper_server(&config, listening, peer);
            assert_eq!(server.election_port, 2889);
            server.client_address
        };
        assert_eq!(told("", "127.0.0.1:2181", "127.0.0.1:2888"), "127.0.0.1:2181");
        assert_eq!(told("zk1:2181", "10.0.0.1:2181", "localhost:2888"), "zk1:2181");
        assert_eq!(told("0.0.0.0:2181", "0.0.0.0:2181", "zk1:2888"), "0.0.0.0:2181", "its host is in the peer address");
        assert_eq!(told("0.0.0.0:2181", "0.0.0.0:2181", "localhost:2888"), "");
        assert_eq!(told("", "[::]:2181", "[::1]:2888"), "");
    }
}
