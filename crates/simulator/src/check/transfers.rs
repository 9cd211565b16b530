//! R4: keys under `account/` hold `amount#unique`. One transaction makes them all; from then on money only
//! moves between them, so the sum is the same at every revision and in every read of the whole range.

use std::collections::BTreeMap;

use super::carry_out::carried_out;
use super::leases::answered;
use super::{Findings, Prepared};
use crate::history::{Content, Kv, Op};

const PREFIX: &str = "account/";
/// Just beyond every key with the prefix.
const BEYOND: &str = "account0";

fn amount(kv: &Kv) -> i64 {
    kv.value.split('#').next().and_then(|amount| amount.parse().ok()).unwrap_or(0)
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let Some(total) = check_ledger(prepared, findings) else { return };
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Some((content, _)) = answered(operation) else { continue };
        for (op, content) in carried_out(&operation.request, content) {
            let (Op::Get { key, end: Some(end), .. }, Content::Get { found, .. }) = (op, content) else { continue };
            let covers = key.as_str() <= PREFIX && (end == "\0" || end.as_str() >= BEYOND);
            let accounts = || found.iter().filter(|kv| kv.key.starts_with(PREFIX));
            let sum: i64 = accounts().map(amount).sum();
            // Before they are made there are none.
            if covers && accounts().next().is_some() && sum != total {
                let name = prepared.name(index);
                findings.add("R4", format_args!("the accounts sum up to {sum} instead of {total}: {name}"));
            }
        }
    }
}

/// The sum of all accounts, if there are any.
fn check_ledger(prepared: &Prepared<'_>, findings: &mut Findings) -> Option<i64> {
    let mut accounts: BTreeMap<&str, i64> = BTreeMap::new();
    let mut total = None;
    for (revision, changes) in &prepared.history.ledger.changes {
        let mut touched = false;
        for change in changes.iter().filter(|change| change.key.starts_with(PREFIX)) {
            touched = true;
            match &change.became {
                Some(kv) => accounts.insert(&change.key, amount(kv)),
                None => accounts.remove(change.key.as_str()),
            };
        }
        if touched {
            let sum: i64 = accounts.values().sum();
            let total = *total.get_or_insert(sum);
            if sum != total {
                findings.add("R4", format_args!("revision {revision} makes {sum} of {total}: {changes:?}"));
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, put_op, run};
    use crate::history::{Content, History};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "transfers")
    }

    fn legal() -> History {
        let mut maker = Maker::new();
        maker.get(1, "account/", Some("account0"), false);
        maker.txn(1, vec![], vec![put_op("account/a", "10#1"), put_op("account/b", "10#2")], vec![]);
        maker.txn(1, vec![], vec![put_op("account/a", "-5#3"), put_op("account/b", "25#4")], vec![]);
        maker.get(1, "account/", Some("account0"), false);
        maker.get(1, "account/a", None, false);
        maker.done()
    }

    #[test]
    fn money_that_only_moves_passes() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
    }

    /// A read that shows one account before and one after the transfer.
    #[test]
    fn a_read_of_half_a_transfer_is_caught() {
        let mut history = legal();
        let Content::Get { found, .. } = &mut answer_mut(&mut history, 3).content else { panic!() };
        found[0].value = "10#1".into();
        assert_eq!(violations(&history), ["R4"]);
        let Content::Get { found, .. } = &mut answer_mut(&mut history, 3).content else { panic!() };
        found.pop();
        assert_eq!(violations(&history), ["R4"]);
    }

    #[test]
    fn half_a_transfer_in_the_ledger_is_caught() {
        let mut history = legal();
        history.ledger.changes.get_mut(&3).unwrap().pop();
        assert_eq!(violations(&history), ["R4"]);
    }
}
