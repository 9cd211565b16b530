//! Sessions, as lock and election recipes make them: a lease, a key that lives as long, renewals from
//! whichever node the client is connected to, and clients that sleep through the end of their session.

use super::leases::{grant, is_gone, lease_id};
use super::{Setup, get, put};
use crate::client::Client;
use crate::history::{Answer, Compare, Content, Micros, Request, Told};

/// Shortest and longest time to live, in seconds.
const TTL_S: (u64, u64) = (2, 6);
/// Longest life of a session, in virtual microseconds.
const LIFE_MAX: Micros = 20_000_000;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

async fn run(client: Client) {
    let mut counter = 0;
    while !client.stopping() {
        client.think_a_while().await;
        let (lease, ttl_s) = (lease_id(&client, &mut counter), client.between(TTL_S.0, TTL_S.1));
        if grant(&client, lease, ttl_s).await && enter(&client, lease).await {
            live(&client, lease, ttl_s).await;
        }
    }
}

/// Creates the session's key, if it is not there. A client that does not know whether it did looks.
async fn enter(client: &Client, lease: i64) -> bool {
    let key = format!("session/{lease}");
    let compares = vec![Compare::VersionIs(key.clone(), 0)];
    let then = vec![put(&key, client.unique(), lease)];
    let told = client.ask(Request::Txn { compares, then, otherwise: vec![get(&key)] }).await;
    match told {
        Told::Answer(Answer { content: Content::Txn { succeeded, .. }, .. }) => succeeded,
        _ => client.get(&key, None).await.is_some_and(|answer| !super::found(&answer).is_empty()),
    }
}

async fn live(client: &Client, lease: i64, ttl_s: u64) {
    let key = format!("session/{lease}");
    let ttl = ttl_s * 1_000_000;
    let until = client.now() + client.below(LIFE_MAX);
    while client.now() < until && !client.stopping() {
        // Now and then a client is stopped for about as long as its session lives.
        client.sleep(if client.chance(80) { client.between(ttl / 2, ttl * 3 / 2) } else { ttl / 3 }).await;
        let Some(node) = (if client.chance(400) { client.any_node() } else { client.choose_node() }) else { continue };
        if is_gone(&client.ask_at(node, Request::KeepAlive { lease }).await) {
            // The session is over: so must be its key, wherever one looks.
            client.ask(Request::Op(get(&key))).await;
            return;
        }
        if client.chance(200) {
            client.ask(Request::Op(get(&key))).await;
        }
    }
    if client.chance(600) {
        client.ask(Request::Revoke { lease }).await;
    }
}
