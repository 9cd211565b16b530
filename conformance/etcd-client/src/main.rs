//! Talks to a server as the crate `etcd-client` does and checks the answers.
//!
//! `ENDPOINTS` names the server's addresses, comma separated. One line is printed for each check: "ok
//! NAME" or "FAIL NAME: why"; the exit status says whether any failed. Checks use keys below their own
//! name and leave nothing behind but revisions, so the program can run again and against any server.

mod cluster;
mod kv;
mod lease;
mod txn;
mod watch;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use etcd_client::{Client, DeleteOptions, Error};

/// How long one check may take.
const CHECK_TIME_MAX: Duration = Duration::from_secs(30);

/// How a check ends.
type Checked = Result<(), Box<dyn std::error::Error>>;

/// Where the server is.
#[derive(Clone)]
struct Servers {
    endpoints: Vec<String>,
}

impl Servers {
    /// A client of all endpoints, its keys below `prefix` removed.
    async fn client(&self, prefix: &str) -> Result<Client, Error> {
        // Of all, because what is acknowledged anywhere must be known everywhere.
        let mut client = Client::connect(&self.endpoints, None).await?;
        client.delete(prefix, Some(DeleteOptions::new().with_prefix())).await?;
        Ok(client)
    }

    /// A client of one endpoint only, counted around the cluster.
    async fn client_at(&self, number: usize) -> Result<Client, Error> {
        let endpoint = &self.endpoints[number % self.endpoints.len()];
        Client::connect([endpoint], None).await
    }
}

/// Fails a check unless `holds`.
fn ensure(holds: bool, what: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// Fails a check unless both are equal, and says what they are.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    ensure(found == expected, format!("{what}: found {found:?}, expected {expected:?}"))
}

/// Fails a check unless the server refused with exactly this message, which clients look for.
fn refused<T: std::fmt::Debug>(answer: Result<T, Error>, message: &str) -> Checked {
    match answer {
        Err(Error::GRpcStatus(status)) => same("the refusal", status.message(), message),
        other => Err(format!("expected {message:?}, found {other:?}").into()),
    }
}

struct Runner {
    servers: Servers,
    failed: bool,
}

impl Runner {
    async fn check<F: Future<Output = Checked>>(&mut self, name: &str, check: impl FnOnce(Servers) -> F) {
        let why = match tokio::time::timeout(CHECK_TIME_MAX, check(self.servers.clone())).await {
            Ok(Ok(())) => return println!("ok {name}"),
            Ok(Err(why)) => why.to_string().replace('\n', " "),
            Err(_) => format!("not done within {CHECK_TIME_MAX:?}"),
        };
        println!("FAIL {name}: {why}");
        self.failed = true;
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Ok(endpoints) = std::env::var("ENDPOINTS") else {
        eprintln!("set ENDPOINTS to host:port, or several, comma separated");
        return ExitCode::from(2);
    };
    let servers = Servers { endpoints: endpoints.split(',').map(str::to_owned).collect() };
    let mut runner = Runner { servers, failed: false };
    kv::checks(&mut runner).await;
    txn::checks(&mut runner).await;
    watch::checks(&mut runner).await;
    lease::checks(&mut runner).await;
    cluster::checks(&mut runner).await;
    if runner.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
