//! Quotas: how many znodes, and bytes of data, there are at and below a path, and how many there may be.
//!
//! As in ZooKeeper they are znodes: `/zookeeper/quota/PATH/zookeeper_limits` holds the limits, in a text that clients
//! write, and `/zookeeper/quota/PATH/zookeeper_stats` shows the figures, whatever data it was created with.
//!
//! - The figures of a path are counted once, when its `zookeeper_stats` is created, and kept in a record of their
//!   own (`Q`) from then on: every change looks at the paths above it and no further. They are true at every
//!   revision, also where one quota is below another.
//! - Limits are those nearest above a znode, and are checked when the request asks for it. Limits without figures
//!   limit nothing, and neither does what cannot be read as a number.
//! - There are no quotas of the root and of what is below `/zookeeper`.

use bytes::Bytes;
use tidelock_model::{LeaseId, PutLease, PutOp, PutValue, ZnodeError};

use crate::State;
use crate::change::Revising;
use crate::znodes::draft::Draft;
use crate::znodes::paths;
use crate::znodes::record::Znode;

const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";
/// No limit.
const NONE: i64 = -1;

/// What there is at and below a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) count: i64,
    pub(super) bytes: i64,
}

/// What there may be; soft limits are only told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    count: i64,
    bytes: i64,
    hard_count: i64,
    hard_bytes: i64,
}

impl Figures {
    pub(super) fn of_one(znode: &Znode) -> Figures {
        Figures { count: 1, bytes: i64::from(znode.data_length) }
    }

    pub(super) fn negative(self) -> Figures {
        Figures { count: -self.count, bytes: -self.bytes }
    }

    fn plus(self, other: Figures) -> Figures {
        Figures { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }

    fn read(value: &[u8]) -> Figures {
        let number = |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
        Figures { count: number(0).unwrap_or(0), bytes: number(8).unwrap_or(0) }
    }

    fn write(self) -> Bytes {
        [self.count.to_be_bytes(), self.bytes.to_be_bytes()].concat().into()
    }

    /// As `zookeeper_stats` shows them.
    pub(super) fn text(self) -> String {
        format!("count={},bytes={}", self.count, self.bytes)
    }
}

impl Limits {
    /// Of what a client wrote: `count=1,bytes=2=;byteHardLimit=3;countHardLimit=4`, any of them or none.
    fn read(data: &[u8]) -> Limits {
        let mut limits = Limits { count: NONE, bytes: NONE, hard_count: NONE, hard_bytes: NONE };
        for pair in String::from_utf8_lossy(data).split([',', ';']) {
            let mut parts = pair.split('=');
            let (name, number) = (parts.next(), parts.next().and_then(|number| number.parse().ok()).unwrap_or(NONE));
            match name {
                Some("count") => limits.count = number,
                Some("bytes") => limits.bytes = number,
                Some("countHardLimit") => limits.hard_count = number,
                Some("byteHardLimit") => limits.hard_bytes = number,
                _ => {}
            }
        }
        limits
    }

    /// Whether what is added makes too much of it: refused, or only told of.
    fn check(&self, now: Figures, added: Figures) -> Result<(), ZnodeError> {
        let over = |added: i64, now: i64, hard: i64| added != 0 && hard > NONE && now.saturating_add(added) > hard;
        if over(added.count, now.count, self.hard_count) || over(added.bytes, now.bytes, self.hard_bytes) {
            return Err(ZnodeError::QuotaExceeded);
        }
        Ok(())
    }

    /// Whether a soft limit is broken with what is added; a hard one stands for it.
    fn is_over_soft(&self, now: Figures, added: Figures) -> bool {
        let over = |added: i64, now: i64, soft: i64, hard: i64| {
            added != 0 && hard <= NONE && soft > NONE && now.saturating_add(added) > soft
        };
        over(added.count, now.count, self.count, self.hard_count)
            || over(added.bytes, now.bytes, self.bytes, self.hard_bytes)
    }
}

/// The path whose figures a `zookeeper_stats` shows; nothing for every other znode.
pub(super) fn path_of_stats(path: &str) -> Option<&str> {
    let of = path.strip_prefix(paths::QUOTA)?.strip_suffix(STATS)?;
    (of.starts_with('/') && !is_system(of)).then_some(of)
}

fn is_system(path: &str) -> bool {
    path.strip_prefix(paths::SYSTEM).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path and everything above it but the root, the nearest first; nothing of what has no quotas.
fn with_ancestors(path: &str) -> impl Iterator<Item = &str> {
    let first = (path != paths::ROOT && !is_system(path)).then_some(path);
    std::iter::successors(first, |path| Some(paths::parent_of(path)).filter(|parent| *parent != paths::ROOT))
}

impl State {
    /// Quotas there are none of cost no more than this look.
    fn has_quotas(&self) -> bool {
        self.live_sum.znodes.quotas > 0
    }

    pub(super) fn figures(&self, path: &str) -> Option<Figures> {
        self.keyspace.get(&paths::figures_key(path)).map(|item| Figures::read(item.record.value()))
    }

    pub(super) fn put_figures(&mut self, revising: &mut Revising<'_>, path: &str, figures: Option<Figures>) {
        let key = paths::figures_key(path);
        match figures {
            Some(figures) => {
                let (value, lease) = (PutValue::Set(figures.write()), PutLease::Set(LeaseId::NONE));
                self.put_key(revising, PutOp { key, value, lease, want_previous: false });
            }
            None => drop(self.delete_key(revising, &key)),
        }
    }

    /// Znodes are gone that no draft deleted; `gone` tells what each was.
    pub(super) fn take_off_quotas(
        &mut self,
        gone: impl Iterator<Item = (String, Figures)>,
        revising: &mut Revising<'_>,
    ) {
        if !self.has_quotas() {
            return;
        }
        let mut draft = Draft::new(self);
        gone.for_each(|(path, figures)| draft.add_to_quotas(&path, figures.negative()));
        let changes = draft.finish();
        self.make_changes(changes, revising);
    }
}

impl Draft<'_> {
    pub(super) fn figures(&self, path: &str) -> Option<Figures> {
        self.changed_figures(path).unwrap_or_else(|| self.state().figures(path))
    }

    fn has_quotas(&self) -> bool {
        let now = self.state().live_sum.znodes.quotas;
        now.saturating_add_signed(self.added_children(paths::QUOTA)) > 0
    }

    /// Something at `path` came, went or changed by so much.
    pub(super) fn add_to_quotas(&mut self, path: &str, added: Figures) {
        if added == Figures::default() || !self.has_quotas() {
            return;
        }
        for above in with_ancestors(path) {
            if let Some(figures) = self.figures(above) {
                self.put_figures(above, Some(figures.plus(added)));
            }
        }
    }

    /// A znode was created: if it shows figures, they are counted.
    pub(super) fn begin_figures(&mut self, created: &str) {
        if let Some(path) = path_of_stats(created) {
            let counted = self.count_figures(path);
            self.put_figures(path, Some(counted));
        }
    }

    /// A znode was deleted: if it showed figures, nobody needs them any more.
    pub(super) fn end_figures(&mut self, deleted: &str) {
        if let Some(path) = path_of_stats(deleted) {
            self.put_figures(path, None);
        }
    }

    /// Looks at everything below a path: once, when somebody begins to ask for it.
    fn count_figures(&self, path: &str) -> Figures {
        let mut figures = self.node(path).map_or_else(Figures::default, |znode| Figures::of_one(&znode));
        for range in [paths::children(path), paths::below_children(path)] {
            for item in self.state().keyspace.live_range(&range) {
                figures = figures.plus(Figures::of_one(&Znode::read(&item.record)));
            }
        }
        // What this very request changed below it.
        for (changed, znode) in self.changed_below(path) {
            let before = self.state().znode(changed).map_or_else(Figures::default, |znode| Figures::of_one(&znode));
            let now = znode.map_or_else(Figures::default, |znode| Figures::of_one(&znode));
            figures = figures.plus(now).plus(before.negative());
        }
        figures
    }

    /// Whether the nearest limits above allow so much more at `path`. Tells if only a soft one is broken.
    pub(super) fn check_quota(&self, path: &str, added: Figures) -> Result<bool, ZnodeError> {
        if !self.has_quotas() {
            return Ok(false);
        }
        for above in with_ancestors(path) {
            let limits = format!("{}{above}{LIMITS}", paths::QUOTA);
            if self.node(&limits).is_some() {
                let limits = Limits::read(&self.data(&limits).unwrap_or_default());
                let Some(now) = self.figures(above) else { return Ok(false) };
                limits.check(now, added)?;
                return Ok(limits.is_over_soft(now, added));
            }
        }
        Ok(false)
    }
}
