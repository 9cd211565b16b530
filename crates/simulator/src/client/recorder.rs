//! Writes the history down as it happens, and numbers what it writes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tidelock_model::NodeId;

use crate::executor::Clock;
use crate::history::{
    Asker, Greeted, History, NativeAsk, NativeCall, NativeTold, Notice, Observation, Operation, Request, Stamp, Step,
    Told, WatchLog, ZnodeLog,
};

/// The history being written. Clones write the same one.
#[derive(Clone)]
pub struct Recorder(Rc<Recording>);

struct Recording {
    history: RefCell<History>,
    order: Cell<u64>,
    clock: Clock,
}

impl Recorder {
    /// An empty history.
    #[must_use]
    pub fn new(clock: Clock) -> Recorder {
        Recorder(Rc::new(Recording { history: RefCell::default(), order: Cell::default(), clock }))
    }

    /// This moment, after everything recorded so far.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let order = self.0.order.get();
        self.0.order.set(order + 1);
        Stamp { order, at: self.0.clock.now() }
    }

    /// Something was seen inside a node.
    pub fn observe(&self, observation: Observation) {
        let stamp = self.stamp();
        self.0.history.borrow_mut().observations.push((stamp, observation));
    }

    /// Looks at the history, or writes what no client sees.
    pub fn with<T>(&self, look: impl FnOnce(&mut History) -> T) -> T {
        look(&mut self.0.history.borrow_mut())
    }

    /// The history; an empty one is left behind.
    #[must_use]
    pub fn finish(&self) -> History {
        std::mem::take(&mut self.0.history.borrow_mut())
    }

    /// A client asks. Gives the place of the answer.
    pub(crate) fn called(&self, client: u32, node: NodeId, request: Request) -> usize {
        let called = self.stamp();
        let result = Told::Unknown("not answered yet".to_owned());
        let operation = Operation { client, node, called, returned: None, asker: None, request, result };
        self.with(|history| {
            history.operations.push(operation);
            history.operations.len() - 1
        })
    }

    /// The request has arrived, on behalf of a user.
    pub(crate) fn asked_as(&self, place: usize, asker: Asker) {
        self.with(|history| history.operations[place].asker = Some(asker));
    }

    /// A client was told.
    pub(crate) fn returned(&self, place: usize, result: Told) {
        let returned = Some(self.stamp());
        self.with(|history| {
            let operation = &mut history.operations[place];
            (operation.returned, operation.result) = (returned, result);
        });
    }

    /// A client opens a watcher. Gives the place of its log.
    pub(crate) fn watch_called(&self, log: WatchLog) -> usize {
        self.with(|history| {
            history.watches.push(log);
            history.watches.len() - 1
        })
    }

    /// A watcher was told.
    pub(crate) fn watch_told(&self, place: usize, notice: Notice) {
        let stamp = self.stamp();
        self.with(|history| history.watches[place].notices.push((stamp, notice)));
    }

    /// A watcher is no more.
    pub(crate) fn watch_closed(&self, place: usize) {
        let stamp = self.stamp();
        self.with(|history| history.watches[place].closed = Some(stamp));
    }

    /// A client connects to a ZooKeeper face. Gives the place of its log.
    pub(crate) fn znode_called(&self, log: ZnodeLog) -> usize {
        self.with(|history| {
            history.znodes.push(log);
            history.znodes.len() - 1
        })
    }

    /// It was told about its session.
    pub(crate) fn znode_greeted(&self, place: usize, greeted: Greeted) {
        let stamp = self.stamp();
        self.with(|history| history.znodes[place].greeted = Some((stamp, greeted)));
    }

    /// Something went over the connection.
    pub(crate) fn znode_step(&self, place: usize, step: Step) {
        let stamp = self.stamp();
        self.with(|history| history.znodes[place].steps.push((stamp, step)));
    }

    /// The connection is no more.
    pub(crate) fn znode_closed(&self, place: usize) {
        let stamp = self.stamp();
        self.with(|history| {
            history.znodes[place].closed.get_or_insert(stamp);
        });
    }

    /// A client asks something of native primitives. Gives the place of the answer.
    pub(crate) fn native_called(&self, client: u32, node: NodeId, ask: NativeAsk) -> usize {
        let (called, told) = (self.stamp(), NativeTold::Unknown("not answered yet".to_owned()));
        self.with(|history| {
            history.native.push(NativeCall { client, node, called, returned: None, ask, told });
            history.native.len() - 1
        })
    }

    /// It was told.
    pub(crate) fn native_returned(&self, place: usize, told: NativeTold) {
        let returned = Some(self.stamp());
        self.with(|history| {
            let call = &mut history.native[place];
            (call.returned, call.told) = (returned, told);
        });
    }

    /// Watchers that are open now.
    #[must_use]
    pub fn open_watchers(&self) -> usize {
        self.with(|history| history.watches.iter().filter(|log| log.closed.is_none()).count())
    }
}
