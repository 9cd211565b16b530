//! The suites `etcd` and `zookeeper`: single operations, so many at once.

use std::net::SocketAddr;
use std::time::Duration;

use tidelock_load::{Done, Fill, Kind, Lines, Load, Protocol, Until, Values, Workload, ZnodeFill, run_over, spread};

use super::figures::{Figures, Used};
use super::report::Amount;
use super::{Bench, FAILED_PER_MILLE_MAX, Options, Suite};
use crate::servers::Cluster;
use crate::{Result, client, fill, procfs};

/// Most connections of one case.
const CONNECTIONS_MAX: usize = 16;
/// Operations in flight that one connection carries before there is a second one.
const IN_FLIGHT_PER_CONNECTION: usize = 64;
/// Share of the measured time or operations that is run before it, unmeasured: connections open, caches
/// and branch predictors warm.
const WARM_UP_SHARE: u32 = 5;
/// Of each kind before the first case: a Java program is slow until its hot code is compiled.
const FIRST_WARM_UP: Duration = Duration::from_secs(4);
/// Transactions in flight while filling: enough to keep the journal busy.
const FILL_IN_FLIGHT: usize = 8;
/// Keys of the values of 16 KiB: 32 MB at each member, and as much again for each version that history holds.
const LARGE_KEYS: u64 = 2_000;

/// What clusters do that are not the largest, unless told.
const SMALLER_KINDS: [Kind; 4] = [Kind::Put, Kind::Get, Kind::Set, Kind::ZnodeGet];
const SMALLER_IN_FLIGHT: [usize; 2] = [1, 1000];

/// What is done, with how many at once.
struct Case {
    kind: Kind,
    value_bytes: usize,
    keys: u64,
    in_flight: Vec<usize>,
}

/// The cases of a suite. Those with another size of values come last: they overwrite what the reads expect.
fn cases(options: &Options, protocol: Protocol, nodes: usize) -> Result<Vec<Case>> {
    let case = |kind, in_flight: &[usize]| Case {
        kind,
        value_bytes: options.value_bytes,
        keys: options.keys,
        in_flight: in_flight.to_vec(),
    };
    let mut cases: Vec<Case> = match protocol {
        Protocol::Etcd => vec![
            case(Kind::Put, &[1, 16, 64, 256, 1000]),
            case(Kind::Get, &[1, 16, 64, 256, 1000]),
            case(Kind::Txn, &[1, 16, 64, 256, 1000]),
            case(Kind::SerializableGet, &[64, 1000]),
            case(Kind::Range, &[16]),
            case(Kind::Mixed, &[64, 1000]),
            Case { value_bytes: 16, ..case(Kind::Put, &[1, 16, 64, 256, 1000]) },
            Case { value_bytes: 16, ..case(Kind::Txn, &[1, 16, 64, 256, 1000]) },
            Case { value_bytes: 16 << 10, keys: LARGE_KEYS, ..case(Kind::Put, &[1, 16, 64, 256, 1000]) },
            Case { value_bytes: 16 << 10, keys: LARGE_KEYS, ..case(Kind::Txn, &[1, 16, 64, 256, 1000]) },
        ],
        Protocol::Zookeeper => vec![
            case(Kind::Set, &[1, 64, 256, 1000]),
            case(Kind::ZnodeGet, &[1, 64, 1000]),
            case(Kind::Exists, &[256]),
            case(Kind::Children, &[256]),
            case(Kind::SyncGet, &[256]),
            case(Kind::Create, &[256]),
        ],
    };
    // What else there is to see with fewer members, the largest cluster shows.
    if nodes < options.largest() && options.workload.is_none() {
        cases.retain(|case| SMALLER_KINDS.contains(&case.kind) && case.value_bytes == options.value_bytes);
        cases.iter_mut().for_each(|case| case.in_flight.retain(|count| SMALLER_IN_FLIGHT.contains(count)));
    }
    if options.quick {
        let keep = |count: &usize| matches!(count, 1 | 16 | 256 | 1000);
        cases.iter_mut().for_each(|case| case.in_flight.retain(keep));
        cases.retain(|case| case.value_bytes == options.value_bytes && case.kind != Kind::Txn);
    }
    if let Some(names) = &options.workload {
        let kinds = names.iter().map(|name| Kind::of(protocol, name)).collect::<Result<Vec<Kind>>>()?;
        cases.retain(|case| kinds.contains(&case.kind) && case.value_bytes == options.value_bytes);
    }
    if let Some(in_flight) = &options.in_flight {
        cases.iter_mut().for_each(|case| case.in_flight.clone_from(in_flight));
    }
    cases.retain(|case| !case.in_flight.is_empty());
    Ok(cases)
}

/// How many cases the suite of `protocol` has, all cluster sizes together.
pub(super) fn count(options: &Options, protocol: Protocol) -> Result<u64> {
    let mut count = 0;
    for &nodes in &options.nodes {
        count += cases(options, protocol, nodes)?.iter().map(|case| case.in_flight.len() as u64).sum::<u64>();
    }
    Ok(count)
}

/// Runs the suite of `protocol`.
pub(super) async fn run(bench: &mut Bench, protocol: Protocol) -> Result<()> {
    let suite = match protocol {
        Protocol::Etcd => Suite::Etcd,
        Protocol::Zookeeper => Suite::Zookeeper,
    };
    bench.begin(suite, count(&bench.options, protocol)? * bench.options.rounds());
    for nodes in bench.options.nodes.clone() {
        let cases = cases(&bench.options, protocol, nodes)?;
        let values = Values::new(bench.options.value_bytes);
        let mut clusters = bench.start(suite, nodes).await?;
        for cluster in &clusters {
            bench.say(&format!("{nodes} x {}: fill", cluster.system.name));
            prepare(cluster, protocol, bench.options.keys, &values)?;
        }
        for case in &cases {
            for &in_flight in &case.in_flight {
                let (_, name) = case.kind.name();
                let size = if case.kind.writes() { format!(" {} B", case.value_bytes) } else { String::new() };
                let amount = Amount { count: in_flight as u64, of: "in flight" };
                let point = Point::new(bench, protocol, case, in_flight);
                bench
                    .rounds(suite, &mut clusters, &format!("{name}{size}"), amount, async |cluster| {
                        let figures = point.measure(cluster).await?;
                        if protocol == Protocol::Etcd && case.kind.writes() {
                            fill::compact(&client::channel(cluster.endpoints(protocol)[0])).await?;
                        }
                        Ok(figures)
                    })
                    .await?;
            }
        }
    }
    Ok(())
}

/// Writes what the workloads of `protocol` use, and warms the server up.
pub(super) fn prepare(cluster: &Cluster, protocol: Protocol, keys: u64, values: &Values) -> Result<()> {
    let endpoints = cluster.endpoints(protocol);
    tokio::task::block_in_place(|| {
        fill_with(&endpoints, protocol, keys, values)?;
        if cluster.system.is_java() {
            for kind in Kind::all(protocol) {
                let load = Load::closed(256, Until::Elapsed(FIRST_WARM_UP));
                let mut workload = kind.start(keys, values, 0);
                tidelock_load::run(protocol, &endpoints, workload.as_mut(), &load)?.check(FAILED_PER_MILLE_MAX)?;
            }
        }
        Ok(())
    })
}

/// Writes `keys` keys.
pub(super) fn fill_with(endpoints: &[SocketAddr], protocol: Protocol, keys: u64, values: &Values) -> Result<Done> {
    // What ZooKeeper is sent on one connection it does in order: parents first.
    let mut fill: Box<dyn Workload> = match protocol {
        Protocol::Etcd => Box::new(Fill::new(keys, values.clone())),
        Protocol::Zookeeper => Box::new(ZnodeFill::new(keys, values.clone())),
    };
    let load = Load::closed(FILL_IN_FLIGHT, Until::Done);
    let done = tidelock_load::run(protocol, &endpoints[..1], fill.as_mut(), &load)?;
    done.check(0).map_err(|why| format!("loading keys: {why}"))?;
    Ok(done)
}

/// One operation, so many at once.
pub(super) struct Point {
    protocol: Protocol,
    kind: Kind,
    keys: u64,
    values: Values,
    in_flight: usize,
    leader_only: bool,
    until: Until,
    warm_up: Until,
}

impl Point {
    /// Operations of `kind` on `keys` keys with values of `value_bytes`.
    pub(super) fn of(bench: &Bench, kind: Kind, keys: u64, value_bytes: usize, in_flight: usize) -> Point {
        let case = Case { kind, value_bytes, keys, in_flight: vec![in_flight] };
        Point::new(bench, kind.name().0, &case, in_flight)
    }

    fn new(bench: &Bench, protocol: Protocol, case: &Case, in_flight: usize) -> Point {
        let options = &bench.options;
        let (until, warm_up) = match options.ops {
            Some(ops) => (Until::Operations(ops), Until::Operations(ops.div_ceil(WARM_UP_SHARE.into()))),
            None => {
                let time = Duration::from_secs(options.seconds());
                (Until::Elapsed(time), Until::Elapsed(time / WARM_UP_SHARE))
            }
        };
        let (kind, keys, values) = (case.kind, case.keys, Values::new(case.value_bytes));
        Point { protocol, kind, keys, values, in_flight, leader_only: options.leader_only(), until, warm_up }
    }

    /// Runs it once on `cluster`.
    pub(super) async fn measure(&self, cluster: &Cluster) -> Result<Figures> {
        let mut endpoints = cluster.endpoints(self.protocol);
        if self.leader_only {
            endpoints = vec![endpoints[cluster.leader_at().await?]];
        }
        let connections = self.in_flight.div_ceil(IN_FLIGHT_PER_CONNECTION).min(CONNECTIONS_MAX);
        let addresses = spread(&endpoints, connections);
        let pids = cluster.pids();
        tokio::task::block_in_place(|| {
            let mut lines = Lines::open(self.protocol, &addresses)?;
            let mut workload = self.kind.start(self.keys, &self.values, 0);
            run_over(&mut lines, workload.as_mut(), &Load::closed(self.in_flight, self.warm_up))?;
            let load = Load { seed: 2, ..Load::closed(self.in_flight, self.until) };
            let (done, used) = using(&pids, || run_over(&mut lines, workload.as_mut(), &load))?;
            done.check(FAILED_PER_MILLE_MAX)?;
            Ok(Figures::of_load(&done, &used))
        })
    }
}

/// What `work` gave, and what was used meanwhile.
pub(super) fn using<T>(pids: &[u32], work: impl FnOnce() -> Result<T>) -> Result<(T, Used)> {
    let servers = || pids.iter().map(|pid| procfs::cpu_time(*pid)).sum::<Result<Duration>>();
    let (servers_before, client_before) = (servers()?, procfs::cpu_time(std::process::id())?);
    let done = work()?;
    let (servers_after, client_after) = (servers()?, procfs::cpu_time(std::process::id())?);
    let resident = pids.iter().map(|pid| procfs::memory(*pid).map(|memory| memory.resident)).sum::<Result<u64>>()?;
    let used = Used {
        servers: servers_after.saturating_sub(servers_before),
        client: client_after.saturating_sub(client_before),
        resident,
    };
    Ok((done, used))
}
