//! Changes of keys under tokens, from the wire to the core. Pure.

use bytes::Bytes;
use tidelock_model::{GuardedWrite, Key, KeyChange, KeyCondition, Space, TokenGuard};
use tidelock_native_api::v1;

use crate::problem::Problem;
use crate::translate;

/// The keys that clients of etcd have.
fn key(name: &Bytes) -> Key {
    Key::new(Space::User, name)
}

pub(crate) fn guarded_write(write: v1::Write) -> Result<GuardedWrite, Problem> {
    let v1::Write { guards, conditions, puts, deletes } = write;
    let guard = |v1::TokenGuard { kind, name, token }| {
        let (kind, name) = (translate::kind(kind)?, translate::name(&name)?);
        Ok::<_, Problem>(TokenGuard { kind, name, token })
    };
    let guards = guards.into_iter().map(guard).collect::<Result<_, _>>()?;
    let condition = |one: &v1::KeyCondition| KeyCondition { key: key(&one.key), modified: one.modified };
    let conditions = conditions.iter().map(condition).collect();
    let puts = puts.into_iter().map(|v1::KeyPut { key, value }| KeyChange { key: self::key(&key), value: Some(value) });
    let deletes = deletes.iter().map(|name| KeyChange { key: key(name), value: None });
    Ok(GuardedWrite::new(guards, conditions, puts.chain(deletes).collect())?)
}
