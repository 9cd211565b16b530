//! Containers and znodes with a time to live: which could go, and which do.

use tidelock_model::ZnodeLife;

use crate::State;
use crate::apply::Effects;
use crate::znodes::draft::Draft;
use crate::znodes::paths;

impl State {
    /// Deletes those whose time has come, each at a revision of its own. Whoever proposed them looked some
    /// time ago.
    pub(super) fn reap(&mut self, paths: &[String], effects: &mut Effects) {
        for path in paths {
            let mut draft = Draft::new(self);
            if ends_at_ms(&draft, path).is_some_and(|ends_at_ms| draft.now_ms() > ends_at_ms) {
                draft.delete(path);
                let changes = draft.finish();
                self.carry_out_changes(changes, &mut effects.events);
            }
        }
    }

    /// The answer to [`tidelock_model::ZnodeRead::Reapable`]: those that are next, whether or not their time has come. Log time
    /// stands still while nobody writes, so only the entry that reaps them can tell.
    pub(super) fn reapable(&self, max: usize) -> Vec<String> {
        let draft = Draft::new(self);
        let range = paths::reapable_keys();
        let candidates = self.keyspace.live_range(&range).filter_map(|item| paths::reapable_path(&item.key));
        let mut ends: Vec<(u64, &str)> =
            candidates.filter_map(|path| Some((ends_at_ms(&draft, path)?, path))).collect();
        ends.sort_unstable();
        ends.into_iter().take(max).map(|(_, path)| path.to_owned()).collect()
    }
}

/// When a znode could be reaped if nothing changes; never, unless it is of such a kind and has no children.
fn ends_at_ms(draft: &Draft<'_>, path: &str) -> Option<u64> {
    let znode = draft.node(path)?;
    let ends_at_ms = match znode.life {
        ZnodeLife::Persistent | ZnodeLife::Ephemeral => return None,
        // One that never had children was perhaps made for some that are on their way.
        ZnodeLife::Container => (draft.side(path, &znode).child_creates > 0).then_some(0)?,
        ZnodeLife::Ttl(ttl_ms) => znode.modified_ms.saturating_add(ttl_ms),
    };
    (draft.children(path) == 0).then_some(ends_at_ms)
}
