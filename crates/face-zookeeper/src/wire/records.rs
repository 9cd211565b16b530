//! The records that requests and replies share.

use super::jute::{Defect, MIN_STRING, Reader, put_int, put_long, put_string};

/// What ZooKeeper tells about a znode: 68 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The zxid that created it.
    pub czxid: i64,
    /// The zxid that last changed its data.
    pub mzxid: i64,
    /// When it was created, in ms since 1970.
    pub ctime: i64,
    /// When its data was last changed, in ms since 1970.
    pub mtime: i64,
    /// How often its data was changed.
    pub version: i32,
    /// How often children came and went.
    pub cversion: i32,
    /// How often its ACL was changed.
    pub aversion: i32,
    /// The session that owns it, 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
    /// The length of its data, 0 for null.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The zxid that last added or removed a child.
    pub pzxid: i64,
}

impl Stat {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_long(out, self.czxid);
        put_long(out, self.mzxid);
        put_long(out, self.ctime);
        put_long(out, self.mtime);
        put_int(out, self.version);
        put_int(out, self.cversion);
        put_int(out, self.aversion);
        put_long(out, self.ephemeral_owner);
        put_int(out, self.data_length);
        put_int(out, self.num_children);
        put_long(out, self.pzxid);
    }
}

/// One entry of an ACL, as the client wrote it: neither scheme nor id are checked here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    /// READ 1, WRITE 2, CREATE 4, DELETE 8, ADMIN 16.
    pub perms: i32,
    /// How `id` is to be read: "world", "auth", "digest", "ip", "x509", "sasl".
    pub scheme: String,
    /// Whom it allows.
    pub id: String,
}

impl Acl {
    /// Permissions and two empty strings.
    const MIN: usize = 4 + 2 * MIN_STRING;

    /// A null scheme names nobody, as the empty one does (-114). A null id stops ZooKeeper's own schemes
    /// short (-5), while others never look at it.
    fn read(reader: &mut Reader) -> Result<Acl, Defect> {
        let perms = reader.int()?;
        let scheme = reader.string()?.unwrap_or_default();
        let id = match reader.string()? {
            None if matches!(scheme.as_str(), "world" | "digest" | "ip") => return Err(Defect::Null("an ACL's id")),
            id => id.unwrap_or_default(),
        };
        Ok(Acl { perms, scheme, id })
    }

    /// A null list is an empty one: both are refused with -114, later.
    pub(super) fn read_list(reader: &mut Reader) -> Result<Vec<Acl>, Defect> {
        Ok(reader.vector(Acl::MIN, Acl::read)?.unwrap_or_default())
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_int(out, self.perms);
        put_string(out, &self.scheme);
        put_string(out, &self.id);
    }
}

/// Somebody a connection has proved to be, in the answer to whoAmI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthId {
    /// "ip", "digest", "x509", "sasl", "super".
    pub scheme: String,
    /// The name under that scheme, without secrets.
    pub user: String,
}

/// What kind of znode a create asks for; its `flags`.
#[allow(missing_docs, reason = "the names are ZooKeeper's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    Persistent,
    Ephemeral,
    PersistentSequential,
    EphemeralSequential,
    Container,
    PersistentWithTtl,
    PersistentSequentialWithTtl,
}

impl CreateMode {
    /// Flags that name no kind are the caller's to refuse (-8): ZooKeeper looks at other things first.
    #[must_use]
    pub const fn from_flags(flags: i32) -> Option<CreateMode> {
        Some(match flags {
            0 => CreateMode::Persistent,
            1 => CreateMode::Ephemeral,
            2 => CreateMode::PersistentSequential,
            3 => CreateMode::EphemeralSequential,
            4 => CreateMode::Container,
            5 => CreateMode::PersistentWithTtl,
            6 => CreateMode::PersistentSequentialWithTtl,
            _ => return None,
        })
    }

    /// Whether the znode goes with its session.
    #[must_use]
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    /// Whether a number is appended to the name.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(
            self,
            CreateMode::PersistentSequential
                | CreateMode::EphemeralSequential
                | CreateMode::PersistentSequentialWithTtl
        )
    }

    /// Whether the znode goes when it was left alone for a while.
    #[must_use]
    pub const fn has_ttl(self) -> bool {
        matches!(self, CreateMode::PersistentWithTtl | CreateMode::PersistentSequentialWithTtl)
    }
}

/// Which watches checkWatches and removeWatches mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedWatch {
    /// One-shot watches for children.
    Children,
    /// One-shot watches for data and existence.
    Data,
    /// All kinds.
    Any,
    /// Persistent watches.
    Persistent,
    /// Persistent recursive watches.
    PersistentRecursive,
}

impl RemovedWatch {
    pub(super) fn read(reader: &mut Reader) -> Result<RemovedWatch, Defect> {
        Ok(match reader.int()? {
            1 => RemovedWatch::Children,
            2 => RemovedWatch::Data,
            3 => RemovedWatch::Any,
            4 => RemovedWatch::Persistent,
            5 => RemovedWatch::PersistentRecursive,
            value => return Err(Defect::UnknownValue { what: "kind of watch", value }),
        })
    }
}

/// Which watch addWatch sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddWatchMode {
    /// Data and children of one znode, until removed.
    Persistent,
    /// A znode and all below it, until removed.
    PersistentRecursive,
}

impl AddWatchMode {
    pub(super) fn read(reader: &mut Reader) -> Result<AddWatchMode, Defect> {
        Ok(match reader.int()? {
            0 => AddWatchMode::Persistent,
            1 => AddWatchMode::PersistentRecursive,
            value => return Err(Defect::UnknownValue { what: "mode of a watch", value }),
        })
    }
}
