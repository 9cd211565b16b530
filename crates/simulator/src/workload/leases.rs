//! Leases: grant, put keys on them, renew for a while, then end them or let them run out; and what clients
//! do to keys meanwhile: move them to another lease, take them off, delete them.

use super::{Setup, get_range, put};
use crate::client::Client;
use crate::history::{Answer, Content, Micros, Op, Request, Told};

/// Shortest and longest time to live, in seconds.
const TTL_S: (u64, u64) = (2, 8);
/// Longest time a lease is renewed, in virtual microseconds.
const RENEWED_MAX: Micros = 15_000_000;
/// Most keys put on a lease to begin with.
const KEYS_MAX: u64 = 4;
/// Ids of one client's leases begin at its number times this.
const IDS_PER_CLIENT: i64 = 100_000;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

/// The next id for a lease, unique in the run.
pub(super) fn lease_id(client: &Client, counter: &mut i64) -> i64 {
    *counter += 1;
    (i64::from(client.id()) + 1) * IDS_PER_CLIENT + *counter
}

/// Whether the client was told that it has the lease.
pub(super) async fn grant(client: &Client, lease: i64, ttl_s: u64) -> bool {
    let ttl_s = i64::try_from(ttl_s).expect("seconds");
    matches!(client.ask(Request::Grant { lease, ttl_s }).await, Told::Answer(_))
}

/// Whether a renewal was answered with "there is no such lease".
pub(super) fn is_gone(told: &Told) -> bool {
    matches!(told, Told::Answer(Answer { content: Content::KeptAlive { ttl_s: None }, .. }))
}

async fn run(client: Client) {
    let (mut counter, mut previous) = (0, 0);
    while !client.stopping() {
        client.think_a_while().await;
        let (lease, ttl_s) = (lease_id(&client, &mut counter), client.between(TTL_S.0, TTL_S.1));
        if !grant(&client, lease, ttl_s).await {
            // It may exist all the same; then it runs out by itself.
            continue;
        }
        put_keys(&client, lease).await;
        renew(&client, lease, ttl_s, previous).await;
        end(&client, lease, ttl_s).await;
        previous = lease;
    }
}

fn key(lease: i64, number: u64) -> String {
    format!("lease/{lease}/{number}")
}

fn keys_end(lease: i64) -> String {
    format!("lease/{lease}0")
}

/// Puts keys on the lease, one by one or all at once.
async fn put_keys(client: &Client, lease: i64) {
    let keys = client.between(0, KEYS_MAX);
    let puts: Vec<Op> = (0..keys).map(|number| put(&key(lease, number), client.unique(), lease)).collect();
    if client.chance(300) && !puts.is_empty() {
        client.ask(Request::Txn { compares: Vec::new(), then: puts, otherwise: Vec::new() }).await;
        return;
    }
    for put in puts {
        client.ask(Request::Op(put)).await;
    }
}

/// Renews the lease every third of its time, for a while, and now and then changes its keys.
async fn renew(client: &Client, lease: i64, ttl_s: u64, previous: i64) {
    let until = client.now() + client.below(RENEWED_MAX);
    while client.now() < until && !client.stopping() {
        client.sleep(ttl_s * 1_000_000 / 3).await;
        if is_gone(&client.ask(Request::KeepAlive { lease }).await) {
            return;
        }
        if client.chance(300) {
            change_keys(client, lease, previous).await;
        }
    }
}

async fn change_keys(client: &Client, lease: i64, previous: i64) {
    let key = key(lease, client.below(KEYS_MAX));
    let request = match client.below(5) {
        // Off every lease: it must outlive this one.
        0 => Request::Op(put(&key, client.unique(), 0)),
        1 => Request::Op(Op::Delete { key, end: None }),
        // To another lease, which is gone by now or about to go.
        2 if previous != 0 => Request::Op(put(&key, client.unique(), previous)),
        3 => Request::Op(get_range(&format!("lease/{lease}/"), &keys_end(lease))),
        _ => Request::Op(put(&key, client.unique(), lease)),
    };
    client.ask(request).await;
}

/// Ends the lease, or leaves it alone for longer than it lives, and looks what is left of its keys.
async fn end(client: &Client, lease: i64, ttl_s: u64) {
    if client.chance(450) {
        client.ask(Request::Revoke { lease }).await;
    } else {
        client.sleep(ttl_s * 1_000_000 + client.below(3_000_000)).await;
        match client.below(4) {
            0 => drop(client.ask(Request::KeepAlive { lease }).await),
            1 => drop(client.ask(Request::Op(put(&key(lease, 0), client.unique(), lease))).await),
            2 => drop(client.ask(Request::Revoke { lease }).await),
            _ => {}
        }
    }
    if client.chance(500) {
        client.ask(Request::Op(get_range(&format!("lease/{lease}/"), &keys_end(lease)))).await;
    }
}
