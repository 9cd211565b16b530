//! One session of a client: its requests and their numbers, its renewals, what it believes to hold, and how it waits.

use tidelock_model::{
    Kind, LeaseId, Mode, Name, NativeAnswer, NativeCommand, NativeError, NativeNotice, NativeOp, NativeRequest, NodeId,
    ObjectFound,
};

use crate::client::{Client, Following};
use crate::coverage;
use crate::history::{Micros, NativeAsk, NativeBelief, NativeTold};
use crate::plan::SECOND;

/// Shortest and longest time to live, in milliseconds.
const TTL_MS: (u64, u64) = (1_500, 5_000);
/// Attempts at a request before its fate is left open.
const TRIES: u64 = 5;
/// Pause before the next attempt.
const AGAIN: (Micros, Micros) = (10_000, 200_000);
/// Shortest and longest time between two looks at what the node was told.
const LOOK: (Micros, Micros) = (10_000, 80_000);
/// Shortest and longest time between two things a client does.
const PAUSE: (Micros, Micros) = (20_000, 250_000);
/// How often a session is renewed in the last moment, at most, and how late after it.
const LATE_RENEWALS: u64 = 2;
const LATE: Micros = 40_000;
/// Answers that a client leaves unacknowledged, at most.
const UNACKNOWLEDGED: u64 = 20;

/// What a request came to: `None` if the client does not know.
pub(super) type Decided = Option<Result<NativeAnswer, NativeError>>;

pub(super) struct Session<'a> {
    client: &'a Client,
    id: LeaseId,
    /// Its time to live, at least.
    ttl: Micros,
    number: u64,
    acknowledged: u64,
    /// When the last renewal was sent that was acknowledged.
    renewed: Micros,
    /// When the last one was sent.
    asked: Micros,
    over: bool,
    /// Whether it wants to be told of its end, where it is, and when it asks next to be.
    follows: bool,
    following: Option<Following>,
    attach_at: Micros,
    /// Where the beliefs in what it holds are written down, by token.
    beliefs: Vec<(u64, usize)>,
}

impl<'a> Session<'a> {
    /// Opens a session; asks again under the same name until it is told which one it has.
    pub(super) async fn open(client: &'a Client, count: u64) -> Option<Session<'a>> {
        let ttl_ms = u32::try_from(client.between(TTL_MS.0, TTL_MS.1)).unwrap_or(u32::MAX);
        let myself = u64::from(client.id()) << 32 | count;
        let sent = client.now();
        for _ in 0..TRIES {
            let ask = NativeAsk::Command(NativeCommand::Open { ttl_ms, owner: String::new() }, myself);
            match attempt(client, ask).await {
                NativeTold::Decided { result: Ok(NativeAnswer::Opened { session, .. }), .. } => {
                    return Some(Session {
                        client,
                        id: session,
                        ttl: Micros::from(ttl_ms) * 1_000,
                        number: 0,
                        acknowledged: 0,
                        renewed: sent,
                        asked: sent,
                        over: false,
                        follows: client.chance(600),
                        following: None,
                        attach_at: sent,
                        beliefs: Vec::new(),
                    });
                }
                _ if client.stopping() => return None,
                _ => client.think(AGAIN.0, AGAIN.1).await,
            }
        }
        None
    }

    pub(super) fn client(&self) -> &'a Client {
        self.client
    }

    pub(super) fn id(&self) -> LeaseId {
        self.id
    }

    /// Whether it was told that the session is over, or has given it up.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Dies: asks nothing any more.
    pub(super) fn die(&mut self) {
        self.over = true;
        self.client.around().coverage.hit(coverage::NATIVE_CLIENT_DIED);
    }

    /// Asks for something, with as many attempts as it takes to be told, or a few at most.
    pub(super) async fn ask(&mut self, op: NativeOp) -> Decided {
        self.ask_dated(op).await.map(|(_, result)| result)
    }

    /// The same, with the store's revision right after it was decided.
    pub(super) async fn ask_dated(&mut self, op: NativeOp) -> Option<(u64, Result<NativeAnswer, NativeError>)> {
        let is_write = matches!(op, NativeOp::Write(_));
        self.number += 1;
        let lag = if self.client.chance(300) { self.client.below(UNACKNOWLEDGED) } else { 0 };
        let acknowledged = self.acknowledged.max((self.number - 1).saturating_sub(lag));
        let number = self.number;
        let request = NativeRequest { session: self.id, number, acknowledged, op };
        for attempts in 0..TRIES {
            let command = NativeCommand::Request(request.clone());
            let told = attempt(self.client, NativeAsk::Command(command, 0)).await;
            if let NativeTold::Decided { revision, result, .. } = told {
                self.acknowledged = acknowledged;
                self.client.around().coverage.add(coverage::NATIVE_ASKED_AGAIN, u64::from(attempts > 0));
                self.over |= matches!(result, Err(NativeError::UnknownSession));
                if self.client.chance(if is_write { 200 } else { 40 }) && !self.over {
                    // The answer got lost on the way to the program, which asks again, elsewhere. What a write
                    // was made under may be another's by then, and the session over.
                    self.client.leave_node();
                    if is_write && self.client.chance(300) {
                        self.client.think(AGAIN.1, 2 * self.ttl).await;
                    }
                    let command = NativeCommand::Request(request.clone());
                    attempt(self.client, NativeAsk::Command(command, 0)).await;
                    self.client.around().coverage.hit(coverage::NATIVE_ASKED_AGAIN);
                }
                return Some((revision, result));
            }
            if self.client.stopping() {
                break;
            }
            self.client.think(AGAIN.0, AGAIN.1).await;
            self.keep_alive_if_due().await;
        }
        // Whatever it came to, nobody knows: what it holds goes with the session.
        self.die();
        None
    }

    /// Renews the session and all beliefs in what it holds.
    async fn keep_alive(&mut self) {
        let sent = self.client.now();
        self.asked = sent;
        match attempt(self.client, NativeAsk::KeepAlive(self.id)).await {
            NativeTold::KeptAlive(true) => self.was_renewed(sent),
            NativeTold::KeptAlive(false) => self.over = true,
            _ => {}
        }
    }

    fn was_renewed(&mut self, sent: Micros) {
        self.renewed = self.renewed.max(sent);
        let until = self.renewed + self.ttl * 4 / 5;
        self.client.around().recorder.with(|history| {
            for (_, belief) in &self.beliefs {
                let belief = &mut history.native_beliefs[*belief];
                belief.until = belief.until.max(until);
            }
        });
    }

    async fn keep_alive_if_due(&mut self) {
        if !self.over && self.client.now() >= self.asked + self.ttl / 3 {
            self.keep_alive().await;
        }
        self.follow().await;
    }

    /// Hears whether the session is over, at a node that tells; goes to another when that one tells nothing any more.
    async fn follow(&mut self) {
        let now = self.client.now();
        if self.over || !self.follows {
            return;
        }
        if let Some(following) = &mut self.following {
            match self.client.native_hears_end(following) {
                Some(false) => return,
                Some(true) => {
                    self.over = true;
                    return self.client.around().coverage.hit(coverage::NATIVE_END_TOLD);
                }
                None => self.following = None,
            }
        }
        if now < self.attach_at || self.client.is_cut_off() {
            return;
        }
        // Asking takes long where nobody answers: what the session is for goes on.
        self.attach_at = now + self.ttl;
        let Some(node) = self.client.choose_node() else { return };
        let (told, following) = self.client.native_attach(node, self.id).await;
        self.following = following;
        self.over |= told == NativeTold::Attached(false);
    }

    /// Renews no more, and waits to be told of the end.
    pub(super) async fn await_end(&mut self) {
        self.follows = true;
        let until = self.client.now() + 4 * self.ttl;
        while self.client.now() < until && !self.over && !self.client.stopping() {
            self.follow().await;
            self.client.think(LOOK.0, LOOK.1).await;
        }
    }

    /// Renews in the last moment, when the end may be on its way through the log.
    pub(super) async fn renew_late(&mut self) {
        for _ in 0..LATE_RENEWALS {
            // Nodes count whole seconds, from when they heard of the last renewal.
            let whole = self.ttl.div_ceil(SECOND) * SECOND;
            let due = self.asked.max(self.renewed) + whole + self.client.between(0, LATE);
            self.client.sleep(due.saturating_sub(self.client.now())).await;
            if self.over || self.client.stopping() {
                return;
            }
            self.client.around().coverage.hit(coverage::NATIVE_RENEWED_LATE);
            self.keep_alive().await;
        }
    }

    /// Lets time pass and stays alive.
    pub(super) async fn dwell(&mut self, time: Micros) {
        let until = self.client.now() + time;
        while self.client.now() < until && !self.over && !self.client.stopping() {
            let step = (self.ttl / 4).min(until - self.client.now());
            self.client.sleep(step).await;
            self.keep_alive_if_due().await;
        }
    }

    pub(super) async fn rest(&mut self) {
        let time = self.client.between(PAUSE.0, PAUSE.1);
        self.dwell(time).await;
    }

    /// Its time to live, at least.
    pub(super) fn ttl(&self) -> Micros {
        self.ttl
    }

    /// A client that is cut off goes on asking for its session to be renewed, until it hears something.
    pub(super) async fn wait_until_heard(&mut self) {
        while self.client.is_cut_off() && !self.client.stopping() {
            self.keep_alive().await;
            self.client.think(LOOK.0, LOOK.1).await;
        }
    }

    /// Does nothing at all until the session is surely over.
    pub(super) async fn oversleep(&mut self) {
        self.client.sleep(self.ttl + self.client.between(0, self.ttl)).await;
    }

    pub(super) async fn close(&mut self) {
        self.forget_all();
        for _ in 0..TRIES {
            let ask = NativeAsk::Command(NativeCommand::Close { session: self.id }, 0);
            if let NativeTold::Decided { .. } = attempt(self.client, ask).await {
                break;
            }
            if self.client.stopping() {
                break;
            }
            self.client.think(AGAIN.0, AGAIN.1).await;
        }
        self.over = true;
    }

    /// Begins the time anew through the log, if the token is still good. A shorter time counts from the asking on.
    pub(super) async fn renew(&mut self, kind: Kind, name: &Name, token: u64) -> Decided {
        let change = self.client.chance(300);
        let ttl_ms = if change { self.client.between(TTL_MS.0, TTL_MS.1) } else { 0 };
        let (sent, ttl) = (self.client.now(), if change { ttl_ms * 1_000 } else { self.ttl });
        self.ttl = self.ttl.min(ttl);
        let at_most = sent + self.ttl * 4 / 5;
        self.client.around().recorder.with(|history| {
            for (_, belief) in &self.beliefs {
                let belief = &mut history.native_beliefs[*belief];
                belief.until = belief.until.min(at_most);
            }
        });
        let ttl_ms = u32::try_from(ttl_ms).unwrap_or(u32::MAX);
        let decided = self.ask(NativeOp::Renew { kind, name: name.clone(), token, ttl_ms }).await;
        if let Some(Ok(_)) = decided {
            self.ttl = ttl;
            self.was_renewed(sent);
        }
        decided
    }

    /// From now on the client believes to hold this.
    pub(super) fn believe(&mut self, kind: Kind, name: &Name, mode: Mode, token: u64) {
        let (from, until) = (self.client.now(), self.renewed + self.ttl * 4 / 5);
        let (client, session, name) = (self.client.id(), self.id, name.clone());
        let belief = NativeBelief { client, session, kind, name, mode, token, from, until };
        let place = self.client.around().recorder.with(|history| {
            history.native_beliefs.push(belief);
            history.native_beliefs.len() - 1
        });
        self.beliefs.push((token, place));
    }

    /// It is about to give this back.
    pub(super) fn forget(&mut self, token: u64) {
        let now = self.client.now();
        let gone: Vec<usize> = self.beliefs.iter().filter(|(of, _)| *of == token).map(|(_, place)| *place).collect();
        self.beliefs.retain(|(of, _)| *of != token);
        self.client.around().recorder.with(|history| {
            for place in gone {
                let belief = &mut history.native_beliefs[place];
                belief.until = belief.until.min(now);
            }
        });
    }

    pub(super) fn forget_all(&mut self) {
        let tokens: Vec<u64> = self.beliefs.iter().map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.forget(token));
    }

    /// Waits for news of a name: asks how it is, then listens to what the node is told from there on, and begins anew
    /// where it cannot listen any more. `None`: it waited in vain, or the session is over.
    pub(super) async fn wait_for<T>(
        &mut self,
        patience: Micros,
        (kind, name): (Kind, &Name),
        found: impl Fn(&ObjectFound) -> Option<T>,
        heard: impl Fn(&NativeNotice) -> Option<T>,
    ) -> Option<T> {
        let until = self.client.now() + patience;
        let mut listening: Option<Listening> = None;
        while self.client.now() < until && !self.over && !self.client.stopping() {
            self.keep_alive_if_due().await;
            let Some(Listening { node, push, next, since }) = listening else {
                let begun = self.begin_listening(kind, name, &found).await;
                match begun {
                    Begun::Found(news) => return Some(news),
                    Begun::Listening(begun) => listening = Some(begun),
                    Begun::Nowhere => self.client.think(LOOK.1, 4 * LOOK.1).await,
                }
                continue;
            };
            self.client.think(LOOK.0, LOOK.1).await;
            if self.client.native_push(node) != Some(push) || self.client.chance(5) {
                listening = None;
                continue;
            }
            let news = self.client.native_heard(push, next);
            listening = Some(Listening { node, push, next: next + news.len(), since });
            let mut later = news.iter().filter(|(revision, _)| *revision > since).map(|(_, notice)| notice);
            if let Some(news) = later.find_map(&heard) {
                return Some(news);
            }
        }
        None
    }

    async fn begin_listening<T>(&self, kind: Kind, name: &Name, found: impl Fn(&ObjectFound) -> Option<T>) -> Begun<T> {
        let Some(node) = self.client.choose_node() else { return Begun::Nowhere };
        let push = self.client.native_push(node);
        let Some((since, object)) = self.client.native_look(node, kind, name).await else { return Begun::Nowhere };
        match (found(&object), push) {
            (Some(news), _) => Begun::Found(news),
            (None, Some(push)) => Begun::Listening(Listening { node, push, next: 0, since }),
            (None, None) => Begun::Nowhere,
        }
    }
}

/// Where a client listens.
#[derive(Clone, Copy)]
struct Listening {
    node: NodeId,
    push: usize,
    /// The notice to look at next.
    next: usize,
    /// Up to this revision it was told how things are.
    since: u64,
}

enum Begun<T> {
    Found(T),
    Listening(Listening),
    Nowhere,
}

/// Asks the node the client is connected to, or another.
async fn attempt(client: &Client, ask: NativeAsk) -> NativeTold {
    let Some(node) = client.choose_node() else {
        client.think(AGAIN.0, AGAIN.1).await;
        return NativeTold::Refused("no node can be reached".to_owned());
    };
    let told = client.native_at(node, ask).await;
    if matches!(told, NativeTold::Refused(_) | NativeTold::Unknown(_)) {
        client.leave_node();
    }
    told
}
