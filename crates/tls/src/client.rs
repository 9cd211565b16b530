//! The side that dials.

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::load::{self, Part, TlsError};
use crate::refusal::Refusal;
use crate::reload::Reloaded;
use crate::settings::{ClientSettings, Identity, ServerTrust};
use crate::stream::SecureStream;
use crate::verify;

/// Secures outgoing connections as its settings say, with the newest files there are.
pub struct Connector {
    config: Reloaded<ClientConfig>,
}

impl Connector {
    /// Loads everything; fails if any of it is not as it should be.
    pub fn open(settings: &ClientSettings) -> Result<Connector, TlsError> {
        let shown = settings.identity.as_ref().map(Identity::files).unwrap_or_default();
        let trusted = match &settings.servers {
            ServerTrust::Certified(trust) => trust.files(),
            ServerTrust::Anybody => Vec::new(),
        };
        let settings = settings.clone();
        let config = Reloaded::new([shown, trusted].concat(), move || client_config(&settings))?;
        Ok(Connector { config })
    }

    /// What it encrypts with at present, for who drives a connection without tokio.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.current()
    }

    /// Shakes hands with `host`, a name or an address (IPv6 with or without brackets), which the certificate must
    /// be for. A server may still refuse our certificate after this: its reason then comes with the first read.
    pub async fn connect<IO>(&self, host: &str, io: IO) -> Result<SecureStream<IO>, Refusal>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let name = host_name(host).ok_or_else(|| {
            Refusal::new(&std::io::Error::other(format!("{host:?} is no host name that TLS can check")))
        })?;
        let connector = TlsConnector::from(self.config.current());
        let stream = connector.connect(name, io).await.map_err(|error| Refusal::new(&error))?;
        Ok(SecureStream::new(stream))
    }
}

/// A name or an address (IPv6 with or without brackets) as a certificate may be for it.
#[must_use]
pub fn host_name(host: &str) -> Option<ServerName<'static>> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).ok()
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

fn client_config(settings: &ClientSettings) -> Result<ClientConfig, TlsError> {
    let provider = settings.protocol.provider();
    let judge = verify::of_servers(&settings.servers, &settings.names, &provider)?;
    let identity = settings.identity.as_ref().map(|identity| load::identity(identity, false, &provider)).transpose()?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.protocol.versions())
        .map_err(|error| TlsError::new(Part::Suites, error.to_string(), "allow more versions or suites"))?
        .dangerous()
        .with_custom_certificate_verifier(judge);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = settings.inside.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.resumption = Resumption::disabled();
    Ok(config)
}
