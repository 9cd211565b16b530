//! `?wait_ms=`: the reply to who acquires or campaigns is held back until the grant, or until the time is over; then the
//! place is given up.
//!
//! Giving up is a request like any other and needs a number: it is the one after the request's own, which the client must
//! not use for anything else. So asking again with the same number is safe here too. It may be refused or get lost like any
//! other; then the place may stand, and be granted to a client that does not know of it. The client is told that it is
//! unknown, never that nothing happened, and finds its place again by asking again.
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
    let (kind, name) = request.op.subject();
    let name = name.clone();
    let NativeRequest { session, number, acknowledged, .. } = request;
    // By which the place is given up.
    let next = number.checked_add(1).ok_or_else(|| Problem::wrong("BAD_NUMBER", "numbers end here; open a session"))?;
    let mut reply = services.ask(services.caller(proof)?, request).await?;
    let Some(Replied::Answer(v1::Answer { answer: Some(Answer::Place(place)) })) = &mut reply.result else {
        return Ok(framed(&reply));
    };
    if place.token == 0 {
        let waiting = granted(services, (kind, &name), session, place.place);
        (place.place, place.token) = match tokio::time::timeout(Duration::from_millis(wait_ms), waiting).await {
            Ok(granted) => granted.map_err(|problem| unless_gone(problem, number))?,
            Err(_elapsed) => {
                let op = NativeOp::GiveUp { kind, name, place: place.place };
                let give_up = NativeRequest { session, number: next, acknowledged, op };
                let moved = gave_up(services, proof, give_up, place.place).await;
                moved.map_err(|problem| unless_gone(problem, number))?.ok_or_else(|| {
                    let text = format!("not granted within {wait_ms} ms; the place is given up, by request {next}");
                    Problem::new(Family::Refused, "NOT_IN_TIME", text)
                })?
            }
        };
    }
    Ok(framed(&reply))
}

/// Gives a place up: nothing, or what the session has in its stead, since it was named to follow the leader at the last
/// moment.
async fn gave_up(
    services: &Arc<Services>,
    proof: &Proof,
    give_up: NativeRequest,
    place: u64,
) -> Result<Option<(u64, u64)>, Problem> {
    let (kind, name) = give_up.op.subject();
    let (name, session) = (name.clone(), give_up.session);
    // Who that is by now: users and roles may have changed while it waited, and who came in before counts no more.
    let caller = services.caller(proof)?;
    match services.ask(caller, give_up).await {
        Ok(_) => Ok(None),
        Err(problem) if problem.code == "NO_SUCH_PLACE" => {
            let moved = moved(services, (kind, &name), session, place, false).await?;
            moved.map(Some).ok_or(problem)
        }
        Err(problem) => Err(problem),
    }
}

/// A problem with a place that is not known to be gone: it may stand, whatever became of what was asked about it.
fn unless_gone(problem: Problem, number: u64) -> Problem {
    if matches!(problem.code, "LOST_PLACE" | "NO_SUCH_PLACE" | "UNKNOWN_SESSION") {
        return problem;
    }
    let text = format!(
        "the place may still stand, and be granted: it could not be given up, or it is not known whether it was ({}). Ask \
         again with number {number} to find it as it is, or end the session",
        problem.message
    );
    Problem::new(Family::Unknown, "PLACE_MAY_STAND", text)
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
            _ => return moved(services, subject, session, place, true).await?.ok_or_else(lost_place),
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
/// the leader's place instead, which is the first; or nothing, since it is lost.
async fn moved(
    services: &Arc<Services>,
    (kind, name): (Kind, &Name),
    session: LeaseId,
    place: u64,
    stale: bool,
) -> Result<Option<(u64, u64)>, Problem> {
    let first = first_member(services, v1::DescribeRequest { stale, ..about(kind, name) }).await?;
    let own = first.filter(|first| first.session == session.0 && first.moved_from == place);
    Ok(own.map(|own| (own.place, own.token)))
}

fn lost_place() -> Problem {
    Problem::new(Family::Lost, "LOST_PLACE", "the place is gone: given up, or lost with its session")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_double::{Double, Unanswered, outcome, refused};
    use crate::{FaceConfig, NativeFace};
    use std::sync::Mutex;
    use tidelock_client_port::{Credential, PREFIX_BYTES};
    use tidelock_coordinator::{
        Answering, Consistency, Coordinator, MemberError, ProposeError, ReadError, Status, Subscription,
    };
    use tidelock_model::{
        Auth, AuthRefusal, Command, LeaseInfo, LogIndex, Member, MemberChange, NativeAnswer, NativeCommand,
        NativeError, NativeQuery, NodeId, Outcome, Query, QueryAnswer, Refusal, RequestId, Revision, Term, User,
    };

    /// The double with users, which notes who proposes.
    #[derive(Default)]
    struct WithUsers {
        double: Double,
        auth: Mutex<Auth>,
        callers: Mutex<Vec<Caller>>,
    }

    impl WithUsers {
        /// One user, whose password is as of revision 5.
        fn of_ann() -> WithUsers {
            let mut auth = Auth::default();
            (auth.enabled, auth.revision) = (true, 5);
            let ann = User { password_hash: None, roles: Default::default(), tokens_since: 5 };
            auth.change(|users, _| users.insert("ann".into(), ann));
            WithUsers { auth: Mutex::new(auth), ..WithUsers::default() }
        }
    }

    fn ann_since(auth_revision: u64) -> Proof {
        Proof::Password { name: "ann".into(), auth_revision }
    }

    impl Coordinator for WithUsers {
        fn auth(&self) -> Arc<Auth> {
            Arc::new(self.auth.lock().unwrap().clone())
        }
        fn propose(
            &self,
            caller: Caller,
            command: Command,
            request: Option<RequestId>,
        ) -> Answering<'_, Result<Outcome, ProposeError>> {
            self.callers.lock().unwrap().push(caller.clone());
            self.double.propose(caller, command, request)
        }
        fn read(
            &self,
            caller: Caller,
            query: Query,
            how: Consistency,
        ) -> Answering<'_, Result<QueryAnswer, ReadError>> {
            self.double.read(caller, query, how)
        }
        fn subscribe(&self) -> Arc<dyn Subscription> {
            self.double.subscribe()
        }
        fn keep_alive(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
            self.double.keep_alive(caller, lease)
        }
        fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
            self.double.lease_info(caller, lease)
        }
        fn change_members(&self, caller: Caller, of: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
            self.double.change_members(caller, of)
        }
        fn transfer_leadership(&self, caller: Caller, to: NodeId) -> Answering<'_, Result<(), MemberError>> {
            self.double.transfer_leadership(caller, to)
        }
        fn take_snapshot(&self, caller: Caller) -> Answering<'_, Result<(), String>> {
            self.double.take_snapshot(caller)
        }
        fn wait_until_swept(&self) -> Answering<'_, ()> {
            self.double.wait_until_swept()
        }
        fn term(&self) -> Term {
            self.double.term()
        }
        fn revision(&self) -> Revision {
            self.double.revision()
        }
        fn status(&self) -> Status {
            self.double.status()
        }
    }

    /// What a session, which has what the double has, asks for with its first number.
    fn request() -> Bytes {
        let op = Some(v1::request::Op::Acquire(v1::Acquire {
            name: "m".into(),
            mode: v1::Mode::Exclusive.into(),
            ..Default::default()
        }));
        v1::Request { session: 7, number: 1, acknowledged: 0, op }.encode_to_vec().into()
    }

    fn waits() -> Result<Outcome, ProposeError> {
        outcome(5, NativeAnswer::Place { place: 5, token: 0, ahead: 1 })
    }

    /// Somebody changes users or roles every day, and a wait lasts up to ten minutes. Were the place given up by who the
    /// caller was before, that would be refused, and the place would stand: granted to nobody, before all behind it.
    #[tokio::test]
    async fn a_place_is_given_up_by_who_the_caller_is_by_then() {
        let cluster = Arc::new(WithUsers::of_ann());
        let face = NativeFace::new(cluster.clone(), FaceConfig::default());
        face.services().ttl_ms(&Caller::Internal, LeaseId(7)).await.unwrap();
        cluster.double.hold("m", 5, 0);
        let proof = ann_since(5);
        let asked = ask(face.services(), &proof, request(), 1);
        let answers = async {
            let (_, answer) = cluster.double.proposal().await;
            cluster.auth.lock().unwrap().revision = 6;
            answer.send(waits()).unwrap();
            let (command, answer) = cluster.double.proposal().await;
            let Command::Native(NativeCommand::Request(request)) = command else { panic!("{command:?}") };
            assert_eq!((request.number, matches!(request.op, NativeOp::GiveUp { place: 5, .. })), (2, true));
            answer.send(outcome(6, NativeAnswer::Left { token: 0 })).unwrap();
        };
        let (reply, ()) = tokio::join!(asked, answers);
        assert_eq!(reply.unwrap_err().code, "NOT_IN_TIME");
        let ann = |auth_revision| Caller::User { name: "ann".into(), auth_revision };
        assert_eq!(*cluster.callers.lock().unwrap(), [ann(5), ann(6)]);
    }

    /// Who is told that nothing happened takes the next lock and never looks after this one, which it may be granted.
    #[tokio::test]
    async fn a_place_that_could_not_be_given_up_is_never_said_to_be_gone() {
        let refused_by =
            |refusal: Refusal| Ok(Outcome { revision: Revision(6), index: LogIndex(6), result: Err(refusal) });
        let is_describe: fn(&NativeQuery) -> bool = |query| matches!(query, NativeQuery::Describe { .. });
        for (given_up, unanswered, code, family) in [
            (refused(NativeError::TooManyUnacknowledged), None, "PLACE_MAY_STAND", Family::Unknown),
            (refused_by(AuthRefusal::OldRevision.into()), None, "PLACE_MAY_STAND", Family::Unknown),
            (Err(ProposeError::NoLeader), None, "PLACE_MAY_STAND", Family::Unknown),
            (Err(ProposeError::Interrupted), None, "PLACE_MAY_STAND", Family::Unknown),
            (refused(NativeError::NoSuchPlace { place: 5 }), Some(is_describe), "PLACE_MAY_STAND", Family::Unknown),
            (refused(NativeError::NoSuchPlace { place: 5 }), None, "NO_SUCH_PLACE", Family::Refused),
            (refused(NativeError::UnknownSession), None, "UNKNOWN_SESSION", Family::Lost),
        ] {
            let double = Arc::new(Double::default());
            let face = NativeFace::new(double.clone(), FaceConfig::default());
            face.services().ttl_ms(&Caller::Internal, LeaseId(7)).await.unwrap();
            double.hold("m", 5, 0);
            let proof = Proof::Shown(Credential::default());
            let asked = ask(face.services(), &proof, request(), 1);
            let cluster = async {
                let (_, answer) = double.proposal().await;
                answer.send(waits()).unwrap();
                let (_, answer) = double.proposal().await;
                if let Some(which) = unanswered {
                    double.leave_unanswered(Unanswered::Refused, which);
                }
                answer.send(given_up.clone()).unwrap();
            };
            let (reply, ()) = tokio::join!(asked, cluster);
            let problem = reply.unwrap_err();
            assert_eq!((problem.code, problem.family), (code, family), "{given_up:?}");
        }
    }

    /// The same if the caller may not come in any more when the time is over, or the place cannot be looked at.
    #[tokio::test]
    async fn a_place_that_nobody_could_look_at_is_never_said_to_be_gone() {
        for is_shut_out in [true, false] {
            let cluster = Arc::new(WithUsers::of_ann());
            let face = NativeFace::new(cluster.clone(), FaceConfig::default());
            face.services().ttl_ms(&Caller::Internal, LeaseId(7)).await.unwrap();
            cluster.double.hold("m", 5, 0);
            let proof = ann_since(5);
            let asked = ask(face.services(), &proof, request(), 1);
            let answers = async {
                let (_, answer) = cluster.double.proposal().await;
                if is_shut_out {
                    cluster.auth.lock().unwrap().change(|users, _| users.clear());
                } else {
                    let is_member: fn(&NativeQuery) -> bool = |query| matches!(query, NativeQuery::Member { .. });
                    cluster.double.leave_unanswered(Unanswered::Refused, is_member);
                }
                answer.send(waits()).unwrap();
            };
            let (reply, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), asked), answers);
            let problem = reply.expect("nobody is asked to give it up").unwrap_err();
            assert_eq!((problem.code, problem.family), ("PLACE_MAY_STAND", Family::Unknown));
        }
    }

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
