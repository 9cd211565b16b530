//! `tidelock txn`: one atomic if-then-else.

use std::io::IsTerminal;

use serde_json::{Value, json};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::response_op::Response;

use super::connection::{self, write_failure};
use super::kv::read_stdin;
use super::txn_syntax::{parse_condition, parse_operation, parse_script};
use crate::cli::{Output, TxnArgs};
use crate::failure::Failure;
use crate::output::{Printer, item_json, items_json, revision};

pub(crate) async fn txn(args: &TxnArgs) -> Result<(), Failure> {
    let request = request(args)?;
    let mut client = connection::kv(&args.client).await?;
    let answer = client.txn(request).await.map_err(|status| write_failure(&status))?.into_inner();
    let printer = Printer::new(args.client.output);
    if printer.format == Output::Json {
        let answers: Vec<Value> = answer.responses.iter().map(answer_json).collect();
        return Ok(printer.json(&json!({
            "revision": revision(answer.header.as_ref()),
            "succeeded": answer.succeeded,
            "answers": answers,
        }))?);
    }
    printer.line(if answer.succeeded { "conditions held: then" } else { "conditions did not hold: else" })?;
    for one in &answer.responses {
        match &one.response {
            Some(Response::ResponseRange(range)) => printer.items(&range.kvs, true)?,
            Some(Response::ResponsePut(_)) => printer.line("ok")?,
            Some(Response::ResponseDeleteRange(deleted)) => printer.line(&format!("{} deleted", deleted.deleted))?,
            Some(Response::ResponseTxn(_)) | None => {}
        }
    }
    Ok(())
}

/// From the flags, or from standard input if there are none.
fn request(args: &TxnArgs) -> Result<pb::TxnRequest, Failure> {
    const SEE: &str = "see `tidelock txn --help` for the syntax";
    let usage = |why: String| Failure::usage(why).hint(SEE);
    let from_flags = !(args.conditions.is_empty() && args.success.is_empty() && args.failure.is_empty());
    let request = if from_flags {
        pb::TxnRequest {
            compare: args
                .conditions
                .iter()
                .map(|text| parse_condition(text))
                .collect::<Result<_, _>>()
                .map_err(usage)?,
            success: args.success.iter().map(|text| parse_operation(text)).collect::<Result<_, _>>().map_err(usage)?,
            failure: args.failure.iter().map(|text| parse_operation(text)).collect::<Result<_, _>>().map_err(usage)?,
        }
    } else {
        if std::io::stdin().is_terminal() {
            eprintln!(
                "reading the transaction from standard input, one `if`, `then` or `else` to a line; end with Ctrl-D"
            );
        }
        let script = String::from_utf8(read_stdin()?).map_err(|_| usage("standard input is not UTF-8".into()))?;
        parse_script(&script).map_err(usage)?
    };
    if request.success.is_empty() && request.failure.is_empty() {
        return Err(usage("the transaction does nothing".into()));
    }
    Ok(request)
}

fn answer_json(answer: &pb::ResponseOp) -> Value {
    match &answer.response {
        Some(Response::ResponseRange(range)) => {
            json!({ "get": { "count": range.count, "more": range.more, "items": items_json(&range.kvs, true) } })
        }
        Some(Response::ResponsePut(put)) => {
            json!({ "put": { "previous": put.prev_kv.as_ref().map(|item| item_json(item, true)) } })
        }
        Some(Response::ResponseDeleteRange(deleted)) => json!({ "del": { "deleted": deleted.deleted } }),
        Some(Response::ResponseTxn(_)) | None => Value::Null,
    }
}
