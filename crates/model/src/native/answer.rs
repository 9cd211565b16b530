//! What native requests are answered, or why they are not carried out.

use crate::LeaseId;
use crate::limits::{
    NATIVE_DATA_BYTES_MAX, NATIVE_HOLDINGS_MAX, NATIVE_NAME_BYTES_MAX, NATIVE_PARTIES_MAX, NATIVE_PERMITS_MAX,
    NATIVE_PHASER_DEPTH_MAX, NATIVE_TTL_MS_MAX, NATIVE_TTL_MS_MIN, NATIVE_UNACKNOWLEDGED_MAX, NATIVE_WRITE_BYTES_MAX,
    NATIVE_WRITE_GUARDS_MAX, NATIVE_WRITE_KEYS_MAX,
};

/// What a request that was carried out answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeAnswer {
    /// Nothing beyond success.
    Done,
    /// A session was opened.
    Opened {
        /// Its id, never given out before.
        session: LeaseId,
        /// How long it lives unheard of.
        ttl_ms: u32,
    },
    /// A place in a queue.
    Place {
        /// Names it: the revision at which it was taken.
        place: u64,
        /// Of the grant; zero: it waits.
        token: u64,
        /// How many are before it, those that hold included.
        ahead: u64,
    },
    /// A place is left.
    Left {
        /// Of its grant; zero if it had waited.
        token: u64,
    },
    /// A place at a barrier.
    Entered {
        /// Names it; zero if the barrier opened with this arrival and knows no places any more.
        place: u64,
        /// Which meeting: the revision of its first arrival.
        generation: u64,
        /// How many are still missing.
        missing: u32,
    },
    /// A double barrier was left.
    Leaving {
        /// Which meeting.
        generation: u64,
        /// How many are still inside.
        inside: u32,
    },
    /// A promise to count down.
    Pledged {
        /// Names it.
        pledge: u64,
    },
    /// A latch.
    Latch {
        /// How much is left to count down.
        left: u64,
    },
    /// Parties of a phaser.
    Registered {
        /// Names them.
        party: u64,
        /// The phase they take part in.
        phase: u64,
    },
    /// Parties arrived.
    Arrived {
        /// The phase they arrived in.
        phase: u64,
        /// The phase it is now.
        now: u64,
    },
    /// A counter.
    Counter {
        /// What it was. A block of numbers begins after it.
        before: i64,
        /// What it is. A block of numbers ends with it.
        after: i64,
    },
    /// A version.
    Version {
        /// Names the reader; zero for publishers.
        reader: u64,
        /// The current version.
        version: u64,
        /// The oldest one that somebody may read: all before may go.
        oldest: u64,
    },
    /// A protected object.
    Protected {
        /// Names the protection.
        place: u64,
        /// The object's epoch, which no other has. What was read of it is good only if the epoch is the same afterwards.
        epoch: u64,
    },
    /// A retired object.
    Retired {
        /// Its epoch since it was retired first.
        epoch: u64,
        /// Whether it may go at once; otherwise that is told later.
        clear: bool,
    },
}

/// Why a request was not carried out. One for each thing a client can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NativeError {
    /// It never was, or is over.
    #[error("there is no such session; open a new one, nothing of the old one is held any more")]
    UnknownSession,
    /// An acknowledged request came again, or one without a number.
    #[error("requests up to {acknowledged} were acknowledged; their answers are forgotten")]
    RequestForgotten {
        /// Up to which.
        acknowledged: u64,
    },
    /// The number was another request's.
    #[error("this number was another request's, which was answered; take the next number for a new request")]
    NumberReused,
    /// The client acknowledges too little.
    #[error("{NATIVE_UNACKNOWLEDGED_MAX} answers are not acknowledged; acknowledge some first")]
    TooManyUnacknowledged,
    /// Empty, too long, or with a zero byte.
    #[error("a name is 1 to {NATIVE_NAME_BYTES_MAX} bytes of text without zero bytes")]
    BadName,
    /// Too many bytes.
    #[error("more than {NATIVE_DATA_BYTES_MAX} bytes of data; keep a reference instead")]
    DataTooLarge,
    /// Too short or too long.
    #[error("a time to live is {NATIVE_TTL_MS_MIN} to {NATIVE_TTL_MS_MAX} ms")]
    TtlOutOfRange,
    /// Not for that kind.
    #[error("this cannot be done with that kind of thing")]
    WrongKind,
    /// Somebody has it, and the client did not want to wait.
    #[error("it is taken, under token {token}")]
    Busy {
        /// Of the first holder; zero if somebody waits before.
        token: u64,
    },
    /// Too many are before it.
    #[error("{waiting} are in the queue already")]
    QueueFull {
        /// How many.
        waiting: u64,
    },
    /// One session holds too much.
    #[error("a session holds at most {NATIVE_HOLDINGS_MAX} things")]
    TooManyHoldings,
    /// The token was never this session's, or what it was for is lost.
    #[error("this session holds nothing under token {token}, or no longer")]
    StaleToken {
        /// The one told.
        token: u64,
    },
    /// The token is another session's.
    #[error("token {token} is not of this session")]
    NotHolder {
        /// The one told.
        token: u64,
    },
    /// A fence has let a later token through.
    #[error("token {token} is older than {highest}, which was let through already")]
    Fenced {
        /// The one told.
        token: u64,
        /// The highest let through.
        highest: u64,
    },
    /// A token that no grant can have given.
    #[error("token {token} was never given out")]
    ForgedToken {
        /// The one told.
        token: u64,
    },
    /// The session has no such place.
    #[error("this session has no place {place} there")]
    NoSuchPlace {
        /// The one told.
        place: u64,
    },
    /// There is nothing of that name.
    #[error("there is nothing of that name")]
    NotFound,
    /// It exists and is in use.
    #[error("it exists and is in use")]
    InUse,
    /// It was made otherwise than the request says.
    #[error("it was made otherwise, with {made}")]
    Differs {
        /// Its number of permits or parties; zero if something else differs.
        made: u64,
    },
    /// More permits than there are, or none.
    #[error("1 to {permits} permits can be had")]
    BadWeight {
        /// How many there are.
        permits: u64,
    },
    /// A number of permits or parties that cannot be.
    #[error("at most {NATIVE_PERMITS_MAX} permits or {NATIVE_PARTIES_MAX} parties, and at least one")]
    BadCount,
    /// Parties are inside; who comes now is not one of them.
    #[error("the barrier is open; come again when all have left")]
    BarrierOpen,
    /// The barrier waits for others.
    #[error("the barrier has not opened yet; give the place up instead")]
    BarrierShut,
    /// One went that the others counted on.
    #[error("it is broken: a participant went")]
    Broken,
    /// All parties told have arrived in this phase.
    #[error("these parties have arrived in phase {phase} already")]
    AlreadyArrived {
        /// The phase.
        phase: u64,
    },
    /// Phasers nested too deep.
    #[error("phasers are nested at most {NATIVE_PHASER_DEPTH_MAX} deep")]
    NestedTooDeep,
    /// A number would not fit.
    #[error("the counter would leave the range of 64 bits")]
    Overflow,
    /// The counter is not what was expected.
    #[error("the counter is {actual}")]
    Mismatch {
        /// What it is.
        actual: i64,
    },
    /// A version that is not published yet, or older than reported before.
    #[error("versions {least} to {most} can be reported")]
    BadVersion {
        /// Reported before.
        least: u64,
        /// The current one.
        most: u64,
    },
    /// Who was named to follow does not stand for the election.
    #[error("the session named does not wait in this election")]
    NoSuccessor,
    /// Promises come too late.
    #[error("the latch is open already")]
    LatchOpen,
    /// A write that is too large, shows no token, or names a key twice or none.
    #[error(
        "a write shows 1 to {NATIVE_WRITE_GUARDS_MAX} tokens of locks, elections, semaphores or fences, changes 1 to \
         {NATIVE_WRITE_KEYS_MAX} keys, each once, under at most {NATIVE_WRITE_KEYS_MAX} conditions, and has at most \
         {NATIVE_WRITE_BYTES_MAX} bytes of keys and values; no key is empty"
    )]
    BadWrite,
    /// A key is not as a condition of a write says.
    #[error("condition {condition} does not hold: the key was last changed at revision {modified}; 0: there is none")]
    KeyChanged {
        /// Which condition, from zero on.
        condition: u32,
        /// When the key was changed; zero: there is none.
        modified: u64,
    },
    /// The object is on its way out, or may be gone.
    #[error("the object was retired, as epoch {epoch}")]
    Retiring {
        /// Its epoch.
        epoch: u64,
    },
}
