//! Range, Put, DeleteRange and Compact; transactions are in `txn.rs`, streamed ranges in `range_stream.rs`.
//!
//! Each request has a function in and a function out, pure, so that the simulator can use them without
//! a socket. The handlers only join them: translate, call the coordinator, translate back.
//!
//! Order of checks, as etcd's: the request's own mistakes first, then its size, then the store's verdict.

use prost::Message;
use tidelock_coordinator::Consistency;
use tidelock_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use tidelock_etcd_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse, kv_server::Kv,
};
use tidelock_model::limits::VALUE_BYTES_MAX;
use tidelock_model::{
    Answer, Caller, Command, DeleteOp, LeaseId, Op, OpAnswer, Projection, PutLease, PutOp, PutValue, Query,
    QueryAnswer, RangeAnswer, RangeOp, Revision, RevisionBounds, Sort, SortBy,
};
use tonic::{Request, Response, Status};

use crate::config::Limits;
use crate::error_map::FaceError;
use crate::header::wire_number;
use crate::key_range::{key, key_range, wire_item, wire_items};
use crate::range_stream::Parts;
use crate::services::Services;
use crate::txn::{is_serializable, txn_to_op, txn_to_response};

/// What the state machine answers to something it was not asked; cannot happen, and must not pass for
/// an answer if it does.
pub(crate) const MISMATCH: FaceError = FaceError::Internal("the answer does not fit the request");

/// A range request as a read.
pub fn range_to_query(request: &RangeRequest) -> Result<Query, FaceError> {
    range_to_op(request).map(Query::Range)
}

/// How fresh the answer to a range request must be.
#[must_use]
pub fn range_consistency(request: &RangeRequest) -> Consistency {
    if request.serializable { Consistency::Local } else { Consistency::Linearizable }
}

/// A range request as an operation.
pub fn range_to_op(request: &RangeRequest) -> Result<RangeOp, FaceError> {
    let range = key_range(&request.key, &request.range_end)?;
    let projection = match (request.count_only, request.keys_only) {
        (true, _) => Projection::CountOnly,
        (false, true) => Projection::KeysOnly,
        (false, false) => Projection::Full,
    };
    Ok(RangeOp {
        range,
        // Zero and less mean "now".
        at: positive(request.revision).map(Revision),
        limit: positive(request.limit).unwrap_or(0),
        sort: sort(request)?,
        bounds: bounds(request),
        projection,
    })
}

fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

/// The order asked for; `None` when it is the one the store keeps anyway. A target other than the key
/// without an order means ascending.
fn sort(request: &RangeRequest) -> Result<Option<Sort>, FaceError> {
    let order = SortOrder::try_from(request.sort_order).map_err(|_| FaceError::InvalidSortOption)?;
    let target = SortTarget::try_from(request.sort_target).map_err(|_| FaceError::InvalidSortOption)?;
    let descending = order == SortOrder::Descend;
    let by = match target {
        SortTarget::Key if !descending => return Ok(None),
        SortTarget::Key => SortBy::Key,
        SortTarget::Version => SortBy::Version,
        SortTarget::Create => SortBy::Created,
        SortTarget::Mod => SortBy::Modified,
        SortTarget::Value => SortBy::Value,
    };
    Ok(Some(Sort { by, descending }))
}

fn bounds(request: &RangeRequest) -> RevisionBounds {
    // No revision is negative: a negative lower bound keeps everything, a negative upper one nothing.
    let nothing = request.max_mod_revision < 0 || request.max_create_revision < 0;
    let modified_min = if nothing { u64::MAX } else { positive(request.min_mod_revision).unwrap_or(0) };
    RevisionBounds {
        modified_min,
        modified_max: positive(request.max_mod_revision).unwrap_or(0),
        created_min: positive(request.min_create_revision).unwrap_or(0),
        created_max: positive(request.max_create_revision).unwrap_or(0),
    }
}

/// What a range found, on the wire.
pub fn range_to_response(answer: QueryAnswer, header: ResponseHeader) -> Result<RangeResponse, FaceError> {
    match answer {
        QueryAnswer::Op { answer: OpAnswer::Range(found), .. } => Ok(found_to_response(&found, header)),
        _ => Err(MISMATCH),
    }
}

pub(crate) fn found_to_response(found: &RangeAnswer, header: ResponseHeader) -> RangeResponse {
    RangeResponse {
        header: Some(header),
        kvs: wire_items(&found.items),
        more: found.more,
        count: wire_number(found.count),
    }
}

/// A put as a command.
pub fn put_to_command(request: PutRequest, limits: &Limits) -> Result<Command, FaceError> {
    let bytes = request.encoded_len();
    let op = put_to_op(request)?;
    within_request_limit(bytes, limits)?;
    Ok(Command::Write(Op::Put(op)))
}

/// Whether a request of `bytes` may go into the log.
pub(crate) fn within_request_limit(bytes: usize, limits: &Limits) -> Result<(), FaceError> {
    if bytes > limits.request_bytes { Err(FaceError::RequestTooLarge) } else { Ok(()) }
}

/// A put as an operation.
pub fn put_to_op(request: PutRequest) -> Result<PutOp, FaceError> {
    let key = key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(FaceError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(FaceError::LeaseProvided);
    }
    // Only a limit raised far above the default lets this through to be refused here.
    if request.value.len() > VALUE_BYTES_MAX {
        return Err(FaceError::RequestTooLarge);
    }
    Ok(PutOp {
        key,
        value: if request.ignore_value { PutValue::Keep } else { PutValue::Set(request.value) },
        lease: if request.ignore_lease { PutLease::Keep } else { PutLease::Set(LeaseId(request.lease)) },
        want_previous: request.prev_kv,
    })
}

/// What a put answered, on the wire.
pub fn put_to_response(answer: &Answer, header: ResponseHeader) -> Result<PutResponse, FaceError> {
    let Answer::Op(OpAnswer::Put { previous }) = answer else { return Err(MISMATCH) };
    let prev_kv = previous.as_ref().map(|item| wire_item(&item.key, &item.record));
    Ok(PutResponse { header: Some(header), prev_kv })
}

/// A delete as a command.
pub fn delete_to_command(request: &DeleteRangeRequest, limits: &Limits) -> Result<Command, FaceError> {
    let op = delete_to_op(request)?;
    within_request_limit(request.encoded_len(), limits)?;
    Ok(Command::Write(Op::Delete(op)))
}

/// A delete as an operation.
pub fn delete_to_op(request: &DeleteRangeRequest) -> Result<DeleteOp, FaceError> {
    Ok(DeleteOp { range: key_range(&request.key, &request.range_end)?, want_previous: request.prev_kv })
}

/// What a delete answered, on the wire.
pub fn delete_to_response(answer: &Answer, header: ResponseHeader) -> Result<DeleteRangeResponse, FaceError> {
    let Answer::Op(OpAnswer::Delete { deleted, previous }) = answer else { return Err(MISMATCH) };
    Ok(DeleteRangeResponse { header: Some(header), deleted: wire_number(*deleted), prev_kvs: wire_items(previous) })
}

/// A compaction as a command. `physical` asks to wait until space is freed, which the caller does.
pub fn compact_to_command(request: CompactionRequest) -> Result<Command, FaceError> {
    // Everything before the first revision counts as compacted from the start.
    let revision = u64::try_from(request.revision).map_err(|_| FaceError::Compacted)?;
    Ok(Command::Compact { revision: Revision(revision) })
}

/// A command and its caller. As etcd: what is wrong with a request is told before what is wrong with its token, unless
/// it is its size.
fn in_order(
    command: Result<Command, FaceError>,
    caller: Result<Caller, FaceError>,
) -> Result<(Command, Caller), FaceError> {
    match command {
        Err(FaceError::RequestTooLarge) => caller.and(Err(FaceError::RequestTooLarge)),
        command => Ok((command?, caller?)),
    }
}

/// Of the calls that come most, without a box around each.
impl Services {
    pub(crate) async fn answer_range(&self, request: Request<RangeRequest>) -> Result<RangeResponse, Status> {
        let caller = self.caller(&request);
        let request = request.into_inner();
        if !request.serializable {
            self.refuse_on_learner()?;
        }
        // As etcd: what is wrong with a request is told before what is wrong with its token.
        let query = range_to_query(&request)?;
        let answer = self.read(&caller?, query, range_consistency(&request)).await?;
        let QueryAnswer::Op { revision, .. } = answer else { return Err(MISMATCH.into()) };
        Ok(range_to_response(answer, self.headers.at(revision))?)
    }

    pub(crate) async fn answer_put(&self, request: Request<PutRequest>) -> Result<PutResponse, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request);
        let (command, caller) = in_order(put_to_command(request.into_inner(), &self.config.limits), caller)?;
        let (revision, answer) = self.propose(&caller, command).await?;
        Ok(put_to_response(&answer, self.headers.at(revision))?)
    }
}

#[tonic::async_trait]
impl Kv for Services {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.answer_range(request).await.map(Response::new)
    }

    type RangeStreamStream = Parts;

    async fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<Parts>, Status> {
        self.stream_range(request).await
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.answer_put(request).await.map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request);
        let (command, caller) = in_order(delete_to_command(request.get_ref(), &self.config.limits), caller)?;
        let (revision, answer) = self.propose(&caller, command).await?;
        Ok(Response::new(delete_to_response(&answer, self.headers.at(revision))?))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request);
        let request = request.into_inner();
        let bytes = request.encoded_len();
        let consistency = if is_serializable(&request) { Consistency::Local } else { Consistency::Linearizable };
        let op = txn_to_op(request, &self.config.limits)?;
        let caller = caller?;
        let (revision, answer) = if op.writes() {
            within_request_limit(bytes, &self.config.limits)?;
            match self.propose(&caller, Command::Write(op)).await? {
                (revision, Answer::Op(answer)) => (revision, answer),
                _ => return Err(MISMATCH.into()),
            }
        } else {
            match self.read(&caller, Query::Txn(op), consistency).await? {
                QueryAnswer::Op { revision, answer } => (revision, answer),
                _ => return Err(MISMATCH.into()),
            }
        };
        Ok(Response::new(txn_to_response(&answer, revision, self.headers.at(revision))?))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.refuse_on_learner()?;
        self.require_admin(&request)?;
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let physical = request.physical;
        let (revision, _) = self.propose(&caller, compact_to_command(request)?).await?;
        if physical {
            self.coordinator.wait_until_swept().await;
        }
        Ok(Response::new(CompactionResponse { header: Some(self.headers.at(revision)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{Key, KeyRange, KeyValue, Record, RecordMeta, Space};

    fn range(change: impl FnOnce(&mut RangeRequest)) -> Result<RangeOp, FaceError> {
        let mut request = RangeRequest { key: "k".into(), ..Default::default() };
        change(&mut request);
        range_to_op(&request)
    }

    fn plain() -> RangeOp {
        RangeOp::all(KeyRange::single(Key::new(Space::User, b"k")))
    }

    /// Each line: what a client may send, and what it has always meant.
    #[test]
    fn range_requests_mean_what_clients_mean() {
        assert_eq!(range(|_| ()), Ok(plain()));
        assert_eq!(range(|request| request.revision = 7), Ok(RangeOp { at: Some(Revision(7)), ..plain() }));
        assert_eq!(range(|request| request.revision = -7), Ok(plain()));
        assert_eq!(range(|request| request.limit = 3), Ok(RangeOp { limit: 3, ..plain() }));
        assert_eq!(range(|request| request.limit = -3), Ok(plain()));
        let counted = |request: &mut RangeRequest| {
            request.count_only = true;
            request.keys_only = true;
        };
        assert_eq!(range(counted), Ok(RangeOp { projection: Projection::CountOnly, ..plain() }));
        let keys = |request: &mut RangeRequest| request.keys_only = true;
        assert_eq!(range(keys), Ok(RangeOp { projection: Projection::KeysOnly, ..plain() }));
        assert_eq!(range(|request| request.key = "".into()), Err(FaceError::EmptyKey));
    }

    #[test]
    fn sorting_is_asked_for_only_where_the_store_order_is_not_it() {
        let sorted = |target: SortTarget, order: SortOrder| {
            range(|request| {
                request.sort_target = target.into();
                request.sort_order = order.into();
            })
            .map(|op| op.sort)
        };
        let by = |by, descending| Ok(Some(Sort { by, descending }));
        assert_eq!(sorted(SortTarget::Key, SortOrder::None), Ok(None));
        assert_eq!(sorted(SortTarget::Key, SortOrder::Ascend), Ok(None));
        assert_eq!(sorted(SortTarget::Key, SortOrder::Descend), by(SortBy::Key, true));
        assert_eq!(sorted(SortTarget::Mod, SortOrder::None), by(SortBy::Modified, false));
        assert_eq!(sorted(SortTarget::Value, SortOrder::Descend), by(SortBy::Value, true));
        assert_eq!(range(|request| request.sort_order = 9), Err(FaceError::InvalidSortOption));
        assert_eq!(range(|request| request.sort_target = 9), Err(FaceError::InvalidSortOption));
    }

    #[test]
    fn a_negative_upper_bound_on_revisions_keeps_nothing() {
        let bounds = range(|request| request.max_mod_revision = -1).unwrap().bounds;
        assert_eq!(bounds.modified_min, u64::MAX);
        assert!(range(|request| request.min_mod_revision = -1).unwrap().bounds.is_unbounded());
    }

    #[test]
    fn a_count_only_answer_tells_the_count_and_the_present_revision() {
        let found = RangeAnswer { items: vec![], count: 12, more: false };
        let answer = QueryAnswer::Op { revision: Revision(5), answer: OpAnswer::Range(found) };
        let response = range_to_response(answer, ResponseHeader { revision: 5, ..Default::default() }).unwrap();
        assert_eq!((response.count, response.kvs.len(), response.header.unwrap().revision), (12, 0, 5));
    }

    #[test]
    fn contradictory_puts_are_refused() {
        let put = |change: fn(&mut PutRequest)| {
            let mut request = PutRequest { key: "k".into(), ..Default::default() };
            change(&mut request);
            put_to_op(request)
        };
        assert_eq!(put(|request| request.key = "".into()), Err(FaceError::EmptyKey));
        let value = |request: &mut PutRequest| {
            request.ignore_value = true;
            request.value = "v".into();
        };
        assert_eq!(put(value), Err(FaceError::ValueProvided));
        let lease = |request: &mut PutRequest| {
            request.ignore_lease = true;
            request.lease = 3;
        };
        assert_eq!(put(lease), Err(FaceError::LeaseProvided));
        let kept = |request: &mut PutRequest| {
            request.ignore_value = true;
            request.ignore_lease = true;
        };
        let kept = put(kept).unwrap();
        assert_eq!((kept.value, kept.lease), (PutValue::Keep, PutLease::Keep));
        // A put without a lease takes the key away from the one it had.
        assert_eq!(put(|_| ()).unwrap().lease, PutLease::Set(LeaseId::NONE));
    }

    /// A request just over the limit must be told so in etcd's words, not lost in the log.
    #[test]
    fn writes_over_the_size_limit_are_refused() {
        let limits = Limits::default();
        let put = |bytes: usize| {
            let request = PutRequest { key: "k".into(), value: vec![0; bytes].into(), ..Default::default() };
            put_to_command(request, &limits).map(drop)
        };
        assert_eq!(put(limits.request_bytes - 16), Ok(()));
        assert_eq!(put(limits.request_bytes), Err(FaceError::RequestTooLarge));
    }

    #[test]
    fn previous_versions_come_back_whole() {
        let meta = RecordMeta { created: Revision(2), modified: Revision(4), version: 3, lease: LeaseId(9), sub: 0 };
        let item = KeyValue { key: Key::new(Space::User, b"k"), record: Record::new(meta, b"old") };
        let answer = Answer::Op(OpAnswer::Put { previous: Some(item.clone()) });
        let previous = put_to_response(&answer, ResponseHeader::default()).unwrap().prev_kv.unwrap();
        assert_eq!((previous.create_revision, previous.mod_revision, previous.version, previous.lease), (2, 4, 3, 9));
        let answer = Answer::Op(OpAnswer::Delete { deleted: 1, previous: vec![item] });
        let deleted = delete_to_response(&answer, ResponseHeader::default()).unwrap();
        assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (1, 1));
    }

    #[test]
    fn compacting_before_the_first_revision_is_refused() {
        let compact = |revision| compact_to_command(CompactionRequest { revision, physical: true });
        assert_eq!(compact(-1), Err(FaceError::Compacted));
        assert_eq!(compact(5), Ok(Command::Compact { revision: Revision(5) }));
    }
}
