//! The side that listens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::load::{self, Part, TlsError};
use crate::names::common_name;
use crate::refusal::Refusal;
use crate::reload::Reloaded;
use crate::settings::{ServerSettings, Trust};
use crate::stream::SecureStream;
use crate::verify;

/// How long a client that was refused is listened to, so that it reads our reason before the connection is gone.
const FAREWELL: Duration = Duration::from_millis(300);
/// How much of what it still sends is thrown away meanwhile.
const FAREWELL_BYTES_MAX: u64 = 64 * 1024;

/// Takes connections as its settings say, with the newest files there are.
pub struct Acceptor {
    config: Reloaded<ServerConfig>,
    common_name_is_user: bool,
}

/// A connection that was taken.
#[derive(Debug)]
pub struct Accepted<IO> {
    /// The connection.
    pub stream: SecureStream<IO>,
    /// Who the client is by its certificate, if that is to count.
    pub user: Option<Arc<str>>,
}

impl Acceptor {
    /// Loads everything; fails if any of it is not as it should be.
    pub fn open(settings: &ServerSettings) -> Result<Acceptor, TlsError> {
        let files = [settings.identity.files(), settings.clients.as_ref().map(Trust::files).unwrap_or_default()];
        let common_name_is_user = settings.common_name_is_user;
        let settings = settings.clone();
        let config = Reloaded::new(files.concat(), move || server_config(&settings))?;
        Ok(Acceptor { config, common_name_is_user })
    }

    /// Shakes hands. Has no deadline of its own. Safe to cancel: the connection goes with it.
    pub async fn accept<IO>(&self, io: IO) -> Result<Accepted<IO>, Refusal>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.config.current());
        match acceptor.accept(io).into_fallible().await {
            Ok(stream) => {
                let stream = SecureStream::new(stream);
                let certificate = stream.certificates().first().filter(|_| self.common_name_is_user);
                let user = certificate.and_then(common_name).map(Arc::from);
                Ok(Accepted { stream, user })
            }
            Err((error, io)) => {
                let refusal = Refusal::new(&error);
                say_goodbye(io).await;
                Err(refusal)
            }
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// Closes our side and reads on for a moment: closed with bytes unread, the system would throw away the alert
/// that tells the client why, and the client would see a connection reset.
async fn say_goodbye<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    let hear_out = async {
        if io.shutdown().await.is_ok() {
            let mut rest = io.take(FAREWELL_BYTES_MAX);
            let mut scratch = [0; 1024];
            while rest.read(&mut scratch).await.is_ok_and(|count| count > 0) {}
        }
    };
    // Running into the deadline is fine: the client had its chance.
    let _ = tokio::time::timeout(FAREWELL, hear_out).await;
}

fn server_config(settings: &ServerSettings) -> Result<ServerConfig, TlsError> {
    let provider = settings.protocol.provider();
    let identity = load::identity(&settings.identity, settings.leniency.version_1, &provider)?;
    let judge = match &settings.clients {
        Some(trust) => verify::of_clients(trust, &settings.names, settings.leniency, &provider)?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.protocol.versions())
        .map_err(|error| TlsError::new(Part::Suites, error.to_string(), "allow more versions or suites"))?;
    let resolver = Arc::new(SingleCertAndKey::from(identity));
    let mut config = builder.with_client_cert_verifier(judge).with_cert_resolver(resolver);
    config.alpn_protocols = settings.inside.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Whoever comes back shows a certificate again: it may have been revoked meanwhile.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
