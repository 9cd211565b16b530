//! Alarms: what a node or an operator declared wrong with the cluster. They stay raised until someone
//! lowers them, through restarts and changes of leader, so they are part of the replicated state.
//!
//! What an alarm forbids is decided in `state::apply`, the same on every member.

use std::collections::BTreeSet;

use crate::NodeId;
use crate::codec::{DecodeError, Reader, Wire, put_varint};
use crate::limits::ALARMS_MAX;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmKind {
    /// Space is short: nothing that grows the store is taken; deletes and compaction go on.
    NoSpace = 1,
    /// The data cannot be trusted: clients change nothing; reads and the expiry of leases go on.
    Corrupt = 2,
}

/// An alarm: whose, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// Where something is wrong. Whatever the one who raised it said: it need not be a member.
    pub member: NodeId,
    /// What is wrong.
    pub kind: AlarmKind,
}

/// The alarms that are raised, at most [`ALARMS_MAX`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms(BTreeSet<Alarm>);

impl Alarms {
    /// Whether any alarm of this kind is raised, whoever's.
    #[must_use]
    pub fn any(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }

    /// Whether this very alarm is raised.
    #[must_use]
    pub fn contains(&self, alarm: Alarm) -> bool {
        self.0.contains(&alarm)
    }

    /// Whether another alarm could not be raised any more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= ALARMS_MAX
    }

    /// Whether none is raised.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by member and kind.
    pub fn iter(&self) -> impl Iterator<Item = Alarm> + '_ {
        self.0.iter().copied()
    }

    /// Raises or lowers an alarm; says whether it was raised before.
    pub fn set(&mut self, alarm: Alarm, raised: bool) -> bool {
        if raised { !self.0.insert(alarm) } else { self.0.remove(&alarm) }
    }
}

impl Wire for Alarm {
    fn encode(&self, out: &mut Vec<u8>) {
        self.member.encode(out);
        out.push(self.kind as u8);
    }
    fn decode(input: &mut Reader) -> Result<Alarm, DecodeError> {
        let member = NodeId::decode(input)?;
        let kind = match input.byte()? {
            1 => AlarmKind::NoSpace,
            2 => AlarmKind::Corrupt,
            tag => return Err(DecodeError::UnknownTag { what: "alarm", tag }),
        };
        Ok(Alarm { member, kind })
    }
}

impl Wire for Alarms {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        self.0.iter().for_each(|alarm| alarm.encode(out));
    }
    fn decode(input: &mut Reader) -> Result<Alarms, DecodeError> {
        let count = input.count("the number of alarms", ALARMS_MAX)?;
        (0..count).map(|_| Alarm::decode(input)).collect::<Result<_, _>>().map(Alarms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_survive_the_round_trip_and_unknown_ones_are_refused() {
        let mut alarms = Alarms::default();
        assert!(!alarms.set(Alarm { member: NodeId(7), kind: AlarmKind::Corrupt }, true));
        assert!(!alarms.set(Alarm { member: NodeId(0), kind: AlarmKind::NoSpace }, true));
        assert_eq!(alarms.to_bytes(), [2, 0, 1, 7, 2]);
        assert_eq!(Alarms::from_bytes(alarms.to_bytes().into()), Ok(alarms));
        assert!(Alarms::from_bytes(vec![1, 0, 3].into()).is_err());
    }

    /// Lowering one member's alarm must leave the others' raised.
    #[test]
    fn an_alarm_is_lowered_by_member_and_kind() {
        let [one, two] = [1, 2].map(|member| Alarm { member: NodeId(member), kind: AlarmKind::NoSpace });
        let mut alarms = Alarms::default();
        assert!(!alarms.set(one, true));
        assert!(alarms.set(one, true), "raised before");
        assert!(!alarms.set(two, false), "was never raised");
        alarms.set(two, true);
        assert!(alarms.set(one, false));
        assert!(alarms.any(AlarmKind::NoSpace) && !alarms.any(AlarmKind::Corrupt) && !alarms.contains(one));
    }
}
