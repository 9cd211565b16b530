//! K1, K2, H9 from the outside: while a client believes to hold something, nobody else is let in who must not be.
//!
//! A client believes for four fifths of its time to live after the last renewal that was acknowledged had been sent,
//! on its own clock, and not any more once it begins to give back. Nodes' clocks may run fast by less than what is left
//! of the time, so whoever is let in meanwhile is a second holder. What it believes in was granted, and to it.

use tidelock_model::{Kind, Mode};

use super::native_replay::grants;
use super::{Findings, Prepared};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let grants = grants(prepared.history);
    for belief in &prepared.history.native_beliefs {
        let (kind, name, token) = (belief.kind, &belief.name, belief.token);
        let own = |session: i64| session == belief.session.0;
        let granted = |of: Kind| of == kind;
        let mut same = grants.iter().filter(|grant| granted(grant.kind) && grant.name == *name);
        if !same.any(|grant| grant.place.token == token && own(grant.session)) {
            findings.add(
                "K2",
                format_args!("client {} believes in token {token} of {kind:?} {name}, never its own", belief.client),
            );
        }
        if belief.until <= belief.from || kind == Kind::Semaphore {
            continue;
        }
        let excludes = |mode: Mode| belief.mode == Mode::Exclusive || mode == Mode::Exclusive;
        let second = grants.iter().find(|grant| {
            let is_other = granted(grant.kind) && grant.name == *name && grant.place.token > token;
            is_other && excludes(grant.place.mode) && (belief.from..belief.until).contains(&grant.seen.at)
        });
        if let Some(second) = second {
            let invariant = if kind == Kind::Election { "E1" } else { "K1" };
            findings.add(
                invariant,
                format_args!(
                    "client {} believed in {kind:?} {name} under {token} from {} to {} us; {} was granted at {} us",
                    belief.client, belief.from, belief.until, second.place.token, second.seen.at
                ),
            );
        }
    }
}
