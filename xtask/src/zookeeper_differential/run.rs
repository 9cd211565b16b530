//! Carries out the steps on both sides and compares what comes back.
//!
//! A run is made of rounds. Each has a tree, sessions and choices of its own, so that a difference spoils no more than
//! the rest of its round, and a round can be replayed alone.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use indicatif::ProgressBar;

use super::answer::{Field, Item, Value};
use super::call::{Call, Seen};
use super::explained::{self, Done};
use super::generator::{Generator, Step, open_create};
use super::observed::{ASKED, BEFORE, Observed, kind_of_difference};
use super::quotas;
use super::side::{Again, Side};
use super::tree::{JANITOR, one_in};
use crate::Result;
use crate::differences::{Difference, Hits, Report};

/// Steps of one round.
const STEPS: u64 = 300;
/// Differences after which a round ends, though none of them was about a change.
const DIFFERENCES_OF_A_ROUND: u64 = 5;
/// Differences after which the run stops.
const DIFFERENCES_MAX: u64 = 400;
/// No such operation.
const UNIMPLEMENTED: i32 = -6;
/// How long a server takes to end a connection that it has said its last word to.
const END_PAUSE: Duration = Duration::from_millis(50);
/// Znodes removed at the end of a round; far more than there can be.
const TIDIED_MAX: usize = 10_000;
/// How often our server looks for empty containers, and how long before and after that no round begins: the time is
/// the server's own and not the run's.
const REAPS: Duration = Duration::from_secs(60);
const REAP_MARGIN: Duration = Duration::from_secs(5);

/// A comparison under way.
pub(super) struct Run {
    ours: Side,
    theirs: Side,
    /// When our server was started, if it looks for empty containers.
    reaps_since: Option<Instant>,
    seed: u64,
    round: u64,
    /// Operations of this round and of all.
    at: u64,
    done: u64,
    generator: Generator,
    /// The next xid of each slot.
    xids: Vec<i32>,
    /// The timeout that each slot's session asked for.
    timeouts: Vec<i32>,
    /// Sessions opened in this round.
    sessions: u64,
    /// Differences of this round.
    differences: u64,
    diverged: bool,
    /// Whether every operation is printed.
    pub(super) trace: bool,
    bar: ProgressBar,
    report: Report,
    hits: Hits,
}

impl Run {
    pub(super) fn new(ours: Side, theirs: Side, reaps_since: Option<Instant>, seed: u64, bar: ProgressBar) -> Run {
        Run {
            ours,
            theirs,
            reaps_since,
            seed,
            round: 0,
            at: 0,
            done: 0,
            generator: Generator::new(seed, 0, String::new()),
            xids: Vec::new(),
            timeouts: Vec::new(),
            sessions: 0,
            differences: 0,
            diverged: false,
            trace: false,
            report: Report::new(bar.clone(), "zookeeper", DIFFERENCES_MAX),
            bar,
            hits: Hits::default(),
        }
    }

    /// Operations done, what was found, and what was explained.
    pub(super) fn result(self) -> (u64, Report, Hits) {
        (self.done, self.report, self.hits)
    }

    /// Does rounds until `ops` operations were done, or the one round that is asked for.
    pub(super) async fn go(&mut self, ops: u64, only: Option<u64>) -> Result<()> {
        // An empty round first: from then on each side's zxids are known, and what was before them is "before".
        self.round = u64::MAX;
        self.begin().await?;
        self.tidy_up().await?;
        self.round = only.unwrap_or(0);
        while self.done < ops && !self.report.is_full() {
            self.wait_for_quiet().await;
            self.begin().await?;
            for _ in 0..STEPS {
                if self.done >= ops || self.diverged || self.differences >= DIFFERENCES_OF_A_ROUND {
                    break;
                }
                self.step().await;
                self.bar.set_position(self.done);
            }
            self.ours.check_alive()?;
            self.theirs.check_alive()?;
            self.tidy_up().await?;
            if only.is_some() {
                break;
            }
            self.round += 1;
        }
        Ok(())
    }

    /// Waits if our server is about to look for empty containers.
    async fn wait_for_quiet(&self) {
        let Some(since) = self.reaps_since else { return };
        let into = Duration::from_millis((since.elapsed().as_millis() % REAPS.as_millis()) as u64);
        // Counted from the start of the process; its own count began a little later.
        if into + REAP_MARGIN > REAPS {
            tokio::time::sleep(REAPS + REAP_MARGIN / 5 - into).await;
        }
    }

    /// The slot of whoever tidies up.
    fn janitor(&self) -> usize {
        self.xids.len() - 1
    }

    async fn begin(&mut self) -> Result<()> {
        self.generator = Generator::new(self.seed, self.round, format!("/r{}", self.round));
        let sessions = 3 + self.generator.random.below(3) as usize;
        (self.at, self.sessions, self.differences, self.diverged) = (0, 0, 0, false);
        self.xids = vec![1; sessions + 1];
        self.timeouts = vec![0; sessions + 1];
        self.ours.begin(sessions + 1);
        self.theirs.begin(sessions + 1);
        for slot in 0..=sessions {
            self.open(slot).await;
        }
        let janitor = self.janitor();
        let root = open_create(&self.generator.tree.root);
        self.ask(janitor, &root).await;
        let Generator { quota, random, .. } = &mut self.generator;
        let prepared = quota.as_ref().map_or_else(Vec::new, |quota| quota.prepare(random));
        for call in prepared {
            self.ask(janitor, &call).await;
        }
        self.ask(janitor, &Call::Auth { scheme: "digest".to_string(), auth: JANITOR.to_string() }).await;
        let connected = |side: &Side| side.slots[janitor].connection.is_some();
        if connected(&self.ours) && connected(&self.theirs) {
            Ok(())
        } else {
            Err("a session could not be opened, or not authenticated".to_string())
        }
    }

    async fn step(&mut self) {
        let janitor = self.janitor() as u64;
        let slot = self.generator.random.below(janitor) as usize;
        match self.generator.next() {
            Step::Ask(call) => {
                if !self.is_attached(slot) {
                    self.attach(slot, Seen::AllItWasTold, true).await;
                }
                if self.is_attached(slot) && !self.diverged {
                    self.ask(slot, &call).await;
                }
            }
            Step::Drop => self.detach(slot),
            Step::Attach(seen) => self.attach(slot, seen, true).await,
            Step::AttachWithWrongPassword => self.attach(slot, Seen::Nothing, false).await,
        }
    }

    fn is_attached(&self, slot: usize) -> bool {
        self.ours.slots[slot].connection.is_some()
    }

    fn detach(&mut self, slot: usize) {
        self.ours.slots[slot].connection = None;
        self.theirs.slots[slot].connection = None;
    }

    async fn open(&mut self, slot: usize) {
        let timeout = self.generator.timeout();
        let read_only = if one_in(&mut self.generator.random, 10) { None } else { Some(false) };
        self.sessions += 1;
        self.xids[slot] = 1;
        self.timeouts[slot] = timeout;
        let number = self.sessions;
        let (ours, theirs) = tokio::join!(
            self.ours.open(slot, timeout, read_only, number),
            self.theirs.open(slot, timeout, read_only, number)
        );
        let (mut one, mut other) = (Observed::default(), Observed::default());
        one.add(ASKED, vec![ours]);
        other.add(ASKED, vec![theirs]);
        self.compare(None, &format!("a new session, timeout {timeout}"), one, other);
        self.level();
    }

    async fn attach(&mut self, slot: usize, seen: Seen, right_password: bool) {
        let usual = self.timeouts[slot];
        let timeout = if one_in(&mut self.generator.random, 20) { self.generator.timeout() } else { usual };
        let again = Again { seen, timeout, right_password };
        let ((ours, our_old), (theirs, their_old)) =
            tokio::join!(self.ours.attach(slot, &again), self.theirs.attach(slot, &again));
        let over = |item: &Item| matches!(item, Item::Greeting { timeout: 0, .. });
        let session_over = right_password && over(&ours) && over(&theirs);
        let (mut one, mut other) = (Observed::default(), Observed::default());
        one.add(ASKED, vec![ours]);
        one.add(BEFORE, our_old);
        other.add(ASKED, vec![theirs]);
        other.add(BEFORE, their_old);
        let asked = format!("session of slot {slot}: {again:?}");
        self.compare(None, &asked, one, other);
        self.level();
        if session_over {
            self.open(slot).await;
        }
    }

    /// A connection that only one side has is of no use.
    fn level(&mut self) {
        for slot in 0..self.xids.len() {
            if self.ours.slots[slot].connection.is_some() != self.theirs.slots[slot].connection.is_some() {
                self.detach(slot);
            }
        }
    }

    /// Asks both, lets both come to rest, compares.
    async fn ask(&mut self, slot: usize, call: &Call) {
        let xid = match call.reserved_xid() {
            Some(xid) => xid,
            None => {
                self.xids[slot] += 1;
                self.generator.xid(self.xids[slot])
            }
        };
        let highest = (self.ours.names.highest, self.theirs.names.highest);
        let (mut ours, mut theirs) =
            tokio::join!(observe(&mut self.ours, slot, xid, call), observe(&mut self.theirs, slot, xid, call));
        let moved = (ours.highest() > highest.0, theirs.highest() > highest.1);
        if moved == (true, true) {
            self.ours.names.label(self.at, highest.0);
            self.theirs.names.label(self.at, highest.1);
        }
        for side in [&mut self.ours, &mut self.theirs] {
            side.slots[slot].told = side.names.labels();
        }
        if call.writes() && ours.succeeded() && theirs.succeeded() {
            note_moved(&mut ours, moved.0);
            note_moved(&mut theirs, moved.1);
        }
        self.learn(call, &ours);
        self.compare(Some(call), &format!("slot {slot} xid {xid} {call:?}"), ours, theirs);
        self.level();
        if *call == Call::CloseSession && !self.diverged {
            self.open(slot).await;
        }
    }

    fn learn(&mut self, call: &Call, ours: &Observed) {
        let Some(Item::Reply { error: 0, fields, .. }) = ours.reply() else { return };
        match call {
            Call::Create { flags: 2 | 3 | 6, .. } => {
                if let Some(Field { value: Value::Text(Some(path)), .. }) = fields.first() {
                    self.generator.tree.remember(path);
                }
            }
            Call::Delete { path, .. } => self.generator.tree.forget(path),
            _ => {}
        }
    }

    fn compare(&mut self, call: Done<'_>, asked: &str, mut ours: Observed, mut theirs: Observed) {
        self.at += 1;
        self.done += 1;
        ours.mask(&self.ours.names);
        theirs.mask(&self.theirs.names);
        if self.trace {
            let ours = if ours == theirs { String::new() } else { format!("\n    but ours: {ours:?}") };
            self.bar.suspend(|| println!("{} {asked}\n    {theirs:?}{ours}", self.at));
        }
        if ours == theirs {
            return;
        }
        // A change that one side made and the other did not: nothing after it can be compared.
        self.diverged |= call.is_some_and(|call| !call.only_reads() && ours.succeeded() != theirs.succeeded());
        if self.hits.explain((&ours, &theirs), explained::rules(call)) {
            return;
        }
        let name = call.map_or("session", Call::name);
        let kind = format!("{name}, {}", kind_of_difference(&ours, &theirs));
        let events = |side: &Observed| side.0.iter().any(|(row, _)| row != ASKED);
        self.diverged |= call.is_none() || events(&ours) || events(&theirs);
        self.differences += 1;
        let (at, round) = (self.at, self.round);
        let place = format!("operation {at} of round {round}; replay: --seed {} --round {round}", self.seed);
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        self.report.add(&Difference { kind: &kind, place, asked, ours: &ours, theirs: &theirs });
    }

    /// Ends the sessions and removes the tree of the round, each side as it is.
    async fn tidy_up(&mut self) -> Result<()> {
        let (janitor, root) = (self.janitor(), self.generator.tree.root.clone());
        let (ours, theirs) =
            tokio::join!(tidy_up(&mut self.ours, janitor, &root), tidy_up(&mut self.theirs, janitor, &root));
        ours.and(theirs)
    }
}

fn note_moved(observed: &mut Observed, moved: bool) {
    if let Some(Item::Reply { fields, .. }) = observed.reply_mut() {
        fields.push(Field { name: "moved".to_string(), value: Value::Number(moved.into()) });
    }
}

/// Asks, and waits until nothing more comes over any connection.
async fn observe(side: &mut Side, slot: usize, xid: i32, call: &Call) -> Observed {
    let mut observed = Observed::default();
    let items = side.ask(slot, xid, call).await;
    if matches!(items.last(), Some(Item::Reply { error: UNIMPLEMENTED, .. })) {
        // ZooKeeper ends the connection a moment later, from another thread.
        tokio::time::sleep(END_PAUSE).await;
    }
    observed.add(ASKED, items);
    if call.only_reads() {
        return observed;
    }
    for (row, items) in side.settle_all().await {
        let row = if row == slot { ASKED.to_string() } else { format!("slot {row}") };
        observed.add(&row, items);
    }
    observed
}

/// Removes everything at and below `root`.
async fn tidy_up(side: &mut Side, janitor: usize, root: &str) -> Result<()> {
    let sessions: Vec<usize> = (0..janitor).collect();
    join_all(side.slots.iter_mut().take(sessions.len()).map(|slot| async {
        if let Some(connection) = &mut slot.connection {
            connection.ask(1, Call::CloseSession.opcode(), &[]).await;
        }
    }))
    .await;
    let mut left = vec![root.to_string(), quotas::top(root)];
    for _ in 0..TIDIED_MAX {
        let Some(path) = left.last().cloned() else {
            side.ask(janitor, 1, &Call::CloseSession).await;
            return Ok(());
        };
        let delete = Call::Delete { path: path.clone(), version: -1 };
        match side.ask(janitor, 1, &delete).await.pop() {
            Some(Item::Reply { error: 0 | -101, .. }) => {
                left.pop();
            }
            Some(Item::Reply { error: -111, .. }) => {
                let list = Call::GetChildren { path: path.clone(), watch: false };
                if let Some(Item::Reply { error: 0, fields, .. }) = side.ask(janitor, 1, &list).await.pop()
                    && let Some(Field { value: Value::Names(Some(names)), .. }) = fields.first()
                {
                    left.extend(names.iter().map(|name| format!("{path}/{name}")));
                } else {
                    return Err(format!("{path} could not be listed to be removed"));
                }
            }
            other => return Err(format!("{path} could not be removed: {other:?}")),
        }
    }
    Err(format!("{root} has more below it than can be"))
}
