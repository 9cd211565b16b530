//! Sessions: leases with a memory of first answers.
//!
//! A session's id is made of where in the log it was opened and is never given out twice (S2). Beside its lease lies
//! the memory of what it was answered and has not acknowledged: a request that comes again gets the first answer and
//! has no second effect (H25). Nothing is forgotten that was not acknowledged; a client that acknowledges too little
//! is refused more, so the memory is bounded. It is kept in its byte form: most sessions have one short answer in it.
//!
//! With each answer lies a fingerprint of what was asked: a number that comes again with another request is a client's
//! mistake, and the answer to the first would be a lie to the second. It stands after the outcome, since answers in
//! snapshots up to version 4 have none; those are given whatever is asked.
//!
//! ```text
//! session = owner:text  acknowledged:varint  (number - acknowledged:varint  answer:bytes)*
//! answer  = outcome  fingerprint:4 (since version 5)
//! ```

use bytes::Bytes;
use tidelock_model::limits::{
    AUTH_NAME_BYTES_MAX, BATCH_COMMANDS_MAX, COMMAND_BYTES_MAX, NATIVE_TTL_MS_MAX, NATIVE_TTL_MS_MIN,
    NATIVE_UNACKNOWLEDGED_MAX,
};
use tidelock_model::native_keys::{SESSION_TOP, is_session};
use tidelock_model::{
    Answer, Caller, Command, DecodeError, LeaseId, NativeAnswer, NativeCommand, NativeError, Need, Outcome, Reader,
    Refusal, Wire, put_bytes, put_varint,
};

use xxhash_rust::xxh3::xxh3_64;

use crate::State;
use crate::apply::Effects;
use crate::digest::LiveSum;
use crate::lease::ByLease;
use tidelock_tree::Tree;

/// Bits for the place within an entry: as many as an entry may hold commands.
const PLACE_BITS: u32 = BATCH_COMMANDS_MAX.ilog2();

/// Which request of which session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestNumber {
    pub(crate) session: LeaseId,
    pub(crate) number: u64,
    pub(crate) acknowledged: u64,
    /// Of what is asked.
    pub(crate) fingerprint: u32,
}

impl RequestNumber {
    pub(crate) fn of(command: &Command, scratch: &mut Vec<u8>) -> Option<RequestNumber> {
        let Command::Native(NativeCommand::Request(request)) = command else { return None };
        scratch.clear();
        request.op.encode(scratch);
        Some(RequestNumber {
            session: request.session,
            number: request.number,
            acknowledged: request.acknowledged,
            // Half of it is enough: it finds mistakes, and who looks for a collision fools nobody but itself.
            fingerprint: xxh3_64(scratch) as u32,
        })
    }
}

/// What is remembered of one session, read where it lies: every request asks three times, and mostly for a few bytes.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    owner: &'a [u8],
    /// The client has the answers to all requests up to this one.
    pub(super) acknowledged: u64,
    /// The other answers, in the order they were given.
    answers: &'a [u8],
}

impl<'a> Memory<'a> {
    /// Of bytes that were written here or went through [`check_form`]: they are what they should be.
    fn of(mut bytes: &'a [u8]) -> Memory<'a> {
        let owner = take_bytes(&mut bytes).unwrap_or_default();
        let acknowledged = take_varint(&mut bytes).unwrap_or_default();
        Memory { owner, acknowledged, answers: bytes }
    }

    pub(super) fn owner(self) -> &'a str {
        std::str::from_utf8(self.owner).unwrap_or_default()
    }

    /// The answers to requests after this one, each with its number.
    fn answers_after(self, after: u64) -> impl Iterator<Item = (u64, &'a [u8])> {
        let mut rest = self.answers;
        let answers = std::iter::from_fn(move || {
            let number = self.acknowledged.checked_add(take_varint(&mut rest)?)?;
            Some((number, take_bytes(&mut rest)?))
        });
        answers.filter(move |(number, _)| *number > after)
    }

    /// Up to where the client has all answers, once it says so with request `number`.
    fn acknowledged_with(self, number: u64, acknowledged: u64) -> u64 {
        self.acknowledged.max(acknowledged.min(number - 1))
    }

    /// Appends the byte form with one answer more, which is all that `out` holds before, and without those up to
    /// `acknowledged`.
    fn put_with_answer(self, acknowledged: u64, number: u64, out: &mut Vec<u8>) {
        let answer = 0..out.len();
        put_bytes(out, self.owner);
        put_varint(out, acknowledged);
        for (number, answer) in self.answers_after(acknowledged) {
            put_varint(out, number - acknowledged);
            put_bytes(out, answer);
        }
        put_varint(out, number - acknowledged);
        put_varint(out, answer.len() as u64);
        out.extend_from_within(answer);
    }
}

/// The byte form of a memory without answers.
fn new_memory(owner: &str) -> Kept {
    let mut out = Vec::with_capacity(owner.len() + 2);
    put_bytes(&mut out, owner.as_bytes());
    put_varint(&mut out, 0);
    Kept::of(&out)
}

/// Bytes of a memory up to which it needs no place of its own: one short answer fits, which is what most sessions have.
const SHORT_MAX: usize = 30;

/// The byte form of a memory, where it is kept.
enum Kept {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<[u8]>),
}

impl Kept {
    fn of(memory: &[u8]) -> Kept {
        let mut bytes = [0; SHORT_MAX];
        match bytes.get_mut(..memory.len()) {
            Some(short) => {
                short.copy_from_slice(memory);
                // At most 30.
                Kept::Short { len: memory.len() as u8, bytes }
            }
            None => Kept::Long(memory.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Kept::Short { len, bytes } => &bytes[..usize::from(*len)],
            Kept::Long(bytes) => bytes,
        }
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (byte, shift) in bytes.iter().zip((0..u64::BITS).step_by(7)) {
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            *bytes = &bytes[shift as usize / 7 + 1..];
            return Some(number);
        }
    }
    None
}

fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_varint(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Whether bytes from outside are the memory of a session, in its only spelling and within its bounds.
fn check_form(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut input = Reader::new(Bytes::copy_from_slice(bytes));
    input.text(AUTH_NAME_BYTES_MAX)?;
    let acknowledged = input.varint()?;
    let mut answers = 0;
    while input.remaining() > 0 {
        acknowledged.checked_add(input.varint()?).ok_or(DecodeError::BadNumber)?;
        if answers >= NATIVE_UNACKNOWLEDGED_MAX {
            return Err(DecodeError::TooLarge { what: "the number of answers" });
        }
        input.short_bytes(COMMAND_BYTES_MAX)?;
        answers += 1;
    }
    Ok(())
}

/// All sessions, by id: new ones come last.
pub(crate) struct Sessions(Tree<ByLease<Kept>>);

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions(Tree::new())
    }

    pub(super) fn get(&self, id: LeaseId) -> Option<Memory<'_>> {
        self.0.get(id).map(|(_, kept)| Memory::of(kept.as_bytes()))
    }

    fn contains(&self, id: LeaseId) -> bool {
        self.0.get(id).is_some()
    }

    /// The ids after `id`, ascending.
    pub(super) fn after(&self, id: LeaseId) -> impl Iterator<Item = LeaseId> + '_ {
        self.0.iter_from(LeaseId(id.0.saturating_add(1))).map(|(id, _)| *id)
    }

    /// All of them in their byte form: for snapshots and the digest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeaseId, &[u8])> + '_ {
        self.0.iter_from(LeaseId(i64::MIN)).map(|(id, kept)| (*id, kept.as_bytes()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts back what a snapshot has of a session.
    pub(crate) fn load(&mut self, id: LeaseId, bytes: &[u8]) -> Result<(), DecodeError> {
        check_form(bytes)?;
        self.0.insert(id, (id, Kept::of(bytes)));
        Ok(())
    }

    fn open(&mut self, id: LeaseId, memory: Kept, sum: &mut LiveSum) {
        sum.add_session(id, memory.as_bytes());
        let before = self.0.insert(id, (id, memory));
        assert!(before.is_none(), "an id is never given out twice (S2)");
    }

    /// Gives a session another memory, in the place of the one it has if that is as long.
    fn replace(&mut self, id: LeaseId, bytes: &[u8], sum: &mut LiveSum) {
        let Some((_, kept)) = self.0.get_mut(id) else { return };
        sum.subtract_session(id, kept.as_bytes());
        sum.add_session(id, bytes);
        match kept {
            Kept::Long(kept) if kept.len() == bytes.len() => kept.copy_from_slice(bytes),
            kept => *kept = Kept::of(bytes),
        }
    }

    /// Forgets a session, if it is one.
    pub(crate) fn end(&mut self, id: LeaseId, sum: &mut LiveSum) {
        if let Some((_, before)) = self.0.remove(id) {
            sum.subtract_session(id, before.as_bytes());
        }
    }

    /// Whether a request may be carried out. One that was answered is not asked about here any more.
    pub(super) fn check(&self, session: LeaseId, number: u64, acknowledged: u64) -> Result<(), NativeError> {
        let memory = self.get(session).ok_or(NativeError::UnknownSession)?;
        if number <= memory.acknowledged {
            return Err(NativeError::RequestForgotten { acknowledged: memory.acknowledged });
        }
        let kept = memory.answers_after(memory.acknowledged_with(number, acknowledged)).count();
        let is_full = kept >= NATIVE_UNACKNOWLEDGED_MAX;
        if is_full { Err(NativeError::TooManyUnacknowledged) } else { Ok(()) }
    }

    /// What a request was answered when it came first, or that it was another that had its number.
    fn first_answer(&self, request: RequestNumber) -> Option<Result<Outcome, NativeError>> {
        let mut answers = self.get(request.session)?.answers_after(0);
        let (_, answer) = answers.find(|(number, _)| *number == request.number)?;
        let mut input = Reader::new(Bytes::copy_from_slice(answer));
        let outcome = Outcome::decode(&mut input).ok()?;
        let mut fingerprint = [0; 4];
        let is_kept = input.remaining() == fingerprint.len();
        for byte in fingerprint.iter_mut().filter(|_| is_kept) {
            *byte = input.byte().ok()?;
        }
        let is_another = is_kept && u32::from_le_bytes(fingerprint) != request.fingerprint;
        Some(if is_another { Err(NativeError::NumberReused) } else { Ok(outcome) })
    }
}

/// Whether an answer is one that a retry must get again. Others say that the request was not looked at.
fn is_final(outcome: &Outcome) -> bool {
    match &outcome.result {
        Ok(_) => true,
        Err(Refusal::Native(error)) => !matches!(
            error,
            NativeError::UnknownSession | NativeError::RequestForgotten { .. } | NativeError::TooManyUnacknowledged
        ),
        Err(_) => false,
    }
}

pub(super) fn check_ttl(ttl_ms: u32) -> Result<(), NativeError> {
    let fits = (NATIVE_TTL_MS_MIN..=NATIVE_TTL_MS_MAX).contains(&ttl_ms);
    if fits { Ok(()) } else { Err(NativeError::TtlOutOfRange) }
}

/// Late is allowed, early never: the lease lives as long as the session at least (L1).
pub(super) fn ttl_s(ttl_ms: u32) -> u32 {
    ttl_ms.div_ceil(1000)
}

impl State {
    /// The first answer to a request that comes again; a refusal to another request with its number.
    pub(crate) fn first_native_answer(&self, request: RequestNumber) -> Option<Outcome> {
        let refused =
            |error| Outcome { revision: self.revision, index: self.applied, result: Err(Refusal::Native(error)) };
        self.sessions.first_answer(request).map(|first| first.unwrap_or_else(refused))
    }

    /// Remembers the answer to a request, and forgets those that were acknowledged with it.
    pub(crate) fn remember_native_answer(&mut self, request: RequestNumber, outcome: &Outcome) {
        if !is_final(outcome) {
            return;
        }
        let Some(memory) = self.sessions.get(request.session) else { return };
        let acknowledged = memory.acknowledged_with(request.number, request.acknowledged);
        debug_assert!(
            memory.answers_after(acknowledged).count() < NATIVE_UNACKNOWLEDGED_MAX,
            "room was asked for before"
        );
        let bytes = &mut self.scratch;
        bytes.clear();
        outcome.encode(bytes);
        bytes.extend_from_slice(&request.fingerprint.to_le_bytes());
        let answer_len = bytes.len();
        memory.put_with_answer(acknowledged, request.number, bytes);
        self.sessions.replace(request.session, &self.scratch[answer_len..], &mut self.live_sum);
    }

    /// The user a session belongs to; nobody's if there is none.
    pub(crate) fn native_owner(&self, session: LeaseId) -> Option<String> {
        self.sessions.get(session).map(|memory| memory.owner().to_owned())
    }

    pub(super) fn open_native(&mut self, ttl_ms: u32, owner: &str, effects: &mut Effects) -> Result<Answer, Refusal> {
        check_ttl(ttl_ms)?;
        let place = effects.applied.len() as u64;
        let session = LeaseId(SESSION_TOP | (self.applied.0 << PLACE_BITS | place) as i64 & ((1 << 56) - 1));
        // Refused if a client of etcd chose this very id for a lease: the next try gets another.
        self.grant_lease(session, ttl_s(ttl_ms), effects)?;
        self.sessions.open(session, new_memory(owner), &mut self.live_sum);
        Ok(Answer::Native(NativeAnswer::Opened { session, ttl_ms }))
    }

    pub(super) fn close_native(&mut self, session: LeaseId, effects: &mut Effects) -> Result<Answer, Refusal> {
        if self.sessions.contains(session) {
            self.end_leases(&[session], effects);
        } else if !self.may_have_ended(session) {
            return Err(NativeError::UnknownSession.into());
        }
        Ok(Answer::Native(NativeAnswer::Done))
    }

    /// Whether a session that is not there may be one that was. Nothing is remembered of what is over, but an id says
    /// where in the log its session was opened. So a client that lost the answer to its close and asks again is told
    /// that it is over; an id that was never given out is still a mistake.
    fn may_have_ended(&self, session: LeaseId) -> bool {
        let opened_at = (session.0 & ((1 << 56) - 1)) as u64 >> PLACE_BITS;
        is_session(session) && (1..=self.applied.0).contains(&opened_at) && !self.has_lease(session)
    }

    /// The outcome, unless it tells of a session that is not the caller's to use. Then the number that it was asked for
    /// with is taken: a session in its place could be told to neither of the two when they ask again.
    pub(crate) fn unless_anothers_session(&self, caller: &Caller, outcome: Outcome) -> Outcome {
        let Ok(Answer::Native(NativeAnswer::Opened { session, .. })) = outcome.result else { return outcome };
        match self.authorise(caller, |needs| needs.push(Need::Session(session))) {
            Ok(()) => outcome,
            Err(_) => Outcome {
                revision: self.revision,
                index: self.applied,
                result: Err(Refusal::Native(NativeError::NumberReused)),
            },
        }
    }

    /// Whether an outcome says that a session was opened which is over: no answer to who asks for one now.
    pub(crate) fn tells_of_an_ended_session(&self, outcome: &Outcome) -> bool {
        matches!(
            &outcome.result,
            Ok(Answer::Native(NativeAnswer::Opened { session, .. })) if !self.sessions.contains(*session)
        )
    }
}
