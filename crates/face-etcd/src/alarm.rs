//! Alarms: listed, raised and lowered by hand. They are replicated and stay until lowered; what they forbid
//! is decided where commands are carried out.
//!
//! Beside them a member whose disk is full tells NOSPACE by itself, for as long as it is: that one is a
//! fact, not a decision, and cannot be lowered. Which member is meant is what the client says, as with etcd.

use tidelock_coordinator::{Consistency, Status as NodeStatus};
use tidelock_etcd_api::etcdserverpb::alarm_request::AlarmAction;
use tidelock_etcd_api::etcdserverpb::{AlarmMember, AlarmRequest, AlarmResponse, AlarmType};
use tidelock_model::{Alarm, AlarmKind, Answer, Caller, Command, Need, NodeId, Query, QueryAnswer, Refusal};

use crate::error_map::FaceError;
use crate::kv::MISMATCH;
use crate::maintenance::alarms as disk_alarms;
use crate::services::Services;

/// What a request about alarms asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmWish {
    /// All that are raised, or all of a kind.
    List(Option<AlarmKind>),
    /// Raise or lower one.
    Set {
        /// Which.
        alarm: Alarm,
        /// Raise.
        raised: bool,
    },
    /// An alarm of no kind: nothing is done.
    Nothing,
}

/// A request about alarms, understood.
pub fn alarm_to_wish(request: AlarmRequest) -> Result<AlarmWish, FaceError> {
    let kind = match AlarmType::try_from(request.alarm).map_err(|_| FaceError::UnknownAlarm)? {
        AlarmType::None => None,
        AlarmType::Nospace => Some(AlarmKind::NoSpace),
        AlarmType::Corrupt => Some(AlarmKind::Corrupt),
    };
    let set = |raised| {
        kind.map_or(AlarmWish::Nothing, |kind| AlarmWish::Set {
            alarm: Alarm { member: NodeId(request.member_id), kind },
            raised,
        })
    };
    // When listing, the member is ignored, as etcd does.
    Ok(match AlarmAction::try_from(request.action).map_err(|_| FaceError::UnknownMethod)? {
        AlarmAction::Get => AlarmWish::List(kind),
        AlarmAction::Activate => set(true),
        AlarmAction::Deactivate => set(false),
    })
}

/// An alarm as etcd writes it.
#[must_use]
pub fn wire_alarm(alarm: Alarm) -> AlarmMember {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => AlarmType::Nospace,
        AlarmKind::Corrupt => AlarmType::Corrupt,
    };
    AlarmMember { member_id: alarm.member.0, alarm: kind.into() }
}

/// An alarm as `Status` lists it among its errors.
#[must_use]
pub fn alarm_text(alarm: &AlarmMember) -> String {
    let kind = AlarmType::try_from(alarm.alarm).unwrap_or_default().as_str_name();
    if alarm.member_id == 0 { format!("alarm:{kind} ") } else { format!("memberID:{} alarm:{kind} ", alarm.member_id) }
}

impl Services {
    pub(crate) async fn answer_alarm(
        &self,
        caller: &Caller,
        request: AlarmRequest,
    ) -> Result<AlarmResponse, FaceError> {
        self.refuse_on_learner()?;
        if request.action != i32::from(AlarmAction::Get) {
            self.coordinator.auth().check(caller, &Need::Admin)?;
        }
        let alarms = match alarm_to_wish(request)? {
            AlarmWish::List(kind) => {
                let mut alarms =
                    self.raised_alarms(caller, &self.coordinator.status(), Consistency::Linearizable).await?;
                let wanted = kind.map(|kind| wire_alarm(Alarm { member: NodeId(0), kind }).alarm);
                alarms.retain(|alarm| wanted.is_none_or(|wanted| alarm.alarm == wanted));
                alarms
            }
            AlarmWish::Set { alarm, raised } => {
                let told = self.set_alarm(caller, alarm, raised).await?;
                told.then(|| wire_alarm(alarm)).into_iter().collect()
            }
            AlarmWish::Nothing => Vec::new(),
        };
        Ok(AlarmResponse { header: Some(self.headers.now()), alarms })
    }

    /// Raises or lowers; whether there is something to tell: lowering what was not raised is silent.
    async fn set_alarm(&self, caller: &Caller, alarm: Alarm, raised: bool) -> Result<bool, FaceError> {
        let outcome = self.coordinator.propose(caller.clone(), Command::SetAlarm { alarm, raised }, None).await?;
        match outcome.result {
            Ok(Answer::AlarmSet { was_raised }) => Ok(raised || was_raised),
            Ok(_) => Err(MISMATCH),
            Err(refusal) if refusal == Refusal::TOO_MANY_ALARMS => Err(FaceError::TooManyRequests),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Everything that is raised: what was decided, and what this member sees of its own disk.
    pub(crate) async fn raised_alarms(
        &self,
        caller: &Caller,
        status: &NodeStatus,
        consistency: Consistency,
    ) -> Result<Vec<AlarmMember>, FaceError> {
        let answer = self.read(caller, Query::Alarms, consistency).await?;
        let QueryAnswer::Alarms { alarms, .. } = answer else { return Err(MISMATCH) };
        let mut alarms: Vec<AlarmMember> = alarms.into_iter().map(wire_alarm).collect();
        for seen in disk_alarms(status) {
            if !alarms.contains(&seen) {
                alarms.push(seen);
            }
        }
        Ok(alarms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(action: AlarmAction, member_id: u64, alarm: AlarmType) -> Result<AlarmWish, FaceError> {
        alarm_to_wish(AlarmRequest { action: action.into(), member_id, alarm: alarm.into() })
    }

    /// Operators' scripts disarm what they listed, one by one, by member and kind.
    #[test]
    fn requests_mean_what_operators_mean() {
        assert_eq!(wish(AlarmAction::Get, 7, AlarmType::None), Ok(AlarmWish::List(None)));
        assert_eq!(wish(AlarmAction::Get, 7, AlarmType::Corrupt), Ok(AlarmWish::List(Some(AlarmKind::Corrupt))));
        let alarm = Alarm { member: NodeId(7), kind: AlarmKind::NoSpace };
        let set = |raised| Ok(AlarmWish::Set { alarm, raised });
        assert_eq!(wish(AlarmAction::Activate, 7, AlarmType::Nospace), set(true));
        assert_eq!(wish(AlarmAction::Deactivate, 7, AlarmType::Nospace), set(false));
        assert_eq!(wish(AlarmAction::Activate, 7, AlarmType::None), Ok(AlarmWish::Nothing));
        assert_eq!(wish(AlarmAction::Deactivate, 0, AlarmType::None), Ok(AlarmWish::Nothing));
        let unknown = |action, alarm| alarm_to_wish(AlarmRequest { action, member_id: 0, alarm });
        assert_eq!(unknown(9, 0), Err(FaceError::UnknownMethod));
        assert_eq!(unknown(1, 9), Err(FaceError::UnknownAlarm));
    }

    /// `endpoint status` shows these lines, and scripts look for them.
    #[test]
    fn alarms_are_spelled_as_etcd_spells_them() {
        let text = |member| alarm_text(&wire_alarm(Alarm { member: NodeId(member), kind: AlarmKind::NoSpace }));
        assert_eq!((text(0), text(12)), ("alarm:NOSPACE ".to_owned(), "memberID:12 alarm:NOSPACE ".to_owned()));
    }
}
