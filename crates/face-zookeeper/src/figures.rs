//! What is counted of the packets that come and go, for operators: in all, and of each connection.
//!
//! Counting happens with every packet, so it takes no lock and waits for nobody. Figures that are read together need
//! not be of one moment. Only coming, going and being listed touch the table of connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::outbox::Outbox;
use crate::watch_table::ConnectionId;
use crate::wire::opcode;

/// What no packet has: the operation of who has not been answered yet.
const NO_OPERATION: i32 = i32::MIN;
/// The operation that opening a session counts as; ZooKeeper's number for it.
const OPEN_SESSION: i32 = -10;
/// What ZooKeeper traces unless it is told otherwise. Nothing is traced here; the number is only remembered.
const TRACE_MASK_DEFAULT: i64 = 0o462;

/// When a packet came, and what it asks for.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    at: Instant,
    operation: i32,
    xid: i32,
}

/// How long answers took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Latency {
    pub(crate) min: u64,
    pub(crate) average: f64,
    pub(crate) max: u64,
}

struct Latencies {
    answered: AtomicU64,
    total: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let zero = AtomicU64::default;
        Latencies { answered: zero(), total: zero(), min: AtomicU64::new(u64::MAX), max: zero() }
    }
}

impl Latencies {
    fn add(&self, ms: u64) {
        self.answered.fetch_add(1, Relaxed);
        self.total.fetch_add(ms, Relaxed);
        self.min.fetch_min(ms, Relaxed);
        self.max.fetch_max(ms, Relaxed);
    }

    fn reset(&self) {
        self.answered.store(0, Relaxed);
        self.total.store(0, Relaxed);
        self.min.store(u64::MAX, Relaxed);
        self.max.store(0, Relaxed);
    }

    fn told(&self) -> Latency {
        let answered = self.answered.load(Relaxed);
        if answered == 0 {
            return Latency::default();
        }
        // Four places, as ZooKeeper rounds it.
        let average = (self.total.load(Relaxed) as f64 / answered as f64 * 10_000.0).round() / 10_000.0;
        Latency { min: self.min.load(Relaxed), average, max: self.max.load(Relaxed) }
    }
}

/// What is counted in all, since the node started.
pub(crate) struct Counts {
    started: Instant,
    /// Connections open now.
    pub(crate) connections: AtomicU64,
    /// Packets.
    pub(crate) received: AtomicU64,
    /// Packets, events among them.
    pub(crate) sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    /// Requests that were read and not answered yet.
    pub(crate) waiting: AtomicU64,
    /// Connections turned away because their address has too many.
    pub(crate) rejected: AtomicU64,
    /// Handshakes.
    pub(crate) greeted: AtomicU64,
    /// Credentials that proved nothing.
    pub(crate) auth_failed: AtomicU64,
    pub(crate) trace_mask: AtomicI64,
    latencies: Latencies,
}

impl Default for Counts {
    fn default() -> Counts {
        let zero = AtomicU64::default;
        Counts {
            started: Instant::now(),
            connections: zero(),
            received: zero(),
            sent: zero(),
            bytes_received: zero(),
            bytes_sent: zero(),
            waiting: zero(),
            rejected: zero(),
            greeted: zero(),
            auth_failed: zero(),
            trace_mask: AtomicI64::new(TRACE_MASK_DEFAULT),
            latencies: Latencies::default(),
        }
    }
}

impl Counts {
    pub(crate) fn latency(&self) -> Latency {
        self.latencies.told()
    }

    /// Since the node started.
    pub(crate) fn uptime_ms(&self) -> u64 {
        as_ms(self.started.elapsed())
    }

    /// `srst`: what operators watch begins anew.
    pub(crate) fn reset(&self) {
        self.received.store(0, Relaxed);
        self.sent.store(0, Relaxed);
        self.latencies.reset();
    }
}

/// What is counted of one connection.
pub(crate) struct ClientFigures {
    pub(crate) id: ConnectionId,
    pub(crate) address: SocketAddr,
    pub(crate) opened_ms: u64,
    opened: Instant,
    session: AtomicI64,
    timeout_ms: AtomicU32,
    received: AtomicU64,
    sent: AtomicU64,
    waiting: AtomicU64,
    operation: AtomicI32,
    xid: AtomicI32,
    zxid: AtomicI64,
    /// Since it was opened.
    heard_ms: AtomicU64,
    /// The same, of the last answer; zero while there is none.
    answered_ms: AtomicU64,
    latency_ms: AtomicU64,
    latencies: Latencies,
}

impl ClientFigures {
    fn new(id: ConnectionId, address: SocketAddr) -> ClientFigures {
        let zero = AtomicU64::default;
        ClientFigures {
            id,
            address,
            opened_ms: as_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            opened: Instant::now(),
            session: AtomicI64::default(),
            timeout_ms: AtomicU32::default(),
            received: zero(),
            sent: zero(),
            waiting: zero(),
            operation: AtomicI32::new(NO_OPERATION),
            xid: AtomicI32::new(-1),
            zxid: AtomicI64::new(-1),
            heard_ms: zero(),
            answered_ms: zero(),
            latency_ms: zero(),
            latencies: Latencies::default(),
        }
    }

    /// A four-letter word, or the handshake, came.
    pub(crate) fn greets(&self, counts: &Counts, bytes: usize) -> Arrived {
        Arrived { at: self.came(counts, bytes), operation: OPEN_SESSION, xid: 0 }
    }

    /// A packet came.
    pub(crate) fn heard(&self, counts: &Counts, frame: &[u8]) -> Arrived {
        let at = self.came(counts, frame.len() + 4);
        self.waiting.fetch_add(1, Relaxed);
        counts.waiting.fetch_add(1, Relaxed);
        let number = |from: usize| frame.get(from..from + 4).and_then(|bytes| bytes.try_into().ok());
        let number = |from: usize| number(from).map(i32::from_be_bytes);
        Arrived { at, operation: number(4).unwrap_or(NO_OPERATION), xid: number(0).unwrap_or(-1) }
    }

    fn came(&self, counts: &Counts, bytes: usize) -> Instant {
        let at = Instant::now();
        self.received.fetch_add(1, Relaxed);
        self.heard_ms.store(as_ms(at.saturating_duration_since(self.opened)), Relaxed);
        counts.received.fetch_add(1, Relaxed);
        counts.bytes_received.fetch_add(bytes as u64, Relaxed);
        at
    }

    /// Packets went out.
    pub(crate) fn sent(&self, counts: &Counts, packets: u64, bytes: usize) {
        self.sent.fetch_add(packets, Relaxed);
        counts.sent.fetch_add(packets, Relaxed);
        counts.bytes_sent.fetch_add(bytes as u64, Relaxed);
    }

    /// It goes on with a session.
    pub(crate) fn opens(&self, counts: &Counts, arrived: Arrived, session: i64, timeout_ms: u32) {
        self.session.store(session, Relaxed);
        self.timeout_ms.store(timeout_ms, Relaxed);
        counts.greeted.fetch_add(1, Relaxed);
        self.took(counts, arrived, Instant::now());
    }

    /// All but the last `unanswered` of these were answered just now, and are taken off the list.
    pub(crate) fn answered(&self, counts: &Counts, asked: &mut Vec<Arrived>, unanswered: usize, outbox: &Outbox) {
        let answered = asked.len().saturating_sub(unanswered);
        if answered == 0 {
            return;
        }
        let now = Instant::now();
        self.zxid.store(outbox.last_told(), Relaxed);
        for arrived in asked.drain(..answered) {
            self.took(counts, arrived, now);
        }
        self.waiting.fetch_sub(answered as u64, Relaxed);
        counts.waiting.fetch_sub(answered as u64, Relaxed);
    }

    fn took(&self, counts: &Counts, arrived: Arrived, now: Instant) {
        let took = as_ms(now.saturating_duration_since(arrived.at));
        counts.latencies.add(took);
        self.latencies.add(took);
        self.latency_ms.store(took, Relaxed);
        self.operation.store(arrived.operation, Relaxed);
        if arrived.xid >= 0 && arrived.operation != OPEN_SESSION {
            self.xid.store(arrived.xid, Relaxed);
        }
        let since_opened = as_ms(now.saturating_duration_since(self.opened));
        self.answered_ms.store(since_opened.max(1), Relaxed);
    }

    /// `crst`: as if it had not been heard of yet. What waits goes on waiting.
    pub(crate) fn reset(&self) {
        for figure in [&self.received, &self.sent, &self.answered_ms, &self.latency_ms] {
            figure.store(0, Relaxed);
        }
        self.operation.store(NO_OPERATION, Relaxed);
        self.xid.store(-1, Relaxed);
        self.zxid.store(-1, Relaxed);
        self.latencies.reset();
    }

    /// All of it, now.
    pub(crate) fn told(&self, counts: &Counts) -> Client {
        let answered_ms = self.answered_ms.load(Relaxed);
        let since_start = as_ms(self.opened.saturating_duration_since(counts.started));
        Client {
            address: self.address,
            session: Some(self.session.load(Relaxed)).filter(|session| *session != 0),
            timeout_ms: self.timeout_ms.load(Relaxed),
            opened_ms: self.opened_ms,
            heard_ms: self.opened_ms + self.heard_ms.load(Relaxed),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            operation: operation_name(self.operation.load(Relaxed)),
            xid: u32::try_from(self.xid.load(Relaxed)).ok(),
            zxid: self.zxid.load(Relaxed),
            answered_ms: if answered_ms == 0 { 0 } else { since_start + answered_ms },
            latency_ms: self.latency_ms.load(Relaxed),
            latency: self.latencies.told(),
        }
    }
}

/// A connection, as it is told to operators.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) session: Option<i64>,
    pub(crate) timeout_ms: u32,
    /// Since 1970.
    pub(crate) opened_ms: u64,
    /// Since 1970.
    pub(crate) heard_ms: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) waiting: u64,
    pub(crate) operation: &'static str,
    pub(crate) xid: Option<u32>,
    /// The newest state it was told; -1 before the first answer.
    pub(crate) zxid: i64,
    /// Since the node started.
    pub(crate) answered_ms: u64,
    pub(crate) latency_ms: u64,
    pub(crate) latency: Latency,
}

/// All connections of this node.
#[derive(Default)]
pub(crate) struct Clients {
    all: Mutex<BTreeMap<ConnectionId, Arc<ClientFigures>>>,
}

impl Clients {
    /// A connection came.
    pub(crate) fn enter(&self, id: ConnectionId, address: SocketAddr) -> Arc<ClientFigures> {
        let figures = Arc::new(ClientFigures::new(id, address));
        self.lock().insert(id, Arc::clone(&figures));
        figures
    }

    /// It is gone, and with it what it still waited for.
    pub(crate) fn leave(&self, figures: &ClientFigures, counts: &Counts) {
        self.lock().remove(&figures.id);
        counts.waiting.fetch_sub(figures.waiting.swap(0, Relaxed), Relaxed);
    }

    /// At most so many, oldest first, and how many there are.
    pub(crate) fn list(&self, most: usize) -> (Vec<Arc<ClientFigures>>, usize) {
        let all = self.lock();
        (all.values().take(most).cloned().collect(), all.len())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, Arc<ClientFigures>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What ZooKeeper calls it in the list of connections.
fn operation_name(operation: i32) -> &'static str {
    match operation {
        OPEN_SESSION => "SESS",
        opcode::CREATE | opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => "CREA",
        opcode::DELETE | opcode::DELETE_CONTAINER => "DELE",
        opcode::EXISTS => "EXIS",
        opcode::GET_DATA => "GETD",
        opcode::SET_DATA => "SETD",
        opcode::GET_ACL => "GETA",
        opcode::SET_ACL => "SETA",
        opcode::GET_CHILDREN | opcode::GET_CHILDREN2 => "GETC",
        opcode::SYNC => "SYNC",
        opcode::PING => "PING",
        opcode::CHECK => "CHEC",
        opcode::MULTI => "MULT",
        opcode::MULTI_READ => "MLTR",
        opcode::RECONFIG => "RECO",
        opcode::CHECK_WATCHES => "CHKW",
        opcode::REMOVE_WATCHES => "REMW",
        opcode::SET_WATCHES => "SETW",
        opcode::SET_WATCHES2 => "STW2",
        opcode::ADD_WATCH => "ADDW",
        opcode::GET_EPHEMERALS => "GETE",
        opcode::GET_ALL_CHILDREN_NUMBER => "GETACN",
        opcode::WHO_AM_I => "HOMI",
        opcode::CLOSE_SESSION => "CLOS",
        _ => "NA",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(xid: i32, operation: i32) -> Vec<u8> {
        [xid.to_be_bytes(), operation.to_be_bytes()].concat()
    }

    /// What waits must be exact, or "outstanding" climbs for ever and every alert on it is noise.
    #[test]
    fn what_waits_is_counted_down_by_answers_and_by_the_end_of_a_connection() {
        let (counts, clients, outbox) = (Counts::default(), Clients::default(), Outbox::default());
        let client = clients.enter(ConnectionId(1), "127.0.0.1:1".parse().unwrap());
        let greeting = client.greets(&counts, 45);
        client.opens(&counts, greeting, 7, 4000);
        let mut asked: Vec<Arrived> = (1..=3).map(|xid| client.heard(&counts, &packet(xid, opcode::SYNC))).collect();
        client.answered(&counts, &mut asked, 1, &outbox);
        let told = client.told(&counts);
        assert_eq!((told.waiting, asked.len(), told.xid, told.operation), (1, 1, Some(2), "SYNC"));
        assert_eq!((told.received, told.session, told.timeout_ms), (4, Some(7), 4000));
        assert_eq!(counts.waiting.load(Relaxed), 1);
        clients.leave(&client, &counts);
        assert_eq!((counts.waiting.load(Relaxed), clients.list(9).1), (0, 0));
    }

    /// Pings have no number of their own; garbage has nothing. Neither may pass for the client's last request.
    #[test]
    fn only_requests_with_a_number_count_as_the_last_one() {
        let (counts, clients, outbox) = (Counts::default(), Clients::default(), Outbox::default());
        let client = clients.enter(ConnectionId(1), "127.0.0.1:1".parse().unwrap());
        let mut asked = vec![
            client.heard(&counts, &packet(5, opcode::GET_DATA)),
            client.heard(&counts, &packet(-2, opcode::PING)),
            client.heard(&counts, &[1, 2]),
        ];
        client.answered(&counts, &mut asked, 1, &outbox);
        assert_eq!((client.told(&counts).xid, client.told(&counts).operation), (Some(5), "PING"));
        client.answered(&counts, &mut asked, 0, &outbox);
        assert_eq!(client.told(&counts).operation, "NA");
        client.reset();
        let told = client.told(&counts);
        assert_eq!((told.received, told.sent, told.xid, told.zxid, told.latency), (0, 0, None, -1, Latency::default()));
    }
}
