//! Who a request comes from: the token or the password it carries, or else the certificate of its connection.
//!
//! Only asked while authorisation is on. Whether a password is right takes a while; tokens and certificates do not.

use std::sync::Arc;

use http::{Extensions, HeaderMap};
use tidelock_model::{Auth, Caller};

use crate::listener::ClientName;
use crate::tokens::Tokens;

/// What a request says about who sends it. Kept by streams: whether it holds is asked at every request on them.
#[derive(Clone, Debug, Default)]
pub struct Credential {
    /// A token, without the scheme before it.
    pub token: Option<String>,
    /// The name in the certificate of the connection.
    pub certificate: Option<ClientName>,
}

impl Credential {
    /// What these headers and extensions say.
    #[must_use]
    pub fn of(headers: &HeaderMap, extensions: &Extensions) -> Credential {
        // Clients over plain HTTP use the second name, with or without a scheme before the token.
        let token = headers.get("token").or_else(|| headers.get("authorization"));
        let token = token.and_then(|token| token.to_str().ok());
        let token = token.map(|token| token.strip_prefix("Bearer ").unwrap_or(token).to_owned());
        Credential { token, certificate: extensions.get::<ClientName>().cloned() }
    }

    /// Whether anything is said.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.token.is_some() || self.certificate.is_some()
    }
}

/// The token does not count (any more), or is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidToken;

impl Tokens {
    /// Who has this credential.
    pub fn identify(&self, auth: &Auth, credential: &Credential) -> Result<Caller, InvalidToken> {
        if !auth.enabled {
            return Ok(Caller::Anonymous);
        }
        if let Some(token) = &credential.token {
            return self.verify(auth, token).ok_or(InvalidToken);
        }
        Ok(match &credential.certificate {
            Some(ClientName(name)) => Caller::User { name: Arc::clone(name), auth_revision: auth.revision },
            None => Caller::Anonymous,
        })
    }
}
