//! Lists for operators: connections, sessions with their ephemeral znodes, watches.
//!
//! Whoever asks must not be felt by anybody else. A list is put together a part at a time, nothing is held while it
//! is written, and it ends at a limit, where it says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tidelock_model::{Caller, LeaseId, SessionFound, SessionsPage, ZnodeFound, ZnodeRead};

use crate::Face;
use crate::figures::Client;
use crate::report::Mode;

/// Connections in one list.
const CONNECTIONS_MAX: usize = 10_000;
/// Sessions in one list, and how many are looked at together.
const SESSIONS_MAX: usize = 10_000;
const SESSIONS_AT_ONCE: u32 = 256;
/// Sessions whose ends are asked for, and how many of them at a time.
const ENDS_MAX: usize = 1_000;
const ENDS_AT_ONCE: usize = 64;
/// Ephemeral znodes in one list, and how many are looked at together.
const EPHEMERALS_MAX: usize = 50_000;
const EPHEMERALS_AT_ONCE: u32 = 2_000;
/// Watches in one list, and how many are looked at while events wait.
const WATCHES_MAX: usize = 50_000;
const WATCHES_AT_ONCE: usize = 500;
/// Bytes of paths in one list: they may be long.
const PATH_BYTES_MAX: usize = 16 << 20;

/// A list, and whether something was left out.
#[derive(Clone, Debug)]
pub(crate) struct Listed<T> {
    pub(crate) items: T,
    pub(crate) is_cut: bool,
}

/// Sessions by when they end, if nothing is heard of them: milliseconds since 1970, whole ticks.
pub(crate) type Ends = BTreeMap<u64, Vec<i64>>;

/// Sessions with the paths they watch.
pub(crate) type Watched = Vec<(i64, Vec<Arc<str>>)>;

impl Face {
    /// The connections of this node, the oldest first.
    pub(crate) fn connections(&self) -> Listed<Vec<Client>> {
        let (clients, all) = self.clients.list(CONNECTIONS_MAX);
        let is_cut = clients.len() < all;
        Listed { items: clients.iter().map(|client| client.told(&self.counts)).collect(), is_cut }
    }

    /// `crst`.
    pub(crate) fn reset_connections(&self) {
        let (clients, _) = self.clients.list(usize::MAX);
        clients.iter().for_each(|client| client.reset());
    }

    /// The sessions of the whole cluster with their ephemeral znodes, by id.
    pub(crate) async fn all_sessions(&self) -> Listed<Vec<SessionFound>> {
        let mut listed = Listed { items: Vec::<SessionFound>::new(), is_cut: false };
        let (mut paths, mut bytes) = (0, 0);
        loop {
            let after = listed.items.last().map_or(LeaseId::NONE, |last| last.session);
            let paths_max = u32::try_from(EPHEMERALS_MAX - paths).unwrap_or(0).min(EPHEMERALS_AT_ONCE);
            let page = SessionsPage { after, sessions_max: SESSIONS_AT_ONCE, paths_max };
            let found = self.look_as_operator(ZnodeRead::Sessions(page)).await;
            let Some(ZnodeFound::Sessions(found)) = found else { return listed };
            if found.is_empty() {
                return listed;
            }
            // A session whose znodes did not fit after those of others is asked for again, first in its page.
            let whole = found.iter().position(|session| session.has_more).map_or(found.len(), |at| at.max(1));
            for session in found.into_iter().take(whole) {
                paths += session.ephemerals.len();
                bytes += session.ephemerals.iter().map(String::len).sum::<usize>();
                listed.is_cut |= session.has_more;
                listed.items.push(session);
            }
            if listed.items.len() >= SESSIONS_MAX || paths >= EPHEMERALS_MAX || bytes >= PATH_BYTES_MAX {
                listed.is_cut = true;
                return listed;
            }
            tokio::task::yield_now().await;
        }
    }

    /// When sessions end. Only the leader knows, and is not asked for very many.
    pub(crate) async fn session_ends(&self, sessions: &[SessionFound]) -> Option<Ends> {
        if !matches!(self.mode(), Mode::Leader | Mode::Standalone) || sessions.len() > ENDS_MAX {
            return None;
        }
        let (mut ends, now) = (Ends::new(), now_ms());
        for some in sessions.chunks(ENDS_AT_ONCE) {
            let asked = some.iter().map(|session| self.coordinator.lease_info(Caller::Internal, session.session));
            for known in join_all(asked).await.into_iter().filter_map(|known| known.ok().flatten()) {
                let end = self.next_tick(now.saturating_add(known.remaining_ms));
                ends.entry(end).or_default().push(known.id.0);
            }
        }
        ends.values_mut().for_each(|sessions| sessions.sort_unstable());
        Some(ends)
    }

    /// Rounded up to a whole tick, as ZooKeeper counts.
    pub(crate) fn next_tick(&self, ms: u64) -> u64 {
        let tick = u64::try_from(self.config.tick.as_millis()).unwrap_or(u64::MAX).max(1);
        ms.div_ceil(tick).saturating_mul(tick)
    }

    /// Who watches what at this node: each path of a session once, whatever kinds of watches it has there.
    pub(crate) async fn all_watches(&self) -> Listed<Watched> {
        let mut listed = Listed { items: Watched::new(), is_cut: false };
        let (mut watches, mut bytes) = (0, 0);
        let (clients, _) = self.clients.list(usize::MAX);
        let sessions: BTreeMap<_, _> =
            clients.iter().map(|client| (client.id, client.told(&self.counts).session.unwrap_or(0))).collect();
        let mut watchers = self.watches.with(|table, _| table.watchers());
        watchers.sort_unstable();
        for connection in watchers {
            let mut paths: Vec<Arc<str>> = Vec::new();
            let mut after = None;
            loop {
                let page = self.watches.with(|table, _| table.watched(connection, after.as_ref(), WATCHES_AT_ONCE));
                let Some(last) = page.last().cloned() else { break };
                watches += page.len();
                for (path, _kind) in page {
                    if paths.last() != Some(&path) {
                        bytes += path.len();
                        paths.push(path);
                    }
                }
                after = Some(last);
                if watches >= WATCHES_MAX || bytes >= PATH_BYTES_MAX {
                    listed.is_cut = true;
                    break;
                }
                tokio::task::yield_now().await;
            }
            if !paths.is_empty() {
                listed.items.push((sessions.get(&connection).copied().unwrap_or(0), paths));
            }
            if listed.is_cut {
                break;
            }
        }
        listed
    }
}

/// The same by path.
pub(crate) fn by_path(watched: &Watched) -> BTreeMap<&str, Vec<i64>> {
    let mut by_path: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (session, paths) in watched {
        paths.iter().for_each(|path| by_path.entry(path).or_default().push(*session));
    }
    by_path
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
