//! The client against nodes that say what real ones say rarely: that they have no leader, what is long over, and nothing
//! at all in the middle of a look.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]
#![allow(unreachable_pub)]

mod support;

use std::time::Duration;

use support::{Node, error, header, within};
use tidelock_client::{Client, Code, Error, Failure, Loss};
use tidelock_native_api::v1::answer::Answer;
use tidelock_native_api::v1::{self, Gate, Kind, describe_reply::Head, error::Family, notice::Notice};

fn notice(revision: u64, notice: Notice) -> v1::Notice {
    v1::Notice { revision, notice: Some(notice) }
}

fn latch(gate: Gate) -> Notice {
    Notice::Latch(v1::LatchNotice { name: "c".into(), gate: gate.into() })
}

fn phase(phase: u64) -> Notice {
    Notice::Phase(v1::PhaseNotice { name: "p".into(), phase, ..Default::default() })
}

fn described(revision: u64, head: Head) -> v1::DescribeReply {
    v1::DescribeReply { header: header(revision), head: Some(head), root: "p".into(), ..Default::default() }
}

/// A node that is behind tells of what was before one looked. Taken for news, a latch that is shut again looks open, and a
/// phaser that was made anew looks further than it is.
#[tokio::test]
async fn what_was_before_one_looked_is_no_news() {
    let node = Node::default();
    let client = node.client().await;
    let shut = v1::LatchHead { gate: Gate::Shut.into(), ..Default::default() };
    node.script(|script| {
        script.described.push_back(Some(Ok(described(10, Head::Latch(shut)))));
        script.notices = vec![notice(5, latch(Gate::Open)), notice(11, latch(Gate::Broken))];
    });
    assert_eq!(within("the latch", client.latch("c").wait()).await, Err(Loss::Broken.into()));

    let head = v1::PhaserHead { phase: 3, ..Default::default() };
    node.script(|script| {
        script.described = [Some(Ok(described(20, Head::Phaser(head))))].into();
        script.notices = vec![notice(15, phase(99)), notice(21, phase(4))];
    });
    assert_eq!(within("the phase", client.phaser("p").await_advance(3)).await, Ok(4));
}

fn leader(revision: u64, place: u64) -> v1::DescribeReply {
    let member = v1::Member { place, token: place, session: 1, ..Default::default() };
    v1::DescribeReply { header: header(revision), members: vec![member], ..Default::default() }
}

/// Who observes an election looks when the leader goes. If that look fails, or whoever asked stops waiting for it, the
/// next call must look: nobody says a second time that the leader went.
#[tokio::test]
async fn who_observes_an_election_looks_again_if_its_look_failed_or_was_dropped() {
    let node = Node::default();
    let client = node.client().await;
    let denied = error("NOT_ALLOWED", Family::Denied);
    node.script(|script| {
        // Found, refused, found, no answer, found.
        script.described = [Some(Ok(leader(10, 3))), Some(Err(denied)), Some(Ok(leader(12, 12))), None].into();
        script.described.push_back(Some(Ok(leader(14, 14))));
    });
    let token = |led: Result<Option<tidelock_client::Leader>, Error>| led.unwrap().unwrap().token.get();
    let mut changes = within("to observe", client.election("e").observe()).await.unwrap();
    assert_eq!(token(within("the leader", changes.next()).await), 3);
    let gone = |revision, place| {
        let gone = v1::Gone { kind: Kind::Election.into(), name: "e".into(), place };
        node.script(|script| script.tell(&notice(revision, Notice::Gone(gone))));
    };
    gone(11, 3);
    let refused = within("the refusal", changes.next()).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Denied));
    assert_eq!(token(within("the next leader", changes.next()).await), 12);
    gone(13, 12);
    let asked = async {
        while node.script(|script| script.questions) < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        early = changes.next() => panic!("{early:?}"),
        () = within("the question", asked) => {}
    }
    assert_eq!(token(within("the last leader", changes.next()).await), 14);
}

/// One of the nodes is cut off from the others and says so to everybody: a client that happens to begin there goes to
/// the next one, within its patience.
#[tokio::test]
async fn a_client_goes_on_from_a_node_without_a_leader() {
    let (cut_off, well) = (Node::default(), Node::default());
    cut_off.script(|script| script.has_no_leader = true);
    let urls = [cut_off.start().await.to_string(), well.start().await.to_string()];
    // Which one is first is drawn.
    while cut_off.script(|script| script.opened) == 0 {
        let client = within("a client", Client::options().patience(Duration::from_secs(10)).connect(&urls)).await;
        let guard = within("the lock", client.unwrap().lock("l").acquire()).await.unwrap();
        guard.check().unwrap();
    }
    assert!(well.script(|script| script.opened) > 0);
}

/// A program that has had more different times to live than there may be at a time must not be refused because of those
/// that it does not use any more.
#[tokio::test]
async fn times_to_live_that_are_not_used_any_more_make_room_for_others() {
    let node = Node::default();
    let client = node.client().await;
    let kept = within("the lock", client.lock("kept").ttl(Duration::from_secs(5)).acquire()).await.unwrap();
    for seconds in 10..100 {
        let lock = client.lock("l").ttl(Duration::from_secs(seconds));
        within("the lock", lock.acquire()).await.unwrap().release().await.unwrap();
    }
    kept.check().expect("one that is used is not closed");
    let (opened, closed) = node.script(|script| (script.opened, script.closed.clone()));
    assert_eq!(opened, 91);
    assert!(closed.len() > 25 && !closed.contains(&1), "{closed:?}");
}

/// The answer got lost, and the session is gone when it is asked again: that was us.
#[tokio::test]
async fn a_session_that_is_ended_twice_since_the_answer_got_lost_is_ended() {
    let node = Node::default();
    let client = node.client().await;
    let gone = || Err(error("UNKNOWN_SESSION", Family::Lost));
    node.script(|script| script.closes = [Err(error("NO_ANSWER", Family::Unknown)), gone(), gone()].into());
    assert_eq!(within("the end", client.end_session(7)).await, Ok(()));
    let unknown = within("the answer", client.end_session(7)).await.unwrap_err();
    assert_eq!(unknown.code(), Some(Code::NotFound));
}

/// More than a client asks for within a second.
const MORE_THAN_IS_ASKED: usize = 1000;

/// Who is told that nothing happened need not look. No answer at all says nothing of the kind, nor does a node without a
/// leader that is asked afterwards; only if all of them had none is it certain.
#[tokio::test]
async fn a_session_whose_end_was_not_answered_may_be_over() {
    let node = Node::default();
    let options = Client::options().patience(Duration::from_secs(1));
    let client = within("a client", options.connect([node.start().await.to_string()])).await.unwrap();
    let no_leader = || Err(error("NO_LEADER", Family::Unavailable));
    let denied = || Err(error("NOT_ALLOWED", Family::Denied));
    node.script(|script| {
        script.closes = std::iter::repeat_with(no_leader).take(MORE_THAN_IS_ASKED).collect();
        script.closes.push_front(Err(error("NO_ANSWER", Family::Unknown)));
    });
    let told = within("the answer", client.end_session(7)).await;
    assert_eq!(told, Err(Error::Unknown { waited: Duration::from_secs(1) }));
    node.script(|script| script.closes.truncate(MORE_THAN_IS_ASKED / 2));
    let told = within("the answer", client.end_session(7)).await;
    assert!(matches!(told, Err(Error::Failed(Failure::Unreachable(_)))), "{told:?}");
    node.script(|script| script.closes = [no_leader(), denied()].into());
    let told = within("the answer", client.end_session(7)).await.unwrap_err();
    assert_eq!(told.code(), Some(Code::Denied));
}

/// Nobody has ended a session by asking where nobody listens: said to be ended, one that never was would have been found.
#[tokio::test]
async fn a_session_that_was_not_there_is_not_said_to_have_ended_since_a_node_is_down() {
    let node = Node::default();
    // Taken, so that nobody else gets it, and not listened to.
    let down = tokio::net::TcpSocket::new_v4().unwrap();
    down.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let urls = [node.start().await.to_string(), down.local_addr().unwrap().to_string()];
    let client = within("a client", Client::options().connect(urls)).await.unwrap();
    node.script(|script| {
        let no_leader = Err(error("NO_LEADER", Family::Unavailable));
        script.closes = [no_leader, Err(error("UNKNOWN_SESSION", Family::Lost))].into();
    });
    let told = within("the answer", client.end_session(7)).await.unwrap_err();
    assert_eq!(told.code(), Some(Code::NotFound));
}

fn entered(missing: u32) -> Option<Result<Answer, v1::Error>> {
    Some(Ok(Answer::Entered(v1::Entered { place: 7, generation: 7, missing })))
}

/// A barrier of two that waits no longer than that for the other one.
fn barrier(client: &Client, wait: Duration) -> tidelock_client::Barrier {
    client.barrier("b", 2).wait(wait)
}

/// B1, all or none: the others have gone on, counting on this party, in the moment in which its time was over. It must not
/// be told that they did not come.
#[tokio::test]
async fn b1_who_gives_a_barrier_up_that_is_over_is_told_what_it_came_to() {
    for (gate, expected) in [(Gate::Open, Ok(())), (Gate::Broken, Err(Loss::Broken.into()))] {
        let node = Node::default();
        let client = node.client().await;
        let no_such_place = error("NO_SUCH_PLACE", Family::Refused);
        node.script(|script| script.answers = [entered(1), Some(Err(no_such_place))].into());
        let given_up = async {
            while node.script(|script| script.asked) < 2 {
                tokio::task::yield_now().await;
            }
            let over = v1::BarrierNotice { name: "b".into(), generation: 7, gate: gate.into() };
            node.script(|script| script.tell(&notice(8, Notice::Barrier(over))));
        };
        let barrier = barrier(&client, Duration::from_millis(20));
        let (met, ()) = within("the end", async { tokio::join!(barrier.enter(), given_up) }).await;
        assert_eq!(met, expected);
    }
}

/// "Not all came" and "nobody knows" lead to different actions; and who is the last to come has nobody to wait for.
#[tokio::test]
async fn who_met_nobody_in_time_is_told_apart_from_who_reached_nobody() {
    let node = Node::default();
    let options = Client::options().patience(Duration::from_secs(2));
    let client = within("a client", options.connect([node.start().await.to_string()])).await.unwrap();
    let enter = async |answers: &[Option<Result<Answer, v1::Error>>], wait_ms| {
        node.script(|script| script.answers = answers.iter().cloned().collect());
        within("the end", barrier(&client, Duration::from_millis(wait_ms)).enter()).await
    };
    assert_eq!(enter(&[entered(0)], 0).await, Ok(()));
    for wait_ms in [0, 20] {
        let told = enter(&[entered(1)], wait_ms).await.unwrap_err();
        assert_eq!(told.code(), Some(Code::TimedOut));
    }
    // It may count as having come, and the others may have gone on.
    assert_eq!(enter(&[None], 20).await, Err(Error::Unknown { waited: Duration::from_secs(1) }));
    assert_eq!(enter(&[entered(1), None], 20).await, Err(Error::Unknown { waited: Duration::from_secs(2) }));

    let node = Node::default();
    node.script(|script| script.has_no_leader = true);
    let client = node.client().await;
    let told = within("the end", barrier(&client, Duration::ZERO).enter()).await;
    assert!(matches!(told, Err(Error::Failed(Failure::Unreachable(_)))), "{told:?}");
}
