//! Short names for native requests, and a machine that numbers them.

use tidelock_model::{
    Answer, Command, Data, Kind, LeaseExpiry, LeaseId, Mode, Name, NativeAnswer, NativeCommand, NativeError,
    NativeFound, NativeNotice, NativeOp, NativeQuery, NativeRequest, ObjectFound, OnDeath, Query, QueryAnswer, Refusal,
    Wait,
};

use crate::Effects;
use crate::testing::{Machine, TERM};

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn lock(text: &str, mode: Mode) -> NativeOp {
    NativeOp::Acquire { name: name(text), mode, permits: 0, wait: Wait::Queue(0), data: Data::default() }
}

pub(super) fn exclusive(text: &str) -> NativeOp {
    lock(text, Mode::Exclusive)
}

pub(super) fn shared(text: &str) -> NativeOp {
    lock(text, Mode::Shared)
}

pub(super) fn permits(text: &str, weight: u32, of: u32) -> NativeOp {
    let (mode, wait) = (Mode::Permits(weight), Wait::Queue(0));
    NativeOp::Acquire { name: name(text), mode, permits: of, wait, data: Data::default() }
}

pub(super) fn campaign(text: &str, data: &str) -> NativeOp {
    let data = Data::new(data.to_owned().into()).unwrap();
    NativeOp::Campaign { name: name(text), wait: Wait::Queue(0), data }
}

pub(super) fn release(kind: Kind, text: &str, token: u64) -> NativeOp {
    NativeOp::Release { kind, name: name(text), token }
}

pub(super) fn give_up(kind: Kind, text: &str, place: u64) -> NativeOp {
    NativeOp::GiveUp { kind, name: name(text), place }
}

pub(super) fn enter(text: &str, parties: u32, double: bool, on_death: OnDeath) -> NativeOp {
    NativeOp::Enter { name: name(text), parties, double, on_death }
}

pub(super) fn register(text: &str, parties: u32, parent: Option<&str>) -> NativeOp {
    NativeOp::Register { name: name(text), parties, parent: parent.map(name), on_death: OnDeath::Shrink }
}

pub(super) fn arrive(text: &str, party: u64) -> NativeOp {
    NativeOp::Arrive { name: name(text), party, count: 0, deregister: false }
}

/// A machine with clients that number their requests and acknowledge each answer with the next request.
pub(super) struct Native {
    pub(super) machine: Machine,
    numbers: std::collections::BTreeMap<LeaseId, u64>,
    /// What was told by the last entry.
    pub(super) told: Vec<NativeNotice>,
    /// All commands so far, each an entry.
    pub(super) log: Vec<Command>,
}

impl Native {
    pub(super) fn new() -> Native {
        Native { machine: Machine::new(), numbers: Default::default(), told: vec![], log: vec![] }
    }

    pub(super) fn entry(&mut self, command: Command) -> Effects {
        self.log.push(command.clone());
        let effects = self.machine.commands(vec![command]);
        self.told = effects.events.iter().filter_map(NativeNotice::of).collect();
        effects
    }

    pub(super) fn command(&mut self, command: NativeCommand) -> Result<NativeAnswer, NativeError> {
        match self.entry(Command::Native(command)).applied.remove(0).outcome.result {
            Ok(Answer::Native(answer)) => Ok(answer),
            Err(Refusal::Native(error)) => Err(error),
            other => panic!("not a native answer: {other:?}"),
        }
    }

    pub(super) fn open(&mut self) -> LeaseId {
        match self.command(NativeCommand::Open { ttl_ms: 10_000, owner: String::new() }) {
            Ok(NativeAnswer::Opened { session, .. }) => session,
            other => panic!("not opened: {other:?}"),
        }
    }

    pub(super) fn close(&mut self, session: LeaseId) -> Result<NativeAnswer, NativeError> {
        self.command(NativeCommand::Close { session })
    }

    /// Ends sessions as the leader would, all in one entry.
    pub(super) fn expire(&mut self, sessions: &[LeaseId]) -> Effects {
        let state = &self.machine.state;
        let named = |id: &LeaseId| Some(LeaseExpiry { id: *id, granted_at: state.lease(*id)?.granted_at });
        let leases = sessions.iter().filter_map(named).collect();
        self.entry(Command::LeaseExpire { term: TERM, leases })
    }

    /// A new request. What is refused must leave no trace but its answer.
    pub(super) fn ask(&mut self, session: LeaseId, op: NativeOp) -> Result<NativeAnswer, NativeError> {
        let number = self.numbers.entry(session).or_default();
        *number += 1;
        let request = NativeRequest { session, number: *number, acknowledged: *number - 1, op };
        let before = (self.machine.state.revision(), self.machine.state.keyspace.held());
        let result = self.command(NativeCommand::Request(request));
        if result.is_err() {
            assert_eq!((self.machine.state.revision(), self.machine.state.keyspace.held()), before);
            assert_eq!(self.told, []);
        }
        result
    }

    /// Takes a place; tells it and its token.
    pub(super) fn place(&mut self, session: LeaseId, op: NativeOp) -> (u64, u64) {
        match self.ask(session, op) {
            Ok(NativeAnswer::Place { place, token, .. }) => (place, token),
            other => panic!("no place: {other:?}"),
        }
    }

    /// The tokens of two who held a lock one after the other: the first may still believe in its own.
    pub(super) fn two_tokens(&mut self, session: LeaseId, lock: &str) -> (u64, u64) {
        let mut hold = || {
            let (_, token) = self.place(session, exclusive(lock));
            self.ask(session, release(Kind::Lock, lock, token)).unwrap();
            token
        };
        (hold(), hold())
    }

    /// Lets a session share a lock so often, each time after a wait, so that no token is the number of its place: the
    /// tokens, in order.
    pub(super) fn tokens_after_a_wait(&mut self, session: LeaseId, lock: &str, count: usize) -> Vec<u64> {
        let writer = self.open();
        let (_, token) = self.place(writer, exclusive(lock));
        for _ in 0..count {
            self.place(session, shared(lock));
        }
        self.ask(writer, release(Kind::Lock, lock, token)).unwrap();
        self.granted().iter().map(|(_, token)| *token).collect()
    }

    /// Who was let in by the last entry, with the tokens, in order.
    pub(super) fn granted(&self) -> Vec<(LeaseId, u64)> {
        let granted = self.told.iter().filter_map(|notice| match notice {
            NativeNotice::Granted { session, token, .. } => Some((*session, *token)),
            _ => None,
        });
        granted.collect()
    }

    pub(super) fn read(&self, query: NativeQuery) -> NativeFound {
        match self.machine.state.read(&Query::Native(query)) {
            Ok(QueryAnswer::Native { found, .. }) => found,
            other => panic!("not an answer about native things: {other:?}"),
        }
    }

    pub(super) fn describe(&self, kind: Kind, text: &str) -> ObjectFound {
        match self.read(NativeQuery::Describe { kind, name: name(text), skip: 0, limit: 1000 }) {
            NativeFound::Object(found) => found,
            other => panic!("{other:?}"),
        }
    }
}
