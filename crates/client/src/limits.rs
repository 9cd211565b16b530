//! What no node takes, refused before it is sent.
//!
//! A node ends the whole stream over a message that is too large, and all that was under way with it. So names and data
//! are measured here, by the cluster's own bounds: the answer is the one that the cluster would give, and everything
//! else that the client holds stays as it is.

use tidelock_native_api::v1::request::Op;

use crate::error::{Code, Error, REQUEST_BYTES_MAX, Refusal};

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 512;
/// Most bytes that go with a place or a version.
const DATA_BYTES_MAX: usize = 4096;

/// Whether a request has a size, names and data as the cluster takes them.
pub(crate) fn check(op: &Op) -> Result<(), Error> {
    let bytes = op.encoded_len();
    if bytes > REQUEST_BYTES_MAX {
        return Err(Error::too_large(bytes));
    }
    for text in names_of(op) {
        name(text)?;
    }
    match data_of(op) {
        Some(bytes) if bytes > DATA_BYTES_MAX => {
            Err(mistaken(format!("{bytes} bytes of data are more than {DATA_BYTES_MAX}; keep a reference instead")))
        }
        _ => Ok(()),
    }
}

/// Whether a text can be a name.
pub(crate) fn name(text: &str) -> Result<(), Error> {
    match text.len() {
        1..=NAME_BYTES_MAX if !text.as_bytes().contains(&0) => Ok(()),
        1..=NAME_BYTES_MAX => Err(mistaken("a name has no zero bytes".into())),
        bytes => Err(mistaken(format!("a name has 1 to {NAME_BYTES_MAX} bytes, and this one has {bytes}"))),
    }
}

fn mistaken(message: String) -> Error {
    Error::Refused(Refusal { code: Code::Mistaken, message, numbers: Default::default() })
}

/// The names in a request. Every kind of request is listed, so that a new one is not forgotten.
fn names_of(op: &Op) -> Vec<&str> {
    let (name, other) = match op {
        Op::Acquire(op) => (&op.name, None),
        Op::Campaign(op) => (&op.name, None),
        Op::Release(op) => (&op.name, None),
        Op::GiveUp(op) => (&op.name, None),
        Op::Resign(op) => (&op.name, None),
        Op::Downgrade(op) => (&op.name, None),
        Op::Proclaim(op) => (&op.name, None),
        Op::Renew(op) => (&op.name, None),
        Op::Resize(op) => (&op.name, None),
        Op::Enter(op) => (&op.name, None),
        Op::Leave(op) => (&op.name, None),
        Op::SetLatch(op) => (&op.name, None),
        Op::Pledge(op) => (&op.name, None),
        Op::CountDown(op) => (&op.name, None),
        Op::Register(op) => (&op.name, Some(&op.parent).filter(|parent| !parent.is_empty())),
        Op::Arrive(op) => (&op.name, None),
        Op::Add(op) => (&op.name, op.fencing.as_ref().map(|fencing| &fencing.fence)),
        Op::CompareAndSet(op) => (&op.name, op.fencing.as_ref().map(|fencing| &fencing.fence)),
        Op::Admit(op) => (&op.fence, None),
        Op::Publish(op) => (&op.name, op.fencing.as_ref().map(|fencing| &fencing.fence)),
        Op::StartReading(op) => (&op.name, None),
        Op::Report(op) => (&op.name, None),
        Op::Protect(op) => (&op.name, None),
        Op::Retire(op) => (&op.name, None),
        Op::Forget(op) => (&op.name, None),
        Op::Write(op) => return op.guards.iter().map(|guard| guard.name.as_str()).collect(),
    };
    std::iter::once(name).chain(other).map(String::as_str).collect()
}

fn data_of(op: &Op) -> Option<usize> {
    match op {
        Op::Acquire(op) => Some(op.data.len()),
        Op::Campaign(op) => Some(op.data.len()),
        Op::Proclaim(op) => Some(op.data.len()),
        Op::Publish(op) => Some(op.data.len()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_native_api::v1;

    fn is_refused(op: &Op) -> bool {
        check(op).is_err_and(|error| error.code() == Some(Code::Mistaken))
    }

    /// A name that only the server refuses may be too large for it to read, and ends the stream.
    #[test]
    fn names_that_are_too_long_are_refused_wherever_they_stand() {
        let fencing = |fence: &str| Some(v1::Fencing { fence: fence.into(), token: 1 });
        let name = || "n".to_owned();
        let guard = |name: &str| v1::TokenGuard { name: name.into(), ..Default::default() };
        let cases: [&dyn Fn(&str) -> Op; 7] = [
            &|text| Op::Pledge(v1::Pledge { name: text.into() }),
            &|text| Op::Admit(v1::Admit { fence: text.into(), token: 1 }),
            &|text| Op::Add(v1::Add { name: name(), delta: 1, fencing: fencing(text) }),
            &|text| {
                Op::CompareAndSet(v1::CompareAndSet { name: name(), expected: 0, value: 1, fencing: fencing(text) })
            },
            &|text| Op::Publish(v1::Publish { name: name(), data: Default::default(), fencing: fencing(text) }),
            &|text| Op::Write(v1::Write { guards: vec![guard("n"), guard(text)], ..Default::default() }),
            &|text| Op::Register(v1::Register { name: name(), parent: text.into(), ..Default::default() }),
        ];
        for (number, op) in cases.into_iter().enumerate() {
            assert_eq!(check(&op(&"x".repeat(512))), Ok(()), "case {number}");
            assert!(is_refused(&op(&"x".repeat(513))), "case {number}");
            assert!(is_refused(&op("a\0b")), "case {number}");
            // A phaser need not have a parent.
            assert_eq!(is_refused(&op("")), !matches!(op(""), Op::Register(_)), "case {number}");
        }
    }

    /// The same for what goes with a name, and for all of it together.
    #[test]
    fn data_and_requests_that_are_too_large_are_refused() {
        let name = || "n".to_owned();
        let cases: [&dyn Fn(Vec<u8>) -> Op; 4] = [
            &|data| Op::Acquire(v1::Acquire { name: name(), data: data.into(), ..Default::default() }),
            &|data| Op::Campaign(v1::Campaign { name: name(), data: data.into(), ..Default::default() }),
            &|data| Op::Proclaim(v1::Proclaim { name: name(), token: 1, data: data.into() }),
            &|data| Op::Publish(v1::Publish { name: name(), data: data.into(), fencing: None }),
        ];
        for (number, op) in cases.into_iter().enumerate() {
            assert_eq!(check(&op(vec![0; 4096])), Ok(()), "case {number}");
            assert!(is_refused(&op(vec![0; 4097])), "case {number}");
        }
        let write = |bytes: usize| Op::Write(v1::Write { deletes: vec![vec![0; bytes].into()], ..Default::default() });
        assert_eq!(check(&write(60_000)), Ok(()));
        assert!(is_refused(&write(REQUEST_BYTES_MAX)));
    }
}
