//! How clients reach a node: through its door, as long as the node runs and can be reached.
//!
//! What holds:
//! - While a node is paused nothing of a call is carried out at it: the call's future is not polled.
//! - When a node stops or is cut off from clients, every call under way breaks: the client learns that the
//!   connection is gone and not what became of the call. What had reached the node may still be done.
//! - A call that came in through a door never goes on at a later life of the node.
//!
//! A node's ZooKeeper face lives behind the same doors; what it does beside its connections goes on in a room of its
//! own, which stands still and ends with the node and never minds whether clients can reach it. So does what tells a
//! node of native primitives.
//!
//! Not here: what is asked (`client`), and who breaks doors when (the world).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidelock_coordinator::Coordinator;
use tidelock_face_zookeeper::ZookeeperFace;
use tidelock_model::NodeId;

/// The connection to the node is gone; what was asked may or may not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the node broke")]
pub struct Broken;

/// The way into one life of one node.
pub struct Door {
    node: NodeId,
    coordinator: Arc<dyn Coordinator>,
    paused: Rc<Cell<bool>>,
    broken: Cell<bool>,
    /// Those inside, to be woken when something about the door changes.
    inside: RefCell<BTreeMap<u64, Waker>>,
    next_call: Cell<u64>,
}

impl Door {
    fn new(node: NodeId, coordinator: Arc<dyn Coordinator>, paused: Rc<Cell<bool>>) -> Rc<Door> {
        let (broken, inside, next_call) = (Cell::default(), RefCell::default(), Cell::default());
        Rc::new(Door { node, coordinator, paused, broken, inside, next_call })
    }

    /// Whose door it is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What is behind it; to be used inside [`within`] alone.
    #[must_use]
    pub fn coordinator(&self) -> Arc<dyn Coordinator> {
        self.coordinator.clone()
    }

    /// Whether the connection is gone.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    fn break_down(&self) {
        self.broken.set(true);
        self.wake_all();
    }

    fn wake_all(&self) {
        let inside = std::mem::take(&mut *self.inside.borrow_mut());
        inside.into_values().for_each(Waker::wake);
    }
}

/// One who is inside; forgotten when the call ends or is given up.
struct Visit<'a> {
    door: &'a Door,
    call: u64,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.door.inside.borrow_mut().remove(&self.call);
    }
}

/// Runs a call "inside" the node: while the node is paused the call stands still, and if the door breaks
/// it is dropped.
pub async fn within<T>(door: &Door, call: impl Future<Output = T>) -> Result<T, Broken> {
    let visit = Visit { door, call: door.next_call.get() };
    door.next_call.set(visit.call + 1);
    let mut call: Pin<&mut _> = pin!(call);
    std::future::poll_fn(|context: &mut Context<'_>| {
        if door.broken.get() {
            return Poll::Ready(Err(Broken));
        }
        door.inside.borrow_mut().insert(visit.call, context.waker().clone());
        if door.paused.get() {
            return Poll::Pending;
        }
        call.as_mut().poll(context).map(Ok)
    })
    .await
}

struct Gate {
    coordinator: Arc<dyn Coordinator>,
    paused: Rc<Cell<bool>>,
    blocked: bool,
    door: Rc<Door>,
    zookeeper: Option<Zookeeper>,
    native: Option<Native>,
}

/// The place of what a node is told of native primitives, and where it listens.
struct Native {
    push: usize,
    room: Rc<Door>,
}

struct Zookeeper {
    face: ZookeeperFace,
    room: Rc<Door>,
}

/// The doors of all nodes. Clones are the same doors.
#[derive(Clone, Default)]
pub struct Doors(Rc<RefCell<BTreeMap<NodeId, Gate>>>);

impl Doors {
    /// None yet.
    #[must_use]
    pub fn new() -> Doors {
        Doors::default()
    }

    /// A node started. If it was blocked for clients it is no longer.
    pub fn open(&self, node: NodeId, coordinator: Arc<dyn Coordinator>) {
        self.close(node);
        let paused = Rc::new(Cell::new(false));
        let door = Door::new(node, coordinator.clone(), paused.clone());
        let gate = Gate { coordinator, paused, blocked: false, door, zookeeper: None, native: None };
        self.0.borrow_mut().insert(node, gate);
    }

    /// A node that started serves ZooKeeper's clients, too. Gives where to do what that needs beside connections.
    #[must_use]
    pub fn open_zookeeper(&self, node: NodeId, face: ZookeeperFace) -> Option<Rc<Door>> {
        let mut gates = self.0.borrow_mut();
        let gate = gates.get_mut(&node)?;
        let room = Door::new(node, gate.coordinator.clone(), gate.paused.clone());
        gate.zookeeper = Some(Zookeeper { face, room: room.clone() });
        Some(room)
    }

    /// A connection to a node's ZooKeeper face; `None`: it has none or cannot be reached.
    #[must_use]
    pub fn zookeeper(&self, node: NodeId) -> Option<(Rc<Door>, ZookeeperFace)> {
        let gates = self.0.borrow();
        let gate = gates.get(&node).filter(|gate| !gate.blocked)?;
        Some((gate.door.clone(), gate.zookeeper.as_ref()?.face.clone()))
    }

    /// A node that started tells clients of native primitives what happens; `push` is where that is written down. Gives
    /// where it listens.
    #[must_use]
    pub fn open_native(&self, node: NodeId, push: usize) -> Option<Rc<Door>> {
        let mut gates = self.0.borrow_mut();
        let gate = gates.get_mut(&node)?;
        let room = Door::new(node, gate.coordinator.clone(), gate.paused.clone());
        gate.native = Some(Native { push, room: room.clone() });
        Some(room)
    }

    /// Where a node writes down what it is told of native primitives; `None`: it does not, or cannot be reached.
    #[must_use]
    pub fn native(&self, node: NodeId) -> Option<usize> {
        let gates = self.0.borrow();
        let gate = gates.get(&node).filter(|gate| !gate.blocked && !gate.paused.get())?;
        gate.native.as_ref().map(|native| native.push)
    }

    /// A node crashed or stopped: everything pending at it breaks.
    pub fn close(&self, node: NodeId) {
        let gate = self.0.borrow_mut().remove(&node);
        if let Some(gate) = gate {
            gate.door.break_down();
            gate.zookeeper.iter().for_each(|zookeeper| zookeeper.room.break_down());
            gate.native.iter().for_each(|native| native.room.break_down());
        }
    }

    /// A node does nothing for a while. Clients stay connected.
    pub fn pause(&self, node: NodeId) {
        if let Some(gate) = self.0.borrow().get(&node) {
            gate.paused.set(true);
        }
    }

    /// A paused node goes on.
    pub fn resume(&self, node: NodeId) {
        let doors = self.0.borrow().get(&node).map(|gate| {
            gate.paused.set(false);
            let zookeeper = gate.zookeeper.iter().map(|zookeeper| zookeeper.room.clone());
            let native = gate.native.iter().map(|native| native.room.clone());
            [gate.door.clone()].into_iter().chain(zookeeper).chain(native).collect::<Vec<_>>()
        });
        doors.into_iter().flatten().for_each(|door| door.wake_all());
    }

    /// Whether clients cannot reach a node, from now on: what is pending breaks, and nothing new comes in
    /// until it is said that they can.
    pub fn block(&self, node: NodeId, blocked: bool) {
        let broken = {
            let mut gates = self.0.borrow_mut();
            let Some(gate) = gates.get_mut(&node).filter(|gate| gate.blocked != blocked) else { return };
            gate.blocked = blocked;
            let fresh = Door::new(node, gate.coordinator.clone(), gate.paused.clone());
            std::mem::replace(&mut gate.door, fresh)
        };
        broken.break_down();
    }

    /// Nodes that can be connected to, paused ones included: nobody outside sees that a node is paused.
    #[must_use]
    pub fn reachable(&self) -> Vec<NodeId> {
        self.0.borrow().iter().filter(|(_, gate)| !gate.blocked).map(|(node, _)| *node).collect()
    }

    /// A connection to a node; `None`: it cannot be reached.
    #[must_use]
    pub fn door(&self, node: NodeId) -> Option<Rc<Door>> {
        self.0.borrow().get(&node).filter(|gate| !gate.blocked).map(|gate| gate.door.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::test_double::{Double, Handle};
    use crate::executor::Executor;

    const NODE: NodeId = NodeId(1);

    /// A call that counts how often it is polled and ends when told to.
    #[derive(Clone, Default)]
    struct Counted {
        polls: Rc<Cell<u32>>,
        finished: Rc<Cell<bool>>,
        waker: Rc<RefCell<Option<Waker>>>,
    }

    impl Counted {
        fn finish(&self) {
            self.finished.set(true);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    impl Future for Counted {
        type Output = &'static str;
        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<&'static str> {
            self.polls.set(self.polls.get() + 1);
            *self.waker.borrow_mut() = Some(context.waker().clone());
            if self.finished.get() { Poll::Ready("done") } else { Poll::Pending }
        }
    }

    struct Scene {
        doors: Doors,
        executor: Executor,
        call: Counted,
        result: Rc<RefCell<Option<Result<&'static str, Broken>>>>,
    }

    impl Scene {
        fn new() -> Scene {
            let doors = Doors::new();
            doors.open(NODE, Arc::new(Handle(Double::new())));
            Scene { doors, executor: Executor::new(), call: Counted::default(), result: Rc::default() }
        }

        fn call(&mut self) {
            let door = self.doors.door(NODE).expect("it is open");
            let (call, result) = (self.call.clone(), self.result.clone());
            self.executor.spawn(async move {
                let given = within(&door, call).await;
                *result.borrow_mut() = Some(given);
            });
            self.executor.run_ready();
        }
    }

    /// A paused process does nothing, whatever happens around it: not even an answer that is ready may
    /// leave it.
    #[test]
    fn a_call_at_a_paused_node_is_not_polled_until_the_node_goes_on() {
        let mut scene = Scene::new();
        scene.call();
        assert_eq!(scene.call.polls.get(), 1);
        scene.doors.pause(NODE);
        scene.call.finish();
        scene.executor.run_ready();
        assert_eq!((scene.call.polls.get(), *scene.result.borrow()), (1, None));
        scene.doors.resume(NODE);
        scene.executor.run_ready();
        assert_eq!((scene.call.polls.get(), *scene.result.borrow()), (2, Some(Ok("done"))));
    }

    /// A call that reaches a paused node must not begin there either.
    #[test]
    fn a_call_that_comes_to_a_paused_node_waits_outside() {
        let mut scene = Scene::new();
        scene.doors.pause(NODE);
        assert_eq!(scene.doors.reachable(), [NODE]);
        scene.call();
        assert_eq!(scene.call.polls.get(), 0);
    }

    /// A client of a killed node must learn that the connection is gone, even if the node was paused.
    #[test]
    fn calls_break_when_the_node_stops() {
        for paused in [false, true] {
            let mut scene = Scene::new();
            scene.call();
            if paused {
                scene.doors.pause(NODE);
            }
            scene.doors.close(NODE);
            scene.executor.run_ready();
            assert_eq!(*scene.result.borrow(), Some(Err(Broken)));
            assert!(scene.doors.reachable().is_empty());
        }
    }

    /// A connection to an earlier life of a node must not lead into a later one: its proposals would be
    /// numbered as the new life's.
    #[test]
    fn a_door_does_not_lead_into_a_later_life() {
        let scene = Scene::new();
        let old = scene.doors.door(NODE).unwrap();
        scene.doors.open(NODE, Arc::new(Handle(Double::new())));
        assert!(old.is_broken());
        assert!(!scene.doors.door(NODE).unwrap().is_broken());
    }

    /// Clients that are cut off lose what was pending; afterwards they come in again, and a pause that
    /// began meanwhile still holds.
    #[test]
    fn clients_that_were_cut_off_come_back_to_the_same_node() {
        let mut scene = Scene::new();
        scene.call();
        scene.doors.block(NODE, true);
        scene.executor.run_ready();
        assert_eq!(*scene.result.borrow(), Some(Err(Broken)));
        assert!(scene.doors.door(NODE).is_none() && scene.doors.reachable().is_empty());
        scene.doors.pause(NODE);
        scene.doors.block(NODE, false);
        scene.call();
        assert_eq!(scene.call.polls.get(), 1);
        scene.doors.resume(NODE);
        scene.executor.run_ready();
        assert_eq!(scene.call.polls.get(), 2);
    }
}
