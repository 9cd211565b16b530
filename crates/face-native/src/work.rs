//! What a stream has under way: each message of the client's that takes time, and what it came to.

use std::sync::Arc;

use tidelock_coordinator::{Consistency, WatchClosed, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::limits::NATIVE_LIST_MAX;
use tidelock_model::native_keys;
use tidelock_model::{
    Caller, Data, Event, Kind, LeaseId, Name, NativeCommand, NativeNotice, NativeQuery, NativeRequest, Outcome,
    Revision,
};
use tidelock_native_api::v1;

use crate::callers::owner;
use crate::mailbox::{Mailbox, PlaceOf};
use crate::problem::Problem;
use crate::questions;
use crate::renewals::Renewal;
use crate::router::{Attaching, Encoded, Observation, missed_grant};
use crate::services::Services;
use crate::translate;

/// Something to do.
pub(crate) enum Work {
    Request { caller: Caller, request: NativeRequest, taking: Option<PlaceOf> },
    Open { caller: Caller, request: v1::OpenRequest },
    Close { caller: Caller, session: LeaseId },
    Attach { caller: Caller, session: LeaseId, told_revision: u64 },
    KeepAlive { session: LeaseId, sent: u64 },
    Observe { caller: Caller, kind: Kind, name: Name, told_revision: u64, observation: Arc<Observation> },
}

/// What it came to.
pub(crate) enum Done {
    Reply { session: i64, number: u64, taking: Option<PlaceOf>, result: Result<Outcome, Problem> },
    Opened { client: u64, result: Result<v1::OpenReply, Problem> },
    Closed { session: LeaseId, result: Result<v1::CloseReply, Problem> },
    Attached { session: LeaseId, result: Result<Attached, Problem> },
    KeptAlive { session: LeaseId, sent: u64, result: Result<Renewal, Problem> },
    Observing { kind: Kind, name: Name, observation: Arc<Observation>, result: Result<u64, Problem> },
}

/// A session is attached.
pub(crate) struct Attached {
    /// After which revision all is pushed.
    pub(crate) after: u64,
    pub(crate) ttl_ms: u32,
    /// What the session missed is among the first so many messages of the mailbox.
    pub(crate) told_with: u64,
}

/// Does it. Attaching and observing are in effect when this is done; messages that follow on the stream come later.
pub(crate) async fn carry_out(services: Arc<Services>, mailbox: Arc<Mailbox>, work: Work) -> Done {
    match work {
        Work::Request { caller, request, taking } => {
            let (session, number) = (request.session.0, request.number);
            let result = services.propose(caller, NativeCommand::Request(request), None).await;
            Done::Reply { session, number, taking, result }
        }
        Work::Open { caller, request } => {
            let (client, owner) = (request.client, owner(&caller));
            Done::Opened { client, result: services.open_attached(caller, owner, request, &mailbox).await }
        }
        Work::Close { caller, session } => Done::Closed { session, result: services.close(caller, session).await },
        Work::Attach { caller, session, told_revision } => {
            Done::Attached { session, result: services.attach(&caller, session, told_revision, &mailbox).await }
        }
        Work::KeepAlive { session, sent } => {
            Done::KeptAlive { session, sent, result: services.renewals.renew(session).await }
        }
        Work::Observe { caller, kind, name, told_revision, observation } => {
            let whom = (&mailbox, &observation);
            let result = services.observe(caller, (kind, &name), told_revision, whom).await;
            Done::Observing { kind, name, observation, result }
        }
    }
}

impl Services {
    /// Attaches a session of the caller's, and tells what it was granted after the revision that was told last: all of it
    /// that it still holds.
    pub(crate) async fn attach(
        &self,
        caller: &Caller,
        session: LeaseId,
        told_revision: u64,
        mailbox: &Arc<Mailbox>,
    ) -> Result<Attached, Problem> {
        let (attaching, ttl_ms) = self.begin_attaching(caller, session, mailbox).await?;
        if told_revision == 0 {
            return Ok(Attached { after: attaching.keep(), ttl_ms, told_with: 0 });
        }
        self.tell_missed_grants(caller, session, told_revision, mailbox).await?;
        Ok(Attached { after: attaching.keep(), ttl_ms, told_with: mailbox.pushed() })
    }

    /// Attaches a session of the caller's, with its time to live.
    pub(crate) async fn begin_attaching<'a>(
        &'a self,
        caller: &Caller,
        session: LeaseId,
        mailbox: &'a Arc<Mailbox>,
    ) -> Result<(Attaching<'a>, u32), Problem> {
        // Whether it is the caller's is asked before it is taken from another stream, and what it holds afterwards.
        let ttl_ms = self.ttl_ms(caller, session).await?;
        Ok((self.put_into_router(session, mailbox).await?, ttl_ms))
    }

    /// Opens a session that is attached from the beginning.
    async fn open_attached(
        &self,
        caller: Caller,
        owner: String,
        request: v1::OpenRequest,
        mailbox: &Arc<Mailbox>,
    ) -> Result<v1::OpenReply, Problem> {
        let reply = self.open(caller, owner, request).await?;
        self.put_into_router(LeaseId(reply.session), mailbox).await?.keep();
        Ok(reply)
    }

    async fn put_into_router<'a>(
        &'a self,
        session: LeaseId,
        mailbox: &'a Arc<Mailbox>,
    ) -> Result<Attaching<'a>, Problem> {
        let attaching = self.router.attach(session, mailbox).await;
        self.still_lives(session).await?;
        Ok(attaching)
    }

    /// All that a session has. What is given back between two pages moves all behind it, so each page begins with the
    /// last one of the page before; if that is not there any more, all is read again.
    async fn holdings(&self, caller: &Caller, session: LeaseId) -> Result<Vec<v1::Holding>, Problem> {
        let same = |one: &v1::Holding, other: &v1::Holding| {
            (one.place, one.kind, &one.name) == (other.place, other.kind, &other.name)
        };
        let mut all: Vec<v1::Holding> = Vec::new();
        loop {
            let last = all.pop();
            let holdings = self.session(caller, session, all.len() as u64).await?;
            let is_last_page = holdings.len() < NATIVE_LIST_MAX as usize;
            if last.is_some_and(|last| !holdings.first().is_some_and(|first| same(first, &last))) {
                all.clear();
                continue;
            }
            all.extend(holdings);
            if is_last_page {
                return Ok(all);
            }
        }
    }

    /// Tells what a session was granted after a revision and still holds, at the pace of its client.
    pub(crate) async fn tell_missed_grants(
        &self,
        caller: &Caller,
        session: LeaseId,
        told_revision: u64,
        mailbox: &Arc<Mailbox>,
    ) -> Result<(), Problem> {
        let mut missed = self.holdings(caller, session).await?;
        missed.retain(|one| one.token > told_revision && one.token != one.place);
        missed.sort_unstable_by_key(|one| one.token);
        for v1::Holding { kind, name, place, .. } in missed {
            let request = v1::DescribeRequest { kind, name, place, ..Default::default() };
            let (kind, name) = (translate::kind(kind)?, translate::name(&request.name)?);
            let query = questions::describe(&request)?;
            let (_, found) = self.find(&Caller::Internal, query, Consistency::Local).await?;
            let found = questions::described(v1::Header::default(), found)?;
            // It may have been given back meanwhile.
            let Some(member) = found.members.first().filter(|member| member.session == session.0) else { continue };
            let notice = missed_grant(kind, name, session, member);
            let data = Data::new(member.data.clone())?;
            let mut encoded = Encoded::at(self.router.encoder(), notice, Revision(member.token), &data);
            mailbox.until_room().await;
            mailbox.push(encoded.item(mailbox.format, None));
        }
        Ok(())
    }

    /// Has `mailbox` told what happens to a name, and first what happened after the revision that was told last. After
    /// which revision.
    pub(crate) async fn observe(
        &self,
        caller: Caller,
        (kind, name): (Kind, &Name),
        told_revision: u64,
        whom: (&Arc<Mailbox>, &Arc<Observation>),
    ) -> Result<u64, Problem> {
        self.check_told(told_revision).await?;
        let after = self.router.observe(&*self.coordinator, caller, (kind, name), whom, told_revision).await?;
        if told_revision == 0 {
            return Ok(after);
        }
        self.catch_up((kind, name), told_revision, after, whom).await.map(|()| told_revision)
    }

    /// Refuses a revision that no node can have told of. One that is ahead of this node is asked about.
    pub(crate) async fn check_told(&self, told_revision: u64) -> Result<(), Problem> {
        if told_revision <= self.router.routed() {
            return Ok(());
        }
        let nobody = NativeQuery::Session { session: LeaseId::NONE, skip: 0, holdings: 0 };
        let (revision, _) = self.find(&Caller::Internal, nobody, Consistency::Linearizable).await?;
        if told_revision > revision {
            let text = format!("nothing has happened at revision {told_revision} yet; the last one is {revision}");
            return Err(Problem::wrong("REVISION_NOT_YET", text));
        }
        Ok(())
    }

    /// Tells an observer what happened before it came, at the pace of its client, and then what was held back.
    pub(crate) async fn catch_up(
        &self,
        (kind, name): (Kind, &Name),
        told_revision: u64,
        after: u64,
        whom: (&Arc<Mailbox>, &Arc<Observation>),
    ) -> Result<(), Problem> {
        let replayed = self.replay((kind, name), told_revision, after, whom).await;
        match replayed {
            Ok(()) => self.router.caught_up(kind, name.as_str(), whom.1),
            // Nobody wants to know any more.
            Err(_) if whom.1.is_over() => return Ok(()),
            Err(_) => self.router.stop_observing(kind, name.as_str(), whom.1),
        }
        replayed
    }

    /// Tells what happened to a name after one revision and up to another, as long as somebody wants to know.
    async fn replay(
        &self,
        (kind, name): (Kind, &Name),
        told_revision: u64,
        up_to: u64,
        (mailbox, observation): (&Arc<Mailbox>, &Arc<Observation>),
    ) -> Result<(), Problem> {
        if told_revision >= up_to {
            return Ok(());
        }
        let subscription = self.coordinator.subscribe();
        subscription.open(WatchRequest {
            id: WatcherId(1),
            range: native_keys::all(kind, name),
            from: Some(Revision(told_revision + 1)),
            want_previous: false,
            caller: Caller::Internal,
        });
        subscription.request_progress();
        loop {
            match subscription.next().await {
                Some(WatchNotice::Opened { .. }) => {}
                Some(WatchNotice::Events { events, .. }) => {
                    for event in events.iter() {
                        mailbox.until_room().await;
                        if at(event) > up_to || observation.is_over() {
                            return Ok(());
                        }
                        self.tell_again(event, mailbox);
                    }
                }
                Some(WatchNotice::Progress { revision }) if revision.0 >= up_to => return Ok(()),
                Some(WatchNotice::Progress { .. }) => subscription.request_progress(),
                Some(WatchNotice::Closed { why: WatchClosed::Compacted { compacted }, .. }) => {
                    let text = format!("what happened before revision {compacted} is not known any more; ask what is");
                    return Err(Problem::new(v1::error::Family::Absent, "COMPACTED", text));
                }
                Some(WatchNotice::Closed { .. }) => return Err(Problem::mismatch()),
                None => return Err(tidelock_coordinator::ReadError::Stopping.into()),
            }
        }
    }

    fn tell_again(&self, event: &Event, mailbox: &Arc<Mailbox>) {
        if let Some(notice) = NativeNotice::of(event) {
            let item = Encoded::new(self.router.encoder(), notice, event).item(mailbox.format, None);
            mailbox.push(item);
        }
    }
}

fn at(event: &Event) -> u64 {
    event.record.meta().modified.0
}
