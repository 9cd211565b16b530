//! Counting up: read the number, write the next if nobody else did.

use super::{Setup, found, get, number_of, put};
use crate::client::Client;
use crate::history::{Answer, Content, Request, Told};

/// How many counters there are.
const COUNTERS: u64 = 2;
/// How often a client that lost against another tries again at once.
const TRIES: u64 = 3;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

async fn run(client: Client) {
    while !client.stopping() {
        client.think_a_while().await;
        let key = format!("counter/{}", client.below(COUNTERS));
        if client.chance(300) {
            client.ask(Request::Op(get(&key))).await;
            continue;
        }
        for _ in 0..TRIES {
            if count(&client, &key).await {
                break;
            }
        }
    }
}

/// Counts one up. `false`: another client was quicker, and nothing else was wrong.
async fn count(client: &Client, key: &str) -> bool {
    let Some(answer) = client.get(key, None).await else { return true };
    let counter = found(&answer).first();
    let next = counter.map_or(0, |counter| number_of(&counter.value)) + 1;
    let value = format!("{next}#{}", client.unique());
    let told = client.write_if_unchanged(key, counter, vec![put(key, value, 0)]).await;
    !matches!(told, Told::Answer(Answer { content: Content::Txn { succeeded: false, .. }, .. }))
}
