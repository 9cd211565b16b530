//! `?wait_ms=`: the reply to who acquires or campaigns is held back until the grant, or until the time is over; then the
//! place is given up.
//!
//! Giving up is a request like any other and needs a number: it is the one after the request's own, which the client must
//! not use for anything else. So asking again with the same number is safe here too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tidelock_client_port::{PREFIX_BYTES, framed};
use tidelock_model::{Caller, Kind, Name, NativeOp, NativeRequest};
use tidelock_native_api::v1;
use tidelock_native_api::v1::answer::Answer;
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::v1::reply::Result as Replied;

use crate::callers::Proof;
use crate::mailbox::{Format, Mailbox};
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
    // Told before it is asked, so that no grant is missed.
    let told = Told { services, mailbox: services.router.mailbox(Format::Notices), kind, name: &name };
    services.router.observe(&*services.coordinator, Caller::Internal, (kind, &name), &told.mailbox, 0).await?;
    let NativeRequest { session, number, acknowledged, .. } = request;
    // By which the place is given up.
    let next = number.checked_add(1).ok_or_else(|| Problem::wrong("BAD_NUMBER", "numbers end here; open a session"))?;
    let mut reply = services.ask(caller.clone(), request).await?;
    let Some(Replied::Answer(v1::Answer { answer: Some(Answer::Place(place)) })) = &mut reply.result else {
        return Ok(framed(&reply));
    };
    if place.token == 0 {
        let waiting = told.granted(session.0, place.place);
        match tokio::time::timeout(Duration::from_millis(wait_ms), waiting).await {
            Ok(token) => place.token = token?,
            Err(_elapsed) => {
                let op = NativeOp::GiveUp { kind, name: name.clone(), place: place.place };
                services.ask(caller, NativeRequest { session, number: next, acknowledged, op }).await?;
                let text = format!("not granted within {wait_ms} ms; the place is given up, by request {next}");
                return Err(Problem::new(Family::Refused, "NOT_IN_TIME", text));
            }
        }
    }
    Ok(framed(&reply))
}

/// Somebody who waits for a place of a name.
struct Told<'a> {
    services: &'a Arc<Services>,
    mailbox: Arc<Mailbox>,
    kind: Kind,
    name: &'a Name,
}

impl Told<'_> {
    /// Waits for the grant of a place: its token.
    async fn granted(&self, session: i64, place: u64) -> Result<u64, Problem> {
        loop {
            // Asked each time, not read out of what is told: the answer may be a repeated one, and the grant long past.
            let (kind, name) = (translate::wire_kind(self.kind).into(), self.name.as_str().to_owned());
            let request = v1::DescribeRequest { kind, name, place, stale: true, ..Default::default() };
            let found = self.services.describe(&Caller::Internal, request).await?;
            match found.members.iter().find(|member| member.session == session) {
                Some(member) if member.token != 0 => return Ok(member.token),
                Some(_) => self.more(session).await?,
                None => {
                    return Err(Problem::new(
                        Family::Lost,
                        "LOST_PLACE",
                        "the place is gone: given up, or lost with its session",
                    ));
                }
            }
        }
    }

    /// Waits until something happened to a place of that session, or to any that went.
    async fn more(&self, session: i64) -> Result<(), Problem> {
        use v1::notice::Notice as N;
        let mut items = VecDeque::new();
        loop {
            let ended = std::future::poll_fn(|cx| {
                self.mailbox.register(cx.waker());
                let ended = self.mailbox.take(&mut items);
                if ended.is_some() || !items.is_empty() { Poll::Ready(ended) } else { Poll::Pending }
            })
            .await;
            if ended.is_some() {
                return Err(Problem::new(
                    Family::Unknown,
                    "INTERRUPTED",
                    "the node stopped, or too much happened at once",
                ));
            }
            let concerns = |payload: Bytes| match v1::Notice::decode(payload.slice(PREFIX_BYTES..)).ok()?.notice? {
                N::Granted(granted) => Some(granted.session == session),
                N::Gone(_) => Some(true),
                _ => None,
            };
            if items.drain(..).any(|item| concerns(item.payload) == Some(true)) {
                return Ok(());
            }
        }
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.services.router.stop_observing(self.kind, self.name.as_str(), &self.mailbox);
    }
}
