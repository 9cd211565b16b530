//! Names for what no two servers can have in common: zxids, session ids, times.
//!
//! - A zxid is called by the operation of the round that made it. Zxids that one server alone used up (ZooKeeper
//!   spends one on a refused write) count to the operation before.
//! - A session is called by its number in the round.
//! - Of a time only this is compared: whether it is about now, and that a znode whose data was never changed has both
//!   times alike.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{Field, Item, Value};

/// A time this far from now is not about now.
const NOW_MS: u64 = 3_600_000;

/// The names that one side's numbers have.
#[derive(Default)]
pub(super) struct Names {
    /// For each labelled operation the highest zxid before it, and its own; in order.
    made: Vec<Made>,
    sessions: HashMap<i64, String>,
    /// The highest zxid seen.
    pub(super) highest: i64,
}

struct Made {
    after: i64,
    zxid: i64,
    label: u64,
}

impl Names {
    /// No names yet, at a server that has come to this zxid.
    pub(super) fn after(highest: i64) -> Names {
        Names { highest, ..Names::default() }
    }

    /// Operation `label` moved the zxid from `after` to the highest seen now.
    pub(super) fn label(&mut self, label: u64, after: i64) {
        self.made.push(Made { after, zxid: self.highest, label });
    }

    /// Gives a session its number.
    pub(super) fn session(&mut self, id: i64, number: u64) {
        self.sessions.insert(id, format!("session {number}"));
    }

    /// Learns the highest zxid from what came.
    pub(super) fn learn<'a>(&mut self, items: impl IntoIterator<Item = &'a Item>) {
        let highest = items.into_iter().filter_map(Item::zxid).max();
        self.highest = self.highest.max(highest.unwrap_or(0));
    }

    /// How many operations were labelled.
    pub(super) fn labels(&self) -> usize {
        self.made.len()
    }

    /// The zxid of the last of so many labelled operations.
    pub(super) fn zxid_after(&self, labels: usize) -> i64 {
        let last = labels.checked_sub(1).and_then(|at| self.made.get(at));
        last.map_or(0, |made| made.zxid)
    }

    fn zxid(&self, zxid: i64) -> String {
        if zxid <= 0 {
            return format!("{zxid}");
        }
        match self.made.iter().rev().find(|made| made.after < zxid) {
            Some(made) => format!("of {}", made.label),
            None => "before".to_string(),
        }
    }

    /// Puts names in place of numbers.
    pub(super) fn mask(&self, items: &mut [Item]) {
        for item in items {
            match item {
                Item::Reply { zxid, fields, .. } => {
                    self.mask_value(zxid);
                    relate_times(fields);
                    fields.iter_mut().for_each(|field| self.mask_value(&mut field.value));
                }
                Item::Event { zxid, .. } => self.mask_value(zxid),
                Item::Greeting { session, .. } => self.mask_value(session),
                Item::Closed | Item::Silence | Item::Garbage(_) => {}
            }
        }
    }

    fn mask_value(&self, value: &mut Value) {
        let name = match value {
            Value::Zxid(zxid) => self.zxid(*zxid),
            Value::Session(0) => "none".to_string(),
            Value::Session(id) => self.sessions.get(id).cloned().unwrap_or_else(|| format!("unknown {id:#x}")),
            Value::Time(time) => time_name(*time),
            _ => return,
        };
        *value = Value::Masked(name);
    }
}

fn time_name(time: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    match u64::try_from(time) {
        Ok(time) if time.abs_diff(now) < NOW_MS => "about now".to_string(),
        _ => format!("{time}"),
    }
}

/// Marks a modification time that differs from the creation time though the data never changed.
fn relate_times(fields: &mut [Field]) {
    for stat in 0..fields.len().saturating_sub(3) {
        let [czxid, mzxid, ctime, mtime] = &mut fields[stat..stat + 4] else { return };
        if czxid.name.ends_with("czxid") && czxid.value == mzxid.value && ctime.value != mtime.value {
            mtime.value = Value::Masked("not that of its creation".to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(names: &Names, zxid: i64) -> String {
        names.zxid(zxid)
    }

    /// If a zxid spent on a refusal moved the names of later ones, every Stat after it would differ.
    #[test]
    fn zxids_are_called_by_the_operation_that_made_them() {
        let mut names = Names { highest: 4, ..Names::default() };
        names.label(1, 3);
        // 5 and 6 went to refused writes, 7 to operation 9.
        names.highest = 7;
        names.label(9, 6);
        assert_eq!([name(&names, 3), name(&names, 4), name(&names, 6)], ["before", "of 1", "of 1"]);
        assert_eq!([name(&names, 7), name(&names, 0), name(&names, -1)], ["of 9", "0", "-1"]);
        assert_eq!((names.zxid_after(2), names.zxid_after(1), names.zxid_after(0)), (7, 4, 0));
    }

    /// A server that stamps the two times of a new znode apart tells clients that it was changed.
    #[test]
    fn times_of_an_unchanged_znode_must_be_alike() {
        let field = |name: &str, value| Field { name: name.to_string(), value };
        let stat = |ctime, mtime| {
            vec![
                field("czxid", Value::Zxid(1)),
                field("mzxid", Value::Zxid(1)),
                field("ctime", Value::Time(ctime)),
                field("mtime", Value::Time(mtime)),
            ]
        };
        let (mut alike, mut apart) = (stat(5, 5), stat(5, 6));
        relate_times(&mut alike);
        relate_times(&mut apart);
        assert_eq!(alike, stat(5, 5));
        assert!(matches!(apart[3].value, Value::Masked(_)));
    }
}
