//! What may go once nobody looks at it any more: versions (Rcu) and objects (hazards).
//!
//! A version is the revision it was published at. Its readers are ordered by the version they may still read, so the
//! oldest one is the first; whenever that changes, the head says so, once, and all versions before may go (U1).
//!
//! A hazard is an object that some keep from going (H1). Its epoch is the revision it was first protected at. Retiring
//! it gives it a new one, the revision of the retirement, lets nobody protect it any more, for good, and is over when
//! the last protection is. A session that ends takes its protections along although its reader may only be paused: so
//! who read must look whether the epoch is still the same, and throw away what it read if not. A name that was
//! forgotten stands for another object, with an epoch that nobody has had.

use bytes::Bytes;
use tidelock_model::native_keys::{self as keys, Slot};
use tidelock_model::native_records::{HazardStage, Stored};
use tidelock_model::{Data, Fencing, Kind, LeaseId, Name, NativeAnswer, NativeError};

use crate::State;
use crate::change::Revising;

impl State {
    /// The current version, and the oldest one that the head says may be read.
    fn versions(&self, name: &Name) -> Option<(u64, u64)> {
        match self.stored(&keys::head(Kind::Rcu, name)) {
            Some(Stored::Rcu { version, oldest }) => Some((version, oldest)),
            _ => None,
        }
    }

    /// The oldest version that somebody reads.
    fn oldest_read(&self, name: &Name) -> Option<u64> {
        let range = keys::members(Kind::Rcu, name);
        let first = self.keyspace.live_from(&range.start).next().filter(|item| item.key < range.end)?;
        match keys::parse_borrowed(&first.key)?.2 {
            Slot::Member { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Says which is the oldest version, if that changed.
    pub(super) fn settle_versions(&mut self, at: &mut Revising<'_>, name: &Name) -> u64 {
        let Some((version, before)) = self.versions(name) else { return 0 };
        let oldest = self.oldest_read(name).unwrap_or(version);
        if oldest != before {
            assert!(oldest > before, "what may go does not come back (U1)");
            self.put_stored(at, keys::head(Kind::Rcu, name), &Stored::Rcu { version, oldest });
        }
        oldest
    }

    pub(super) fn publish(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        data: Data,
        fencing: Option<&Fencing>,
    ) -> Result<NativeAnswer, NativeError> {
        self.check_fencing(fencing)?;
        if let Some(fencing) = fencing {
            self.raise_fence(at, &keys::head(Kind::Fence, &fencing.fence), fencing.token);
        }
        let version = at.revision().0;
        let overlooked = tidelock_model::planted!(ReadersOverlooked);
        let oldest = self.oldest_read(name).filter(|_| !overlooked).unwrap_or(version);
        self.put_stored(at, keys::tally(Kind::Rcu, name), &Stored::RcuData(data));
        self.put_stored(at, keys::head(Kind::Rcu, name), &Stored::Rcu { version, oldest });
        Ok(NativeAnswer::Version { reader: 0, version, oldest })
    }

    pub(super) fn start_reading(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
    ) -> Result<NativeAnswer, NativeError> {
        let (version, oldest) = self.versions(name).ok_or(NativeError::NotFound)?;
        self.check_member(session, Kind::Rcu, name)?;
        let reader = at.revision().0;
        self.put_owned(at, keys::reader(name, version, reader), Bytes::new(), session);
        Ok(NativeAnswer::Version { reader, version, oldest })
    }

    pub(super) fn report(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        reader: u64,
        version: u64,
    ) -> Result<NativeAnswer, NativeError> {
        let key = self.own_member(session, Kind::Rcu, name, reader)?;
        let (most, _) = self.versions(name).ok_or(NativeError::NotFound)?;
        let Some((_, _, Slot::Member { version: least, .. })) = keys::parse_borrowed(&key) else {
            return Err(NativeError::NoSuchPlace { place: reader });
        };
        if !(least..=most).contains(&version) {
            return Err(NativeError::BadVersion { least, most });
        }
        if version != least {
            self.delete_key(at, &key);
            self.put_owned(at, keys::reader(name, version, reader), Bytes::new(), session);
        }
        let oldest = self.settle_versions(at, name);
        Ok(NativeAnswer::Version { reader, version: most, oldest })
    }

    fn hazard(&self, name: &Name) -> Option<(u64, HazardStage)> {
        match self.stored(&keys::head(Kind::Hazard, name)) {
            Some(Stored::Hazard { epoch, stage }) => Some((epoch, stage)),
            _ => None,
        }
    }

    fn put_hazard(&mut self, at: &mut Revising<'_>, name: &Name, epoch: u64, stage: HazardStage) {
        self.put_stored(at, keys::head(Kind::Hazard, name), &Stored::Hazard { epoch, stage });
    }

    pub(super) fn protect(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
    ) -> Result<NativeAnswer, NativeError> {
        let (place, found) = (at.revision().0, self.hazard(name));
        let (epoch, stage) = found.unwrap_or((place, HazardStage::Alive));
        let again = stage == HazardStage::Retired && tidelock_model::planted!(RetiredProtectedAgain);
        if stage != HazardStage::Alive && !again {
            return Err(NativeError::Retiring { epoch });
        }
        self.check_member(session, Kind::Hazard, name)?;
        if found.is_none() {
            self.put_hazard(at, name, epoch, stage);
        }
        self.put_owned(at, keys::member(Kind::Hazard, name, place), Bytes::new(), session);
        Ok(NativeAnswer::Protected { place, epoch })
    }

    pub(super) fn retire(&mut self, at: &mut Revising<'_>, name: &Name) -> Result<NativeAnswer, NativeError> {
        if let Some((epoch, stage)) = self.hazard(name).filter(|(_, stage)| *stage != HazardStage::Alive) {
            return Ok(NativeAnswer::Retired { epoch, clear: stage == HazardStage::Retired });
        }
        let epoch = at.revision().0;
        let clear = self.member_count(Kind::Hazard, name) == 0 || tidelock_model::planted!(RetiredWhileKept);
        self.put_hazard(at, name, epoch, if clear { HazardStage::Retired } else { HazardStage::Retiring });
        Ok(NativeAnswer::Retired { epoch, clear })
    }

    /// Says that a retired object may go, once nobody keeps it.
    pub(super) fn settle_hazard(&mut self, at: &mut Revising<'_>, name: &Name) {
        let Some((epoch, HazardStage::Retiring)) = self.hazard(name) else { return };
        if self.member_count(Kind::Hazard, name) == 0 {
            self.put_hazard(at, name, epoch, HazardStage::Retired);
        }
    }
}
