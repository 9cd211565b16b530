//! One session and some elections in memory, by the rules of the real thing: first answers are remembered until they are
//! acknowledged, places are granted in order, grants are pushed, and told again to who comes back.

use std::collections::{BTreeMap, VecDeque};

use tidelock_native_api::v1::{self, answer::Answer, error::Family, from_client, request::Op, to_client};

pub(crate) const ID: i64 = 5;
/// The election of tests that need only one.
pub(crate) const NAME: &str = "l";
/// As in the model's limits.
const UNACKNOWLEDGED_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) place: u64,
    pub(crate) token: u64,
    moved_from: u64,
    is_ours: bool,
}

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) revision: u64,
    pub(crate) queues: BTreeMap<String, Vec<Place>>,
    pub(crate) inbox: VecDeque<from_client::Message>,
    pub(crate) outbox: VecDeque<to_client::Message>,
    /// How many requests get "not now" for an answer.
    pub(crate) unavailable: u32,
    /// How many get "too much to do".
    pub(crate) overloaded: u32,
    /// Asked for, opening is answered "not now".
    pub(crate) has_no_leader: bool,
    /// How many requests were carried out that make something.
    pub(crate) carried_out: u32,
    pub(crate) is_closed: bool,
    is_open: bool,
    is_attached: bool,
    /// What was missed, and that this was all: told at leisure, after whatever else is asked.
    catching_up: VecDeque<to_client::Message>,
    acknowledged: u64,
    answers: BTreeMap<u64, (u64, Result<Answer, v1::Error>)>,
    /// Grants of ours, to be told again.
    history: Vec<v1::Notice>,
    compacted: u64,
}

impl Fake {
    /// Revisions begin with one, as the store's do: zero means "from now on".
    pub(crate) fn new() -> Fake {
        Fake { revision: 1, ..Fake::default() }
    }

    /// The first election.
    pub(crate) fn queue(&self) -> &[Place] {
        self.queues.get(NAME).map_or(&[], Vec::as_slice)
    }

    fn places(&self) -> impl Iterator<Item = (&String, &Place)> {
        self.queues.iter().flat_map(|(name, queue)| queue.iter().map(move |place| (name, place)))
    }

    pub(crate) fn ours(&self) -> usize {
        self.places().filter(|(_, place)| place.is_ours).count()
    }

    pub(crate) fn strangers(&self) -> usize {
        self.places().filter(|(_, place)| !place.is_ours).count()
    }

    /// The most that any election has.
    pub(crate) fn holders(&self) -> usize {
        let holders = |queue: &Vec<Place>| queue.iter().filter(|place| place.token != 0).count();
        self.queues.values().map(holders).max().unwrap_or(0)
    }

    pub(crate) fn holdings(&self) -> Vec<v1::Holding> {
        let kind = v1::Kind::Election.into();
        let held = |(name, own): (&String, &Place)| v1::Holding {
            kind,
            name: name.clone(),
            place: own.place,
            token: own.token,
        };
        self.places().filter(|(_, place)| place.is_ours).map(held).collect()
    }

    /// The connection is gone with all that was on its way.
    pub(crate) fn cut_off(&mut self) {
        self.inbox.clear();
        self.outbox.clear();
        self.catching_up.clear();
        self.is_attached = false;
    }

    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
    }

    pub(crate) fn end_session(&mut self) {
        self.forget_session();
        let reason = v1::lost::Reason::SessionEnded.into();
        self.outbox.push_back(to_client::Message::Lost(v1::Lost { reason, session: ID, message: String::new() }));
    }

    /// The session is over, and nobody is told.
    pub(crate) fn forget_session(&mut self) {
        self.is_open = false;
        self.end_all(true);
    }

    /// All strangers were one, and it dies: what follows for others happens at one revision.
    pub(crate) fn strangers_die(&mut self) {
        self.end_all(false);
    }

    fn end_all(&mut self, is_ours: bool) {
        self.revision += 1;
        let names: Vec<String> = self.queues.keys().cloned().collect();
        for name in names {
            self.queues.entry(name.clone()).or_default().retain(|place| place.is_ours != is_ours);
            self.grant(&name);
        }
    }

    pub(crate) fn stranger_enters(&mut self, name: &str) {
        self.enter(name, false);
    }

    pub(crate) fn stranger_leaves(&mut self, name: &str) {
        let queue = self.queues.entry(name.to_owned()).or_default();
        if let Some(at) = queue.iter().position(|place| !place.is_ours) {
            queue.remove(at);
            self.revision += 1;
            self.grant(name);
        }
    }

    /// The holder, a stranger, lets the first of ours that waits take its own place.
    pub(crate) fn stranger_names_us(&mut self, name: &str) {
        let queue = self.queues.entry(name.to_owned()).or_default();
        let waits = queue.iter().position(|place| place.is_ours && place.token == 0);
        let Some(at) = waits.filter(|_| queue[0].token != 0 && !queue[0].is_ours) else { return };
        let ours = queue.remove(at);
        self.revision += 1;
        let place = queue[0].place;
        queue[0] = Place { place, token: self.revision, moved_from: ours.place, is_ours: true };
        self.tell_grant(name);
    }

    fn enter(&mut self, name: &str, is_ours: bool) -> v1::Place {
        self.revision += 1;
        let queue = self.queues.entry(name.to_owned()).or_default();
        let (place, ahead) = (self.revision, queue.len() as u64);
        let token = if queue.is_empty() { place } else { 0 };
        queue.push(Place { place, token, moved_from: 0, is_ours });
        v1::Place { place, token, ahead }
    }

    fn grant(&mut self, name: &str) {
        let first = self.queues.get_mut(name).and_then(|queue| queue.first_mut());
        if let Some(first) = first.filter(|first| first.token == 0) {
            first.token = self.revision;
            self.tell_grant(name);
        }
    }

    /// The first place of an election was granted.
    fn tell_grant(&mut self, name: &str) {
        let Place { place, token, moved_from, is_ours } = self.queues[name][0].clone();
        if !is_ours {
            return;
        }
        let (kind, name) = (v1::Kind::Election.into(), name.to_owned());
        let granted = v1::Granted { kind, name, place, moved_from, session: ID, token, ..Default::default() };
        let notice = Some(v1::notice::Notice::Granted(granted));
        let notice = v1::Notice { revision: self.revision, notice };
        self.history.push(notice.clone());
        if self.is_attached {
            self.outbox.push_back(to_client::Message::Notice(notice));
        }
    }

    fn header(&self) -> Option<v1::Header> {
        Some(v1::Header { revision: self.revision, ..Default::default() })
    }

    /// Does what the next message says.
    pub(crate) fn take_one(&mut self) {
        use from_client::Message as From;
        use to_client::Message as To;
        match self.inbox.pop_front() {
            Some(From::Open(open)) if self.has_no_leader => {
                let error = Some(not_now("NO_LEADER", Family::Unavailable));
                self.outbox.push_back(To::Opened(v1::OpenReply { client: open.client, error, ..Default::default() }));
            }
            Some(From::Open(open)) => {
                self.is_open = true;
                self.is_attached = true;
                let v1::OpenRequest { ttl_ms, client } = open;
                let opened = v1::OpenReply { header: self.header(), session: ID, ttl_ms, client, error: None };
                self.outbox.push_back(To::Opened(opened));
            }
            Some(From::Attach(attach)) => self.attach(attach.told_revision),
            Some(From::KeepAlive(keep)) if self.is_open => {
                assert!(self.is_attached, "only what is attached can be renewed");
                let kept = v1::KeptAlive { sent: keep.sent, ttl_ms: 30_000, session: ID, header: None };
                self.outbox.push_back(To::KeptAlive(kept));
            }
            Some(From::KeepAlive(_)) => {}
            Some(From::Close(_)) => {
                self.is_closed = true;
                self.end_session();
                self.outbox.pop_back();
                self.outbox.push_back(To::Closed(v1::CloseReply { session: ID, ..Default::default() }));
            }
            Some(From::Request(request)) => self.request(request),
            Some(other) => panic!("nothing else comes: {other:?}"),
            None => self.outbox.extend(self.catching_up.pop_front()),
        }
    }

    /// Whether it has nothing to do and nothing to say.
    pub(crate) fn is_idle(&self) -> bool {
        self.inbox.is_empty() && self.outbox.is_empty() && self.catching_up.is_empty()
    }

    fn attach(&mut self, told: u64) {
        if !self.is_open {
            let reason = v1::lost::Reason::SessionEnded.into();
            let lost = v1::Lost { reason, session: ID, message: String::new() };
            return self.outbox.push_back(to_client::Message::Lost(lost));
        }
        self.is_attached = true;
        if told != 0 && told < self.compacted {
            let reason = v1::lost::Reason::Compacted.into();
            self.is_attached = false;
            let lost = v1::Lost { reason, session: ID, message: String::new() };
            return self.outbox.push_back(to_client::Message::Lost(lost));
        }
        if told != 0 {
            let missed = self.history.iter().filter(|notice| notice.revision > told).cloned();
            self.catching_up.extend(missed.map(to_client::Message::Notice));
        }
        let attached = v1::Attached { header: self.header(), session: ID, ttl_ms: 30_000 };
        self.catching_up.push_back(to_client::Message::Attached(attached));
    }

    fn request(&mut self, request: v1::Request) {
        let number = request.number;
        if self.unavailable > 0 {
            self.unavailable -= 1;
            return self.reply(number, self.revision, Err(not_now("NO_LEADER", Family::Unavailable)));
        }
        if self.overloaded > 0 {
            self.overloaded -= 1;
            return self.reply(number, self.revision, Err(not_now("OVERLOADED", Family::Bounded)));
        }
        if !self.is_open {
            return self.reply(number, self.revision, Err(not_now("UNKNOWN_SESSION", Family::Lost)));
        }
        if let Some((revision, first)) = self.answers.get(&number).cloned() {
            return self.reply(number, revision, first);
        }
        assert!(number > self.acknowledged, "an acknowledged request was asked again");
        self.acknowledged = self.acknowledged.max(request.acknowledged);
        self.answers.retain(|answered, _| *answered > request.acknowledged);
        assert!(self.answers.len() < UNACKNOWLEDGED_MAX, "too many unacknowledged");
        let answer = self.carry_out(request.op.expect("a request has an op"));
        self.answers.insert(number, (self.revision, answer.clone()));
        self.reply(number, self.revision, answer);
    }

    fn reply(&mut self, number: u64, revision: u64, answer: Result<Answer, v1::Error>) {
        use v1::reply::Result as Outcome;
        let result = Some(match answer {
            Ok(answer) => Outcome::Answer(v1::Answer { answer: Some(answer) }),
            Err(error) => Outcome::Error(error),
        });
        let header = Some(v1::Header { revision, ..Default::default() });
        let reply = v1::Reply { header, number, result, session: ID };
        self.outbox.push_back(to_client::Message::Reply(reply));
    }

    fn carry_out(&mut self, op: Op) -> Result<Answer, v1::Error> {
        let at = |fake: &Fake, name: &str, is_it: &dyn Fn(&Place) -> bool| {
            let queue = fake.queues.get(name)?;
            queue.iter().position(|own| own.is_ours && is_it(own)).map(|at| (name.to_owned(), at))
        };
        let gone = match op {
            Op::Campaign(campaign) => {
                self.carried_out += 1;
                return Ok(Answer::Place(self.enter(&campaign.name, true)));
            }
            Op::Add(_) => {
                self.carried_out += 1;
                return Ok(Answer::Counter(v1::CounterChange { before: 0, after: 1 }));
            }
            Op::Release(release) => at(self, &release.name, &|own| own.token == release.token),
            Op::GiveUp(give_up) => at(self, &give_up.name, &|own| own.place == give_up.place),
            other => panic!("nothing else is asked: {other:?}"),
        };
        let Some((name, at)) = gone else { return Err(not_now("STALE_TOKEN", Family::Lost)) };
        self.revision += 1;
        let token = self.queues.get_mut(&name).map_or(0, |queue| queue.remove(at).token);
        self.grant(&name);
        Ok(Answer::Left(v1::Left { token }))
    }
}

fn not_now(code: &str, family: Family) -> v1::Error {
    v1::Error { code: code.into(), family: family.into(), ..Default::default() }
}
