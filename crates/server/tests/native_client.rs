//! The client library against real nodes: its documentation's examples, what dropped futures leave behind, and what
//! a holder learns when nodes die or fall silent.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]
// The examples are written to be read in a documentation.
#![allow(unreachable_pub)]

mod support;

// The examples of the client's documentation, which are shown there and run here.
#[path = "../../client/src/doc/barrier.rs"]
mod barrier_example;
#[path = "../../client/src/doc/counter.rs"]
mod counter_example;
#[path = "../../client/src/doc/double_barrier.rs"]
mod double_barrier_example;
#[path = "../../client/src/doc/election.rs"]
mod election_example;
#[path = "../../client/src/doc/fence.rs"]
mod fence_example;
#[path = "../../client/src/doc/hazard.rs"]
mod hazard_example;
#[path = "../../client/src/doc/latch.rs"]
mod latch_example;
#[path = "../../client/src/doc/lock.rs"]
mod lock_example;
#[path = "../../client/src/doc/phaser.rs"]
mod phaser_example;
#[path = "../../client/src/doc/rcu.rs"]
mod rcu_example;
#[path = "../../client/src/doc/rw_lock.rs"]
mod rw_lock_example;
#[path = "../../client/src/doc/semaphore.rs"]
mod semaphore_example;
#[path = "../../client/src/doc/write.rs"]
mod write_example;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::until::until;
use support::{Cluster, within};
use tidelock_client::inspect::Kind;
use tidelock_client::{Client, Code, Error, Loss, OnDeath};
use tidelock_model::limits::{NATIVE_DATA_BYTES_MAX, NATIVE_NAME_BYTES_MAX};

/// Kinds that have members: what somebody could leave behind.
const WITH_MEMBERS: [Kind; 8] =
    [Kind::Lock, Kind::Semaphore, Kind::Election, Kind::Barrier, Kind::Latch, Kind::Phaser, Kind::Rcu, Kind::Hazard];

async fn client(ports: &[u16]) -> Client {
    with_ttl(ports, Duration::from_secs(10)).await
}

async fn with_ttl(ports: &[u16], ttl: Duration) -> Client {
    let urls: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    within("a client", Client::options().ttl(ttl).connect(urls)).await.unwrap()
}

/// How many members anything has.
async fn members(client: &Client) -> u64 {
    let mut all = 0;
    for kind in WITH_MEMBERS {
        all += client.names(kind, "").await.unwrap().iter().map(|found| found.members).sum::<u64>();
    }
    all
}

async fn until_nothing_is_held(client: &Client) {
    until("everything to be given back", async || (members(client).await == 0).then_some(())).await;
}

/// What the documentation shows must work as it is shown.
#[tokio::test]
async fn each_example_of_the_documentation_runs() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = client(&ports).await;
    within("lock", lock_example::bill(&client)).await.unwrap();
    within("rw_lock", rw_lock_example::update_then_read(&client)).await.unwrap();
    within("semaphore", semaphore_example::import(&client)).await.unwrap();
    within("election", election_example::lead(&client)).await.unwrap();
    within("barrier", barrier_example::start_together(&client)).await.unwrap();
    within("double_barrier", double_barrier_example::work_together(&client)).await.unwrap();
    within("latch", latch_example::wait_for_both(&client)).await.unwrap();
    within("phaser", phaser_example::two_rounds(&client)).await.unwrap();
    within("counter", counter_example::count(&client)).await.unwrap();
    within("fence", fence_example::keep_the_old_one_out(&client)).await.unwrap();
    within("write", write_example::only_the_holder_writes(&client)).await.unwrap();
    within("rcu", rcu_example::replace(&client)).await.unwrap();
    within("hazard", hazard_example::look_then_remove(&client)).await.unwrap();
    until_nothing_is_held(&client).await;
}

/// Asks for something in one of many ways, and holds it for a moment if it comes to that.
async fn use_something(client: &Client, which: u32) {
    let held = Duration::from_millis(1);
    match which % 11 {
        0 => drop(client.lock("l").acquire().await),
        1 => drop(client.rw_lock("l").read().await),
        2 => drop(client.semaphore("s", 2).acquire(1 + which / 11 % 2).await),
        3 => drop(client.election("e").campaign().await),
        4 => drop(client.barrier("b", 3).enter().await),
        5 => drop(client.phaser("p").register(2).await),
        6 => drop(client.hazard("h").protect().await),
        7 => drop(client.rcu("r").read().await),
        8 => drop(client.latch("c").pledge().await),
        9 => {
            if let Ok(inside) = client.double_barrier("d", 2).enter().await {
                tokio::time::sleep(held).await;
                let _ = inside.leave().await;
            }
        }
        _ => {
            let guard = client.lock("l").wait(Duration::from_millis(2)).acquire().await;
            tokio::time::sleep(held).await;
            drop(guard);
        }
    }
}

/// Polls a future `polls` times, each after it was woken, and drops it.
async fn drop_after(polls: u32, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(context)
    })
    .await;
}

/// L7, K5: programs time out, select and cancel everywhere. Wherever a future is dropped, no holder and no place may
/// stay behind: everybody after it would wait for as long as the session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_at_any_point_leave_nothing_behind() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = client(&ports).await;
    let watcher = with_ttl(&ports, Duration::from_secs(60)).await;
    watcher.rcu("r").publish("something to read").await.unwrap();
    watcher.latch("c").set(1_000_000, OnDeath::Shrink).await.unwrap();
    for round in 0..6_u32 {
        // Every other time somebody holds what they all want, so that giving up is not the same as being granted.
        let others = match round % 2 {
            0 => None,
            _ => Some((
                watcher.lock("l").acquire().await.unwrap(),
                watcher.semaphore("s", 2).acquire(2).await.unwrap(),
                watcher.election("e").campaign().await.unwrap(),
            )),
        };
        let mut tasks = Vec::new();
        for number in 0..120_u32 {
            let client = client.clone();
            let which = number.wrapping_mul(7).wrapping_add(round);
            tasks.push(tokio::spawn(async move {
                if number % 2 == 0 {
                    // At every point where it waits.
                    let polled = drop_after(number / 2 % 5, use_something(&client, which));
                    let _ = tokio::time::timeout(Duration::from_millis(30), polled).await;
                } else {
                    // At any time.
                    let time = Duration::from_micros(u64::from(rand::random_range(0..20_000_u32)));
                    let _ = tokio::time::timeout(time, use_something(&client, which)).await;
                }
            }));
        }
        for task in tasks {
            within("the tasks", task).await.unwrap();
        }
        let held = if others.is_some() { 3 } else { 0 };
        until("everything to be given back", async || (members(&watcher).await == held).then_some(())).await;
        drop(others);
        until_nothing_is_held(&watcher).await;
        // And the lock is not only listed as free.
        within("the lock", client.lock("l").acquire()).await.unwrap().release().await.unwrap();
    }
}

/// A node ends the stream of who sends a message that is too large, and with it the renewals of everything the client
/// holds: names and data are measured before they are sent, by the cluster's own bounds. The client has a copy of these,
/// since it needs nothing else of the cluster's crates; here both are seen to be the same.
#[tokio::test]
async fn names_and_data_that_no_node_takes_are_refused_and_cost_nobody_a_lock() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = with_ttl(&ports, Duration::from_secs(2)).await;
    let guard = client.lock("l").acquire().await.unwrap();
    for bytes in [0, NATIVE_NAME_BYTES_MAX + 1, 100_000, 1 << 20] {
        let name = "n".repeat(bytes);
        let refused = client.lock(&name).acquire().await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::Mistaken), "{bytes}");
        assert!(refused.to_string().contains("this one"), "not sent, says the client itself: {refused}");
        assert_eq!(client.barrier(&name, 1).enter().await.unwrap_err().code(), Some(Code::Mistaken), "{bytes}");
        assert_eq!(client.latch(&name).wait().await.unwrap_err().code(), Some(Code::Mistaken), "{bytes}");
        assert_eq!(client.counter(&name).get().await.unwrap_err().code(), Some(Code::Mistaken), "{bytes}");
        assert_eq!(client.phaser("p").parent(&name).register(1).await.is_err(), bytes > 0, "{bytes}");
    }
    let large = client.lock("d").data(vec![0; NATIVE_DATA_BYTES_MAX + 1]).acquire().await.unwrap_err();
    assert_eq!(large.code(), Some(Code::Mistaken));
    assert!(large.to_string().contains("are more than"), "not sent, says the client itself: {large}");
    // What just fits is taken by both sides.
    let fits = client.lock(&"n".repeat(NATIVE_NAME_BYTES_MAX)).data(vec![0; NATIVE_DATA_BYTES_MAX]);
    fits.acquire().await.unwrap().release().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
}

/// L5, L9: who waits is told, in order, with a larger token.
#[tokio::test]
async fn a_lock_goes_to_who_asked_next_with_a_larger_token() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = client(&ports).await;
    let first = client.lock("l").acquire().await.unwrap();
    assert_eq!(client.lock("l").try_acquire().await.unwrap_err().code(), Some(Code::Busy));
    let late = client.lock("l").wait(Duration::from_millis(50)).acquire().await;
    assert_eq!(late.unwrap_err().code(), Some(Code::TimedOut));
    let lock = client.lock("l");
    let mut second = pin!(lock.acquire());
    assert!(tokio::time::timeout(Duration::from_millis(50), second.as_mut()).await.is_err());
    let token = first.token();
    drop(first);
    let second = within("the second", second).await.unwrap();
    assert!(second.token() > token);
    second.check().unwrap();
    second.confirm().await.unwrap();
    second.release().await.unwrap();
    until_nothing_is_held(&client).await;
}

/// L8: some programs do not stand in line; they try, and try again after a pause that grows and is never quite the same.
/// They have no order among them, but none of them is there beside another, and all of them get through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_who_tries_again_after_growing_random_pauses_gets_the_lock_in_the_end() {
    const PROGRAMS: u32 = 8;
    let (_cluster, ports) = Cluster::start_native(1);
    let inside = Arc::new(AtomicU32::new(0));
    let mut programs = Vec::new();
    for _ in 0..PROGRAMS {
        let (client, inside) = (client(&ports).await, Arc::clone(&inside));
        programs.push(tokio::spawn(async move {
            let mut pause = Duration::from_millis(2);
            let guard = loop {
                match client.lock("l").try_acquire().await {
                    Ok(guard) => break guard,
                    Err(error) => assert_eq!(error.code(), Some(Code::Busy), "{error}"),
                }
                tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "K1: one at a time");
            // Until the others had a chance to come in.
            client.counter("turns").add(1).await.unwrap();
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        }));
    }
    for program in programs {
        within("every program", program).await.unwrap();
    }
    assert_eq!(client(&ports).await.counter("turns").get().await.unwrap(), i64::from(PROGRAMS));
}

/// EL3: a leader can hand over to whom it likes; that one knows, and so do observers.
#[tokio::test]
async fn a_leader_names_its_successor() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (one, two, three) = (client(&ports).await, client(&ports).await, client(&ports).await);
    let leading = one.election("e").data("one").campaign().await.unwrap();
    let stand = |client: &Client, who: &'static str| {
        let election = client.election("e").data(who);
        tokio::spawn(async move { election.campaign().await })
    };
    let second = stand(&two, "two");
    until("the second to stand", async || (members(&one).await == 2).then_some(())).await;
    let third = stand(&three, "three");
    until("the third to stand", async || (members(&one).await == 3).then_some(())).await;
    let mut changes = one.election("e").observe().await.unwrap();
    assert_eq!(within("news", changes.next()).await.unwrap().unwrap().data, "one");
    leading.resign_to(three.session_id().unwrap()).await.unwrap();
    let third = within("the third", third).await.unwrap().unwrap();
    assert_eq!(within("news", changes.next()).await.unwrap().unwrap().data, "three");
    assert_eq!(third.session(), three.session_id().unwrap());
    third.resign().await.unwrap();
    let second = within("the second", second).await.unwrap().unwrap();
    assert_eq!(within("news", changes.next()).await.unwrap().unwrap().token, second.token());
    drop(second);
    until_nothing_is_held(&one).await;
    assert_eq!(within("news", changes.next()).await.unwrap(), None);
}

/// Who stands by for many leads them all when their leader dies: all are granted at one revision, and so under one number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_by_for_many_elections_leads_all_of_them_when_their_leader_dies() {
    const ELECTIONS: usize = 50;
    let (_cluster, ports) = Cluster::start_native(1);
    let (leader, standby, operator) = (client(&ports).await, client(&ports).await, client(&ports).await);
    let mut led = Vec::new();
    for number in 0..ELECTIONS {
        led.push(leader.election(&format!("e{number}")).campaign().await.unwrap());
    }
    let stand = |number: usize| {
        let election = standby.election(&format!("e{number}"));
        tokio::spawn(async move { election.campaign().await })
    };
    let stands: Vec<_> = (0..ELECTIONS).map(stand).collect();
    until("all to stand", async || (members(&operator).await == 2 * ELECTIONS as u64).then_some(())).await;
    operator.end_session(leader.session_id().unwrap()).await.unwrap();
    for stands in stands {
        let leads = within("the lead", stands).await.unwrap().unwrap();
        leads.confirm().await.unwrap();
        leads.resign().await.unwrap();
    }
    until_nothing_is_held(&operator).await;
}

/// EL4: the epoch of a leader is a token like a lock's. A leader that was replaced and does not know must be stopped by
/// what it writes to, and must not stop the one that leads now.
#[tokio::test]
async fn el4_the_epoch_of_a_leader_that_was_replaced_is_refused() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (one, two, operator) = (client(&ports).await, client(&ports).await, client(&ports).await);
    let old = one.election("e").campaign().await.unwrap();
    one.counter("runs").fenced("e", old.token()).add(1).await.unwrap();
    one.fence("e").admit(old.token()).await.unwrap();
    let election = two.election("e");
    let stands = tokio::spawn(async move { election.campaign().await });
    until("the second to stand", async || (members(&operator).await == 2).then_some(())).await;
    // As if it had been silent for too long. It still has its epoch, and another session to write in.
    operator.end_session(one.session_id().unwrap()).await.unwrap();
    let new = within("the second", stands).await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(within("the loss", old.lost()).await.is_lost());
    two.counter("runs").fenced("e", new.token()).add(1).await.unwrap();
    for refused in [
        one.counter("runs").fenced("e", old.token()).add(1).await.map(drop).unwrap_err(),
        one.fence("e").admit(old.token()).await.map(drop).unwrap_err(),
        one.rcu("plan").fenced("e", old.token()).publish("old plan").await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(refused, Error::Lost(Loss::Token(_))), "{refused:?}");
    }
    assert_eq!(two.counter("runs").fenced("e", new.token()).add(1).await.unwrap(), 3);
    new.resign().await.unwrap();
}

/// Who waits for a latch, or for a phase without taking part, keeps nobody from removing it. So it must be told, or it
/// waits for ever.
#[tokio::test]
async fn who_waits_for_what_is_removed_is_told() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (client, operator) = (client(&ports).await, client(&ports).await);
    client.latch("c").set(1, OnDeath::Shrink).await.unwrap();
    client.phaser("p").register(1).await.unwrap().arrive_and_deregister().await.unwrap();
    let phase = client.phaser("p").phase().await.unwrap();
    let (latch, phaser) = (client.latch("c"), client.phaser("p"));
    let mut waits = pin!(async { tokio::join!(latch.wait(), phaser.await_advance(phase)) });
    // They wait after two questions each; these are more, on the same connection.
    let questions = async {
        for _ in 0..20 {
            client.counter("n").get().await.unwrap();
        }
    };
    tokio::select! {
        early = &mut waits => panic!("{early:?}"),
        () = questions => {}
    }
    operator.latch("c").forget().await.unwrap();
    operator.phaser("p").forget().await.unwrap();
    let (latch, phase) = within("the news", waits).await;
    assert_eq!(latch.unwrap_err().code(), Some(Code::NotFound));
    assert_eq!(phase.unwrap_err().code(), Some(Code::NotFound));
}

/// B1, and what is told when a participant dies.
#[tokio::test]
async fn a_barrier_breaks_for_those_who_wait_when_one_goes() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (one, two) = (client(&ports).await, client(&ports).await);
    let barrier = one.barrier("b", 3).on_death(OnDeath::Break);
    let waits = tokio::spawn(async move { barrier.enter().await });
    let other = two.barrier("b", 3).on_death(OnDeath::Break);
    let goes = tokio::spawn(async move { other.enter().await });
    until("both to be there", async || (members(&one).await == 2).then_some(())).await;
    goes.abort();
    assert_eq!(within("the news", waits).await.unwrap(), Err(Loss::Broken.into()));
    until_nothing_is_held(&one).await;
}

/// P1, P2: a tree of phasers has one phase, which ends when all parties of all its parts have arrived.
#[tokio::test]
async fn parties_of_a_tree_of_phasers_end_a_phase_together() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = client(&ports).await;
    let mut root = client.phaser("root").register(1).await.unwrap();
    let mut left = client.phaser("left").parent("root").register(1).await.unwrap();
    let mut right = client.phaser("right").parent("root").register(2).await.unwrap();
    let phase = client.phaser("left").phase().await.unwrap();
    let outside = client.phaser("right");
    let waits = tokio::spawn(async move { outside.await_advance(phase).await });
    assert_eq!(root.arrive().await.unwrap(), phase);
    assert_eq!(left.arrive().await.unwrap(), phase);
    assert_eq!(right.arrive_some(1).await.unwrap(), phase);
    assert_eq!(client.phaser("root").phase().await.unwrap(), phase);
    assert_eq!(within("the phase", right.arrive_and_await()).await.unwrap(), phase + 1);
    assert_eq!(within("the onlooker", waits).await.unwrap(), Ok(phase + 1));
    // Who dies is not waited for.
    drop(right);
    assert_eq!(root.arrive().await.unwrap(), phase + 1);
    assert_eq!(within("the phase", left.arrive_and_await()).await.unwrap(), phase + 2);
}

/// K6: not only who holds a lock must know that it is cut off. Who has promised, arrived, reads or protects works on
/// something that others stop counting on, after the time that was said for it and no other.
#[tokio::test]
async fn everything_that_is_held_knows_in_time_that_it_is_lost() {
    let (cluster, ports) = Cluster::start_native(1);
    let client = with_ttl(&ports, Duration::from_secs(600)).await;
    let ttl = Duration::from_secs(2);
    client.rcu("r").publish("data").await.unwrap();
    client.latch("c").set(2, OnDeath::Break).await.unwrap();
    let kept = client.lock("l").acquire().await.unwrap();
    let party = client.phaser("p").ttl(ttl).register(1).await.unwrap();
    let inside = client.double_barrier("d", 1).ttl(ttl).enter().await.unwrap();
    let pledge = client.latch("c").ttl(ttl).pledge().await.unwrap();
    let reader = client.rcu("r").ttl(ttl).read().await.unwrap();
    let protection = client.hazard("h").ttl(ttl).protect().await.unwrap();
    let check = || [party.check(), inside.check(), pledge.check(), reader.check(), protection.check()];
    assert_eq!(check(), [const { Ok(()) }; 5]);
    cluster.nodes[0].pause();
    let lost = within("the losses", async {
        tokio::join!(party.lost(), inside.lost(), pledge.lost(), reader.lost(), protection.lost())
    });
    let expired = || Error::Lost(Loss::Expired);
    assert_eq!(lost.await, (expired(), expired(), expired(), expired(), expired()));
    assert!(check().iter().all(Result::is_err));
    kept.check().expect("the others have a time of their own");
    cluster.nodes[0].resume();
}

/// U1: a writer that lost its lock must not replace what the next one has published, nor anybody remove what is read.
#[tokio::test]
async fn an_old_token_publishes_nothing_and_what_is_read_is_not_forgotten() {
    let (_cluster, ports) = Cluster::start_native(1);
    let client = client(&ports).await;
    let old = client.lock("l").acquire().await.unwrap();
    let (late, rcu) = (client.rcu("r").fenced("f", old.token()), client.rcu("r"));
    let first = late.publish("one").await.unwrap();
    old.release().await.unwrap();
    let new = client.lock("l").acquire().await.unwrap();
    let second = rcu.clone().fenced("f", new.token()).publish("two").await.unwrap();
    assert!(second > first);
    assert!(late.publish("too late").await.unwrap_err().is_lost());
    let reader = rcu.read().await.unwrap();
    assert_eq!((reader.version(), &reader.data()[..]), (second, &b"two"[..]));
    assert_eq!(rcu.forget().await.unwrap_err().code(), Some(Code::InUse));
    reader.finish().await.unwrap();
    rcu.forget().await.unwrap();
    assert_eq!(rcu.forget().await.unwrap_err().code(), Some(Code::NotFound));
    assert!(rcu.publish("three").await.unwrap() > second, "a version never comes again");
    // The others that are kept while nobody uses them.
    client.counter("n").add(1).await.unwrap();
    client.counter("n").forget().await.unwrap();
    assert_eq!(client.counter("n").get().await.unwrap(), 0);
    client.latch("c").set(1, OnDeath::Shrink).await.unwrap();
    client.latch("c").forget().await.unwrap();
    drop(client.semaphore("s", 2).acquire(1).await.unwrap());
    until("the semaphore to be free", async || client.semaphore("s", 2).forget().await.ok()).await;
    drop(client.phaser("p").register(1).await.unwrap());
    until("the phaser to be free", async || client.phaser("p").forget().await.ok()).await;
    new.release().await.unwrap();
}

/// L12, K6: a holder that cannot renew must know before anybody else has the lock.
#[tokio::test]
async fn a_holder_cut_off_from_the_cluster_knows_in_time() {
    let (cluster, ports) = Cluster::start_native(1);
    let client = with_ttl(&ports, Duration::from_secs(2)).await;
    let guard = client.lock("l").acquire().await.unwrap();
    guard.check().unwrap();
    cluster.nodes[0].pause();
    let lost = within("the loss", guard.lost()).await;
    assert_eq!(lost, Error::Lost(Loss::Expired));
    assert_eq!(guard.check(), Err(Error::Lost(Loss::Expired)));
    cluster.nodes[0].resume();
    // The client goes on with a new session; the old one gives way.
    let again = within("the lock", client.lock("l").acquire()).await.unwrap();
    assert!(again.token() > guard.token());
    assert!(guard.check().is_err(), "what is lost stays lost");
    assert!(guard.release().await.unwrap_err().is_lost());
    again.release().await.unwrap();
}

/// A session that an operator ends, or that the cluster gave up on, is told to who works under it.
#[tokio::test]
async fn a_session_ended_by_somebody_else_is_told_to_holders_and_waiters() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (client, operator) = (client(&ports).await, client(&ports).await);
    let guard = client.lock("l").acquire().await.unwrap();
    let lock = client.lock("l");
    let waits = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("the waiter", async || (members(&operator).await == 2).then_some(())).await;
    operator.end_session(client.session_id().unwrap()).await.unwrap();
    assert_eq!(within("the loss", guard.lost()).await, Error::Lost(Loss::SessionEnded));
    assert!(guard.check().is_err());
    assert_eq!(within("the waiter", waits).await.unwrap(), Err(Error::Lost(Loss::SessionEnded)));
    until_nothing_is_held(&operator).await;
}

/// A node that dies must cost nobody a lock: the client goes to another one, with the same session.
#[tokio::test]
async fn a_lock_and_a_place_in_its_queue_survive_the_death_of_any_node() {
    let (mut cluster, ports) = Cluster::start_native(3);
    let ttl = Duration::from_secs(10);
    let (holder, waiter) = (with_ttl(&ports, ttl).await, with_ttl(&ports, ttl).await);
    let guard = holder.lock("l").acquire().await.unwrap();
    let lock = waiter.lock("l");
    let waits = tokio::spawn(async move { lock.acquire().await });
    until("the waiter", async || (members(&holder).await == 2).then_some(())).await;
    for node in 0..3 {
        cluster.nodes[node].kill();
        within("a confirmation", guard.confirm()).await.unwrap();
        let counted = waiter.counter("n").add(1).await.unwrap();
        assert_eq!(counted, i64::try_from(node).unwrap() + 1, "H25: a request asked again happens once");
        cluster.nodes[node].start();
        cluster.nodes[node].wait_until_ready();
        guard.check().unwrap();
    }
    let token = guard.token();
    guard.release().await.unwrap();
    let second = within("the waiter", waits).await.unwrap().unwrap();
    assert!(second.token() > token);
}

/// What is lost must not be worked on: the work is stopped where it is.
#[tokio::test]
async fn work_under_a_lock_is_stopped_when_the_lock_is_lost() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (client, operator) = (client(&ports).await, client(&ports).await);
    let lock = client.lock("l");
    let token = tokio::spawn(async move { lock.run(async |guard| guard.token()).await });
    within("the work", token).await.unwrap().unwrap();
    let lock = client.lock("l");
    let works = tokio::spawn(async move { lock.run(async |_| std::future::pending::<()>().await).await });
    until("the work to begin", async || (members(&operator).await == 1).then_some(())).await;
    operator.end_session(client.session_id().unwrap()).await.unwrap();
    assert!(within("the loss", works).await.unwrap().unwrap_err().is_lost());
}

/// Nothing is left of a client that ends in order, not even its session.
#[tokio::test]
async fn a_client_that_is_closed_or_dropped_leaves_no_session() {
    let (_cluster, ports) = Cluster::start_native(1);
    let operator = client(&ports).await;
    let (closed, dropped) = (client(&ports).await, client(&ports).await);
    let _guard = closed.lock("l").acquire().await.unwrap();
    let _other = dropped.semaphore("s", 2).acquire(2).await.unwrap();
    assert_eq!(operator.sessions().await.unwrap().len(), 2);
    within("closing", closed.close()).await;
    drop((dropped, _other));
    until("the sessions to end", async || operator.sessions().await.unwrap().is_empty().then_some(())).await;
    assert_eq!(members(&operator).await, 0);
}
