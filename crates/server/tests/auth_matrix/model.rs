//! What must come out, worked out key by key.

/// What became of a call, as far as rights go. `Allowed` may still have failed for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Nobody said who asks.
    NoUser,
    Denied,
}

/// Someone who asks.
pub(crate) struct Caller {
    pub(crate) name: &'static str,
    /// What was granted: whether to read, whether to write, from, to.
    pub(crate) grants: &'static [(bool, bool, &'static str, &'static str)],
}

pub(crate) type Range = (&'static str, &'static str);

/// The user without a name is nobody at all.
pub(crate) const CALLERS: &[Caller] = &[
    Caller { name: "", grants: &[] },
    Caller { name: "stranger", grants: &[] },
    Caller { name: "reader", grants: &[(true, false, "m/b", "m/d")] },
    Caller { name: "writer", grants: &[(false, true, "m/b", "m/d")] },
    Caller { name: "both", grants: &[(true, true, "m/b", "m/c"), (true, true, "m/c", "m/d")] },
    Caller { name: "mixed", grants: &[(true, false, "m/b", "m/d"), (false, true, "m/c", "m/e")] },
    Caller { name: "point", grants: &[(true, true, "m/b", "")] },
    Caller { name: "onwards", grants: &[(true, true, "m/c", "\0")] },
    Caller { name: "root", grants: &[] },
];

/// Single keys: inside, at the edges, just beside them, outside.
pub(crate) const KEYS: &[&str] = &["m/b", "m/b\0", "m/bzz", "m/c", "m/czz", "m/d", "m/a", "n"];

/// A key that a lease owns inside of what most have been granted, and one outside of it.
pub(crate) const OWNED_INSIDE: &str = "m/c1";
pub(crate) const OWNED_OUTSIDE: &str = "m/a1";

/// Shapes of ranges: single keys, inside, exact, over the edges, everything, and none.
pub(crate) const RANGES: &[Range] = &[
    ("m/b", ""),
    ("m/c", ""),
    ("m/d", ""),
    ("m/a", ""),
    ("m/b", "m/d"),
    ("m/b1", "m/c"),
    ("m/a", "m/c"),
    ("m/c", "m/e"),
    ("m/a", "m/e"),
    ("m/b", "m/b\0"),
    ("m/b", "\0"),
    ("m/c", "\0"),
    ("m/d", "\0"),
    ("\0", "\0"),
];

fn holds((start, end): (&str, &str), key: &str) -> bool {
    match end {
        "" => key == start,
        "\0" => key >= start,
        end => start <= key && key < end,
    }
}

/// Names between two of these have the rights of the lower one, so these stand for all there are.
const PROBES: &[&str] = &[
    "\0", "m/a", "m/a1", "m/b", "m/b\0", "m/b1", "m/bzz", "m/c", "m/c\0", "m/c1", "m/czz", "m/d", "m/d\0", "m/e", "n",
    "zzz",
];

impl Caller {
    pub(crate) fn is_known(&self) -> bool {
        !self.name.is_empty()
    }

    fn is_root(&self) -> bool {
        self.name == "root"
    }

    fn may_each(&self, range: Range, granted: impl Fn(&(bool, bool, &str, &str)) -> bool) -> bool {
        let has = |key: &str| self.grants.iter().any(|grant| granted(grant) && holds((grant.2, grant.3), key));
        PROBES.iter().filter(|probe| holds(range, probe)).all(|probe| has(probe)) && has(range.0)
    }

    pub(crate) fn may_read(&self, range: Range) -> bool {
        self.is_root() || self.may_each(range, |grant| grant.0)
    }

    pub(crate) fn may_write(&self, range: Range) -> bool {
        self.is_root() || self.may_each(range, |grant| grant.1)
    }

    /// What comes out if all that is needed is that `allowed` holds.
    pub(crate) fn verdict(&self, allowed: bool) -> Verdict {
        match (self.is_known(), allowed) {
            (false, _) => Verdict::NoUser,
            (true, true) => Verdict::Allowed,
            (true, false) => Verdict::Denied,
        }
    }

    pub(crate) fn as_admin(&self) -> Verdict {
        self.verdict(self.is_root())
    }

    pub(crate) fn as_user(&self) -> Verdict {
        self.verdict(true)
    }
}
