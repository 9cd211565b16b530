//! What a lock is for: registers that its holder writes. One is written by a transaction, or a native write, that shows
//! the holder's token to the lock's fence, in the store itself; one by a native write that asks whether the session
//! holds the place of the token; and one by whoever believes to hold the lock, as a resource is that asks for no token.
//!
//! Of the first it is promised that no write of an old holder takes effect once a newer one has written (K4), of the
//! second that none does once it holds the lock no more (K3). Of the third nothing is (K6), and `coverage.rs` counts how
//! often that shows: it must, or holders are not disturbed enough for the others to mean anything.

use bytes::Bytes;
use tidelock_model::{
    GuardedWrite, Key, KeyChange, KeyCondition, Kind, Name, NativeAnswer, NativeError, NativeOp, Space, TokenGuard,
};

use super::Memory;
use super::session::Session;
use crate::client::Cut;
use crate::coverage;
use crate::history::{Answer, Compare, Content, Op, Request, Told};
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
    if client.chance(600) {
        write_held(session, Kind::Lock, lock, token).await;
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
    if client.chance(500) {
        write_held(session, Kind::Lock, lock, token).await;
    } else {
        show_token(session, lock, token).await;
    }
}

async fn write_both(session: &mut Session<'_>, lock: &Name, token: u64) {
    let client = session.client();
    if client.chance(900) {
        let value = format!("{token}#{}", client.unique());
        client.ask(Request::Op(put(&format!("unfenced/{lock}"), value, 0))).await;
    }
    show_token(session, lock, token).await;
}

/// Writes what a lock or a lead guards in the store itself: `held/<name>`, and now and then another key with it.
pub(super) async fn write_held(session: &mut Session<'_>, kind: Kind, name: &Name, token: u64) {
    let client = session.client();
    let (key, other) = (format!("held/{name}"), format!("held/{name}/last"));
    let mut guards = vec![TokenGuard { kind, name: name.clone(), token }];
    if kind == Kind::Lock && client.chance(300) {
        guards.push(TokenGuard { kind: Kind::Fence, name: name.clone(), token });
    }
    let mut conditions = Vec::new();
    if client.chance(300) {
        let Some(Answer { content: Content::Get { found, .. }, .. }) = client.get(&key, None).await else { return };
        // Now and then somebody expects what was there long ago.
        let modified = found.first().map_or(0, |kv| if client.chance(200) { kv.created } else { kv.modified });
        conditions.push((key.clone(), modified));
    }
    let mut changes = vec![(key, Some(format!("{token}#{}", client.unique())))];
    match client.below(4) {
        0 => changes.push((other, Some(client.unique()))),
        1 => changes.push((other, None)),
        _ => {}
    }
    ask_to_write(session, guards, conditions, changes).await;
}

/// A native write. It is written down as the transaction that it is, too, so that it is judged as one.
async fn ask_to_write(
    session: &mut Session<'_>,
    guards: Vec<TokenGuard>,
    conditions: Vec<(String, i64)>,
    changes: Vec<(String, Option<String>)>,
) {
    let client = session.client();
    let Some(node) = client.choose_node() else { return };
    let guarded = guards.iter().map(|TokenGuard { kind, name, token }| match kind {
        Kind::Fence => Compare::Admits(name.as_str().to_owned(), *token),
        _ => Compare::Holds { session: session.id().0, kind: *kind, name: name.as_str().to_owned(), token: *token },
    });
    let expected = conditions.iter().map(|(key, modified)| Compare::ModifiedAt(key.clone(), *modified));
    let compares = guarded.chain(expected).collect();
    let then = changes.iter().map(|(key, value)| match value {
        Some(value) => put(key, value.clone(), 0),
        None => Op::Delete { key: key.clone(), end: None },
    });
    let request = Request::Txn { compares, then: then.collect(), otherwise: vec![] };
    let user = |key: &str| Key::new(Space::User, key.as_bytes());
    let condition =
        |(key, modified): &(String, i64)| KeyCondition { key: user(key), modified: modified.unsigned_abs() };
    let change = |(key, value): (String, Option<String>)| KeyChange { key: user(&key), value: value.map(Bytes::from) };
    let (conditions, changes) = (conditions.iter().map(condition).collect(), changes.into_iter().map(change).collect());
    let write = GuardedWrite::new(guards, conditions, changes).expect("a few short keys, each of them once");
    let around = client.around();
    let place = around.recorder.called(client.id(), node, request);
    let told = match session.ask_dated(NativeOp::Write(write)).await {
        Some((revision, result)) => told(revision, &result),
        None => Told::Unknown("nobody said what became of it".to_owned()),
    };
    around.recorder.returned(place, told.clone());
    let Told::Answer(Answer { content: Content::Written { done }, .. }) = told else { return };
    around.coverage.hit(if done { coverage::NATIVE_WRITE } else { coverage::NATIVE_WRITE_REFUSED });
}

/// What a transaction would have been told. That there is no such session says nothing of an attempt before.
fn told(revision: u64, result: &Result<NativeAnswer, NativeError>) -> Told {
    let done = match result {
        Ok(_) => true,
        Err(
            NativeError::StaleToken { .. }
            | NativeError::NotHolder { .. }
            | NativeError::Fenced { .. }
            | NativeError::ForgedToken { .. }
            | NativeError::KeyChanged { .. },
        ) => false,
        Err(other) => return Told::Unknown(format!("{other:?}")),
    };
    let revision = i64::try_from(revision).unwrap_or(i64::MAX);
    Told::Answer(Answer { revision, term: 0, content: Content::Written { done } })
}

async fn show_token(session: &mut Session<'_>, lock: &Name, token: u64) {
    let client = session.client();
    let key = format!("fenced/{lock}");
    if !session.is_over() && client.chance(400) {
        let guards = vec![TokenGuard { kind: Kind::Fence, name: lock.clone(), token }];
        let changes = vec![(key, Some(format!("{token}#{}", client.unique())))];
        return ask_to_write(session, guards, vec![], changes).await;
    }
    let compares = vec![Compare::Admits(lock.as_str().to_owned(), token)];
    let then = vec![put(&key, format!("{token}#{}", client.unique()), 0)];
    let told = client.ask(Request::Txn { compares, then, otherwise: vec![get(&key)] }).await;
    if let Told::Answer(Answer { content: Content::Txn { succeeded, .. }, .. }) = told {
        let reached = if succeeded { coverage::NATIVE_FENCED_WRITE } else { coverage::NATIVE_FENCED_WRITE_REFUSED };
        client.around().coverage.hit(reached);
    }
}
