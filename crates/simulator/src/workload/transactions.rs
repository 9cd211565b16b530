//! Transfers between accounts: read some, then write them all if none changed. The sum of all accounts is
//! the same at every revision once they exist.

use super::{Setup, found, get, get_range, number_of, put, unchanged};
use crate::client::Client;
use crate::history::{Answer, Compare, Content, Kv, Op, Request, Told};

/// How many accounts there are.
const ACCOUNTS: u64 = 6;
/// What each begins with.
const AMOUNT: u64 = 100;
/// How far back reads at old revisions go.
const BACK: u64 = 100;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

fn key(number: u64) -> String {
    format!("account/{number}")
}

async fn run(client: Client) {
    let mut exist = false;
    while !client.stopping() {
        client.think_a_while().await;
        match client.below(10) {
            _ if !exist => exist = create(&client).await,
            0..6 => transfer(&client).await,
            6..8 => drop(client.ask(Request::Op(get_range("account/", "account0"))).await),
            _ => {
                let at = if client.chance(500) { client.past_revision(BACK) } else { 0 };
                let (key, end) = ("account/".to_owned(), Some("account0".to_owned()));
                client.ask(Request::Op(Op::Get { key, end, at, serializable: true })).await;
            }
        }
    }
}

/// Creates all accounts at once unless someone did before. Says whether they exist.
async fn create(client: &Client) -> bool {
    let compares = (0..ACCOUNTS).map(|number| Compare::ModifiedAt(key(number), 0)).collect();
    let then = (0..ACCOUNTS).map(|number| put(&key(number), amount(client, AMOUNT), 0)).collect();
    let told = client.ask(Request::Txn { compares, then, otherwise: vec![get(&key(0))] }).await;
    matches!(told, Told::Answer(_))
}

fn amount(client: &Client, amount: u64) -> String {
    format!("{amount}#{}", client.unique())
}

/// Moves some of one account to two others, or to one.
async fn transfer(client: &Client) {
    let first = client.below(ACCOUNTS);
    let keys: Vec<String> = (0..client.between(2, 3)).map(|next| key((first + next) % ACCOUNTS)).collect();
    let Some(accounts) = read(client, &keys).await else { return };
    let amounts: Vec<u64> = accounts.iter().map(|account| number_of(&account.value)).collect();
    let moved = if amounts[0] == 0 { 0 } else { client.between(1, amounts[0]) };
    let receivers = amounts.len() as u64 - 1;
    let compares = keys.iter().zip(&accounts).map(|(key, account)| unchanged(key, Some(account))).collect();
    let then = (0..).zip(keys.iter().zip(&amounts)).map(|(place, (key, before))| {
        let after = match place {
            0 => before - moved,
            // The first receiver gets what cannot be shared evenly.
            1 => before + moved / receivers + moved % receivers,
            _ => before + moved / receivers,
        };
        put(key, amount(client, after), 0)
    });
    let then = then.collect();
    client.ask(Request::Txn { compares, then, otherwise: vec![get(&keys[0])] }).await;
}

/// Reads accounts at one revision; `None` unless all are there.
async fn read(client: &Client, keys: &[String]) -> Option<Vec<Kv>> {
    if client.chance(300) {
        let all = client.get("account/", Some("account0")).await?;
        return keys.iter().map(|key| found(&all).iter().find(|kv| kv.key == *key).cloned()).collect();
    }
    let then = keys.iter().map(|key| get(key)).collect();
    match client.ask(Request::Txn { compares: Vec::new(), then, otherwise: Vec::new() }).await {
        Told::Answer(Answer { content: Content::Txn { answers, .. }, .. }) => {
            answers.iter().map(|answer| match answer {
                Content::Get { found, .. } => found.first().cloned(),
                _ => None,
            })
        }
        .collect(),
        _ => None,
    }
}
