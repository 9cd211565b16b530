//! The native face: sessions and what they hold, over gRPC and HTTP/JSON, on one port.
//!
//! | file        | what it holds                                                                  |
//! |-------------|--------------------------------------------------------------------------------|
//! | `door`      | what a request is: a call, a stream, or plain HTTP                             |
//! | `connect`   | the stream of a client: requests, replies, what is pushed, and their order     |
//! | `work`      | what a stream has under way                                                    |
//! | `router`    | who is told what, from one subscription for the whole node                     |
//! | `mailbox`   | what waits for one client, bounded                                             |
//! | `session_map` | sessions, each with something beside it                                      |
//! | `told`      | clients that only listen                                                       |
//! | `unary`     | calls with one message each way                                                |
//! | `http`      | JSON, server-sent events, the OpenAPI document                                 |
//! | `translate`, `questions` | wire to core and back; pure                                       |
//! | `problem`   | every error                                                                    |
//! | `callers`   | who asks                                                                       |
//! | `renewals`  | keep-alives of all clients, put together                                       |
//!
//! One request is one command (`Command::Native`); all decisions are in the core. Sockets are in `client-port` alone.
//! The wire is `crates/native-api`; how it is meant is in docs/internals/native-api.md.

mod callers;
mod connect;
mod descriptors;
mod door;
mod http;
mod mailbox;
mod problem;
mod questions;
mod renewals;
mod router;
mod services;
mod session_map;
mod told;
mod translate;
mod unary;
mod work;
mod write;

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod test_double;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tidelock_client_port::{Allowance, BCRYPT_COST, TokenKind};
use tidelock_coordinator::Coordinator;
use tokio::task::JoinSet;

pub use door::ClientConnection;
pub use tidelock_client_port::serve;

use http::Routes;
use services::Services;

/// What can be set about this face.
#[derive(Clone, Debug)]
pub struct FaceConfig {
    /// What connections may have.
    pub allowance: Allowance,
    /// How clients that came in are known again.
    pub token: TokenKind,
    /// The cost of hashing a password.
    pub bcrypt_cost: u32,
}

impl Default for FaceConfig {
    fn default() -> FaceConfig {
        let allowance = Allowance {
            streams: 16_384,
            ping_after: Duration::from_secs(60),
            ping_timeout: Duration::from_secs(20),
            drain: Duration::from_secs(5),
        };
        FaceConfig { allowance, token: TokenKind::default(), bcrypt_cost: BCRYPT_COST }
    }
}

/// The face. Hand it to [`serve`]. Cloning is cheap; every clone is the same face.
#[derive(Clone)]
pub struct NativeFace(Arc<Shared>);

struct Shared {
    services: Arc<Services>,
    /// Made when the first client asks in JSON.
    routes: LazyLock<Routes>,
    /// What runs beside the connections; ends with the face.
    _beside: JoinSet<()>,
}

impl NativeFace {
    /// A face over `coordinator`, which must know its cluster and node id by now. Runs within a tokio runtime.
    #[must_use]
    pub fn new(coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> NativeFace {
        let services = Arc::new(Services::new(Arc::clone(&coordinator), config));
        let mut beside = JoinSet::new();
        let (one, node) = (Arc::clone(&services), Arc::clone(&coordinator));
        beside.spawn(async move { one.router.follow(node).await });
        let one = Arc::clone(&services);
        beside.spawn(async move { one.renewals.run(coordinator).await });
        NativeFace(Arc::new(Shared { services, routes: LazyLock::new(Routes::new), _beside: beside }))
    }

    fn services(&self) -> &Arc<Services> {
        &self.0.services
    }

    fn routes(&self) -> &Routes {
        &self.0.routes
    }
}
