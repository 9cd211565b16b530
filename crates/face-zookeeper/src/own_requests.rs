//! Requests that this node answers by itself: watches, credentials, barriers, the end of a session.

use tidelock_coordinator::Consistency;
use tidelock_model::{Caller, Command, Revision, ZnodeCommand, ZnodeError, ZnodeFound, ZnodeRead};

use crate::connection::{Connection, Ended};
use crate::credentials::{Proof, prove};
use crate::ensemble::Asked;
use crate::read_only::is_passing;
use crate::translate::read_path;
use crate::watch_table::WatchKind;
use crate::watches::{Early, Replay, Unfinished, Wish};
use crate::wire::{AddWatchMode, AuthId, ErrorCode, EventKind, RemovedWatch, Reply, Request, WatchedPaths};

type Found = Result<ZnodeFound, ZnodeError>;

impl Connection {
    pub(crate) async fn other(&mut self, xid: i32, request: Request) -> Result<(), Ended> {
        match request {
            Request::Ping => self.outbox.plain(xid, &Reply::Empty),
            Request::SetWatches { relative_zxid, paths } => {
                let seen = Revision(u64::try_from(relative_zxid).unwrap_or(0));
                self.restore_watches(xid, seen, paths).await?;
            }
            Request::AddWatch { path, mode } => {
                let kind = match mode {
                    AddWatchMode::Persistent => WatchKind::Persistent,
                    AddWatchMode::PersistentRecursive => WatchKind::Recursive,
                };
                self.face.watches.with(|table, told| {
                    table.add(self.id, kind, &path);
                    self.outbox.outcome(xid, told, &Reply::WatchAdded);
                });
            }
            Request::CheckWatches { path, kind } => self.watches_of(xid, &path, kind, false),
            Request::RemoveWatches { path, kind } => self.watches_of(xid, &path, kind, true),
            Request::Auth { scheme, auth } => self.authenticate(xid, &scheme, &auth)?,
            Request::Sasl { token } => self.sasl(xid, &token).await?,
            Request::WhoAmI => {
                let user = |id: &str| id.split_once(':').map_or(id, |(user, _)| user).to_owned();
                let known = self.identities.iter().map(|known| AuthId {
                    scheme: known.scheme.clone(),
                    user: if known.scheme == "digest" { user(&known.id) } else { known.id.clone() },
                });
                self.outbox.plain(xid, &Reply::WhoAmI(known.collect()));
            }
            Request::CloseSession => return self.close(xid).await,
            // Meant for ZooKeeper's own servers, which believe whoever says it.
            Request::DeleteContainer { .. } => self.outbox.plain(xid, &Reply::Error(ErrorCode::Unimplemented)),
            Request::Reconfig { joining_servers, leaving_servers, new_members, cur_config_id } => {
                let asked = Asked {
                    joining: joining_servers.as_deref().unwrap_or_default(),
                    leaving: leaving_servers.as_deref().unwrap_or_default(),
                    new_members: new_members.as_deref().unwrap_or_default(),
                };
                self.reconfig(xid, &asked, cur_config_id).await?;
            }
            _ => self.outbox.plain(xid, &Reply::Error(ErrorCode::Unimplemented)),
        }
        Ok(())
    }

    /// Watches that a client had before it came back, and what it had seen by then.
    async fn restore_watches(&self, xid: i32, seen: Revision, paths: WatchedPaths) -> Result<(), Ended> {
        let wish = |kind| move |path: String| Wish { kind, path };
        let once: Vec<(Wish, Had)> = (paths.data.into_iter().map(|path| (wish(WatchKind::Data)(path), Had::Data)))
            .chain(paths.exist.into_iter().map(|path| (wish(WatchKind::Data)(path), Had::Nothing)))
            .chain(paths.child.into_iter().map(|path| (wish(WatchKind::Child)(path), Had::Children)))
            .collect();
        let staying: Vec<Wish> = (paths.persistent.into_iter().map(wish(WatchKind::Persistent)))
            .chain(paths.persistent_recursive.into_iter().map(wish(WatchKind::Recursive)))
            .collect();
        let watches = &self.face.watches;
        watches.begin(self.id, once.iter().map(|(wish, _)| wish));
        // Who has seen nothing has missed nothing.
        if self.face.config.replay_watches && !staying.is_empty() && seen > Revision::default() {
            return self.replay_watches(xid, seen, &once, &staying).await;
        }
        watches.with(|table, _| staying.iter().for_each(|wish| table.add(self.id, wish.kind, &wish.path)));
        let reads: Vec<ZnodeRead> =
            once.iter().map(|(wish, _)| ZnodeRead::Glance(read_path(wish.path.clone()))).collect();
        loop {
            let (at, found) = self.look_at_all(&reads).await?;
            let fired = once.iter().zip(&found).map(|((wish, had), found)| (wish, had.missed(found, seen)));
            match watches.restore(self.id, &self.outbox, at, (xid, &Reply::Empty), fired) {
                Ok(()) => return Ok(()),
                Err(Early::Behind) => watches.told_up_to(at).await,
                Err(Early::Overtaken) => {}
            }
        }
    }

    /// What is at every one of these paths now. More than one look can hold is no list of a client's watches, and to
    /// leave some out would be to lose them.
    async fn look_at_all(&self, reads: &[ZnodeRead]) -> Result<(Revision, Vec<Found>), Ended> {
        let (at, found) = self.look(reads.to_vec(), Consistency::Local).await?;
        if found.len() < reads.len() { Err(Ended) } else { Ok((at, found)) }
    }

    /// The same, with everything told that happened meanwhile.
    async fn replay_watches(
        &self,
        xid: i32,
        seen: Revision,
        once: &[(Wish, Had)],
        staying: &[Wish],
    ) -> Result<(), Ended> {
        let wishes = once.iter().map(|(wish, _)| wish).chain(staying);
        let reads: Vec<ZnodeRead> = wishes.clone().map(|wish| ZnodeRead::Glance(wish.path.clone())).collect();
        let mut replay = Replay::begin(&self.face.watches, self.id, &self.outbox, self.identities.clone(), wishes);
        replay.catch_up(&*self.face.coordinator, seen).await.map_err(|_| Ended)?;
        loop {
            let (at, found) = self.look_at_all(&reads).await?;
            let (found_once, found_staying) = found.split_at(once.len().min(found.len()));
            let fired = once.iter().zip(found_once).map(|((wish, had), found)| (wish, had.missed(found, seen)));
            let exists = staying.iter().zip(found_staying).map(|(wish, found)| (wish, found.is_ok()));
            match replay.finish(at, (xid, &Reply::Empty), fired, exists) {
                Ok(()) => return Ok(()),
                Err(Unfinished::Behind) => self.face.watches.told_up_to(at).await,
                Err(Unfinished::TooSlow) => return Err(Ended),
            }
        }
    }

    fn watches_of(&self, xid: i32, path: &str, kind: RemovedWatch, remove: bool) {
        let kinds: &[WatchKind] = match kind {
            RemovedWatch::Children => &[WatchKind::Child],
            RemovedWatch::Data => &[WatchKind::Data],
            RemovedWatch::Persistent => &[WatchKind::Persistent],
            RemovedWatch::PersistentRecursive => &[WatchKind::Recursive],
            RemovedWatch::Any => &[WatchKind::Child, WatchKind::Data, WatchKind::Persistent, WatchKind::Recursive],
        };
        self.face.watches.with(|table, told| {
            let mut any = false;
            for kind in kinds {
                any |= if remove { table.remove(self.id, *kind, path) } else { table.has(self.id, *kind, path) };
            }
            let reply = if any { Reply::Empty } else { Reply::Error(ErrorCode::NoWatcher) };
            self.outbox.outcome(xid, told, &reply);
        });
    }

    fn authenticate(&mut self, xid: i32, scheme: &str, auth: &[u8]) -> Result<(), Ended> {
        let proof = match scheme {
            // What was shown when the connection was made is known already.
            "x509" if self.has_certificate() => Proof::Of(Vec::new()),
            _ => prove(scheme, auth, self.face.config.super_digest.as_deref()),
        };
        let is_believed = match proof {
            Proof::Of(identities) => self.take_on(identities),
            Proof::Failed => false,
        };
        if !is_believed {
            self.face.counts.auth_failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.outbox.without_zxid(xid, &Reply::Error(ErrorCode::AuthFailed));
            return Err(Ended);
        }
        self.outbox.without_zxid(xid, &Reply::Empty);
        Ok(())
    }

    /// Ends the session; the reply is the last thing sent.
    async fn close(&self, xid: i32) -> Result<(), Ended> {
        if is_passing(self.session.session) {
            // No server but this one knows of it.
            self.outbox.plain(xid, &Reply::Empty);
            return Err(Ended);
        }
        // Its end is no news to this connection.
        self.face.sessions.release(self.session.session, self.id);
        let command = Command::Znode(ZnodeCommand::CloseSession { session: self.session.session });
        let outcome = self.face.coordinator.propose(Caller::Anonymous, command, None).await.map_err(|_| Ended)?;
        self.face.watches.told_up_to(outcome.revision).await;
        self.outbox.outcome(xid, outcome.revision, &Reply::Empty);
        Err(Ended)
    }
}

/// What a watch was set on.
#[derive(Clone, Copy)]
enum Had {
    Data,
    Nothing,
    Children,
}

impl Had {
    /// What happened since `seen`, as far as the store still shows it.
    fn missed(self, found: &Result<ZnodeFound, ZnodeError>, seen: Revision) -> Option<EventKind> {
        let stat = match found {
            Ok(ZnodeFound::Stat(stat)) => Some(stat),
            _ => None,
        };
        match (self, stat) {
            (Had::Nothing, None) => None,
            (Had::Nothing, Some(_)) => Some(EventKind::NodeCreated),
            (Had::Data | Had::Children, None) => Some(EventKind::NodeDeleted),
            _ if tidelock_model::planted!(WatchLostWhileAway) => None,
            (Had::Data, Some(stat)) => (stat.modified > seen).then_some(EventKind::NodeDataChanged),
            (Had::Children, Some(stat)) => (stat.children_modified > seen).then_some(EventKind::NodeChildrenChanged),
        }
    }
}
