//! Who a request comes from: a token, a name and password, or the certificate of its connection.
//!
//! What the caller may do is decided below the coordinator (A1), on the command.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Extensions, HeaderMap};
use tidelock_client_port::Credential;
use tidelock_coordinator::Consistency;
use tidelock_model::{Auth, AuthQuery, Caller, Query, QueryAnswer};

use crate::problem::{Problem, wrong_password};
use crate::services::Services;

/// Longest `authorization` that is looked at.
const HEADER_BYTES_MAX: usize = 4096;

/// The proof of who somebody is. Kept by streams: whether it still holds is asked at every request on them.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// A token or a certificate, or nothing.
    Shown(Credential),
    /// The password was right, as of that revision of users and roles.
    Password { name: String, auth_revision: u64 },
}

impl Services {
    /// What a request shows. A password is compared at once, which takes a while the first time.
    pub(crate) async fn proof(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Proof, Problem> {
        let Some((name, password)) = basic(headers)? else {
            let credential = Credential::of(headers, extensions);
            // A node that is behind, such as one that just started, may not know yet that users are asked for: it would
            // take this one for nobody, and nobody is refused where the request is carried out.
            if credential.is_shown() && !self.coordinator.auth().enabled {
                self.users_now().await?;
            }
            return Ok(Proof::Shown(credential));
        };
        let auth = self.users_now().await?;
        if auth.enabled {
            let hash = auth.users().get(&name).and_then(|user| user.password_hash.as_deref());
            if !self.passwords.matches(password, hash).await? {
                return Err(wrong_password());
            }
        }
        Ok(Proof::Password { name, auth_revision: auth.revision })
    }

    /// Users and roles as the cluster has them, which this node then knows, too.
    async fn users_now(&self) -> Result<Arc<Auth>, Problem> {
        let query = Query::Auth(AuthQuery::Status);
        match self.coordinator.read(Caller::Internal, query, Consistency::Linearizable).await? {
            QueryAnswer::Auth { auth, .. } => Ok(auth),
            _ => Err(Problem::mismatch()),
        }
    }

    /// Who that is now.
    pub(crate) fn caller(&self, proof: &Proof) -> Result<Caller, Problem> {
        let auth = self.coordinator.auth();
        if !auth.enabled {
            return Ok(Caller::Anonymous);
        }
        match proof {
            Proof::Shown(credential) => Ok(self.tokens.identify(&auth, credential)?),
            // As with a token: it counts until the user or the password changes.
            Proof::Password { name, auth_revision } => match auth.users().get(name) {
                Some(user) if user.tokens_since <= *auth_revision => {
                    Ok(Caller::User { name: name.as_str().into(), auth_revision: auth.revision })
                }
                _ => Err(wrong_password()),
            },
        }
    }
}

/// The user that a caller is, for who owns a session; nobody while users are not asked for.
pub(crate) fn owner(caller: &Caller) -> String {
    match caller {
        Caller::User { name, .. } => name.to_string(),
        Caller::Anonymous | Caller::Internal => String::new(),
    }
}

/// A name and password, if that is what is shown.
fn basic(headers: &HeaderMap) -> Result<Option<(String, String)>, Problem> {
    let value = headers.get(http::header::AUTHORIZATION).filter(|value| value.len() <= HEADER_BYTES_MAX);
    let Some(encoded) = value.and_then(|value| value.to_str().ok()).and_then(|text| text.strip_prefix("Basic ")) else {
        return Ok(None);
    };
    let text = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = text.as_deref().and_then(|text| text.split_once(':'));
    let (name, password) = pair.ok_or_else(wrong_password)?;
    Ok(Some((name.to_owned(), password.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_double::Double;
    use crate::{FaceConfig, NativeFace};
    use tidelock_client_port::ClientName;

    /// Who has the right certificate must not be refused as nobody because this node has not heard of users yet.
    #[tokio::test]
    async fn a_certificate_counts_at_a_node_that_is_behind() {
        let double = Arc::new(Double::default());
        let face = NativeFace::new(double.clone(), FaceConfig::default());
        let caller_of = async |extensions: Extensions| {
            let proof = face.services().proof(&HeaderMap::new(), &extensions).await.unwrap();
            face.services().caller(&proof).unwrap()
        };
        double.shut_out_everybody_once_asked();
        assert_eq!(caller_of(Extensions::new()).await, Caller::Anonymous, "nobody needs no look");
        assert_eq!(double.questions(), 0);
        let mut extensions = Extensions::new();
        extensions.insert(ClientName("alice".into()));
        let Caller::User { name, .. } = caller_of(extensions).await else { panic!("taken for nobody") };
        assert_eq!(&*name, "alice");
    }
}
