//! Tokens: how a client that once gave its password shows who it is.
//!
//! A simple token holds the user's name and the moment it was made, sealed with a secret that all members share
//! through the replicated state. So every member knows every token, a restarted one too, and nothing about them
//! enters the log. It counts while it is used: for the time to live after it was made or was last seen here, and
//! no longer than its user keeps the password; what it is good for is asked anew every time.
//!
//! A JWT is signed with keys from files, so that others can make and check them. It carries the revision of
//! users and roles it was made at, and counts until one of them changes or it expires.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use ring::hmac;
use serde::{Deserialize, Serialize};
use tidelock_model::{Auth, Caller};

/// How long a simple token counts without being used, unless configured.
pub const TOKEN_TTL: Duration = Duration::from_secs(300);

/// Tokens whose last use is remembered. The rest counts from when it was made; its client has to come in anew a
/// little earlier, which it does by itself.
const USES_REMEMBERED: usize = 100_000;

/// Longest token that is looked at.
const TOKEN_BYTES_MAX: usize = 4096;

/// How tokens are made.
#[derive(Clone)]
pub enum TokenKind {
    /// Sealed with the cluster's own secret.
    Simple {
        /// How long one counts without being used.
        ttl: Duration,
    },
    /// Signed with keys of the operator's.
    Jwt(Arc<JwtKeys>),
}

impl Default for TokenKind {
    fn default() -> TokenKind {
        TokenKind::Simple { ttl: TOKEN_TTL }
    }
}

impl fmt::Debug for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenKind::Simple { .. } => "Simple",
            TokenKind::Jwt(_) => "Jwt",
        })
    }
}

/// Keys for JWTs.
pub struct JwtKeys {
    algorithm: Algorithm,
    verify: DecodingKey,
    /// Without it tokens are checked here and made elsewhere.
    sign: Option<EncodingKey>,
    ttl: Duration,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    username: String,
    revision: u64,
    exp: u64,
}

impl JwtKeys {
    /// From the names and files that `--auth-token=jwt,...` gives: `sign-method` is one of RS256 .. PS512, ES256, ES384,
    /// EdDSA and HS256 .. HS512, for which both keys are the same bytes.
    pub fn new(
        sign_method: &str,
        public: Option<&[u8]>,
        private: Option<&[u8]>,
        ttl: Duration,
    ) -> Result<JwtKeys, String> {
        let algorithm: Algorithm =
            sign_method.parse().map_err(|_| format!("the sign-method {sign_method:?} is not supported"))?;
        let bad = |which: &str, error: jsonwebtoken::errors::Error| format!("the {which} cannot be used: {error}");
        use Algorithm as A;
        let (verify, sign) = match algorithm {
            A::HS256 | A::HS384 | A::HS512 => {
                let secret = private.or(public).ok_or("jwt needs priv-key, a file with the secret")?;
                (DecodingKey::from_secret(secret), Some(EncodingKey::from_secret(secret)))
            }
            A::RS256 | A::RS384 | A::RS512 | A::PS256 | A::PS384 | A::PS512 => {
                let public = public.ok_or("jwt needs pub-key, a file with the public key in PEM")?;
                let verify = DecodingKey::from_rsa_pem(public).map_err(|error| bad("pub-key", error))?;
                let sign =
                    private.map(EncodingKey::from_rsa_pem).transpose().map_err(|error| bad("priv-key", error))?;
                (verify, sign)
            }
            A::ES256 | A::ES384 => {
                let public = public.ok_or("jwt needs pub-key, a file with the public key in PEM")?;
                let verify = DecodingKey::from_ec_pem(public).map_err(|error| bad("pub-key", error))?;
                let sign = private.map(EncodingKey::from_ec_pem).transpose().map_err(|error| bad("priv-key", error))?;
                (verify, sign)
            }
            A::EdDSA => {
                let public = public.ok_or("jwt needs pub-key, a file with the public key in PEM")?;
                let verify = DecodingKey::from_ed_pem(public).map_err(|error| bad("pub-key", error))?;
                let sign = private.map(EncodingKey::from_ed_pem).transpose().map_err(|error| bad("priv-key", error))?;
                (verify, sign)
            }
        };
        Ok(JwtKeys { algorithm, verify, sign, ttl })
    }

    fn make(&self, user: &str, revision: u64, now: u64) -> Option<String> {
        let claims = Claims { username: user.to_owned(), revision, exp: now + self.ttl.as_secs() };
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, self.sign.as_ref()?).ok()
    }

    fn verify(&self, token: &str) -> Option<Caller> {
        let mut validation = Validation::new(self.algorithm);
        validation.leeway = 0;
        validation.validate_aud = false;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verify, &validation).ok()?.claims;
        Some(Caller::User { name: claims.username.into(), auth_revision: claims.revision })
    }
}

/// Makes and checks tokens.
pub struct Tokens {
    kind: TokenKind,
    /// When tokens were last seen, by their seal, in seconds.
    used: Mutex<HashMap<[u8; 16], u64>>,
}

impl Tokens {
    /// Of that kind.
    #[must_use]
    pub fn new(kind: TokenKind) -> Tokens {
        Tokens { kind, used: Mutex::default() }
    }

    /// A token for someone who just proved to be `user`; none if this member has no key to make one.
    pub fn make(&self, auth: &Auth, user: &str) -> Option<String> {
        match &self.kind {
            TokenKind::Simple { .. } => Some(seal(auth, user, seconds())),
            TokenKind::Jwt(keys) => keys.make(user, auth.revision, seconds()),
        }
    }

    /// Whose token this is, if it counts.
    pub fn verify(&self, auth: &Auth, token: &str) -> Option<Caller> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        match &self.kind {
            TokenKind::Simple { ttl } => self.unseal(auth, token, ttl.as_secs(), seconds()),
            TokenKind::Jwt(keys) => keys.verify(token),
        }
    }

    fn unseal(&self, auth: &Auth, token: &str, ttl: u64, now: u64) -> Option<Caller> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok().filter(|_| auth.has_secret())?;
        let (content, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
        // Compares in a time that tells nothing.
        hmac::verify(&key(auth), content, tag).ok()?;
        let (made, rest) = content.split_first_chunk::<8>()?;
        let (revision, name) = rest.split_first_chunk::<8>()?;
        let (made, revision) = (u64::from_le_bytes(*made), u64::from_le_bytes(*revision));
        let name = std::str::from_utf8(name).ok()?;
        if revision < auth.users().get(name)?.tokens_since {
            return None;
        }
        self.touch(tag.first_chunk()?, made, ttl, now)
            .then(|| Caller::User { name: name.into(), auth_revision: auth.revision })
    }

    /// Whether a token made then still counts now; if so it counts from now on anew.
    fn touch(&self, seal: &[u8; 16], made: u64, ttl: u64, now: u64) -> bool {
        let mut used = self.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = used.get(seal).copied().unwrap_or(made);
        let counts = now.saturating_sub(last) < ttl.max(1);
        if counts && now > last {
            if used.len() >= USES_REMEMBERED {
                used.retain(|_, last| now.saturating_sub(*last) < ttl);
            }
            if used.len() < USES_REMEMBERED {
                used.insert(*seal, now);
            }
        }
        counts
    }
}

const TAG_BYTES: usize = 32;

fn key(auth: &Auth) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &auth.token_secret)
}

fn seal(auth: &Auth, user: &str, now: u64) -> String {
    let mut bytes = now.to_le_bytes().to_vec();
    bytes.extend_from_slice(&auth.revision.to_le_bytes());
    bytes.extend_from_slice(user.as_bytes());
    let tag = hmac::sign(&key(auth), &bytes);
    bytes.extend_from_slice(tag.as_ref());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::User;

    fn auth() -> Auth {
        let mut auth = Auth::default();
        (auth.enabled, auth.token_secret, auth.revision) = (true, [7; 32], 5);
        auth.change(|users, _| {
            users.insert("ann".into(), User { tokens_since: 4, ..User::default() });
            users.insert("bob".into(), User { tokens_since: 4, ..User::default() });
        });
        auth
    }

    fn name(caller: Option<Caller>) -> Option<String> {
        caller.map(|caller| match caller {
            Caller::User { name, auth_revision: 5 } => name.to_string(),
            other => panic!("not a user of now: {other:?}"),
        })
    }

    /// A token lives by being used; one that was left lying about must not open anything.
    #[test]
    fn a_token_counts_while_it_is_used_and_a_time_to_live_longer() {
        let (tokens, auth) = (Tokens::new(TokenKind::default()), auth());
        let token = seal(&auth, "ann", 1_000);
        let whose = |now| name(tokens.unseal(&auth, &token, 300, now));
        assert_eq!(whose(1_299).as_deref(), Some("ann"));
        assert_eq!(whose(1_598).as_deref(), Some("ann"));
        assert_eq!(whose(1_898), None);
        let unused = seal(&auth, "ann", 1_001);
        assert_eq!(name(tokens.unseal(&auth, &unused, 300, 1_301)), None);
    }

    /// Whoever had the password changed must show the new one, on every member.
    #[test]
    fn a_token_ends_with_what_it_was_given_for() {
        let tokens = Tokens::new(TokenKind::default());
        let mut auth = auth();
        let token = seal(&auth, "ann", 1_000);
        auth.change(|users, _| users.get_mut("ann").unwrap().tokens_since = 6);
        assert_eq!(tokens.unseal(&auth, &token, 300, 1_001), None);
        auth.change(|users, _| users.remove("ann"));
        assert_eq!(tokens.unseal(&auth, &token, 300, 1_001), None);
    }

    #[test]
    fn a_token_that_was_tampered_with_or_made_elsewhere_is_nobodys() {
        let tokens = Tokens::new(TokenKind::default());
        let auth = auth();
        let token = seal(&auth, "ann", 1_000);
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(tokens.unseal(&auth, &URL_SAFE_NO_PAD.encode(changed), 300, 1_001), None);
        }
        for short in 0..bytes.len() {
            assert_eq!(tokens.unseal(&auth, &URL_SAFE_NO_PAD.encode(&bytes[..short]), 300, 1_001), None);
        }
        let mut elsewhere = auth.clone();
        elsewhere.token_secret = [8; 32];
        assert_eq!(tokens.unseal(&elsewhere, &token, 300, 1_001), None);
        assert_eq!(tokens.verify(&auth, "OinDKvWWHwxxZyGf.7"), None);
    }

    /// JWTs carry the revision they were made at: what changed since makes the client come in again.
    #[test]
    fn a_jwt_says_who_and_as_of_when() {
        let keys = |secret: &[u8]| JwtKeys::new("HS256", None, Some(secret), Duration::from_secs(60)).unwrap();
        let tokens = Tokens::new(TokenKind::Jwt(Arc::new(keys(b"secret"))));
        let token = tokens.make(&auth(), "ann").unwrap();
        assert_eq!(name(tokens.verify(&auth(), &token)).as_deref(), Some("ann"));
        let others = Tokens::new(TokenKind::Jwt(Arc::new(keys(b"another"))));
        assert_eq!(others.verify(&auth(), &token), None);
        let expired = keys(b"secret").make("ann", 5, seconds() - 61).unwrap();
        assert_eq!(tokens.verify(&auth(), &expired), None);
        assert!(JwtKeys::new("none", None, None, TOKEN_TTL).is_err());
        assert!(JwtKeys::new("RS256", Some(b"no key"), None, TOKEN_TTL).is_err());
    }
}
