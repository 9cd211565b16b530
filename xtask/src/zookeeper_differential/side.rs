//! One of the two servers: its process, the connections of each session, and its names for things.

use std::net::SocketAddr;

use futures_util::future::join_all;

use super::answer::Item;
use super::call::{Call, Seen};
use super::connection::{Connection, Hello, PING_XID, SYNC_XID, Session, ends};
use super::masking::Names;
use super::server::RunningServer;

/// Beyond what any server has come to.
const FUTURE: i64 = 1 << 60;

/// A running server and the clients it has.
pub(super) struct Side {
    server: RunningServer,
    pub(super) names: Names,
    pub(super) slots: Vec<Slot>,
    /// Connections made so far.
    connections: usize,
}

/// The place of one session.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) connection: Option<Connection>,
    pub(super) session: Session,
    /// How many labelled operations there were when it was last answered.
    pub(super) told: usize,
}

/// How a client comes back to its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    pub(super) seen: Seen,
    pub(super) timeout: i32,
    pub(super) right_password: bool,
}

impl Side {
    pub(super) fn new(server: RunningServer) -> Side {
        Side { server, names: Names::default(), slots: Vec::new(), connections: 0 }
    }

    /// Fails if the server ended.
    pub(super) fn check_alive(&mut self) -> crate::Result<()> {
        self.server.check_alive()
    }

    /// The node that the next connection of a slot goes to: each time another one.
    fn address(&mut self, slot: usize) -> SocketAddr {
        self.connections += 1;
        let addresses = &self.server.addresses;
        addresses[(slot + self.connections) % addresses.len()]
    }

    /// Forgets sessions and names; the server goes on.
    pub(super) fn begin(&mut self, slots: usize) {
        self.names = Names::after(self.names.highest);
        self.slots = (0..slots).map(|_| Slot::default()).collect();
    }

    /// Opens a new session in a slot.
    pub(super) async fn open(&mut self, slot: usize, timeout: i32, read_only: Option<bool>, number: u64) -> Item {
        let hello = Hello { seen: 0, timeout, session: 0, password: vec![0; 16], read_only };
        let (opened, item) = Connection::open(self.address(slot), &hello).await;
        self.slots[slot] = Slot::default();
        if let Some((connection, session)) = opened {
            self.names.session(session.id, number);
            self.slots[slot] = Slot { connection: Some(connection), session, told: 0 };
        }
        item
    }

    /// Comes back to the session of a slot: the answer, and what came over the connection before.
    pub(super) async fn attach(&mut self, slot: usize, again: &Again) -> (Item, Vec<Item>) {
        let Again { seen, timeout, right_password } = *again;
        let seen = self.zxid(slot, seen);
        let session = self.slots[slot].session.clone();
        let mut password = session.password.clone();
        if !right_password {
            password.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        let hello = Hello { seen, timeout, session: session.id, password, read_only: Some(false) };
        let (opened, item) = Connection::open(self.address(slot), &hello).await;
        let old = self.slots[slot].connection.take();
        let Some((connection, session)) = opened else {
            // Refused: whether the session's own connection still stands is to be seen.
            let Some(mut old) = old else { return (item, Vec::new()) };
            let items = old.ping().await;
            if !items.iter().any(ends) {
                self.slots[slot].connection = Some(old);
            }
            return (item, without_ping(items));
        };
        let told = self.slots[slot].told;
        self.slots[slot] = Slot { connection: Some(connection), session, told };
        match old {
            Some(mut old) => (item, old.read_to_end().await),
            None => (item, Vec::new()),
        }
    }

    /// This side's zxid for what a client has seen.
    fn zxid(&self, slot: usize, seen: Seen) -> i64 {
        match seen {
            Seen::Nothing => 0,
            Seen::AllItWasTold => self.names.zxid_after(self.slots[slot].told),
            Seen::Before(back) => self.names.zxid_after(self.names.labels().saturating_sub(back)),
            Seen::Future => FUTURE,
        }
    }

    /// Asks over the connection of a slot.
    pub(super) async fn ask(&mut self, slot: usize, xid: i32, call: &Call) -> Vec<Item> {
        let body = call.body(|seen| self.zxid(slot, seen));
        let Some(connection) = &mut self.slots[slot].connection else { return vec![Item::Closed] };
        let mut items = connection.ask(xid, call.opcode(), &body).await;
        let last = matches!(items.last(), Some(Item::Reply { error, .. }) if is_last(call, *error));
        if last {
            items.extend(connection.read_to_end().await);
        }
        self.took(slot, &items);
        items
    }

    /// Everything that is on its way over the connections, by slot.
    pub(super) async fn settle_all(&mut self) -> Vec<(usize, Vec<Item>)> {
        // Of several nodes each must have come to know of everything.
        let alone = self.server.addresses.len() == 1;
        let pings = self.slots.iter_mut().map(|slot| async move {
            match &mut slot.connection {
                Some(connection) if alone => connection.ping().await,
                Some(connection) => connection.sync().await,
                None => Vec::new(),
            }
        });
        let all = join_all(pings).await;
        for (slot, items) in all.iter().enumerate() {
            self.took(slot, items);
        }
        all.into_iter().map(without_ping).enumerate().collect()
    }

    fn took(&mut self, slot: usize, items: &[Item]) {
        self.names.learn(items);
        if items.iter().any(ends) {
            self.slots[slot].connection = None;
        }
    }
}

/// Whether a server ends the connection behind this reply.
fn is_last(call: &Call, error: i32) -> bool {
    match call {
        Call::CloseSession => true,
        Call::Auth { .. } => error != 0,
        _ => false,
    }
}

/// The answer to a ping, or to a sync in its place, is not what was asked for; a wrong one is kept.
fn without_ping(mut items: Vec<Item>) -> Vec<Item> {
    items.retain(|item| !matches!(item, Item::Reply { xid: PING_XID | SYNC_XID, error: 0, .. }));
    items
}
