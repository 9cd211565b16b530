//! How answers are printed: for people, or as JSON for programs.
//!
//! Keys and values are bytes. Into a pipe or file they go as they are, so that `tidelock get config |
//! jq` works. On a terminal, control characters are shown as `\x1b` instead of being obeyed: a value
//! must not be able to reprogram the operator's terminal. In JSON, bytes that are not UTF-8 appear in
//! hex under `key_hex` or `value_hex` instead of `key` or `value`.

use std::io::{self, IsTerminal, Write};

use serde_json::{Map, Value, json};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::mvccpb;

use crate::cli::Output;

/// Prints answers to standard output.
pub(crate) struct Printer {
    pub(crate) format: Output,
    escape: bool,
}

impl Printer {
    pub(crate) fn new(format: Output) -> Printer {
        Printer { format, escape: io::stdout().is_terminal() }
    }

    /// One JSON document on a line of its own.
    pub(crate) fn json(&self, value: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{value}")?;
        out.flush()
    }

    /// A line of our own words.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// A line of somebody's bytes, with our own words before it.
    pub(crate) fn bytes_line(&self, before: &str, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(before.as_bytes())?;
        if self.escape {
            out.write_all(escaped(bytes).as_bytes())?;
        } else {
            out.write_all(bytes)?;
        }
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Bytes as they are, whoever reads them.
    pub(crate) fn raw_line(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// The items of a range answer: a line with the key, then one with the value.
    pub(crate) fn items(&self, items: &[mvccpb::KeyValue], with_values: bool) -> io::Result<()> {
        for item in items {
            self.bytes_line("", &item.key)?;
            if with_values {
                self.bytes_line("", &item.value)?;
            }
        }
        Ok(())
    }
}

/// Bytes with everything a terminal could obey made visible; newlines and tabs stay.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() && c != '\n' && c != '\t' {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Puts bytes under `name`, or in hex under `name_hex` if they are not UTF-8.
fn insert_bytes(map: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => map.insert(name.to_owned(), json!(text)),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            map.insert(format!("{name}_hex"), json!(hex))
        }
    };
}

/// A key with its value and versions.
pub(crate) fn item_json(item: &mvccpb::KeyValue, with_value: bool) -> Value {
    let mut map = Map::new();
    insert_bytes(&mut map, "key", &item.key);
    if with_value {
        insert_bytes(&mut map, "value", &item.value);
    }
    map.insert("create_revision".into(), json!(item.create_revision));
    map.insert("mod_revision".into(), json!(item.mod_revision));
    map.insert("version".into(), json!(item.version));
    if item.lease != 0 {
        map.insert("lease".into(), json!(lease_text(item.lease)));
    }
    Value::Object(map)
}

/// A key alone.
pub(crate) fn key_json(key: &[u8]) -> Value {
    let mut map = Map::new();
    insert_bytes(&mut map, "key", key);
    Value::Object(map)
}

/// Several keys with their values and versions.
pub(crate) fn items_json(items: &[mvccpb::KeyValue], with_values: bool) -> Value {
    items.iter().map(|item| item_json(item, with_values)).collect()
}

/// A lease id, as `etcdctl` and we print it.
pub(crate) fn lease_text(id: i64) -> String {
    format!("{id:016x}")
}

/// The revision an answer's header carries.
pub(crate) fn revision(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// Rows with columns as wide as their widest cell; the first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A size, as people say it.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = bytes;
    while scaled >= 10_240 && unit + 1 < UNITS.len() {
        scaled /= 1024;
        unit += 1;
    }
    format!("{scaled} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anyone may store a value; printing it must not let them drive the operator's terminal.
    #[test]
    fn control_characters_in_values_do_not_reach_the_terminal() {
        assert_eq!(escaped(b"a\x1b[2Jb\r\n\xff"), "a\\x1b[2Jb\\x0d\n\\xff");
        assert_eq!(escaped("h\u{e9}\tz\u{9b}".as_bytes()), "h\u{e9}\tz\\x9b");
    }

    /// Values are bytes; JSON output that silently replaced some would corrupt what a script copies.
    #[test]
    fn bytes_that_are_not_text_stay_recoverable_in_json() {
        let item = mvccpb::KeyValue { key: "k".into(), value: vec![0xff, 0].into(), ..Default::default() };
        let json = item_json(&item, true);
        assert_eq!(json["key"], "k");
        assert_eq!(json["value_hex"], "ff00");
        assert!(json.get("value").is_none());
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "bb".into()], vec!["ccc".to_owned(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d");
    }
}
