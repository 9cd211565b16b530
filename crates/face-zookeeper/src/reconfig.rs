//! Changing the members in ZooKeeper's way, and what `/zookeeper/config` says of them after it.
//!
//! Checks are made in ZooKeeper's order as far as this node can make them; whether a majority is left says the
//! leader, which a client without the right to ask never gets to. The leader makes the change only if the members are
//! still those it was made for, so that of two reconfigs from one version at most one is carried out.

use tidelock_coordinator::{Consistency, MemberError};
use tidelock_model::{
    Caller, Identity, Member, MemberChange, NodeId, Query, QueryAnswer, Revision, ZnodeError, ZnodeFound, ZnodeQuery,
    ZnodeRead,
};

use crate::connection::{Connection, Ended};
use crate::ensemble::{Asked, Nonsense, change};
use crate::translate::wire_stat;
use crate::wire::{ErrorCode, Reply};

const CONFIG: &str = "/zookeeper/config";
/// A version that any configuration has.
const ANY_VERSION: i64 = -1;

/// Why there is no new configuration.
enum Refused {
    Told(ErrorCode),
    /// Nobody knows what was done.
    Unknown,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Refused {
        Refused::Told(code)
    }
}

impl Connection {
    pub(crate) async fn reconfig(&self, xid: i32, asked: &Asked<'_>, version: i64) -> Result<(), Ended> {
        if !self.face.config.reconfig {
            self.outbox.plain(xid, &Reply::Error(ErrorCode::ReconfigDisabled));
            return Ok(());
        }
        // One at a time at this node, so that each is judged by what the one before it left.
        let _turn = self.face.reconfiguring.lock().await;
        match self.changed_members(asked, version).await {
            Ok((at, reply)) => {
                self.face.watches.told_up_to(at).await;
                self.outbox.outcome(xid, at, &reply);
                Ok(())
            }
            Err(Refused::Told(code)) => {
                self.outbox.plain(xid, &Reply::Error(code));
                Ok(())
            }
            Err(Refused::Unknown) => Err(Ended),
        }
    }

    async fn changed_members(&self, asked: &Asked<'_>, version: i64) -> Result<(Revision, Reply), Refused> {
        // In this order: members that changed in between have a newer configuration.
        let members = self.members().await?;
        let (_, current) = self.configuration().await?;
        if version != ANY_VERSION && version != version_of(&current) {
            return Err(ErrorCode::BadVersion.into());
        }
        let new_id = || NodeId(rand::random::<u64>().max(1));
        let change = change(asked, &members, new_id).map_err(|nonsense| match nonsense {
            Nonsense::Arguments => ErrorCode::BadArguments,
            Nonsense::Number => ErrorCode::MarshallingError,
        })?;
        self.check_permission().await?;
        if let Some(change) = change {
            tracing::info!(?change, "a client changes the members");
            let change = MemberChange::IfStill { members, change: Box::new(change) };
            self.face.coordinator.change_members(Caller::Internal, change).await.map_err(|error| refused(&error))?;
        }
        self.configuration().await
    }

    /// What `/zookeeper/config` holds, whoever asks.
    async fn configuration(&self) -> Result<(Revision, Reply), Refused> {
        let identities = vec![Identity { scheme: "super".to_owned(), id: String::new() }];
        let query = ZnodeQuery { identities, reads: vec![ZnodeRead::Data(CONFIG.to_owned())] };
        let reading = self.face.coordinator.read(Caller::Anonymous, Query::Znodes(query), Consistency::Linearizable);
        match reading.await {
            Ok(QueryAnswer::Znodes { revision, mut found }) => match found.pop() {
                Some(Ok(ZnodeFound::Data { data, stat })) => {
                    Ok((revision, Reply::Data { data, stat: wire_stat(&stat) }))
                }
                _ => Err(ErrorCode::SystemError.into()),
            },
            Ok(_) | Err(_) => Err(Refused::Unknown),
        }
    }

    async fn members(&self) -> Result<Vec<Member>, Refused> {
        match self.face.coordinator.read(Caller::Internal, Query::Members, Consistency::Linearizable).await {
            Ok(QueryAnswer::Members { members, .. }) => Ok(members),
            Ok(_) | Err(_) => Err(Refused::Unknown),
        }
    }

    /// Whoever may write the configuration may change the members.
    async fn check_permission(&self) -> Result<(), Refused> {
        let looked = self.look(vec![ZnodeRead::Writable(CONFIG.to_owned())], Consistency::Linearizable).await;
        match looked.map(|(_, mut found)| found.pop()) {
            Ok(Some(Ok(_))) => Ok(()),
            Ok(Some(Err(ZnodeError::NoAuth))) => Err(ErrorCode::NoAuth.into()),
            Ok(_) => Err(ErrorCode::SystemError.into()),
            Err(Ended) => Err(Refused::Unknown),
        }
    }
}

/// What the last line says; a text that is not ours has the revision it was written at.
fn version_of(current: &Reply) -> i64 {
    let Reply::Data { data, stat } = current else { return 0 };
    let text = data.as_ref().and_then(|data| std::str::from_utf8(data).ok()).unwrap_or_default();
    let version = text.rsplit('\n').next().and_then(|line| line.strip_prefix("version="));
    version.and_then(|hex| i64::from_str_radix(hex, 16).ok()).unwrap_or(stat.mzxid)
}

fn refused(error: &MemberError) -> Refused {
    tracing::info!(%error, "the members were not changed");
    match error {
        MemberError::LearnerBehind { .. } | MemberError::WouldLoseQuorum => ErrorCode::NewConfigNoQuorum.into(),
        // Somebody else was faster.
        MemberError::Busy | MemberError::NotFound(_) | MemberError::WrongRole(_) => {
            ErrorCode::ReconfigInProgress.into()
        }
        MemberError::AddressTaken(_) => ErrorCode::BadArguments.into(),
        MemberError::Exists(_) => ErrorCode::SystemError.into(),
        MemberError::Denied(_) => ErrorCode::NoAuth.into(),
        MemberError::OutcomeUnknown { .. } | MemberError::Stopping => Refused::Unknown,
    }
}
