//! What a lock is for: two registers that its holder writes. One is written by a transaction that shows the holder's
//! token to the lock's fence, in the store itself; the other is written by whoever believes to hold the lock, as a
//! resource is that asks for no token.
//!
//! Of the first it is promised that no write of an old holder takes effect once a newer one has written (K4). Of the
//! second nothing is (K6), and `coverage.rs` counts how often that shows: it must, or holders are not disturbed enough
//! for the first to mean anything.

use tidelock_model::{Kind, Name};

use super::Memory;
use super::session::Session;
use crate::client::Cut;
use crate::coverage;
use crate::history::{Answer, Compare, Content, Request, Told};
use crate::workload::{get, put};

/// The holder of a lock writes what it guards. Now and then it is stopped, or cut off, right before: it looked whether
/// it holds the lock, and does not look again.
pub(super) async fn write(session: &mut Session<'_>, lock: &Name, token: u64) {
    let client = session.client();
    match client.below(10) {
        0 => {
            client.around().coverage.hit(coverage::NATIVE_OVERSLEPT);
            session.oversleep().await;
        }
        1 => {
            cut_off(session);
            session.wait_until_heard().await;
        }
        _ => {}
    }
    write_both(session, lock, token).await;
}

/// Loses its connection to all nodes, for longer than its session lives, or not quite.
pub(super) fn cut_off(session: &Session<'_>) {
    let (client, ttl) = (session.client(), session.ttl());
    let cut = if client.chance(500) { Cut::BothWays } else { Cut::Answers };
    client.around().coverage.hit(coverage::NATIVE_CLIENT_CUT_OFF);
    client.cut_off(client.between(ttl / 2, 2 * ttl), cut);
}

/// Comes back with a token that it lost long ago, or with one that no lock has given yet.
pub(super) async fn write_with_old_token(session: &mut Session<'_>, memory: &Memory) {
    let client = session.client();
    let Some((_, lock, old)) = memory.old_tokens.iter().rev().find(|(kind, ..)| *kind == Kind::Lock) else { return };
    let forged = u64::try_from(client.newest_revision()).unwrap_or(0) + 1_000_000;
    let token = if client.chance(200) { forged } else { *old };
    show_token(session, lock, token).await;
}

async fn write_both(session: &mut Session<'_>, lock: &Name, token: u64) {
    let client = session.client();
    if client.chance(500) {
        let value = format!("{token}#{}", client.unique());
        client.ask(Request::Op(put(&format!("unfenced/{lock}"), value, 0))).await;
    }
    show_token(session, lock, token).await;
}

async fn show_token(session: &Session<'_>, lock: &Name, token: u64) {
    let client = session.client();
    let key = format!("fenced/{lock}");
    let compares = vec![Compare::Admits(lock.as_str().to_owned(), token)];
    let then = vec![put(&key, format!("{token}#{}", client.unique()), 0)];
    let told = client.ask(Request::Txn { compares, then, otherwise: vec![get(&key)] }).await;
    if let Told::Answer(Answer { content: Content::Txn { succeeded, .. }, .. }) = told {
        let reached = if succeeded { coverage::NATIVE_FENCED_WRITE } else { coverage::NATIVE_FENCED_WRITE_REFUSED };
        client.around().coverage.hit(reached);
    }
}
