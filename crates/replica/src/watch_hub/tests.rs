use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidelock_model::{
    Batch, Caller, Command, EndedSessions, Key, KeyRange, LeaseId, LogTime, NodeId, Op, Origin, Proposal, PutLease,
    PutOp, PutValue, Space, Term,
};

struct World {
    state: State,
    hub: WatchHub,
    queue: Arc<WatchQueue>,
}

const SUBSCRIBER: SubscriberId = 1;
const WATCHER: WatcherId = WatcherId(0);

impl World {
    fn new() -> World {
        let state = State::new();
        let queue = Arc::new(WatchQueue::new(QueueLimits::default()));
        let mut hub = WatchHub::new(state.revision());
        hub.control(&state, WatchControl::Subscribe { subscriber: SUBSCRIBER, queue: queue.clone() });
        World { state, hub, queue }
    }

    fn command(&mut self, command: Command) {
        let index = self.state.applied().next();
        let origin = Origin { node: NodeId(1), boot: 1, number: index.0 };
        let batch = Batch {
            at: LogTime(0),
            proposals: vec![Proposal { origin, request: None, caller: Caller::Internal, command }],
        };
        let effects = self.state.apply(index, Term(1), batch);
        self.hub.publish(&effects.events, self.state.revision());
    }

    fn put(&mut self, name: &str) {
        let value = PutValue::Set(vec![0u8; 16].into());
        let lease = PutLease::Set(LeaseId::NONE);
        let key = Key::new(Space::User, name.as_bytes());
        self.command(Command::Write(Op::Put(PutOp { key, value, lease, want_previous: false })));
    }

    fn open(&mut self, prefix: &str, from: Option<u64>) {
        let range = KeyRange::prefix(Space::User, prefix.as_bytes());
        let request = WatchRequest {
            id: WATCHER,
            range,
            from: from.map(Revision),
            want_previous: false,
            caller: Caller::Internal,
        };
        self.hub.control(&self.state, WatchControl::Open { subscriber: SUBSCRIBER, request });
    }

    /// Takes everything there is, re-reading for lagging watchers as a node does; gives the revisions.
    fn drain(&mut self) -> Vec<u64> {
        let mut told = Vec::new();
        loop {
            if let Some(notice) = self.queue.take() {
                if let WatchNotice::Events { events, .. } = notice {
                    told.extend(events.iter().map(|event| event.record.meta().modified.0));
                }
            } else if let Some((watcher, lag)) = self.queue.take_lagging() {
                let page = self.state.events_page(&lag.range, lag.next, 100, lag.want_previous).unwrap();
                told.extend(page.events.iter().map(|event| event.record.meta().modified.0));
                let take_back = WatchControl::TakeBack { subscriber: SUBSCRIBER, watcher, next: page.next };
                self.hub.control(&self.state, take_back);
            } else {
                return told;
            }
        }
    }
}

/// W1-W3 across the whole life of a watcher: opened in the past, live, too slow, live again.
#[test]
fn w3_a_watcher_that_falls_behind_misses_nothing_and_sees_nothing_twice() {
    let mut world = World::new();
    (0..300).for_each(|_| world.put("a"));
    world.open("a", Some(100));
    assert_eq!(world.drain(), (100..=301).collect::<Vec<u64>>());
    (0..10).for_each(|_| world.put("a"));
    (0..10).for_each(|_| world.put("b"));
    assert_eq!(world.drain(), (302..=311).collect::<Vec<u64>>());
    (0..20_000).for_each(|_| world.put("a"));
    assert_eq!(world.drain(), (322..=20_321).collect::<Vec<u64>>());
    world.put("a");
    assert_eq!(world.drain(), [20_322]);
}

/// A slow reader costs a bounded amount of memory, however much happens meanwhile.
#[test]
fn the_queue_of_a_watcher_that_is_never_read_stays_bounded() {
    let mut world = World::new();
    world.open("", None);
    (0..50_000).for_each(|_| world.put("a"));
    let mut queued = 0;
    while let Some(notice) = world.queue.take() {
        if let WatchNotice::Events { events, .. } = notice {
            queued += events.len();
        }
    }
    assert!(queued <= 4096, "{queued} events were queued");
    assert!(world.queue.take_lagging().is_some());
}

/// H6: a watcher that starts in the future must be told nothing older (etcd #20221).
#[test]
fn h6_a_watch_from_a_future_revision_reports_nothing_before_it() {
    let mut world = World::new();
    world.open("a", Some(5));
    (0..6).for_each(|_| world.put("a"));
    assert_eq!(world.drain(), [5, 6, 7]);
}

/// H5: progress that overtakes events makes a client resume behind events it never saw (etcd #15220).
#[test]
fn h5_progress_is_not_told_while_a_watcher_lags() {
    let mut world = World::new();
    (0..5_000).for_each(|_| world.put("a"));
    world.open("a", Some(2));
    world.hub.control(&world.state, WatchControl::Progress { subscriber: SUBSCRIBER });
    let mut last_event = 0;
    let mut progress = None;
    assert!(matches!(world.queue.take(), Some(WatchNotice::Opened { .. })));
    assert_eq!(world.queue.take(), None, "no progress yet");
    while progress.is_none() {
        match world.queue.take() {
            Some(WatchNotice::Events { events, .. }) => last_event = events.last().unwrap().record.meta().modified.0,
            Some(WatchNotice::Progress { revision }) => progress = Some(revision),
            Some(other) => panic!("unexpected {other:?}"),
            None => {
                let (watcher, lag) = world.queue.take_lagging().expect("it lags until progress is told");
                let page = world.state.events_page(&lag.range, lag.next, 1_000, false).unwrap();
                last_event = page.events.last().map_or(last_event, |event| event.record.meta().modified.0);
                let take_back = WatchControl::TakeBack { subscriber: SUBSCRIBER, watcher, next: page.next };
                world.hub.control(&world.state, take_back);
            }
        }
    }
    assert_eq!(progress, Some(Revision(last_event)));
}

/// Between looking for a notice and looking for a watcher that lags, the hub may have opened one. A
/// client that is told events of a watcher it does not know yet drops them.
#[test]
fn a_watcher_is_not_re_read_for_before_it_was_told_that_it_is_open() {
    let mut world = World::new();
    (0..3).for_each(|_| world.put("a"));
    assert_eq!(world.queue.take(), None);
    world.open("a", Some(2));
    assert_eq!(world.queue.take_lagging(), None);
    assert!(matches!(world.queue.take(), Some(WatchNotice::Opened { .. })));
    assert!(world.queue.take_lagging().is_some());
}

/// W8: a watcher whose past is gone is told so, not left silent.
#[test]
fn w8_a_watch_from_a_compacted_revision_is_closed_with_the_reason() {
    let mut world = World::new();
    (0..10).for_each(|_| world.put("a"));
    world.command(Command::Compact { revision: Revision(6) });
    world.open("a", Some(3));
    assert!(matches!(world.queue.take(), Some(WatchNotice::Opened { .. })));
    let why = WatchClosed::Compacted { compacted: Revision(6) };
    assert_eq!(world.queue.take(), Some(WatchNotice::Closed { id: WATCHER, why }));
    assert_eq!(world.hub.watchers(), 0);
}

/// H5: a snapshot that replaces the state must neither hide events nor repeat them (etcd #15271).
#[test]
fn h5_a_state_replaced_by_a_snapshot_neither_hides_nor_repeats_events() {
    let mut world = World::new();
    world.open("a", None);
    (0..3).for_each(|_| world.put("a"));
    assert_eq!(world.drain(), [2, 3, 4]);
    let mut ahead = World::new();
    (0..8).for_each(|_| ahead.put("a"));
    world.state = ahead.state;
    world.hub.jumped(world.state.revision());
    assert_eq!(world.drain(), [5, 6, 7, 8, 9]);
    world.put("a");
    assert_eq!(world.drain(), [10]);
}

#[test]
fn an_unsubscribed_watcher_costs_nothing_any_more() {
    let mut world = World::new();
    world.open("a", None);
    assert_eq!(world.hub.watchers(), 1);
    world.hub.control(&world.state, WatchControl::Unsubscribe { subscriber: SUBSCRIBER });
    assert_eq!(world.hub.watchers(), 0);
    while world.queue.take().is_some() {}
    world.put("a");
    assert_eq!(world.queue.take(), None);
}

/// Counts how often a task would have been woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hundreds of watchers of a key share what they are told, and a client with many of them is woken once: that is what
/// a watched key costs. And each is told everything of a revision in one piece (W4).
#[test]
fn watchers_of_one_range_share_what_they_are_told() {
    let mut world = World::new();
    let woken = Arc::new(Woken::default());
    let queue = Arc::new(WatchQueue::new(QueueLimits::default()));
    queue.is_taken_by(&woken.clone().into());
    world.hub.control(&world.state, WatchControl::Subscribe { subscriber: 2, queue: queue.clone() });
    for id in 0..3 {
        let range = KeyRange::single(Key::new(Space::User, b"a"));
        let request =
            WatchRequest { id: WatcherId(id), range, from: None, want_previous: false, caller: Caller::Internal };
        world.hub.control(&world.state, WatchControl::Open { subscriber: 2, request });
        assert!(matches!(queue.take(), Some(WatchNotice::Opened { .. })));
    }
    world.hub.wake();
    woken.0.store(0, Ordering::Relaxed);
    world.put("a");
    world.hub.wake();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let told: Vec<SharedEvents> = std::iter::from_fn(|| match queue.take() {
        Some(WatchNotice::Events { events, .. }) => Some(events),
        _ => None,
    })
    .collect();
    let [first, second, third] = &told[..] else { panic!("{told:?}") };
    assert!(std::ptr::eq(&first[..], &second[..]) && std::ptr::eq(&first[..], &third[..]));

    // Two keys in one revision: who watches both is told both at once, who watches one that one.
    world.open("", None);
    world.queue.take();
    let put = |name: &[u8]| {
        let key = Key::new(Space::User, name);
        let value = PutValue::Set(vec![0u8; 16].into());
        Op::Put(PutOp { key, value, lease: PutLease::Set(LeaseId::NONE), want_previous: false })
    };
    let both = tidelock_model::Txn { compares: vec![], success: vec![put(b"a"), put(b"b")], failure: vec![] };
    world.command(Command::Write(Op::Txn(both.into())));
    let counts = |queue: &WatchQueue| {
        std::iter::from_fn(|| queue.take())
            .map(|notice| match notice {
                WatchNotice::Events { events, .. } => events.len(),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<usize>>()
    };
    assert_eq!(counts(&queue), [1, 1, 1]);
    assert_eq!(counts(&world.queue), [2]);
}

/// Sessions have no keys, so nothing re-reads their ends: who follows them is told each once, by one waking, and told to
/// look for itself where the hub cannot know.
#[test]
fn who_follows_sessions_is_told_of_each_end_or_that_some_were_missed() {
    let mut world = World::new();
    let ended = |sessions: &[i64]| {
        let sessions = sessions.iter().map(|id| LeaseId(*id)).collect();
        Some(EndedSessions { sessions, missed: false })
    };
    world.hub.session_ended(LeaseId(1));
    assert_eq!(world.queue.take_ended(), None, "nobody asked");
    world.hub.control(&world.state, WatchControl::FollowSessions { subscriber: SUBSCRIBER });
    world.hub.wake();
    (2..5).for_each(|id| world.hub.session_ended(LeaseId(id)));
    assert_eq!(world.hub.touched.len(), 1);
    assert_eq!(world.queue.take_ended(), ended(&[2, 3, 4]));
    assert_eq!(world.queue.take_ended(), None);
    world.hub.session_ended(LeaseId(5));
    world.hub.jumped(world.state.revision());
    world.hub.session_ended(LeaseId(6));
    assert_eq!(world.queue.take_ended(), Some(EndedSessions { sessions: Vec::new(), missed: true }));
    world.hub.session_ended(LeaseId(7));
    assert_eq!(world.queue.take_ended(), ended(&[7]));
    world.hub.control(&world.state, WatchControl::Unsubscribe { subscriber: SUBSCRIBER });
    world.hub.session_ended(LeaseId(8));
    assert_eq!(world.queue.take_ended(), None);
}

/// Whoever never takes what it is told must not fill the memory of the node.
#[test]
fn ends_that_nobody_takes_are_bounded() {
    let queue = WatchQueue::new(QueueLimits::default());
    (0..=1 << 20).for_each(|id| queue.end_session(LeaseId(id)));
    assert_eq!(queue.take_ended(), Some(EndedSessions { sessions: Vec::new(), missed: true }));
}
