//! R6: what is gone stays gone. Every value is written once, so a value that the ledger has twice came
//! back by itself; and a write that was refused must not come to life later.

use std::collections::BTreeMap;

use super::leases::had_no_effect;
use super::{Findings, Prepared};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut first: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.changes {
        for became in changes.iter().filter_map(|change| change.became.as_ref()) {
            let (value, key) = (&became.value, &became.key);
            if let Some((before, old_key)) = first.insert(value, (*revision, key)) {
                findings.add(
                    "R6",
                    format_args!("{value:?} of {old_key:?} at revision {before} came back in {key:?} at {revision}"),
                );
            }
            if let Some(writer) = prepared.claims.writer(value)
                && had_no_effect(&prepared.history.operations[writer])
            {
                let name = prepared.name(writer);
                findings.add("R6", format_args!("a refused write came to life at revision {revision}: {name}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, kv, run};
    use crate::history::{Change, History, Told};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "resurrection")
    }

    fn legal() -> History {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.delete(1, "a", None);
        maker.put(1, "a", "2");
        maker.done()
    }

    #[test]
    fn values_that_appear_once_pass() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
    }

    /// A retried proposal that is carried out twice brings deleted data back.
    #[test]
    fn a_value_that_appears_twice_is_caught() {
        let mut history = legal();
        history.ledger.changes.insert(5, vec![Change { key: "a".into(), became: Some(kv("a", "1", 4, 5, 2)) }]);
        assert_eq!(violations(&history), ["R6"]);
    }

    #[test]
    fn a_refused_write_that_comes_to_life_is_caught() {
        let mut history = legal();
        history.operations[2].result = Told::Error("etcdserver: requested lease not found".into());
        assert_eq!(violations(&history), ["R6"]);
    }
}
