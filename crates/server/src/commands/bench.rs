//! `tidelock bench`: load for any server that speaks etcd's or ZooKeeper's protocol, and how it took it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tidelock_load::{Done, Fill, Kind, Load, Protocol, Until, Values, Workload, ZnodeFill};

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
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let protocol = match args.protocol {
        BenchProtocol::Etcd => Protocol::Etcd,
        BenchProtocol::Zookeeper => Protocol::Zookeeper,
    };
    let kind = Kind::of(protocol, &args.workload).map_err(Failure::usage)?;
    let endpoints = args.endpoints.iter().map(|text| address(text)).collect::<Result<Vec<SocketAddr>, Failure>>()?;
    let values = Values::new(args.value_bytes as usize);
    if !args.no_fill {
        let spinner = progress::spinner("writing keys");
        fill(protocol, &endpoints, args.keys, &values)?;
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
    let addresses = tidelock_load::spread(&endpoints, args.connections.map_or(usual, |count| count as usize));
    let spinner = progress::spinner(&args.workload);
    let mut workload = kind.start(args.keys, &values, 0);
    let done = tidelock_load::run(protocol, &addresses, workload.as_mut(), &load).map_err(unreachable_server)?;
    spinner.finish_and_clear();
    print(args, &done)
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    if text.starts_with("https://") {
        return Err(Failure::usage(format!("{text}: the load is sent without TLS; give a plain port")));
    }
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let found = bare.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| Failure::usage(format!("{text} is not HOST:PORT, or the host is not known")))
}

fn unreachable_server(why: String) -> Failure {
    Failure::new(why).hint("check --endpoints and --protocol: 2379 is etcd's port, 2181 is ZooKeeper's")
}

fn fill(protocol: Protocol, endpoints: &[SocketAddr], keys: u64, values: &Values) -> Result<(), Failure> {
    let mut fill: Box<dyn Workload> = match protocol {
        Protocol::Etcd => Box::new(Fill::new(keys, values.clone())),
        Protocol::Zookeeper => Box::new(ZnodeFill::new(keys, values.clone())),
    };
    let load = Load::closed(FILL_IN_FLIGHT, Until::Done);
    let done = tidelock_load::run(protocol, &endpoints[..1], fill.as_mut(), &load).map_err(unreachable_server)?;
    match done.check(0) {
        Err(_) if done.first_failure.as_deref() == Some(NODE_EXISTS) => Ok(()),
        Err(why) => Err(Failure::new(format!("writing keys: {why}"))),
        Ok(()) => Ok(()),
    }
}

fn print(args: &BenchArgs, done: &Done) -> Result<(), Failure> {
    let printer = Printer::new(args.output);
    let (operations, seconds) = (done.latencies.count(), done.elapsed.as_secs_f64());
    let per_s = operations as f64 / seconds.max(1e-9);
    let us = |per_mille| done.latencies.quantile(per_mille).as_secs_f64() * 1e6;
    let max_us = done.latencies.max().as_secs_f64() * 1e6;
    match args.output {
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
        Some(first) if args.output == Output::Text => {
            Ok(printer.line(&format!("{} operations failed, the first with: {first}", done.failed))?)
        }
        _ => Ok(()),
    }
}
