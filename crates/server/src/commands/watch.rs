//! `tidelock watch`: prints changes as they happen.
//!
//! When the node goes away the watch is resumed at the next endpoint from the revision after the last
//! one printed, so nothing is lost or repeated. If that revision has been compacted meanwhile, changes
//! would be missing: the command ends and says so.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::mvccpb;
use tokio::sync::mpsc;
use tonic::Code;

use super::connection::{self, read_failure, wire_range};
use crate::cli::{ClientArgs, Output, WatchArgs};
use crate::failure::Failure;
use crate::output::{Printer, item_json};

/// Attempts to find a node again before the command gives up, a second apart.
const RESUME_ATTEMPTS_MAX: u32 = 60;
const RESUME_PAUSE: Duration = Duration::from_secs(1);

/// How one stream ended.
enum Ended {
    /// As many changes were printed as were asked for.
    Enough,
    /// The node went away.
    Lost(String),
}

struct Watch<'a> {
    args: &'a WatchArgs,
    printer: Printer,
    /// The first revision not printed yet; zero is "now".
    next_revision: i64,
    printed: u64,
    /// Whether a node ever took the watch: before that, waiting for one only hides a wrong endpoint.
    begun: bool,
}

pub(crate) async fn watch(args: &WatchArgs) -> Result<(), Failure> {
    let mut watch =
        Watch { args, printer: Printer::new(args.client.output), next_revision: args.rev, printed: 0, begun: false };
    let mut client = args.client.clone();
    let mut attempts = 0;
    loop {
        let printed_before = watch.printed;
        let why = match watch.run(&client).await? {
            Ended::Enough => return Ok(()),
            Ended::Lost(why) => why,
        };
        attempts = if watch.printed > printed_before { 1 } else { attempts + 1 };
        if attempts > RESUME_ATTEMPTS_MAX {
            return Err(Failure::new(format!("the watch was lost and no node takes it up again: {why}"))
                .hint(format!("resume with --rev {} once `tidelock status` looks well", watch.next_revision)));
        }
        eprintln!("watch lost ({why}); resuming from revision {}", watch.next_revision);
        next_endpoint_first(&mut client);
        tokio::time::sleep(RESUME_PAUSE).await;
    }
}

fn next_endpoint_first(client: &mut ClientArgs) {
    client.endpoints.rotate_left(1);
}

impl Watch<'_> {
    async fn run(&mut self, client: &ClientArgs) -> Result<Ended, Failure> {
        let (key, range_end) = wire_range(&self.args.keys)?;
        let mut watches = match connection::watches(client).await {
            Ok(watches) => watches,
            Err(failure) if self.begun => return Ok(Ended::Lost(failure.to_string())),
            Err(failure) => return Err(failure),
        };
        let create = pb::WatchCreateRequest {
            key,
            range_end,
            start_revision: self.next_revision,
            prev_kv: self.args.prev,
            ..pb::WatchCreateRequest::default()
        };
        let (requests, queue) = mpsc::channel(1);
        let request = pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) };
        // The queue is empty and has room for one. The sender stays alive to keep our half open.
        let _ = requests.try_send(request);
        let outgoing = stream::unfold(queue, |mut queue| async move { queue.recv().await.map(|next| (next, queue)) });
        let mut answers = match watches.watch(outgoing.boxed()).await {
            Ok(answers) => answers.into_inner(),
            Err(status) if self.begun => return lost_or_failed(&status),
            Err(status) => return Err(read_failure(&status)),
        };
        loop {
            match answers.message().await {
                Ok(Some(answer)) => {
                    if let Some(ended) = self.take(&answer)? {
                        return Ok(ended);
                    }
                }
                Ok(None) => return Ok(Ended::Lost("the node ended the stream".into())),
                Err(status) => return lost_or_failed(&status),
            }
        }
    }

    /// Prints what one answer brings.
    fn take(&mut self, answer: &pb::WatchResponse) -> Result<Option<Ended>, Failure> {
        if answer.canceled {
            return Err(cancelled(answer));
        }
        self.begun |= answer.created;
        if answer.created && self.next_revision == 0 {
            // From here on "now" is a revision, so that a resumed watch leaves no gap.
            self.next_revision = answer.header.as_ref().map_or(0, |header| header.revision + 1);
        }
        for event in &answer.events {
            self.print(event)?;
            self.printed += 1;
            if self.args.events.is_some_and(|max| self.printed >= max) {
                return Ok(Some(Ended::Enough));
            }
        }
        if let Some(last) = answer.events.last().and_then(|event| event.kv.as_ref())
            && !answer.fragment
        {
            self.next_revision = self.next_revision.max(last.mod_revision + 1);
        }
        Ok(None)
    }

    fn print(&self, event: &mvccpb::Event) -> Result<(), Failure> {
        let item = event.kv.clone().unwrap_or_default();
        let is_put = event.r#type == i32::from(mvccpb::event::EventType::Put);
        let word = if is_put { "put" } else { "delete" };
        if self.printer.format == Output::Json {
            let previous = event.prev_kv.as_ref().map(|previous| item_json(previous, true));
            let change = item_json(&item, is_put);
            return Ok(self.printer.json(&json!({ "change": word, "item": change, "previous": previous }))?);
        }
        self.printer.bytes_line(&format!("{word} at revision {}: ", item.mod_revision), &item.key)?;
        if is_put {
            self.printer.bytes_line("  ", &item.value)?;
        }
        if let Some(previous) = &event.prev_kv {
            self.printer.bytes_line("  was ", &previous.value)?;
        }
        Ok(())
    }
}

fn lost_or_failed(status: &tonic::Status) -> Result<Ended, Failure> {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal | Code::DeadlineExceeded => {
            Ok(Ended::Lost(status.message().to_owned()))
        }
        _ => Err(read_failure(status)),
    }
}

fn cancelled(answer: &pb::WatchResponse) -> Failure {
    if answer.compact_revision > 0 {
        let oldest = answer.compact_revision;
        return Failure::new(format!("history up to revision {oldest} was compacted, so changes would be missing"))
            .hint(format!("read the keys afresh, or watch from --rev {} on", oldest + 1));
    }
    let reason = if answer.cancel_reason.is_empty() { "it gave no reason" } else { &answer.cancel_reason };
    Failure::new(format!("the node ended the watch: {reason}"))
}
