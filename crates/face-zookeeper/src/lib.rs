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

use std::sync::Arc;

use tidelock_coordinator::Coordinator;

pub use admin::{ADMIN_COMMANDS, AdminAnswer};
pub use config::{About, FaceConfig};
pub use listener::{Port, serve};
pub use sasl::SaslUsers;
pub use security::Security;

use sessions::Sessions;
use watches::Watches;

/// Everything that connections share.
pub(crate) struct Face {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) config: FaceConfig,
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
        let sessions = Arc::new(Sessions::new(Arc::clone(&coordinator)));
        let watches = Arc::new(Watches::new(&*coordinator));
        let (counts, clients) = (figures::Counts::default(), figures::Clients::default());
        let (reconfiguring, read_only) = (tokio::sync::Mutex::new(()), read_only::ReadOnly::new());
        let face = Face { coordinator, config, sessions, watches, counts, clients, reconfiguring, read_only };
        ZookeeperFace { shared: Arc::new(face) }
    }
}
