//! Changes of keys that are made only under tokens that are good: our own store is the resource that a lock protects.
//!
//! The keys are those of [`Space::User`], which clients of etcd see; nothing else can be named here. All of it happens
//! at one revision or not at all. What it comes to in the store is a transaction ([`GuardedWrite::into_op`]), so that
//! there is one way in which keys change.

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{NATIVE_WRITE_BYTES_MAX, NATIVE_WRITE_GUARDS_MAX, NATIVE_WRITE_KEYS_MAX, VALUE_BYTES_MAX};
use crate::native::{Fencing, Kind, Name, NativeError};
use crate::{
    Compare, CompareResult, CompareTarget, DeleteOp, Key, KeyRange, LeaseId, Need, Op, PutLease, PutOp, PutValue,
    Space, Txn,
};

/// A token that must be good for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenGuard {
    /// A queue: the session that writes must hold the place of that token. Or a fence: it must let the token through.
    pub kind: Kind,
    /// Which.
    pub name: Name,
    /// The token.
    pub token: u64,
}

/// What must be so of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCondition {
    /// Which.
    pub key: Key,
    /// The revision of its last change; zero: there is no such key.
    pub modified: u64,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Which.
    pub key: Key,
    /// What it becomes; nothing: it is deleted.
    pub value: Option<Bytes>,
}

/// Changes of keys under tokens. See [`GuardedWrite::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedWrite {
    guards: Vec<TokenGuard>,
    conditions: Vec<KeyCondition>,
    changes: Vec<KeyChange>,
}

impl GuardedWrite {
    /// Checks that it is bounded, names keys of clients only, names each of them once, and has a token to show.
    pub fn new(
        guards: Vec<TokenGuard>,
        conditions: Vec<KeyCondition>,
        changes: Vec<KeyChange>,
    ) -> Result<GuardedWrite, NativeError> {
        let counts = (1..=NATIVE_WRITE_GUARDS_MAX).contains(&guards.len())
            && conditions.len() <= NATIVE_WRITE_KEYS_MAX
            && (1..=NATIVE_WRITE_KEYS_MAX).contains(&changes.len());
        let kinds = guards.iter().all(|guard| guard.kind.is_queue() || guard.kind == Kind::Fence);
        let keys = || conditions.iter().map(|one| &one.key).chain(changes.iter().map(|one| &one.key));
        let named = keys().all(|key| key.space_byte() == Some(Space::User as u8) && !key.name().is_empty());
        let values = changes.iter().filter_map(|one| one.value.as_ref()).map(Bytes::len);
        let bytes: usize = keys().map(|key| key.name().len()).chain(values).sum();
        let mut changed: Vec<&Key> = changes.iter().map(|one| &one.key).collect();
        changed.sort_unstable();
        let once = changed.is_sorted_by(|one, next| one < next);
        if counts && kinds && named && bytes <= NATIVE_WRITE_BYTES_MAX && once {
            Ok(GuardedWrite { guards, conditions, changes })
        } else {
            Err(NativeError::BadWrite)
        }
    }

    /// The tokens that must be good: one at least.
    #[must_use]
    pub fn guards(&self) -> &[TokenGuard] {
        &self.guards
    }

    /// What must be so of keys.
    #[must_use]
    pub fn conditions(&self) -> &[KeyCondition] {
        &self.conditions
    }

    /// What changes.
    #[must_use]
    pub fn changes(&self) -> &[KeyChange] {
        &self.changes
    }

    /// The kind and name of its first token.
    pub(super) fn subject(&self) -> (Kind, &Name) {
        let first = self.guards.first().expect("new() takes no write without a token");
        (first.kind, &first.name)
    }

    /// Adds what it needs: as a transaction of etcd's the keys, as any native request the names.
    pub(super) fn needs<'a>(&'a self, needs: &mut Vec<Need<'a>>) {
        needs.extend(self.guards.iter().map(|guard| Need::WriteName(guard.name.as_str())));
        needs.extend(self.conditions.iter().map(|condition| Need::ReadKey(&condition.key)));
        needs.extend(self.changes.iter().map(|change| Need::WriteKey(&change.key)));
    }

    /// The transaction that it is, but for places in queues, which no condition of a transaction can ask about.
    #[must_use]
    pub fn into_op(self) -> Op {
        let fences = self.guards.into_iter().filter(|guard| guard.kind == Kind::Fence);
        let fences = fences.map(|TokenGuard { name, token, .. }| Compare::admits(&Fencing { fence: name, token }));
        let conditions = self.conditions.into_iter().map(|KeyCondition { key, modified }| Compare {
            range: KeyRange::single(key),
            result: CompareResult::Equal,
            target: CompareTarget::Modified(modified as i64),
        });
        let changes = self.changes.into_iter().map(|KeyChange { key, value }| match value {
            Some(value) => {
                let (value, lease) = (PutValue::Set(value), PutLease::Set(LeaseId::NONE));
                Op::Put(PutOp { key, value, lease, want_previous: false })
            }
            None => Op::Delete(DeleteOp { range: KeyRange::single(key), want_previous: false }),
        });
        let (compares, success) = (fences.chain(conditions).collect(), changes.collect());
        Op::Txn(Box::new(Txn { compares, success, failure: Vec::new() }))
    }
}

impl Wire for TokenGuard {
    fn encode(&self, out: &mut Vec<u8>) {
        self.kind.encode(out);
        self.name.encode(out);
        self.token.encode(out);
    }
    fn decode(input: &mut Reader) -> Result<TokenGuard, DecodeError> {
        Ok(TokenGuard { kind: Kind::decode(input)?, name: Name::decode(input)?, token: input.varint()? })
    }
}

impl Wire for KeyCondition {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.modified.encode(out);
    }
    fn decode(input: &mut Reader) -> Result<KeyCondition, DecodeError> {
        Ok(KeyCondition { key: Key::decode(input)?, modified: input.varint()? })
    }
}

impl Wire for KeyChange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        out.push(u8::from(self.value.is_some()));
        if let Some(value) = &self.value {
            put_bytes(out, value);
        }
    }
    fn decode(input: &mut Reader) -> Result<KeyChange, DecodeError> {
        let key = Key::decode(input)?;
        let value = if input.flag()? { Some(input.bytes(VALUE_BYTES_MAX)?) } else { None };
        Ok(KeyChange { key, value })
    }
}

fn put_list<T: Wire>(out: &mut Vec<u8>, list: &[T]) {
    put_varint(out, list.len() as u64);
    list.iter().for_each(|one| one.encode(out));
}

fn list<T: Wire>(input: &mut Reader, most: usize) -> Result<Vec<T>, DecodeError> {
    let count = input.count("the number of keys or tokens", most)?;
    (0..count).map(|_| T::decode(input)).collect()
}

impl Wire for GuardedWrite {
    fn encode(&self, out: &mut Vec<u8>) {
        put_list(out, &self.guards);
        put_list(out, &self.conditions);
        put_list(out, &self.changes);
    }
    fn decode(input: &mut Reader) -> Result<GuardedWrite, DecodeError> {
        let guards = list(input, NATIVE_WRITE_GUARDS_MAX)?;
        let conditions = list(input, NATIVE_WRITE_KEYS_MAX)?;
        let changes = list(input, NATIVE_WRITE_KEYS_MAX)?;
        GuardedWrite::new(guards, conditions, changes).map_err(|_| DecodeError::TooLarge { what: "a write" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(kind: Kind) -> TokenGuard {
        TokenGuard { kind, name: Name::new("n").unwrap(), token: 7 }
    }

    fn put(key: Key, value: &[u8]) -> KeyChange {
        KeyChange { key, value: Some(Bytes::copy_from_slice(value)) }
    }

    fn user(name: &str) -> Key {
        Key::new(Space::User, name.as_bytes())
    }

    /// A write comes from a client: what could forge a lock's own records, fill the log, or mean two things is refused
    /// before it gets anywhere, and from the log, too.
    #[test]
    fn a_write_without_bounds_tokens_or_clients_keys_is_refused() {
        let lock = || vec![guard(Kind::Lock)];
        let record = crate::native_keys::head(Kind::Fence, &Name::new("n").unwrap());
        let many = |count: usize| (0..count).map(|at| put(user(&format!("k{at}")), b"")).collect::<Vec<_>>();
        let absent = |key| vec![KeyCondition { key, modified: 0 }];
        for (guards, conditions, changes) in [
            (vec![], vec![], many(1)),
            (vec![guard(Kind::Lock); NATIVE_WRITE_GUARDS_MAX + 1], vec![], many(1)),
            (vec![guard(Kind::Counter)], vec![], many(1)),
            (lock(), vec![], vec![]),
            (lock(), vec![], many(NATIVE_WRITE_KEYS_MAX + 1)),
            (lock(), vec![], vec![put(record.clone(), b"")]),
            (lock(), absent(record), many(1)),
            (lock(), absent(user("")), many(1)),
            (lock(), vec![], vec![put(user("a"), b""), KeyChange { key: user("a"), value: None }]),
            (lock(), vec![], vec![put(user("a"), &vec![0; NATIVE_WRITE_BYTES_MAX])]),
        ] {
            let forged =
                GuardedWrite { guards: guards.clone(), conditions: conditions.clone(), changes: changes.clone() };
            assert!(GuardedWrite::from_bytes(forged.to_bytes().into()).is_err(), "{forged:?}");
            assert_eq!(GuardedWrite::new(guards, conditions, changes), Err(NativeError::BadWrite));
        }
        let most = GuardedWrite::new(lock(), absent(user("a")), many(NATIVE_WRITE_KEYS_MAX)).unwrap();
        assert_eq!(GuardedWrite::from_bytes(most.to_bytes().into()), Ok(most));
    }
}
