//! The rules of sessions and of requests that come again.

use super::testing::*;
use crate::testing::{Machine, load, pages, proposal};
use tidelock_model::limits::NATIVE_UNACKNOWLEDGED_MAX;
use tidelock_model::{
    Alarm, AlarmKind, Answer, AuthCommand, Batch, Caller, Command, Compare, Errand, Fencing, Kind, LeaseId, LogTime,
    Name, NameFound, NativeAnswer, NativeCommand, NativeError, NativeFound, NativeOp, NativeQuery, NativeRequest,
    NodeId, Outcome, Proposal, Refusal, RequestId, Wire, ZnodeCommand, put_bytes, put_varint,
};

fn request(session: LeaseId, number: u64, acknowledged: u64, op: NativeOp) -> Command {
    Command::Native(NativeCommand::Request(NativeRequest { session, number, acknowledged, op }))
}

fn add_one() -> NativeOp {
    NativeOp::Add { name: name("n"), delta: 1, fencing: None }
}

fn reload(machine: &mut Machine) {
    let head = machine.state.begin_snapshot();
    let loaded = load(&head, pages(&machine.state, &head, 50)).unwrap();
    assert_eq!(loaded.digest(), machine.state.digest());
    machine.state = loaded;
}

/// H25: a client that got no answer asks again, perhaps elsewhere and after a restart: the first answer, word for
/// word, and no second effect. Refusals are answers, too.
#[test]
fn h25_a_request_that_comes_again_gets_the_first_answer_and_has_no_second_effect() {
    let mut native = Native::new();
    let session = native.open();
    let machine = &mut native.machine;
    let first: Vec<Outcome> = [
        request(session, 1, 0, add_one()),
        request(session, 2, 0, exclusive("m")),
        request(session, 3, 0, release(Kind::Lock, "m", 1)),
    ]
    .map(|command| machine.command(command))
    .to_vec();
    assert_eq!(first[2].result, Err(Refusal::Native(NativeError::StaleToken { token: 1 })));
    let revision = machine.state.revision();
    for _ in 0..2 {
        let ops = [add_one(), exclusive("m"), release(Kind::Lock, "m", 1)];
        for (at, (op, outcome)) in ops.into_iter().zip(&first).enumerate() {
            let again = machine.commands(vec![request(session, at as u64 + 1, 0, op)]);
            assert_eq!((&again.applied[0].outcome, again.events.len()), (outcome, 0));
        }
        assert_eq!(machine.state.revision(), revision);
        reload(machine);
    }
    assert_eq!(
        machine.command(request(session, 4, 3, add_one())).result,
        Ok(Answer::Native(NativeAnswer::Counter { before: 1, after: 2 }))
    );
    let forgotten = Err(Refusal::Native(NativeError::RequestForgotten { acknowledged: 3 }));
    for number in [0, 1, 3] {
        assert_eq!(machine.command(request(session, number, 0, add_one())).result, forgotten);
    }
}

/// A client that counts wrongly and takes a number twice must not be told that it holds what it does not hold: the
/// answer to the first request is no answer to the second, and the first can still be asked for.
#[test]
fn h25_another_request_with_a_number_that_was_answered_is_refused() {
    let mut native = Native::new();
    let session = native.open();
    let machine = &mut native.machine;
    let first = machine.command(request(session, 2, 0, exclusive("l")));
    let reused = Err(Refusal::Native(NativeError::NumberReused));
    for _ in 0..2 {
        for op in [exclusive("m"), shared("l"), add_one()] {
            let again = machine.commands(vec![request(session, 2, 0, op)]);
            assert_eq!((&again.applied[0].outcome.result, again.events.len()), (&reused, 0));
        }
        // What a client has acknowledged since is no part of what it asks for.
        assert_eq!(machine.command(request(session, 2, 1, exclusive("l"))), first);
        reload(machine);
    }
    assert_eq!(native.describe(Kind::Lock, "m").count, 0);
}

/// Snapshots of version 4 have answers without a fingerprint: a client that comes back after an upgrade still gets its
/// own.
#[test]
fn an_answer_of_an_older_snapshot_is_given_again() {
    let mut native = Native::new();
    let session = native.open();
    let machine = &mut native.machine;
    let first = machine.command(request(session, 2, 0, exclusive("l")));
    let (_, now) = machine.state.sessions.iter().next().unwrap();
    // Owner, acknowledged, number, length of the answer, and the answer, whose last four bytes it did not have.
    let mut older = now[..now.len() - 4].to_vec();
    older[3] -= 4;
    machine.state.sessions.load(session, &older).unwrap();
    assert_eq!(machine.command(request(session, 2, 0, exclusive("l"))), first);
}

/// Snapshots hold the memory as it lies there and digests cover it: members of different versions must write the same.
#[test]
fn r5_the_memory_of_a_session_has_one_byte_form() {
    let mut native = Native::new();
    let opened = native.machine.command(Command::Native(NativeCommand::Open { ttl_ms: 5000, owner: "ann".into() }));
    let Ok(Answer::Native(NativeAnswer::Opened { session, .. })) = opened.result else { panic!("{opened:?}") };
    let machine = &mut native.machine;
    let asked = [(2, 0), (3, 0), (700, 1), (5, 0), (900, 2)];
    let answers = asked.map(|(number, acknowledged)| {
        let outcome = machine.command(request(session, number, acknowledged, add_one()));
        let fingerprint = xxhash_rust::xxh3::xxh3_64(&add_one().to_bytes()) as u32;
        (number, [outcome.to_bytes(), fingerprint.to_le_bytes().to_vec()].concat())
    });
    let mut expected = b"\x03ann\x02".to_vec();
    for (number, answer) in answers.into_iter().filter(|(number, _)| *number > 2) {
        put_varint(&mut expected, number - 2);
        put_bytes(&mut expected, &answer);
    }
    let (_, kept) = machine.state.sessions.iter().next().unwrap();
    assert_eq!(kept, expected);
    reload(machine);
    assert_eq!(machine.state.native_owner(session).as_deref(), Some("ann"));
}

/// The memory for retries is bounded, and never forgets an answer that the client may not have.
#[test]
fn a_client_that_acknowledges_nothing_is_refused_more_and_nothing_is_done_twice() {
    let mut native = Native::new();
    let session = native.open();
    let machine = &mut native.machine;
    for number in 1..=NATIVE_UNACKNOWLEDGED_MAX as u64 {
        machine.command(request(session, number * 2, 0, add_one())).result.unwrap();
    }
    let next = NATIVE_UNACKNOWLEDGED_MAX as u64 * 2 + 1;
    let full = Err(Refusal::Native(NativeError::TooManyUnacknowledged));
    assert_eq!(machine.command(request(session, next, 0, add_one())).result, full);
    let again = machine.command(request(session, 2, 0, add_one())).result;
    assert_eq!(again, Ok(Answer::Native(NativeAnswer::Counter { before: 0, after: 1 })));
    // Requests under way at once may arrive in any order, as long as none is acknowledged that did not.
    let late = machine.command(request(session, next, 4, add_one())).result;
    let count = NATIVE_UNACKNOWLEDGED_MAX as i64;
    assert_eq!(late, Ok(Answer::Native(NativeAnswer::Counter { before: count, after: count + 1 })));
    assert!(machine.command(request(session, 5, 4, add_one())).result.is_ok());
}

/// S2: closed is final. Nothing is done for a session that is over or never was, and its id does not come back.
#[test]
fn s2_a_session_that_is_over_stays_over() {
    let mut native = Native::new();
    let session = native.open();
    native.place(session, exclusive("m"));
    native.close(session).unwrap();
    assert_eq!(native.ask(session, exclusive("m")), Err(NativeError::UnknownSession));
    assert_eq!(native.ask(LeaseId(5), exclusive("m")), Err(NativeError::UnknownSession));
    assert_eq!(native.describe(Kind::Lock, "m").count, 0);
    assert_ne!(native.open(), session);
    native.machine.grant(77);
    assert_eq!(native.ask(LeaseId(77), exclusive("m")), Err(NativeError::UnknownSession), "a lease is not a session");
}

/// A time to live of nothing, or of a year, is a mistake that must not become a lock held for a year.
#[test]
fn a_time_to_live_out_of_range_is_refused() {
    let mut native = Native::new();
    for ttl_ms in [0, 999, 24 * 60 * 60 * 1000 + 1, u32::MAX] {
        let open = NativeCommand::Open { ttl_ms, owner: String::new() };
        assert_eq!(native.command(open), Err(NativeError::TtlOutOfRange));
    }
    let open = NativeCommand::Open { ttl_ms: 1_001, owner: String::new() };
    let Ok(NativeAnswer::Opened { session, ttl_ms: 1_001 }) = native.command(open) else { panic!() };
    assert_eq!(native.machine.state.lease(session).unwrap().ttl_s, 2, "late is allowed, early never (L1)");
}

/// Opening again after a lost answer must not leave a second session behind.
#[test]
fn an_open_that_comes_again_gets_the_same_session() {
    let mut machine = Machine::new();
    let mut open = |number| {
        let command = Command::Native(NativeCommand::Open { ttl_ms: 5_000, owner: String::new() });
        let mut proposal = proposal(number, command);
        proposal.request = Some(RequestId { client: 9, number: 1 });
        machine.entry(vec![proposal]).applied.remove(0).outcome
    };
    assert_eq!(open(1), open(2));
    assert_eq!(machine.state.lease_count(), 1);
}

/// H25: the answer to a close may be lost like any other, and who asks again must be told the same: it is over. An id
/// that was never given out is a mistake all the same, and so is that of a lease.
#[test]
fn h25_a_session_that_is_closed_again_is_over_and_one_that_never_was_is_unknown() {
    let mut native = Native::new();
    let (session, other) = (native.open(), native.open());
    assert_eq!(native.close(session), Ok(NativeAnswer::Done));
    let revision = native.machine.state.revision();
    assert_eq!(native.close(session), Ok(NativeAnswer::Done));
    reload(&mut native.machine);
    assert_eq!(native.close(session), Ok(NativeAnswer::Done));
    assert_eq!(native.machine.state.revision(), revision);
    native.machine.grant(77);
    for unknown in [LeaseId(0), LeaseId(77), LeaseId(-1), LeaseId(session.0 + (1 << 40)), LeaseId(i64::MAX)] {
        assert_eq!(native.close(unknown), Err(NativeError::UnknownSession), "{unknown:?}");
    }
    assert!(native.ask(other, exclusive("m")).is_ok());
}

/// A client that comes back with its number after its session ended needs a session that lives; told of the dead one it
/// would be refused everything.
#[test]
fn an_open_that_comes_again_after_the_session_ended_opens_another() {
    let mut machine = Machine::new();
    let open = |machine: &mut Machine, number| {
        let command = Command::Native(NativeCommand::Open { ttl_ms: 5_000, owner: String::new() });
        let mut proposal = proposal(number, command);
        proposal.request = Some(RequestId { client: 9, number: 0 });
        match machine.entry(vec![proposal]).applied.remove(0).outcome.result {
            Ok(Answer::Native(NativeAnswer::Opened { session, .. })) => session,
            other => panic!("{other:?}"),
        }
    };
    let first = open(&mut machine, 100);
    machine.command(Command::Native(NativeCommand::Close { session: first })).result.unwrap();
    let second = open(&mut machine, 101);
    assert_ne!(second, first);
    assert_eq!(open(&mut machine, 102), second);
    assert_eq!(machine.state.lease_count(), 1);
}

/// Operators ask who holds what, and who waits behind whom; lists come in pieces.
#[test]
fn what_is_held_is_told_in_pages() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m/1"));
    native.place(b, exclusive("m/1"));
    for lock in ["m/2", "m/3", "other"] {
        native.place(a, shared(lock));
    }
    let NativeFound::Names { names, more } =
        native.read(NativeQuery::Names { kind: Kind::Lock, prefix: "m/".into(), after: None, limit: 2, members: 0 })
    else {
        panic!()
    };
    let shown: Vec<_> = names.iter().map(|found| (found.name.as_str(), found.members)).collect();
    assert_eq!((shown, more), (vec![("m/1", 2), ("m/2", 1)], true));
    let (kind, after) = (Kind::Lock, Some(name("m/2")));
    let rest = NativeQuery::Names { kind, prefix: "m/".into(), after, limit: 9, members: 0 };
    assert!(matches!(native.read(rest), NativeFound::Names { names, more: false } if names.len() == 1));
    let described = native.describe(Kind::Lock, "m/1");
    let queue: Vec<_> =
        described.members.iter().map(|member| (member.session, member.queued.as_ref().unwrap().token)).collect();
    assert_eq!((queue, described.count), (vec![(a, token), (b, 0)], 2));
    let NativeFound::Sessions(sessions) =
        native.read(NativeQuery::Sessions { after: LeaseId(0), limit: 9, holdings: 3 })
    else {
        panic!()
    };
    assert_eq!((sessions[0].session, sessions[0].holdings.len(), sessions[0].count), (a, 3, 4));
    assert_eq!((sessions[1].session, sessions[1].holdings.len(), sessions[1].count), (b, 0, 1));
    let NativeFound::Sessions(one) = native.read(NativeQuery::Session { session: b, skip: 0, holdings: 9 }) else {
        panic!()
    };
    assert_eq!((one[0].holdings[0].name.as_str(), one[0].holdings[0].token), ("m/1", 0));
}

/// Whoever looks at ten thousand locks asks a few questions, not one for each; and no answer grows beyond its bound.
#[test]
fn names_are_told_with_their_first_members_in_bounded_pages() {
    let mut native = Native::new();
    let sessions: Vec<LeaseId> = (0..3).map(|_| native.open()).collect();
    for at in 0..400 {
        for session in &sessions {
            native.place(*session, shared(&format!("m/{at:03}")));
        }
    }
    let page = |after: Option<Name>, members| {
        let query = NativeQuery::Names { kind: Kind::Lock, prefix: "m/".into(), after, limit: 1000, members };
        match native.read(query) {
            NativeFound::Names { names, more } => (names, more),
            other => panic!("{other:?}"),
        }
    };
    let (first, more) = page(None, 5);
    let whole = |found: &[NameFound]| found.iter().all(|one| one.first.len() == 3 && one.members == 3);
    assert!(whole(&first) && (first.len(), more) == (333, true), "a thousand members at most");
    let (rest, more) = page(Some(first[332].name.clone()), 5);
    assert!(whole(&rest) && (rest.len(), more) == (67, false));
    let (names, _) = page(None, 2);
    assert!(names.iter().all(|one| one.first.iter().map(|member| member.session).eq(sessions[..2].iter().copied())));
    let asked = vec![sessions[2], LeaseId(5), sessions[0]];
    let NativeFound::Sessions(some) = native.read(NativeQuery::SomeSessions { sessions: asked, holdings: 2 }) else {
        panic!()
    };
    let told: Vec<_> = some.iter().map(|one| (one.session, one.holdings.len(), one.count)).collect();
    assert_eq!(told, [(sessions[2], 2, 400), (sessions[0], 0, 400)]);
}

/// Two replicas that carry out the same log have the same digest after every entry (R5), with everything in it.
#[test]
fn r5_replicas_of_one_log_agree() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let mut replica = crate::State::new();
    let mut log = Vec::new();
    for number in 1..=40u64 {
        let op = match number % 5 {
            0 => shared("m"),
            1 => exclusive("m"),
            2 => enter("b", 2, false, tidelock_model::OnDeath::Shrink),
            3 => register("p", 1, None),
            _ => add_one(),
        };
        log.push(request(if number % 2 == 0 { a } else { b }, number, number.saturating_sub(4), op));
    }
    log.insert(30, Command::Native(NativeCommand::Close { session: a }));
    let open = Command::Native(NativeCommand::Open { ttl_ms: 10_000, owner: String::new() });
    let log = [vec![open.clone(), open], log].concat();
    let mut first = crate::State::new();
    for (at, command) in log.into_iter().enumerate() {
        let index = tidelock_model::LogIndex(at as u64 + 1);
        let batch = Batch { at: LogTime(at as u64), proposals: vec![proposal(at as u64 + 1, command)] };
        let one = first.apply(index, crate::testing::TERM, batch.clone());
        assert_eq!(one, replica.apply(index, crate::testing::TERM, batch));
        assert_eq!(first.digest(), replica.digest());
        assert_eq!(first.live_sum, first.recompute_live_sum());
        if at % 7 == 0 {
            let head = replica.begin_snapshot();
            replica = load(&head, pages(&replica, &head, 100)).unwrap();
        }
    }
}

/// Users are asked for from now on: root, and ann and bob, who may write what begins with `team/`. Gives callers by
/// their names.
fn with_users(machine: &mut Machine) -> impl Fn(&str) -> Caller + use<> {
    let text = |text: &str| text.to_owned();
    let auth = |machine: &mut Machine, command| machine.command(Command::Auth(command)).result.unwrap();
    for user in ["root", "ann", "bob"] {
        auth(machine, AuthCommand::UserAdd { user: text(user), password_hash: Some(text("hash")) });
    }
    auth(machine, AuthCommand::UserGrantRole { user: text("root"), role: text("root") });
    auth(machine, AuthCommand::RoleAdd { role: text("some") });
    let range = tidelock_model::KeyRange::prefix(tidelock_model::Space::User, b"team/");
    let permission = tidelock_model::Permission::ReadWrite;
    auth(machine, AuthCommand::RoleGrantPermission { role: text("some"), range, permission });
    for user in ["ann", "bob"] {
        auth(machine, AuthCommand::UserGrantRole { user: text(user), role: text("some") });
    }
    auth(machine, AuthCommand::Enable { token_secret: [7; 32] });
    let auth_revision = machine.state.auth().revision;
    move |name| Caller::User { name: name.into(), auth_revision }
}

/// A1: who may not write a name's key may not lock it, and nobody acts in another's session; root may do both.
#[test]
fn a1_names_and_sessions_have_owners_when_users_are_asked_for() {
    let mut native = Native::new();
    let machine = &mut native.machine;
    let user = with_users(machine);
    let denied = Err(Refusal::Auth(tidelock_model::AuthRefusal::Denied));

    let open = |owner: &str| Command::Native(NativeCommand::Open { ttl_ms: 9_000, owner: owner.to_owned() });
    assert_eq!(machine.command_by(user("bob"), open("ann")).result, denied);
    let Ok(Answer::Native(NativeAnswer::Opened { session, .. })) = machine.command_by(user("ann"), open("ann")).result
    else {
        panic!("not opened");
    };
    let lock = |number, name| request(session, number, 0, exclusive(name));
    assert!(machine.command_by(user("ann"), lock(1, "team/a")).result.is_ok());
    assert_eq!(machine.command_by(user("ann"), lock(2, "other")).result, denied);
    assert_eq!(machine.command_by(user("bob"), lock(2, "team/b")).result, denied);
    assert!(machine.command_by(user("root"), lock(2, "other")).result.is_ok());
    let fencing = Fencing { fence: name("other"), token: 1 };
    let fenced = crate::testing::txn(vec![Compare::admits(&fencing)], vec![], vec![]);
    assert_eq!(machine.command_by(user("ann"), Command::Write(fenced)).result, denied);
    let keeps = |caller: &Caller| machine.state.authorise(caller, |needs| Errand::KeepAlive(session).needs(needs));
    assert_eq!((keeps(&user("ann")).is_ok(), keeps(&user("bob")).is_ok()), (true, false));
    let close = Command::Native(NativeCommand::Close { session });
    assert_eq!(machine.command_by(user("bob"), close.clone()).result, denied);
    assert!(machine.command_by(user("ann"), close).result.is_ok());
}

/// A1: a client that counts its numbers from one meets others who do. It must not learn of their sessions, nor take their
/// number from them: the one who had it first asks again and gets its own.
#[test]
fn a1_an_open_with_anothers_number_tells_nothing_of_their_session() {
    let mut machine = Machine::new();
    let user = with_users(&mut machine);
    let open = |machine: &mut Machine, caller: Caller, number| {
        let owner = match &caller {
            Caller::User { name, .. } => name.to_string(),
            _ => String::new(),
        };
        let command = Command::Native(NativeCommand::Open { ttl_ms: 5_000, owner });
        let request = Some(RequestId { client: 1, number: 0 });
        machine.entry(vec![Proposal { request, caller, ..proposal(number, command) }]).applied.remove(0).outcome.result
    };
    let first = open(&mut machine, user("ann"), 101);
    assert!(matches!(&first, Ok(Answer::Native(NativeAnswer::Opened { .. }))), "{first:?}");
    for number in [102, 103] {
        let refused = Err(Refusal::Native(NativeError::NumberReused));
        assert_eq!(open(&mut machine, user("bob"), number), refused);
    }
    assert_eq!(open(&mut machine, user("ann"), 104), first);
    assert_eq!(open(&mut machine, user("root"), 105), first, "root may use whatever there is");
    assert_eq!(machine.state.lease_count(), 1);
}

/// A full disk must not keep anybody from giving back, and data that cannot be trusted is not changed by clients.
#[test]
fn alarms_stop_taking_before_giving_back() {
    let mut native = Native::new();
    let session = native.open();
    let (_, token) = native.place(session, exclusive("m"));
    let set = |kind, raised| Command::SetAlarm { alarm: Alarm { member: NodeId(9), kind }, raised };
    let machine = &mut native.machine;
    machine.command(set(AlarmKind::NoSpace, true)).result.unwrap();
    assert_eq!(machine.command(request(session, 2, 1, exclusive("n"))).result, Err(Refusal::NoSpace));
    machine.command(set(AlarmKind::Corrupt, true)).result.unwrap();
    assert_eq!(machine.command(request(session, 2, 1, release(Kind::Lock, "m", token))).result, Err(Refusal::Corrupt));
    machine.command(set(AlarmKind::Corrupt, false)).result.unwrap();
    // A refusal of that sort is not the request's answer: it is carried out when it comes again.
    assert!(machine.command(request(session, 2, 1, release(Kind::Lock, "m", token))).result.is_ok());
}

/// A client that asks again for its session once there is space must get one: what an alarm refused was never looked at.
#[test]
fn an_open_that_an_alarm_refused_is_carried_out_when_it_comes_again() {
    for (kind, refusal) in [(AlarmKind::NoSpace, Refusal::NoSpace), (AlarmKind::Corrupt, Refusal::Corrupt)] {
        let mut machine = Machine::new();
        let set = |raised| Command::SetAlarm { alarm: Alarm { member: NodeId(9), kind }, raised };
        let open = |machine: &mut Machine, number| {
            let command = Command::Native(NativeCommand::Open { ttl_ms: 5_000, owner: String::new() });
            let request = Some(RequestId { client: 9, number: 0 });
            machine.entry(vec![Proposal { request, ..proposal(number, command) }]).applied.remove(0).outcome.result
        };
        machine.command(set(true)).result.unwrap();
        assert_eq!(open(&mut machine, 100), Err(refusal));
        machine.command(set(false)).result.unwrap();
        let opened = open(&mut machine, 101);
        assert!(matches!(opened, Ok(Answer::Native(NativeAnswer::Opened { .. }))), "{opened:?}");
        assert_eq!((open(&mut machine, 102), machine.state.lease_count()), (opened, 1));
    }
}

/// Backups hold leases and no sessions. A lease that is left out has its keys stay for ever where the backup is restored,
/// and one in 128 that etcd's clients have draws an id like a session's.
#[test]
fn a_lease_is_told_from_a_session_by_what_it_is_and_not_by_its_id() {
    let mut native = Native::new();
    let (first, second) = (native.open(), native.open());
    let machine = &mut native.machine;
    let like_native = [first.0 - 1, second.0 + 1, second.0 | 1 << 50];
    let znodes = Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 4_000 });
    let Ok(Answer::Session(znodes)) = machine.command(znodes).result else { panic!("a session") };
    let like_znodes = [znodes.session.0 - 1, znodes.session.0 + 1];
    let mut leases = [&[-7, 5][..], &like_native, &like_znodes].concat();
    leases.iter().for_each(|id| machine.grant(*id));
    leases.sort_unstable();
    assert_eq!(machine.state.leases().count(), leases.len() + 3);
    assert_eq!(machine.state.leases_without_session().map(|(id, _)| id.0).collect::<Vec<_>>(), leases);
}
