//! The nouns of Tidelock: what a request, its answer and its effects are made of, and how they are
//! written in the log.
//!
//! Everything above and below speaks these types; no wire type of any protocol appears here, and
//! nothing here reads a clock, draws a random number or performs IO. Encodings are versioned and
//! decode untrusted bytes without panicking or allocating more than the input justifies.

pub mod access;
mod alarm;
mod auth;
mod codec;
mod command;
mod event;
mod history;
mod ids;
mod intervals;
mod key;
pub mod limits;
mod log;
mod member;
mod native;
mod outcome;
mod proposal;
mod query;
mod record;
mod shared_events;
mod watch;
mod znode;
pub mod zoo;

pub use access::{AuthQuery, Errand, Need};
pub use alarm::{Alarm, AlarmKind, Alarms};
pub use auth::{Auth, AuthCommand, AuthRefusal, Caller, Permission, ROOT, Role, TOKEN_SECRET_BYTES, User};
pub use codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
pub use command::{
    Command, Compare, CompareResult, CompareTarget, DeleteOp, LeaseExpiry, Op, Projection, PutLease, PutOp, PutValue,
    RangeOp, RevisionBounds, Sort, SortBy, Txn,
};
pub use event::{Event, EventKind};
pub use history::{History, HistoryOf, HistoryQuery, KeyVersion, VersionKind};
pub use ids::{ClusterId, LeaseId, LogIndex, LogTime, NodeId, Revision, Term};
pub use intervals::Intervals;
pub use key::{Key, KeyRange, Space};
pub use log::{HardState, LogEntry};
pub use member::{Member, MemberChange, MemberRole, Members, ZookeeperServer};
pub use native::{
    Data, Fencing, GuardedWrite, Holding, KeyChange, KeyCondition, Kind, MemberFound, Mode, Name, NameFound,
    NativeAnswer, NativeCommand, NativeError, NativeFound, NativeNotice, NativeOp, NativeQuery, NativeRequest,
    NativeSession, ObjectFound, OnDeath, TokenGuard, Wait, keys as native_keys, records as native_records,
};
pub use outcome::{Answer, OpAnswer, Outcome, RangeAnswer, Refusal};
pub use proposal::{Batch, Origin, Proposal, RequestId};
pub use query::{LeaseInfo, PageQuery, Query, QueryAnswer};
pub use record::{KeyValue, Record, RecordMeta};
pub use shared_events::{SharedEvents, Written};
pub use watch::{EndedSessions, WatchClosed, WatchNotice, WatchRequest, WatcherId};
pub use znode::{
    AclEntry, CreateZnode, Identity, SessionAnswer, ZnodeAnswer, ZnodeCommand, ZnodeError, ZnodeFound, ZnodeLife,
    ZnodeOp, ZnodeOpAnswer, ZnodeOutcome, ZnodeQuery, ZnodeRead, ZnodeRequest, ZnodeRequests, ZnodeStat,
};
pub use znode::{Rights, ZnodeChange, rights, znode_changes};
pub use znode::{SESSION_KEY, SIDE_KEY, ZNODE_KEY, ZnodeEvent, znode_path};
pub use znode::{SessionFound, SessionsPage, ZnodeTotals};
