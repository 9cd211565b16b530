//! Who a request comes from: the token it carries, or else the certificate of its connection.
//!
//! Only asked while authorisation is on. What the caller may do is not decided here but on the command,
//! below the coordinator (A1); all that is decided here is whether the proof of who it is holds.

use std::sync::Arc;

use tidelock_client_port::{Credential, Tokens};
use tidelock_coordinator::Coordinator;
use tidelock_model::{Caller, Errand, Need};
use tonic::Request;

use crate::error_map::FaceError;
use crate::services::Services;

fn credential<T>(request: &Request<T>) -> Credential {
    Credential::of(request.metadata().as_ref(), request.extensions())
}

impl Services {
    /// Who sent the request, as far as that is known and matters.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<Caller, FaceError> {
        let auth = self.coordinator.auth();
        if !auth.enabled {
            return Ok(Caller::Anonymous);
        }
        Ok(self.tokens.identify(&auth, &credential(request))?)
    }

    /// Refuses who may not do this. For errands that this face does by itself, and for those that are to be refused
    /// before anything else about them is; all others are asked about below the coordinator.
    pub(crate) fn permit(&self, caller: &Caller, errand: &Errand<'_>) -> Result<(), FaceError> {
        let (auth, mut needs) = (self.coordinator.auth(), Vec::new());
        errand.needs(&mut needs);
        Ok(needs.iter().try_for_each(|need| auth.check(caller, need))?)
    }

    /// For changes by root alone, before what is wrong with them is looked at: the order that etcd has.
    pub(crate) fn require_admin<T>(&self, request: &Request<T>) -> Result<(), FaceError> {
        Ok(self.coordinator.auth().check(&self.caller(request)?, &Need::Admin)?)
    }
}

/// Who a stream comes from, asked anew at every request on it.
pub(crate) struct StreamCaller {
    credential: Credential,
    coordinator: Arc<dyn Coordinator>,
    tokens: Arc<Tokens>,
}

impl StreamCaller {
    pub(crate) fn now(&self) -> Result<Caller, FaceError> {
        Ok(self.tokens.identify(&self.coordinator.auth(), &self.credential)?)
    }
}

impl Services {
    pub(crate) fn caller_of_stream<T>(&self, request: &Request<T>) -> StreamCaller {
        let (coordinator, tokens) = (Arc::clone(&self.coordinator), Arc::clone(&self.tokens));
        StreamCaller { credential: credential(request), coordinator, tokens }
    }
}
