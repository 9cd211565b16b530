//! Everything that can go wrong, in the words of the wire: a family for what the client can do about it, a code for
//! programs, a text for people, and the numbers that the text tells.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use prost::Message;
use tidelock_client_port::{InvalidToken, PasswordError};
use tidelock_coordinator::{ProposeError, ReadError};
use tidelock_model::{AuthRefusal, NativeError, Refusal};
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::{ERROR_TRAILER, v1};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Something that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) family: Family,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    numbers: Vec<(&'static str, i64)>,
    header: Option<v1::Header>,
}

impl Problem {
    pub(crate) fn new(family: Family, code: &'static str, message: impl Into<String>) -> Problem {
        Problem { family, code, message: message.into(), numbers: Vec::new(), header: None }
    }

    /// The request itself is mistaken.
    pub(crate) fn wrong(code: &'static str, message: impl Into<String>) -> Problem {
        Problem::new(Family::Wrong, code, message)
    }

    /// The core answered something else than what was asked. Not reachable, and no reason to stop.
    pub(crate) fn mismatch() -> Problem {
        Problem::new(Family::Unknown, "INTERNAL", "the answer is to another request")
    }

    /// The same, with where the node was when it found that out.
    pub(crate) fn at(self, header: v1::Header) -> Problem {
        Problem { header: Some(header), ..self }
    }

    pub(crate) fn to_wire(&self) -> v1::Error {
        let numbers = self.numbers.iter().map(|(name, number)| ((*name).to_owned(), *number));
        v1::Error {
            code: self.code.to_owned(),
            message: self.message.clone(),
            numbers: numbers.collect::<BTreeMap<_, _>>(),
            family: self.family.into(),
            header: self.header,
        }
    }

    /// The code that gRPC has for it.
    pub(crate) fn grpc_code(&self) -> Code {
        match (self.family, self.code) {
            (Family::Lost, _) => Code::FailedPrecondition,
            (Family::Refused, _) => Code::Aborted,
            (Family::Wrong, _) => Code::InvalidArgument,
            (Family::Bounded, _) => Code::ResourceExhausted,
            (Family::Absent, "NO_SUCH_METHOD") => Code::Unimplemented,
            (Family::Absent, _) => Code::NotFound,
            (Family::Denied, "UNAUTHENTICATED") => Code::Unauthenticated,
            (Family::Denied, _) => Code::PermissionDenied,
            (Family::Unknown, "NO_ANSWER") => Code::DeadlineExceeded,
            (Family::Unknown | Family::Unavailable | Family::Unspecified, _) => Code::Unavailable,
        }
    }

    /// The code that HTTP has for it.
    pub(crate) fn http_code(&self) -> StatusCode {
        match (self.family, self.code) {
            (Family::Lost | Family::Refused, _) => StatusCode::CONFLICT,
            (Family::Wrong, "BODY_TOO_LARGE") => StatusCode::PAYLOAD_TOO_LARGE,
            (Family::Wrong, "METHOD_NOT_ALLOWED") => StatusCode::METHOD_NOT_ALLOWED,
            (Family::Wrong, _) => StatusCode::BAD_REQUEST,
            (Family::Bounded, _) => StatusCode::TOO_MANY_REQUESTS,
            (Family::Absent, _) => StatusCode::NOT_FOUND,
            (Family::Denied, "UNAUTHENTICATED") => StatusCode::UNAUTHORIZED,
            (Family::Denied, _) => StatusCode::FORBIDDEN,
            (Family::Unknown, "NO_ANSWER") => StatusCode::GATEWAY_TIMEOUT,
            (Family::Unknown | Family::Unavailable | Family::Unspecified, _) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// How a unary call over gRPC fails: the whole error is in a trailer, for clients that know it.
impl From<Problem> for Status {
    fn from(problem: Problem) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(ERROR_TRAILER, MetadataValue::from_bytes(&problem.to_wire().encode_to_vec()));
        Status::with_details_and_metadata(problem.grpc_code(), problem.message, Bytes::new(), metadata)
    }
}

impl From<NativeError> for Problem {
    fn from(error: NativeError) -> Problem {
        use NativeError as E;
        let (family, code): (Family, &'static str) = match error {
            E::UnknownSession => (Family::Lost, "UNKNOWN_SESSION"),
            E::StaleToken { .. } => (Family::Lost, "STALE_TOKEN"),
            E::NotHolder { .. } => (Family::Lost, "NOT_HOLDER"),
            E::Fenced { .. } => (Family::Lost, "FENCED"),
            E::Broken => (Family::Lost, "BROKEN"),
            E::Busy { .. } => (Family::Refused, "BUSY"),
            E::BarrierOpen => (Family::Refused, "BARRIER_OPEN"),
            E::BarrierShut => (Family::Refused, "BARRIER_SHUT"),
            E::InUse => (Family::Refused, "IN_USE"),
            E::Differs { .. } => (Family::Refused, "DIFFERS"),
            E::Mismatch { .. } => (Family::Refused, "MISMATCH"),
            E::KeyChanged { .. } => (Family::Refused, "KEY_CHANGED"),
            E::AlreadyArrived { .. } => (Family::Refused, "ALREADY_ARRIVED"),
            E::Retiring { .. } => (Family::Refused, "RETIRING"),
            E::LatchOpen => (Family::Refused, "LATCH_OPEN"),
            E::NoSuccessor => (Family::Refused, "NO_SUCCESSOR"),
            E::NoSuchPlace { .. } => (Family::Refused, "NO_SUCH_PLACE"),
            E::QueueFull { .. } => (Family::Bounded, "QUEUE_FULL"),
            E::TooManyHoldings => (Family::Bounded, "TOO_MANY_HOLDINGS"),
            E::TooManyUnacknowledged => (Family::Bounded, "TOO_MANY_UNACKNOWLEDGED"),
            E::BadName => (Family::Wrong, "BAD_NAME"),
            E::DataTooLarge => (Family::Wrong, "DATA_TOO_LARGE"),
            E::TtlOutOfRange => (Family::Wrong, "TTL_OUT_OF_RANGE"),
            E::WrongKind => (Family::Wrong, "WRONG_KIND"),
            E::BadWeight { .. } => (Family::Wrong, "BAD_WEIGHT"),
            E::BadCount => (Family::Wrong, "BAD_COUNT"),
            E::BadWrite => (Family::Wrong, "BAD_WRITE"),
            E::BadVersion { .. } => (Family::Wrong, "BAD_VERSION"),
            E::ForgedToken { .. } => (Family::Wrong, "FORGED_TOKEN"),
            E::NestedTooDeep => (Family::Wrong, "NESTED_TOO_DEEP"),
            E::Overflow => (Family::Wrong, "OVERFLOW"),
            E::RequestForgotten { .. } => (Family::Wrong, "REQUEST_FORGOTTEN"),
            E::NumberReused => (Family::Wrong, "NUMBER_REUSED"),
            E::NotFound => (Family::Absent, "NOT_FOUND"),
        };
        Problem { family, code, message: error.to_string(), numbers: numbers(error), header: None }
    }
}

/// What an error tells beside its name. No number of ours comes near the limit; one of a client's stops at it.
fn numbers(error: NativeError) -> Vec<(&'static str, i64)> {
    use NativeError as E;
    let bounded = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    match error {
        E::RequestForgotten { acknowledged } => vec![("acknowledged", bounded(acknowledged))],
        E::Busy { token } | E::StaleToken { token } | E::NotHolder { token } | E::ForgedToken { token } => {
            vec![("token", bounded(token))]
        }
        E::QueueFull { waiting } => vec![("waiting", bounded(waiting))],
        E::Fenced { token, highest } => vec![("token", bounded(token)), ("highest", bounded(highest))],
        E::NoSuchPlace { place } => vec![("place", bounded(place))],
        E::Differs { made } => vec![("made", bounded(made))],
        E::BadWeight { permits } => vec![("permits", bounded(permits))],
        E::AlreadyArrived { phase } => vec![("phase", bounded(phase))],
        E::Mismatch { actual } => vec![("actual", actual)],
        E::KeyChanged { condition, modified } => {
            vec![("condition", condition.into()), ("modified", bounded(modified))]
        }
        E::BadVersion { least, most } => vec![("least", bounded(least)), ("most", bounded(most))],
        E::Retiring { epoch } => vec![("epoch", bounded(epoch))],
        _ => Vec::new(),
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        match refusal {
            Refusal::Native(error) => error.into(),
            Refusal::Auth(refusal) => refusal.into(),
            Refusal::NoSpace => Problem::new(Family::Bounded, "NO_SPACE", refusal.to_string()),
            Refusal::Corrupt => Problem::new(Family::Unavailable, "CORRUPT", refusal.to_string()),
            Refusal::Compacted { .. } => Problem::new(Family::Absent, "COMPACTED", refusal.to_string()),
            other => Problem::wrong("REFUSED", other.to_string()),
        }
    }
}

impl From<AuthRefusal> for Problem {
    fn from(refusal: AuthRefusal) -> Problem {
        let code = match refusal {
            AuthRefusal::NoUser | AuthRefusal::UserEmpty | AuthRefusal::OldRevision => "UNAUTHENTICATED",
            _ => "NOT_ALLOWED",
        };
        Problem::new(Family::Denied, code, refusal.to_string())
    }
}

impl From<InvalidToken> for Problem {
    fn from(_: InvalidToken) -> Problem {
        Problem::new(Family::Denied, "UNAUTHENTICATED", "the token does not count, or no longer; come in again")
    }
}

impl From<PasswordError> for Problem {
    fn from(error: PasswordError) -> Problem {
        match error {
            PasswordError::TooLong | PasswordError::Unhashable => wrong_password(),
            PasswordError::TooMany => Problem::new(Family::Bounded, "OVERLOADED", error.to_string()),
            PasswordError::Stopped => Problem::new(Family::Unavailable, "STOPPING", error.to_string()),
        }
    }
}

pub(crate) fn wrong_password() -> Problem {
    Problem::new(Family::Denied, "UNAUTHENTICATED", "there is no user with that name and password")
}

impl From<ProposeError> for Problem {
    fn from(error: ProposeError) -> Problem {
        let text = error.to_string();
        match error {
            ProposeError::NoLeader => Problem::new(Family::Unavailable, "NO_LEADER", text),
            ProposeError::OutcomeUnknown { .. } => Problem::new(Family::Unknown, "NO_ANSWER", text),
            ProposeError::Overloaded { .. } => Problem::new(Family::Bounded, "OVERLOADED", text),
            ProposeError::TooLarge { .. } => Problem::wrong("REQUEST_TOO_LARGE", text),
            ProposeError::Denied(refusal) => refusal.into(),
            ProposeError::NoSpace { .. } => Problem::new(Family::Bounded, "NO_SPACE", text),
            ProposeError::Stopping => Problem::new(Family::Unavailable, "STOPPING", text),
            ProposeError::Interrupted => Problem::new(Family::Unknown, "INTERRUPTED", text),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Problem {
        let text = error.to_string();
        match error {
            ReadError::Refused(refusal) => refusal.into(),
            ReadError::NoLeader => Problem::new(Family::Unavailable, "NO_LEADER", text),
            ReadError::Timeout { .. } => Problem::new(Family::Unavailable, "NO_MAJORITY", text),
            ReadError::Overloaded { .. } => Problem::new(Family::Bounded, "OVERLOADED", text),
            ReadError::Stopping => Problem::new(Family::Unavailable, "STOPPING", "the node is shutting down"),
        }
    }
}

/// Where to show a password, as browsers and curl understand it.
pub(crate) const CHALLENGE: (HeaderName, HeaderValue) =
    (http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"tidelock\", Bearer"));

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// R7: a client that takes "it may have happened" for "it did not" acquires a lock twice.
    #[test]
    fn an_unknown_outcome_is_in_a_family_of_its_own() {
        let unknown = Problem::from(ProposeError::OutcomeUnknown { waited: Duration::from_secs(1) });
        assert_eq!((unknown.family, unknown.grpc_code()), (Family::Unknown, Code::DeadlineExceeded));
        assert_eq!(Problem::from(ProposeError::Interrupted).family, Family::Unknown);
        for nothing_happened in
            [ProposeError::NoLeader, ProposeError::Stopping, ProposeError::Overloaded { waiting: 1 }]
        {
            assert_ne!(Problem::from(nothing_happened).family, Family::Unknown);
        }
    }

    /// Clients decide by family whether to stop working, and people look codes up.
    #[test]
    fn a_lost_lock_a_busy_one_and_a_mistake_are_told_apart() {
        let stale = Problem::from(NativeError::StaleToken { token: u64::MAX });
        assert_eq!((stale.family, stale.code, stale.http_code().as_u16()), (Family::Lost, "STALE_TOKEN", 409));
        assert_eq!(stale.to_wire().numbers["token"], i64::MAX);
        let busy = Problem::from(NativeError::Busy { token: 7 });
        assert_eq!((busy.grpc_code(), busy.http_code().as_u16()), (Code::Aborted, 409));
        let name = Problem::from(NativeError::BadName);
        assert_eq!((name.grpc_code(), name.http_code().as_u16()), (Code::InvalidArgument, 400));
        let status = Status::from(busy.clone());
        let trailer = status.metadata().get_bin(ERROR_TRAILER).unwrap().to_bytes().unwrap();
        assert_eq!(v1::Error::decode(trailer).unwrap(), busy.to_wire());
    }
}
