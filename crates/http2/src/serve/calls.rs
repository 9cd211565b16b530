//! The calls of a connection that are under way, and the bodies of answers that are being sent.
//!
//! Each has a place, with a bell to wake it by that stays when the call is over: a call costs no more than the future
//! it is. One that nobody waits for any more is dropped at once.
//!
//! What there is no room for is put off, in the order in which it came up, each kind by itself. A place is in a queue
//! once, whatever becomes of the calls that come to it: all queues are as long as there are places, at most.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;

use super::ready::{Bell, Ready};
use super::{Answering, Refusal, Reply};
use crate::connection::Room;
use crate::hpack::Field;

/// The next part of a body; nothing after the last.
pub(super) type Part<B> = Option<Result<Frame<<B as http_body::Body>::Data>, <B as http_body::Body>::Error>>;

/// Something under way.
pub(super) enum Work<B> {
    /// A call that is answered whole.
    Call(Answering<Reply<B>>),
    /// An answer that has not begun.
    Head(Answering<http::Response<B>>),
    /// An answer that goes on.
    Body(B),
}

/// Kinds of work that may have to wait for room.
const KINDS: usize = 2;
const CALLS: usize = 0;
const HEADS: usize = 1;

impl<B> Work<B> {
    /// What it has to wait for, if it does.
    fn waits_for(&self, room: Room) -> Option<usize> {
        match self {
            Work::Call(_) if !room.calls => Some(CALLS),
            Work::Head(_) if !room.heads => Some(HEADS),
            _ => None,
        }
    }
}

/// What something under way came to.
pub(super) enum Done<B: http_body::Body> {
    /// A whole answer; its place is free.
    Message(Bytes),
    /// Likewise.
    Refused(Refusal),
    /// The beginning of one; its place is free.
    Head(http::Response<B>),
    /// More of one. The rest keeps its place.
    Part(Part<B>),
}

struct Place<B> {
    bell: Arc<Bell>,
    waker: Waker,
    stream: u32,
    work: Option<Work<B>>,
    /// Its client does not take what there is: not looked at, whoever wakes it.
    held: bool,
    /// In which queues of those that are put off it stands.
    put_off: [bool; KINDS],
}

/// Everything under way on one connection.
pub(super) struct Calls<B> {
    ready: Arc<Ready>,
    places: Vec<Place<B>>,
    free: Vec<usize>,
    /// Places of calls that nobody has looked at yet.
    fresh: Vec<usize>,
    /// Places of calls that were woken.
    woken: Vec<usize>,
    /// Places to look at in this turn.
    turn: VecDeque<usize>,
    /// Places to look at when there is room, by kind.
    put_off: [VecDeque<usize>; KINDS],
}

impl<B> Calls<B>
where
    B: http_body::Body + Send + Unpin + 'static,
{
    pub(super) fn new(ready: Arc<Ready>) -> Calls<B> {
        let (places, free) = (Vec::new(), Vec::new());
        let (fresh, woken, turn) = (Vec::new(), Vec::new(), VecDeque::new());
        Calls { ready, places, free, fresh, woken, turn, put_off: Default::default() }
    }

    /// Takes something up; it is looked at in the next turn. Where it is.
    pub(super) fn add(&mut self, stream: u32, work: Work<B>) -> usize {
        let place = self.put(stream, work);
        // It may still be noted for a call that was there before.
        if self.places[place].bell.ring() {
            self.fresh.push(place);
        }
        place
    }

    /// Takes something up that its caller looks at. Where it is.
    pub(super) fn put(&mut self, stream: u32, work: Work<B>) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = self.places.len();
            let bell = Bell::new(&self.ready, place);
            let waker = Waker::from(Arc::clone(&bell));
            self.places.push(Place { bell, waker, stream, work: None, held: false, put_off: [false; KINDS] });
            place
        });
        self.places[place].stream = stream;
        self.places[place].work = Some(work);
        self.places[place].held = false;
        place
    }

    /// Has a place looked at in the next turn.
    pub(super) fn look_at(&mut self, place: usize) {
        self.places[place].waker.wake_by_ref();
    }

    /// Has a place not looked at until [`Calls::resume`]: what is made of it has nowhere to go.
    pub(super) fn hold(&mut self, place: usize) {
        self.places[place].held = true;
    }

    /// Has a place looked at again.
    pub(super) fn resume(&mut self, place: usize) {
        self.places[place].held = false;
        self.look_at(place);
    }

    /// Drops what is at a place.
    pub(super) fn drop_at(&mut self, place: usize) {
        if self.places[place].work.take().is_some() {
            self.free.push(place);
        }
    }

    /// Begins a turn: what was left of the last one, what was woken since, and what is new.
    pub(super) fn begin_turn(&mut self, cx: &Context<'_>) {
        self.ready.begin(&mut self.woken, cx);
        self.turn.extend(self.woken.drain(..));
        self.turn.extend(self.fresh.drain(..));
    }

    /// Whether there is anything left to look at, and room for it.
    pub(super) fn can_go_on(&self, room: Room) -> bool {
        let has = |kind: usize| !self.put_off[kind].is_empty();
        room.any && (!self.turn.is_empty() || room.calls && has(CALLS) || room.heads && has(HEADS))
    }

    /// How long all queues are together.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.fresh.len() + self.turn.len() + self.put_off.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Whether the beginning of an answer was put off.
    pub(super) fn has_put_off_heads(&self) -> bool {
        !self.put_off[HEADS].is_empty()
    }

    /// The same, and somebody still waits for it.
    pub(super) fn does_a_head_wait(&self) -> bool {
        self.put_off[HEADS].iter().any(|place| matches!(self.places[*place].work, Some(Work::Head(_))))
    }

    /// The next place to look at: first those that waited for the room there is.
    fn next(&mut self, room: Room) -> Option<usize> {
        for (kind, has_room) in [(CALLS, room.calls), (HEADS, room.heads)] {
            if has_room && let Some(place) = self.put_off[kind].pop_front() {
                self.places[place].put_off[kind] = false;
                return Some(place);
            }
        }
        self.turn.pop_front()
    }

    /// What the next one came to that came to anything: its stream, its place.
    pub(super) fn poll_next(&mut self, room: Room, looks: &mut usize) -> Option<(u32, usize, Done<B>)> {
        while *looks > 0 && room.any {
            let place = self.next(room)?;
            *looks -= 1;
            let at = &mut self.places[place];
            at.bell.answer();
            if at.held {
                continue;
            }
            if let Some(kind) = at.work.as_ref().and_then(|work| work.waits_for(room)) {
                if !std::mem::replace(&mut at.put_off[kind], true) {
                    self.put_off[kind].push_back(place);
                }
                continue;
            }
            if let Some(done) = self.poll_at(place) {
                return Some((self.places[place].stream, place, done));
            }
        }
        None
    }

    /// Looks at one place.
    pub(super) fn poll_at(&mut self, place: usize) -> Option<Done<B>> {
        let Place { waker, work, .. } = &mut self.places[place];
        let mut cx = Context::from_waker(waker);
        let done = match work.as_mut()? {
            Work::Call(call) => call.as_mut().poll(&mut cx).map(|reply| match reply {
                Reply::Message(message) => Done::Message(message),
                Reply::Refused(refusal) => Done::Refused(refusal),
                Reply::Other(response) => Done::Head(response),
            }),
            Work::Head(head) => head.as_mut().poll(&mut cx).map(Done::Head),
            Work::Body(body) => return Pin::new(body).poll_frame(&mut cx).map(Done::Part).into_option(),
        };
        if done.is_ready() {
            self.drop_at(place);
        }
        done.into_option()
    }
}

/// A poll as an option: what is pending is woken later.
trait IntoOption<T> {
    fn into_option(self) -> Option<T>;
}

impl<T> IntoOption<T> for Poll<T> {
    fn into_option(self) -> Option<T> {
        match self {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }
}

/// Trailers, as the connection takes them.
pub(super) fn fields(trailers: &http::HeaderMap) -> Vec<Field> {
    let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| Field {
        name: Bytes::copy_from_slice(name.as_str().as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    trailers.iter().map(field).collect()
}
