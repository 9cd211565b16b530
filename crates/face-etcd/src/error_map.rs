//! The whole table of errors this face answers with: etcd's gRPC codes and texts, and which of our
//! errors becomes which.
//!
//! Clients compare the texts byte by byte (Go, jetcd, Patroni, the Kubernetes API server), so they
//! are wire format, odd spellings included. Codes matter too: `Unavailable` is what clients retry by themselves, so "nothing
//! was written" and "unknown" must not be mixed up with what will fail again.

use tidelock_client_port::{InvalidToken, PasswordError};
use tidelock_coordinator::{MemberError, ProposeError, ReadError};
use tidelock_model::{AuthRefusal, Refusal};
use tonic::{Code, Status};

macro_rules! face_errors {
    ($($(#[$doc:meta])* $name:ident => $code:ident, $text:literal;)*) => {
        /// An error as etcd's clients know it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum FaceError {
            $($(#[$doc])* #[error($text)] $name,)*
            /// The state machine refused what this face should not have sent: a bug of ours.
            #[error("etcdserver: internal error: {0}")]
            Internal(&'static str),
        }

        impl FaceError {
            /// Every error with a fixed text, for tests and documentation.
            pub const ALL: &[FaceError] = &[$(FaceError::$name,)*];

            /// The gRPC code that goes with it.
            #[must_use]
            pub fn code(self) -> Code {
                match self {
                    $(FaceError::$name => Code::$code,)*
                    FaceError::Internal(_) => Code::Internal,
                }
            }
        }
    };
}

face_errors! {
    /// A request for no key.
    EmptyKey => InvalidArgument, "etcdserver: key is not provided";
    /// Keep-value or keep-lease without a key to keep it of; also a transaction operation that is empty.
    KeyNotFound => InvalidArgument, "etcdserver: key not found";
    /// Keep-value and a value at once.
    ValueProvided => InvalidArgument, "etcdserver: value is provided";
    /// Keep-lease and a lease at once.
    LeaseProvided => InvalidArgument, "etcdserver: lease is provided";
    /// More operations than one transaction may have.
    TooManyOps => InvalidArgument, "etcdserver: too many operations in txn request";
    /// A transaction would change a key twice.
    DuplicateKey => InvalidArgument, "etcdserver: duplicate key given in txn request";
    /// A sort order or target that does not exist.
    InvalidSortOption => InvalidArgument, "etcdserver: invalid sort option";
    /// A compare whose result or target does not exist. etcd lets such a compare hold; we refuse it.
    InvalidCompare => InvalidArgument, "etcdserver: invalid compare in txn request";
    /// History before the revision asked for is gone.
    Compacted => OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    /// The revision asked for does not exist yet.
    FutureRevision => OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    /// A stream cannot be sorted before all of it is there.
    StreamSorted => Unimplemented, "RangeStream does not support custom sort orders";
    /// The same for bounds on revisions.
    StreamFiltered => Unimplemented, "RangeStream does not support revision filters";
    /// No space for what would grow the store.
    NoSpace => ResourceExhausted, "etcdserver: mvcc: database space exceeded";

    /// The data cannot be trusted: nothing is changed until someone has looked.
    Corrupt => DataLoss, "etcdserver: corrupt cluster";
    /// An alarm of a kind that does not exist.
    UnknownAlarm => InvalidArgument, "etcdserver: unknown alarm";
    /// An action that does not exist.
    UnknownMethod => Unknown, "etcdserver: unknown method";

    /// The place in a lock's line is gone, most likely with its lease.
    SessionExpired => Unknown, "mutex: session is expired";
    /// Not, or no longer, the leader of an election.
    NotElected => Unknown, "election: not leader";
    /// Nobody leads an election.
    NobodyElected => Unknown, "election: no leader";
    /// A request of a leader that does not say which.
    LeaderMissing => Unknown, "\"leader\" field must be provided";

    /// No such lease.
    LeaseNotFound => NotFound, "etcdserver: requested lease not found";
    /// The lease id is taken.
    LeaseExists => FailedPrecondition, "etcdserver: lease already exists";
    /// A time to live beyond what etcd takes.
    LeaseTtlTooLarge => OutOfRange, "etcdserver: too large lease TTL";

    /// The member exists already.
    MemberExists => FailedPrecondition, "etcdserver: member ID already exist";
    /// Another member has that peer URL.
    PeerUrlExists => FailedPrecondition, "etcdserver: Peer URLs already exists";
    /// The change would cost the cluster its majority.
    MemberNotEnoughStarted => FailedPrecondition,
        "etcdserver: re-configuration failed due to not enough started members";
    /// Peer URLs that are not `http(s)://host:port`.
    MemberBadUrls => InvalidArgument, "etcdserver: given member URLs are invalid";
    /// No such member.
    MemberNotFound => NotFound, "etcdserver: member not found";
    /// Only learners are promoted.
    MemberNotLearner => FailedPrecondition, "etcdserver: can only promote a learner member";
    /// The learner has to catch up first.
    LearnerNotReady => FailedPrecondition,
        "etcdserver: can only promote a learner member which is in sync with leader";

    /// There are as many learners as there may be.
    TooManyLearners => FailedPrecondition, "etcdserver: too many learner members in cluster";
    /// Too few members are connected for a change of them; nothing was changed.
    Unhealthy => Unavailable, "etcdserver: unhealthy cluster";

    /// The call needs a user, or a user needs a name.
    UserEmpty => InvalidArgument, "etcdserver: user name is empty";
    /// The user may not do that.
    PermissionDenied => PermissionDenied, "etcdserver: permission denied";
    /// Users or roles changed since the token was made.
    AuthOldRevision => InvalidArgument, "etcdserver: revision of auth store is old";
    /// The token is nobody's, or no longer.
    InvalidAuthToken => Unauthenticated, "etcdserver: invalid auth token";
    /// There is nothing to come into.
    AuthNotEnabled => FailedPrecondition, "etcdserver: authentication is not enabled";
    /// No such user, or not the password.
    AuthFailed => InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    /// The user has no password to come in with.
    NoPasswordUser => Unknown, "auth: authentication failed, password was given for no password user";
    /// Longer than bcrypt looks at.
    PasswordTooLong => Unknown, "bcrypt: password length exceeds 72 bytes";
    /// Authorisation needs somebody who can turn it off again.
    RootUserNotExist => FailedPrecondition, "etcdserver: root user does not exist";
    /// The same.
    RootRoleNotExist => FailedPrecondition, "etcdserver: root user does not have root role";
    /// The name is taken.
    UserExists => FailedPrecondition, "etcdserver: user name already exists";
    /// No such user.
    UserNotFound => FailedPrecondition, "etcdserver: user name not found";
    /// The name is taken.
    RoleExists => FailedPrecondition, "etcdserver: role name already exists";
    /// No such role.
    RoleNotFound => FailedPrecondition, "etcdserver: role name not found";
    /// A role needs a name.
    RoleEmpty => InvalidArgument, "etcdserver: role name is empty";
    /// The user does not have that role.
    RoleNotGranted => FailedPrecondition, "etcdserver: role is not granted to the user";
    /// The role does not have that permission.
    PermissionNotGranted => FailedPrecondition, "etcdserver: permission is not granted to the role";
    /// A permission is missing.
    PermissionNotGiven => InvalidArgument, "etcdserver: permission not given";
    /// A change that would lock everybody out, or means nothing.
    InvalidAuthManagement => InvalidArgument, "etcdserver: invalid auth management";

    /// Larger than one request may be.
    RequestTooLarge => InvalidArgument, "etcdserver: request is too large";
    /// Too much is waiting already; nothing was done.
    TooManyRequests => ResourceExhausted, "etcdserver: too many requests";

    /// There is no leader; nothing was done.
    NoLeader => Unavailable, "etcdserver: no leader";
    /// Only the leader can do that, and this is not it.
    NotLeader => FailedPrecondition, "etcdserver: not leader";
    /// The node is stopping.
    Stopped => Unavailable, "etcdserver: server stopped";
    /// No answer in time; a write may or may not have happened.
    Timeout => Unavailable, "etcdserver: request timed out";
    /// A learner answers little.
    NotSupportedForLearner => FailedPrecondition, "etcdserver: rpc not supported for learner";
    /// Leadership cannot go there.
    BadLeaderTransferee => FailedPrecondition, "etcdserver: bad leader transferee";

    /// Not a version at all.
    WrongDowngradeVersion => InvalidArgument, "etcdserver: wrong downgrade target version format";
    /// A version that cannot be downgraded to.
    InvalidDowngradeTarget => InvalidArgument, "etcdserver: invalid downgrade target version";
}

impl From<FaceError> for Status {
    fn from(error: FaceError) -> Status {
        Status::new(error.code(), error.to_string())
    }
}

impl From<InvalidToken> for FaceError {
    fn from(_: InvalidToken) -> FaceError {
        FaceError::InvalidAuthToken
    }
}

impl From<PasswordError> for FaceError {
    fn from(error: PasswordError) -> FaceError {
        match error {
            PasswordError::TooLong => FaceError::PasswordTooLong,
            PasswordError::TooMany => FaceError::TooManyRequests,
            PasswordError::Unhashable => FaceError::Internal("the password cannot be hashed"),
            PasswordError::Stopped => FaceError::Stopped,
        }
    }
}

impl From<Refusal> for FaceError {
    fn from(refusal: Refusal) -> FaceError {
        match refusal {
            Refusal::KeyNotFound => FaceError::KeyNotFound,
            Refusal::LeaseNotFound => FaceError::LeaseNotFound,
            Refusal::LeaseExists => FaceError::LeaseExists,
            Refusal::Compacted { .. } => FaceError::Compacted,
            Refusal::FutureRevision { .. } => FaceError::FutureRevision,
            Refusal::NoSpace => FaceError::NoSpace,
            Refusal::Corrupt => FaceError::Corrupt,
            Refusal::Auth(refusal) => refusal.into(),
            // No call of etcd's asks for anything of the kind.
            Refusal::Native(_) => FaceError::Internal("the answer is to a native request"),
            Refusal::Invalid { why } => FaceError::Internal(why),
        }
    }
}

impl From<AuthRefusal> for FaceError {
    fn from(refusal: AuthRefusal) -> FaceError {
        match refusal {
            AuthRefusal::NoUser | AuthRefusal::UserEmpty => FaceError::UserEmpty,
            AuthRefusal::Denied => FaceError::PermissionDenied,
            AuthRefusal::OldRevision => FaceError::AuthOldRevision,
            AuthRefusal::NoRootUser => FaceError::RootUserNotExist,
            AuthRefusal::NoRootRole => FaceError::RootRoleNotExist,
            AuthRefusal::UserExists => FaceError::UserExists,
            AuthRefusal::UserNotFound => FaceError::UserNotFound,
            AuthRefusal::RoleExists => FaceError::RoleExists,
            AuthRefusal::RoleNotFound => FaceError::RoleNotFound,
            AuthRefusal::RoleEmpty => FaceError::RoleEmpty,
            AuthRefusal::RoleNotGranted => FaceError::RoleNotGranted,
            AuthRefusal::PermissionNotGranted => FaceError::PermissionNotGranted,
            AuthRefusal::InvalidManagement => FaceError::InvalidAuthManagement,
            // etcd has no bound; this says that waiting does not help, and nothing else fits.
            AuthRefusal::TooMany => FaceError::TooManyRequests,
        }
    }
}

impl From<ProposeError> for FaceError {
    fn from(error: ProposeError) -> FaceError {
        match error {
            ProposeError::NoLeader => FaceError::NoLeader,
            ProposeError::OutcomeUnknown { .. } => FaceError::Timeout,
            ProposeError::Overloaded { .. } => FaceError::TooManyRequests,
            ProposeError::TooLarge { .. } => FaceError::RequestTooLarge,
            ProposeError::NoSpace { .. } => FaceError::NoSpace,
            ProposeError::Denied(refusal) => refusal.into(),
            // etcd says the same for both, and its clients do not take it for a promise.
            ProposeError::Stopping | ProposeError::Interrupted => FaceError::Stopped,
        }
    }
}

impl From<ReadError> for FaceError {
    fn from(error: ReadError) -> FaceError {
        match error {
            ReadError::Refused(refusal) => refusal.into(),
            ReadError::NoLeader => FaceError::NoLeader,
            ReadError::Timeout { .. } => FaceError::Timeout,
            ReadError::Overloaded { .. } => FaceError::TooManyRequests,
            ReadError::Stopping => FaceError::Stopped,
        }
    }
}

impl From<MemberError> for FaceError {
    fn from(error: MemberError) -> FaceError {
        match error {
            MemberError::Exists(_) => FaceError::MemberExists,
            MemberError::AddressTaken(_) => FaceError::PeerUrlExists,
            MemberError::NotFound(_) => FaceError::MemberNotFound,
            MemberError::WrongRole(_) => FaceError::MemberNotLearner,
            MemberError::LearnerBehind { .. } => FaceError::LearnerNotReady,
            MemberError::WouldLoseQuorum => FaceError::Unhealthy,
            MemberError::Denied(refusal) => refusal.into(),
            // Nothing was changed and a later try may succeed: the one code that says so.
            MemberError::Busy => FaceError::TooManyRequests,
            MemberError::OutcomeUnknown { .. } => FaceError::Timeout,
            MemberError::Stopping => FaceError::Stopped,
        }
    }
}

/// A refused or failed handover of leadership. Same errors as a change of members, other words.
#[must_use]
pub fn transfer_error(error: MemberError) -> FaceError {
    match error {
        MemberError::NotFound(_) | MemberError::WrongRole(_) => FaceError::BadLeaderTransferee,
        other => other.into(),
    }
}

/// An error of the Lock or Election service. etcd makes these out of its own client and loses the codes on
/// the way: all are "unknown". Only what says that trying again is safe keeps its code here.
pub(crate) fn recipe_error(error: FaceError) -> Status {
    let code = if error.code() == Code::Unavailable { Code::Unavailable } else { Code::Unknown };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidelock_model::{NodeId, Revision};

    /// Clients compare texts byte by byte and act on codes: the pairs are pinned here as clients have them.
    #[test]
    fn codes_and_texts_are_the_ones_clients_match() {
        let known = [
            (FaceError::EmptyKey, Code::InvalidArgument, "etcdserver: key is not provided"),
            (FaceError::KeyNotFound, Code::InvalidArgument, "etcdserver: key not found"),
            (FaceError::TooManyOps, Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            (FaceError::DuplicateKey, Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
            (FaceError::Compacted, Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            (FaceError::FutureRevision, Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            (FaceError::NoSpace, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (FaceError::LeaseNotFound, Code::NotFound, "etcdserver: requested lease not found"),
            (FaceError::LeaseExists, Code::FailedPrecondition, "etcdserver: lease already exists"),
            (FaceError::LeaseTtlTooLarge, Code::OutOfRange, "etcdserver: too large lease TTL"),
            (FaceError::RequestTooLarge, Code::InvalidArgument, "etcdserver: request is too large"),
            (FaceError::TooManyRequests, Code::ResourceExhausted, "etcdserver: too many requests"),
            (FaceError::NoLeader, Code::Unavailable, "etcdserver: no leader"),
            (FaceError::Timeout, Code::Unavailable, "etcdserver: request timed out"),
            (FaceError::NotLeader, Code::FailedPrecondition, "etcdserver: not leader"),
            (FaceError::Stopped, Code::Unavailable, "etcdserver: server stopped"),
            (FaceError::Corrupt, Code::DataLoss, "etcdserver: corrupt cluster"),
            (FaceError::Unhealthy, Code::Unavailable, "etcdserver: unhealthy cluster"),
            (FaceError::SessionExpired, Code::Unknown, "mutex: session is expired"),
            (FaceError::NotElected, Code::Unknown, "election: not leader"),
            (FaceError::NobodyElected, Code::Unknown, "election: no leader"),
            (FaceError::LeaderMissing, Code::Unknown, "\"leader\" field must be provided"),
            (FaceError::StreamSorted, Code::Unimplemented, "RangeStream does not support custom sort orders"),
            (FaceError::StreamFiltered, Code::Unimplemented, "RangeStream does not support revision filters"),
        ];
        for (error, code, text) in known {
            let status = Status::from(error);
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }

    /// A client finds out what happened by looking the text up: two errors with one text would be one.
    #[test]
    fn every_error_has_its_own_text() {
        let texts: std::collections::BTreeSet<String> = FaceError::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), FaceError::ALL.len());
    }

    /// R7: a write whose fate is unknown must not look like one that certainly did not happen.
    #[test]
    fn an_unknown_outcome_is_not_reported_as_a_refusal() {
        let unknown = FaceError::from(ProposeError::OutcomeUnknown { waited: Duration::from_secs(1) });
        assert_eq!(unknown, FaceError::Timeout);
        assert_eq!(FaceError::from(ProposeError::Overloaded { waiting: 1 }), FaceError::TooManyRequests);
        assert_eq!(FaceError::from(ProposeError::NoSpace { node: NodeId(1) }), FaceError::NoSpace);
        let compacted = Refusal::Compacted { asked: Revision(1), oldest: Revision(2) };
        assert_eq!(FaceError::from(ReadError::Refused(compacted)), FaceError::Compacted);
    }

    #[test]
    fn a_bad_transfer_target_is_not_called_a_missing_member() {
        assert_eq!(transfer_error(MemberError::NotFound(NodeId(1))), FaceError::BadLeaderTransferee);
        assert_eq!(FaceError::from(MemberError::NotFound(NodeId(1))), FaceError::MemberNotFound);
    }
}
