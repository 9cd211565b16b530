//! The client's half of ZooKeeper's protocol, as bytes in and out: no sockets, no clock.
//!
//! Requests are numbered and answered in their order; many may be on their way. Events (an xid of -1) come in between.
//! An answer out of order, or a frame of an impossible length, ends the connection.

use std::collections::VecDeque;

use crate::lines::{Answer, Broken, Step, Tag};

/// The largest answer we take: a listing of some hundred thousand children.
const FRAME_BYTES_MAX: usize = 64 << 20;
const EVENT_XID: i32 = -1;
const PING_XID: i32 = -2;

/// Request types.
pub(crate) mod opcode {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CLOSE: i32 = -11;
}

/// One connection and its session.
pub(crate) struct Connection {
    next_xid: i32,
    waiting: VecDeque<(i32, Tag)>,
    greeted: bool,
}

impl Connection {
    /// Opens a new session that outlives a silence of `timeout_ms`.
    pub(crate) fn new(timeout_ms: i32, out: &mut Vec<u8>) -> Connection {
        framed(out, |out| {
            int(out, 0);
            long(out, 0);
            int(out, timeout_ms);
            long(out, 0);
            bytes(out, &[0; 16]);
            out.push(0);
        });
        Connection { next_xid: 1, waiting: VecDeque::new(), greeted: false }
    }

    /// The requests without an answer.
    pub(crate) fn unanswered(&self) -> Vec<Tag> {
        self.waiting.iter().map(|(_, tag)| *tag).collect()
    }

    pub(crate) fn ask(&mut self, out: &mut Vec<u8>, tag: Tag, opcode: i32, body: impl FnOnce(&mut Vec<u8>)) {
        let xid = self.next_xid;
        // Negative numbers have meanings of their own.
        self.next_xid = xid.checked_add(1).unwrap_or(1);
        self.waiting.push_back((xid, tag));
        framed(out, |out| {
            int(out, xid);
            int(out, opcode);
            body(out);
        });
    }

    /// Keeps the session while nothing is asked.
    pub(crate) fn ping(&mut self, out: &mut Vec<u8>) {
        if self.greeted {
            framed(out, |out| {
                int(out, PING_XID);
                int(out, opcode::PING);
            });
        }
    }

    /// Ends the session, so that the server need not wait for its timeout.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if self.greeted {
            let xid = self.next_xid;
            framed(out, |out| {
                int(out, xid);
                int(out, opcode::CLOSE);
            });
        }
    }

    /// Takes one packet from the front of `input`, if a whole one is there.
    pub(crate) fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, Broken> {
        let Some(length) = input.first_chunk().map(|length| i32::from_be_bytes(*length)) else {
            return Ok(Step::Incomplete);
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= FRAME_BYTES_MAX);
        let length = length.ok_or_else(|| Broken("a packet of an impossible length".to_string()))?;
        let Some(mut packet) = input.get(4..4 + length) else { return Ok(Step::Incomplete) };
        let consumed = 4 + length;
        if !self.greeted {
            return self.greeting(packet, consumed);
        }
        let cut = || Broken("an answer that is cut".to_string());
        let (xid, _zxid) = (take_int(&mut packet).ok_or_else(cut)?, take_long(&mut packet).ok_or_else(cut)?);
        let error = take_int(&mut packet).ok_or_else(cut)?;
        match xid {
            PING_XID => Ok(Step::Taken { consumed }),
            EVENT_XID => {
                let (kind, _state) = (take_int(&mut packet).ok_or_else(cut)?, take_int(&mut packet).ok_or_else(cut)?);
                let path = take_bytes(&mut packet).ok_or_else(cut)?;
                Ok(Step::Event { consumed, kind, path })
            }
            xid => match self.waiting.pop_front() {
                Some((expected, tag)) if expected == xid => {
                    Ok(Step::Answered { consumed, tag, answer: Answer::Reply { error, body: packet } })
                }
                expected => {
                    let expected = expected.map(|(xid, _)| xid);
                    Err(Broken(format!("request {xid} was answered, {expected:?} was next")))
                }
            },
        }
    }

    fn greeting<'a>(&mut self, mut packet: &[u8], consumed: usize) -> Result<Step<'a>, Broken> {
        let mut read = || Some((take_int(&mut packet)?, take_int(&mut packet)?, take_long(&mut packet)?));
        match read() {
            Some((_, _, session)) if session != 0 => {
                self.greeted = true;
                Ok(Step::Opened { consumed })
            }
            Some(_) => Err(Broken("the server gave no session".to_string())),
            None => Err(Broken("a greeting that is cut".to_string())),
        }
    }
}

fn framed(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    int(out, 0);
    body(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a number.
pub(crate) fn int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes a long number.
pub(crate) fn long(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Writes bytes with their length in front; strings are written so too.
pub(crate) fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    int(out, value.len() as i32);
    out.extend_from_slice(value);
}

/// Takes a number from the front.
pub(crate) fn take_int(bytes: &mut &[u8]) -> Option<i32> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(i32::from_be_bytes(*first))
}

/// Takes a long number from the front.
pub(crate) fn take_long(bytes: &mut &[u8]) -> Option<i64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(i64::from_be_bytes(*first))
}

/// Takes bytes with their length in front; those without a value are empty.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_int(bytes)?).unwrap_or(0);
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeted() -> Connection {
        let mut connection = Connection::new(10_000, &mut Vec::new());
        let mut answer = Vec::new();
        framed(&mut answer, |out| {
            int(out, 0);
            int(out, 10_000);
            long(out, 7);
            bytes(out, &[1; 16]);
        });
        assert!(matches!(connection.step(&answer), Ok(Step::Opened { consumed }) if consumed == answer.len()));
        connection
    }

    fn reply(xid: i32, error: i32) -> Vec<u8> {
        let mut answer = Vec::new();
        framed(&mut answer, |out| {
            int(out, xid);
            long(out, 9);
            int(out, error);
        });
        answer
    }

    /// An answer taken for that of another request would be counted with a wrong latency, or as a success.
    #[test]
    fn answers_go_to_their_requests_and_no_other_order_passes() {
        let (mut connection, mut out) = (greeted(), Vec::new());
        connection.ask(&mut out, 70, opcode::EXISTS, |_| {});
        connection.ask(&mut out, 71, opcode::EXISTS, |_| {});
        let first = reply(1, -101);
        let got = connection.step(&first).unwrap();
        assert!(matches!(got, Step::Answered { tag: 70, answer: Answer::Reply { error: -101, .. }, .. }));
        assert!(matches!(connection.step(&reply(PING_XID, 0)), Ok(Step::Taken { .. })));
        assert!(connection.step(&reply(3, 0)).is_err());
    }

    /// Bytes that are cut wait for more; lengths that cannot be end the connection.
    #[test]
    fn cut_packets_wait_and_impossible_ones_are_refused() {
        let mut connection = greeted();
        assert!(matches!(connection.step(&[0, 0]), Ok(Step::Incomplete)));
        assert!(matches!(connection.step(&reply(1, 0)[..9]), Ok(Step::Incomplete)));
        assert!(connection.step(&[0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(connection.step(&[0, 0, 0, 2, 1, 2]).is_err());
        assert!(Connection::new(1, &mut Vec::new()).step(&[0, 0, 0, 0]).is_err());
    }

    proptest::proptest! {
        /// Whatever bytes come, the answer is a value.
        #[test]
        fn no_bytes_make_the_reader_panic(input: Vec<u8>) {
            let _ = greeted().step(&input);
            let _ = Connection::new(1, &mut Vec::new()).step(&input);
        }
    }
}
