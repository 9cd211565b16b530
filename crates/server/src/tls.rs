//! TLS as this node has it: what its client addresses accept with, and what its links to other members are made
//! of. The only file that knows both the node's links and certificates.

use std::io;
use std::sync::Arc;

use tidelock_node::peers::{self, Awaiting, PeerSecurity, PeerStream};
use tidelock_tls::{Acceptor, Connector, TlsError};
use tokio::net::TcpStream;

use crate::config::{Tls, ZookeeperSecurity};
use crate::failure::Failure;

/// What client addresses with TLS accept with.
pub(crate) fn for_clients(tls: &Tls) -> Result<Option<Arc<Acceptor>>, Failure> {
    let acceptor = tls.clients.as_ref().map(Acceptor::open).transpose().map_err(|error| failure(&error))?;
    Ok(acceptor.map(Arc::new))
}

/// What the port with TLS for ZooKeeper's clients accepts with.
pub(crate) fn for_zookeeper(security: &ZookeeperSecurity) -> Result<Option<Arc<Acceptor>>, Failure> {
    let acceptor = security.secure.as_ref().map(|port| Acceptor::open(&port.tls)).transpose();
    Ok(acceptor.map_err(|error| failure(&error))?.map(Arc::new))
}

/// What links between members are made of.
pub(crate) fn for_peers(tls: &Tls) -> Result<PeerSecurity, Failure> {
    let Some(settings) = &tls.peers else { return Ok(PeerSecurity::plain()) };
    let acceptor = Acceptor::open(&settings.server).map_err(|error| failure(&error))?;
    let connector = Connector::open(&settings.client).map_err(|error| failure(&error))?;
    Ok(PeerSecurity { connector: Arc::new(Dialing(connector)), acceptor: Arc::new(Listening(acceptor)) })
}

/// The files were good when the settings were checked, a moment ago.
fn failure(error: &TlsError) -> Failure {
    Failure::new(error.what.clone()).hint(error.fix.clone())
}

struct Dialing(Connector);

impl peers::Connector for Dialing {
    fn secure<'a>(&'a self, target: &'a str, tcp: TcpStream) -> Awaiting<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move {
            // What the certificate must be for is the host as it was configured, not what it resolved to.
            let host = target.rsplit_once(':').map_or(target, |(host, _port)| host);
            let stream = self.0.connect(host, tcp).await?;
            Ok(Box::new(stream) as Box<dyn PeerStream>)
        })
    }
}

struct Listening(Acceptor);

impl peers::Acceptor for Listening {
    fn secure(&self, tcp: TcpStream) -> Awaiting<'_, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move {
            let accepted = self.0.accept(tcp).await?;
            Ok(Box::new(accepted.stream) as Box<dyn PeerStream>)
        })
    }
}
