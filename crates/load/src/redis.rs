//! The client's half of Redis' protocol (RESP 2), as bytes in and out: no sockets, no clock.
//!
//! A request is an array of strings. Requests are answered in their order; many may be on their way. The first is a PING:
//! its answer says that the server serves, which one that still loads its file does not. An answer nobody waits for, an
//! array, or a string of an impossible length ends the connection: nothing that is sent here is answered so.

use std::collections::VecDeque;

use crate::lines::{Answer, Broken, Step, Tag};

/// The largest string we take; names, numbers and digests of scripts are all that is asked for.
const STRING_BYTES_MAX: usize = 1 << 20;
/// The longest line: a status, a number, or the words of an error.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What Redis answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A status such as OK.
    Status(&'a [u8]),
    /// An error, in the server's words.
    Error(&'a [u8]),
    /// A number.
    Number(i64),
    /// A string.
    Text(&'a [u8]),
    /// Nothing: there is no such key, or a condition did not hold.
    Nothing,
}

impl Value<'_> {
    /// For messages about answers that were not expected.
    pub(crate) fn words(self) -> String {
        match self {
            Value::Status(text) | Value::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
            Value::Error(text) => format!("the error {:?}", String::from_utf8_lossy(text)),
            Value::Number(number) => number.to_string(),
            Value::Nothing => "nothing".to_string(),
        }
    }
}

/// One connection.
pub(crate) struct Connection {
    waiting: VecDeque<Tag>,
    greeted: bool,
}

impl Connection {
    pub(crate) fn new(out: &mut Vec<u8>) -> Connection {
        write(out, &[b"PING"]);
        Connection { waiting: VecDeque::new(), greeted: false }
    }

    /// The requests without an answer.
    pub(crate) fn unanswered(&self) -> Vec<Tag> {
        self.waiting.iter().copied().collect()
    }

    pub(crate) fn command(&mut self, out: &mut Vec<u8>, tag: Tag, words: &[&[u8]]) {
        self.waiting.push_back(tag);
        write(out, words);
    }

    /// Takes one answer from the front of `input`, if a whole one is there.
    pub(crate) fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, Broken> {
        let Some((consumed, value)) = value(input)? else { return Ok(Step::Incomplete) };
        if !self.greeted {
            if value != Value::Status(b"PONG") {
                return Err(Broken(format!("a PING was answered with {}", value.words())));
            }
            self.greeted = true;
            return Ok(Step::Opened { consumed });
        }
        let tag = self.waiting.pop_front();
        let tag = tag.ok_or_else(|| Broken(format!("an answer nobody waits for: {}", value.words())))?;
        Ok(Step::Answered { consumed, tag, answer: Answer::Value(value) })
    }
}

fn write(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The value at the front of `input` and the bytes it takes, if it is there as a whole.
fn value(input: &[u8]) -> Result<Option<(usize, Value<'_>)>, Broken> {
    let Some(end) = input.windows(2).take(LINE_BYTES_MAX).position(|two| two == b"\r\n") else {
        let too_long = input.len() > LINE_BYTES_MAX;
        return if too_long { Err(Broken("a line without an end".to_string())) } else { Ok(None) };
    };
    let (line, after) = (&input[..end], end + 2);
    let Some((kind, rest)) = line.split_first() else { return Err(Broken("an empty line".to_string())) };
    let number = || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok());
    let value = match kind {
        b'+' => Value::Status(rest),
        b'-' => Value::Error(rest),
        b':' => Value::Number(number().ok_or_else(|| Broken("a number that is none".to_string()))?),
        b'$' if number() == Some(-1) => Value::Nothing,
        b'$' => {
            let length = number().and_then(|length| usize::try_from(length).ok());
            let length = length.filter(|length| *length <= STRING_BYTES_MAX);
            let length = length.ok_or_else(|| Broken("a string of an impossible length".to_string()))?;
            let Some(text) = input.get(after..after + length + 2) else { return Ok(None) };
            let text = text.strip_suffix(b"\r\n").ok_or_else(|| Broken("a string without an end".to_string()))?;
            return Ok(Some((after + length + 2, Value::Text(text))));
        }
        _ => return Err(Broken(format!("an answer that begins with byte {kind}"))),
    };
    Ok(Some((after, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeted() -> Connection {
        let mut out = Vec::new();
        let mut connection = Connection::new(&mut out);
        assert_eq!(out, b"*1\r\n$4\r\nPING\r\n");
        assert!(matches!(connection.step(b"+PONG\r\n"), Ok(Step::Opened { consumed: 7 })));
        connection
    }

    /// A refused lock taken for a granted one would count cycles that never were.
    #[test]
    fn answers_go_to_their_requests_in_order_and_nothing_is_not_a_success() {
        let (mut connection, mut out) = (greeted(), Vec::new());
        connection.command(&mut out, 70, &[b"SET", b"a b", b"\r\n"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$2\r\n\r\n\r\n");
        for tag in 71..74 {
            connection.command(&mut out, tag, &[b"GET"]);
        }
        for (input, tag, value) in [
            (&b"$-1\r\n+OK\r\n"[..], 70, Value::Nothing),
            (b"+OK\r\n", 71, Value::Status(b"OK")),
            (b":1\r\n", 72, Value::Number(1)),
            (b"$3\r\na\r\n\r\n", 73, Value::Text(b"a\r\n")),
        ] {
            match connection.step(input) {
                Ok(Step::Answered { tag: got, answer: Answer::Value(answer), .. }) => {
                    assert_eq!((got, answer), (tag, value));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(connection.step(b"+OK\r\n").is_err(), "nobody waits for it");
    }

    /// Bytes that are cut wait for more; what cannot be ends the connection.
    #[test]
    fn cut_answers_wait_and_impossible_ones_are_refused() {
        let mut connection = greeted();
        for cut in [&b""[..], b"+", b"$3\r\nab", b"$3\r\nabc\r", b":12\r"] {
            assert!(matches!(connection.step(cut), Ok(Step::Incomplete)), "{cut:?}");
        }
        for broken in [&b"\r\n"[..], b"$99999999999\r\n", b"$-2\r\n", b"$1\r\nabc", b":x\r\n", b"*1\r\n", b"hello\r\n"]
        {
            assert!(connection.step(broken).is_err(), "{broken:?}");
        }
        assert!(connection.step(&vec![b'+'; LINE_BYTES_MAX + 1]).is_err());
        let loading = Connection::new(&mut Vec::new()).step(b"-LOADING Redis is loading\r\n").map(|_| ());
        assert!(loading.is_err_and(|Broken(why)| why.contains("LOADING")));
    }

    proptest::proptest! {
        /// Whatever bytes come, the answer is a value.
        #[test]
        fn no_bytes_make_the_reader_panic(input: Vec<u8>) {
            let _ = greeted().step(&input);
            let _ = Connection::new(&mut Vec::new()).step(&input);
        }
    }
}
