//! `tidelock history`: the versions of one key or znode, through the admin API.

use serde_json::json;
use time::OffsetDateTime;

use super::member::parse_urls;
use crate::admin_client;
use crate::admin_history::{AskHistory, HistoryReport, VersionReport};
use crate::cli::{HistoryArgs, Output};
use crate::failure::Failure;
use crate::output::{Printer, escaped, table};

/// Characters of data in a row of the table.
const DATA_SHOWN: usize = 60;

pub(crate) async fn history(args: &HistoryArgs) -> Result<(), Failure> {
    let printer = Printer::new(args.admin.output);
    let asked = asked(args);
    let mut last = Failure::usage("no admin address is given");
    for url in parse_urls(&args.admin)? {
        match admin_client::history(&url, &asked).await {
            Ok(report) if printer.format == Output::Json => return Ok(printer.json(&json!(report))?),
            Ok(report) => return Ok(printer.line(&text(&report))?),
            // Only reading: the next one may be asked whatever this one said, unless the question is wrong.
            Err(error) if error.code() == Some("bad-request") => {
                return Err(Failure::usage(error.to_string()).hint(error.hint()));
            }
            Err(error) => last = Failure::new(error.to_string()).hint(error.hint()),
        }
    }
    Err(last)
}

/// `zk:/path` is a znode, everything else a key; `key:` before a key that begins with either.
fn asked(args: &HistoryArgs) -> AskHistory {
    let limits = AskHistory {
        before: args.before,
        limit: args.limit,
        data_bytes: args.data_bytes,
        local: args.local,
        ..AskHistory::default()
    };
    match args.of.strip_prefix("zk:") {
        Some(path) => AskHistory { znode: Some(path.to_owned()), ..limits },
        None => AskHistory { key: Some(args.of.strip_prefix("key:").unwrap_or(&args.of).to_owned()), ..limits },
    }
}

fn text(report: &HistoryReport) -> String {
    let mut rows = vec![["REVISION", "TIME", "KIND", "VERSION", "OWNER", "BYTES", "DATA"].map(str::to_owned).to_vec()];
    rows.extend(report.versions.iter().map(row));
    let mut lines = vec![if report.versions.is_empty() { "no versions are held".to_owned() } else { table(&rows) }];
    if let Some(first) = report.versions.first().filter(|_| report.more) {
        lines.push(format!("there are earlier ones: --before {}", first.revision));
    }
    lines.push(format!(
        "revision now: {}; what was superseded before revision {} is forgotten",
        report.revision, report.oldest
    ));
    lines.join("\n")
}

fn row(version: &VersionReport) -> Vec<String> {
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let data = version.data.as_deref().map(|data| escaped(data.as_bytes()).replace(['\n', '\t'], " "));
    let data = data.or_else(|| version.data_hex.as_ref().map(|hex| format!("0x{hex}"))).unwrap_or_default();
    let whole = version.bytes.is_none_or(|bytes| {
        let shown = version.data.as_ref().map_or(version.data_hex.as_ref().map_or(0, |hex| hex.len() / 2), String::len);
        shown as u64 >= bytes
    });
    let mut shown: String = data.chars().take(DATA_SHOWN).collect();
    if !whole || data.chars().count() > DATA_SHOWN {
        shown.push_str("...");
    }
    vec![
        version.revision.to_string(),
        dash(version.time_ms.map(time_text)),
        version.kind.clone(),
        dash(version.version.map(|version| version.to_string())),
        dash(version.owner.clone()),
        dash(version.bytes.map(|bytes| bytes.to_string())),
        shown,
    ]
}

/// UTC, to the millisecond.
fn time_text(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let Ok(at) = OffsetDateTime::from_unix_timestamp(seconds) else { return format!("{ms} ms") };
    let (date, month) = (at.date(), u8::from(at.month()));
    let (hour, minute, second) = at.to_hms();
    format!("{}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", date.year(), date.day(), ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(time_text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time_text(1_709_210_096_789), "2024-02-29T12:34:56.789Z");
        assert_eq!(time_text(u64::MAX), format!("{} ms", u64::MAX));
    }

    /// A value must not be able to reprogram the operator's terminal or to pass for another row.
    #[test]
    fn data_stays_in_its_row() {
        let version = VersionReport {
            revision: 7,
            kind: "changed".into(),
            time_ms: None,
            version: Some(1),
            owner: None,
            bytes: Some(12),
            data: Some("a\x1b[2J\nb".into()),
            data_hex: None,
        };
        assert_eq!(row(&version), ["7", "-", "changed", "1", "-", "12", "a\\x1b[2J b..."]);
    }
}
