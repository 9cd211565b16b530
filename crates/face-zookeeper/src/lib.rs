//! The ZooKeeper face: ZooKeeper's wire protocol over a [`Coordinator`].
//!
//! | ZooKeeper says            | we say                                                               |
//! |---------------------------|----------------------------------------------------------------------|
//! | zxid                      | `Revision`                                                           |
//! | znode                     | a key in `Space::Tree` (see `state::znodes`)                         |
//! | create, delete, set, multi| `ZnodeRequest`: decided in `apply`, in the client's order            |
//! | session                   | a lease that owns a record of itself                                 |
//! | ping, any packet          | a renewal at the leader, not in the log                              |
//! | watch                     | an entry in this node's `watch_table`, fed by one `Subscription`     |
//! | ACL                       | a list on the znode, judged in `state::znodes`                       |
//! | auth, sasl, certificates  | identities of a connection (`credentials`, `sasl`, `security`)       |
//! | sync                      | a linearizable read of nothing                                       |
//! | reconfig                  | a `MemberChange`, made of the lists by `ensemble`                    |
//! | read-only mode            | local reads at a node that knows no leader (see `read_only`)         |
//!
//! A request top to bottom: `listener` takes the connection, `connection` reads the packet and carries it out in
//! turn, `wire` parses it, `translate` says what it is for the core (or `own_requests` answers it), `outbox` holds
//! the reply until it is sent. What holds between replies and events is told in `watches`.
//!
//! For operators: `figures` counts, `report` and `listings` put together what is told, `words` says it as text and
//! `admin` as JSON.

mod admin;
mod config;
mod connection;
mod credentials;
mod ensemble;
mod figures;
mod listener;
mod listings;
mod machine;
mod outbox;
mod outside;
mod own_requests;
mod paths;
mod read_only;
mod reaper;
mod reconfig;
mod report;
mod sasl;
mod security;
mod sessions;
mod translate;
mod watch_table;
mod watches;
pub mod wire;
mod words;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tidelock_coordinator::Coordinator;
use tokio::io::{AsyncRead, AsyncWrite};

pub use admin::{ADMIN_COMMANDS, AdminAnswer};
pub use config::{About, FaceConfig};
pub use listener::{Port, serve};
pub use outside::{Outside, Secret};
pub use sasl::SaslUsers;
pub use security::Security;

use outside::ThisMachine;
use sessions::Sessions;
use watches::Watches;

/// Everything that connections share.
pub(crate) struct Face {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) config: FaceConfig,
    pub(crate) outside: Arc<dyn Outside>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) counts: figures::Counts,
    pub(crate) clients: figures::Clients,
    /// Held while a client changes the members.
    pub(crate) reconfiguring: tokio::sync::Mutex<()>,
    pub(crate) read_only: read_only::ReadOnly,
}

/// ZooKeeper's protocol at a node. Cheap to clone.
#[derive(Clone)]
pub struct ZookeeperFace {
    pub(crate) shared: Arc<Face>,
}

impl ZookeeperFace {
    /// A face over `coordinator`.
    #[must_use]
    pub fn new(coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> ZookeeperFace {
        ZookeeperFace::on(Arc::new(ThisMachine::default()), coordinator, config)
    }

    /// The same on another machine than this, such as a simulated one.
    #[must_use]
    pub fn on(outside: Arc<dyn Outside>, coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> ZookeeperFace {
        let sessions = Arc::new(Sessions::new(Arc::clone(&coordinator), Arc::clone(&outside)));
        let watches = Arc::new(Watches::new(&*coordinator, Arc::clone(&outside)));
        let (counts, clients) = (figures::Counts::default(), figures::Clients::default());
        let (reconfiguring, read_only) = (tokio::sync::Mutex::new(()), read_only::ReadOnly::new(Arc::clone(&outside)));
        let face = Face { coordinator, config, outside, sessions, watches, counts, clients, reconfiguring, read_only };
        ZookeeperFace { shared: Arc::new(face) }
    }

    /// What has to go on beside the connections as long as the node runs.
    #[must_use]
    pub fn chores(&self) -> [Chore; 4] {
        let (watches, coordinator) = (Arc::clone(&self.shared.watches), Arc::clone(&self.shared.coordinator));
        let sessions = Arc::clone(&self.shared.sessions);
        let (renewing, reaping, looking) =
            (Arc::clone(&self.shared), Arc::clone(&self.shared), Arc::clone(&self.shared));
        [
            Box::pin(async move { watches.follow(coordinator, sessions).await }),
            Box::pin(async move { renewing.sessions.renew(renewing.config.tick / 4).await }),
            Box::pin(async move { reaping.reap().await }),
            Box::pin(async move { looking.watch_for_leader().await }),
        ]
    }

    /// Serves one client, from its first bytes to its last.
    pub async fn serve_connection(&self, io: impl AsyncRead + AsyncWrite + Send + 'static, address: SocketAddr) {
        let arriving = std::future::ready(Some((io, Vec::new())));
        connection::serve(Arc::clone(&self.shared), arriving, address).await;
    }
}

/// Something that goes on until it is dropped.
pub type Chore = Pin<Box<dyn Future<Output = ()> + Send>>;
