//! What every request needs from its caller. One place for all protocols, and complete: every match here is
//! without a wildcard, so a request that declares nothing does not compile.
//!
//! Checked twice: where a request comes in, so that a refusal costs no log entry, and for writes again in
//! `apply`, under the users and roles of that very moment.

use crate::{
    Auth, Caller, Command, CompareTarget, DeleteOp, Key, KeyRange, Kind, LeaseId, MemberChange, Op, PutLease, PutOp,
    Query, Txn, ZnodeCommand, native_keys,
};

/// Something a caller must be or have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// Anyone may, whoever they are.
    Nothing,
    /// Be some user.
    User,
    /// Have the role root.
    Admin,
    /// Read all of a range.
    Read(&'a KeyRange),
    /// Write all of a range.
    Write(&'a KeyRange),
    /// Read a key.
    ReadKey(&'a Key),
    /// Write a key.
    WriteKey(&'a Key),
    /// Write every key that a lease owns: who ends or renews it decides over them.
    WriteKeysOfLease(LeaseId),
    /// Read every key that a lease owns.
    ReadKeysOfLease(LeaseId),
    /// Read every key that any lease owns: the list of leases tells of others' sessions.
    ReadKeysOfAllLeases,
    /// Write the key of this name: what locks and their kin have their rights by.
    WriteName(&'a str),
    /// Read the key of this name.
    ReadName(&'a str),
    /// Be the user a native session belongs to.
    Session(LeaseId),
    /// Be this user.
    Be(&'a str),
    /// Have this role.
    Have(&'a str),
}

/// A question about users and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthQuery {
    /// Whether anything is checked, and the revision.
    Status,
    /// All users and roles.
    Everything,
    /// One user.
    User(String),
    /// One role.
    Role(String),
}

/// What is asked of a node that is neither a command nor a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand<'a> {
    /// Renew a lease.
    KeepAlive(LeaseId),
    /// Look at a lease.
    LeaseInfo(LeaseId),
    /// Change the members.
    ChangeMembers(&'a MemberChange),
    /// Move the leadership.
    TransferLeadership,
    /// Take a snapshot.
    TakeSnapshot,
    /// Watch a range.
    Watch(&'a KeyRange),
    /// Learn how a node is.
    Status,
    /// Hash everything a node holds.
    Hash,
    /// Tend a node's files, or ask whether its version may change.
    Maintain,
}

impl Command {
    /// Adds what the command needs.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        match self {
            Command::Write(op) => op.needs(needs),
            Command::LeaseGrant { .. } => needs.push(Need::User),
            Command::LeaseRevoke { id } => needs.push(Need::WriteKeysOfLease(*id)),
            // What the nodes do by themselves is nobody else's to ask for.
            Command::LeaseExpire { .. } | Command::PublishMember(_) => needs.push(Need::Admin),
            Command::Compact { .. } | Command::SetAlarm { .. } | Command::Auth(_) => needs.push(Need::Admin),
            Command::Znode(command) => command.needs(needs),
            Command::Native(command) => command.needs(needs),
        }
    }
}

impl ZnodeCommand {
    /// Adds what the command needs. The users and roles asked about here are etcd's; who may do what with a
    /// znode is written on the znode and judged in `state::znodes`, against the identities in the request.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        needs.push(match self {
            ZnodeCommand::OpenSession { .. }
            | ZnodeCommand::AttachSession { .. }
            | ZnodeCommand::CloseSession { .. }
            | ZnodeCommand::Requests(_)
            | ZnodeCommand::RequestsWithinQuotas(_) => Need::Nothing,
            // What the nodes do by themselves is nobody else's to ask for.
            ZnodeCommand::Reap { .. } => Need::Admin,
        });
    }
}

impl Op {
    /// Adds what the operation needs, in whichever branch it is.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        match self {
            Op::Put(PutOp { key, value: _, lease, want_previous }) => {
                needs.push(Need::WriteKey(key));
                match lease {
                    // Keys that share a lease die together: who attaches one could end the others.
                    PutLease::Set(lease) if lease.is_some() => needs.push(Need::WriteKeysOfLease(*lease)),
                    PutLease::Set(_) | PutLease::Keep => {}
                }
                if *want_previous {
                    needs.push(Need::ReadKey(key));
                }
            }
            Op::Delete(DeleteOp { range, want_previous }) => {
                needs.push(Need::Write(range));
                if *want_previous {
                    needs.push(Need::Read(range));
                }
            }
            Op::Range(read) => needs.push(Need::Read(&read.range)),
            Op::Txn(txn) => {
                let Txn { compares, success, failure } = &**txn;
                needs.extend(compares.iter().map(|compare| match &compare.target {
                    // A fence remembers what it let through.
                    CompareTarget::Admits(_) => match native_keys::parse_borrowed(&compare.range.start) {
                        Some((Kind::Fence, name, _)) => Need::WriteName(name),
                        _ => Need::Write(&compare.range),
                    },
                    _ => Need::Read(&compare.range),
                }));
                success.iter().chain(failure).for_each(|op| op.needs(needs));
            }
        }
    }
}

impl Query {
    /// Adds what the query needs.
    pub fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        match self {
            Query::Range(read) => needs.push(Need::Read(&read.range)),
            Query::Txn(op) => op.needs(needs),
            Query::LeaseKeys(id) => needs.push(Need::ReadKeysOfLease(*id)),
            Query::Page(page) => needs.push(Need::Read(&page.range)),
            Query::Leases => needs.push(Need::ReadKeysOfAllLeases),
            Query::Members | Query::Alarms => needs.push(Need::User),
            // Judged by the lists on the znodes: see `ZnodeCommand::needs`.
            Query::Znodes(_) => needs.push(Need::Nothing),
            Query::History(_) => needs.push(Need::Admin),
            Query::Native(query) => query.needs(needs),
            Query::Auth(AuthQuery::Status) => needs.push(Need::Nothing),
            Query::Auth(AuthQuery::Everything) => needs.push(Need::Admin),
            Query::Auth(AuthQuery::User(user)) => needs.push(Need::Be(user)),
            Query::Auth(AuthQuery::Role(role)) => needs.push(Need::Have(role)),
        }
    }
}

impl<'a> Errand<'a> {
    /// Adds what it needs.
    pub fn needs(&self, needs: &mut Vec<Need<'a>>) {
        needs.push(match self {
            // Who keeps a lease alive keeps its keys.
            Errand::KeepAlive(id) => Need::WriteKeysOfLease(*id),
            Errand::LeaseInfo(_) | Errand::Status => Need::User,
            Errand::ChangeMembers(_) | Errand::TransferLeadership | Errand::TakeSnapshot => Need::Admin,
            Errand::Hash | Errand::Maintain => Need::Admin,
            Errand::Watch(range) => Need::Read(range),
        });
    }
}

impl Caller {
    /// The same caller as if it had come in just now: for what goes on for long on behalf of someone who once
    /// proved who it is. What it may do is asked at every step all the same.
    #[must_use]
    pub fn as_of(&self, auth: &Auth) -> Caller {
        match self {
            Caller::Internal | Caller::Anonymous => self.clone(),
            Caller::User { name, .. } => Caller::User { name: name.clone(), auth_revision: auth.revision },
        }
    }

    /// Whether this is the node itself, which may do everything.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        *self == Caller::Internal
    }
}
