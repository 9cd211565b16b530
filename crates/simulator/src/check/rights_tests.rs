use tidelock_model::{Key, KeyRange, Role, Space, User};

use super::*;
use crate::check::testing::{Maker, damaged, get_op, put_op, run};

fn violations(history: &History) -> Vec<&'static str> {
    run(history, "rights")
}

/// Checks are on, and ann may do this with keys from `a` to before `b`; nothing if `None`.
fn rights(revision: u64, ann: Option<Permission>) -> Arc<Auth> {
    let mut auth = Auth::default();
    (auth.enabled, auth.revision) = (true, revision);
    let key = |name: &str| Key::new(Space::User, name.as_bytes());
    auth.change(|users, roles| {
        let has = ann.map(|_| "some".to_owned());
        users.insert("ann".into(), User { roles: has.into_iter().collect(), ..User::default() });
        if let Some(permission) = ann {
            // Two that touch add up.
            let ranges = [("a", "a5"), ("a5", "b")].map(|(start, end)| KeyRange { start: key(start), end: key(end) });
            roles.insert("some".into(), Role { permissions: ranges.map(|range| (range, permission)).into() });
        }
    });
    Arc::new(auth)
}

/// A history in which users and roles change.
struct Guarded {
    maker: Maker,
    index: u64,
}

impl Guarded {
    /// Checks are on since before revision 2; ann may do everything with her keys.
    fn new() -> Guarded {
        let mut guarded = Guarded { maker: Maker::new(), index: 0 };
        guarded.change(rights(2, Some(Permission::ReadWrite)));
        guarded.acknowledge();
        guarded
    }

    fn revision(&self) -> u64 {
        self.maker.history.ledger.changes.last_key_value().map_or(1, |(revision, _)| *revision as u64)
    }

    /// The change is an entry of its own.
    fn change(&mut self, auth: Arc<Auth>) {
        let revision = Revision(self.revision());
        self.change_within(revision, auth);
    }

    /// The change is in one entry with all writes since `before`.
    fn change_within(&mut self, before: Revision, auth: Arc<Auth>) {
        self.index += 10;
        let (index, revision) = (LogIndex(self.index), Revision(self.revision()));
        self.maker.observe(Observation::AuthChanged { index, before, revision, auth });
    }

    fn acknowledge(&mut self) {
        self.maker.observe(Observation::AuthAcknowledged { index: LogIndex(self.index) });
    }

    /// Ann asks, and it is done.
    fn ann(&mut self, auth_revision: u64, request: Request) -> usize {
        let index = self.maker.ask(1, request);
        self.maker.history.operations[index].asker = Some(Asker { user: "ann".into(), auth_revision });
        index
    }

    fn put(&mut self, auth_revision: u64, key: &str, value: &str) -> usize {
        self.ann(auth_revision, Request::Op(put_op(key, value)))
    }

    fn get(&mut self, auth_revision: u64, key: &str, serializable: bool) -> usize {
        let get = Op::Get { key: key.into(), end: None, at: 0, serializable };
        self.ann(auth_revision, Request::Op(get))
    }

    fn violations(self) -> Vec<&'static str> {
        violations(&self.maker.done())
    }
}

#[test]
fn what_is_allowed_passes() {
    let mut run = Guarded::new();
    run.put(2, "a", "1");
    run.get(2, "a", false);
    run.ann(2, Request::Op(get_op("a", Some("b"), 0)));
    // Others are nobody's business.
    run.maker.put(2, "z", "2");
    run.change(rights(3, Some(Permission::Read)));
    run.acknowledge();
    run.get(3, "a", false);
    let mut off = (*rights(4, None)).clone();
    off.enabled = false;
    run.change(Arc::new(off));
    run.put(1, "z", "3");
    assert_eq!(run.violations(), [] as [&str; 0]);
}

/// The plainest break-in: keys that nobody gave the user.
#[test]
fn a_request_outside_of_what_was_granted_is_caught() {
    for request in [
        Request::Op(put_op("b", "1")),
        Request::Op(get_op("b", None, 0)),
        Request::Op(get_op("a", Some("b0"), 0)),
        // The branch that is not taken, and what is only compared.
        Request::Txn { compares: vec![], then: vec![put_op("a", "1")], otherwise: vec![get_op("c", None, 0)] },
        Request::Txn {
            compares: vec![Compare::VersionIs("c".into(), 0)],
            then: vec![put_op("a", "1")],
            otherwise: vec![],
        },
    ] {
        let mut run = Guarded::new();
        run.ann(2, request.clone());
        assert_eq!(run.violations(), ["A1"], "{request:?}");
    }
}

#[test]
fn a_write_after_the_right_was_revoked_is_caught() {
    for less in [None, Some(Permission::Read)] {
        let mut run = Guarded::new();
        run.put(2, "a", "1");
        run.change(rights(3, less));
        run.put(3, "a", "2");
        assert_eq!(run.violations(), ["A1"]);
    }
}

/// A write whose client gave up happened all the same.
#[test]
fn a_write_without_a_right_is_caught_even_if_nobody_was_told() {
    let mut run = Guarded::new();
    let lost = run.put(2, "b", "1");
    run.maker.unanswered(lost);
    assert_eq!(run.violations(), ["A1"]);
}

/// A proof from before a change says nothing about now, even if the right is still there.
#[test]
fn an_old_proof_that_counts_is_caught() {
    let mut run = Guarded::new();
    run.maker.put(2, "z", "0");
    run.change(rights(3, Some(Permission::ReadWrite)));
    run.put(2, "a", "1");
    run.get(2, "a", true);
    assert_eq!(run.violations(), ["A1", "A1"]);
}

/// What was answered while the change was being made may have come before it; what was asked after the change
/// was acknowledged did not. Serializable reads may be behind, but not at a revision that came later.
#[test]
fn a_read_after_an_acknowledged_change_is_caught() {
    for (acknowledged, serializable, expected) in
        [(false, false, &[][..]), (true, false, &["A1"][..]), (true, true, &[][..])]
    {
        let mut run = Guarded::new();
        run.put(2, "a", "1");
        run.change(rights(3, None));
        if acknowledged {
            run.acknowledge();
        }
        run.get(2, "a", serializable);
        assert_eq!(run.violations(), expected, "{acknowledged} {serializable}");
    }
    let mut run = Guarded::new();
    run.change(rights(3, None));
    run.maker.put(2, "z", "1");
    run.get(2, "a", true);
    assert_eq!(run.violations(), ["A1"]);
}

/// In which order an entry did what it holds is not recorded, so both are believed; what came before it or after
/// it is not excused.
#[test]
fn a_write_in_the_entry_of_a_change_may_have_come_before_or_after() {
    let mut run = Guarded::new();
    run.put(2, "a", "1"); // 2
    run.put(2, "a", "2"); // 3
    run.change_within(Revision(2), rights(3, None));
    assert_eq!(run.violations(), [] as [&str; 0]);
    let mut run = Guarded::new();
    run.maker.put(2, "z", "0"); // 2
    run.put(2, "b", "1"); // 3
    run.change_within(Revision(2), rights(3, None));
    assert_eq!(run.violations(), ["A1"]);
    // More than one change: what was in between is unknown.
    let mut run = Guarded::new();
    run.put(2, "b", "1"); // 2
    run.change_within(Revision(1), rights(4, None));
    assert_eq!(run.violations(), [] as [&str; 0]);
}

/// Ann watches; she loses the right, and may get it back.
fn watched(regained: bool) -> History {
    let mut run = Guarded::new();
    let watch = run.maker.watch(1, "a", Some("b"), 0);
    run.maker.history.watches[watch].user = Some("ann".into());
    run.put(2, "a", "1");
    run.maker.tell(watch);
    run.change(rights(3, None));
    run.maker.put(2, "a", "2");
    if regained {
        run.change(rights(4, Some(Permission::Read)));
    }
    run.maker.tell(watch);
    run.maker.done()
}

/// What came before the right was lost may still be told; what came later may not, until the right is back.
#[test]
fn a_watcher_that_goes_on_after_its_user_lost_the_right_is_caught() {
    assert_eq!(violations(&watched(true)), [] as [&str; 0]);
    assert_eq!(violations(&watched(false)), ["A1"]);
    let history = damaged(watched(false), |history| drop(history.watches[0].notices.pop()));
    assert_eq!(violations(&history), [] as [&str; 0]);
}

/// A user that was deleted has no rights, and one with the role root has all.
#[test]
fn rights_are_those_of_the_roles_a_user_has() {
    let mut run = Guarded::new();
    let mut deleted = (*rights(3, Some(Permission::ReadWrite))).clone();
    deleted.change(|users, _| users.clear());
    run.change(Arc::new(deleted));
    run.put(3, "a", "1");
    assert_eq!(run.violations(), ["A1"]);
    let mut run = Guarded::new();
    let mut root = (*rights(3, None)).clone();
    root.change(|users, _| users.get_mut("ann").map(|ann| ann.roles.insert(ROOT.into())));
    run.change(Arc::new(root));
    run.put(3, "z", "1");
    assert_eq!(run.violations(), [] as [&str; 0]);
}
