//! What is told about native primitives: one thing with its queue, names, sessions and what they hold. In pages.

use tidelock_model::limits::NATIVE_LIST_MAX;
use tidelock_model::native_keys::{self as keys, Slot};
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{
    Holding, Key, KeyValue, Kind, LeaseId, MemberFound, Name, NameFound, NativeFound, NativeQuery, NativeSession,
    ObjectFound,
};

use super::queue::token_of;
use crate::State;

/// Most bytes that the members told with a page of names show: with all around them they fit into a message that
/// clients take unasked (4 MiB).
const MEMBERS_BYTES_MAX: usize = 1 << 20;

fn bounded(limit: u32) -> usize {
    limit.min(NATIVE_LIST_MAX) as usize
}

impl State {
    pub(crate) fn read_native(&self, query: &NativeQuery) -> NativeFound {
        match query {
            NativeQuery::Describe { kind, name, skip, limit } => {
                NativeFound::Object(self.describe(*kind, name, *skip, bounded(*limit)))
            }
            NativeQuery::Member { kind, name, place } => {
                let item = self.keyspace.get(&keys::member(*kind, name, *place));
                NativeFound::Member(item.and_then(|item| member_found(*kind, item)))
            }
            NativeQuery::Names { kind, prefix, after, limit, members } => {
                let (names, more) = self.names(*kind, prefix, after.as_ref(), bounded(*limit), bounded(*members));
                NativeFound::Names { names, more }
            }
            NativeQuery::Sessions { after, limit, holdings } => {
                let ids = self.sessions.after(*after).take(bounded(*limit));
                NativeFound::Sessions(self.describe_sessions(ids, bounded(*holdings)))
            }
            NativeQuery::SomeSessions { sessions, holdings } => {
                let ids = sessions.iter().copied().take(bounded(NATIVE_LIST_MAX));
                NativeFound::Sessions(self.describe_sessions(ids, bounded(*holdings)))
            }
            NativeQuery::Session { session, skip, holdings } => {
                NativeFound::Sessions(self.describe_session(*session, *skip, bounded(*holdings)).into_iter().collect())
            }
        }
    }

    fn describe(&self, kind: Kind, name: &Name, skip: u64, limit: usize) -> ObjectFound {
        let head = self.keyspace.get(&keys::head(kind, name));
        let range = keys::members(kind, name);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        // Who pages through a long queue must not have all that was told already read and copied with every page.
        let members = self.keyspace.live_range_after(&range, skip).filter_map(|item| member_found(kind, item));
        ObjectFound {
            head: head.and_then(|head| Stored::read(head.record.value())),
            created: head.map_or(0, |head| head.record.meta().created.0),
            tally: self.stored(&keys::tally(kind, name)),
            root: (kind == Kind::Phaser).then(|| Some(self.line(name).ok()?.root().clone())).flatten(),
            members: members.take(limit).collect(),
            count: self.member_count(kind, name),
        }
    }

    fn names(
        &self,
        kind: Kind,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
        members_each: usize,
    ) -> (Vec<NameFound>, bool) {
        let range = keys::names(kind, prefix);
        let mut next =
            after.map_or(range.start.clone(), |after| keys::members(kind, after).end.max(range.start.clone()));
        let mut found: Vec<NameFound> = Vec::new();
        let (mut room, mut room_bytes) = (bounded(NATIVE_LIST_MAX), MEMBERS_BYTES_MAX);
        // One step for each name, however many members it has.
        while let Some(item) = self.keyspace.live_from(&next).next().filter(|item| item.key < range.end) {
            let Some((_, name, _)) = keys::parse(&item.key) else {
                next = item.key.successor();
                continue;
            };
            let range = keys::members(kind, &name);
            let told = self.keyspace.live_range(&range).filter_map(|item| member_found(kind, item)).take(members_each);
            let first: Vec<MemberFound> = told.collect();
            let bytes = first.iter().filter_map(|one| one.queued.as_ref()).map(|own| own.data.as_bytes().len()).sum();
            // The first name always fits, whatever it has: somebody who pages gets on.
            let fits = found.is_empty() || (first.len() <= room && bytes <= room_bytes);
            if found.len() >= limit || !fits {
                return (found, true);
            }
            room = room.saturating_sub(first.len());
            room_bytes = room_bytes.saturating_sub(bytes);
            next = range.end;
            found.push(NameFound { members: self.member_count(kind, &name), name, first });
        }
        (found, false)
    }

    /// Those that live, with what they hold, so much of it all together.
    fn describe_sessions(&self, ids: impl Iterator<Item = LeaseId>, mut room: usize) -> Vec<NativeSession> {
        let sessions = ids.filter_map(|id| {
            let session = self.describe_session(id, 0, room)?;
            room -= session.holdings.len();
            Some(session)
        });
        sessions.collect()
    }

    fn describe_session(&self, session: LeaseId, skip: u64, limit: usize) -> Option<NativeSession> {
        let (memory, lease) = (self.sessions.get(session)?, self.lease(session)?);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let held = self.lease_keys(session).filter(|key| is_holding(key)).skip(skip);
        let holdings = held.filter_map(|key| self.holding(key)).take(limit);
        Some(NativeSession {
            session,
            ttl_s: lease.ttl_s,
            owner: memory.owner().to_owned(),
            acknowledged: memory.acknowledged,
            holdings: holdings.collect(),
            count: self.leases.owned(session) as u64,
        })
    }

    fn holding(&self, key: &Key) -> Option<Holding> {
        let (kind, name, Slot::Member { number: place, .. }) = keys::parse(key)? else { return None };
        let token = self.keyspace.get(key).filter(|_| kind.is_queue()).map_or(0, token_of);
        Some(Holding { kind, name, place, token })
    }
}

/// Whether a key is something that a session holds: a lease may own others, too.
fn is_holding(key: &Key) -> bool {
    matches!(keys::parse_borrowed(key), Some((_, _, Slot::Member { .. })))
}

fn member_found(kind: Kind, item: &KeyValue) -> Option<MemberFound> {
    let Slot::Member { number: place, version } = keys::parse_borrowed(&item.key)?.2 else { return None };
    Some(MemberFound {
        place,
        session: item.record.meta().lease,
        queued: Place::of(&item.record).filter(|_| kind.is_queue()).map(|(place, _)| place),
        parties: Stored::read(item.record.value()).filter(|_| kind == Kind::Phaser),
        version,
    })
}
