//! The numbers of the protocol: error codes, opcodes, reserved xids.

/// Why a request was refused, by ZooKeeper's names and numbers. Success is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ErrorCode {
    /// Something broke that no other code names.
    SystemError = -1,
    /// In a failed multi: an operation after the one that failed.
    RuntimeInconsistency = -2,
    /// Replicas disagree.
    DataInconsistency = -3,
    /// The connection to the server was lost; clients say it to themselves.
    ConnectionLoss = -4,
    /// The request's record cannot be read.
    MarshallingError = -5,
    /// No such operation.
    Unimplemented = -6,
    /// No answer in time.
    OperationTimeout = -7,
    /// An illegal path, flag or other argument.
    BadArguments = -8,
    /// No such session.
    UnknownSession = -12,
    /// The proposed members have no quorum that is in step.
    NewConfigNoQuorum = -13,
    /// Another change of members is under way.
    ReconfigInProgress = -14,
    /// No such znode, or no such parent.
    NoNode = -101,
    /// The ACL does not allow it.
    NoAuth = -102,
    /// The expected version is not the znode's.
    BadVersion = -103,
    /// The parent is ephemeral.
    NoChildrenForEphemerals = -108,
    /// The znode exists already.
    NodeExists = -110,
    /// The znode has children.
    NotEmpty = -111,
    /// The session is over.
    SessionExpired = -112,
    /// A client's callback is not valid; clients say it to themselves.
    InvalidCallback = -113,
    /// The ACL is empty, or an entry of it names nobody.
    InvalidAcl = -114,
    /// The credentials are wrong, or their scheme is unknown.
    AuthFailed = -115,
    /// The session has gone to another connection.
    SessionMoved = -118,
    /// The server only answers reads.
    NotReadOnly = -119,
    /// Local sessions own no ephemerals.
    EphemeralOnLocalSession = -120,
    /// No such watch.
    NoWatcher = -121,
    /// The request took too long; clients say it to themselves.
    RequestTimeout = -122,
    /// Members cannot be changed by clients here.
    ReconfigDisabled = -123,
    /// Sessions must authenticate by SASL.
    SessionClosedRequireSasl = -124,
    /// A hard quota would be exceeded.
    QuotaExceeded = -125,
    /// The server is too busy.
    ThrottledOp = -127,
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }
}

/// What a request asks for, by number.
#[allow(missing_docs, reason = "the names are ZooKeeper's")]
pub mod opcode {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const RECONFIG: i32 = 16;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const DELETE_CONTAINER: i32 = 20;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SASL: i32 = 102;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub const SET_WATCHES2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
    pub const CLOSE_SESSION: i32 = -11;
    /// In a multi: the result of an operation that failed, and the header that ends the list.
    pub const ERROR: i32 = -1;
}

/// Xids that are no client's running number.
pub mod xid {
    /// A watch event.
    pub const NOTIFICATION: i32 = -1;
    /// A ping, and the answer to one whatever its own xid.
    pub const PING: i32 = -2;
    /// Credentials. The reply's zxid is 0.
    pub const AUTH: i32 = -4;
    /// The watches of a client that is back.
    pub const SET_WATCHES: i32 = -8;
}
