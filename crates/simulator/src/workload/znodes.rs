//! ZooKeeper's clients: a session each, with ephemeral, sequential and other znodes, watches of every kind, and
//! connections that end and go on elsewhere.
//!
//! A client does what a careful client library does: it sends pings, remembers its watches and sets them again after
//! it came back, tells the newest zxid it has seen, and gives a connection up that is silent for too long. And it does
//! what no library prevents: it sleeps through the end of its session, walks away, comes back twice at once, and tries
//! to go on with a session that is over.
//!
//! What it asks for is in `requests`.

mod requests;

use std::collections::BTreeSet;

use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{AddWatchMode, ErrorCode, EventKind, Request, WatchedPaths};

use super::Setup;
use crate::client::{Client, Connected, Connection, News, Ticket};
use crate::coverage;
use crate::executor::Spawner;
use crate::history::Micros;

use requests::{Mine, is_oversized};

/// Shortest and longest timeout of a session, in milliseconds.
const TIMEOUT_MS: (u64, u64) = (1_500, 6_000);
/// Longest life of a session.
const LIFE_MAX: Micros = 25_000_000;
/// Pause before the next attempt to connect.
const AGAIN: (Micros, Micros) = (10_000, 300_000);
/// Most requests sent at once.
const TOGETHER: u64 = 4;
/// Shortest and longest time between two things a client does.
const PAUSE: (Micros, Micros) = (20_000, 250_000);
/// How long a client that moved listens to its old connection.
const OLD_LISTENED: Micros = 300_000;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client, setup.spawner.clone()));
}

async fn run(client: Client, spawner: Spawner) {
    let mut mine = Mine::default();
    while !client.stopping() {
        client.think(AGAIN.0, AGAIN.1).await;
        let timeout_ms = u32::try_from(client.between(TIMEOUT_MS.0, TIMEOUT_MS.1)).unwrap_or(u32::MAX);
        let mut life = Life {
            client: &client,
            spawner: &spawner,
            ticket: Ticket { timeout_ms, ..Ticket::default() },
            until: client.now() + client.below(LIFE_MAX),
            watches: Watches::default(),
        };
        life.live(&mut mine).await;
        let Life { ticket, .. } = life;
        if ticket.session != 0 && client.chance(400) && !client.stopping() {
            come_back_from_the_dead(&client, &spawner, ticket).await;
        }
    }
}

/// Asks for a session that may be over; whoever is let in leaves again at once.
async fn come_back_from_the_dead(client: &Client, spawner: &Spawner, mut ticket: Ticket) {
    client.think(AGAIN.0, AGAIN.1).await;
    if let Some(node) = client.any_node() {
        client.connect(node, &mut ticket, spawner).await;
    }
}

/// The watches that a client has, as it knows.
#[derive(Default)]
struct Watches {
    data: BTreeSet<String>,
    exist: BTreeSet<String>,
    child: BTreeSet<String>,
    persistent: BTreeSet<String>,
    recursive: BTreeSet<String>,
}

impl Watches {
    fn again(&self, seen: i64) -> Option<Request> {
        let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        let paths = WatchedPaths {
            data: list(&self.data),
            exist: list(&self.exist),
            child: list(&self.child),
            persistent: list(&self.persistent),
            persistent_recursive: list(&self.recursive),
        };
        (paths != WatchedPaths::default()).then_some(Request::SetWatches { relative_zxid: seen, paths })
    }

    fn fired(&mut self, kind: i32, path: &str) {
        if kind != EventKind::NodeChildrenChanged as i32 {
            self.data.remove(path);
            self.exist.remove(path);
        }
        if kind == EventKind::NodeChildrenChanged as i32 || kind == EventKind::NodeDeleted as i32 {
            self.child.remove(path);
        }
    }

    fn answered(&mut self, request: &Request, result: &Result<Found, i32>) {
        match (request, result) {
            (Request::GetData { path, watch: true } | Request::Exists { path, watch: true }, Ok(_)) => {
                self.data.insert(path.clone());
            }
            (Request::Exists { path, watch: true }, Err(error)) if *error == ErrorCode::NoNode.code() => {
                self.exist.insert(path.clone());
            }
            (Request::GetChildren { path, watch: true } | Request::GetChildren2 { path, watch: true }, Ok(_)) => {
                self.child.insert(path.clone());
            }
            (Request::AddWatch { path, mode: AddWatchMode::Persistent }, Ok(_)) => {
                self.persistent.insert(path.clone());
            }
            (Request::AddWatch { path, mode: AddWatchMode::PersistentRecursive }, Ok(_)) => {
                self.recursive.insert(path.clone());
            }
            (Request::RemoveWatches { path, .. }, Ok(_)) => {
                for set in [&mut self.data, &mut self.exist, &mut self.child] {
                    set.remove(path);
                }
                self.persistent.remove(path);
                self.recursive.remove(path);
            }
            _ => {}
        }
    }
}

/// How a connection ended.
enum Left {
    /// The session was closed by request.
    Closed,
    /// The client has had enough, and says nothing.
    ForGood,
    /// It broke, or the client left it to come back.
    ForAWhile,
    /// The client comes back while the connection is still there.
    Behind,
}

/// One session of one client.
struct Life<'a> {
    client: &'a Client,
    spawner: &'a Spawner,
    ticket: Ticket,
    until: Micros,
    watches: Watches,
}

impl Life<'_> {
    async fn live(&mut self, mine: &mut Mine) {
        let (client, mut old) = (self.client, None);
        while !client.stopping() {
            let Some(node) = client.any_node() else {
                client.think(AGAIN.0, AGAIN.1).await;
                continue;
            };
            let is_back = self.ticket.session != 0;
            let connected = client.connect(node, &mut self.ticket, self.spawner).await;
            let Connected::Here(mut connection) = connected else {
                drop(old.take());
                if !is_back {
                    return;
                }
                if matches!(connected, Connected::Over) {
                    client.around().coverage.hit(coverage::SESSION_OVER);
                    return;
                }
                client.think(AGAIN.0, AGAIN.1).await;
                continue;
            };
            client.around().coverage.add(coverage::SESSION_REATTACHED, u64::from(is_back));
            if let Some(old) = old.take() {
                self.speak_at(old, mine).await;
            }
            let left = self.work(&mut connection, is_back, mine).await;
            self.ticket.seen = self.ticket.seen.max(connection.seen);
            match left {
                Left::Closed | Left::ForGood => return,
                Left::ForAWhile => {}
                Left::Behind => old = Some(connection),
            }
            if old.is_none() && client.chance(300) {
                client.sleep(client.below(u64::from(self.ticket.timeout_ms) * 1_300)).await;
            }
        }
    }

    /// Works until the session is to end, the client moves on, or nothing more comes.
    async fn work(&mut self, connection: &mut Connection, is_back: bool, mine: &mut Mine) -> Left {
        let client = self.client;
        let again = if is_back { self.watches.again(self.ticket.seen) } else { None };
        let first = again.into_iter().chain(mine.parents()).collect::<Vec<_>>();
        if !first.is_empty() && !self.ask(connection, first, mine).await {
            return Left::ForAWhile;
        }
        loop {
            if client.stopping() || client.now() > self.until {
                return if client.chance(600) { self.close(connection, mine).await } else { Left::ForGood };
            }
            let timeout = u64::from(self.ticket.timeout_ms) * 1_000;
            match client.below(100) {
                0..3 => return Left::ForAWhile,
                3..5 => return Left::Behind,
                // Hears nothing and says nothing, for about as long as the session lives.
                5..7 => client.sleep(client.between(timeout / 2, timeout * 3 / 2)).await,
                _ => {
                    let requests = (0..client.between(1, TOGETHER)).map(|_| mine.request(client)).collect();
                    if !self.ask(connection, requests, mine).await {
                        return Left::ForAWhile;
                    }
                }
            }
            if !self.listen(connection, client.between(PAUSE.0, PAUSE.1), mine).await {
                return Left::ForAWhile;
            }
        }
    }

    /// Sends requests and waits for all answers; `false`: they did not come.
    async fn ask(&mut self, connection: &mut Connection, requests: Vec<Request>, mine: &mut Mine) -> bool {
        let patience = u64::from(self.ticket.timeout_ms) * 1_000 * 2 / 3;
        let clock = self.client.around().clock.clone();
        let answered = async {
            if !connection.send(requests).await {
                return false;
            }
            while connection.waiting() > 0 {
                let Some(news) = connection.next().await else { return false };
                self.take(&news, mine);
            }
            true
        };
        clock.within(patience, answered).await.unwrap_or(false)
    }

    /// Takes what comes for a while; `false`: nothing more will.
    async fn listen(&mut self, connection: &mut Connection, time: Micros, mine: &mut Mine) -> bool {
        let pause = self.client.sleep(time);
        let mut pause = std::pin::pin!(pause);
        loop {
            tokio::select! {
                biased;
                news = connection.next() => match news {
                    Some(news) => self.take(&news, mine),
                    None => return false,
                },
                () = &mut pause => return true,
            }
        }
    }

    fn take(&mut self, news: &News, mine: &mut Mine) {
        match news {
            News::Event(kind, path) => {
                self.client.around().coverage.hit(coverage::ZNODE_WATCH_FIRED);
                self.watches.fired(*kind, path);
            }
            News::Reply(request, result) => {
                if is_oversized(request) && result.is_err() {
                    self.client.around().coverage.hit(coverage::OVERSIZED_REFUSED);
                }
                self.watches.answered(request, result);
                mine.answered(request, result);
            }
        }
    }

    async fn close(&mut self, connection: &mut Connection, mine: &mut Mine) -> Left {
        if self.ask(connection, vec![Request::CloseSession], mine).await {
            self.client.around().coverage.hit(coverage::SESSION_CLOSED);
            Left::Closed
        } else {
            Left::ForGood
        }
    }

    /// Says something more over a connection that the session has left, and listens.
    async fn speak_at(&mut self, mut old: Connection, mine: &mut Mine) {
        let client = self.client;
        let requests = vec![mine.request(client), mine.request(client)];
        let spoken = async {
            if old.send(requests).await {
                while old.next().await.is_some() {}
            }
        };
        client.around().clock.within(OLD_LISTENED, spoken).await;
    }
}
