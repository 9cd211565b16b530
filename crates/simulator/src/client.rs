//! A client: asks one thing at a time, as an etcd client does, and has everything it asks and is told
//! written down.
//!
//! What goes to the node is etcd's own request, and what the node does with it is the etcd face's
//! translation around the node's coordinator (`handling`); only sockets are left out. What holds:
//! - a request whose fate the client cannot know is told as [`Told::Unknown`], never as refused;
//! - a call that is given up (too late, or the connection broke) is dropped at the node as a gRPC server
//!   drops the handler of a client that went away.
//!
//! What is asked when is the workloads' business, what the answers must be the checkers'.

mod handling;
mod native;
mod recorder;
mod watching;
mod wire;
mod zookeeper;

#[cfg(test)]
pub(crate) mod test_double;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use tidelock_coordinator::Coordinator;
use tidelock_model::{Caller, NodeId};

use crate::coverage::{self, Coverage};
use crate::doors::{Door, Doors, within};
use crate::executor::Clock;
use crate::history::{Answer, Asker, Content, Micros, Op, Request, Told};
use crate::random::Random;

pub use native::Following;
pub use recorder::Recorder;
pub use watching::{Habits, WatchSpec, Watched};
pub use zookeeper::{Connected, Connection, News, Ticket};

/// How often, in thousandths, a client goes to another node for no reason.
const MOVE_PERMILLE: u64 = 20;
/// How often, in thousandths, it goes to another node when it got no answer.
const MOVE_AFTER_FAILURE_PERMILLE: u64 = 700;
/// How long a message between client and node takes, usually.
const TRAVEL: (Micros, Micros) = (50, 1_500);
/// How long it takes now and then.
const TRAVEL_SLOW: (Micros, Micros) = (5_000, 120_000);
/// How often, in thousandths, it takes that long.
const TRAVEL_SLOW_PERMILLE: u64 = 15;
/// How long a client waits for a node to come up when it can reach none.
const NOBODY_THERE: Micros = 100_000;

/// Why a client got no answer that says anything.
const BROKE: &str = "the connection to the node broke";
const TOO_LATE: &str = "no answer in time";
const UNREACHABLE: &str = "the node cannot be reached";

/// A user to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnBehalf {
    /// Its name.
    pub user: String,
    /// How many changes of users and roles ago, as the node counts them, it proved to be that; 0: just now.
    pub behind: u64,
}

/// What all clients of a run share.
pub struct Surroundings {
    /// Virtual time.
    pub clock: Clock,
    /// The ways to the nodes.
    pub doors: Doors,
    /// Where everything is written down.
    pub recorder: Recorder,
    /// What was reached.
    pub coverage: Coverage,
    stopping: Cell<bool>,
    newest: Cell<i64>,
}

impl Surroundings {
    /// At the beginning of a run.
    #[must_use]
    pub fn new(clock: Clock, doors: Doors, recorder: Recorder, coverage: Coverage) -> Surroundings {
        let (stopping, newest) = (Cell::new(false), Cell::new(1));
        Surroundings { clock, doors, recorder, coverage, stopping, newest }
    }

    /// Tells all clients to finish what they are at and ask no more.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether they were told.
    #[must_use]
    pub fn stopping(&self) -> bool {
        self.stopping.get()
    }

    fn saw_revision(&self, revision: i64) {
        self.newest.set(self.newest.get().max(revision));
    }
}

/// One client. Clones are the same client.
#[derive(Clone)]
pub struct Client(Rc<Inner>);

struct Inner {
    id: u32,
    around: Rc<Surroundings>,
    random: RefCell<Random>,
    /// How long it waits for an answer.
    timeout: Micros,
    /// The node it is connected to.
    node: Cell<Option<NodeId>>,
    /// How many values it has made.
    values: Cell<u64>,
    /// Until when nothing of it gets through, and which way.
    cut: Cell<(Micros, Cut)>,
}

/// Which messages of a client get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of them.
    BothWays,
    /// What the nodes tell it: they go on hearing from it.
    Answers,
}

impl Client {
    /// A client with an id that no other has.
    #[must_use]
    pub fn new(id: u32, around: Rc<Surroundings>, random: Random, timeout: Micros) -> Client {
        let (node, values, cut) = (Cell::new(None), Cell::new(0), Cell::new((0, Cut::BothWays)));
        Client(Rc::new(Inner { id, around, random: RefCell::new(random), timeout, node, values, cut }))
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// What it shares with the others.
    #[must_use]
    pub fn around(&self) -> &Surroundings {
        &self.0.around
    }

    /// Text that no other request of the run writes.
    #[must_use]
    pub fn unique(&self) -> String {
        self.0.values.set(self.0.values.get() + 1);
        format!("c{}.{}", self.0.id, self.0.values.get())
    }

    /// A number below `n`.
    #[must_use]
    pub fn below(&self, n: u64) -> u64 {
        self.0.random.borrow_mut().below(n)
    }

    /// A number from `low` to `high`, both included.
    #[must_use]
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.0.random.borrow_mut().between(low, high)
    }

    /// True so many times in a thousand.
    #[must_use]
    pub fn chance(&self, permille: u64) -> bool {
        self.0.random.borrow_mut().chance(permille)
    }

    /// One of these.
    #[must_use]
    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        self.0.random.borrow_mut().pick(from)
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.0.around.clock.now()
    }

    /// Waits.
    pub async fn sleep(&self, time: Micros) {
        self.0.around.clock.sleep(time).await;
    }

    /// Waits, from `low` to `high`.
    pub async fn think(&self, low: Micros, high: Micros) {
        self.sleep(self.between(low, high)).await;
    }

    /// Cuts the client off from all nodes for a while. What it asks meanwhile, it waits for in vain.
    pub fn cut_off(&self, time: Micros, cut: Cut) {
        self.0.cut.set((self.now() + time, cut));
    }

    /// Whether what nodes tell it gets lost now.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.now() < self.0.cut.get().0
    }

    /// Whether the run is over: finish.
    #[must_use]
    pub fn stopping(&self) -> bool {
        self.0.around.stopping()
    }

    /// The newest revision that any client was told.
    #[must_use]
    pub fn newest_revision(&self) -> i64 {
        self.0.around.newest.get()
    }

    /// A node that can be reached: the one it is connected to, mostly.
    #[must_use]
    pub fn choose_node(&self) -> Option<NodeId> {
        let reachable = self.0.around.doors.reachable();
        let sticky = self.0.node.get().filter(|node| reachable.contains(node));
        if sticky.is_none() || self.chance(MOVE_PERMILLE) {
            self.0.node.set(self.random_of(&reachable));
        }
        self.0.node.get()
    }

    /// Goes to another node next time, mostly.
    pub fn leave_node(&self) {
        if self.chance(MOVE_AFTER_FAILURE_PERMILLE) {
            self.0.node.set(None);
        }
    }

    /// Any node that can be reached.
    #[must_use]
    pub fn any_node(&self) -> Option<NodeId> {
        self.random_of(&self.0.around.doors.reachable())
    }

    fn random_of(&self, nodes: &[NodeId]) -> Option<NodeId> {
        if nodes.is_empty() { None } else { Some(*self.pick(nodes)) }
    }

    /// Asks the node it is connected to, and connects to another if there is no answer.
    pub async fn ask(&self, request: Request) -> Told {
        let Some(node) = self.choose_node() else {
            self.sleep(NOBODY_THERE).await;
            return Told::Refused(UNREACHABLE.to_owned());
        };
        let told = self.ask_at(node, request).await;
        if matches!(told, Told::Refused(_) | Told::Unknown(_)) && self.chance(MOVE_AFTER_FAILURE_PERMILLE) {
            self.0.node.set(None);
        }
        told
    }

    /// Asks a certain node.
    pub async fn ask_at(&self, node: NodeId, request: Request) -> Told {
        self.ask_for(node, None, request).await
    }

    /// Asks a certain node, as one of its users if need be.
    pub async fn ask_for(&self, node: NodeId, user: Option<&OnBehalf>, request: Request) -> Told {
        let around = &self.0.around;
        let place = around.recorder.called(self.0.id, node, request.clone());
        let told = match around.doors.door(node) {
            Some(door) => {
                let asked = self.ask_through(&door, request, |coordinator| self.caller(coordinator, place, user));
                around.clock.within(self.0.timeout, asked).await
            }
            None => Some(Told::Refused(UNREACHABLE.to_owned())),
        };
        let told = told.unwrap_or_else(|| Told::Unknown(TOO_LATE.to_owned()));
        if let Told::Answer(answer) = &told {
            self.count(answer);
        }
        around.recorder.returned(place, told.clone());
        told
    }

    /// Notes what an answer shows to have been reached.
    fn count(&self, answer: &Answer) {
        let around = &self.0.around;
        around.saw_revision(answer.revision);
        match answer.content {
            Content::Revoked => around.coverage.hit(coverage::LEASE_REVOKED),
            Content::Compacted if around.recorder.open_watchers() > 0 => {
                around.coverage.hit(coverage::COMPACTION_UNDER_WATCH);
            }
            _ => {}
        }
    }

    /// Who the node takes the client for, at the moment the request arrives.
    fn caller(&self, coordinator: &dyn Coordinator, place: usize, user: Option<&OnBehalf>) -> Caller {
        let Some(OnBehalf { user, behind }) = user else { return Caller::Internal };
        let auth_revision = coordinator.auth().revision.saturating_sub(*behind);
        self.0.around.recorder.asked_as(place, Asker { user: user.clone(), auth_revision });
        Caller::User { name: user.as_str().into(), auth_revision }
    }

    async fn ask_through(
        &self,
        door: &Rc<Door>,
        request: Request,
        caller: impl FnOnce(&dyn Coordinator) -> Caller,
    ) -> Told {
        self.travel_there().await;
        let coordinator = door.coordinator();
        let caller = caller(&*coordinator);
        let told = within(door, handling::handle(coordinator, caller, request)).await;
        self.travel_back().await;
        match told {
            // The answer was under way when the connection broke.
            Ok(_) if door.is_broken() => Told::Unknown(BROKE.to_owned()),
            Ok(told) => told,
            Err(_) => Told::Unknown(BROKE.to_owned()),
        }
    }

    /// A request is under way. One that gets lost never arrives.
    async fn travel_there(&self) {
        self.travel().await;
        if self.is_cut_off() && self.0.cut.get().1 == Cut::BothWays {
            std::future::pending::<()>().await;
        }
    }

    /// An answer is under way. One that gets lost never arrives.
    async fn travel_back(&self) {
        self.travel().await;
        if self.is_cut_off() {
            std::future::pending::<()>().await;
        }
    }

    async fn travel(&self) {
        let (low, high) = if self.chance(TRAVEL_SLOW_PERMILLE) { TRAVEL_SLOW } else { TRAVEL };
        self.think(low, high).await;
    }

    /// Calls a node's coordinator past the etcd face, for what is not a request of a history. `None`: no
    /// answer, for whatever reason.
    pub async fn call_at<T, F: Future<Output = T>>(
        &self,
        node: NodeId,
        call: impl FnOnce(Arc<dyn Coordinator>) -> F,
    ) -> Option<T> {
        let around = &self.0.around;
        let door = around.doors.door(node)?;
        let called = async {
            let answer = within(&door, async { call(door.coordinator()).await }).await;
            if self.is_cut_off() { std::future::pending().await } else { answer }
        };
        around.clock.within(self.0.timeout, called).await?.ok()
    }

    /// Reads a key or a range, linearizably: what was found and at which revision.
    pub async fn get(&self, key: &str, end: Option<&str>) -> Option<Answer> {
        let (key, end) = (key.to_owned(), end.map(str::to_owned));
        let told = self.ask(Request::Op(Op::Get { key, end, at: 0, serializable: false })).await;
        match told {
            Told::Answer(answer @ Answer { content: Content::Get { .. }, .. }) => Some(answer),
            _ => None,
        }
    }
}
