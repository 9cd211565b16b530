//! What the tests of znodes are written with: clients with sessions, and short names for what they ask.

use bytes::Bytes;
use tidelock_model::{
    AclEntry, Answer, Command, CreateZnode, Identity, LeaseExpiry, LeaseId, Query, QueryAnswer, Refusal, SessionAnswer,
    ZnodeAnswer, ZnodeCommand, ZnodeError, ZnodeFound, ZnodeLife, ZnodeOp, ZnodeOpAnswer, ZnodeOutcome, ZnodeQuery,
    ZnodeRead, ZnodeRequest, ZnodeRequests, ZnodeStat,
};

use crate::testing::{Machine, TERM};

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) session: LeaseId,
    pub(crate) generation: u64,
    pub(crate) identities: Vec<Identity>,
}

impl Client {
    pub(crate) fn of(answer: SessionAnswer) -> Client {
        Client { session: answer.session, generation: answer.generation, identities: vec![] }
    }

    pub(crate) fn as_who(&self, scheme: &str, id: &str) -> Client {
        Client { identities: vec![who(scheme, id)], ..self.clone() }
    }

    pub(crate) fn requests(&self, requests: Vec<ZnodeRequest>) -> Command {
        Command::Znode(ZnodeCommand::Requests(ZnodeRequests {
            session: self.session,
            generation: self.generation,
            identities: self.identities.clone(),
            requests,
        }))
    }
}

pub(crate) fn who(scheme: &str, id: &str) -> Identity {
    Identity { scheme: scheme.into(), id: id.into() }
}

pub(crate) fn entry(permissions: i32, scheme: &str, id: &str) -> AclEntry {
    AclEntry { permissions, who: who(scheme, id) }
}

pub(crate) fn open_acl() -> Vec<AclEntry> {
    vec![entry(31, "world", "anyone")]
}

fn bytes(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

pub(crate) fn create_op(path: &str, life: ZnodeLife) -> CreateZnode {
    CreateZnode { path: path.into(), data: bytes("data"), acl: open_acl(), life, sequential: false }
}

pub(crate) fn create(path: &str) -> ZnodeOp {
    ZnodeOp::Create(create_op(path, ZnodeLife::Persistent))
}

pub(crate) fn create_ephemeral(path: &str) -> ZnodeOp {
    ZnodeOp::Create(create_op(path, ZnodeLife::Ephemeral))
}

pub(crate) fn create_numbered(path: &str) -> ZnodeOp {
    ZnodeOp::Create(CreateZnode { sequential: true, ..create_op(path, ZnodeLife::Persistent) })
}

pub(crate) fn create_for(path: &str, acl: Vec<AclEntry>) -> ZnodeOp {
    ZnodeOp::Create(CreateZnode { acl, ..create_op(path, ZnodeLife::Persistent) })
}

pub(crate) fn delete(path: &str) -> ZnodeOp {
    ZnodeOp::Delete { path: path.into(), version: -1 }
}

pub(crate) fn set(path: &str, data: &str, version: i32) -> ZnodeOp {
    ZnodeOp::SetData { path: path.into(), data: bytes(data), version }
}

pub(crate) fn set_acl(path: &str, acl: Vec<AclEntry>, version: i32) -> ZnodeOp {
    ZnodeOp::SetAcl { path: path.into(), acl, version }
}

pub(crate) fn check(path: &str, version: i32) -> ZnodeOp {
    ZnodeOp::Check { path: path.into(), version }
}

impl Machine {
    pub(crate) fn open_session(&mut self) -> Client {
        match self.command(Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 4000 })).result {
            Ok(Answer::Session(answer)) => Client::of(answer),
            other => panic!("not a session: {other:?}"),
        }
    }

    pub(crate) fn attach_session(&mut self, session: LeaseId) -> Result<Client, Refusal> {
        let attach = ZnodeCommand::AttachSession { session, timeout_ms: 0 };
        match self.command(Command::Znode(attach)).result? {
            Answer::Session(answer) => Ok(Client::of(answer)),
            other => panic!("not a session: {other:?}"),
        }
    }

    pub(crate) fn close_session(&mut self, session: LeaseId) -> Result<Answer, Refusal> {
        self.command(Command::Znode(ZnodeCommand::CloseSession { session })).result
    }

    pub(crate) fn expire_sessions(&mut self, sessions: &[LeaseId]) {
        let named = |id: &LeaseId| Some(LeaseExpiry { id: *id, granted_at: self.state.lease(*id)?.granted_at });
        let leases = sessions.iter().filter_map(named).collect();
        self.command(Command::LeaseExpire { term: TERM, leases }).result.unwrap();
    }

    /// Asks for one thing. What is not done must leave no trace and take no revision (R1).
    pub(crate) fn ask(&mut self, client: &Client, request: ZnodeRequest) -> ZnodeOutcome {
        let before = (self.state.revision(), self.state.live_sum, self.state.keyspace.held());
        let effects = self.commands(vec![client.requests(vec![request])]);
        let Ok(Answer::Znodes(mut outcomes)) = effects.applied[0].outcome.result.clone() else { panic!("{effects:?}") };
        let outcome = outcomes.remove(0);
        assert_eq!(outcome.revision, self.state.revision());
        if matches!(outcome.result, Err(_) | Ok(ZnodeAnswer::MultiFailed { .. })) {
            assert_eq!((self.state.revision(), self.state.live_sum, self.state.keyspace.held()), before);
            assert_eq!(effects.events, []);
        }
        outcome
    }

    pub(crate) fn one(&mut self, client: &Client, op: ZnodeOp) -> Result<ZnodeOpAnswer, ZnodeError> {
        match self.ask(client, ZnodeRequest::One(op)).result? {
            ZnodeAnswer::One(answer) => Ok(answer),
            other => panic!("not an answer to one operation: {other:?}"),
        }
    }

    pub(crate) fn multi(
        &mut self,
        client: &Client,
        ops: Vec<ZnodeOp>,
    ) -> Result<Vec<ZnodeOpAnswer>, (u32, ZnodeError)> {
        match self.ask(client, ZnodeRequest::Multi(ops)).result.unwrap() {
            ZnodeAnswer::Multi(answers) => Ok(answers),
            ZnodeAnswer::MultiFailed { at, error } => Err((at, error)),
            other => panic!("not an answer to several operations: {other:?}"),
        }
    }

    /// Creates something and tells under which path.
    pub(crate) fn created(&mut self, client: &Client, op: ZnodeOp) -> String {
        match self.one(client, op) {
            Ok(ZnodeOpAnswer::Created { path, .. }) => path,
            other => panic!("not created: {other:?}"),
        }
    }

    pub(crate) fn look(&self, client: &Client, read: ZnodeRead) -> Result<ZnodeFound, ZnodeError> {
        let query = ZnodeQuery { identities: client.identities.clone(), reads: vec![read] };
        match self.state.read(&Query::Znodes(query)) {
            Ok(QueryAnswer::Znodes { mut found, .. }) => found.remove(0),
            other => panic!("not an answer about znodes: {other:?}"),
        }
    }

    pub(crate) fn glance(&self, path: &str) -> Option<ZnodeStat> {
        let nobody = Client { session: LeaseId::NONE, generation: 0, identities: vec![] };
        match self.look(&nobody, ZnodeRead::Glance(path.into())) {
            Ok(ZnodeFound::Stat(stat)) => Some(stat),
            _ => None,
        }
    }

    pub(crate) fn reap(&mut self, paths: &[&str]) {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        self.command(Command::Znode(ZnodeCommand::Reap { paths })).result.unwrap();
    }
}
