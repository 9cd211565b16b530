//! Requests that may change the tree. Each is carried out at a revision of its own, or not at all; the order
//! of checks is ZooKeeper's, since it decides which error a client sees.

use bytes::Bytes;
use tidelock_model::{
    AclEntry, CreateZnode, Identity, LeaseId, ZnodeAnswer, ZnodeError, ZnodeLife, ZnodeOp, ZnodeOpAnswer, ZnodeOutcome,
    ZnodeRequest, ZnodeRequests,
};

use crate::State;
use crate::apply::Effects;
use crate::znodes::draft::Draft;
use crate::znodes::quota::Figures;
use crate::znodes::record::{Side, Znode, data_length};
use crate::znodes::{acl, paths};

/// Longest time to live, as ZooKeeper has it.
const TTL_MS_MAX: u64 = (1 << 40) - 1;
/// A version that every znode has.
const ANY_VERSION: i32 = -1;

/// Whether limits of quotas count for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotas {
    Enforced,
    Shown,
}

type Done = Result<ZnodeOpAnswer, ZnodeError>;

impl State {
    pub(super) fn request_znodes(
        &mut self,
        asked: &ZnodeRequests,
        quotas: Quotas,
        effects: &mut Effects,
    ) -> Vec<ZnodeOutcome> {
        let admitted = self.check_session(asked.session, asked.generation);
        let mut outcomes = Vec::with_capacity(asked.requests.len());
        for request in &asked.requests {
            let result = admitted.and_then(|()| self.request_znode(asked, request, quotas, effects));
            outcomes.push(ZnodeOutcome { revision: self.revision, result });
        }
        outcomes
    }

    fn request_znode(
        &mut self,
        asked: &ZnodeRequests,
        request: &ZnodeRequest,
        quotas: Quotas,
        effects: &mut Effects,
    ) -> Result<ZnodeAnswer, ZnodeError> {
        let draft = match request {
            ZnodeRequest::One(_) => Draft::for_one(self),
            ZnodeRequest::Multi(_) => Draft::new(self),
        };
        let identities = &asked.identities[..];
        let mut asking = Asking { draft, session: asked.session, identities, quotas, over_quota: Vec::new() };
        let answer = match request {
            ZnodeRequest::One(op) => ZnodeAnswer::One(asking.carry_out(op)?),
            ZnodeRequest::Multi(ops) => {
                let mut answers = Vec::with_capacity(ops.len());
                for (at, op) in (0..).zip(ops) {
                    match asking.carry_out(op) {
                        Ok(answer) => answers.push(answer),
                        Err(error) => return Ok(ZnodeAnswer::MultiFailed { at, error }),
                    }
                }
                ZnodeAnswer::Multi(answers)
            }
        };
        effects.over_quota.append(&mut asking.over_quota);
        let changes = asking.draft.finish();
        self.carry_out_changes(changes, &mut effects.events);
        Ok(answer)
    }
}

/// Who asks, and the tree as it is for them.
struct Asking<'a> {
    draft: Draft<'a>,
    session: LeaseId,
    identities: &'a [Identity],
    quotas: Quotas,
    /// Where soft limits were broken.
    over_quota: Vec<String>,
}

fn check_version(actual: i32, expected: i32) -> Result<(), ZnodeError> {
    if expected == ANY_VERSION || actual == expected { Ok(()) } else { Err(ZnodeError::BadVersion) }
}

impl Asking<'_> {
    fn carry_out(&mut self, op: &ZnodeOp) -> Done {
        match op {
            ZnodeOp::Create(create) => self.create(create),
            ZnodeOp::Delete { path, version } => self.delete(path, *version),
            ZnodeOp::SetData { path, data, version } => self.set_data(path, data.as_ref(), *version),
            ZnodeOp::SetAcl { path, acl, version } => self.set_acl(path, acl, *version),
            ZnodeOp::Check { path, version } => self.check(path, *version),
        }
    }

    /// A znode and what is beside it, if the caller has the permission.
    fn find(&self, path: &str, permission: i32) -> Result<(Znode, Side), ZnodeError> {
        let znode = self.draft.node(path).ok_or(ZnodeError::NoNode)?;
        let side = self.draft.side(path, &znode);
        acl::check(side.acl.as_deref(), permission, self.identities)?;
        Ok((znode, side))
    }

    fn check_quota(&mut self, path: &str, added: Figures) -> Result<(), ZnodeError> {
        if self.quotas == Quotas::Enforced && self.draft.check_quota(path, added)? {
            self.over_quota.push(path.to_owned());
        }
        Ok(())
    }

    fn create(&mut self, create: &CreateZnode) -> Done {
        if matches!(create.life, ZnodeLife::Ttl(ttl_ms) if !(1..=TTL_MS_MAX).contains(&ttl_ms)) {
            return Err(ZnodeError::BadArguments);
        }
        let parent = paths::parent_to_create_in(&create.path)?;
        let acl = acl::expand(&create.acl, self.identities)?;
        let (parent_znode, parent_side) = self.find(parent, acl::CREATE)?;
        let mut path = create.path.clone();
        if create.sequential {
            let siblings = tidelock_model::planted!(NumberFromSiblings);
            let number = if siblings { self.draft.children(parent) as u32 } else { parent_side.child_creates };
            path.push_str(&format!("{:010}", number.cast_signed()));
        }
        paths::check(&path)?;
        if self.draft.node(&path).is_some() {
            return Err(ZnodeError::NodeExists);
        }
        if parent_znode.owner.is_some() {
            return Err(ZnodeError::NoChildrenForEphemerals);
        }
        let data_length = data_length(create.data.as_ref())?;
        let added = Figures { count: 1, bytes: i64::from(data_length) };
        self.check_quota(&path, added)?;

        let (revision, now_ms) = (self.draft.revision, self.draft.now_ms());
        let znode = Znode {
            created: revision,
            modified: revision,
            version: 1,
            owner: if create.life == ZnodeLife::Ephemeral { self.session } else { LeaseId::NONE },
            life: create.life,
            created_ms: now_ms,
            modified_ms: now_ms,
            data_length,
        };
        let side = Side { acl, ..Side::of_new(revision) };
        if side.acl.is_some() {
            self.draft.put_rights(&path, side.clone());
        }
        self.draft.put(&path, znode, create.data.clone());
        if matches!(create.life, ZnodeLife::Container | ZnodeLife::Ttl(_)) {
            self.draft.set_reapable(&path);
        }
        let child_creates = parent_side.child_creates.wrapping_add(1);
        self.draft.put_side(parent, Side { child_creates, children_modified: revision, ..parent_side });
        self.draft.count_child(parent);
        self.draft.add_to_quotas(&path, added);
        self.draft.begin_figures(&path);
        Ok(ZnodeOpAnswer::Created { path, stat: znode.stat(&side, 0) })
    }

    fn delete(&mut self, path: &str, version: i32) -> Done {
        let parent = paths::parent_to_delete_from(path)?;
        self.find(parent, acl::DELETE)?;
        let znode = self.draft.node(path).ok_or(ZnodeError::NoNode)?;
        check_version(znode.shown_version(), version)?;
        if self.draft.children_of(path, &znode, &self.draft.side(path, &znode)) > 0 {
            return Err(ZnodeError::NotEmpty);
        }
        self.draft.delete(path);
        Ok(ZnodeOpAnswer::Done)
    }

    fn set_data(&mut self, path: &str, data: Option<&Bytes>, version: i32) -> Done {
        paths::check(path)?;
        let (znode, side) = self.find(path, acl::WRITE)?;
        let data_length = data_length(data)?;
        let added = Figures { count: 0, bytes: i64::from(data_length) - i64::from(znode.data_length) };
        self.check_quota(path, added)?;
        check_version(znode.shown_version(), version)?;
        let znode = Znode {
            modified: self.draft.revision,
            version: znode.version + 1,
            modified_ms: self.draft.now_ms(),
            data_length,
            ..znode
        };
        self.draft.put(path, znode, data.cloned());
        self.draft.add_to_quotas(path, added);
        if side.acl.is_some() {
            // Unchanged, and told with the change: not everybody who watches may hear of it.
            self.draft.put_side(path, side.clone());
        }
        Ok(ZnodeOpAnswer::Changed(self.draft.stat(path, &znode, &side)))
    }

    fn set_acl(&mut self, path: &str, acl: &[AclEntry], version: i32) -> Done {
        paths::check(path)?;
        let acl = acl::expand(acl, self.identities)?;
        let (znode, side) = self.find(path, acl::ADMIN)?;
        check_version(side.acl_version, version)?;
        let side = Side { acl, acl_version: side.acl_version.wrapping_add(1), ..side };
        self.draft.put_rights(path, side.clone());
        Ok(ZnodeOpAnswer::Changed(self.draft.stat(path, &znode, &side)))
    }

    fn check(&mut self, path: &str, version: i32) -> Done {
        paths::check(path)?;
        let (znode, _) = self.find(path, acl::READ)?;
        check_version(znode.shown_version(), version)?;
        Ok(ZnodeOpAnswer::Done)
    }
}
