//! The rules of writes under tokens.

use super::testing::*;
use crate::testing::{Machine, key};
use bytes::Bytes;
use tidelock_model::limits::{NATIVE_HOLDINGS_MAX, NATIVE_WRITE_GUARDS_MAX};
use tidelock_model::{
    Answer, AuthCommand, AuthRefusal, Caller, Command, GuardedWrite, KeyChange, KeyCondition, Kind, LeaseId,
    NativeAnswer, NativeCommand, NativeError, NativeOp, NativeRequest, Permission, Refusal, TokenGuard,
};
use tidelock_tree::steps;

fn guard(kind: Kind, text: &str, token: u64) -> TokenGuard {
    TokenGuard { kind, name: name(text), token }
}

fn put(text: &str, value: &str) -> KeyChange {
    KeyChange { key: key(text), value: Some(Bytes::copy_from_slice(value.as_bytes())) }
}

fn delete(text: &str) -> KeyChange {
    KeyChange { key: key(text), value: None }
}

fn if_changed_at(text: &str, modified: u64) -> KeyCondition {
    KeyCondition { key: key(text), modified }
}

fn write(guards: Vec<TokenGuard>, conditions: Vec<KeyCondition>, changes: Vec<KeyChange>) -> NativeOp {
    NativeOp::Write(GuardedWrite::new(guards, conditions, changes).unwrap())
}

fn pairs(native: &Native) -> Vec<(String, String)> {
    native.machine.pairs_at(native.machine.state.revision().0)
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// K3: the store is what the lock protects. Who lost it writes nothing more, from the moment another could have it and
/// not only once the other wrote; who never had it writes nothing; and what is refused changes no key at all.
#[test]
fn k3_who_holds_the_lock_no_more_writes_nothing() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let (_, old) = native.place(a, exclusive("m"));
    let by =
        |token| write(vec![guard(Kind::Lock, "m", token)], vec![], vec![put("k", &format!("by {token}")), delete("j")]);
    assert_eq!(native.ask(a, by(old)), Ok(NativeAnswer::Done));
    assert_eq!(native.ask(b, by(old)), Err(NativeError::NotHolder { token: old }), "a token is not handed on");
    native.place(b, exclusive("m"));
    native.ask(a, release(Kind::Lock, "m", old)).unwrap();
    let before = native.machine.state.revision();
    assert_eq!(
        native.ask(a, by(old)),
        Err(NativeError::StaleToken { token: old }),
        "the next holder wrote nothing yet"
    );
    let new = native.describe(Kind::Lock, "m").members[0].queued.as_ref().unwrap().token;
    assert_eq!(native.ask(b, by(0)), Err(NativeError::StaleToken { token: 0 }));
    assert_eq!(native.machine.state.revision(), before);
    assert_eq!(native.ask(b, by(new)), Ok(NativeAnswer::Done));
    assert_eq!(pairs(&native), [pair("k", &format!("by {new}"))]);
}

/// K4: a token that was handed on, to a process without the session, is let through by a fence, and none before it is.
#[test]
fn k4_a_write_shows_a_token_to_a_fence() {
    let mut native = Native::new();
    let session = native.open();
    let (old, new) = native.two_tokens(session, "m");
    let by = |token, value| write(vec![guard(Kind::Fence, "m", token)], vec![], vec![put("k", value)]);
    assert_eq!(native.ask(session, by(old, "old")), Ok(NativeAnswer::Done));
    assert_eq!(native.ask(session, by(new, "new")), Ok(NativeAnswer::Done));
    assert_eq!(native.ask(session, by(old, "late")), Err(NativeError::Fenced { token: old, highest: new }));
    assert_eq!(native.ask(session, by(u64::MAX, "x")), Err(NativeError::ForgedToken { token: u64::MAX }));
    assert_eq!(pairs(&native), [pair("k", "new")]);
}

/// All or nothing: one bad token or one condition that does not hold leaves all keys and all fences as they were.
#[test]
fn a_write_with_one_thing_wrong_changes_nothing() {
    let mut native = Native::new();
    let session = native.open();
    let (_, token) = native.place(session, exclusive("m"));
    let held = || guard(Kind::Lock, "m", token);
    let both = vec![put("a", "1"), put("b", "1")];
    native.ask(session, write(vec![held()], vec![if_changed_at("a", 0)], both)).unwrap();
    let at = native.machine.state.revision().0;
    let (conditions, changes) = (vec![if_changed_at("b", at), if_changed_at("a", 0)], vec![put("b", "2")]);
    let refused = native.ask(session, write(vec![guard(Kind::Fence, "f", token), held()], conditions, changes.clone()));
    assert_eq!(refused, Err(NativeError::KeyChanged { condition: 1, modified: at }));
    let gone = native.ask(session, write(vec![held()], vec![if_changed_at("c", 7)], changes.clone()));
    assert_eq!(gone, Err(NativeError::KeyChanged { condition: 0, modified: 0 }));
    let stale = write(vec![guard(Kind::Fence, "f", token), guard(Kind::Lock, "other", token)], vec![], changes.clone());
    assert_eq!(native.ask(session, stale), Err(NativeError::StaleToken { token }));
    assert_eq!(native.machine.state.revision().0, at);
    assert!(native.describe(Kind::Fence, "f").head.is_none());
    native.ask(session, write(vec![held()], vec![if_changed_at("b", at)], vec![put("b", "2"), delete("a")])).unwrap();
    assert_eq!(pairs(&native), [pair("b", "2")]);
}

/// H25: a write whose answer was lost is asked again, perhaps after another wrote the same key: it must not be put
/// back.
#[test]
fn h25_a_write_that_comes_again_does_not_write_twice() {
    let mut native = Native::new();
    let session = native.open();
    let (_, token) = native.place(session, shared("m"));
    let first = Command::Native(NativeCommand::Request(NativeRequest {
        session,
        number: 50,
        acknowledged: 0,
        op: write(vec![guard(Kind::Lock, "m", token)], vec![], vec![put("k", "first")]),
    }));
    let outcome = native.machine.command(first.clone());
    native.machine.done(crate::testing::put("k", "second"));
    let again = native.machine.commands(vec![first]);
    assert_eq!((&again.applied[0].outcome, again.events.len()), (&outcome, 0));
    assert_eq!(pairs(&native), [pair("k", "second")]);
}

/// A write that shows as many tokens as it may, of a session that holds as much as it may, must not keep every member busy:
/// thousands of them go into one entry.
#[test]
fn a_write_looks_for_each_of_its_tokens_once_and_in_few_steps() {
    let mut native = Native::new();
    let session = native.open();
    let tokens = native.tokens_after_a_wait(session, "m", NATIVE_HOLDINGS_MAX);
    let mut steps_of = |tokens: &[u64]| {
        let guards = tokens.iter().map(|token| guard(Kind::Lock, "m", *token)).collect();
        let (steps, answer) = steps::of(|| native.ask(session, write(guards, vec![], vec![put("k", "")])));
        assert_eq!(answer, Ok(NativeAnswer::Done));
        steps
    };
    let last = &tokens[NATIVE_HOLDINGS_MAX - NATIVE_WRITE_GUARDS_MAX..];
    let (once, again) = (steps_of(&last[..1]), steps_of(&[last[0]; NATIVE_WRITE_GUARDS_MAX]));
    assert!(again < once + 100, "{once} {again}");
    let each = steps_of(last);
    assert!(each < NATIVE_WRITE_GUARDS_MAX * 5_000, "{once} {each}");
}

/// A1: a lock that one may take gives no right to keys that one may not write, or to read them by conditions.
#[test]
fn a1_a_write_needs_the_rights_to_its_names_and_to_its_keys() {
    let mut native = Native::new();
    let machine = &mut native.machine;
    let text = |text: &str| text.to_owned();
    let auth = |machine: &mut Machine, command| machine.command(Command::Auth(command)).result.unwrap();
    for user in ["root", "ann"] {
        auth(machine, AuthCommand::UserAdd { user: text(user), password_hash: Some(text("hash")) });
    }
    auth(machine, AuthCommand::UserGrantRole { user: text("root"), role: text("root") });
    auth(machine, AuthCommand::RoleAdd { role: text("some") });
    for (prefix, permission) in [("team/", Permission::ReadWrite), ("seen/", Permission::Read)] {
        let range = tidelock_model::KeyRange::prefix(tidelock_model::Space::User, prefix.as_bytes());
        auth(machine, AuthCommand::RoleGrantPermission { role: text("some"), range, permission });
    }
    auth(machine, AuthCommand::UserGrantRole { user: text("ann"), role: text("some") });
    auth(machine, AuthCommand::Enable { token_secret: [7; 32] });
    let ann = Caller::User { name: "ann".into(), auth_revision: machine.state.auth().revision };
    let open = Command::Native(NativeCommand::Open { ttl_ms: 9_000, owner: text("ann") });
    let Ok(Answer::Native(NativeAnswer::Opened { session, .. })) = machine.command_by(ann.clone(), open).result else {
        panic!("not opened");
    };
    let mut number = 0;
    let mut ask = |session: LeaseId, op| {
        number += 1;
        let request = NativeRequest { session, number, acknowledged: number - 1, op };
        machine.command_by(ann.clone(), Command::Native(NativeCommand::Request(request))).result
    };
    let Ok(Answer::Native(NativeAnswer::Place { token, .. })) = ask(session, exclusive("team/m")) else { panic!() };
    let held = || guard(Kind::Lock, "team/m", token);
    let denied = Err(Refusal::Auth(AuthRefusal::Denied));
    let seen = vec![if_changed_at("seen/k", 0)];
    assert!(ask(session, write(vec![held()], seen, vec![put("team/k", "1")])).is_ok());
    for (guards, conditions, change) in [
        (vec![held()], vec![], put("other", "1")),
        (vec![held()], vec![], delete("seen/k")),
        (vec![held()], vec![if_changed_at("other", 0)], put("team/k", "2")),
        (vec![held(), guard(Kind::Fence, "other", token)], vec![], put("team/k", "2")),
    ] {
        assert_eq!(ask(session, write(guards, conditions, vec![change])), denied);
    }
}
