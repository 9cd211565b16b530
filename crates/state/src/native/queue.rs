//! Queues: locks, elections and semaphores.
//!
//! A place is a key `kind name number`, whose number is the revision it was taken at, and whose owner is a session.
//! Granted places are the first ones of their queue, so who is next is found beside the place that went: nothing is
//! counted, nothing else is read, however many wait. A semaphore has a head that knows what is left and where the
//! granted places end, since there it is not the neighbour who tells.
//!
//! The token of a grant is the revision it was made at. When one release lets several in, the second and later ones
//! get a revision each, so that a token has one holder (K2) and tokens ascend along the queue (K1). So the place of a
//! token is found by halving the queue, however many places its holder has there.

use tidelock_model::limits::{NATIVE_PERMITS_MAX, NATIVE_QUEUE_MAX};
use tidelock_model::native_keys::{self as keys, Slot};
use tidelock_model::native_records::{Place, Semaphore, Stored};
use tidelock_model::{Data, Key, KeyRange, KeyValue, Kind, LeaseId, Mode, Name, NativeAnswer, NativeError, Wait};

use super::sessions::{check_ttl, ttl_s};
use crate::State;
use crate::apply::Effects;
use crate::change::Revising;

/// A session's own places in a queue that are looked at one by one for a token: mostly it has one, and to look at that
/// is cheaper than to halve the queue. Those with more would pay for each of them with every request.
const OWN_WALKED_MAX: usize = 2;

/// Most bytes of a stored place that come before its data: what it is, a weight, a token and where it moved from.
const PLACE_HEAD_BYTES_MAX: usize = 1 + 5 + 10 + 10;

/// The token of a place, whose data is not copied: many are looked at for one that is meant.
pub(super) fn token_of(item: &KeyValue) -> u64 {
    let value = item.record.value();
    let head = value.get(..PLACE_HEAD_BYTES_MAX).unwrap_or(value);
    Place::read(head).map_or(0, |place| place.token)
}

/// A place with where it is.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) key: Key,
    pub(super) number: u64,
    pub(super) session: LeaseId,
    pub(super) place: Place,
}

impl Queued {
    pub(super) fn read(item: &KeyValue) -> Option<Queued> {
        let (place, session) = Place::of(&item.record)?;
        let Slot::Member { number, .. } = keys::parse_borrowed(&item.key)?.2 else { return None };
        Some(Queued { key: item.key.clone(), number, session, place })
    }
}

impl State {
    #[expect(clippy::too_many_arguments, reason = "the fields of one request")]
    pub(super) fn acquire(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        mode: Mode,
        permits: u32,
        wait: Wait,
        data: Data,
    ) -> Result<NativeAnswer, NativeError> {
        let Mode::Permits(weight) = mode else {
            return self.enqueue(at, session, Kind::Lock, name, mode, wait, data);
        };
        let semaphore = self.semaphore_for(name, permits)?;
        if weight == 0 || weight > semaphore.permits {
            return Err(NativeError::BadWeight { permits: u64::from(semaphore.permits) });
        }
        let answer = self.enqueue(at, session, Kind::Semaphore, name, mode, wait, data)?;
        if let NativeAnswer::Place { place, token, .. } = answer {
            let head = match token {
                0 => semaphore,
                _ => Semaphore { used: semaphore.used + u64::from(weight), granted_to: place, ..semaphore },
            };
            self.put_semaphore(at, name, head);
        }
        Ok(answer)
    }

    pub(super) fn campaign(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        wait: Wait,
        data: Data,
    ) -> Result<NativeAnswer, NativeError> {
        self.enqueue(at, session, Kind::Election, name, Mode::Exclusive, wait, data)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one request")]
    fn enqueue(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        kind: Kind,
        name: &Name,
        mode: Mode,
        wait: Wait,
        data: Data,
    ) -> Result<NativeAnswer, NativeError> {
        self.check_holdings(session)?;
        let place = at.revision().0;
        let key = keys::member(kind, name, place);
        // Numbers are revisions: the new place comes after all there are.
        let last = self.last_before(kind, name, &key);
        let ahead = if last.is_some() { self.member_count(kind, name) } else { 0 };
        let is_free = self.is_free(kind, name, mode, last.as_ref());
        match wait {
            Wait::Try if !is_free => return Err(NativeError::Busy { token: self.first_token(kind, name) }),
            Wait::Queue(most) if !is_free && most > 0 && ahead >= u64::from(most) => {
                return Err(NativeError::QueueFull { waiting: ahead });
            }
            _ if ahead >= NATIVE_QUEUE_MAX as u64 => return Err(NativeError::QueueFull { waiting: ahead }),
            _ => {}
        }
        let token = if is_free { place } else { 0 };
        let value = Place { mode, token, moved_from: 0, data }.write();
        self.put_owned(at, key, value, session);
        Ok(NativeAnswer::Place { place, token, ahead })
    }

    /// Whether a new place after the last one would be granted at once.
    fn is_free(&self, kind: Kind, name: &Name, mode: Mode, last: Option<&Queued>) -> bool {
        if let Mode::Permits(weight) = mode {
            // Without a head there is nobody yet, and the weight was looked at.
            let Some(head) = self.semaphore(name) else { return true };
            let nobody_waits = last.is_none_or(|last| last.number <= head.granted_to);
            return nobody_waits && fits(&head, weight);
        }
        if tidelock_model::planted!(NewcomerOvertakesWriter) && mode == Mode::Shared {
            return self.places(kind, name).next().is_none_or(|first| first.place.mode == Mode::Shared);
        }
        let shares = mode == Mode::Shared || tidelock_model::planted!(WriterJoinsReaders);
        last.is_none_or(|last| last.place.is_granted() && last.place.mode == Mode::Shared && shares)
    }

    fn first_token(&self, kind: Kind, name: &Name) -> u64 {
        let first = self.keyspace.live_from(&keys::members(kind, name).start).next();
        first.filter(|first| keys::is_member(kind, name, &first.key)).map_or(0, token_of)
    }

    pub(super) fn places(&self, kind: Kind, name: &Name) -> impl Iterator<Item = Queued> + '_ {
        let range = keys::members(kind, name);
        self.keyspace.live_from(&range.start).take_while(move |item| item.key < range.end).filter_map(Queued::read)
    }

    fn last_before(&self, kind: Kind, name: &Name, bound: &Key) -> Option<Queued> {
        let last = self.keyspace.live_before(bound).filter(|item| keys::is_member(kind, name, &item.key));
        last.and_then(Queued::read)
    }

    /// A session's places in one queue: mostly one, however many others there are.
    fn own_places(&self, session: LeaseId, kind: Kind, name: &Name) -> impl Iterator<Item = &KeyValue> + '_ {
        let keys = self.leases.keys_within(session, &keys::members(kind, name));
        keys.filter_map(|key| self.keyspace.get(key))
    }

    /// What this session holds under a token.
    pub(super) fn held(&self, session: LeaseId, kind: Kind, name: &Name, token: u64) -> Result<Queued, NativeError> {
        Queued::read(self.find_held(session, kind, name, token)?).ok_or(NativeError::StaleToken { token })
    }

    /// The same for who only wants to know that it does: nothing is copied.
    pub(super) fn find_held(
        &self,
        session: LeaseId,
        kind: Kind,
        name: &Name,
        token: u64,
    ) -> Result<&KeyValue, NativeError> {
        if !kind.is_queue() {
            return Err(NativeError::WrongKind);
        }
        if token == 0 {
            return Err(NativeError::StaleToken { token });
        }
        if tidelock_model::planted!(ReleaseByAnybody)
            && let Some(held) = self.granted_under(kind, name, token)
        {
            return Ok(held);
        }
        let is_held = |item: &&KeyValue| item.record.meta().lease == session && token_of(item) == token;
        // Who did not wait was granted its place when it took it.
        let at_once = self.keyspace.get(&keys::member(kind, name, token)).filter(is_held);
        if let Some(held) = at_once.or_else(|| self.own_granted_under(session, kind, name, token)) {
            return Ok(held);
        }
        let is_anothers = self.first_token(kind, name) == token;
        Err(if is_anothers { NativeError::NotHolder { token } } else { NativeError::StaleToken { token } })
    }

    fn own_granted_under(&self, session: LeaseId, kind: Kind, name: &Name, token: u64) -> Option<&KeyValue> {
        let mut own = self.own_places(session, kind, name);
        if let Some(found) = own.by_ref().take(OWN_WALKED_MAX).find(|item| token_of(item) == token) {
            return Some(found);
        }
        // Who has no more places has none with that token.
        own.next()?;
        self.granted_under(kind, name, token).filter(|item| item.record.meta().lease == session)
    }

    /// The place that was granted under a token, whoever has it.
    fn granted_under(&self, kind: Kind, name: &Name, token: u64) -> Option<&KeyValue> {
        // A place is granted when it is taken or after that: it is not behind the number of its token.
        let bound = keys::member(kind, name, token).successor();
        let up_to = KeyRange { start: keys::members(kind, name).start, end: bound };
        let is_before = |item: &KeyValue| (1..token).contains(&token_of(item));
        self.keyspace.live_partition(&up_to, is_before).filter(|item| token_of(item) == token)
    }

    pub(super) fn release(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        kind: Kind,
        name: &Name,
        token: u64,
    ) -> Result<NativeAnswer, NativeError> {
        let held = self.held(session, kind, name, token)?;
        self.delete_key(at, &held.key);
        self.settle_queue(at, kind, name, &[held]);
        Ok(NativeAnswer::Left { token })
    }

    /// The successor takes over the leader's own place, so that it is before all who wait, and leaves the one it had.
    pub(super) fn resign(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        token: u64,
        successor: LeaseId,
    ) -> Result<NativeAnswer, NativeError> {
        let leader = self.held(session, Kind::Election, name, token)?;
        // One place of an election is granted at most, so this looks at two.
        let next = self.own_places(successor, Kind::Election, name).find(|item| token_of(item) == 0);
        let next = next.and_then(Queued::read).ok_or(NativeError::NoSuccessor)?;
        self.delete_key(at, &next.key);
        let kept = tidelock_model::planted!(SuccessorKeepsTheEpoch);
        let its_token = if kept { token } else { at.revision().0 };
        let place = Place { token: its_token, moved_from: next.number, ..next.place };
        self.put_owned(at, leader.key, place.write(), successor);
        Ok(NativeAnswer::Left { token })
    }

    /// Others that want to share are let in, too.
    pub(super) fn downgrade(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        token: u64,
    ) -> Result<NativeAnswer, NativeError> {
        let held = self.held(session, Kind::Lock, name, token)?;
        if held.place.mode == Mode::Shared {
            return Ok(NativeAnswer::Done);
        }
        let place = Place { mode: Mode::Shared, ..held.place };
        self.put_owned(at, held.key.clone(), place.write(), session);
        let grants = self.grantable_from(Kind::Lock, name, &held.key.successor());
        self.grant_in_turn(at, Kind::Lock, name, grants);
        Ok(NativeAnswer::Done)
    }

    pub(super) fn proclaim(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        token: u64,
        data: Data,
    ) -> Result<NativeAnswer, NativeError> {
        let leader = self.places(Kind::Election, name).next().filter(|_| tidelock_model::planted!(ProclaimByAnybody));
        let held = leader.map_or_else(|| self.held(session, Kind::Election, name, token), Ok)?;
        let place = Place { data, ..held.place };
        self.put_owned(at, held.key, place.write(), held.session);
        Ok(NativeAnswer::Done)
    }

    pub(super) fn renew_held(
        &mut self,
        session: LeaseId,
        kind: Kind,
        name: &Name,
        token: u64,
        ttl_ms: u32,
        effects: &mut Effects,
    ) -> Result<NativeAnswer, NativeError> {
        if ttl_ms != 0 {
            check_ttl(ttl_ms)?;
        }
        if !tidelock_model::planted!(RenewalUnfenced) {
            self.find_held(session, kind, name, token)?;
        }
        let before = self.lease(session).ok_or(NativeError::UnknownSession)?.ttl_s;
        self.renew_lease_for(session, if ttl_ms == 0 { before } else { ttl_s(ttl_ms) }, effects);
        Ok(NativeAnswer::Done)
    }

    pub(super) fn resize(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        permits: u32,
    ) -> Result<NativeAnswer, NativeError> {
        check_permits(permits)?;
        let before = self.semaphore(name).unwrap_or(Semaphore { permits: 0, used: 0, granted_to: 0 });
        if before.permits != permits {
            self.put_semaphore(at, name, Semaphore { permits, ..before });
            if !tidelock_model::planted!(ResizeWakesNobody) {
                let grants = self.grantable_permits(name);
                self.grant_in_turn(at, Kind::Semaphore, name, grants);
            }
        }
        Ok(NativeAnswer::Done)
    }

    pub(super) fn semaphore(&self, name: &Name) -> Option<Semaphore> {
        match self.stored(&keys::head(Kind::Semaphore, name)) {
            Some(Stored::Semaphore(semaphore)) => Some(semaphore),
            _ => None,
        }
    }

    /// The semaphore as it is, or as the request makes it; who names another number of permits is told.
    fn semaphore_for(&self, name: &Name, permits: u32) -> Result<Semaphore, NativeError> {
        match self.semaphore(name) {
            Some(head) if permits != 0 && permits != head.permits => {
                Err(NativeError::Differs { made: u64::from(head.permits) })
            }
            Some(head) => Ok(head),
            None if permits == 0 => Err(NativeError::NotFound),
            None => {
                check_permits(permits)?;
                Ok(Semaphore { permits, used: 0, granted_to: 0 })
            }
        }
    }

    fn put_semaphore(&mut self, at: &mut Revising<'_>, name: &Name, semaphore: Semaphore) {
        if self.semaphore(name) != Some(semaphore) {
            self.put_stored(at, keys::head(Kind::Semaphore, name), &Stored::Semaphore(semaphore));
        }
    }

    /// Lets in who may be, once places are gone. More than the first at revisions of their own.
    pub(super) fn settle_queue(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name, gone: &[Queued]) {
        let grants = self.grantable_after(at, kind, name, gone);
        self.grant_in_turn(at, kind, name, grants);
        if tidelock_model::planted!(ReleaseWakesEverybody) {
            let waiting: Vec<Queued> = self.places(kind, name).filter(|place| !place.place.is_granted()).collect();
            waiting.into_iter().for_each(|one| self.put_owned(at, one.key, one.place.write(), one.session));
        }
    }

    /// Who may be let in once these places are gone; what a semaphore has left is noted on the way.
    pub(super) fn grantable_after(
        &mut self,
        at: &mut Revising<'_>,
        kind: Kind,
        name: &Name,
        gone: &[Queued],
    ) -> Vec<Queued> {
        if kind == Kind::Semaphore {
            let weight = |gone: &Queued| match gone.place.mode {
                Mode::Permits(weight) if gone.place.is_granted() => u64::from(weight),
                _ => 0,
            };
            let Some(head) = self.semaphore(name) else { return Vec::new() };
            let used = head.used.saturating_sub(gone.iter().map(weight).sum());
            self.put_semaphore(at, name, Semaphore { used, ..head });
            return self.grantable_permits(name);
        }
        // Only one place can be the end of the granted ones, so at most one of these finds anybody.
        let mut found = gone.iter().map(|gone| self.grantable_from(kind, name, &gone.key));
        found.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Who may be let in from `bound` on, if that is where the granted places end.
    fn grantable_from(&self, kind: Kind, name: &Name, bound: &Key) -> Vec<Queued> {
        let behind = self.keyspace.live_from(bound).take_while(|item| keys::is_member(kind, name, &item.key));
        let mut behind = behind.filter_map(Queued::read).peekable();
        // Mostly nobody waits, and then it does not matter who is before.
        if behind.peek().is_none() {
            return Vec::new();
        }
        let before = self.last_before(kind, name, bound);
        let shared_only = match &before {
            None => false,
            Some(before) if before.place.is_granted() && before.place.mode == Mode::Shared => true,
            Some(_) => return Vec::new(),
        };
        if tidelock_model::planted!(LastComeFirstServed) && before.is_none() {
            return behind.last().into_iter().filter(|one| !one.place.is_granted()).collect();
        }
        let mut grants: Vec<Queued> = Vec::new();
        for next in behind {
            if next.place.is_granted() {
                break;
            }
            match next.place.mode {
                Mode::Shared => grants.push(next),
                _ if grants.is_empty() && !shared_only => {
                    grants.push(next);
                    break;
                }
                _ => break,
            }
        }
        grants
    }

    fn grantable_permits(&self, name: &Name) -> Vec<Queued> {
        let Some(mut head) = self.semaphore(name) else { return Vec::new() };
        let range = keys::members(Kind::Semaphore, name);
        let range = super::from(&range, keys::member(Kind::Semaphore, name, head.granted_to).successor());
        let waiting = self.keyspace.live_from(&range.start).take_while(|item| item.key < range.end);
        let mut grants = Vec::new();
        for next in waiting.filter_map(Queued::read) {
            let Mode::Permits(weight) = next.place.mode else { break };
            if !fits(&head, weight) {
                break;
            }
            head.used += u64::from(weight);
            grants.push(next);
        }
        grants
    }

    /// The first at this revision, each other at one of its own.
    pub(super) fn grant_in_turn(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name, grants: Vec<Queued>) {
        for (turn, grant) in grants.into_iter().enumerate() {
            if turn > 0 {
                at.step(self);
            }
            self.grant(at, kind, name, grant);
        }
    }

    /// Lets one in that may be.
    pub(super) fn grant(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name, grant: Queued) {
        let token = if tidelock_model::planted!(TokenOfThePlace) { grant.number } else { at.revision().0 };
        assert!(!grant.place.is_granted(), "a place is granted once (K2)");
        debug_assert!(
            self.last_before(kind, name, &grant.key).is_none_or(|before| (1..token).contains(&before.place.token)),
            "in order (K1, K5)"
        );
        if let (Mode::Permits(weight), Some(head)) = (grant.place.mode, self.semaphore(name)) {
            let used = head.used + u64::from(weight);
            self.put_semaphore(at, name, Semaphore { used, granted_to: grant.number, ..head });
        }
        self.put_owned(at, grant.key, Place { token, ..grant.place }.write(), grant.session);
    }
}

/// Whether a weight can be had. Who asked for more than there is by now gets all there is, once nobody else has any.
fn fits(head: &Semaphore, weight: u32) -> bool {
    let weight = if tidelock_model::planted!(PermitsOverbooked) { 1 } else { weight };
    head.used + u64::from(weight.min(head.permits)) <= u64::from(head.permits)
}

fn check_permits(permits: u32) -> Result<(), NativeError> {
    if (1..=NATIVE_PERMITS_MAX).contains(&permits) { Ok(()) } else { Err(NativeError::BadCount) }
}
