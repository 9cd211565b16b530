//! `?wait_ms=`: the reply to who acquires or campaigns is held back until the grant, or until the time is over; then the
//! place is given up.
//!
//! Giving up is a request like any other and needs a number: it is the one after the request's own, which the client must
//! not use for anything else. So asking again with the same number is safe here too.
//!
//! Who waits is woken by what happens to its own place, and by nothing else that happens to the name (L8).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tidelock_client_port::framed;
use tidelock_model::{Caller, Kind, LeaseId, Name, NativeOp, NativeRequest};
use tidelock_native_api::v1;
use tidelock_native_api::v1::answer::Answer;
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::v1::reply::Result as Replied;

use crate::callers::Proof;
use crate::problem::Problem;
use crate::services::Services;
use crate::translate;

/// Longest time that a reply is held back: proxies and clients give up about then.
const WAIT_MS_MAX: u64 = 10 * 60 * 1000;

/// Carries the request out and waits for its grant: the reply, in a frame.
pub(super) async fn ask(
    services: &Arc<Services>,
    proof: &Proof,
    message: Bytes,
    wait_ms: u64,
) -> Result<Bytes, Problem> {
    if wait_ms > WAIT_MS_MAX {
        return Err(Problem::wrong("BAD_PARAMETER", format!("wait_ms is at most {WAIT_MS_MAX}")));
    }
    let request = v1::Request::decode(message).map_err(|error| Problem::wrong("BAD_MESSAGE", error.to_string()))?;
    let request = translate::request(request)?;
    let caller = services.caller(proof)?;
    let (kind, name) = request.op.subject();
    let name = name.clone();
    let NativeRequest { session, number, acknowledged, .. } = request;
    // By which the place is given up.
    let next = number.checked_add(1).ok_or_else(|| Problem::wrong("BAD_NUMBER", "numbers end here; open a session"))?;
    let mut reply = services.ask(caller.clone(), request).await?;
    let Some(Replied::Answer(v1::Answer { answer: Some(Answer::Place(place)) })) = &mut reply.result else {
        return Ok(framed(&reply));
    };
    if place.token == 0 {
        let waiting = granted(services, (kind, &name), session, place.place);
        match tokio::time::timeout(Duration::from_millis(wait_ms), waiting).await {
            Ok(granted) => (place.place, place.token) = granted?,
            Err(_elapsed) => {
                let op = NativeOp::GiveUp { kind, name: name.clone(), place: place.place };
                let given_up = services.ask(caller, NativeRequest { session, number: next, acknowledged, op }).await;
                // It may have been named to follow the leader at the last moment: then there is nothing to give up.
                let Err(problem) = given_up else {
                    let text = format!("not granted within {wait_ms} ms; the place is given up, by request {next}");
                    return Err(Problem::new(Family::Refused, "NOT_IN_TIME", text));
                };
                let moved = moved(services, (kind, &name), session, place.place, false).await;
                (place.place, place.token) = moved.map_err(|_| problem)?;
            }
        }
    }
    Ok(framed(&reply))
}

/// Waits for the grant of a place: which place it is then, and its token.
async fn granted(
    services: &Arc<Services>,
    subject: (Kind, &Name),
    session: LeaseId,
    place: u64,
) -> Result<(u64, u64), Problem> {
    let waiter = services.router.wait_at(subject.0, subject.1.as_str(), place);
    loop {
        // Looked at after the wait was announced, so that no grant is missed; and each time, not read out of what woke
        // us: the answer may be a repeated one, and the grant long past.
        match member(services, subject, place).await? {
            Some(own) if own.session == session.0 && own.token != 0 => return Ok((own.place, own.token)),
            Some(own) if own.session == session.0 => {}
            _ => return moved(services, subject, session, place, true).await,
        }
        if !waiter.happened().await {
            return Err(Problem::new(Family::Unknown, "INTERRUPTED", "the node stopped"));
        }
    }
}

/// What is at a place, as this node has it.
async fn member(
    services: &Arc<Services>,
    (kind, name): (Kind, &Name),
    place: u64,
) -> Result<Option<v1::Member>, Problem> {
    first_member(services, v1::DescribeRequest { place, ..about(kind, name) }).await
}

fn about(kind: Kind, name: &Name) -> v1::DescribeRequest {
    let (kind, name) = (translate::wire_kind(kind).into(), name.as_str().to_owned());
    v1::DescribeRequest { kind, name, limit: 1, stale: true, ..Default::default() }
}

async fn first_member(services: &Arc<Services>, about: v1::DescribeRequest) -> Result<Option<v1::Member>, Problem> {
    Ok(services.describe(&Caller::Internal, about).await?.members.into_iter().next())
}

/// What became of a place that is not there any more: its session was named to follow the leader of an election, and has
/// the leader's place instead, which is the first; or it is lost.
async fn moved(
    services: &Arc<Services>,
    (kind, name): (Kind, &Name),
    session: LeaseId,
    place: u64,
    stale: bool,
) -> Result<(u64, u64), Problem> {
    let first = first_member(services, v1::DescribeRequest { stale, ..about(kind, name) }).await?;
    match first.filter(|first| first.session == session.0 && first.moved_from == place) {
        Some(own) => Ok((own.place, own.token)),
        None => Err(Problem::new(Family::Lost, "LOST_PLACE", "the place is gone: given up, or lost with its session")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_double::{Double, outcome, refused};
    use crate::{FaceConfig, NativeFace};
    use tidelock_client_port::{Credential, PREFIX_BYTES};
    use tidelock_model::{NativeAnswer, NativeError};

    /// A candidate that leads must not be told that its place is lost: it would not lead, and nobody else would.
    #[tokio::test]
    async fn who_is_named_to_follow_the_leader_as_its_time_ends_is_told_so() {
        let double = Arc::new(Double::default());
        let face = NativeFace::new(double.clone(), FaceConfig::default());
        let (services, session) = (face.services(), LeaseId(7));
        // The one who has what the double has.
        services.ttl_ms(&Caller::Internal, session).await.unwrap();
        double.hold("e", 5, 0);
        for is_named in [true, false] {
            let op = Some(v1::request::Op::Campaign(v1::Campaign { name: "e".into(), ..Default::default() }));
            let request = v1::Request { session: session.0, number: 1, acknowledged: 0, op };
            let proof = Proof::Shown(Credential::default());
            let asked = ask(services, &proof, request.encode_to_vec().into(), 1);
            let cluster = async {
                let (_, answer) = double.proposal().await;
                answer.send(outcome(5, NativeAnswer::Place { place: 5, token: 0, ahead: 1 })).unwrap();
                let (_, answer) = double.proposal().await;
                double.lead(is_named.then_some((2, 9, 5)));
                answer.send(refused(NativeError::NoSuchPlace { place: 5 })).unwrap();
            };
            let (reply, ()) = tokio::join!(asked, cluster);
            if is_named {
                let reply = v1::Reply::decode(reply.unwrap().slice(PREFIX_BYTES..)).unwrap();
                let Some(Replied::Answer(v1::Answer { answer: Some(Answer::Place(place)) })) = reply.result else {
                    panic!("{reply:?}");
                };
                assert_eq!((place.place, place.token), (2, 9));
            } else {
                assert_eq!(reply.unwrap_err().code, "NO_SUCH_PLACE");
            }
        }
    }
}
