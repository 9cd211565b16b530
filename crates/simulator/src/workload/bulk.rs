//! Large values in bursts: journals roll over, snapshots come often, and slow watchers fall behind.

use super::{Setup, get, put};
use crate::client::Client;
use crate::history::{Micros, Op, Request, Told};

/// Keys written to.
const KEYS: u64 = 12;
/// Shortest and longest padding of a value, in bytes.
const PADDING_BYTES: (u64, u64) = (1_000, 8_000);
/// Fewest and most writes of a burst.
const BURST: (u64, u64) = (10, 50);
/// Shortest and longest time between bursts.
const PAUSE: (Micros, Micros) = (2_000_000, 9_000_000);

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

async fn run(client: Client) {
    while !client.stopping() {
        client.think(PAUSE.0, PAUSE.1).await;
        for _ in 0..client.between(BURST.0, BURST.1) {
            let told = client.ask(Request::Op(put(&key(&client), value(&client), 0))).await;
            if client.stopping() || !matches!(told, Told::Answer(_)) {
                break;
            }
        }
        let request = match client.below(3) {
            0 => Op::Delete { key: "bulk/".to_owned(), end: Some("bulk0".to_owned()) },
            _ => get(&key(&client)),
        };
        client.ask(Request::Op(request)).await;
    }
}

fn key(client: &Client) -> String {
    format!("bulk/{}", client.below(KEYS))
}

fn value(client: &Client) -> String {
    let bytes = client.between(PADDING_BYTES.0, PADDING_BYTES.1) as usize;
    format!("{}:{}", client.unique(), ".".repeat(bytes))
}
