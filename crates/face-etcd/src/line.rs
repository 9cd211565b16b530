//! The line that locks and elections wait in, laid out as etcd lays it out: under `name/` one key per
//! lease, named after the lease in hexadecimal. The oldest key is the holder's; the others wait in the
//! order in which their keys were created, each for the one before it to be deleted.
//!
//! Clients that make the same keys themselves (etcdctl, Go's `concurrency`) wait in the same line.
//!
//! What holds: a turn is only ever told to someone whose own key still existed, as the oldest, at the
//! revision that is told (H9: a lease that ran out while waiting gets an error, never the lock). Whoever
//! is not told of its turn, because it went away or something failed, leaves the line.

use std::sync::Arc;

use bytes::Bytes;
use tidelock_coordinator::{Consistency, Coordinator, Subscription, WatchRequest, WatcherId};
use tidelock_model::limits::KEY_BYTES_MAX;
use tidelock_model::{
    Answer, Caller, Command, Compare, CompareResult, CompareTarget, DeleteOp, Key, KeyRange, KeyValue, LeaseId, Op,
    OpAnswer, Projection, PutLease, PutOp, PutValue, Query, QueryAnswer, RangeOp, Revision, Sort, SortBy, Space, Txn,
};
use tokio::sync::oneshot;

use crate::error_map::FaceError;
use crate::header::wire_revision;
use crate::kv::MISMATCH;
use crate::lease::random_id;
use crate::line_order::FollowedLines;
use crate::services::{Services, StreamEnd};

/// Time to live of a lease that is granted because the client named none: as long as a session of etcd's
/// own client library.
const OWN_LEASE_TTL_S: u32 = 60;

/// A line, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    keys: KeyRange,
}

impl Line {
    /// The line called `name`, which may be empty.
    pub fn new(name: &[u8]) -> Result<Line, FaceError> {
        /// The slash, and a lease with its sign.
        const SUFFIX_BYTES_MAX: usize = 1 + 17;
        if name.len() + SUFFIX_BYTES_MAX > KEY_BYTES_MAX {
            return Err(FaceError::RequestTooLarge);
        }
        let key = |after: u8| Key::new(Space::User, &[name, &[after]].concat());
        Ok(Line { keys: KeyRange { start: key(b'/'), end: key(b'/' + 1) } })
    }

    /// The key by which a lease stands in this line.
    #[must_use]
    pub fn place(&self, lease: LeaseId) -> Key {
        let sign = if lease.0 < 0 { "-" } else { "" };
        let place = format!("{sign}{:x}", lease.0.unsigned_abs());
        Key::new(Space::User, &[self.keys.start.name(), place.as_bytes()].concat())
    }

    /// All keys in the line.
    #[must_use]
    pub fn keys(&self) -> &KeyRange {
        &self.keys
    }

    /// The holder's key, if there is any.
    #[must_use]
    pub fn first(&self) -> RangeOp {
        RangeOp { limit: 1, sort: Some(Sort { by: SortBy::Created, descending: false }), ..self.all() }
    }

    /// Some keys of the line, which cost the same however many there are: enough to tell whether one is alone.
    fn some(&self) -> RangeOp {
        RangeOp { limit: 2, projection: Projection::KeysOnly, ..self.all() }
    }

    fn all(&self) -> RangeOp {
        RangeOp::all(self.keys.clone())
    }

    /// Puts `place` at the end of the line unless it stands there, and tells whether it is alone there.
    #[must_use]
    pub fn enter(&self, place: &Key, lease: LeaseId, value: Bytes) -> Op {
        let here = RangeOp::all(KeyRange::single(place.clone()));
        Op::Txn(Box::new(Txn {
            compares: vec![created_is(place, 0)],
            success: vec![put(place, lease, value), Op::Range(self.some())],
            failure: vec![Op::Range(here), Op::Range(self.some())],
        }))
    }

    /// Reads `place`, for whoever may read the line.
    #[must_use]
    pub fn look(&self, place: &Key) -> Op {
        let here = RangeOp::all(KeyRange::single(place.clone()));
        let reads = vec![Op::Range(here), Op::Range(self.some())];
        Op::Txn(Box::new(Txn { success: reads, ..Txn::default() }))
    }
}

fn created_is(place: &Key, created: i64) -> Compare {
    let range = KeyRange::single(place.clone());
    Compare { range, result: CompareResult::Equal, target: CompareTarget::Created(created) }
}

fn put(place: &Key, lease: LeaseId, value: Bytes) -> Op {
    let (value, lease) = (PutValue::Set(value), PutLease::Set(lease));
    Op::Put(PutOp { key: place.clone(), value, lease, want_previous: false })
}

/// Sets the value of a place, if it is still the one that was created then. `created` is as the client says.
#[must_use]
pub fn proclaim(place: &Key, created: i64, lease: LeaseId, value: Bytes) -> Op {
    let compares = vec![created_is(place, created)];
    Op::Txn(Box::new(Txn { compares, success: vec![put(place, lease, value)], failure: vec![] }))
}

/// Leaves the line, if the place is still the one that was created then. `created` is as the client says.
#[must_use]
pub fn leave(place: &Key, created: i64) -> Op {
    let delete = DeleteOp { range: KeyRange::single(place.clone()), want_previous: false };
    let compares = vec![created_is(place, created)];
    Op::Txn(Box::new(Txn { compares, success: vec![Op::Delete(delete)], failure: vec![] }))
}

/// A place in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    /// The revision at which the key was created: where in the line it stands.
    pub(crate) created: Revision,
    /// The store's revision when the place was taken or found.
    pub(crate) entered: Revision,
    /// Whether it was taken by this call: only then it is this call's to give up.
    is_new: bool,
    /// Whether nobody else stood in the line.
    is_alone: bool,
    /// Its value, if it was there before.
    value: Option<Bytes>,
}

/// Reads the answer to [`Line::enter`].
fn place_of(key: Key, lease: LeaseId, entered: Revision, answer: &OpAnswer) -> Result<Place, FaceError> {
    let OpAnswer::Txn { succeeded, answers } = answer else { return Err(MISMATCH) };
    let [own, OpAnswer::Range(some)] = &answers[..] else { return Err(MISMATCH) };
    let found = match own {
        OpAnswer::Range(found) => found.items.first(),
        _ => None,
    };
    let created = found.map_or(entered, |item| item.record.meta().created);
    Ok(Place {
        key,
        lease,
        created,
        entered,
        is_new: *succeeded,
        is_alone: !some.more && some.items.iter().all(|item| item.record.meta().created == created),
        value: found.map(|item| item.record.value_bytes()),
    })
}

/// Someone who wants a turn.
struct Turn {
    caller: Caller,
    coordinator: Arc<dyn Coordinator>,
    lines: Arc<FollowedLines>,
    line: Line,
    lease: LeaseId,
    /// What the place shall say. `None`: nothing, or whatever it says already.
    value: Option<Bytes>,
    /// What someone is told whose place is gone.
    gone: FaceError,
}

/// A turn: the place, and the revision at which it was the first.
pub(crate) type Told = Result<(Place, Revision), FaceError>;

impl Services {
    /// Waits in `line` until it is `lease`'s turn. With no lease one is granted, as long as a session is.
    pub(crate) async fn take_turn(
        &self,
        caller: Caller,
        line: Line,
        lease: LeaseId,
        value: Option<Bytes>,
        gone: FaceError,
    ) -> Told {
        let lease = self.session_lease(&caller, lease).await?;
        let (coordinator, lines) = (Arc::clone(&self.coordinator), Arc::clone(&self.lines));
        let turn = Turn { caller, coordinator, lines, line, lease, value, gone };
        // A task of its own: when the client goes away this call is dropped, and the place must be given up.
        let (reply, told) = oneshot::channel();
        tokio::spawn(turn.run(reply, self.stream_end(false)));
        told.await.unwrap_or(Err(FaceError::Stopped))
    }

    /// The lease to act under: the client's, or a new one if it named none.
    pub(crate) async fn session_lease(&self, caller: &Caller, lease: LeaseId) -> Result<LeaseId, FaceError> {
        if lease.is_some() {
            return Ok(lease);
        }
        let id = random_id();
        self.propose(caller, Command::LeaseGrant { id, ttl_s: OWN_LEASE_TTL_S }).await?;
        Ok(id)
    }

    /// Carries out an operation: the store's revision after it, and its answer.
    pub(crate) async fn write(&self, caller: &Caller, op: Op) -> Result<(Revision, OpAnswer), FaceError> {
        write(&*self.coordinator, caller.clone(), op).await
    }
}

async fn write(coordinator: &dyn Coordinator, caller: Caller, op: Op) -> Result<(Revision, OpAnswer), FaceError> {
    let outcome = coordinator.propose(caller, Command::Write(op), None).await?;
    match outcome.result? {
        Answer::Op(answer) => Ok((outcome.revision, answer)),
        _ => Err(MISMATCH),
    }
}

impl Turn {
    /// Waiting may take long; users and roles may change meanwhile, and what counts is how they are then.
    fn caller(&self) -> Caller {
        self.caller.as_of(&self.coordinator.auth())
    }

    async fn run(self, mut reply: oneshot::Sender<Told>, mut end: StreamEnd) {
        // Not given up half-way: whether the place was taken must be known to leave it.
        let place = match self.enter().await {
            Ok(place) => place,
            // The client may be gone; then there is nobody to tell.
            Err(error) => return drop(reply.send(Err(error))),
        };
        let told = tokio::select! {
            told = self.wait(&place) => told,
            why = &mut end => Err(why),
            () = reply.closed() => return self.leave(&place).await,
        };
        if told.is_err() {
            self.leave(&place).await;
        }
        if reply.send(told.map(|revision| (place.clone(), revision))).is_err() {
            self.leave(&place).await;
        }
    }

    async fn enter(&self) -> Result<Place, FaceError> {
        let key = self.line.place(self.lease);
        let op = self.line.enter(&key, self.lease, self.value.clone().unwrap_or_default());
        let (revision, answer) = write(&*self.coordinator, self.caller(), op).await?;
        let place = place_of(key, self.lease, revision, &answer)?;
        if let (Some(said), Some(value)) = (&place.value, &self.value)
            && said != value
        {
            // It stood there with another value: it takes the new one and keeps its place.
            let op = proclaim(&place.key, wire_revision(place.created), self.lease, value.clone());
            match write(&*self.coordinator, self.caller(), op).await? {
                (_, OpAnswer::Txn { succeeded: true, .. }) => {}
                _ => return Err(self.gone),
            }
        }
        Ok(place)
    }

    /// Waits until nobody is before `place`; the revision at which that was so.
    async fn wait(&self, place: &Place) -> Result<Revision, FaceError> {
        if place.is_alone {
            return Ok(place.entered);
        }
        let followed = self.lines.follow(self.line.keys(), &self.coordinator);
        followed.until_first(&place.key, place.created).await?;
        // Nobody is before it, and nobody will be. But its lease may have run out where this node has not heard of it.
        let query = Query::Txn(self.line.look(&place.key));
        let answer = self.coordinator.read(self.caller(), query, Consistency::Linearizable).await?;
        let QueryAnswer::Op { revision, answer: OpAnswer::Txn { answers, .. } } = answer else { return Err(MISMATCH) };
        let [OpAnswer::Range(own), _] = &answers[..] else { return Err(MISMATCH) };
        // The same lease may have entered anew meanwhile: that is another place.
        if own.items.first().is_none_or(|item| item.record.meta().created != place.created) {
            return Err(self.gone);
        }
        Ok(revision)
    }

    /// Gives up the place, if this call took it. If that fails the lease's end will do it.
    async fn leave(&self, place: &Place) {
        if place.is_new {
            // Not the caller's right to write counts here, which may be gone: nobody waits behind a ghost.
            let op = leave(&place.key, wire_revision(place.created));
            drop(write(&*self.coordinator, Caller::Internal, op).await);
        }
    }
}

/// A subscription to what happens to these keys after revision `since`.
pub(crate) fn watch_keys(
    coordinator: &dyn Coordinator,
    caller: &Caller,
    ranges: impl Iterator<Item = KeyRange>,
    since: Revision,
) -> Arc<dyn Subscription> {
    let subscription = coordinator.subscribe();
    for (id, range) in (0..).zip(ranges) {
        let from = Some(since.next());
        subscription.open(WatchRequest {
            id: WatcherId(id),
            range,
            from,
            want_previous: false,
            caller: caller.clone(),
        });
    }
    subscription
}

/// The only item of a range answer.
pub(crate) fn only_item(answer: QueryAnswer) -> Result<(Revision, Option<KeyValue>), FaceError> {
    match answer {
        QueryAnswer::Op { revision, answer: OpAnswer::Range(mut found) } => Ok((revision, found.items.pop())),
        _ => Err(MISMATCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcdctl and the client libraries make these keys themselves: one letter off is another lock.
    #[test]
    fn places_are_named_as_clients_name_them() {
        let line = Line::new(b"jobs").unwrap();
        let name = |lease| line.place(LeaseId(lease)).name().to_vec();
        assert_eq!(name(0x3cee_a1df_1897_8a06), b"jobs/3ceea1df18978a06");
        assert_eq!(name(-31), b"jobs/-1f");
        assert!(line.keys().contains(&line.place(LeaseId(i64::MIN))));
        assert!(!line.keys().contains(&Key::new(Space::User, b"jobs")));
        assert!(!line.keys().contains(&Key::new(Space::User, b"jobs0")));
        assert_eq!(Line::new(b"").unwrap().place(LeaseId(77)).name(), b"/4d");
    }

    #[test]
    fn a_name_too_long_for_its_keys_is_refused() {
        assert_eq!(Line::new(&[b'n'; KEY_BYTES_MAX - 17]), Err(FaceError::RequestTooLarge));
        let longest = Line::new(&[b'n'; KEY_BYTES_MAX - 18]).unwrap();
        assert_eq!(longest.place(LeaseId(i64::MIN)).name().len(), KEY_BYTES_MAX);
    }
}
