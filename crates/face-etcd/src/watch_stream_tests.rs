//! Tests of `watch_stream`.

use tidelock_etcd_api::etcdserverpb::{ResponseHeader, WatchCancelRequest, WatchProgressRequest};
use tidelock_model::{Caller, Key, LeaseId, Record, RecordMeta, Space};

use super::*;

fn create(create: WatchCreateRequest) -> WireRequest {
    WireRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn watch(key: &'static str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), ..Default::default() }
}

fn cancel(watch_id: i64) -> WireRequest {
    WireRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })) }
}

fn progress() -> WireRequest {
    WireRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

fn put_event(revision: u64, value: &[u8]) -> Event {
    let modified = Revision(revision);
    let meta = RecordMeta { created: modified, modified, version: 1, lease: LeaseId::NONE, sub: 0 };
    Event { key: Key::new(Space::User, b"k"), record: Record::new(meta, value), previous: None }
}

fn delete_event(revision: u64) -> Event {
    let record = Record::tombstone(Revision(revision), 0);
    Event { key: Key::new(Space::User, b"k"), record, previous: None }
}

fn events(id: i64, revision: u64, events: Vec<Event>) -> WatchNotice {
    WatchNotice::Events { id: WatcherId(id), revision: Revision(revision), events: events.into() }
}

fn opened(id: i64) -> WatchNotice {
    WatchNotice::Opened { id: WatcherId(id), revision: Revision(5) }
}

/// Drives a stream and collects what it does.
struct Driven(WatchStream);

impl Driven {
    fn new() -> Driven {
        Driven(WatchStream::new(Limits { watchers_per_stream: 4, ..Limits::default() }))
    }
    fn request(&mut self, request: WireRequest) -> Vec<Action> {
        let mut actions = VecDeque::new();
        self.0.on_request(request, Ok(Caller::Anonymous), &mut actions);
        actions.into()
    }
    fn notice(&mut self, notice: WatchNotice) -> Vec<Action> {
        let mut actions = VecDeque::new();
        self.0.on_notice(notice, &mut actions);
        actions.into()
    }
    fn interval(&mut self) -> Vec<Action> {
        let mut actions = VecDeque::new();
        self.0.on_interval(&mut actions);
        actions.into()
    }
    fn open(&mut self, request: WatchCreateRequest) -> WatchRequest {
        match self.request(create(request)).remove(0) {
            Action::Open(open) => open,
            other => panic!("expected a watcher to be opened, not {other:?}"),
        }
    }
    /// The one reply a notice leads to.
    fn reply(&mut self, notice: WatchNotice) -> (HeaderAt, WatchResponse) {
        match self.notice(notice).remove(0) {
            Action::Reply(at, response) => (at, response),
            Action::Tell(told) => {
                let header = ResponseHeader::default();
                (HeaderAt::Revision(told.revision), WatchResponse { header: None, ..told.to_response(header) })
            }
            other => panic!("expected a reply, not {other:?}"),
        }
    }
}

fn refusal(actions: &[Action]) -> &WatchResponse {
    match actions {
        [Action::Reply(HeaderAt::Now, response)] => {
            assert!(response.created && response.canceled && response.watch_id == -1);
            response
        }
        other => panic!("expected a refusal, not {other:?}"),
    }
}

/// Go clients leave ids to the server, others choose; both on one stream must not collide.
#[test]
fn chosen_ids_count_from_zero_and_skip_those_in_use() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { watch_id: 1, ..watch("a") });
    stream.open(watch("b"));
    stream.open(watch("c"));
    let ids: Vec<i64> = (0..3).map(|id| stream.reply(opened(id)).1.watch_id).collect();
    assert_eq!(ids, [1, 0, 2]);
}

#[test]
fn an_id_in_use_is_refused_without_touching_the_watcher_that_has_it() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { watch_id: 7, ..watch("a") });
    // Clients match answers to requests by order: the first watcher is told that it is open first.
    assert_eq!(stream.request(create(WatchCreateRequest { watch_id: 7, ..watch("b") })), []);
    let mut actions = stream.notice(opened(0));
    let Action::Reply(_, first) = actions.remove(0) else { panic!("no answer to the first") };
    assert_eq!((first.watch_id, first.created, first.canceled), (7, true, false));
    assert_eq!(refusal(&actions).cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
}

/// A client that cancels a watcher and opens another under the same id must get the new one, and the
/// confirmation of the old one first.
#[test]
fn an_id_can_be_reused_as_soon_as_it_was_cancelled() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { watch_id: 7, ..watch("a") });
    assert_eq!(stream.request(cancel(7)), [Action::Close(WatcherId(0))]);
    let second = stream.open(WatchCreateRequest { watch_id: 7, ..watch("b") });
    assert_eq!(second.id, WatcherId(1));
    let (at, response) = stream.reply(WatchNotice::Closed { id: WatcherId(0), why: WatchClosed::Requested });
    assert_eq!((at, response.watch_id, response.canceled), (HeaderAt::Now, 7, true));
    assert!(stream.reply(opened(1)).1.created);
    // The confirmation must not have taken the new watcher's name away.
    assert_eq!(stream.request(cancel(7)), [Action::Close(WatcherId(1))]);
}

#[test]
fn cancelling_an_unknown_id_is_ignored() {
    assert_eq!(Driven::new().request(cancel(3)), []);
}

/// Clients look for these exact words, and for the id -1 that is nobody's.
#[test]
fn requests_that_cannot_be_watched_are_created_and_cancelled_at_once() {
    let mut stream = Driven::new();
    let past = stream.request(create(WatchCreateRequest { start_revision: -1, ..watch("a") }));
    assert_eq!(refusal(&past).cancel_reason, "etcdserver: mvcc: required revision has been compacted");
    let backwards = stream.request(create(WatchCreateRequest { range_end: "a".into(), ..watch("b") }));
    assert_eq!(refusal(&backwards).cancel_reason, "mvcc: watcher range is empty");
    let same = stream.request(create(WatchCreateRequest { range_end: "b".into(), ..watch("b") }));
    assert_eq!(refusal(&same).cancel_reason, "mvcc: watcher range is empty");
}

/// One client must not be able to fill the node's memory with watchers.
#[test]
fn watchers_beyond_the_limit_are_refused_until_others_are_gone() {
    let mut stream = Driven::new();
    (0..4).for_each(|_| drop(stream.open(watch("a"))));
    (0..4).for_each(|id| drop(stream.notice(opened(id))));
    assert!(refusal(&stream.request(create(watch("a")))).cancel_reason.contains("4 watchers"));
    stream.request(cancel(0));
    stream.notice(WatchNotice::Closed { id: WatcherId(0), why: WatchClosed::Requested });
    stream.open(watch("a"));
}

#[test]
fn no_key_means_from_the_first_key_on() {
    let mut stream = Driven::new();
    let all = stream.open(WatchCreateRequest { range_end: "\0".into(), ..watch("") });
    assert!(all.range.contains(&Key::new(Space::User, b"\0")));
    assert_eq!(all.range.end, Key::end_of(Space::User));
    assert_eq!(all.from, None);
    let from = stream.open(WatchCreateRequest { start_revision: 9, prev_kv: true, ..watch("a") });
    assert_eq!((from.from, from.want_previous), (Some(Revision(9)), true));
}

/// W7: a client resumes from `compact_revision`; etcd tells it with revision zero and no reason.
#[test]
fn a_compacted_watcher_is_told_from_where_it_can_go_on() {
    let mut stream = Driven::new();
    stream.open(watch("a"));
    let why = WatchClosed::Compacted { compacted: Revision(42) };
    let (at, response) = stream.reply(WatchNotice::Closed { id: WatcherId(0), why });
    assert_eq!((at, response.canceled, response.compact_revision), (HeaderAt::Nothing, true, 42));
    assert_eq!((response.created, response.cancel_reason.as_str()), (false, ""));
}

#[test]
fn filtered_events_are_not_sent() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { filters: vec![FilterType::Noput.into()], ..watch("a") });
    stream.open(WatchCreateRequest { filters: vec![FilterType::Nodelete.into()], ..watch("a") });
    let both = vec![put_event(6, b"v"), delete_event(7)];
    let kinds = |response: &WatchResponse| response.events.iter().map(|event| event.r#type).collect::<Vec<_>>();
    assert_eq!(kinds(&stream.reply(events(0, 7, both.clone())).1), [1]);
    assert_eq!(kinds(&stream.reply(events(1, 7, both)).1), [0]);
    // Nothing left: no empty response, which clients would take for a progress notice.
    assert_eq!(stream.notice(events(0, 8, vec![put_event(8, b"v")])), []);
}

/// Twice the bytes on the wire, and etcdctl prints what it is sent: values nobody asked to see.
#[test]
fn what_was_before_is_told_only_to_who_asked() {
    let mut stream = Driven::new();
    stream.open(watch("k"));
    stream.open(WatchCreateRequest { prev_kv: true, ..watch("k") });
    let overwritten = Event { previous: Some(put_event(6, b"old").record), ..put_event(7, b"new") };
    let (_, without) = stream.reply(events(0, 7, vec![overwritten.clone()]));
    let (_, with) = stream.reply(events(1, 7, vec![overwritten]));
    assert_eq!(without.events[0].prev_kv, None);
    assert_eq!(with.events[0].prev_kv.as_ref().map(|kv| &kv.value[..]), Some(&b"old"[..]));
}

/// W6: the answer takes its place among the events, and one answer is never older than its question.
#[test]
fn progress_is_told_when_the_subscription_says_so_and_asked_again_for_later_questions() {
    let mut stream = Driven::new();
    assert_eq!(stream.request(progress()), [], "a stream without watchers has no progress");
    stream.open(watch("a"));
    assert_eq!(stream.request(progress()), [Action::RequestProgress]);
    assert_eq!(stream.request(progress()), [], "one question at a time");
    let answer = WatchResponse { watch_id: -1, ..Default::default() };
    let told = stream.notice(WatchNotice::Progress { revision: Revision(9) });
    assert_eq!(told, [Action::Reply(HeaderAt::Revision(Revision(9)), answer.clone()), Action::RequestProgress]);
    let told = stream.notice(WatchNotice::Progress { revision: Revision(11) });
    assert_eq!(told, [Action::Reply(HeaderAt::Revision(Revision(11)), answer)]);
}

/// A notice tells a quiet watcher where it stands; a busy one knows from its events.
#[test]
fn only_quiet_watchers_that_asked_for_it_get_notices() {
    let mut stream = Driven::new();
    let notified = |key| WatchCreateRequest { progress_notify: true, ..watch(key) };
    stream.open(notified("busy"));
    stream.open(notified("quiet"));
    stream.open(watch("silent"));
    stream.notice(events(0, 6, vec![put_event(6, b"v")]));
    assert_eq!(stream.interval(), [Action::RequestProgress]);
    let told = stream.notice(WatchNotice::Progress { revision: Revision(6) });
    let notice = |watch_id| WatchResponse { watch_id, ..Default::default() };
    assert_eq!(told, [Action::Reply(HeaderAt::Revision(Revision(6)), notice(1))]);
    // The busy one was quiet since: next time both are told.
    assert_eq!(stream.interval(), [Action::RequestProgress]);
    assert_eq!(stream.notice(WatchNotice::Progress { revision: Revision(6) }).len(), 2);
}

#[test]
fn a_watcher_cancelled_meanwhile_gets_no_notice() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { progress_notify: true, ..watch("a") });
    stream.interval();
    stream.request(cancel(0));
    assert_eq!(stream.notice(WatchNotice::Progress { revision: Revision(6) }), []);
}

/// W4: whoever did not ask for fragments must get a revision in one piece; whoever did gets all events,
/// in order, with every piece but the last marked and none too large.
#[test]
fn a_large_revision_is_split_only_for_clients_that_can_join_it() {
    let mut stream = Driven::new();
    stream.open(watch("a"));
    stream.open(WatchCreateRequest { fragment: true, ..watch("a") });
    let large: Vec<Event> = (0..10).map(|_| put_event(6, &vec![b'v'; 700_000])).collect();
    assert_eq!(stream.notice(events(0, 6, large.clone())).len(), 1);

    let parts: Vec<WatchResponse> = stream
        .notice(events(1, 6, large))
        .into_iter()
        .map(|action| match action {
            Action::Reply(_, response) => response,
            other => panic!("expected a reply, not {other:?}"),
        })
        .collect();
    assert!(parts.iter().all(|part| part.encoded_len() < Limits::default().message_bytes()));
    assert_eq!(parts.iter().map(|part| part.events.len()).sum::<usize>(), 10);
    let marks: Vec<bool> = parts.iter().map(|part| part.fragment).collect();
    assert_eq!(marks.iter().rposition(|mark| !mark), Some(marks.len() - 1));
    assert_eq!(marks.iter().filter(|mark| !**mark).count(), 1);
}

/// An event larger than the limit cannot be split; it is sent rather than withheld.
#[test]
fn a_single_event_is_never_split() {
    let mut stream = Driven::new();
    stream.open(WatchCreateRequest { fragment: true, ..watch("a") });
    let (_, response) = stream.reply(events(0, 6, vec![put_event(6, &vec![b'v'; 3_000_000])]));
    assert_eq!((response.events.len(), response.fragment), (1, false));
}

/// A client resumes after the revision that progress tells. Told 6 about a watcher that begins at 10, it would
/// resume at 7 and be given events it never asked for.
#[test]
fn progress_is_not_told_before_a_watcher_begins() {
    let mut stream = Driven::new();
    stream.open(watch("a"));
    stream.open(WatchCreateRequest { start_revision: 10, progress_notify: true, ..watch("b") });
    let told = |stream: &mut Driven, revision| stream.notice(WatchNotice::Progress { revision: Revision(revision) });
    assert_eq!(stream.request(progress()), [Action::RequestProgress]);
    assert_eq!(told(&mut stream, 6), [], "of the stream");
    assert_eq!(stream.interval(), [Action::RequestProgress]);
    assert_eq!(told(&mut stream, 6), [], "of the watcher");
    stream.request(progress());
    assert_eq!(told(&mut stream, 10).len(), 1);
    // Cancelled, it holds nothing up any more.
    stream.request(progress());
    stream.request(cancel(1));
    assert_eq!(told(&mut stream, 6).len(), 1);
}
