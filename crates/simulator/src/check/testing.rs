//! Makes histories by hand: a store of a few lines carries out what a test asks, one request after the
//! other, and everything is recorded as it would be of a cluster of three nodes that agree. Tests then
//! break what was recorded.

use std::collections::BTreeMap;

use tidelock_model::{LogIndex, NodeId, Revision, Term};

use super::replay::{Replay, contains};
use super::{CHECKERS, Prepared};
use crate::history::{
    Answer, Change, Compare, Content, History, Kv, Micros, Notice, Observation, Op, Operation, Request, Stamp, Told,
    WatchEvent, WatchLog,
};

/// Time a request takes to arrive, and as long again until its answer does.
const ON_THE_WAY: Micros = 1_000;
/// Room between two moments, so that tests can put something there.
const ORDER_STEP: u64 = 10;

/// The invariants that a checker finds broken.
pub(crate) fn run(history: &History, checker: &str) -> Vec<&'static str> {
    let checker = CHECKERS.iter().find(|known| known.name == checker).expect("the checker is registered");
    checker.check(&Prepared::new(history)).iter().map(|violation| violation.invariant).collect()
}

pub(crate) fn stamp(order: u64) -> Stamp {
    Stamp { order, at: order }
}

pub(crate) fn kv(key: &str, value: &str, created: i64, modified: i64, version: i64) -> Kv {
    Kv { key: key.into(), value: value.into(), created, modified, version, lease: 0 }
}

pub(crate) fn put_op(key: &str, value: &str) -> Op {
    Op::Put { key: key.into(), value: value.into(), lease: 0 }
}

pub(crate) fn delete_op(key: &str, end: Option<&str>) -> Op {
    Op::Delete { key: key.into(), end: end.map(Into::into) }
}

pub(crate) fn get_op(key: &str, end: Option<&str>, at: i64) -> Op {
    Op::Get { key: key.into(), end: end.map(Into::into), at, serializable: false }
}

/// The answer of a request, to be broken.
pub(crate) fn answer_mut(history: &mut History, index: usize) -> &mut Answer {
    match &mut history.operations[index].result {
        Told::Answer(answer) => answer,
        other => panic!("not answered: {other:?}"),
    }
}

pub(crate) fn damaged(mut history: History, damage: impl FnOnce(&mut History)) -> History {
    damage(&mut history);
    history
}

/// A history in the making.
pub(crate) struct Maker {
    pub(crate) history: History,
    now: Stamp,
    index: u64,
    revision: i64,
    keys: BTreeMap<String, Kv>,
    leases: BTreeMap<i64, i64>,
    /// The next revision to tell each watcher.
    next: Vec<i64>,
}

impl Maker {
    pub(crate) fn new() -> Maker {
        let mut maker = Maker {
            history: History::default(),
            now: stamp(0),
            index: 0,
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            next: Vec::new(),
        };
        maker.history.bounds.election = 1_000_000;
        (1..=3).for_each(|node| maker.observe(Observation::Started { node: NodeId(node), boot: node }));
        maker.observe(Observation::Leads { node: NodeId(1), term: Term(1) });
        maker
    }

    /// The history, which ends now.
    pub(crate) fn done(mut self) -> History {
        self.applied();
        self.history.bounds.ended = Some(self.moment());
        self.history
    }

    fn moment(&mut self) -> Stamp {
        self.now.order += ORDER_STEP;
        self.now
    }

    pub(crate) fn wait(&mut self, micros: Micros) {
        self.now.at += micros;
    }

    pub(crate) fn wait_until(&mut self, at: Micros) {
        assert!(at >= self.now.at, "time does not go back");
        self.now.at = at;
    }

    pub(crate) fn heal(&mut self) {
        self.history.bounds.healed = Some(self.moment());
    }

    pub(crate) fn observe(&mut self, observation: Observation) {
        let stamp = self.moment();
        self.history.observations.push((stamp, observation));
    }

    fn applied(&mut self) {
        self.index += 1;
        let (index, revision) = (LogIndex(self.index), Revision(self.revision as u64));
        for node in 1..=3 {
            let digest = u128::from(self.index) * 7;
            self.observe(Observation::Applied { node: NodeId(node), boot: node, index, digest, revision });
        }
    }

    /// Asks, carries out and answers.
    pub(crate) fn ask(&mut self, client: u32, request: Request) -> usize {
        self.wait(ON_THE_WAY);
        let called = self.moment();
        let (content, changes) = self.carry_out(&request);
        if !changes.is_empty() {
            self.revision += 1;
            self.history.ledger.changes.insert(self.revision, changes);
        }
        if !matches!(content, Content::Get { .. }) {
            self.applied();
        }
        self.observe_lease(&request);
        self.wait(ON_THE_WAY);
        let returned = Some(self.moment());
        let revision = if matches!(content, Content::KeptAlive { .. }) { 0 } else { self.revision };
        let result = Told::Answer(Answer { revision, term: 1, content });
        let node = NodeId(u64::from(client - 1) % 3 + 1);
        self.history.operations.push(Operation { client, node, called, returned, asker: None, request, result });
        self.history.operations.len() - 1
    }

    /// Asks in vain.
    pub(crate) fn never_happened(&mut self, client: u32, request: Request) -> usize {
        let called = self.moment();
        let returned = Some(self.moment());
        let result = Told::Unknown("timeout".into());
        let node = NodeId(u64::from(client - 1) % 3 + 1);
        self.history.operations.push(Operation { client, node, called, returned, asker: None, request, result });
        self.history.operations.len() - 1
    }

    /// What was carried out was not answered.
    pub(crate) fn unanswered(&mut self, index: usize) {
        self.history.operations[index].result = Told::Unknown("timeout".into());
    }

    pub(crate) fn put(&mut self, client: u32, key: &str, value: &str) -> usize {
        self.ask(client, Request::Op(put_op(key, value)))
    }

    pub(crate) fn put_leased(&mut self, client: u32, key: &str, value: &str, lease: i64) -> usize {
        self.ask(client, Request::Op(Op::Put { key: key.into(), value: value.into(), lease }))
    }

    pub(crate) fn get(&mut self, client: u32, key: &str, end: Option<&str>, serializable: bool) -> usize {
        self.ask(client, Request::Op(Op::Get { key: key.into(), end: end.map(Into::into), at: 0, serializable }))
    }

    pub(crate) fn delete(&mut self, client: u32, key: &str, end: Option<&str>) -> usize {
        self.ask(client, Request::Op(delete_op(key, end)))
    }

    pub(crate) fn txn(&mut self, client: u32, compares: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> usize {
        self.ask(client, Request::Txn { compares, then, otherwise })
    }

    pub(crate) fn grant(&mut self, client: u32, lease: i64, ttl_s: i64) -> usize {
        self.ask(client, Request::Grant { lease, ttl_s })
    }

    pub(crate) fn revoke(&mut self, client: u32, lease: i64) -> usize {
        self.ask(client, Request::Revoke { lease })
    }

    pub(crate) fn keep_alive(&mut self, client: u32, lease: i64) -> usize {
        self.ask(client, Request::KeepAlive { lease })
    }

    /// Leases run out together.
    pub(crate) fn expire(&mut self, leases: &[i64]) {
        let changes = self.end_leases(leases);
        if !changes.is_empty() {
            self.revision += 1;
            self.history.ledger.changes.insert(self.revision, changes);
        }
        let revision = Revision(self.revision as u64);
        leases.iter().for_each(|lease| self.observe(Observation::LeaseEnded { lease: *lease, revision }));
        self.applied();
    }

    fn end_leases(&mut self, leases: &[i64]) -> Vec<Change> {
        self.leases.retain(|lease, _| !leases.contains(lease));
        let owned = self.keys.values().filter(|kv| leases.contains(&kv.lease)).map(|kv| kv.key.clone());
        let gone: Vec<Change> = owned.map(|key| Change { key, became: None }).collect();
        gone.iter().for_each(|change| drop(self.keys.remove(&change.key)));
        gone
    }

    fn observe_lease(&mut self, request: &Request) {
        let revision = Revision(self.revision as u64);
        match *request {
            Request::Grant { lease, ttl_s } => self.observe(Observation::LeaseGranted { lease, ttl_s }),
            Request::Revoke { lease } => self.observe(Observation::LeaseEnded { lease, revision }),
            _ => {}
        }
    }

    fn carry_out(&mut self, request: &Request) -> (Content, Vec<Change>) {
        let mut changes = Vec::new();
        let content = match request {
            Request::Op(op) => self.op(op, &mut changes),
            Request::Txn { compares, then, otherwise } => {
                let succeeded = compares.iter().all(|compare| self.holds(compare));
                let ops = if succeeded { then } else { otherwise };
                let answers = ops.iter().map(|op| self.op(op, &mut changes)).collect();
                Content::Txn { succeeded, answers }
            }
            Request::Compact { .. } => Content::Compacted,
            Request::Grant { lease, ttl_s } => {
                self.leases.insert(*lease, *ttl_s);
                Content::Granted
            }
            Request::Revoke { lease } => {
                changes = self.end_leases(&[*lease]);
                Content::Revoked
            }
            Request::KeepAlive { lease } => Content::KeptAlive { ttl_s: self.leases.get(lease).copied() },
        };
        (content, changes)
    }

    fn holds(&self, compare: &Compare) -> bool {
        let get = |key: &String| self.keys.get(key);
        match compare {
            Compare::ValueIs(key, value) => get(key).is_some_and(|kv| kv.value == *value),
            Compare::ModifiedAt(key, at) => get(key).map_or(0, |kv| kv.modified) == *at,
            Compare::VersionIs(key, version) => get(key).map_or(0, |kv| kv.version) == *version,
            Compare::Admits(..) | Compare::Holds { .. } => {
                panic!("there are no fences and places here; `native_tests.rs` has them")
            }
        }
    }

    fn op(&mut self, op: &Op, changes: &mut Vec<Change>) -> Content {
        let revision = self.revision + 1;
        match op {
            Op::Put { key, value, lease } => {
                let previous = self.keys.get(key).cloned();
                let (created, version) = previous.as_ref().map_or((revision, 1), |kv| (kv.created, kv.version + 1));
                let new = Kv { lease: *lease, ..kv(key, value, created, revision, version) };
                self.keys.insert(key.clone(), new.clone());
                changes.push(Change { key: key.clone(), became: Some(new) });
                Content::Put { previous }
            }
            Op::Delete { key, end } => {
                let within = |kv: &&Kv| contains(key, end.as_deref(), &kv.key);
                let previous: Vec<Kv> = self.keys.values().filter(within).cloned().collect();
                for kv in &previous {
                    self.keys.remove(&kv.key);
                    changes.push(Change { key: kv.key.clone(), became: None });
                }
                Content::Delete { previous }
            }
            Op::Get { key, end, at, .. } => {
                let within = |kv: &&Kv| contains(key, end.as_deref(), &kv.key);
                let found: Vec<Kv> = if *at == 0 {
                    self.keys.values().filter(within).cloned().collect()
                } else {
                    let replay = Replay::new(&self.history.ledger);
                    replay.range(key, end.as_deref(), *at).into_iter().cloned().collect()
                };
                Content::Get { count: found.len() as i64, found }
            }
        }
    }

    /// Opens a watcher.
    pub(crate) fn watch(&mut self, client: u32, key: &str, end: Option<&str>, start: i64) -> usize {
        let called = self.moment();
        let created = (self.moment(), Notice::Created { revision: self.revision });
        self.history.watches.push(WatchLog {
            client,
            node: NodeId(u64::from(client - 1) % 3 + 1),
            key: key.into(),
            end: end.map(Into::into),
            start,
            no_deletes: false,
            no_puts: false,
            user: None,
            called,
            notices: vec![created],
            closed: None,
        });
        self.next.push(if start == 0 { self.revision + 1 } else { start });
        self.next.len() - 1
    }

    /// Tells a watcher everything it has not been told, with previous values, in one response.
    pub(crate) fn tell(&mut self, watch: usize) {
        let replay = Replay::new(&self.history.ledger);
        let log = &self.history.watches[watch];
        let mut events = Vec::new();
        for change in replay.changes_in(&log.key, log.end.as_deref(), self.next[watch], self.revision) {
            let deleted = change.became.is_none();
            if (deleted && log.no_deletes) || (!deleted && log.no_puts) {
                continue;
            }
            let tombstone = || kv(change.key, "", 0, change.revision, 0);
            let previous = replay.get(change.key, change.revision - 1).cloned();
            events.push(WatchEvent { kv: change.became.cloned().unwrap_or_else(tombstone), deleted, previous });
        }
        self.next[watch] = self.next[watch].max(self.revision + 1);
        if !events.is_empty() {
            let notice = (self.moment(), Notice::Events { revision: self.revision, events });
            self.history.watches[watch].notices.push(notice);
        }
    }

    /// Tells a watcher that it has been told everything.
    pub(crate) fn progress(&mut self, watch: usize) {
        let notice = (self.moment(), Notice::Progress { revision: self.revision });
        self.history.watches[watch].notices.push(notice);
    }

    /// The server ends a watcher.
    pub(crate) fn cancel(&mut self, watch: usize, compact_revision: i64) {
        let notice = (self.moment(), Notice::Canceled { compact_revision, reason: String::new() });
        self.history.watches[watch].notices.push(notice);
    }
}

/// A bit of everything: requests of five clients that overlap, some without an answer, leases that are
/// kept, revoked and left alone, watchers that are told now and then.
mod busy {
    use super::{Compare, Maker, Op, Request, delete_op, get_op, put_op};

    /// A generator of numbers that need only look random.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    impl Maker {
        /// Asks for so many things, legally.
        pub(crate) fn busy(&mut self, requests: u64) {
            let mut dice = Dice(requests);
            let accounts = (0..4).map(|n| put_op(&format!("account/{n}"), &format!("100#start{n}"))).collect();
            self.txn(1, vec![], accounts, vec![]);
            for number in 0..requests {
                let client = dice.below(5) as u32 + 1;
                let before = self.history.operations.len();
                self.busy_request(&mut dice, client, number);
                for index in before..self.history.operations.len() {
                    self.blur(&mut dice, index);
                }
                self.busy_watcher(&mut dice, number);
                if number == requests * 3 / 4 {
                    self.heal();
                }
            }
            self.put(1, "last", "last");
            self.wait(1_000_000);
            (0..self.next.len()).for_each(|watch| self.tell(watch));
        }

        fn busy_request(&mut self, dice: &mut Dice, client: u32, number: u64) {
            let key = format!("reg/{}", dice.below(4));
            match dice.below(12) {
                0 | 1 => drop(self.put(client, &key, &format!("v{number}"))),
                2 | 3 => drop(self.get(client, &key, None, dice.below(3) == 0)),
                4 => {
                    let at = self.keys.get(&key).map_or(0, |kv| kv.modified) - dice.below(2) as i64;
                    let compare = Compare::ModifiedAt(key.clone(), at.max(0));
                    let then = vec![put_op(&key, &format!("v{number}"))];
                    self.txn(client, vec![compare], then, vec![get_op(&key, None, 0)]);
                }
                5 => drop(self.get(client, "account/", Some("account0"), false)),
                6 => self.busy_transfer(dice, client, number),
                7 => self.busy_list(client, number),
                8 => self.busy_counter(client, number),
                9 => {
                    let key = format!("other/{}", dice.below(3));
                    let op =
                        if dice.below(2) == 0 { delete_op(&key, None) } else { put_op(&key, &format!("v{number}")) };
                    self.ask(client, Request::Op(op));
                }
                10 => self.busy_lease(client, number as i64),
                _ => drop(self.never_happened(client, Request::Op(put_op(&key, &format!("v{number}"))))),
            }
        }

        fn amount(&self, account: u64) -> i64 {
            self.keys[&format!("account/{account}")].value.split('#').next().unwrap().parse().unwrap()
        }

        fn busy_transfer(&mut self, dice: &mut Dice, client: u32, number: u64) {
            let from = dice.below(4);
            let to = (from + 1) % 4;
            let put = |account, amount| put_op(&format!("account/{account}"), &format!("{amount}#v{number}/{account}"));
            let then = vec![put(from, self.amount(from) - 5), put(to, self.amount(to) + 5)];
            self.txn(client, vec![], then, vec![]);
        }

        fn busy_list(&mut self, client: u32, number: u64) {
            let key = format!("list/{}", number / 600);
            let value = self.keys.get(&key).map_or(format!("e{number}"), |kv| format!("{},e{number}", kv.value));
            self.put(client, &key, &value);
            self.get(client, &key, None, false);
        }

        fn busy_counter(&mut self, client: u32, number: u64) {
            let n = self.keys.get("counter/1").map_or(0, |kv| kv.version);
            self.put(client, "counter/1", &format!("{n}#v{number}"));
        }

        fn busy_lease(&mut self, client: u32, number: i64) {
            let lease = 1_000 + number;
            self.grant(client, lease, 2);
            let key = format!("session/{}", number % 5);
            self.ask(client, Request::Op(Op::Put { key, value: format!("v{number}"), lease }));
            self.keep_alive(client, lease);
            match number % 3 {
                0 => drop(self.revoke(client, lease)),
                1 => {
                    self.wait(2_100_000);
                    self.expire(&[lease]);
                    self.keep_alive(client, lease);
                }
                _ => {
                    self.wait(2_100_000);
                    self.expire(&[lease]);
                }
            }
        }

        fn busy_watcher(&mut self, dice: &mut Dice, number: u64) {
            if number % 100 == 50 {
                let start = (self.revision + 20 - dice.below(40) as i64).max(0);
                let watch = self.watch(1, "a", Some("z"), start);
                self.history.watches[watch].no_deletes = dice.below(3) == 0;
            }
            if !self.next.is_empty() && dice.below(10) == 0 {
                let watch = dice.below(self.next.len() as u64) as usize;
                self.tell(watch);
                if dice.below(2) == 0 {
                    self.progress(watch);
                }
            }
        }

        /// Lets a request begin earlier than it did, so that requests overlap, and takes some answers away.
        fn blur(&mut self, dice: &mut Dice, index: usize) {
            let (client, called) = (self.history.operations[index].client, self.history.operations[index].called);
            let earlier = self.history.operations[..index].iter().rev().find(|operation| operation.client == client);
            let free = earlier.and_then(|operation| operation.returned).map_or(0, |returned| returned.order);
            let keeps = matches!(self.history.operations[index].request, Request::KeepAlive { .. });
            if !keeps && dice.below(2) == 0 && free + 2 < called.order {
                self.history.operations[index].called.order = free + 1 + dice.below((called.order - free - 1).min(300));
            }
            let key_request = matches!(self.history.operations[index].request, Request::Op(_) | Request::Txn { .. });
            if key_request && dice.below(10) == 0 {
                self.unanswered(index);
            }
        }
    }
}
