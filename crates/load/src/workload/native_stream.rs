//! The native API's stream: one on each connection of a load, what is sent on it, and how what comes back is read.

use std::time::{Duration, UNIX_EPOCH};

use prost::Message;
use tidelock_native_api::v1::{
    FromClient, OpenReply, OpenRequest, Reply, ToClient, answer, from_client, reply, to_client,
};

use crate::grpc::StreamId;
use crate::lines::{Answer, Lines, Tag};
use crate::random::Random;

/// Without an answer for so long, a load without a time of its own ends as failed. Above any server's own limit.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Longer than any run: nobody keeps these sessions alive.
const SESSION_TTL_MS: u32 = 600_000;
const CONNECT: &str = "/tidelock.v1.Native/Connect";
/// Every stream has the same tag: messages say themselves whose they are.
const STREAM: Tag = 0;
/// The low bits of the number a session is opened with say whose it is; the others are drawn anew for each run.
const WHOSE_BITS: u32 = 24;

/// A stream on each connection.
pub(super) struct Streams {
    ids: Vec<StreamId>,
    run: u64,
}

impl Streams {
    /// Begins a stream on each of `lines`, which are open.
    pub(super) fn open(lines: &mut Lines) -> Result<Streams, String> {
        let ids: Vec<StreamId> =
            (0..lines.count()).filter_map(|line| lines.open_stream(line, STREAM, CONNECT)).collect();
        if ids.len() < lines.count() {
            return Err("a connection was lost before the run".to_string());
        }
        let drawn = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        Ok(Streams { ids, run: Random::new(drawn).next() << WHOSE_BITS })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.ids.len()
    }

    /// Sends a message.
    pub(super) fn send(&self, lines: &mut Lines, line: usize, message: from_client::Message) {
        let message = FromClient { message: Some(message) };
        let encode = |out: &mut Vec<u8>| message.encode(out).expect("a vector takes any message");
        lines.push(line, self.ids[line], encode);
    }

    /// Asks for a session; [`opened`] says that it is that of `whose`.
    pub(super) fn open_session(&self, lines: &mut Lines, line: usize, whose: usize) {
        let open = OpenRequest { ttl_ms: SESSION_TTL_MS, client: self.run | whose as u64 };
        self.send(lines, line, from_client::Message::Open(open));
    }
}

/// Whose session was opened, and its id.
pub(super) fn opened(reply: &OpenReply) -> Result<(usize, i64), String> {
    match &reply.error {
        Some(error) => Err(format!("open: {}: {}", error.code, error.message)),
        None => Ok((reply.client as usize & ((1 << WHOSE_BITS) - 1), reply.session)),
    }
}

/// The message that came on a stream; none if it is of a kind that is not known here. The error says why there will be
/// no more.
pub(super) fn message_of(answer: Answer<'_>) -> Result<Option<to_client::Message>, String> {
    match answer {
        Answer::Message(message) => match ToClient::decode(&*message) {
            Ok(message) => Ok(message.message),
            Err(error) => Err(format!("an unreadable message: {error}")),
        },
        Answer::End(status) => Err(format!("status {}: {}", status.code, status.message)),
        Answer::Reply { .. } | Answer::Value(_) => Ok(None),
    }
}

/// What a request was answered; the error says why it was not carried out.
pub(super) fn answer_of(reply: Reply) -> Result<answer::Answer, String> {
    match reply.result {
        Some(reply::Result::Answer(answer)) => answer.answer.ok_or_else(|| "an empty answer".to_string()),
        Some(reply::Result::Error(error)) => Err(format!("{}: {}", error.code, error.message)),
        None => Err("a reply without a result".to_string()),
    }
}
