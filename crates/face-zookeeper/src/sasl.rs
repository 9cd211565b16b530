//! SASL as ZooKeeper's clients use it: one mechanism, DIGEST-MD5, between the session's opening and its first request.
//!
//! A client sends any token and gets a challenge, answers it, and gets a proof that this server knows the password
//! too; then it is `sasl:user`. Whoever answers wrongly is told so and sent away: a challenge is good for one answer,
//! so there is nothing to replay and nothing to guess at on one connection.
//!
//! Passwords are hashed when they are read, as the mechanism needs them; they are not kept. What is compared is
//! compared in constant time, and a user that nobody knows takes as long as one with a wrong password.
//!
//! Refused: Kerberos (GSSAPI), whose first token gets a challenge of DIGEST-MD5 that it cannot answer, as at a ZooKeeper
//! that has users; encryption by SASL (use TLS); to act for somebody else (`authzid`), which ZooKeeper overlooks.

mod digest_md5;

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use digest_md5::{Proof, Secret};

/// Largest token of a client. The RFC's limit for answers; others are ignored anyway.
const TOKEN_BYTES_MAX: usize = 4096;
/// Random bytes in a challenge.
const NONCE_BYTES: usize = 30;

/// Users that may come in by SASL.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SaslUsers(BTreeMap<String, Secret>);

impl SaslUsers {
    /// From names and passwords.
    pub fn new<'a>(users: impl IntoIterator<Item = (&'a str, &'a str)>) -> SaslUsers {
        SaslUsers(users.into_iter().map(|(name, password)| (name.to_owned(), Secret::new(name, password))).collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn judge(&self, token: &[u8], nonce: &str) -> Option<Proof> {
        digest_md5::judge(token, nonce, |name| self.0.get(name))
    }
}

/// What is here is as good as passwords, so it is not shown.
impl fmt::Debug for SaslUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaslUsers({})", self.0.len())
    }
}

/// How far a connection is.
#[derive(Debug, Default)]
pub(crate) enum Negotiation {
    #[default]
    Fresh,
    /// It was given this to answer.
    Challenged(String),
    /// It has answered; there is no second time.
    Over,
}

/// What a token came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There are no users, so nobody is asked anything. Clients take an empty answer for the end.
    NobodyToBe,
    /// To be answered.
    Challenge(String),
    /// The client is this user, and is shown this.
    Proven { user: String, token: String },
    /// It is not who it says.
    Refused,
}

impl Negotiation {
    /// Takes the next token.
    pub(crate) fn step(&mut self, token: &[u8], users: &SaslUsers) -> Step {
        if users.is_empty() {
            return Step::NobodyToBe;
        }
        match std::mem::replace(self, Negotiation::Over) {
            // Whatever came: a client that speaks first speaks another mechanism, and will not find an answer.
            Negotiation::Fresh => {
                let nonce = STANDARD.encode(rand::random::<[u8; NONCE_BYTES]>());
                let challenge = digest_md5::challenge(&nonce);
                *self = Negotiation::Challenged(nonce);
                Step::Challenge(challenge)
            }
            Negotiation::Challenged(nonce) if token.len() <= TOKEN_BYTES_MAX => match users.judge(token, &nonce) {
                Some(Proof { user, token }) => Step::Proven { user, token },
                None => Step::Refused,
            },
            Negotiation::Challenged(_) | Negotiation::Over => Step::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> SaslUsers {
        SaslUsers::new([("ada", "secret"), ("bob", "other")])
    }

    fn challenged(negotiation: &mut Negotiation) -> String {
        match negotiation.step(b"", &users()) {
            Step::Challenge(challenge) => challenge.split('"').nth(3).unwrap().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    /// Whoever listens on the network must not come in with what it heard, neither on the same connection nor on
    /// another.
    #[test]
    fn an_answer_is_good_for_one_challenge_once() {
        let (mut one, mut other) = (Negotiation::default(), Negotiation::default());
        let nonce = challenged(&mut one);
        assert_ne!(challenged(&mut other), nonce);
        let answer = digest_md5::answer("ada", "secret", &nonce, "");
        assert!(matches!(one.step(&answer, &users()), Step::Proven { user, .. } if user == "ada"));
        assert_eq!(one.step(&answer, &users()), Step::Refused);
        assert_eq!(one.step(b"", &users()), Step::Refused, "not even another challenge");
        assert_eq!(other.step(&answer, &users()), Step::Refused);
    }

    /// One try for each challenge: a connection is not a place to guess passwords at.
    #[test]
    fn a_wrong_answer_cannot_be_mended() {
        let mut negotiation = Negotiation::default();
        let nonce = challenged(&mut negotiation);
        assert_eq!(negotiation.step(&digest_md5::answer("ada", "other", &nonce, ""), &users()), Step::Refused);
        assert_eq!(negotiation.step(&digest_md5::answer("ada", "secret", &nonce, ""), &users()), Step::Refused);
        let mut long = Negotiation::default();
        let nonce = challenged(&mut long);
        let padding = format!(",x={}", "x".repeat(TOKEN_BYTES_MAX));
        assert_eq!(long.step(&digest_md5::answer("ada", "secret", &nonce, &padding), &users()), Step::Refused);
    }

    /// A server without users must not let anybody in, whatever is sent; clients go on as nobody, as at ZooKeeper.
    #[test]
    fn without_users_nobody_is_anybody() {
        let mut negotiation = Negotiation::default();
        for token in [&b""[..], b"username=\"ada\"", b"\x60\x82"] {
            assert_eq!(negotiation.step(token, &SaslUsers::default()), Step::NobodyToBe);
        }
        assert_eq!(format!("{:?}", users()), "SaslUsers(2)", "what is as good as a password is not logged");
    }
}
