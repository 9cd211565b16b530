//! Locks, as clients of etcd take them: a key of one's own under the lock's name, owned by a lease; whoever's is
//! the oldest holds the lock. What the lock is for is written under the condition that one's key is still the
//! one that got it, so that a holder who slept through the end of its lease changes nothing any more.
//!
//! Every way to let go of a lock is taken: delete the key, revoke the lease, walk away.

use tidelock_face_etcd::line::Line;
use tidelock_model::LeaseId;

use super::leases::{grant, is_gone, lease_id};
use super::{Setup, found, get, get_range, put};
use crate::client::Client;
use crate::coverage;
use crate::history::{Answer, Compare, Content, Kv, Micros, Op, Request, Told};

/// So few that there is always someone waiting.
const LOCKS: u64 = 2;
/// Shortest and longest time to live, in seconds.
const TTL_S: (u64, u64) = (2, 5);
/// Attempts to stand in line before a client gives up.
const ENTER_TRIES: u64 = 3;
/// Shortest and longest time between two looks at the line.
const LOOK: (Micros, Micros) = (100_000, 500_000);
/// Longest time a client waits for its turn.
const PATIENCE: Micros = 15_000_000;
/// Most writes of one holder.
const WRITES_MAX: u64 = 5;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

/// A place in the line for a lock.
struct Place {
    lock: u64,
    lease: i64,
    ttl: Micros,
    key: String,
    /// When the key was made; it is never written again. The fencing token.
    token: i64,
}

async fn run(client: Client) {
    let mut counter = 0;
    while !client.stopping() {
        client.think_a_while().await;
        let (lease, ttl_s) = (lease_id(&client, &mut counter), client.between(TTL_S.0, TTL_S.1));
        if !grant(&client, lease, ttl_s).await {
            continue;
        }
        let lock = client.below(LOCKS);
        let key = place_in_line(lock, lease);
        let Some(token) = enter(&client, &key, lease).await else { continue };
        let place = Place { lock, lease, ttl: ttl_s * 1_000_000, key, token };
        if wait(&client, &place).await {
            hold(&client, &place).await;
        }
        leave(&client, &place).await;
    }
}

/// The key by which a lease waits for a lock, as etcd's clients name it.
fn place_in_line(lock: u64, lease: i64) -> String {
    let line = Line::new(format!("lock/{lock}").as_bytes()).expect("the name is short");
    String::from_utf8_lossy(line.place(LeaseId(lease)).name()).into_owned()
}

/// Stands in line unless it does already; since when. A client that does not know tries again.
async fn enter(client: &Client, key: &str, lease: i64) -> Option<i64> {
    for _ in 0..ENTER_TRIES {
        let compares = vec![Compare::VersionIs(key.to_owned(), 0)];
        let then = vec![put(key, client.unique(), lease)];
        match client.ask(Request::Txn { compares, then, otherwise: vec![get(key)] }).await {
            Told::Answer(Answer { revision, content: Content::Txn { succeeded: true, .. }, .. }) => {
                return Some(revision);
            }
            Told::Answer(Answer { content: Content::Txn { answers, .. }, .. }) => {
                let Some(Content::Get { found, .. }) = answers.first() else { return None };
                return found.first().map(|kv| kv.modified);
            }
            // The lease is over.
            Told::Error(_) => return None,
            _ if client.stopping() => return None,
            _ => {}
        }
    }
    None
}

fn oldest(line: &[Kv]) -> Option<&Kv> {
    line.iter().min_by_key(|kv| kv.created)
}

/// Waits until its own key is the oldest; whether that came.
async fn wait(client: &Client, place: &Place) -> bool {
    let (first, beyond) = (format!("lock/{}/", place.lock), format!("lock/{}0", place.lock));
    let (until, mut renewed, mut waited) = (client.now() + PATIENCE, client.now(), false);
    while !client.stopping() && client.now() < until {
        if client.now() > renewed + place.ttl / 3 {
            renewed = client.now();
            if is_gone(&client.ask(Request::KeepAlive { lease: place.lease }).await) {
                return false;
            }
        }
        let told = client.ask(Request::Op(get_range(&first, &beyond))).await;
        if let Told::Answer(answer) = &told {
            let line = found(answer);
            if !line.iter().any(|kv| kv.key == place.key && kv.modified == place.token) {
                return false;
            }
            if oldest(line).is_some_and(|kv| kv.key == place.key) {
                client.around().coverage.add(coverage::LOCK_HANDED_OVER, u64::from(waited));
                return true;
            }
        }
        client.think(LOOK.0, LOOK.1).await;
        waited = true;
    }
    false
}

/// Writes what the lock guards, as long as it holds.
async fn hold(client: &Client, place: &Place) {
    let guarded = format!("guarded/{}", place.lock);
    for _ in 0..client.between(1, WRITES_MAX) {
        if client.stopping() {
            return;
        }
        let compares = vec![Compare::ModifiedAt(place.key.clone(), place.token)];
        let then = vec![put(&guarded, format!("{}#{}", place.token, client.unique()), 0)];
        let told = client.ask(Request::Txn { compares, then, otherwise: vec![get(&place.key)] }).await;
        if matches!(told, Told::Answer(Answer { content: Content::Txn { succeeded: false, .. }, .. })) {
            client.around().coverage.hit(coverage::LOCK_LEASE_OVER);
            return;
        }
        // Now and then a holder is stopped for about as long as its lease lives, and does not notice.
        if client.chance(150) {
            client.sleep(client.between(place.ttl / 2, place.ttl * 3 / 2)).await;
        } else {
            client.think_a_while().await;
            // Whatever comes of it: only the store knows whether the lock is held.
            client.ask(Request::KeepAlive { lease: place.lease }).await;
        }
    }
}

async fn leave(client: &Client, place: &Place) {
    match client.below(10) {
        0..5 => drop(client.ask(Request::Op(Op::Delete { key: place.key.clone(), end: None })).await),
        5..8 => drop(client.ask(Request::Revoke { lease: place.lease }).await),
        _ => {}
    }
}
