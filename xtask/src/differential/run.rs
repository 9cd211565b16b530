//! Carries out the steps on both sides and compares what comes back.

use bytes::Bytes;
use futures_util::future::join_all;
use indicatif::ProgressBar;
use tidelock_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use tidelock_etcd_api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest};
use tidelock_etcd_api::v3electionpb::{CampaignRequest, LeaderRequest};
use tidelock_etcd_api::v3lockpb::LockRequest;

use super::auth_requests::ROOT;
use super::call::{Answer, Call, Reply};
use super::explained;
use super::generator::{Generator, PAST_STREAMS, Phase, STREAMS, Step};
use super::keys::{MARK, prefix_end};
use super::side::{CLIENTS, Side};
use super::watch_pair::{Difference, WatchPair};
use super::world::World;
use crate::Result;
use crate::differences::{self, Hits, Report};

/// Reads that are under way together.
const READS_TOGETHER: usize = 16;
/// Differences after which the run stops: two stores that differ go on differing.
const DIFFERENCES_MAX: u64 = 60;

/// Where a request comes from: a connection, and a user while authentication is on.
#[derive(Clone, Copy)]
struct From {
    client: usize,
    user: Option<&'static str>,
}

/// A comparison under way.
pub(super) struct Run {
    ours: Side,
    theirs: Side,
    nodes: usize,
    generator: Generator,
    world: World,
    streams: Vec<Option<WatchPair>>,
    reads: Vec<(From, Call)>,
    seed: u64,
    done: u64,
    diverged: bool,
    to_reopen: bool,
    bar: ProgressBar,
    report: Report,
    hits: Hits,
}

impl Run {
    pub(super) fn new(ours: Side, theirs: Side, seed: u64, phases: &[Phase], nodes: usize, bar: ProgressBar) -> Run {
        Run {
            ours,
            theirs,
            nodes,
            generator: Generator::new(seed, phases),
            seed,
            world: World::default(),
            streams: (0..STREAMS).map(|_| None).collect(),
            reads: Vec::with_capacity(READS_TOGETHER),
            done: 0,
            diverged: false,
            to_reopen: false,
            report: Report::new(bar.clone(), "etcd", DIFFERENCES_MAX),
            bar,
            hits: Hits::default(),
        }
    }

    /// Whether the two stores have come apart: everything after that differs, and means nothing.
    fn is_over(&self) -> bool {
        self.diverged || self.report.is_full()
    }

    /// Operations done, what was found, and what was explained.
    pub(super) fn result(self) -> (u64, Report, Hits) {
        (self.done, self.report, self.hits)
    }

    /// Sends `ops` operations, or stops when there is nothing more to learn.
    pub(super) async fn go(&mut self, ops: u64) -> Result<()> {
        for at in 0..self.streams.len() {
            self.reopen(at).await;
        }
        while self.done + (self.reads.len() as u64) < ops && !self.is_over() {
            let step = self.generator.next(&self.world);
            let from = From { client: self.generator.client(CLIENTS), user: self.generator.caller(&self.world) };
            match step {
                Step::Call(call) if call.only_reads() => {
                    self.reads.push((from, call));
                    if self.reads.len() == READS_TOGETHER {
                        self.read().await;
                    }
                }
                step => {
                    self.read().await;
                    self.carry_out(from, step).await?;
                }
            }
            self.bar.set_position(self.done);
        }
        self.read().await;
        if self.is_over() { Ok(()) } else { self.rest().await }
    }

    async fn carry_out(&mut self, from: From, step: Step) -> Result<()> {
        match step {
            Step::Call(call) => {
                // What is to come cannot be compacted, and under an alarm no mark can be put.
                if matches!(&call, Call::Compact(request) if request.revision <= self.world.revision) {
                    self.rest().await?;
                }
                self.ask_and_reopen(from, call).await?;
            }
            Step::CallAs(user, call) => {
                let user = Some(user).filter(|_| self.world.auth);
                self.ask_and_reopen(From { user, ..from }, call).await?;
            }
            Step::GrantUnnamed => self.grant_unnamed(from).await,
            Step::Acquire { name, lease, election } => self.acquire(from, name, lease, election).await,
            Step::Observe(name) => {
                if self.first_in_line(from, &name).await.is_some() {
                    self.ask(from, Call::Observe(LeaderRequest { name })).await;
                }
            }
            Step::WatchCompare => self.rest().await?,
            Step::WatchReopen { stream } => {
                self.rest().await?;
                self.reopen(stream).await;
            }
            Step::WatchCreate { stream, request } => {
                self.settle_stream(stream).await;
                let Some(mut pair) = self.streams[stream].take() else { return Ok(()) };
                let (revision, compacted) = (self.world.revision, self.world.compacted);
                let checked = pair.create(&request, revision, compacted, &mut self.hits).await;
                self.keep(stream, pair, checked, &format!("{request:?}")).await;
            }
            Step::WatchCancel { stream, pick } => {
                self.rest().await?;
                let Some(mut pair) = self.streams[stream].take() else { return Ok(()) };
                let checked = pair.cancel(pick).await;
                self.keep(stream, pair, checked, "cancel").await;
            }
            Step::WatchProgress { stream } => {
                self.rest().await?;
                if (stream as u64) < PAST_STREAMS {
                    return Ok(());
                }
                let Some(mut pair) = self.streams[stream].take() else { return Ok(()) };
                let checked = pair.progress(self.world.revision).await;
                self.keep(stream, pair, checked, "progress").await;
            }
        }
        Ok(())
    }

    /// Sends the reads that were collected, all at once.
    async fn read(&mut self) {
        let reads = std::mem::take(&mut self.reads);
        let answers = join_all(reads.iter().map(|(from, call)| self.both(*from, call))).await;
        for ((_, call), (ours, theirs)) in reads.into_iter().zip(answers) {
            self.compare(&call, &ours, &theirs);
        }
    }

    /// Sends one request and compares; our answer.
    async fn ask(&mut self, from: From, call: Call) -> Answer {
        let (ours, theirs) = self.both(from, &call).await;
        self.compare(&call, &ours, &theirs);
        ours
    }

    /// Ourselves: root, where that makes a difference.
    fn own(&self, client: usize) -> From {
        From { client, user: Some(ROOT).filter(|_| self.world.auth) }
    }

    /// Sends one request. If it switched authentication on or off, the watch streams begin anew: whether the old
    /// ones may go on is not what is compared here, and the marks need them.
    async fn ask_and_reopen(&mut self, from: From, call: Call) -> Result<()> {
        let switches = matches!(call, Call::AuthEnable(_) | Call::AuthDisable(_));
        if switches {
            self.rest().await?;
        }
        let before = self.world.auth;
        self.ask(from, call).await;
        self.to_reopen |= self.world.auth != before;
        // Root has a token only once it authenticated.
        if self.to_reopen && (!self.world.auth || self.ours.has_token(ROOT)) {
            self.to_reopen = false;
            for at in 0..self.streams.len() {
                self.reopen(at).await;
            }
        }
        Ok(())
    }

    async fn both(&self, from: From, call: &Call) -> (Answer, Answer) {
        let settled = self.nodes > 1 && call.is_local();
        let one = async |side: &Side| {
            if settled {
                settle(side, self.own(from.client)).await;
            }
            side.send(from.client, call.clone(), from.user).await
        };
        tokio::join!(one(&self.ours), one(&self.theirs))
    }

    fn compare(&mut self, call: &Call, ours: &Answer, theirs: &Answer) {
        self.done += 1;
        self.world.learn(call, ours);
        if ours == theirs || self.hits.explain((ours, theirs), explained::rules(call)) {
            return;
        }
        let kind = match (ours, theirs) {
            (Answer::Reply(_), Answer::Reply(_)) => format!("{}: the answers", call.name()),
            _ => format!("{}: {} / {}", call.name(), ours.kind(), theirs.kind()),
        };
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        self.found(&kind, &format!("{call:?}"), &ours, &theirs);
    }

    /// Brings all watch streams to rest and compares them.
    async fn rest(&mut self) -> Result<()> {
        let value = self.done.to_string().into();
        let mark = Call::Put(PutRequest { key: MARK.into(), value, ..PutRequest::default() });
        let before = self.report.count();
        if let Answer::Refused(_, why) = self.ask(self.own(0), mark).await {
            return Err(format!("the watch streams' mark could not be put: {why}"));
        }
        if self.report.count() > before {
            self.diverged = true;
            return Ok(());
        }
        let revision = self.world.revision;
        for at in 0..self.streams.len() {
            let Some(mut pair) = self.streams[at].take() else { continue };
            let past = (at as u64) < PAST_STREAMS;
            let checked = pair.rest(revision, past, &mut self.hits).await;
            self.keep(at, pair, checked, "events up to the mark").await;
        }
        Ok(())
    }

    /// Puts a pair back, or a new one in its place if the two have come apart.
    async fn keep(&mut self, at: usize, pair: WatchPair, checked: std::result::Result<(), Difference>, asked: &str) {
        match checked {
            Ok(()) => self.streams[at] = Some(pair),
            Err(difference) => {
                drop(pair);
                self.tell(difference, asked);
                self.reopen(at).await;
            }
        }
    }

    async fn reopen(&mut self, at: usize) {
        self.streams[at] = None;
        self.settle_stream(at).await;
        match WatchPair::open(&self.ours, &self.theirs, at, self.own(at).user).await {
            Ok(pair) => self.streams[at] = Some(pair),
            Err(difference) => self.tell(difference, "a new watch stream"),
        }
    }

    fn tell(&mut self, difference: Difference, asked: &str) {
        let Difference { kind, ours, theirs } = difference;
        self.found(kind, asked, &ours, &theirs);
    }

    fn found(&mut self, kind: &str, asked: &str, ours: &str, theirs: &str) {
        let (seed, at) = (self.seed, self.done);
        let place = format!("operation {at} of seed {seed}; replay: --seed {seed} --ops {at}");
        self.report.add(&differences::Difference { kind, place, asked, ours, theirs });
    }

    /// With several members: the one a stream goes to knows everything before the stream is asked.
    async fn settle_stream(&mut self, at: usize) {
        if self.nodes > 1 {
            let own = self.own(at % CLIENTS);
            tokio::join!(settle(&self.ours, own), settle(&self.theirs, own));
        }
    }

    /// Grants a lease whose id the servers choose, and revokes it: each its own.
    async fn grant_unnamed(&mut self, from: From) {
        let grant = Call::LeaseGrant(LeaseGrantRequest { ttl: 100_000, id: 0 });
        let (mut ours, mut theirs) = self.both(from, &grant).await;
        let (one, other) = (mask_lease(&mut ours), mask_lease(&mut theirs));
        self.compare(&grant, &ours, &theirs);
        // It is nobody's to ask for.
        self.world.leases.retain(|id| *id != 1);
        let revoke = |id| Call::LeaseRevoke(LeaseRevokeRequest { id });
        let From { client, user } = from;
        let (ours, theirs) =
            tokio::join!(self.ours.send(client, revoke(one), user), self.theirs.send(client, revoke(other), user));
        self.compare(&revoke(1), &ours, &theirs);
    }

    /// Asks for a lock or a leadership, unless that would wait.
    async fn acquire(&mut self, from: From, name: Bytes, lease: i64, election: Option<Bytes>) {
        let own = format!("{}/{lease:x}", String::from_utf8_lossy(&name));
        // Asked by ourselves: whoever may not read the line would wait in it.
        if self.first_in_line(self.own(from.client), &name).await.is_some_and(|first| first != own) {
            return;
        }
        // etcd lets them stand for election first, and leaves their key in the line when it then refuses to read it.
        if election.is_some() && matches!(self.ask(from, line(&name)).await, Answer::Refused(..)) {
            return;
        }
        let call = match election {
            Some(value) => Call::Campaign(CampaignRequest { name, lease, value }),
            None => Call::Lock(LockRequest { name, lease }),
        };
        self.ask(from, call).await;
    }

    async fn first_in_line(&mut self, from: From, name: &Bytes) -> Option<Bytes> {
        let Answer::Reply(reply) = self.ask(from, line(name)).await else { return None };
        let Reply::Range(found) = *reply else { return None };
        found.kvs.into_iter().next().map(|item| item.key)
    }
}

/// Who is first in a line.
fn line(name: &Bytes) -> Call {
    let key = Bytes::from([name, &b"/"[..]].concat());
    Call::Range(RangeRequest {
        range_end: prefix_end(&key),
        key,
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    })
}

/// Waits until the member behind this connection has everything that was written before.
async fn settle(side: &Side, own: From) {
    let read = RangeRequest { key: MARK.into(), ..RangeRequest::default() };
    side.send(own.client, Call::Range(read), own.user).await;
}

/// The id of the lease in an answer, which is then masked.
fn mask_lease(answer: &mut Answer) -> i64 {
    let Answer::Reply(reply) = answer else { return 0 };
    let Reply::LeaseGrant(reply) = &mut **reply else { return 0 };
    std::mem::replace(&mut reply.id, 1)
}
