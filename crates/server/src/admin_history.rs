//! `POST /v1/history`: the versions of one key or znode, back to the compaction horizon.
//!
//! Only the admin address answers this, and it asks no list of rights: whoever reaches it reads everything, as with
//! a snapshot. No client of ZooKeeper's or etcd's gets at a version that it could not have read.
//!
//! A `POST` although nothing changes: paths and keys are in a body, where they need no encoding, and a web page of
//! another origin is refused.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidelock_coordinator::Consistency;
use tidelock_model::limits::{HISTORY_BYTES_MAX, HISTORY_VERSIONS_MAX, KEY_BYTES_MAX};
use tidelock_model::{
    Caller, HistoryOf, HistoryQuery, Key, KeyVersion, Query, QueryAnswer, Revision, Space, VersionKind,
};

use crate::admin::{Admin, Refused, parse};
use crate::output::lease_text;

/// Versions told when nobody says how many.
const LIMIT_DEFAULT: usize = 100;
/// Bytes of data shown of each when nobody says how many.
const DATA_BYTES_DEFAULT: usize = 256;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskHistory {
    /// A key of etcd's; this or `znode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The path of a znode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) znode: Option<String>,
    /// Only versions before this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<u64>,
    /// The newest so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
    /// Bytes of data shown of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data_bytes: Option<usize>,
    /// What the node has, even if it is behind; works without a majority.
    #[serde(default)]
    pub(crate) local: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryReport {
    /// The store's revision now.
    pub(crate) revision: u64,
    /// The compaction horizon: what was superseded before this revision is forgotten.
    pub(crate) oldest: u64,
    /// There are earlier versions than the first one here: ask again with its revision as `before`.
    pub(crate) more: bool,
    /// Oldest first.
    pub(crate) versions: Vec<VersionReport>,
}

/// One version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VersionReport {
    /// The revision at which it came to be; a ZooKeeper client knows it as a zxid.
    pub(crate) revision: u64,
    /// `created`, `changed` or `deleted`.
    pub(crate) kind: String,
    /// Milliseconds since 1970 by the leader's clock; known of znodes that were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<i64>,
    /// The session or lease it belonged to, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// How long its data is; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// The beginning of its data, if that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    /// The same in hex, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data_hex: Option<String>,
}

impl VersionReport {
    fn new(version: &KeyVersion) -> VersionReport {
        let (data, data_hex) = match (version.data_length, text_of(version)) {
            (None, _) => (None, None),
            (Some(_), Some(text)) => (Some(text.to_owned()), None),
            (Some(_), None) => (None, Some(version.data.iter().map(|byte| format!("{byte:02x}")).collect())),
        };
        VersionReport {
            revision: version.revision.0,
            kind: match version.kind {
                VersionKind::Created => "created",
                VersionKind::Changed => "changed",
                VersionKind::Deleted => "deleted",
            }
            .to_owned(),
            time_ms: version.at_ms,
            version: version.version,
            owner: version.lease.is_some().then(|| lease_text(version.lease.0)),
            bytes: version.data_length,
            data,
            data_hex,
        }
    }
}

/// The data as text, if it is. A character that was cut in half at the end does not make it none.
fn text_of(version: &KeyVersion) -> Option<&str> {
    match std::str::from_utf8(&version.data) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && version.data_length > Some(version.data.len() as u64) => {
            std::str::from_utf8(&version.data[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// Answers `POST /v1/history`.
pub(crate) async fn history(State(admin): State<Admin>, body: Bytes) -> Result<Json<HistoryReport>, Refused> {
    const SEND: &str = r#"send {"znode": "/path"} or {"key": "name"}"#;
    let asked: AskHistory = parse(&body, SEND)?;
    let of = match (asked.key, asked.znode) {
        (Some(key), None) if key.len() <= KEY_BYTES_MAX => HistoryOf::Key(Key::new(Space::User, key.as_bytes())),
        (None, Some(path)) if path.starts_with('/') && path.len() <= KEY_BYTES_MAX => HistoryOf::Znode(path),
        (None, Some(path)) => {
            return Err(Refused::bad_request(format!("{path:?} is not the path of a znode"), "begin it with a slash"));
        }
        (Some(_), None) => return Err(Refused::bad_request("the key is too long", "send a key that can exist")),
        _ => return Err(Refused::bad_request("one key or one znode is meant", SEND)),
    };
    let query = HistoryQuery {
        of,
        before: asked.before.map(Revision),
        max: asked.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, HISTORY_VERSIONS_MAX),
        data_bytes: asked.data_bytes.unwrap_or(DATA_BYTES_DEFAULT).min(HISTORY_BYTES_MAX),
    };
    let consistency = if asked.local { Consistency::Local } else { Consistency::Linearizable };
    let answer = admin.coordinator.read(Caller::Internal, Query::History(query), consistency).await?;
    let QueryAnswer::History { revision, history } = answer else {
        unreachable!("Query::History is answered by a history");
    };
    let versions = history.versions.iter().rev().map(VersionReport::new).collect();
    Ok(Json(HistoryReport { revision: revision.0, oldest: history.oldest.0, more: history.more, versions }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::LeaseId;

    fn version(data: &[u8], length: u64) -> KeyVersion {
        KeyVersion {
            revision: Revision(7),
            kind: VersionKind::Changed,
            at_ms: None,
            version: Some(2),
            lease: LeaseId(0x1f),
            data_length: Some(length),
            data: Bytes::copy_from_slice(data),
        }
    }

    /// Data is bytes: what is not text must come back as it was, and text that was cut must stay readable.
    #[test]
    fn data_is_told_as_text_if_it_is_text_and_in_hex_otherwise() {
        let told = |data: &[u8], length| {
            let report = VersionReport::new(&version(data, length));
            (report.data, report.data_hex)
        };
        assert_eq!(told("é".as_bytes(), 2), (Some("é".to_owned()), None));
        assert_eq!(told(b"caf\xc3", 5), (Some("caf".to_owned()), None), "cut in the middle of a character");
        assert_eq!(told(b"caf\xc3", 4), (None, Some("636166c3".to_owned())), "that is all there is");
        assert_eq!(told(b"\xff\0", 2), (None, Some("ff00".to_owned())));
        assert_eq!(VersionReport::new(&version(b"", 0)).owner.as_deref(), Some("000000000000001f"));
    }
}
