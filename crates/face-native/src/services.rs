//! What all calls share: the coordinator, who we are, and the few things that every call does.

use std::sync::Arc;

use tidelock_client_port::{Passwords, Tokens};
use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_model::{
    Answer, Caller, Command, LeaseId, NativeAnswer, NativeCommand, NativeFound, NativeQuery, NativeRequest, Outcome,
    Query, QueryAnswer, RequestId,
};
use tidelock_native_api::v1;

use crate::FaceConfig;
use crate::problem::Problem;
use crate::renewals::{Renewal, Renewals};
use crate::router::{Encoder, Router};
use crate::translate;

pub(crate) struct Services {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) config: FaceConfig,
    pub(crate) router: Router,
    pub(crate) renewals: Renewals,
    pub(crate) tokens: Tokens,
    pub(crate) passwords: Passwords,
    node: u64,
}

impl Services {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> Services {
        let node = coordinator.status().node.0;
        Services {
            router: Router::new(Encoder::new(node)),
            renewals: Renewals::default(),
            tokens: Tokens::new(config.token.clone()),
            passwords: Passwords::new(config.bcrypt_cost),
            node,
            coordinator,
            config,
        }
    }

    /// The header of an answer given at that revision.
    pub(crate) fn header(&self, revision: u64, index: u64) -> v1::Header {
        v1::Header { revision, index, term: self.coordinator.term().0, node: self.node }
    }

    /// The header of an answer that nobody agreed on.
    pub(crate) fn header_now(&self) -> v1::Header {
        self.header(self.coordinator.revision().0, 0)
    }

    pub(crate) async fn propose(
        &self,
        caller: Caller,
        command: NativeCommand,
        request: Option<RequestId>,
    ) -> Result<Outcome, Problem> {
        Ok(self.coordinator.propose(caller, Command::Native(command), request).await?)
    }

    /// Carries a request out: its reply.
    pub(crate) async fn ask(&self, caller: Caller, request: NativeRequest) -> Result<v1::Reply, Problem> {
        let (session, number) = (request.session.0, request.number);
        let outcome = self.propose(caller, NativeCommand::Request(request), None).await?;
        let answer = native_answer(&outcome)?;
        let answer = translate::answer(answer).ok_or_else(Problem::mismatch)?;
        let header = Some(self.header(outcome.revision.0, outcome.index.0));
        Ok(v1::Reply { header, number, result: Some(v1::reply::Result::Answer(answer)), session })
    }

    pub(crate) async fn open(
        &self,
        caller: Caller,
        owner: String,
        request: v1::OpenRequest,
    ) -> Result<v1::OpenReply, Problem> {
        let v1::OpenRequest { ttl_ms, client } = request;
        let id = (client != 0).then_some(RequestId { client, number: 0 });
        let outcome = self.propose(caller, NativeCommand::Open { ttl_ms, owner }, id).await?;
        let NativeAnswer::Opened { session, ttl_ms } = native_answer(&outcome)? else {
            return Err(Problem::mismatch());
        };
        let header = Some(self.header(outcome.revision.0, outcome.index.0));
        Ok(v1::OpenReply { header, session: session.0, ttl_ms, client, error: None })
    }

    pub(crate) async fn close(&self, caller: Caller, session: LeaseId) -> Result<v1::CloseReply, Problem> {
        let outcome = self.propose(caller, NativeCommand::Close { session }, None).await?;
        native_answer(&outcome)?;
        let header = Some(self.header(outcome.revision.0, outcome.index.0));
        Ok(v1::CloseReply { header, session: session.0, error: None })
    }

    pub(crate) async fn find(
        &self,
        caller: &Caller,
        query: NativeQuery,
        consistency: Consistency,
    ) -> Result<(u64, NativeFound), Problem> {
        match self.coordinator.read(caller.clone(), Query::Native(query), consistency).await? {
            QueryAnswer::Native { revision, found } => Ok((revision.0, found)),
            _ => Err(Problem::mismatch()),
        }
    }

    /// What a session of the caller's has after so many: a page of it.
    pub(crate) async fn session(
        &self,
        caller: &Caller,
        session: LeaseId,
        skip: u64,
    ) -> Result<Vec<v1::Holding>, Problem> {
        let holdings = tidelock_model::limits::NATIVE_LIST_MAX;
        let query = NativeQuery::Session { session, skip, holdings };
        let (_, found) = self.find(caller, query, Consistency::Linearizable).await?;
        let found = crate::questions::sessions_found(found)?.into_iter().next();
        Ok(found.ok_or(tidelock_model::NativeError::UnknownSession)?.holdings)
    }

    /// The time to live of a session of the caller's.
    pub(crate) async fn ttl_ms(&self, caller: &Caller, session: LeaseId) -> Result<u32, Problem> {
        let query = NativeQuery::Session { session, skip: 0, holdings: 0 };
        let (_, found) = self.find(caller, query, Consistency::Linearizable).await?;
        let found = crate::questions::sessions_found(found)?.into_iter().next();
        Ok(found.ok_or(tidelock_model::NativeError::UnknownSession)?.ttl_ms)
    }

    /// Whether this node still has a session. Asked after it was put into the router: if it ended before that, nobody is
    /// told by the router, and if it ends after this, somebody is.
    pub(crate) async fn still_lives(&self, session: LeaseId) -> Result<(), Problem> {
        let query = NativeQuery::Session { session, skip: 0, holdings: 0 };
        match self.find(&Caller::Internal, query, Consistency::Local).await? {
            (_, NativeFound::Sessions(found)) if found.is_empty() => {
                Err(tidelock_model::NativeError::UnknownSession.into())
            }
            _ => Ok(()),
        }
    }

    /// Renews a session for a caller who was not asked yet whether it is theirs.
    pub(crate) async fn keep_alive(&self, caller: &Caller, request: v1::KeepAlive) -> Result<v1::KeptAlive, Problem> {
        let v1::KeepAlive { session, sent } = request;
        self.ttl_ms(caller, LeaseId(session)).await?;
        match self.renewals.renew(LeaseId(session)).await? {
            Renewal::Kept { ttl_ms } => Ok(v1::KeptAlive { sent, ttl_ms, session, header: Some(self.header_now()) }),
            Renewal::Gone => Err(tidelock_model::NativeError::UnknownSession.into()),
            Renewal::Ending => Err(Problem::new(
                v1::error::Family::Unavailable,
                "ENDING",
                "the end of the session is being decided; ask again",
            )),
        }
    }
}

/// What the core answered.
pub(crate) fn native_answer(outcome: &Outcome) -> Result<NativeAnswer, Problem> {
    match &outcome.result {
        Ok(Answer::Native(answer)) => Ok(*answer),
        Ok(_) => Err(Problem::mismatch()),
        Err(refusal) => Err(refusal.clone().into()),
    }
}
