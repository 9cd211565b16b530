//! What can go wrong, by what the caller can do about it.
//!
//! | Family | It means | What to do |
//! | --- | --- | --- |
//! | [`Error::Failed`] | it was not tried: nothing happened | mend the cause, or try again later |
//! | [`Error::Refused`] | the cluster said no: nothing happened | another way, another time, or a corrected request |
//! | [`Error::Lost`] | what was held is not held any more | stop working under that token at once |
//! | [`Error::Unknown`] | no answer: it may or may not have happened | look before asking anew |

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use tidelock_native_api::{ERROR_TRAILER, v1};

/// Most bytes of what a request says: nodes read messages of 65,536, and there is something around it.
pub(crate) const REQUEST_BYTES_MAX: usize = 65_536 - 256;

/// Why something was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing happened, since it could not be tried.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Nothing happened, since the cluster refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What was held is lost. Whatever is written under its token from now on must be rejected by fencing.
    #[error(transparent)]
    Lost(#[from] Loss),
    /// It was asked for and no answer came: it may or may not have happened. Places in queues and the like that such a
    /// request may have taken are given back in the background.
    #[error("no answer within {waited:?}; it may or may not have happened")]
    Unknown {
        /// How long an answer was waited for.
        waited: Duration,
    },
}

/// Why something could not be tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An endpoint, certificate or credential that cannot be used.
    #[error("{0}")]
    BadOption(String),
    /// No node answers.
    #[error("no node can be reached: {0}")]
    Unreachable(String),
    /// More was asked for at a time than the client keeps in line.
    #[error("too many requests wait to be sent")]
    Overloaded,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// A node answered something that the protocol does not have.
    #[error("a node answered what this client does not understand: {0}")]
    Protocol(String),
}

/// What the cluster refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: String,
    /// The figures of the message, by name: `actual` of [`Code::Mismatch`], `token` of [`Code::Busy`].
    pub numbers: BTreeMap<String, i64>,
}

/// Why the cluster refused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// It was not granted within the time the caller wanted to wait.
    TimedOut,
    /// Somebody has it, and the caller did not want to wait.
    Busy,
    /// Too many wait already.
    QueueFull,
    /// Parties are inside the barrier: come again when all have left.
    BarrierOpen,
    /// The barrier waits for others.
    BarrierShut,
    /// It exists and is in use.
    InUse,
    /// It was made with another number of permits or parties, or another rule.
    Differs,
    /// The counter has another value.
    Mismatch,
    /// A key is not as a condition of a write says.
    KeyChanged,
    /// These parties have arrived in this phase already.
    AlreadyArrived,
    /// The object is retired, or about to be.
    Retiring,
    /// The latch is open already.
    LatchOpen,
    /// Who was named to follow does not stand for the election.
    NoSuccessor,
    /// There is no such place.
    NoSuchPlace,
    /// There is nothing of that name.
    NotFound,
    /// This user may not do that.
    Denied,
    /// Something is full: space, holdings of a session.
    Bounded,
    /// The request itself is mistaken: a name, a number, a time to live.
    Mistaken,
    /// Something that this version of the client has no word for.
    Other,
}

/// How something was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// No renewal was acknowledged for 0.8 times the time to live: the cluster may have given it to another.
    #[error("not renewed in time: it may be another's by now")]
    Expired,
    /// The cluster ended the session: its time ran out, or somebody closed it.
    #[error("the session ended; nothing of it is held any more")]
    SessionEnded,
    /// The token is not current any more, or was never this session's.
    #[error("{0}")]
    Token(String),
    /// A participant went that the others counted on.
    #[error("broken: a participant went")]
    Broken,
}

impl Error {
    pub(crate) fn timed_out(what: &str, waited: Duration) -> Error {
        let message = format!("{what} was not granted within {waited:?}");
        Error::Refused(Refusal { code: Code::TimedOut, message, numbers: BTreeMap::new() })
    }

    /// For what would not even be read: a node ends the stream of a client that sends it.
    pub(crate) fn too_large(bytes: usize) -> Error {
        let message = format!("a request has at most {REQUEST_BYTES_MAX} bytes, and this one {bytes}");
        Error::Refused(Refusal { code: Code::Mistaken, message, numbers: BTreeMap::new() })
    }

    pub(crate) fn protocol(what: &str) -> Error {
        Error::Failed(Failure::Protocol(what.to_owned()))
    }

    /// The refusal's code, if it is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// Whether something is not held any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost(_))
    }
}

/// Whether the cluster had too much to do. Nothing was done, and it may be asked again after a pause.
pub(crate) fn is_overload(error: &v1::Error) -> bool {
    error.code == "OVERLOADED"
}

/// What a node's error means to whoever asked. `None`: it says nothing about the request, which may be asked again.
pub(crate) fn of_wire(error: &v1::Error) -> Option<Error> {
    use v1::error::Family;
    let is_no_answer = matches!(error.family(), Family::Unknown | Family::Unavailable);
    let may_be_asked_again = is_no_answer || is_overload(error) || error.code == "TOO_MANY_UNACKNOWLEDGED";
    (!may_be_asked_again).then(|| refusal(error))
}

/// What a node's error means to who does not ask again.
pub(crate) fn refusal(error: &v1::Error) -> Error {
    use v1::error::Family;
    let code = match (error.code.as_str(), error.family()) {
        ("UNKNOWN_SESSION", _) => return Loss::SessionEnded.into(),
        ("BROKEN", _) => return Loss::Broken.into(),
        (_, Family::Lost) => return Loss::Token(error.message.clone()).into(),
        ("BUSY", _) => Code::Busy,
        ("QUEUE_FULL", _) => Code::QueueFull,
        ("BARRIER_OPEN", _) => Code::BarrierOpen,
        ("BARRIER_SHUT", _) => Code::BarrierShut,
        ("IN_USE", _) => Code::InUse,
        ("DIFFERS", _) => Code::Differs,
        ("MISMATCH", _) => Code::Mismatch,
        ("KEY_CHANGED", _) => Code::KeyChanged,
        ("ALREADY_ARRIVED", _) => Code::AlreadyArrived,
        ("RETIRING", _) => Code::Retiring,
        ("LATCH_OPEN", _) => Code::LatchOpen,
        ("NO_SUCCESSOR", _) => Code::NoSuccessor,
        ("NO_SUCH_PLACE", _) => Code::NoSuchPlace,
        (_, Family::Absent) => Code::NotFound,
        (_, Family::Denied) => Code::Denied,
        (_, Family::Bounded) => Code::Bounded,
        (_, Family::Wrong) => Code::Mistaken,
        _ => Code::Other,
    };
    let numbers = error.numbers.iter().map(|(name, number)| (name.clone(), *number)).collect();
    Error::Refused(Refusal { code, message: error.message.clone(), numbers })
}

fn wire_error(status: &tonic::Status) -> Option<v1::Error> {
    let bytes = status.metadata().get_bin(ERROR_TRAILER)?.to_bytes().ok()?;
    v1::Error::decode(bytes).ok()
}

/// Why the cluster had too much to do, if that is why a call failed.
pub(crate) fn overload_of_status(status: &tonic::Status) -> Option<Error> {
    wire_error(status).filter(is_overload).map(|error| refusal(&error))
}

/// Whether a call that failed has certainly changed nothing. A node that could not be reached may have been reached after
/// all: only its own word counts, or that nobody listened there.
pub(crate) fn is_certainly_undone(status: &tonic::Status) -> bool {
    use v1::error::Family;
    match wire_error(status) {
        Some(error) => error.family() != Family::Unknown,
        None => of_status(status).is_some() || nobody_listened(status),
    }
}

/// Whether there was no connection to send the call on: an open one breaks in other ways.
fn nobody_listened(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What a failed call means. `None`: it may be asked again, here or elsewhere.
pub(crate) fn of_status(status: &tonic::Status) -> Option<Error> {
    if let Some(error) = wire_error(status) {
        return of_wire(&error);
    }
    let refused = |code| {
        let refusal = Refusal { code, message: status.message().to_owned(), numbers: BTreeMap::new() };
        Some(Error::Refused(refusal))
    };
    match status.code() {
        tonic::Code::Unauthenticated | tonic::Code::PermissionDenied => refused(Code::Denied),
        tonic::Code::InvalidArgument => refused(Code::Mistaken),
        tonic::Code::Unimplemented => {
            Some(Error::Failed(Failure::Protocol(format!("{}; is this a native port?", status.message()))))
        }
        _ => None,
    }
}
