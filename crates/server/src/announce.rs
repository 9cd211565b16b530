//! What a starting node says to people: how it logs, how it greets, when it is ready.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_model::{Caller, Query};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat, LogOutput};
use crate::failure::Failure;
use crate::listeners::{Addresses, zookeeper_url};
use crate::log_output::LogWriter;

/// How often to look whether the node is ready.
const READY_POLL: Duration = Duration::from_millis(25);
/// The words process supervisors and test harnesses written for etcd wait for.
pub(crate) const READY_LINE: &str = "ready to serve client requests";

/// Sends log lines to where they belong. Called once; a second call has no effect.
pub(crate) fn start_logging(config: &Config) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let outputs = &config.service.log_outputs;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(LogWriter::open(outputs)?);
    let on_terminal = *outputs == [LogOutput::Stderr] && std::io::stderr().is_terminal();
    let started = match config.log_format {
        LogFormat::Text => lines.with_ansi(on_terminal).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    if let Err(error) = started {
        eprintln!("log lines go nowhere: {error}");
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Waits until a read that needs a majority succeeds, then says so, in the log and on standard output.
pub(crate) async fn say_when_ready(coordinator: Arc<dyn Coordinator>, addresses: Addresses) {
    loop {
        if coordinator.status().leader.is_some()
            && coordinator.read(Caller::Internal, Query::Leases, Consistency::Linearizable).await.is_ok()
            && coordinator.status().is_ready()
        {
            break;
        }
        tokio::time::sleep(READY_POLL).await;
    }
    let etcd = addresses.client_urls.iter().filter(|url| url.starts_with("http")).cloned();
    let zookeeper = addresses.zookeeper.as_deref().map(zookeeper_url);
    let secure = addresses.zookeeper_secure.as_deref().map(|address| format!("{} (TLS)", zookeeper_url(address)));
    let native = addresses.native_url.as_deref().map(|url| format!("{url} (native)"));
    let urls = etcd.chain(zookeeper).chain(secure).chain(native).collect::<Vec<String>>().join(",");
    tracing::info!(%urls, admin = addresses.admin_url.as_deref().unwrap_or("none"), "{READY_LINE}");
    say(&format!("{READY_LINE} on {urls}"));
}

/// Greets whoever started a single node by hand, with commands that work as they are printed.
pub(crate) fn greet_single_node(config: &Config, addresses: &Addresses) {
    let program = program();
    let client = addresses.client_urls.first().map_or("", String::as_str);
    let admin = addresses.admin_url.as_deref().unwrap_or("none");
    let zookeeper = addresses.zookeeper.as_deref().unwrap_or("none");
    let native = addresses.native_url.as_deref().unwrap_or("none");
    let zookeeper_line = match &addresses.zookeeper {
        Some(address) => format!("\n  zkCli.sh -server {address} create /greeting hello"),
        None => String::new(),
    };
    let lock_line = match &addresses.native_url {
        Some(url) => format!("\n  {program} lock nightly{} -- echo one at a time", native_flag(url)),
        None => String::new(),
    };
    say(&format!(
        "Tidelock {version}, a single node on this machine.

  etcd clients  {client}
  ZooKeeper     {zookeeper}
  native API    {native}
  admin         {admin}
  data          {data}

Try, in another terminal:
  etcdctl --endpoints={client} put greeting hello
  {program} get greeting{endpoints}{zookeeper_line}{lock_line}
  curl {admin}/health

Ctrl-C stops it; the data stays.
",
        version = env!("CARGO_PKG_VERSION"),
        data = config.data_dir.display(),
        endpoints = endpoints_flag(client),
    ));
}

/// ` --endpoints URL`, unless that is where commands look anyway.
pub(crate) fn endpoints_flag(url: &str) -> String {
    if url == "http://127.0.0.1:2379" { String::new() } else { format!(" --endpoints {url}") }
}

/// ` --native URL`, unless that is where commands look anyway.
fn native_flag(url: &str) -> String {
    if url == "http://127.0.0.1:7481" { String::new() } else { format!(" --native {url}") }
}

/// How this program was called, so that printed commands can be copied.
pub(crate) fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "tidelock".into())
}

/// A line on standard output. Nobody reading it is no reason to stop serving.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}
