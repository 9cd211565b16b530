//! `tidelock status`: every member in one table.
//!
//! The nodes named by `--admin` are asked, all at once. Members nobody was named for still get a row,
//! with what the others know of them, so that a node that is down is seen, not forgotten.

use futures_util::future::join_all;
use serde_json::json;

use super::member::parse_urls;
use crate::admin_api::{MemberList, StatusReport};
use crate::admin_client::{self, AdminUrl, CallError};
use crate::cli::{Output, StatusArgs};
use crate::failure::Failure;
use crate::output::{Printer, bytes_text, table};

/// What one node answered.
struct Asked {
    url: AdminUrl,
    answer: Result<StatusReport, CallError>,
}

pub(crate) async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let urls = parse_urls(&args.admin)?;
    let asked: Vec<Asked> =
        join_all(urls.into_iter().map(|url| async { Asked { answer: admin_client::status(&url).await, url } })).await;
    let reports: Vec<&StatusReport> = asked.iter().filter_map(|asked| asked.answer.as_ref().ok()).collect();
    let members = match asked.iter().find(|asked| asked.answer.is_ok()) {
        Some(asked) => admin_client::members(&asked.url).await.ok(),
        None => None,
    };
    let printer = Printer::new(args.admin.output);
    let diverged = diverged(&reports);
    if printer.format == Output::Json {
        let unreachable: Vec<String> =
            asked.iter().filter_map(|asked| asked.answer.as_ref().err()).map(ToString::to_string).collect();
        printer.json(&json!({
            "nodes": reports,
            "members": members.as_ref().map(|list| &list.members),
            "unreachable": unreachable,
            "diverged": !diverged.is_empty(),
        }))?;
    } else if !reports.is_empty() {
        printer.line(&table(&rows(&reports, members.as_ref(), &diverged)))?;
    }
    verdict(&asked, &diverged)
}

/// The nodes whose digest differs from another's at the same applied index. Nodes at different
/// indexes cannot be compared.
fn diverged(reports: &[&StatusReport]) -> Vec<String> {
    let differs = |one: &&&StatusReport| {
        reports
            .iter()
            .any(|other| other.cluster == one.cluster && other.applied == one.applied && other.digest != one.digest)
    };
    reports.iter().filter(differs).map(|report| report.node.clone()).collect()
}

fn rows(reports: &[&StatusReport], members: Option<&MemberList>, diverged: &[String]) -> Vec<Vec<String>> {
    const DIGEST_DIGITS: usize = 12;
    let heading = [
        "NODE",
        "NAME",
        "ROLE",
        "LEADER",
        "TERM",
        "COMMITTED",
        "APPLIED",
        "LAG",
        "REVISION",
        "DIGEST",
        "KEYS",
        "LEASES",
        "DISK",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for report in reports {
        let mark = if diverged.contains(&report.node) { "!" } else { "" };
        let digest = report.digest.get(..DIGEST_DIGITS).unwrap_or(&report.digest);
        let disk = bytes_text(report.disk_bytes) + if report.disk_full { " FULL" } else { "" };
        rows.push(vec![
            report.node.clone(),
            report.name.clone(),
            report.role.clone(),
            report.leader.clone().unwrap_or_else(|| "none".into()),
            report.term.to_string(),
            report.committed.to_string(),
            report.applied.to_string(),
            report.lag.to_string(),
            report.revision.to_string(),
            format!("{digest}{mark}"),
            report.keys.to_string(),
            report.leases.to_string(),
            disk,
        ]);
    }
    for member in members.map(|list| list.members.as_slice()).unwrap_or_default() {
        if reports.iter().any(|report| report.node == member.id) {
            continue;
        }
        let seen = |report: &&StatusReport| report.peers.iter().any(|peer| peer.node == member.id && peer.connected);
        let note =
            if reports.iter().any(seen) { "up, not asked (add its --admin)" } else { "not asked, no link to it" };
        rows.push(vec![member.id.clone(), member.name.clone(), member.role.clone(), note.to_owned()]);
    }
    rows
}

/// Success only if everybody who was asked answered and nobody disagrees.
fn verdict(asked: &[Asked], diverged: &[String]) -> Result<(), Failure> {
    if !diverged.is_empty() {
        return Err(Failure::new(format!("replicas disagree at the same index: {}", diverged.join(", ")))
            .hint("this must never happen: stop writing, keep all data directories, and report it"));
    }
    let failed: Vec<&CallError> = asked.iter().filter_map(|asked| asked.answer.as_ref().err()).collect();
    match failed.first() {
        None => Ok(()),
        Some(first) => {
            let all: Vec<String> = failed.iter().map(ToString::to_string).collect();
            Err(Failure::new(all.join("\n       ")).hint(first.hint()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: &str, applied: u64, digest: &str) -> StatusReport {
        serde_json::from_value(json!({
            "version": "0", "name": node, "cluster": "1", "node": node, "role": "follower", "leader": null,
            "ready": true, "term": 1, "committed": applied, "applied": applied, "lag": 0, "revision": 1,
            "compacted": 1, "digest": digest, "keys": 0, "leases": 0, "watchers": 0, "data_bytes": 0,
            "disk_bytes": 0, "disk_full": false, "proposals_waiting": 0, "proposals_failed": 0,
            "leader_changes": 0, "peers": [],
        }))
        .unwrap()
    }

    /// R5: replicas that disagree must be pointed out, and nodes merely at different places in the log
    /// must not be accused.
    #[test]
    fn digests_are_compared_at_equal_indexes_only() {
        let (a, b, c) = (report("a", 5, "x"), report("b", 5, "x"), report("c", 4, "y"));
        assert_eq!(diverged(&[&a, &b, &c]), Vec::<String>::new());
        let d = report("d", 5, "z");
        assert_eq!(diverged(&[&a, &b, &c, &d]), ["a", "b", "d"]);
    }
}
