//! One of the two systems: its processes, connections, watch streams and tokens.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidelock_etcd_api::etcdserverpb::MemberListRequest;
use tonic::transport::Channel;

use super::call::{Answer, Call, Connection, Reply};
use crate::Result;
use crate::servers::{Cluster, System};

/// Connections to each system; they go to all members in turn.
pub(super) const CLIENTS: usize = 6;
/// How often members are looked at after a start, and how long in between.
const INTRODUCTION_TRIES: usize = 200;
const INTRODUCTION_PAUSE: Duration = Duration::from_millis(50);

/// A running system.
pub(super) struct Side {
    /// A connection for each client.
    pub(super) connections: Vec<Connection>,
    /// The same, for streams.
    pub(super) channels: Vec<Channel>,
    /// What Authenticate gave to whom. The words differ from server to server, so requests name the user.
    tokens: Mutex<BTreeMap<String, String>>,
    _cluster: Cluster,
}

impl Side {
    /// Starts `nodes` members and connects.
    pub(super) async fn start(system: &System, nodes: usize, data: &std::path::Path) -> Result<Side> {
        let cluster = Cluster::start_under(system, nodes, data).await?;
        let channels = cluster.connect(CLIENTS, false).await?;
        let connections = channels.iter().map(Connection::new).collect();
        let side = Side { connections, channels, tokens: Mutex::default(), _cluster: cluster };
        side.wait_introduced().await?;
        Ok(side)
    }

    /// Waits until every member has told the others where clients find it: Tidelock serves before that.
    async fn wait_introduced(&self) -> Result<()> {
        for _ in 0..INTRODUCTION_TRIES {
            let list = Call::MemberList(MemberListRequest { linearizable: true });
            let answer = self.send(0, list, None).await;
            if let Answer::Reply(reply) = &answer
                && let Reply::MemberList(list) = &**reply
                && list.members.iter().all(|member| !member.client_ur_ls.is_empty())
            {
                return Ok(());
            }
            tokio::time::sleep(INTRODUCTION_PAUSE).await;
        }
        Err("a member did not tell its client URLs in time".to_string())
    }

    /// Sends `call` over connection `client`.
    pub(super) async fn send(&self, client: usize, call: Call, user: Option<&str>) -> Answer {
        let token = user.map(|user| self.token(user));
        let name = match &call {
            Call::Authenticate(request) => request.name.clone(),
            _ => String::new(),
        };
        let switched_off = matches!(call, Call::AuthDisable(_));
        let (answer, given) = self.connections[client].send(call, token.as_deref()).await;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if switched_off && matches!(answer, Answer::Reply(_)) {
            tokens.clear();
        }
        tokens.extend(given.map(|given| (name, given)));
        drop(tokens);
        answer
    }

    /// Whether `user` was given a token since authentication was switched on.
    pub(super) fn has_token(&self, user: &str) -> bool {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).contains_key(user)
    }

    /// The last token of `user`, or one that nobody was given.
    pub(super) fn token(&self, user: &str) -> String {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(user).cloned().unwrap_or_else(|| "never.given".to_string())
    }
}
