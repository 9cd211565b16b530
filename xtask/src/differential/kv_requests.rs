//! Random ranges, puts, deletes and compactions.

use tidelock_etcd_api::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest};

use super::call::Call;
use super::keys::{key, one_in, range_end, value};
use super::world::{World, odd_number};
use crate::random::Random;

/// A value beyond what one request may carry.
const TOO_LARGE: usize = 1_600_000;

/// A read, a put or a delete.
pub(super) fn call(random: &mut Random, world: &World) -> Call {
    match random.below(100) {
        0..50 => Call::Range(range(random, world)),
        50..54 => Call::RangeStream(range_to_stream(random, world)),
        54..86 => Call::Put(put(random, world)),
        86..98 => Call::DeleteRange(delete(random)),
        _ if one_in(random, 300) => {
            Call::Put(PutRequest { key: key(random), value: vec![b'x'; TOO_LARGE].into(), ..PutRequest::default() })
        }
        _ => Call::Put(put(random, world)),
    }
}

/// A range with every option now and then.
pub(super) fn range(random: &mut Random, world: &World) -> RangeRequest {
    let key = key(random);
    let mut request = RangeRequest { range_end: range_end(random, &key), key, ..RangeRequest::default() };
    request.revision = world.revision_to_read(random);
    request.serializable = one_in(random, 4);
    request.keys_only = one_in(random, 8);
    request.count_only = one_in(random, 10);
    if one_in(random, 4) {
        request.limit = match random.below(6) {
            0 => odd_number(random),
            _ => random.below(8) as i64,
        };
    }
    if one_in(random, 3) {
        request.sort_order = random.below(3) as i32;
        request.sort_target = random.below(5) as i32;
    }
    if one_in(random, 150) {
        request.sort_order = 9;
    }
    if one_in(random, 150) {
        request.sort_target = -1;
    }
    let bounds = [
        &mut request.min_mod_revision,
        &mut request.max_mod_revision,
        &mut request.min_create_revision,
        &mut request.max_create_revision,
    ];
    for bound in bounds {
        if one_in(random, 20) {
            *bound = world.number_to_compare(random);
        }
    }
    request
}

/// Mostly what RangeStream takes: it refuses orders and bounds.
fn range_to_stream(random: &mut Random, world: &World) -> RangeRequest {
    let mut request = range(random, world);
    if !one_in(random, 4) {
        let RangeRequest { key, range_end, limit, revision, serializable, keys_only, count_only, .. } = request;
        let plain = RangeRequest::default();
        request = RangeRequest { key, range_end, limit, revision, serializable, keys_only, count_only, ..plain };
    }
    request
}

/// A put with every option now and then, contradictory ones among them.
pub(super) fn put(random: &mut Random, world: &World) -> PutRequest {
    let mut request = PutRequest { key: key(random), value: value(random), ..PutRequest::default() };
    request.prev_kv = one_in(random, 3);
    if one_in(random, 5) {
        request.lease = world.lease(random);
    }
    if one_in(random, 10) {
        request.ignore_value = true;
        if !one_in(random, 5) {
            request.value.clear();
        }
    }
    if one_in(random, 10) {
        request.ignore_lease = true;
        if !one_in(random, 5) {
            request.lease = 0;
        }
    }
    request
}

/// A delete; seldom of everything, or there would be nothing left to ask for.
pub(super) fn delete(random: &mut Random) -> DeleteRangeRequest {
    let key = key(random);
    let mut range_end = range_end(random, &key);
    if range_end == "\0" && !one_in(random, 8) {
        range_end.clear();
    }
    DeleteRangeRequest { key, range_end, prev_kv: one_in(random, 3) }
}

/// A compaction: mostly of a revision that is there, else of one that is gone, to come or nonsense.
pub(super) fn compaction(random: &mut Random, world: &World) -> CompactionRequest {
    let revision = match random.below(10) {
        0 => world.compacted - 1 + random.below(3) as i64,
        1 => world.revision + 1 + random.below(3) as i64,
        2 => odd_number(random),
        3 => 0,
        4 => world.revision,
        _ => world.past(random),
    };
    CompactionRequest { revision, physical: one_in(random, 10) }
}
