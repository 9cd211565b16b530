//! What a client is told before it connects.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::client::Client;
use crate::dial::Dialer;
use crate::error::{Error, Failure};

/// How long a session lives unheard of, if nothing else is said.
const TTL: Duration = Duration::from_secs(10);
/// How long an answer is waited for, if nothing else is said.
const PATIENCE: Duration = Duration::from_secs(10);

/// How to reach a cluster, and as whom. Begin with [`Client::options`].
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct Options {
    pub(crate) ttl: Duration,
    pub(crate) patience: Duration,
    pub(crate) tls: Option<ClientTlsConfig>,
    pub(crate) dialer: Option<Dialer>,
    pub(crate) authorization: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { ttl: TTL, patience: PATIENCE, tls: None, dialer: None, authorization: None }
    }
}

impl Options {
    /// How long what is held outlives this process if it dies or is cut off: 10 seconds unless told, from one second to
    /// a day. Whatever is held is renewed every third of it.
    pub fn ttl(mut self, ttl: Duration) -> Options {
        self.ttl = ttl;
        self
    }

    /// How long an answer is waited for before it is [`Error::Unknown`]: 10 seconds unless told. Waiting for a grant is
    /// something else, and has no end unless the call says so.
    pub fn patience(mut self, patience: Duration) -> Options {
        self.patience = patience;
        self
    }

    /// Talk TLS to `https://` endpoints, whose certificates must be of these authorities (PEM).
    pub fn authority(mut self, pem: impl AsRef<[u8]>) -> Options {
        self.tls = Some(self.tls.unwrap_or_default().ca_certificate(Certificate::from_pem(pem)));
        self
    }

    /// Show this certificate (PEM), whose private key is `key`, to nodes that demand one.
    pub fn identity(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Options {
        self.tls = Some(self.tls.unwrap_or_default().identity(Identity::from_pem(certificate, key)));
        self
    }

    /// The name that the nodes' certificates have, if it is not that of the endpoint.
    pub fn server_name(mut self, name: &str) -> Options {
        self.tls = Some(self.tls.unwrap_or_default().domain_name(name));
        self
    }

    /// Connect to `https://` endpoints by this, which is given host and port, instead of by [`Options::authority`] and its
    /// kin: for programs with a TLS of their own, whose connections must offer HTTP/2. Called again whenever a
    /// connection is lost.
    pub fn dialer<F, W>(mut self, dial: impl Fn(String, u16) -> F + Send + Sync + 'static) -> Options
    where
        F: Future<Output = io::Result<W>> + Send + 'static,
        W: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.dialer = Some(Dialer::new(dial));
        self
    }

    /// Come in as this user. The password is shown with every connection, so nothing has to be renewed.
    pub fn user(mut self, name: &str, password: &str) -> Options {
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        self.authorization = Some(format!("Basic {pair}"));
        self
    }

    /// Come in with a token that the cluster gave before.
    pub fn token(mut self, token: &str) -> Options {
        self.authorization = Some(format!("Bearer {token}"));
        self
    }

    /// Connects to any of these nodes: `http://host:port` or `https://host:port`, without a scheme the former.
    pub async fn connect<I>(self, endpoints: I) -> Result<Client, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let endpoints = endpoints.into_iter().map(|endpoint| endpoint.as_ref().to_owned()).collect();
        Client::start(self, endpoints).await
    }

    pub(crate) fn credential(&self) -> Result<Option<MetadataValue<Ascii>>, Error> {
        let parsed = self.authorization.as_ref().map(|text| text.parse::<MetadataValue<Ascii>>()).transpose();
        let mut value = parsed.map_err(|_| Failure::BadOption("a token with characters that cannot be sent".into()))?;
        value.iter_mut().for_each(|value| value.set_sensitive(true));
        Ok(value)
    }
}
