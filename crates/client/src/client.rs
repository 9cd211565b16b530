//! The client: sessions by their time to live, handles of primitives, questions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidelock_native_api::v1::{self, Kind, request::Op};
use tokio::sync::oneshot;

use crate::clock::MachineClock;
use crate::error::{Error, Failure, of_status, overload_of_status};
use crate::handle::{Answered, Observation, SessionHandle, SessionState, Unmet};
use crate::inbox::{Sender, inbox};
use crate::nodes::{CONNECT_TIMEOUT, Calls, Nodes, why};
use crate::options::Options;
use crate::session::answer_within;
use crate::session::backoff::Backoff;
use crate::task::{Command, Task};

/// Most different times to live at a time: each is a session of its own.
const SESSIONS_MAX: usize = 64;

/// A connection to a cluster. Cheap to clone; all clones share one stream and one background task.
///
/// When the last clone and the last guard are gone, everything is given back and the sessions are closed.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    nodes: Arc<Nodes>,
    commands: Sender,
    /// By time to live.
    sessions: Mutex<BTreeMap<Duration, SessionHandle>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a client of {} nodes", self.shared.nodes.count())
    }
}

impl Client {
    /// Connects to any of these nodes, with the usual options: `Client::connect(["10.0.0.1:7481", "10.0.0.2:7481"])`.
    pub async fn connect<I>(endpoints: I) -> Result<Client, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Options::default().connect(endpoints).await
    }

    /// What to say before connecting: times, certificates, who comes.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) async fn start(options: Options, endpoints: Vec<String>) -> Result<Client, Error> {
        let nodes = Arc::new(Nodes::new(&options, &endpoints)?);
        nodes.reach_any().await?;
        let (commands, waiting) = inbox();
        let to_self = commands.downgrade();
        let task = Task::new(Arc::clone(&nodes), Arc::new(MachineClock), options.patience, waiting, to_self);
        tokio::spawn(task.run());
        let sessions = Mutex::new(BTreeMap::new());
        Ok(Client { shared: Arc::new(Shared { options, nodes, commands, sessions }) })
    }

    /// Gives back everything that is held through this client and all its clones, and ends. Guards that are still
    /// there are lost.
    pub async fn close(self) {
        let (done, is_done) = oneshot::channel();
        if self.shared.commands.wish_back(Command::Close(done)).is_ok() {
            let _ = is_done.await;
        }
    }

    /// The cluster's id of the session that holds what is held with the usual time to live; `None` before there is one.
    #[must_use]
    pub fn session_id(&self) -> Option<i64> {
        let sessions = self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&self.shared.options.ttl).map(SessionHandle::id).filter(|id| *id != 0)
    }

    /// How long answers are waited for.
    pub(crate) fn patience(&self) -> Duration {
        self.shared.options.patience
    }

    /// The session with that time to live; a new one if there is none, or the last one is over.
    pub(crate) fn session(&self, ttl: Option<Duration>) -> Result<SessionHandle, Error> {
        let ttl = ttl.unwrap_or(self.shared.options.ttl);
        let mut sessions = self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| !session.is_over());
        if let Some(session) = sessions.get(&ttl) {
            return Ok(session.clone());
        }
        if sessions.len() >= SESSIONS_MAX {
            let unused = |_: &Duration, session: &mut SessionHandle| session.is_unused();
            sessions.extract_if(.., unused).for_each(|(_, session)| session.close());
        }
        if sessions.len() >= SESSIONS_MAX {
            let what = format!("{SESSIONS_MAX} different times to live are in use");
            return Err(Failure::BadOption(what).into());
        }
        let state = Arc::new(SessionState::new(ttl, Arc::new(MachineClock)));
        let handle = SessionHandle::new(Arc::clone(&state), self.shared.commands.clone());
        self.shared.commands.wish(Command::Open { session: state })?;
        sessions.insert(ttl, handle.clone());
        Ok(handle)
    }

    /// Asks for something in the session with that time to live; a grant is waited for at most that long. A session that
    /// turns out to be over, and held nothing, is replaced: who slept for an hour has lost nothing by that.
    pub(crate) async fn ask(&self, ttl: Option<Duration>, wait: Option<Duration>, op: Op) -> Result<Answered, Error> {
        match self.session(ttl)?.ask_anew(op, wait).await {
            Err(Unmet::SessionWasOver(op)) => self.session(ttl)?.ask_anew(*op, wait).await.map_err(Unmet::into_error),
            answered => answered.map_err(Unmet::into_error),
        }
    }

    /// Begins to observe and waits until the cluster tells what happens, so that what is read afterwards misses nothing.
    pub(crate) async fn observe_now(&self, kind: Kind, name: &str) -> Result<Observation, Error> {
        self.observe_within(None, kind, name).await
    }

    /// The same for who wants to wait at most that long for what it observes.
    pub(crate) async fn observe_within(
        &self,
        wait: Option<Duration>,
        kind: Kind,
        name: &str,
    ) -> Result<Observation, Error> {
        let mut observation = Observation::begin(&self.shared.commands, kind, name)?;
        let patience = answer_within(self.patience(), wait);
        match tokio::time::timeout(patience, observation.is_told()).await {
            Ok(told) => told.map(|()| observation),
            Err(_) => Err(Failure::Unreachable(format!("nobody answered within {patience:?}")).into()),
        }
    }

    /// Asks a question, of one node after the other until one answers. Questions change nothing.
    pub(crate) async fn question<T, F>(&self, ask: impl Fn(Calls) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let patience = self.shared.options.patience;
        let mut backoff = Backoff::default();
        let mut last: Option<Error> = None;
        let unreachable = |why: String| Error::from(Failure::Unreachable(why));
        let asking = async {
            loop {
                let chosen = self.shared.nodes.current();
                match tokio::time::timeout(CONNECT_TIMEOUT, ask(chosen.calls)).await {
                    Ok(Ok(reply)) => return Ok(reply.into_inner()),
                    Ok(Err(status)) => match of_status(&status) {
                        Some(error) => return Err(error),
                        None => last = Some(overload_of_status(&status).unwrap_or_else(|| unreachable(why(&status)))),
                    },
                    Err(_) => last = Some(unreachable(format!("a node did not answer within {CONNECT_TIMEOUT:?}"))),
                }
                self.shared.nodes.leave(chosen.turn);
                tokio::time::sleep(backoff.failed(patience, rand::random())).await;
            }
        };
        let answer = tokio::time::timeout(patience, asking).await;
        answer.unwrap_or_else(|_| {
            Err(last.unwrap_or_else(|| unreachable(format!("nobody answered within {patience:?}"))))
        })
    }

    pub(crate) async fn describe(&self, request: v1::DescribeRequest) -> Result<v1::DescribeReply, Error> {
        let ask = |mut calls: Calls| {
            let request = request.clone();
            async move { calls.describe(request).await }
        };
        self.question(ask).await
    }

    /// What there is one of, without its members.
    pub(crate) async fn describe_head(&self, kind: Kind, name: &str) -> Result<v1::DescribeReply, Error> {
        let (kind, name) = (kind.into(), name.to_owned());
        self.describe(v1::DescribeRequest { kind, name, limit: 1, ..Default::default() }).await
    }
}
