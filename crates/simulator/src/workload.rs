//! What clients do. One file per workload; [`ALL`] is where a new one is added.
//!
//! A client of any workload asks about five times a second, so that ten to thirty clients make the 50 to
//! 150 requests a second a run can carry. All of them end when the run stops, except watch streams: what is
//! open then stays open, so that the checkers can see whether it was told everything.
//!
//! What the checkers rely on: every value written in a run is written once, and keys are named by what they
//! hold:
//!
//! | key              | value                                                                |
//! |------------------|----------------------------------------------------------------------|
//! | `reg/<n>`        | unique text                                                          |
//! | `account/<n>`    | `<amount>#<unique>`; all are created in one transaction, no money is made or lost |
//! | `list/<n>`       | unique elements, joined by commas; only appended to                  |
//! | `counter/<n>`    | `<count>#<unique>`; only counted up                                  |
//! | `lease/<id>/<n>` | unique text, usually owned by lease `<id>`                           |
//! | `session/<id>`   | unique text, owned by lease `<id>`                                   |
//! | `bulk/<n>`       | unique text, then padding                                            |
//! | `lock/<n>/<id>`  | unique text, owned by lease `<id>` (in hexadecimal), which waits in the line or holds the lock |
//! | `guarded/<n>`    | `<token>#<unique>`; written by the holder of lock `<n>` alone, the token is when its place was made |
//! | `auth/<n>/<k>`   | unique text, written by users                                        |
//! | a znode          | unique text; which there are is told in `znodes/requests.rs`         |
//! | `fenced/<name>`  | `<token>#<unique>`; written by showing the token of that native lock |
//! | `unfenced/<name>` | the same, written without showing it                                |
//! | `held/<name>`    | `<token>#<unique>`; written by native writes of the session that holds that lock or leads; `held/<name>/last` with it |
//! | a native name    | what `native.rs` makes of it; every addition to a counter adds another number |

mod auth;
mod bulk;
mod counters;
mod leases;
mod lists;
mod locks;
mod members;
mod native;
mod registers;
mod sessions;
mod transactions;
mod upkeep;
mod watches;
mod znodes;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use tidelock_model::{Member, NodeId};

use crate::client::{Client, Surroundings};
use crate::executor::Spawner;
use crate::history::{Answer, Compare, Content, Kv, Micros, Op, Request, Told};
use crate::random::Random;

/// A kind of clients.
pub struct Workload {
    /// Its name, as plans call it.
    pub name: &'static str,
    /// Most clients it can have in one run.
    pub clients_max: u64,
    start: fn(&Setup, u64),
}

/// Every workload there is.
pub const ALL: &[Workload] = &[
    Workload { name: "registers", clients_max: 16, start: registers::start },
    Workload { name: "transactions", clients_max: 6, start: transactions::start },
    Workload { name: "lists", clients_max: 6, start: lists::start },
    Workload { name: "counters", clients_max: 6, start: counters::start },
    Workload { name: "leases", clients_max: 6, start: leases::start },
    Workload { name: "sessions", clients_max: 6, start: sessions::start },
    Workload { name: "watches", clients_max: 8, start: watches::start },
    Workload { name: "bulk", clients_max: 2, start: bulk::start },
    Workload { name: "upkeep", clients_max: 2, start: upkeep::start },
    // One change of members at a time, so one client.
    Workload { name: "members", clients_max: 1, start: members::start },
    Workload { name: "locks", clients_max: 6, start: locks::start },
    Workload { name: "auth", clients_max: 6, start: auth::start },
    Workload { name: "znodes", clients_max: 6, start: znodes::start },
    Workload { name: "native", clients_max: 8, start: native::start },
];

/// Shortest and longest time a client waits for an answer; some are more patient than the nodes are.
const TIMEOUT: (Micros, Micros) = (1_000_000, 6_000_000);
/// Shortest and longest time between two requests of a client.
const THINK: (Micros, Micros) = (50_000, 300_000);

/// Something about machines that only the world can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start a machine for a member that was added. May be given again for one that runs.
    Start {
        /// Who it is.
        member: Member,
        /// All members, to know whom to talk to.
        members: Vec<Member>,
    },
    /// Stop the machine of a member that was removed. May be given again for one that stopped.
    Stop {
        /// Whose.
        node: NodeId,
    },
}

/// What the world was ordered to do and has not done yet. Clones are the same orders.
#[derive(Clone, Default)]
pub struct MemberOrders(Rc<RefCell<VecDeque<Order>>>);

impl MemberOrders {
    /// Orders something; it is done soon.
    pub fn give(&self, order: Order) {
        self.0.borrow_mut().push_back(order);
    }

    /// The next thing to do.
    #[must_use]
    pub fn take(&self) -> Option<Order> {
        self.0.borrow_mut().pop_front()
    }
}

/// What workloads are started with.
pub struct Setup {
    around: Rc<Surroundings>,
    spawner: Spawner,
    random: Random,
    orders: MemberOrders,
    clients: Cell<u32>,
    working: Rc<Cell<usize>>,
}

impl Setup {
    /// Before the first client. `random` must be forked for clients alone.
    #[must_use]
    pub fn new(around: Rc<Surroundings>, spawner: Spawner, random: Random) -> Setup {
        let (orders, clients, working) = (MemberOrders::default(), Cell::new(0), Rc::default());
        Setup { around, spawner, random, orders, clients, working }
    }

    /// What the world must do for the members workload.
    #[must_use]
    pub fn orders(&self) -> MemberOrders {
        self.orders.clone()
    }

    /// One more client.
    #[must_use]
    pub fn client(&self) -> Client {
        let id = self.clients.get();
        self.clients.set(id + 1);
        let mut random = self.random.fork(&format!("client {id}"));
        let timeout = random.between(TIMEOUT.0, TIMEOUT.1);
        Client::new(id, self.around.clone(), random, timeout)
    }

    /// Starts a workload by name, with so many clients or as many as it can have.
    ///
    /// # Panics
    /// When there is no such workload: a plan is made of the names in [`ALL`].
    pub fn start(&self, name: &str, clients: u64) {
        let workload = ALL.iter().find(|workload| workload.name == name).expect("plans name workloads that exist");
        (workload.start)(self, clients.min(workload.clients_max));
    }

    /// Has so many clients do something until the run stops. Each gets its number within the workload.
    fn each<F: Future<Output = ()> + 'static>(&self, clients: u64, run: impl Fn(Client, u64) -> F) {
        for number in 0..clients {
            let (life, working) = (run(self.client(), number), self.working.clone());
            working.set(working.get() + 1);
            self.spawner.spawn(async move {
                life.await;
                working.set(working.get() - 1);
            });
        }
    }

    /// Has clients do something for ever.
    fn each_lingering<F: Future<Output = ()> + 'static>(&self, clients: u64, run: impl Fn(Client, u64) -> F) {
        for number in 0..clients {
            self.spawner.spawn(run(self.client(), number));
        }
    }

    /// Writes something and reads everything once, linearizably, so that the history ends with a write and
    /// with what was there at the end. To be started when the run has stopped; counts as working until both
    /// were answered.
    pub fn last_look(&self) {
        self.each(1, |client, _| async move {
            loop {
                let last = Request::Op(put("reg/last", client.unique(), 0));
                if let Told::Answer(_) = client.ask(last).await {
                    break;
                }
            }
            while client.get("a", Some("z")).await.is_none() {}
        });
    }

    /// Tells all clients to finish.
    pub fn stop(&self) {
        self.around.stop();
    }

    /// Clients that have not finished yet. Watchers do not count.
    #[must_use]
    pub fn working(&self) -> usize {
        self.working.get()
    }
}

impl Client {
    /// Waits as long as clients usually do between two requests.
    async fn think_a_while(&self) {
        self.think(THINK.0, THINK.1).await;
    }

    /// A past revision, up to `back` before the newest known; the first one if there are not so many.
    fn past_revision(&self, back: u64) -> i64 {
        let back = i64::try_from(self.below(back)).expect("small");
        (self.newest_revision() - back).max(1)
    }

    /// Carries out `then` if the key is still as it was found.
    async fn write_if_unchanged(&self, key: &str, found: Option<&Kv>, then: Vec<Op>) -> Told {
        let compares = vec![unchanged(key, found)];
        self.ask(Request::Txn { compares, then, otherwise: vec![get(key)] }).await
    }
}

fn put(key: &str, value: String, lease: i64) -> Op {
    Op::Put { key: key.to_owned(), value, lease }
}

fn get(key: &str) -> Op {
    Op::Get { key: key.to_owned(), end: None, at: 0, serializable: false }
}

fn get_range(key: &str, end: &str) -> Op {
    Op::Get { key: key.to_owned(), end: Some(end.to_owned()), at: 0, serializable: false }
}

/// Holds if the key is as it was found.
fn unchanged(key: &str, found: Option<&Kv>) -> Compare {
    Compare::ModifiedAt(key.to_owned(), found.map_or(0, |kv| kv.modified))
}

/// What a read found.
fn found(answer: &Answer) -> &[Kv] {
    match &answer.content {
        Content::Get { found, .. } => found,
        _ => &[],
    }
}

/// The number in front of the unique part of a value.
fn number_of(value: &str) -> u64 {
    value.split('#').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
