use super::*;
use crate::native::records::Place;
use crate::native::{GuardedWrite, KeyChange, KeyCondition, TokenGuard};
use crate::{Answer, Command, LogIndex, Outcome, Refusal, Revision};
use bytes::Bytes;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = Name> {
    "[^\0]{1,30}".prop_map(|text| Name::new(&text).unwrap())
}
fn data() -> impl Strategy<Value = Data> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Data::new(bytes.into()).unwrap())
}
fn kind() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|at| Kind::ALL[at])
}
fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), any::<u32>().prop_map(Mode::Permits)]
}
fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![Just(Wait::Try), any::<u32>().prop_map(Wait::Queue)]
}
fn on_death() -> impl Strategy<Value = OnDeath> {
    prop_oneof![Just(OnDeath::Shrink), Just(OnDeath::Break)]
}
fn fencing() -> impl Strategy<Value = Fencing> {
    (name(), any::<u64>()).prop_map(|(fence, token)| Fencing { fence, token })
}

fn write(name: Name, number: u64, data: &Data, flag: bool) -> GuardedWrite {
    let kind = if flag { Kind::Fence } else { Kind::Lock };
    let key = |name: &Name| crate::Key::new(crate::Space::User, name.as_str().as_bytes());
    let changes = vec![KeyChange { key: key(&name), value: flag.then(|| data.as_bytes().clone()) }];
    let conditions = vec![KeyCondition { key: key(&name), modified: number }];
    GuardedWrite::new(vec![TokenGuard { kind, name, token: number }], conditions, changes).unwrap()
}

fn op() -> impl Strategy<Value = NativeOp> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<i64>(), any::<i64>());
    let parts = (name(), data(), kind(), mode(), wait(), on_death(), any::<bool>());
    (0..26usize, numbers, parts, proptest::option::of(fencing())).prop_map(|(which, numbers, parts, fencing)| {
        let (a, b, small, i, j) = numbers;
        let (name, data, kind, mode, wait, on_death, flag) = parts;
        match which {
            0 => NativeOp::Acquire { name, mode, permits: small, wait, data },
            1 => NativeOp::Campaign { name, wait, data },
            2 => NativeOp::Release { kind, name, token: a },
            3 => NativeOp::GiveUp { kind, name, place: a },
            4 => NativeOp::Resign { name, token: a, successor: LeaseId(i) },
            5 => NativeOp::Downgrade { name, token: a },
            6 => NativeOp::Proclaim { name, token: a, data },
            7 => NativeOp::Renew { kind, name, token: a, ttl_ms: small },
            8 => NativeOp::Resize { name, permits: small },
            9 => NativeOp::Enter { name, parties: small, double: flag, on_death },
            10 => NativeOp::Leave { name, place: a },
            11 => NativeOp::SetLatch { name, count: a, on_death },
            12 => NativeOp::Pledge { name },
            13 => NativeOp::CountDown { name, by: a, pledge: b },
            14 => NativeOp::Register { parent: flag.then(|| name.clone()), name, parties: small, on_death },
            15 => NativeOp::Arrive { name, party: a, count: small, deregister: flag },
            16 => NativeOp::Add { name, delta: i, fencing },
            17 => NativeOp::CompareAndSet { name, expected: i, value: j, fencing },
            18 => NativeOp::Admit(Fencing { fence: name, token: a }),
            19 => NativeOp::Publish { name, data, fencing },
            20 => NativeOp::StartReading { name },
            21 => NativeOp::Report { name, reader: a, version: b },
            22 => NativeOp::Protect { name },
            23 => NativeOp::Retire { name },
            24 => NativeOp::Write(write(name, a, &data, flag)),
            _ => NativeOp::Forget { kind, name },
        }
    })
}

proptest! {
    /// What one node proposes is what every other carries out, byte for byte.
    #[test]
    fn commands_survive_the_round_trip(op in op(), session: i64, number: u64, acknowledged: u64, ttl_ms: u32) {
        let request = NativeRequest { session: LeaseId(session), number, acknowledged, op };
        let commands = [
            NativeCommand::Request(request),
            NativeCommand::Open { ttl_ms, owner: "someone".into() },
            NativeCommand::Close { session: LeaseId(session) },
        ];
        for command in commands {
            let command = Command::Native(command);
            prop_assert_eq!(Command::from_bytes(command.to_bytes().into()), Ok(command));
        }
    }

    /// A damaged or hostile entry must be refused, never panic or allocate for what is not there.
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), cut in 0usize..60, op in op()) {
        let _ = NativeCommand::from_bytes(bytes.clone().into());
        let _ = Stored::read(&bytes);
        let _ = Place::read(&bytes);
        let whole = op.to_bytes();
        if cut < whole.len() {
            prop_assert!(NativeOp::from_bytes(Bytes::copy_from_slice(&whole[..cut])).is_err());
        }
    }

    /// A place says of itself what it was given, and the holder's data is kept to the byte.
    #[test]
    fn places_survive_the_round_trip(mode in mode(), token: u64, moved_from: u64, data in data()) {
        let place = Place { mode, token, moved_from, data };
        prop_assert_eq!(Place::read(&place.write()), Some(place));
    }
}

/// H25: a first answer is kept for the retry, also in a snapshot: all of them must survive it.
#[test]
fn answers_and_errors_survive_the_round_trip() {
    use NativeError as E;
    let answers = [
        NativeAnswer::Done,
        NativeAnswer::Opened { session: LeaseId(7), ttl_ms: 5 },
        NativeAnswer::Place { place: 1, token: 2, ahead: 3 },
        NativeAnswer::Left { token: 9 },
        NativeAnswer::Entered { place: 1, generation: 2, missing: 3 },
        NativeAnswer::Leaving { generation: 1, inside: 2 },
        NativeAnswer::Pledged { pledge: 4 },
        NativeAnswer::Latch { left: 5 },
        NativeAnswer::Registered { party: 6, phase: 7 },
        NativeAnswer::Arrived { phase: 8, now: 9 },
        NativeAnswer::Counter { before: -5, after: i64::MIN },
        NativeAnswer::Version { reader: 1, version: 2, oldest: 1 },
        NativeAnswer::Protected { place: 3, epoch: 4 },
        NativeAnswer::Retired { epoch: 5, clear: true },
    ];
    let errors = [
        E::UnknownSession,
        E::RequestForgotten { acknowledged: 1 },
        E::TooManyUnacknowledged,
        E::BadName,
        E::DataTooLarge,
        E::TtlOutOfRange,
        E::WrongKind,
        E::Busy { token: 1 },
        E::QueueFull { waiting: 2 },
        E::TooManyHoldings,
        E::StaleToken { token: 3 },
        E::NotHolder { token: 4 },
        E::Fenced { token: 5, highest: 6 },
        E::ForgedToken { token: 7 },
        E::NoSuchPlace { place: 8 },
        E::NotFound,
        E::InUse,
        E::Differs { made: 9 },
        E::BadWeight { permits: 10 },
        E::BadCount,
        E::BarrierOpen,
        E::BarrierShut,
        E::Broken,
        E::AlreadyArrived { phase: 11 },
        E::NestedTooDeep,
        E::Overflow,
        E::Mismatch { actual: -12 },
        E::BadVersion { least: 13, most: 14 },
        E::Retiring { epoch: 15 },
        E::NoSuccessor,
        E::LatchOpen,
        E::BadWrite,
        E::KeyChanged { condition: 1, modified: 16 },
        E::NumberReused,
    ];
    let answers = answers.into_iter().map(|answer| Ok(Answer::Native(answer)));
    for result in answers.chain(errors.into_iter().map(|error| Err(Refusal::Native(error)))) {
        let outcome = Outcome { revision: Revision(11), index: LogIndex(12), result };
        assert_eq!(Outcome::from_bytes(outcome.to_bytes().into()), Ok(outcome));
    }
}

/// Names come from clients: a megabyte, nothing, or a byte that separates keys must not get into one.
#[test]
fn bad_names_are_refused_before_they_are_stored() {
    let too_long = "x".repeat(NATIVE_NAME_BYTES_MAX + 1);
    for bad in ["", "a\0b", &too_long, &"x".repeat(1 << 20)] {
        assert_eq!(Name::new(bad), Err(NativeError::BadName));
    }
    assert!(Name::new(&"x".repeat(NATIVE_NAME_BYTES_MAX)).is_ok());
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, too_long.as_bytes());
    assert!(Name::from_bytes(bytes.into()).is_err());
}

/// Pinned bytes: logs and stores of today must stay readable.
#[test]
fn old_bytes_stay_readable() {
    let name = Name::new("n").unwrap();
    let op = NativeOp::Release { kind: Kind::Lock, name: name.clone(), token: 300 };
    let request = NativeRequest { session: LeaseId(1), number: 2, acknowledged: 1, op };
    let bytes = Command::Native(NativeCommand::Request(request)).to_bytes();
    assert_eq!(bytes, [10, 3, 1, 2, 1, 3, b'L', 1, b'n', 0xac, 2]);
    let place = Place { mode: Mode::Permits(2), token: 300, moved_from: 0, data: Data::default() };
    assert_eq!(&place.write()[..], [2 | 4, 2, 0xac, 2]);
    let counter = Stored::Counter { value: -1 };
    assert_eq!(counter.to_bytes(), [8, 1]);
    assert_eq!(Stored::read(&[8, 1]), Some(counter));
    // Whether an object was being retired was a flag once.
    for (byte, stage) in [(0, HazardStage::Alive), (1, HazardStage::Retiring), (2, HazardStage::Retired)] {
        let hazard = Stored::Hazard { epoch: 300, stage };
        assert_eq!(hazard.to_bytes(), [12, 0xac, 2, byte]);
        assert_eq!(Stored::read(&[12, 0xac, 2, byte]), Some(hazard));
    }
    assert_eq!(Stored::read(&[12, 0xac, 2, 3]), None);
}
