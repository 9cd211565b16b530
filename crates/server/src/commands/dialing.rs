//! Connecting to a node, on whichever port, with what was said about certificates and users.
//!
//! An address without a scheme has TLS if anything about certificates was said. What was said about them is
//! never ignored: with `http://` it is a mistake, since the user believes that the traffic is protected.

use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tidelock_tls::{
    ClientConfig, ClientSettings, Connector, Identity, Names, Protocol, SecureStream, ServerTrust, Trust,
};
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};

use crate::cli::ConnectionArgs;
use crate::failure::Failure;

/// Where `https://host` without a port leads.
const HTTPS_PORT: u16 = 443;

/// Connects within TLS; whoever has it calls it again whenever a connection is lost.
#[derive(Clone)]
pub(crate) struct Dialer(Arc<Connector>);

impl Dialer {
    /// What it encrypts with, for who brings a connection of his own.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.config()
    }

    /// Connects to `host`, which may be an IPv6 address in brackets.
    pub(crate) async fn dial(self, host: String, port: u16) -> std::io::Result<SecureStream<TcpStream>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tcp = TcpStream::connect((bare, port)).await?;
        tcp.set_nodelay(true)?;
        Ok(self.0.connect(&host, tcp).await?)
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<SecureStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            Ok(TokioIo::new(dialer.dial(host, uri.port_u16().unwrap_or(HTTPS_PORT)).await?))
        })
    }
}

/// The whole address, and how to connect to it; `None`: without TLS.
pub(crate) fn resolve(url: &str, args: &ConnectionArgs) -> Result<(String, Option<Dialer>), Failure> {
    let about_tls =
        args.cacert.is_some() || args.cert_file.is_some() || args.key_file.is_some() || args.insecure_skip_tls_verify;
    let url = match url.split_once("://") {
        Some(_) => url.to_owned(),
        None if about_tls => format!("https://{url}"),
        None => format!("http://{url}"),
    };
    let tls = url.starts_with("https://");
    if about_tls && !tls {
        let what = format!("{url} is plain text, but --cacert, --cert, --key or --insecure-skip-tls-verify is given");
        return Err(Failure::usage(what).hint("write the address with https://, or leave those out"));
    }
    let dialer = if tls { Some(Dialer(connector(&url, args)?)) } else { None };
    Ok((url, dialer))
}

fn connector(url: &str, args: &ConnectionArgs) -> Result<Arc<Connector>, Failure> {
    let identity = match (&args.cert_file, &args.key_file) {
        (Some(certificate), Some(key)) => Some(Identity::Files { certificate: certificate.clone(), key: key.clone() }),
        (None, None) => None,
        _ => return Err(Failure::usage("--cert and --key go together").hint("give both, or neither")),
    };
    let servers = match &args.cacert {
        _ if args.insecure_skip_tls_verify => ServerTrust::Anybody,
        Some(authorities) => ServerTrust::Certified(Trust { authorities: authorities.clone(), revoked: None }),
        None => {
            return Err(Failure::usage(format!("whose certificate must {url} have?")).hint(
                "name the authority with --cacert or TIDELOCK_CACERT, or add --insecure-skip-tls-verify to try it out",
            ));
        }
    };
    let settings =
        ClientSettings { identity, servers, names: Names::Any, inside: vec!["h2"], protocol: Protocol::default() };
    let connector = Connector::open(&settings).map_err(|error| Failure::usage(error.what).hint(error.fix))?;
    Ok(Arc::new(connector))
}

/// The name and password to come in with, if any.
pub(crate) fn credentials(args: &ConnectionArgs) -> Result<Option<(String, String)>, Failure> {
    let Some(user) = &args.user else { return Ok(None) };
    match (user.split_once(':'), &args.password) {
        (Some((name, password)), None) => Ok(Some((name.to_owned(), password.to_owned()))),
        (None, Some(password)) => Ok(Some((user.clone(), password.clone()))),
        (Some(_), Some(_)) => Err(Failure::usage("the password is given twice, in --user and in --password")),
        (None, None) => Err(Failure::usage(format!("the password of {user} is missing"))
            .hint("set TIDELOCK_PASSWORD, or write --user NAME:PASSWORD")),
    }
}
