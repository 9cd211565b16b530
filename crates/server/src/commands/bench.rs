//! `tidelock bench`: load for any server that speaks etcd's or ZooKeeper's protocol, and how it took it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tidelock_load::{Access, Done, Fill, Kind, Lines, Load, Protocol, Tls, Until, Values, Workload, ZnodeFill};
use tidelock_tls::host_name;

use super::connection;
use super::dialing::resolve;
use crate::cli::{BenchArgs, BenchProtocol, Output};
use crate::failure::Failure;
use crate::output::Printer;
use crate::progress;

/// Operations in flight that one connection carries before there is a second one, and most connections, if the user
/// does not say.
const IN_FLIGHT_PER_CONNECTION: usize = 64;
const CONNECTIONS_MAX: usize = 16;
/// Connections of a load by rate, if the user does not say.
const CONNECTIONS_OF_RATE: usize = 6;
/// Transactions in flight while keys are written.
const FILL_IN_FLIGHT: usize = 8;
/// ZooKeeper's error for a znode that is there already, as an earlier run leaves it.
const NODE_EXISTS: &str = "ZooKeeper's error -110";

/// Runs the load and prints what came of it.
pub(crate) async fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let protocol = match args.protocol {
        BenchProtocol::Etcd => Protocol::Etcd,
        BenchProtocol::Zookeeper => Protocol::Zookeeper,
    };
    let kind = Kind::of(protocol, &args.workload).map_err(Failure::usage)?;
    let places = Places::find(args, protocol).await?;
    let values = Values::new(args.value_bytes as usize);
    if !args.no_fill {
        let spinner = progress::spinner("writing keys");
        fill(&places, args.keys, &values)?;
        spinner.finish_and_clear();
    }
    let until = args.ops.map_or(Until::Elapsed(Duration::from_secs(args.seconds)), Until::Operations);
    let in_flight = args.in_flight as usize;
    let load = match args.rate {
        Some(rate) => Load::open(rate.into(), until),
        None => Load::closed(in_flight, until),
    };
    let usual = match args.rate {
        Some(_) => CONNECTIONS_OF_RATE,
        None => in_flight.div_ceil(IN_FLIGHT_PER_CONNECTION).min(CONNECTIONS_MAX),
    };
    let connections = args.connections.map_or(usual, |count| count as usize);
    let spinner = progress::spinner(&args.workload);
    let mut lines = places.open(&tidelock_load::spread(&places.addresses, connections))?;
    let mut workload = kind.start(args.keys, &values, 0);
    let done = tidelock_load::run_over(&mut lines, workload.as_mut(), &load).map_err(unreachable_server)?;
    spinner.finish_and_clear();
    print(args, &done)
}

/// The servers, and how they are reached.
struct Places {
    protocol: Protocol,
    addresses: Vec<SocketAddr>,
    access: Access,
}

impl Places {
    async fn find(args: &BenchArgs, protocol: Protocol) -> Result<Places, Failure> {
        let patience = Duration::from_millis(args.client.connection.timeout_ms);
        let mut places =
            Places { protocol, addresses: Vec::new(), access: Access { tls: None, token: None, patience } };
        for given in &args.client.endpoints {
            places.add(given, args)?;
        }
        if places.access.tls.is_some() && places.addresses.len() > places.secure() {
            let hint = "write all of them with https://, or none";
            return Err(Failure::usage("some of --endpoints have TLS and others have not").hint(hint));
        }
        places.access.token = match protocol {
            Protocol::Etcd => connection::token(&args.client).await?,
            Protocol::Zookeeper if args.client.connection.user.is_some() => {
                let hint = "leave it out: the znodes that are made are open to everyone";
                return Err(Failure::usage("--user is for etcd's protocol").hint(hint));
            }
            Protocol::Zookeeper => None,
        };
        Ok(places)
    }

    fn add(&mut self, given: &str, args: &BenchArgs) -> Result<(), Failure> {
        let (url, dialer) = resolve(given, &args.client.connection)?;
        let unknown = || Failure::usage(format!("{given} is not HOST:PORT, or the host is not known"));
        let bare = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest).trim_end_matches('/');
        let address = bare.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(unknown)?;
        self.addresses.push(address);
        let Some(dialer) = dialer else { return Ok(()) };
        let (host, _) = bare.rsplit_once(':').ok_or_else(unknown)?;
        let mut config = dialer.config();
        if self.protocol == Protocol::Zookeeper {
            // What its clients speak has no name in TLS.
            Arc::make_mut(&mut config).alpn_protocols.clear();
        }
        let name = host_name(host).ok_or_else(unknown)?;
        let tls = self.access.tls.get_or_insert_with(|| Tls { config, names: BTreeMap::new() });
        tls.names.insert(address, name);
        Ok(())
    }

    /// How many of them have TLS.
    fn secure(&self) -> usize {
        let names = self.access.tls.as_ref().map(|tls| &tls.names);
        self.addresses.iter().filter(|address| names.is_some_and(|names| names.contains_key(address))).count()
    }

    fn open(&self, addresses: &[SocketAddr]) -> Result<Lines, Failure> {
        Lines::open_as(self.protocol, addresses, self.access.clone()).map_err(unreachable_server)
    }
}

fn unreachable_server(why: String) -> Failure {
    Failure::new(why).hint(
        "check --endpoints and --protocol: 2379 is etcd's port, 2181 is ZooKeeper's; servers with TLS need https:// \
         and --cacert",
    )
}

fn fill(places: &Places, keys: u64, values: &Values) -> Result<(), Failure> {
    let mut fill: Box<dyn Workload> = match places.protocol {
        Protocol::Etcd => Box::new(Fill::new(keys, values.clone())),
        Protocol::Zookeeper => Box::new(ZnodeFill::new(keys, values.clone())),
    };
    let load = Load::closed(FILL_IN_FLIGHT, Until::Done);
    let mut lines = places.open(&places.addresses[..1])?;
    let done = tidelock_load::run_over(&mut lines, fill.as_mut(), &load).map_err(unreachable_server)?;
    match done.check(0) {
        Err(_) if done.first_failure.as_deref() == Some(NODE_EXISTS) => Ok(()),
        Err(why) => Err(Failure::new(format!("writing keys: {why}"))),
        Ok(()) => Ok(()),
    }
}

fn print(args: &BenchArgs, done: &Done) -> Result<(), Failure> {
    let printer = Printer::new(args.client.output);
    let (operations, seconds) = (done.latencies.count(), done.elapsed.as_secs_f64());
    let per_s = operations as f64 / seconds.max(1e-9);
    let us = |per_mille| done.latencies.quantile(per_mille).as_secs_f64() * 1e6;
    let max_us = done.latencies.max().as_secs_f64() * 1e6;
    match args.client.output {
        Output::Json => printer.json(&serde_json::json!({
            "workload": args.workload,
            "operations": operations,
            "failed": done.failed,
            "first_failure": done.first_failure,
            "seconds": seconds,
            "ops_per_s": per_s,
            "p50_us": us(500),
            "p99_us": us(990),
            "p999_us": us(999),
            "max_us": max_us,
        }))?,
        Output::Text => {
            printer.line(&format!("{operations} operations in {seconds:.2} s: {per_s:.0} per second"))?;
            printer.line(&format!(
                "latency: median {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, worst {:.3} ms",
                us(500) / 1e3,
                us(990) / 1e3,
                us(999) / 1e3,
                max_us / 1e3
            ))?;
        }
    }
    match &done.first_failure {
        Some(first) if operations == 0 => Err(Failure::new(format!("every operation failed, the first with: {first}"))),
        Some(first) if args.client.output == Output::Text => {
            Ok(printer.line(&format!("{} operations failed, the first with: {first}", done.failed))?)
        }
        _ => Ok(()),
    }
}
