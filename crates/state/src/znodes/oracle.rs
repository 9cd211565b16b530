//! A second, naive tree to compare the real one with: a map from paths to nodes that counts everything as it
//! happens, looks for children by walking all paths, and undoes by restoring a copy. It knows nothing of keys.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidelock_model::{
    AclEntry, CreateZnode, Identity, LeaseId, Revision, ZnodeAnswer, ZnodeError, ZnodeEvent, ZnodeLife, ZnodeOp,
    ZnodeOpAnswer, ZnodeRequest, ZnodeStat,
};

use ZnodeError as E;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) data: Option<Bytes>,
    pub(super) acl: Vec<AclEntry>,
    pub(super) life: ZnodeLife,
    /// Children ever created by a request.
    pub(super) creates: i32,
    /// All but the length of the data and the number of children.
    stat: ZnodeStat,
}

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    pub(super) nodes: BTreeMap<String, Node>,
    /// Generation of every session that is not over.
    pub(super) sessions: BTreeMap<LeaseId, u64>,
    pub(super) revision: u64,
    /// Whether limits count.
    pub(super) enforces_quotas: bool,
    /// What happened since somebody asked, in order, with the rights of the znode and of its parent.
    pub(super) told: Vec<Told>,
}

/// A change and whom it may be told.
pub(super) type Told = (ZnodeEvent, Vec<AclEntry>, Vec<AclEntry>);

fn digest(identities: &[Identity]) -> impl Iterator<Item = &Identity> {
    identities.iter().filter(|identity| identity.scheme == "digest")
}

/// Understands no more schemes than the programs use.
fn fix(acl: &[AclEntry], identities: &[Identity]) -> Result<Vec<AclEntry>, ZnodeError> {
    let mut fixed = vec![];
    for entry in acl {
        match entry.who.scheme.as_str() {
            "world" | "digest" => fixed.push(entry.clone()),
            "auth" if digest(identities).next().is_some() => {
                let expanded = digest(identities).map(|who| AclEntry { who: who.clone(), ..entry.clone() });
                fixed.extend(expanded);
            }
            _ => return Err(E::InvalidAcl),
        }
    }
    if fixed.is_empty() { Err(E::InvalidAcl) } else { Ok(fixed) }
}

pub(super) fn may(node: &Node, bit: i32, identities: &[Identity]) -> bool {
    let is_super = identities.iter().any(|who| who.scheme == "super");
    is_super
        || node.acl.iter().any(|entry| {
            entry.permissions & bit > 0 && (entry.who.scheme == "world" || identities.contains(&entry.who))
        })
}

fn need(node: &Node, bit: i32, identities: &[Identity]) -> Result<(), ZnodeError> {
    if may(node, bit, identities) { Ok(()) } else { Err(E::NoAuth) }
}

/// Everything before the last slash, the root without any.
fn parent(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    let parent = parts.join("/");
    (!parts.is_empty()).then(|| if parent.is_empty() { "/".to_owned() } else { parent })
}

fn is_path(path: &str) -> bool {
    path == "/" || (path.starts_with('/') && path.split('/').skip(1).all(|name| !["", ".", ".."].contains(&name)))
}

impl Oracle {
    pub(super) fn new() -> Oracle {
        Oracle { nodes: BTreeMap::new(), sessions: BTreeMap::new(), revision: 1, enforces_quotas: false, told: vec![] }
    }

    pub(super) fn open(&mut self, session: LeaseId) {
        self.revision += 1;
        if self.nodes.is_empty() {
            for (path, child_version) in
                [("/", -1), ("/zookeeper", -2), ("/zookeeper/quota", 0), ("/zookeeper/config", 0)]
            {
                let acl = vec![super::testing::entry(31, "world", "anyone")];
                let stat = ZnodeStat { child_version, ..ZnodeStat::default() };
                let node = Node { data: Some(Bytes::new()), acl, life: ZnodeLife::Persistent, creates: 0, stat };
                self.nodes.insert(path.into(), node);
            }
            let config = self.nodes.get_mut("/zookeeper/config").unwrap();
            config.acl[0].permissions = 1;
            config.stat.acl_version = -1;
        }
        self.sessions.insert(session, 1);
    }

    fn node(&self, data: Option<Bytes>, acl: Vec<AclEntry>, life: ZnodeLife, owner: LeaseId, created_ms: u64) -> Node {
        let now = Revision(self.revision);
        let stat = ZnodeStat {
            created: now,
            modified: now,
            children_modified: now,
            created_ms,
            modified_ms: created_ms,
            owner,
            ..ZnodeStat::default()
        };
        Node { data, acl, life, creates: 0, stat }
    }

    pub(super) fn end(&mut self, sessions: &[LeaseId]) {
        let before = self.sessions.len();
        self.sessions.retain(|session, _| !sessions.contains(session));
        if self.sessions.len() == before {
            return;
        }
        self.revision += 1;
        let is_theirs = |node: &Node| node.stat.owner.is_some() && sessions.contains(&node.stat.owner);
        let gone: Vec<_> =
            self.nodes.iter().filter(|(_, node)| is_theirs(node)).map(|(path, _)| path.clone()).collect();
        gone.iter().for_each(|path| self.remove(path));
    }

    fn tell(&mut self, path: &str, what: fn(String) -> ZnodeEvent) {
        let what = what(path.to_owned());
        // Only of what came or went the parent has to be told.
        let parent = parent(path).filter(|_| !matches!(what, ZnodeEvent::DataChanged(_)));
        let above = parent.and_then(|parent| self.nodes.get(&parent));
        let above = above.map_or_else(super::testing::open_acl, |parent| parent.acl.clone());
        self.told.push((what, self.nodes[path].acl.clone(), above));
    }

    fn remove(&mut self, path: &str) {
        self.tell(path, ZnodeEvent::Deleted);
        self.nodes.remove(path);
        let (parent, now) = (parent(path).unwrap(), Revision(self.revision));
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.stat.children_modified = now;
            parent.stat.child_version += 1;
        }
    }

    pub(super) fn children(&self, path: &str) -> Vec<String> {
        let of_it = self.nodes.keys().filter(|child| *child != "/" && parent(child).as_deref() == Some(path));
        of_it.map(|child| child.rsplit('/').next().unwrap().to_owned()).collect()
    }

    pub(super) fn descendants(&self, path: &str) -> u64 {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.nodes.keys().filter(|other| *other != "/" && other.starts_with(&prefix)).count() as u64
    }

    pub(super) fn stat(&self, path: &str) -> ZnodeStat {
        let data_length = self.data(path).map_or(0, |data| data.len() as u32);
        ZnodeStat { data_length, children: self.children(path).len() as u32, ..self.nodes[path].stat }
    }

    /// What a read of it shows.
    pub(super) fn data(&self, path: &str) -> Option<Bytes> {
        let of = path.strip_prefix("/zookeeper/quota").and_then(|rest| rest.strip_suffix("/zookeeper_stats"));
        match of.filter(|of| !of.is_empty()) {
            Some(of) => {
                let (count, bytes) = self.figures(of);
                Some(format!("count={count},bytes={bytes}").into())
            }
            None => self.nodes[path].data.clone(),
        }
    }

    /// Znodes and bytes at and below a path.
    pub(super) fn figures(&self, path: &str) -> (i64, i64) {
        let is_of_it = |other: &str| other == path || other.starts_with(&format!("{path}/"));
        let of_it = self.nodes.iter().filter(|(other, _)| is_of_it(other));
        of_it.fold((0, 0), |(count, bytes), (_, node)| {
            (count + 1, bytes + node.data.as_ref().map_or(0, |data| data.len() as i64))
        })
    }

    /// Whether the nearest hard limits above allow so much more; they look as the programs write them.
    fn check_quota(&self, path: &str, count: i64, bytes: i64) -> Result<(), ZnodeError> {
        let mut above = Some(path.to_owned());
        while let Some(path) = above.filter(|path| path != "/" && !path.starts_with("/zookeeper")) {
            let node = |name: &str| self.nodes.get(&format!("/zookeeper/quota{path}/zookeeper_{name}"));
            if let Some(limits) = node("limits") {
                let text =
                    limits.data.as_ref().map_or(String::new(), |data| String::from_utf8_lossy(data).into_owned());
                let limit =
                    |name: &str| text.split_once(name).and_then(|(_, number)| number.get(1..2)?.parse::<i64>().ok());
                let (has_count, has_bytes) = self.figures(&path);
                let over =
                    |limit: Option<i64>, has: i64, more: i64| more != 0 && limit.is_some_and(|max| has + more > max);
                let is_over =
                    over(limit("countHardLimit"), has_count, count) || over(limit("byteHardLimit"), has_bytes, bytes);
                return if node("stats").is_some() && is_over { Err(E::QuotaExceeded) } else { Ok(()) };
            }
            above = parent(&path);
        }
        Ok(())
    }

    pub(super) fn request(
        &mut self,
        session: LeaseId,
        generation: u64,
        identities: &[Identity],
        request: &ZnodeRequest,
        now_ms: u64,
    ) -> Result<ZnodeAnswer, ZnodeError> {
        match self.sessions.get(&session) {
            None => return Err(E::SessionExpired),
            Some(current) if *current != generation => return Err(E::SessionMoved),
            Some(_) => {}
        }
        let saved = self.clone();
        self.revision += 1;
        let mut one = |op: &ZnodeOp| self.op(session, identities, op, now_ms);
        let result = match request {
            ZnodeRequest::One(op) => one(op).map(ZnodeAnswer::One),
            ZnodeRequest::Multi(ops) => {
                let answers: Vec<_> = ops.iter().map_while(|op| one(op).ok()).collect();
                match ops.get(answers.len()) {
                    None => Ok(ZnodeAnswer::Multi(answers)),
                    Some(failing) => {
                        let error = one(failing).unwrap_err();
                        Ok(ZnodeAnswer::MultiFailed { at: answers.len() as u32, error })
                    }
                }
            }
        };
        let failed = matches!(result, Err(_) | Ok(ZnodeAnswer::MultiFailed { .. }));
        if failed || self.nodes == saved.nodes && !changes(request) {
            *self = saved;
        }
        result
    }

    fn op(
        &mut self,
        session: LeaseId,
        identities: &[Identity],
        op: &ZnodeOp,
        now_ms: u64,
    ) -> Result<ZnodeOpAnswer, ZnodeError> {
        let now = Revision(self.revision);
        let check = |actual: i32, expected: i32| match expected == -1 || expected == actual {
            true => Ok(()),
            false => Err(E::BadVersion),
        };
        match op {
            ZnodeOp::Create(asked) => self.create(session, identities, asked, now_ms),
            ZnodeOp::Delete { path, version } => {
                if ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"].contains(&path.as_str()) {
                    return Err(E::BadArguments);
                }
                let parent = parent(path).ok_or(E::BadArguments)?;
                need(self.nodes.get(&parent).ok_or(E::NoNode)?, 8, identities)?;
                check(self.nodes.get(path).ok_or(E::NoNode)?.stat.version, *version)?;
                if !self.children(path).is_empty() {
                    return Err(E::NotEmpty);
                }
                self.remove(path);
                Ok(ZnodeOpAnswer::Done)
            }
            ZnodeOp::SetData { path, .. } | ZnodeOp::SetAcl { path, .. } | ZnodeOp::Check { path, .. }
                if !is_path(path) =>
            {
                Err(E::BadArguments)
            }
            ZnodeOp::Check { path, version } => {
                let node = self.nodes.get(path).ok_or(E::NoNode)?;
                need(node, 1, identities)?;
                check(node.stat.version, *version)?;
                Ok(ZnodeOpAnswer::Done)
            }
            ZnodeOp::SetData { path, data, version } => {
                let node = self.nodes.get(path).ok_or(E::NoNode)?;
                need(node, 2, identities)?;
                let length = |data: &Option<Bytes>| data.as_ref().map_or(0, |data| data.len() as i64);
                if self.enforces_quotas {
                    self.check_quota(path, 0, length(data) - length(&node.data))?;
                }
                check(node.stat.version, *version)?;
                let node = self.nodes.get_mut(path).ok_or(E::NoNode)?;
                node.data.clone_from(data);
                node.stat.version += 1;
                (node.stat.modified, node.stat.modified_ms) = (now, now_ms);
                self.tell(path, ZnodeEvent::DataChanged);
                Ok(ZnodeOpAnswer::Changed(self.stat(path)))
            }
            ZnodeOp::SetAcl { path, acl, version } => {
                let acl = fix(acl, identities)?;
                let node = self.nodes.get_mut(path).ok_or(E::NoNode)?;
                need(node, 16, identities)?;
                check(node.stat.acl_version, *version)?;
                node.acl = acl;
                node.stat.acl_version += 1;
                Ok(ZnodeOpAnswer::Changed(self.stat(path)))
            }
        }
    }

    fn create(
        &mut self,
        session: LeaseId,
        identities: &[Identity],
        asked: &CreateZnode,
        now_ms: u64,
    ) -> Result<ZnodeOpAnswer, ZnodeError> {
        if asked.life == ZnodeLife::Ttl(0) {
            return Err(E::BadArguments);
        }
        let parent = parent(&asked.path).ok_or(E::BadArguments)?;
        let acl = fix(&asked.acl, identities)?;
        let owner = if asked.life == ZnodeLife::Ephemeral { session } else { LeaseId::NONE };
        let new = self.node(asked.data.clone(), acl, asked.life, owner, now_ms);
        let above = self.nodes.get_mut(&parent).ok_or(E::NoNode)?;
        need(above, 4, identities)?;
        let number = if asked.sequential { format!("{:0>10}", above.creates) } else { String::new() };
        let path = asked.path.clone() + &number;
        let is_orphanage = above.stat.owner.is_some();
        if !is_path(&path) {
            return Err(E::BadArguments);
        }
        if self.nodes.contains_key(&path) {
            return Err(E::NodeExists);
        }
        if is_orphanage {
            return Err(E::NoChildrenForEphemerals);
        }
        if self.enforces_quotas {
            self.check_quota(&path, 1, asked.data.as_ref().map_or(0, |data| data.len() as i64))?;
        }
        let above = self.nodes.get_mut(&parent).unwrap();
        above.creates += 1;
        above.stat.child_version += 1;
        above.stat.children_modified = Revision(self.revision);
        self.nodes.insert(path.clone(), new);
        self.tell(&path, ZnodeEvent::Created);
        let data_length = asked.data.as_ref().map_or(0, |data| data.len() as u32);
        let stat = ZnodeStat { data_length, ..self.stat(&path) };
        Ok(ZnodeOpAnswer::Created { path, stat })
    }

    pub(super) fn reap(&mut self, path: &str, now_ms: u64) {
        let Some(node) = self.nodes.get(path) else { return };
        let is_due = match node.life {
            ZnodeLife::Container => node.creates > 0,
            ZnodeLife::Ttl(ttl_ms) => now_ms - node.stat.modified_ms > ttl_ms,
            ZnodeLife::Persistent | ZnodeLife::Ephemeral => false,
        };
        if is_due && self.children(path).is_empty() {
            self.revision += 1;
            self.remove(path);
        }
    }
}

/// Whether a request that was carried out changed anything.
fn changes(request: &ZnodeRequest) -> bool {
    let ops = match request {
        ZnodeRequest::One(op) => std::slice::from_ref(op),
        ZnodeRequest::Multi(ops) => ops,
    };
    ops.iter().any(|op| !matches!(op, ZnodeOp::Check { .. }))
}
