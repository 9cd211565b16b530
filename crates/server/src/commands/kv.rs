//! `tidelock get`, `put` and `del`.

use std::io::Read;

use serde_json::json;
use tidelock_etcd_api::etcdserverpb as pb;

use super::connection::{self, read_failure, wire_range, write_failure};
use crate::cli::{DelArgs, GetArgs, Output, PutArgs};
use crate::failure::Failure;
use crate::output::{Printer, item_json, items_json, revision};

/// More than any node takes as a value; larger input is a mistake that must not fill our memory.
const STDIN_BYTES_MAX: u64 = 16 << 20;

pub(crate) async fn get(args: &GetArgs) -> Result<(), Failure> {
    let (key, range_end) = wire_range(&args.keys)?;
    let order =
        if args.descending { pb::range_request::SortOrder::Descend } else { pb::range_request::SortOrder::None };
    let request = pb::RangeRequest {
        key,
        range_end,
        limit: args.limit,
        revision: args.rev,
        sort_order: order.into(),
        serializable: args.local,
        keys_only: args.keys_only,
        count_only: args.count_only,
        ..pb::RangeRequest::default()
    };
    let mut client = connection::kv(&args.client).await?;
    let answer = client.range(request).await.map_err(|status| read_failure(&status))?.into_inner();
    let printer = Printer::new(args.client.output);
    if printer.format == Output::Json {
        return Ok(printer.json(&json!({
            "revision": revision(answer.header.as_ref()),
            "count": answer.count,
            "more": answer.more,
            "items": items_json(&answer.kvs, !args.keys_only),
        }))?);
    }
    if args.count_only {
        printer.line(&answer.count.to_string())?;
    } else if args.value_only {
        for item in &answer.kvs {
            printer.raw_line(&item.value)?;
        }
    } else {
        printer.items(&answer.kvs, !args.keys_only)?;
    }
    if answer.more {
        eprintln!("{} of {} keys shown; raise --limit for more", answer.kvs.len(), answer.count);
    }
    Ok(())
}

pub(crate) async fn put(args: &PutArgs) -> Result<(), Failure> {
    let value = if args.value == "-" { read_stdin()? } else { args.value.clone().into_bytes() };
    let request = pb::PutRequest {
        key: args.key.clone().into(),
        value: value.into(),
        lease: args.lease,
        prev_kv: args.prev,
        ..pb::PutRequest::default()
    };
    let mut client = connection::kv(&args.client).await?;
    let answer = client.put(request).await.map_err(|status| write_failure(&status))?.into_inner();
    let printer = Printer::new(args.client.output);
    let revision = revision(answer.header.as_ref());
    if printer.format == Output::Json {
        let previous = answer.prev_kv.as_ref().map(|item| item_json(item, true));
        return Ok(printer.json(&json!({ "revision": revision, "previous": previous }))?);
    }
    printer.line(&format!("ok, revision {revision}"))?;
    if let Some(previous) = &answer.prev_kv {
        printer.bytes_line("was ", &previous.value)?;
    }
    Ok(())
}

pub(crate) async fn del(args: &DelArgs) -> Result<(), Failure> {
    let (key, range_end) = wire_range(&args.keys)?;
    let request = pb::DeleteRangeRequest { key, range_end, prev_kv: args.prev };
    let mut client = connection::kv(&args.client).await?;
    let answer = client.delete_range(request).await.map_err(|status| write_failure(&status))?.into_inner();
    let printer = Printer::new(args.client.output);
    if printer.format == Output::Json {
        return Ok(printer.json(&json!({
            "revision": revision(answer.header.as_ref()),
            "deleted": answer.deleted,
            "previous": items_json(&answer.prev_kvs, true),
        }))?);
    }
    printer.line(&format!("{} deleted", answer.deleted))?;
    printer.items(&answer.prev_kvs, true)?;
    Ok(())
}

/// All of standard input, byte for byte.
pub(super) fn read_stdin() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(STDIN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format!("reading standard input failed: {error}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Failure::usage("standard input has more bytes than a value may have").hint("store less per key"));
    }
    Ok(bytes)
}
