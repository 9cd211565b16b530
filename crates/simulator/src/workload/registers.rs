//! Registers: put, read in every way there is, compare-and-swap, delete.

use super::{Setup, found, get, put};
use crate::client::Client;
use crate::history::{Compare, Op, Request};

/// Clients that share keys; more would make checking one key's history slow.
const CLIENTS_PER_GROUP: u64 = 8;
/// Keys they share.
const KEYS_PER_GROUP: u64 = 4;
/// How far back reads at old revisions go.
const BACK: u64 = 150;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, number| run(client, number / CLIENTS_PER_GROUP));
}

async fn run(client: Client, group: u64) {
    while !client.stopping() {
        client.think_a_while().await;
        let key = format!("reg/{}", group * KEYS_PER_GROUP + client.below(KEYS_PER_GROUP));
        match client.below(100) {
            0..26 => drop(client.ask(Request::Op(put(&key, client.unique(), 0))).await),
            26..46 => drop(client.ask(Request::Op(get(&key))).await),
            46..56 => drop(client.ask(read(&key, None, 0, true)).await),
            56..63 => drop(client.ask(read_past(&client, &key)).await),
            63..78 => swap_revision(&client, &key).await,
            78..84 => swap_value(&client, &key).await,
            84..89 => drop(client.ask(Request::Op(Op::Delete { key, end: None })).await),
            89..90 => drop(client.ask(Request::Op(Op::Delete { key, end: Some("reg0".to_owned()) })).await),
            90..95 => drop(client.ask(read("reg/", Some("reg0"), 0, client.chance(300))).await),
            95..97 => look_twice(&client, &key).await,
            _ => write_and_read(&client, &key, group).await,
        }
    }
}

fn read(key: &str, end: Option<&str>, at: i64, serializable: bool) -> Request {
    Request::Op(Op::Get { key: key.to_owned(), end: end.map(str::to_owned), at, serializable })
}

/// A read at a past revision, of one key or all, at a node that may not have that revision yet.
fn read_past(client: &Client, key: &str) -> Request {
    let (at, serializable) = (client.past_revision(BACK), client.chance(400));
    if client.chance(300) { read("reg/", Some("reg0"), at, serializable) } else { read(key, None, at, serializable) }
}

async fn swap_revision(client: &Client, key: &str) {
    let Some(answer) = client.get(key, None).await else { return };
    client.write_if_unchanged(key, found(&answer).first(), vec![put(key, client.unique(), 0)]).await;
}

/// Swaps a value for another; creates the key if it was not there.
async fn swap_value(client: &Client, key: &str) {
    let Some(answer) = client.get(key, None).await else { return };
    let compare = match found(&answer).first() {
        Some(kv) => Compare::ValueIs(key.to_owned(), kv.value.clone()),
        None => Compare::VersionIs(key.to_owned(), 0),
    };
    let then =
        if client.chance(150) { Op::Delete { key: key.to_owned(), end: None } } else { put(key, client.unique(), 0) };
    client.ask(Request::Txn { compares: vec![compare], then: vec![then], otherwise: vec![get(key)] }).await;
}

/// A transaction that only reads, and reads the same key twice.
async fn look_twice(client: &Client, key: &str) {
    let then = vec![get(key), get(key)];
    client
        .ask(Request::Txn { compares: vec![Compare::VersionIs(key.to_owned(), 1)], then, otherwise: vec![get(key)] })
        .await;
}

/// A transaction without a condition that writes one key between two reads of it, and reads another.
async fn write_and_read(client: &Client, key: &str, group: u64) {
    let other = format!("reg/{}", group * KEYS_PER_GROUP + client.below(KEYS_PER_GROUP));
    let then = vec![get(key), put(key, client.unique(), 0), get(key), get(&other)];
    client.ask(Request::Txn { compares: Vec::new(), then, otherwise: Vec::new() }).await;
}
