//! Reads of the tree as it is. All of one query see one revision.

use tidelock_model::limits::ZNODE_FOUND_BYTES_MAX;
use tidelock_model::{Identity, LeaseId, Record, Revision, ZnodeError, ZnodeFound, ZnodeQuery, ZnodeRead, znode_path};

use crate::State;
use crate::znodes::draft::Draft;
use crate::znodes::record::{Side, Znode};
use crate::znodes::{acl, paths};

type Found = Result<ZnodeFound, ZnodeError>;

impl State {
    pub(crate) fn read_znodes(&self, query: &ZnodeQuery) -> Vec<Found> {
        let tree = Draft::new(self);
        let mut found = Vec::new();
        let mut bytes = 0;
        for read in &query.reads {
            if bytes > ZNODE_FOUND_BYTES_MAX {
                break;
            }
            let one = self.read_znode(&tree, read, &query.identities);
            bytes += one.as_ref().map_or(0, ZnodeFound::bytes);
            found.push(one);
        }
        found
    }

    fn read_znode(&self, tree: &Draft<'_>, read: &ZnodeRead, identities: &[Identity]) -> Found {
        let find = |path: &str, permissions: i32| self.find_znode(path, permissions, identities);
        Ok(match read {
            ZnodeRead::Stat(path) => {
                if path.contains('\0') {
                    return Err(ZnodeError::BadArguments);
                }
                let (_, znode, side) = find(path, acl::READ)?;
                ZnodeFound::Stat(tree.stat(path, &znode, &side))
            }
            ZnodeRead::Writable(path) => {
                let (_, znode, side) = find(path, acl::WRITE)?;
                ZnodeFound::Stat(tree.stat(path, &znode, &side))
            }
            ZnodeRead::Glance(path) => {
                let znode = tree.node(path).ok_or(ZnodeError::NoNode)?;
                ZnodeFound::Stat(tree.stat(path, &znode, &tree.side(path, &znode)))
            }
            ZnodeRead::Data(path) => {
                let (stored, znode, side) = find(path, acl::READ)?;
                let data = match tree.shown_figures(path) {
                    Some(text) => Some(text.into()),
                    None => Znode::read_data(stored),
                };
                ZnodeFound::Data { data, stat: tree.stat(path, &znode, &side) }
            }
            ZnodeRead::Children(path) => {
                let (_, znode, side) = find(path, acl::READ)?;
                let range = paths::children(path);
                let names = self.keyspace.live_range(&range).filter_map(|item| paths::name_of(&item.key)).collect();
                ZnodeFound::Children { names, stat: tree.stat(path, &znode, &side) }
            }
            ZnodeRead::Acl(path) => {
                let (_, znode, side) = find(path, acl::READ | acl::ADMIN)?;
                let stat = tree.stat(path, &znode, &side);
                let may_administer = acl::check(side.acl.as_deref(), acl::ADMIN, identities).is_ok();
                let mut acl = acl::shown(side.acl);
                if !may_administer {
                    acl::mask(&mut acl);
                }
                ZnodeFound::Acl { acl, stat }
            }
            ZnodeRead::Descendants(path) => {
                find(path, acl::READ)?;
                let count = |range| self.keyspace.count(&range, Revision(u64::MAX)) as u64;
                ZnodeFound::Count(count(paths::children(path)) + count(paths::below_children(path)))
            }
            ZnodeRead::Ephemerals { session, prefix } => ZnodeFound::Paths(self.ephemerals(*session, prefix)),
            ZnodeRead::Reapable(max) => ZnodeFound::Paths(self.reapable(*max as usize)),
            ZnodeRead::Totals => ZnodeFound::Totals(self.znode_totals()),
            ZnodeRead::Sessions(page) => ZnodeFound::Sessions(self.sessions_page(page)),
        })
    }

    /// A znode as it is stored and as it reads, and what is beside it, if the caller has any of the permissions.
    fn find_znode(
        &self,
        path: &str,
        permissions: i32,
        identities: &[Identity],
    ) -> Result<(&Record, Znode, Side), ZnodeError> {
        let stored = paths::node_key(path).and_then(|key| self.keyspace.get(&key)).ok_or(ZnodeError::NoNode)?;
        let znode = Znode::read(&stored.record);
        let side = self.znode_side(path, &znode);
        acl::check(side.acl.as_deref(), permissions, identities)?;
        Ok((&stored.record, znode, side))
    }

    fn ephemerals(&self, session: LeaseId, prefix: &str) -> Vec<String> {
        let paths = self.lease_keys(session).filter_map(znode_path);
        paths.filter(|path| path.starts_with(prefix)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;
    use crate::znodes::testing::create;
    use tidelock_tree::steps;

    /// getAllChildrenNumber walks the whole tree in ZooKeeper, and a large one stalls the server for everybody. Here
    /// the index counts: a hundred times as many znodes may cost one or two levels more of it, and nothing else.
    #[test]
    fn counting_all_descendants_takes_the_logarithm_of_their_number() {
        const LEVEL: usize = 64;
        let (mut machine, mut created) = (Machine::new(), 0);
        let client = machine.open_session();
        machine.one(&client, create("/t")).unwrap();
        let mut taken = Vec::new();
        for size in [1_000, 10_000, 100_000] {
            while created < size {
                // A level of parents, each with what is below it.
                let parent = format!("/t/{created}");
                let below = (0..999).map(|child| create(&format!("{parent}/{child}")));
                machine.multi(&client, std::iter::once(create(&parent)).chain(below).collect()).unwrap();
                created += 1000;
            }
            let count = || machine.look(&client, ZnodeRead::Descendants("/t".into()));
            let (steps, found) = steps::of(count);
            assert_eq!(found, Ok(ZnodeFound::Count(size as u64)));
            taken.push(steps);
        }
        // Two ranges, two ends each.
        assert!(taken[2] <= taken[0] + 2 * 4 * LEVEL, "{taken:?}");
        assert!(taken[2] < 2_000, "{taken:?}: far from a hundred thousand");
        let (steps, _) = steps::of(|| machine.look(&client, ZnodeRead::Children("/t".into())));
        assert!(steps >= 100, "what walks is counted as walking: {steps}");
    }
}
