//! Who a client is beyond its address: by the certificate it showed, by SASL, and whether that is enough to be served.

use std::time::Duration;

use tidelock_model::Identity;
use tidelock_model::limits::ZNODE_IDENTITIES_MAX;

use crate::connection::{Connection, Ended};
use crate::sasl::{SaslUsers, Step};
use crate::wire::{ErrorCode, Reply, Request};

/// How long a refusal of SASL is held back. It makes guessing slow. And kazoo reports a refusal that comes before it has
/// noticed that it is connected as a time-out, which tells its user nothing of the password.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// What can be set about who clients are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Who may come in by SASL.
    pub sasl_users: SaslUsers,
    /// The one of them who may do everything (`zookeeper.superUser`).
    pub sasl_super_user: Option<String>,
    /// The subject of the certificate whose holder may do everything
    /// (`zookeeper.X509AuthenticationProvider.superUser`).
    pub x509_super_user: Option<String>,
    /// Schemes of which a client must have proven one before anything else is done for it; empty: none
    /// (`enforce.auth.schemes`).
    pub required_schemes: Vec<String>,
}

impl Security {
    /// Who a client is by the subject of its certificate.
    pub(crate) fn by_certificate(&self, subject: String) -> Vec<Identity> {
        let who = Identity { scheme: "x509".to_owned(), id: subject };
        if !who.is_within_limits() {
            tracing::warn!("a client's certificate has too long a subject to be an identity; it is taken for nobody's");
            return Vec::new();
        }
        let is_super = self.x509_super_user.as_ref() == Some(&who.id);
        let beyond = is_super.then(|| Identity { scheme: "super".to_owned(), id: who.id.clone() });
        beyond.into_iter().chain([who]).collect()
    }

    /// Whether SASL is one of the ways that count.
    fn asks_for_sasl(&self) -> bool {
        self.required_schemes.iter().any(|scheme| scheme == "sasl")
    }
}

impl Connection {
    /// Adds to who this client is; `false`: that would be too many.
    pub(crate) fn take_on(&mut self, identities: Vec<Identity>) -> bool {
        if self.identities.len() + identities.len() > ZNODE_IDENTITIES_MAX
            || !identities.iter().all(Identity::is_within_limits)
        {
            return false;
        }
        for identity in identities {
            if !self.identities.contains(&identity) {
                self.identities.push(identity);
            }
        }
        // Whoever may read more may be told of more.
        self.face.watches.with(|table, _| table.identify(self.id, &self.identities));
        true
    }

    /// Whether the client has shown a good certificate.
    pub(crate) fn has_certificate(&self) -> bool {
        self.identities.iter().any(|who| who.scheme == "x509")
    }

    /// One step of SASL.
    pub(crate) async fn sasl(&mut self, xid: i32, token: &[u8]) -> Result<(), Ended> {
        let face = std::sync::Arc::clone(&self.face);
        let security = &face.config.security;
        let answer = match self.negotiation.step(token, &security.sasl_users) {
            Step::NobodyToBe => None,
            Step::Challenge(challenge) => Some(challenge),
            Step::Proven { user, token } => {
                let is_super = security.sasl_super_user.as_ref() == Some(&user);
                let beyond = is_super.then(|| Identity { scheme: "super".to_owned(), id: String::new() });
                let who = Identity { scheme: "sasl".to_owned(), id: user };
                if !self.take_on(beyond.into_iter().chain([who]).collect()) {
                    return self.refuse_sasl(xid).await;
                }
                Some(token)
            }
            Step::Refused => return self.refuse_sasl(xid).await,
        };
        self.outbox.without_zxid(xid, &Reply::SaslToken(answer.map(Into::into)));
        Ok(())
    }

    async fn refuse_sasl(&self, xid: i32) -> Result<(), Ended> {
        self.face.outside.sleep(REFUSAL_PAUSE).await;
        let required = self.face.config.security.asks_for_sasl();
        let error = if required { ErrorCode::SessionClosedRequireSasl } else { ErrorCode::AuthFailed };
        // Whoever can reach the port can fail at will, so this is not for the log that everybody keeps.
        tracing::debug!(session = self.session.session.0, "a client failed to come in by SASL");
        self.outbox.without_zxid(xid, &Reply::SaslRefused(error));
        Err(Ended)
    }

    /// Ends the connection at a request of a client that has not proven who it is, if it must.
    pub(crate) fn enforce_authentication(&self, xid: i32, request: &Result<Request, ErrorCode>) -> Result<(), Ended> {
        let required = &self.face.config.security.required_schemes;
        let is_proof = matches!(request, Ok(Request::Auth { .. } | Request::Sasl { .. }));
        if required.is_empty() || is_proof || self.identities.iter().any(|who| required.contains(&who.scheme)) {
            return Ok(());
        }
        self.outbox.without_zxid(xid, &Reply::Error(ErrorCode::SessionClosedRequireSasl));
        Err(Ended)
    }
}
