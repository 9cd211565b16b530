//! Messages as gRPC puts them into bodies, and the deadline as it puts it into a header.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// A flag, which says whether the message is compressed, and a length stand before every message.
pub const PREFIX_BYTES: usize = 5;

/// A message in its frame.
#[must_use]
pub fn frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("messages are bounded far below 4 GiB");
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(length);
    framed.put_slice(message);
    framed.freeze()
}

/// A message with what stands before it.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    message.encode_raw(&mut out);
    out.freeze()
}

/// The one message in a body; nothing if it is not just that.
#[must_use]
pub fn one_message(body: &Bytes, bytes_max: usize) -> Option<Bytes> {
    let [flag, length @ ..] = *body.first_chunk::<PREFIX_BYTES>()?;
    let length = u32::from_be_bytes(length) as usize;
    let is_one = flag == 0 && length == body.len() - PREFIX_BYTES && length <= bytes_max;
    is_one.then(|| body.slice(PREFIX_BYTES..))
}

/// Takes the first message off the front of what was read, if all of it is there.
pub fn take_message(unread: &mut BytesMut) -> Option<Bytes> {
    let length = unread.get(1..PREFIX_BYTES)?.get_u32() as usize;
    if unread.len() < PREFIX_BYTES + length {
        return None;
    }
    unread.advance(PREFIX_BYTES);
    Some(unread.split_to(length).freeze())
}

/// `grpc-timeout`: up to eight digits and a unit. One that cannot be read counts as none, as it always did.
#[must_use]
pub fn time_given(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deadline misread by a factor of a thousand either cuts calls short or never ends them.
    #[test]
    fn deadlines_are_read_in_their_units() {
        let given = |text: &str| time_given(text.as_bytes());
        assert_eq!(given("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(given("3M"), Some(Duration::from_secs(180)));
        assert_eq!(given("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(given("250m"), Some(Duration::from_millis(250)));
        assert_eq!(given("7u"), Some(Duration::from_micros(7)));
        assert_eq!(given("1n"), Some(Duration::from_nanos(1)));
        for nonsense in ["", "S", "5", "5s", "-1S", "123456789S", "1.5S"] {
            assert_eq!(given(nonsense), None, "{nonsense}");
        }
    }

    /// The body of an answer arrives in pieces of any size, however the messages lie in them.
    #[test]
    fn messages_are_found_however_the_bytes_are_cut() {
        let messages: Vec<Vec<u8>> = vec![vec![], vec![1], vec![2; 300], vec![], vec![3; 70_000]];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message)).collect();
        for piece in [1, 3, 4096, bytes.len()] {
            let (mut unread, mut found) = (BytesMut::new(), Vec::new());
            for piece in bytes.chunks(piece) {
                unread.extend_from_slice(piece);
                while let Some(message) = take_message(&mut unread) {
                    found.push(message.to_vec());
                }
            }
            assert_eq!((found, unread.len()), (messages.clone(), 0));
        }
    }
}
