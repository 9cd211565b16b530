//! A client of native primitives: asks a node's coordinator as the native face does, one attempt at a time, and has
//! every attempt written down. What it is told of grants and the like comes from what the node's own subscription was
//! told (`native_push`).

use std::cell::Cell;
use std::sync::Arc;

use tidelock_coordinator::{Consistency, Coordinator, ProposeError, Role};
use tidelock_model::{
    Answer, Caller, Command, Kind, LeaseId, Name, NativeAnswer, NativeCommand, NativeFound, NativeNotice, NativeQuery,
    NodeId, ObjectFound, Outcome, Query, QueryAnswer, Refusal, RequestId,
};

use super::handling::is_fate_unknown;
use super::{BROKE, Client, TOO_LATE, UNREACHABLE};
use crate::doors::within;
use crate::history::{History, NativeAsk, NativeFollow, NativeTold, Stamp};

/// Members that are looked at.
const LOOKED_AT: u32 = 100;

impl Client {
    /// One attempt at a request, at one node.
    pub async fn native_at(&self, node: NodeId, ask: NativeAsk) -> NativeTold {
        self.native_through(node, ask, || false).await
    }

    /// Has the end of a session told at a node; what follows is in `native_hears_end`.
    pub async fn native_attach(&self, node: NodeId, session: LeaseId) -> (NativeTold, Option<Following>) {
        let around = &self.0.around;
        let put_in: Cell<Option<(usize, usize, Stamp)>> = Cell::new(None);
        let begin = || {
            // Whoever is told nothing yet waits in the real face until it is; here it asks again.
            let push = around.doors.native(node);
            let next = push.and_then(|push| around.recorder.with(|history| open_push(history, push)));
            put_in.set(push.zip(next).map(|(push, next)| (push, next, around.recorder.stamp())));
            put_in.get().is_some()
        };
        let told = self.native_through(node, NativeAsk::Attach(session), begin).await;
        let Some((push, next, from)) = put_in.get().filter(|_| told == NativeTold::Attached(true)) else {
            return (told, None);
        };
        let follow = NativeFollow { client: self.0.id, session, push, from, heard: from, told: None };
        let place = around.recorder.with(|history| {
            history.native_follows.push(follow);
            history.native_follows.len() - 1
        });
        (told, Some(Following { node, push, next, place }))
    }

    /// Whether a client that is to be told of the end of a session was told. `None`: it is not told any more.
    pub fn native_hears_end(&self, following: &mut Following) -> Option<bool> {
        let Following { node, push, next, place } = *following;
        if self.native_push(node) != Some(push) {
            return None;
        }
        let stamp = self.0.around.recorder.stamp();
        Some(self.0.around.recorder.with(|history| {
            let follow = &mut history.native_follows[place];
            let news = &history.native_pushes[push].ended[next..];
            following.next += news.len();
            follow.heard = stamp;
            let is_over = news.iter().any(|(_, ended)| *ended == follow.session);
            if is_over {
                follow.told = Some(stamp);
            }
            is_over
        }))
    }

    async fn native_through(&self, node: NodeId, ask: NativeAsk, put_in: impl FnOnce() -> bool) -> NativeTold {
        let around = &self.0.around;
        let place = around.recorder.native_called(self.0.id, node, ask.clone());
        let told = match around.doors.door(node) {
            None => Some(NativeTold::Refused(UNREACHABLE.to_owned())),
            Some(door) => {
                let asked = async {
                    self.travel_there().await;
                    let told = within(&door, handle(door.coordinator(), ask, put_in)).await;
                    self.travel_back().await;
                    told.ok().filter(|_| !door.is_broken()).unwrap_or(NativeTold::Unknown(BROKE.to_owned()))
                };
                around.clock.within(self.0.timeout, asked).await
            }
        };
        let told = told.unwrap_or_else(|| NativeTold::Unknown(TOO_LATE.to_owned()));
        if let NativeTold::Decided { revision, .. } = &told {
            around.saw_revision(i64::try_from(*revision).unwrap_or(i64::MAX));
        }
        around.recorder.native_returned(place, told.clone());
        told
    }

    /// What a node says about a name, linearizably, and at which revision.
    pub async fn native_look(&self, node: NodeId, kind: Kind, name: &Name) -> Option<(u64, ObjectFound)> {
        let query = NativeQuery::Describe { kind, name: name.clone(), skip: 0, limit: LOOKED_AT };
        let call = |coordinator: Arc<dyn Coordinator>| async move {
            coordinator.read(Caller::Internal, Query::Native(query), Consistency::Linearizable).await
        };
        match self.call_at(node, call).await?.ok()? {
            QueryAnswer::Native { revision, found: NativeFound::Object(found) } => Some((revision.0, found)),
            _ => None,
        }
    }

    /// Where a node writes down what it is told; `None`: it cannot be heard from.
    #[must_use]
    pub fn native_push(&self, node: NodeId) -> Option<usize> {
        if self.is_cut_off() {
            return None;
        }
        let push = self.0.around.doors.native(node)?;
        let is_open = |history: &mut History| history.native_pushes.get(push).is_some_and(|push| push.opened.is_some());
        self.0.around.recorder.with(is_open).then_some(push)
    }

    /// What was told there after so many notices, with their revisions.
    #[must_use]
    pub fn native_heard(&self, push: usize, after: usize) -> Vec<(u64, NativeNotice)> {
        self.0.around.recorder.with(|history| {
            let notices = history.native_pushes.get(push).and_then(|push| push.notices.get(after..));
            notices.unwrap_or_default().iter().map(|(_, revision, notice)| (*revision, notice.clone())).collect()
        })
    }
}

/// A client that is to be told of the end of its session.
#[derive(Clone, Copy, Debug)]
pub struct Following {
    node: NodeId,
    push: usize,
    /// The end to look at next.
    next: usize,
    /// Where that is written down.
    place: usize,
}

/// How many ends were told there already, if anything is.
fn open_push(history: &History, push: usize) -> Option<usize> {
    let push = history.native_pushes.get(push)?;
    push.opened.map(|_| push.ended.len())
}

/// What a node does with a request.
async fn handle(coordinator: Arc<dyn Coordinator>, ask: NativeAsk, put_in: impl FnOnce() -> bool) -> NativeTold {
    if coordinator.status().role == Role::Learner {
        return NativeTold::Refused("a learner does not serve".to_owned());
    }
    match ask {
        NativeAsk::KeepAlive(session) => keep_alive(&*coordinator, session).await,
        NativeAsk::Attach(session) => attach(&*coordinator, session, put_in).await,
        NativeAsk::Command(command, client) => {
            // Only an opening is named by the client: all else has a session and a number.
            let is_open = matches!(command, NativeCommand::Open { .. });
            let request = is_open.then_some(RequestId { client, number: 0 });
            let proposed = coordinator.propose(Caller::Internal, Command::Native(command), request).await;
            proposed.map_or_else(|error| not_proposed(&error), decided)
        }
    }
}

/// Attaches a session as the face does: looks whether it is there, has its end told from then on, and looks again.
async fn attach(coordinator: &dyn Coordinator, session: LeaseId, put_in: impl FnOnce() -> bool) -> NativeTold {
    match lives(coordinator, session, Consistency::Linearizable).await {
        Some(true) => {}
        Some(false) => return NativeTold::Attached(false),
        None => return NativeTold::Unknown("nobody knows whether it lives".to_owned()),
    }
    if !put_in() {
        return NativeTold::Refused("nothing is told here yet".to_owned());
    }
    match lives(coordinator, session, Consistency::Local).await {
        Some(lives) => NativeTold::Attached(lives),
        None => NativeTold::Unknown("nobody knows whether it still lives".to_owned()),
    }
}

async fn lives(coordinator: &dyn Coordinator, session: LeaseId, consistency: Consistency) -> Option<bool> {
    let query = NativeQuery::Session { session, skip: 0, holdings: 0 };
    match coordinator.read(Caller::Internal, Query::Native(query), consistency).await.ok()? {
        QueryAnswer::Native { found: NativeFound::Sessions(found), .. } => Some(!found.is_empty()),
        _ => None,
    }
}

async fn keep_alive(coordinator: &dyn Coordinator, session: LeaseId) -> NativeTold {
    match coordinator.renew_leases(Caller::Internal, vec![session]).await {
        Ok(renewed) if renewed.ending.contains(&session) => NativeTold::Unknown("its end is being decided".to_owned()),
        Ok(renewed) => NativeTold::KeptAlive(!renewed.gone.contains(&session)),
        // A renewal that was under way may have been done.
        Err(error) => NativeTold::Unknown(error.to_string()),
    }
}

fn decided(outcome: Outcome) -> NativeTold {
    let Outcome { revision, index, result } = outcome;
    let result: Result<NativeAnswer, _> = match result {
        Ok(Answer::Native(answer)) => Ok(answer),
        Err(Refusal::Native(error)) => Err(error),
        Ok(other) => return NativeTold::Unknown(format!("answered {other:?}")),
        Err(Refusal::CARRIED_OUT_ALREADY) => return NativeTold::Unknown("carried out already".to_owned()),
        // Alarms and the like: it was not looked at.
        Err(refusal) => return NativeTold::Refused(refusal.to_string()),
    };
    NativeTold::Decided { revision: revision.0, index, result }
}

fn not_proposed(error: &ProposeError) -> NativeTold {
    let text = error.to_string();
    if is_fate_unknown(error) { NativeTold::Unknown(text) } else { NativeTold::Refused(text) }
}
