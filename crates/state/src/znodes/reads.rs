//! Reads of the tree as it is. All of one query see one revision.

use tidelock_model::{Identity, LeaseId, Revision, ZnodeError, ZnodeFound, ZnodeQuery, ZnodeRead, znode_path};

use crate::State;
use crate::znodes::draft::Draft;
use crate::znodes::record::{Side, Znode};
use crate::znodes::{acl, paths};

type Found = Result<ZnodeFound, ZnodeError>;

impl State {
    pub(crate) fn read_znodes(&self, query: &ZnodeQuery) -> Vec<Found> {
        let tree = Draft::new(self);
        query.reads.iter().map(|read| self.read_znode(&tree, read, &query.identities)).collect()
    }

    fn read_znode(&self, tree: &Draft<'_>, read: &ZnodeRead, identities: &[Identity]) -> Found {
        let find = |path: &str, permissions: i32| -> Result<(Znode, Side), ZnodeError> {
            let znode = tree.node(path).ok_or(ZnodeError::NoNode)?;
            let side = tree.side(path, &znode);
            acl::check(side.acl.as_deref(), permissions, identities)?;
            Ok((znode, side))
        };
        Ok(match read {
            ZnodeRead::Stat(path) => {
                if path.contains('\0') {
                    return Err(ZnodeError::BadArguments);
                }
                let (znode, side) = find(path, acl::READ)?;
                ZnodeFound::Stat(tree.stat(path, &znode, &side))
            }
            ZnodeRead::Glance(path) => {
                let znode = tree.node(path).ok_or(ZnodeError::NoNode)?;
                ZnodeFound::Stat(tree.stat(path, &znode, &tree.side(path, &znode)))
            }
            ZnodeRead::Data(path) => {
                let (znode, side) = find(path, acl::READ)?;
                let stored = paths::node_key(path).and_then(|key| self.keyspace.get(&key));
                let data = stored.and_then(|item| Znode::read_data(&item.record));
                ZnodeFound::Data { data, stat: tree.stat(path, &znode, &side) }
            }
            ZnodeRead::Children(path) => {
                let (znode, side) = find(path, acl::READ)?;
                let range = paths::children(path);
                let names = self.keyspace.live_range(&range).filter_map(|item| paths::name_of(&item.key)).collect();
                ZnodeFound::Children { names, stat: tree.stat(path, &znode, &side) }
            }
            ZnodeRead::Acl(path) => {
                let (znode, side) = find(path, acl::READ | acl::ADMIN)?;
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
        })
    }

    fn ephemerals(&self, session: LeaseId, prefix: &str) -> Vec<String> {
        let paths = self.lease_keys(session).filter_map(znode_path);
        paths.filter(|path| path.starts_with(prefix)).collect()
    }
}
