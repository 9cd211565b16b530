//! RangeStream: a long listing in parts, so that neither side holds all of it at once.
//!
//! The parts are read one after the other at the revision of the first, while the client takes them at
//! its own pace: what is on the way is one part being read and one waiting. Concatenated they are what
//! Range answers; header, count and `more` come with the last. A client slower than compaction is told
//! that the revision was compacted.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use prost::Message;
use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_etcd_api::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use tidelock_model::{Caller, KeyRange, OpAnswer, Projection, Query, QueryAnswer, RangeOp};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::error_map::FaceError;
use crate::header::{Headers, wire_number};
use crate::key_range::wire_items;
use crate::kv::{MISMATCH, found_to_response, range_consistency, range_to_op};
use crate::leader_watch::requires_leader;
use crate::paging::Pages;
use crate::reply_stream::ReplyStream;
use crate::services::{Services, StreamEnd};

/// Items in the first part: the size of the others is learnt from it.
const FIRST_PART_ITEMS: u64 = 10;

/// Most items in one part, however small they are.
const PART_ITEMS_MAX: u64 = 64 * 1024;

/// Parts waiting for the connection to take them.
const PARTS_QUEUED: usize = 1;

/// The stream of a RangeStream call.
pub(crate) type Parts = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

/// A RangeStream request as a read. Orders and filters that need the whole answer first are refused.
pub fn range_stream_to_op(request: &RangeRequest) -> Result<RangeOp, FaceError> {
    let op = range_to_op(request)?;
    if op.sort.is_some() {
        return Err(FaceError::StreamSorted);
    }
    let filters =
        [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision];
    if filters.iter().any(|filter| *filter != 0) {
        return Err(FaceError::StreamFiltered);
    }
    Ok(op)
}

/// How many items the next part shall have, when `items` took `bytes` and about `wanted_bytes` are wanted:
/// twice or half as many if it was far off.
#[must_use]
pub fn next_part_items(items: u64, bytes: usize, wanted_bytes: usize) -> u64 {
    let next = if bytes < wanted_bytes / 2 {
        items.saturating_mul(2)
    } else if bytes / 2 > wanted_bytes {
        items / 2
    } else {
        items
    };
    next.clamp(1, PART_ITEMS_MAX)
}

fn part(response: RangeResponse) -> RangeStreamResponse {
    RangeStreamResponse { range_response: Some(response) }
}

impl Services {
    pub(crate) async fn stream_range(&self, request: Request<RangeRequest>) -> Result<Response<Parts>, Status> {
        // Serializable or not: a learner streams nothing but snapshots.
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let caller = self.caller(&request);
        let request = request.into_inner();
        let op = range_stream_to_op(&request)?;
        let caller = caller?;
        let consistency = range_consistency(&request);
        if op.projection == Projection::CountOnly {
            let only = self.count_range(&caller, op, consistency).await?;
            return Ok(Response::new(Box::pin(futures_util::stream::iter([Ok(part(only))]))));
        }
        let mut listing = Listing {
            pages: Pages::new(caller.clone(), Arc::clone(&self.coordinator), op.range, op.at, consistency),
            caller,
            keys_only: op.projection == Projection::KeysOnly,
            left: if op.limit == 0 { u64::MAX } else { op.limit },
            next_items: FIRST_PART_ITEMS,
            sent: 0,
            part_bytes: self.config.limits.request_bytes,
            coordinator: Arc::clone(&self.coordinator),
            headers: self.headers.clone(),
        };
        // Read before the stream begins: most refusals are found here, and reach the client as such.
        let first = listing.next_part().await?;
        let (replies, stream) = mpsc::channel(PARTS_QUEUED);
        tokio::spawn(listing.run(first, replies, self.stream_end(required)));
        Ok(Response::new(Box::pin(ReplyStream(stream))))
    }

    async fn count_range(
        &self,
        caller: &Caller,
        op: RangeOp,
        consistency: Consistency,
    ) -> Result<RangeResponse, FaceError> {
        let answer = self.read(caller, Query::Range(op), consistency).await?;
        let QueryAnswer::Op { revision, answer: OpAnswer::Range(found) } = answer else { return Err(MISMATCH) };
        Ok(found_to_response(&found, self.headers.at(revision)))
    }
}

/// A listing under way.
struct Listing {
    caller: Caller,
    pages: Pages,
    keys_only: bool,
    /// How many items the client still wants.
    left: u64,
    next_items: u64,
    sent: u64,
    part_bytes: usize,
    coordinator: Arc<dyn Coordinator>,
    headers: Headers,
}

impl Listing {
    async fn run(
        mut self,
        first: RangeResponse,
        replies: mpsc::Sender<Result<RangeStreamResponse, Status>>,
        mut end: StreamEnd,
    ) {
        let mut next = Ok(first);
        loop {
            let last = next.as_ref().map_or(true, |response| response.header.is_some());
            let reply = next.map(part).map_err(Status::from);
            tokio::select! {
                sent = replies.send(reply) => if sent.is_err() || last { return },
                why = &mut end => {
                    // The queue is full, or this would not wait: there is room only once the client reads.
                    drop(replies.send(Err(why.into())).await);
                    return;
                }
            }
            next = tokio::select! {
                next = self.next_part() => next,
                () = replies.closed() => return,
            };
        }
    }

    /// The next part; the one with a header is the last.
    async fn next_part(&mut self) -> Result<RangeResponse, FaceError> {
        let count = self.next_items.min(self.left);
        let (items, more) = self.pages.next(usize::try_from(count).unwrap_or(usize::MAX)).await?;
        let taken = items.len() as u64;
        self.sent += taken;
        self.left -= taken;
        let mut response = RangeResponse { kvs: wire_items(&items), ..Default::default() };
        if self.keys_only {
            response.kvs.iter_mut().for_each(|item| item.value.clear());
        }
        if more && self.left > 0 {
            self.next_items = next_part_items(self.next_items, response.encoded_len(), self.part_bytes);
            return Ok(response);
        }
        let rest = match items.last().filter(|_| more) {
            Some(last) => self.count(self.pages.rest_after(&last.key)).await?,
            None => 0,
        };
        response.header = Some(self.headers.at(self.pages.begun()));
        response.more = more;
        response.count = wire_number(self.sent + rest);
        Ok(response)
    }

    async fn count(&self, range: KeyRange) -> Result<u64, FaceError> {
        let at = Some(self.pages.at());
        let op = RangeOp { at, projection: Projection::CountOnly, ..RangeOp::all(range) };
        match self
            .coordinator
            .read(self.caller.as_of(&self.coordinator.auth()), Query::Range(op), Consistency::Local)
            .await?
        {
            QueryAnswer::Op { answer: OpAnswer::Range(found), .. } => Ok(found.count),
            _ => Err(MISMATCH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};

    fn refused(change: impl FnOnce(&mut RangeRequest)) -> Option<FaceError> {
        let mut request = RangeRequest { key: "k".into(), ..Default::default() };
        change(&mut request);
        range_stream_to_op(&request).err()
    }

    /// Sorting needs everything at once: saying so beats an answer in another order than asked for.
    #[test]
    fn what_cannot_be_streamed_is_refused() {
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|request| request.sort_order = SortOrder::Ascend.into()), None);
        assert_eq!(refused(|request| request.sort_order = SortOrder::Descend.into()), Some(FaceError::StreamSorted));
        assert_eq!(refused(|request| request.sort_target = SortTarget::Mod.into()), Some(FaceError::StreamSorted));
        assert_eq!(refused(|request| request.min_mod_revision = 1), Some(FaceError::StreamFiltered));
        assert_eq!(refused(|request| request.max_create_revision = -1), Some(FaceError::StreamFiltered));
        assert_eq!(refused(|request| request.key = "".into()), Some(FaceError::EmptyKey));
    }

    /// Parts that stay tiny cost a round each; parts that stay huge cost the memory streaming was to save.
    #[test]
    fn parts_grow_and_shrink_towards_the_size_wanted() {
        assert_eq!(next_part_items(10, 100, 1000), 20);
        assert_eq!(next_part_items(10, 500, 1000), 10);
        assert_eq!(next_part_items(10, 2001, 1000), 10);
        assert_eq!(next_part_items(10, 2002, 1000), 5);
        assert_eq!(next_part_items(1, 9000, 1000), 1);
        assert_eq!(next_part_items(u64::MAX, 0, 1000), PART_ITEMS_MAX);
    }
}
