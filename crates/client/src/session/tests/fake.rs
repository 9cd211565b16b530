//! One session and one election in memory, by the rules of the real thing: first answers are remembered until they are
//! acknowledged, places are granted in order, grants are pushed, and told again to who comes back.

use std::collections::{BTreeMap, VecDeque};

use tidelock_native_api::v1::{self, answer::Answer, error::Family, from_client, request::Op, to_client};

pub(crate) const ID: i64 = 5;
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
    pub(crate) queue: Vec<Place>,
    pub(crate) inbox: VecDeque<from_client::Message>,
    pub(crate) outbox: VecDeque<to_client::Message>,
    /// How many requests get "not now" for an answer.
    pub(crate) unavailable: u32,
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

    pub(crate) fn ours(&self) -> usize {
        self.queue.iter().filter(|place| place.is_ours).count()
    }

    pub(crate) fn holders(&self) -> usize {
        self.queue.iter().filter(|place| place.token != 0).count()
    }

    pub(crate) fn holdings(&self) -> Vec<v1::Holding> {
        let ours = self.queue.iter().filter(|place| place.is_ours);
        let (kind, name) = (v1::Kind::Election.into(), "l".to_owned());
        ours.map(|own| v1::Holding { kind, name: name.clone(), place: own.place, token: own.token }).collect()
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
        self.is_open = false;
        self.queue.retain(|place| !place.is_ours);
        self.grant();
        let reason = v1::lost::Reason::SessionEnded.into();
        self.outbox.push_back(to_client::Message::Lost(v1::Lost { reason, session: ID, message: String::new() }));
    }

    pub(crate) fn stranger_enters(&mut self) {
        self.enter(false);
    }

    pub(crate) fn stranger_leaves(&mut self) {
        if let Some(at) = self.queue.iter().position(|place| !place.is_ours) {
            self.queue.remove(at);
            self.revision += 1;
            self.grant();
        }
    }

    /// The holder, a stranger, lets the first of ours that waits take its own place.
    pub(crate) fn stranger_names_us(&mut self) {
        let waits = self.queue.iter().position(|place| place.is_ours && place.token == 0);
        let Some(at) = waits.filter(|_| self.queue[0].token != 0 && !self.queue[0].is_ours) else { return };
        let ours = self.queue.remove(at);
        self.revision += 1;
        let place = self.queue[0].place;
        self.queue[0] = Place { place, token: self.revision, moved_from: ours.place, is_ours: true };
        self.tell_grant(0);
    }

    fn enter(&mut self, is_ours: bool) -> v1::Place {
        self.revision += 1;
        let (place, ahead) = (self.revision, self.queue.len() as u64);
        let token = if self.queue.is_empty() { place } else { 0 };
        self.queue.push(Place { place, token, moved_from: 0, is_ours });
        v1::Place { place, token, ahead }
    }

    fn grant(&mut self) {
        if self.queue.first().is_some_and(|first| first.token == 0) {
            self.queue[0].token = self.revision;
            self.tell_grant(0);
        }
    }

    fn tell_grant(&mut self, at: usize) {
        let Place { place, token, moved_from, is_ours } = self.queue[at].clone();
        if !is_ours {
            return;
        }
        let (kind, name) = (v1::Kind::Election.into(), "l".to_owned());
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
        let not_now = |code: &str, family: Family| {
            Err(v1::Error { code: code.into(), family: family.into(), ..Default::default() })
        };
        if self.unavailable > 0 {
            self.unavailable -= 1;
            return self.reply(number, self.revision, not_now("NO_LEADER", Family::Unavailable));
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
        let gone = match op {
            Op::Campaign(_) => {
                self.carried_out += 1;
                return Ok(Answer::Place(self.enter(true)));
            }
            Op::Add(_) => {
                self.carried_out += 1;
                return Ok(Answer::Counter(v1::CounterChange { before: 0, after: 1 }));
            }
            Op::Release(release) => self.queue.iter().position(|own| own.is_ours && own.token == release.token),
            Op::GiveUp(give_up) => self.queue.iter().position(|own| own.is_ours && own.place == give_up.place),
            other => panic!("nothing else is asked: {other:?}"),
        };
        let Some(at) = gone else {
            let code = "STALE_TOKEN".to_owned();
            return Err(v1::Error { code, family: Family::Lost.into(), ..Default::default() });
        };
        self.revision += 1;
        let token = self.queue.remove(at).token;
        self.grant();
        Ok(Answer::Left(v1::Left { token }))
    }
}
