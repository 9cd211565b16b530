//! Appending to lists: read the text, write it with one more element if it did not change. What a list
//! holds shows the order of everything that was appended to it.

use super::{Setup, found, get, put};
use crate::client::Client;
use crate::history::{Op, Request};

/// Lists that are appended to at a time.
const LISTS: usize = 3;
/// Elements after which clients go on with a new list: values that grow without end would drown a run.
const ELEMENTS_MAX: usize = 60;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

async fn run(client: Client) {
    // Which list of each lane is appended to.
    let mut generation = [0_usize; LISTS];
    while !client.stopping() {
        client.think_a_while().await;
        let lane = client.below(LISTS as u64) as usize;
        let key = format!("list/{}", generation[lane] * LISTS + lane);
        if client.chance(250) {
            let serializable = client.chance(300);
            client.ask(Request::Op(Op::Get { key, end: None, at: 0, serializable })).await;
            continue;
        }
        let Some(answer) = client.get(&key, None).await else { continue };
        let list = found(&answer).first();
        if list.is_some_and(|list| list.value.split(',').count() >= ELEMENTS_MAX) {
            generation[lane] += 1;
            continue;
        }
        let element = client.unique();
        let text = list.map_or_else(|| element.clone(), |list| format!("{},{element}", list.value));
        // Reading in the same transaction shows the list right after.
        client.write_if_unchanged(&key, list, vec![put(&key, text, 0), get(&key)]).await;
    }
}
