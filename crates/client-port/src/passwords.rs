//! Passwords: hashed and compared with bcrypt, off the threads that serve, a few at a time.
//!
//! bcrypt is slow on purpose. A client that comes in again with a password that was right a moment ago is let in
//! without it: a keyed hash of that password, made with a key of this process, is remembered with the hash it
//! matched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

/// Hashes being made or compared at a time: more would take the cores from everything else.
const AT_A_TIME: usize = 2;
/// Who waits beyond that many is turned away.
const WAITING_MAX: usize = 256;
/// Passwords remembered as right.
const REMEMBERED: usize = 10_000;
/// What bcrypt looks at; Go's refuses longer ones, and so do we.
const BYTES_MAX: usize = 72;
/// Compared with when there is no such user, so that the answer takes as long.
const NOBODYS_HASH: &str = "$2b$10$abcdefghijklmnopqrstuuZLh0QJpGQ3pYvYhq0h1bGq5tK8xJ1Rm";

/// The cost of a hash, as a power of two.
pub const BCRYPT_COST: u32 = 10;

/// Why a password was neither hashed nor compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Longer than bcrypt looks at.
    #[error("a password has at most {BYTES_MAX} bytes")]
    TooLong,
    /// Too many wait already; come again.
    #[error("too many passwords are being looked at; come again")]
    TooMany,
    /// The library refused.
    #[error("the password cannot be hashed")]
    Unhashable,
    /// The process is stopping.
    #[error("the server is stopping")]
    Stopped,
}

/// Hashes and compares passwords.
pub struct Passwords {
    cost: u32,
    turns: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    key: hmac::Key,
    /// By hash: the keyed hash of the password that matches it.
    right: Mutex<HashMap<String, hmac::Tag>>,
}

impl Passwords {
    /// Hashes at that cost.
    #[must_use]
    pub fn new(cost: u32) -> Passwords {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        Passwords {
            cost: cost.clamp(4, 31),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            key: key.unwrap_or_else(|_| hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>())),
            right: Mutex::default(),
        }
    }

    /// The hash of a password.
    pub async fn hash(&self, password: String) -> Result<String, PasswordError> {
        if password.len() > BYTES_MAX {
            return Err(PasswordError::TooLong);
        }
        let cost = self.cost;
        let hashed = self.in_turn(move || bcrypt::hash(password, cost)).await?;
        hashed.map_err(|_| PasswordError::Unhashable)
    }

    /// Whether the password is the one of this hash; `None` is the hash of nobody.
    pub async fn matches(&self, password: String, hash: Option<&str>) -> Result<bool, PasswordError> {
        let tag = hmac::sign(&self.key, password.as_bytes());
        if let Some(hash) = hash
            && let Some(right) = self.right().get(hash)
        {
            return Ok(hmac::verify(&self.key, password.as_bytes(), right.as_ref()).is_ok());
        }
        let is_somebodys = hash.is_some();
        let compared = hash.unwrap_or(NOBODYS_HASH).to_owned();
        let matched = {
            let compared = compared.clone();
            self.in_turn(move || bcrypt::verify(password, &compared).unwrap_or(false)).await?
        };
        if matched && is_somebodys {
            let mut right = self.right();
            if right.len() >= REMEMBERED {
                right.clear();
            }
            right.insert(compared, tag);
        }
        Ok(matched && is_somebodys)
    }

    fn right(&self) -> std::sync::MutexGuard<'_, HashMap<String, hmac::Tag>> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn in_turn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, PasswordError> {
        let _waiting = self.waiting.try_acquire().map_err(|_| PasswordError::TooMany)?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| PasswordError::Stopped)?;
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        working.await.map_err(|_| PasswordError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second look must be as strict as the first.
    #[tokio::test]
    async fn a_password_is_right_or_wrong_however_often_it_is_asked() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("secret".into()).await.unwrap();
        for _ in 0..3 {
            assert_eq!(passwords.matches("wrong".into(), Some(&hash)).await, Ok(false));
            assert_eq!(passwords.matches("secret".into(), Some(&hash)).await, Ok(true));
            assert_eq!(passwords.matches("secret".into(), None).await, Ok(false));
        }
        let other = passwords.hash("secret".into()).await.unwrap();
        assert_ne!(hash, other, "salted");
        assert_eq!(passwords.matches(String::new(), Some("not a hash")).await, Ok(false));
    }

    #[tokio::test]
    async fn a_password_longer_than_is_looked_at_is_refused() {
        let passwords = Passwords::new(4);
        assert_eq!(passwords.hash("x".repeat(73)).await, Err(PasswordError::TooLong));
        assert!(passwords.hash("x".repeat(72)).await.is_ok());
    }
}
