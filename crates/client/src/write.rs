//! Writes into the cluster's own store that only the holder of a lock can make.

use bytes::Bytes;
use prost::Message as _;
use tidelock_native_api::v1::{self, Kind, request::Op};

use crate::client::Client;
use crate::error::{Code, Error, Refusal};
use crate::guard::{Guard, Token};
use crate::handle::SessionHandle;

/// Largest write that is sent. A node takes no larger message, and ends the stream that brings one.
const MESSAGE_BYTES_MAX: usize = 60 * 1024;

impl Client {
    /// A change of keys in the cluster's own store, made only if all tokens that it shows are good.
    pub fn write(&self) -> Write {
        Write { client: self.clone(), session: None, write: v1::Write::default() }
    }
}

/// Puts and deletes of keys, all of them or none, under tokens. See [`Client::write`].
///
/// The keys are those that clients of etcd see. A write shows one token at least; it has up to 128 changes, each key
/// once, and 48 KiB of keys and values.
///
#[doc = concat!("```\n", include_str!("doc/write.rs"), "```")]
#[must_use = "nothing is written before send()"]
#[derive(Clone, Debug)]
pub struct Write {
    client: Client,
    /// Of the first guard: a lock's token is good only for the session that holds it.
    session: Option<SessionHandle>,
    write: v1::Write,
}

impl Write {
    /// Writes only while this is held: the cluster looks at the lock itself, so that a holder which lost it is kept out
    /// from the moment another could have it. Several guards must be of one time to live.
    pub fn admit(mut self, guard: impl AsRef<Guard>) -> Write {
        let guard = guard.as_ref();
        self.session.get_or_insert_with(|| guard.session().clone());
        self.guarded(guard.kind(), guard.name(), guard.token())
    }

    /// Writes only if `fence` lets `token` through: for who has the token from somebody else, and no guard. Keeps an
    /// old token out once a later one was shown.
    pub fn fenced(self, fence: &str, token: Token) -> Write {
        self.guarded(Kind::Fence, fence, token)
    }

    fn guarded(mut self, kind: Kind, name: &str, token: Token) -> Write {
        let guard = v1::TokenGuard { kind: kind.into(), name: name.to_owned(), token: token.get() };
        self.write.guards.push(guard);
        self
    }

    /// Writes only if there is no such key.
    pub fn if_absent(self, key: impl Into<Bytes>) -> Write {
        self.if_changed_at(key, 0)
    }

    /// Writes only if the key was last changed at that revision (etcd's `mod_revision`).
    pub fn if_changed_at(mut self, key: impl Into<Bytes>, revision: u64) -> Write {
        self.write.conditions.push(v1::KeyCondition { key: key.into(), modified: revision });
        self
    }

    /// Sets a key.
    pub fn put(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Write {
        self.write.puts.push(v1::KeyPut { key: key.into(), value: value.into() });
        self
    }

    /// Deletes a key, if there is one.
    pub fn delete(mut self, key: impl Into<Bytes>) -> Write {
        self.write.deletes.push(key.into());
        self
    }

    /// Writes all of it, or nothing. [`Error::Lost`]: a token is not good any more. Refused as
    /// [`Code::KeyChanged`](crate::Code::KeyChanged): a condition does not hold. [`Error::Unknown`]: it may have been
    /// written, once.
    pub async fn send(self) -> Result<(), Error> {
        let bytes = self.write.encoded_len();
        if bytes > MESSAGE_BYTES_MAX {
            let message = format!("a write of {bytes} bytes is too large: keys and values have 48 KiB at most");
            return Err(Error::Refused(Refusal { code: Code::Mistaken, message, numbers: Default::default() }));
        }
        let write = Op::Write(self.write);
        let written = match self.session {
            Some(session) => session.ask(write).await,
            None => self.client.ask(None, None, write).await,
        };
        written.map(drop)
    }
}
