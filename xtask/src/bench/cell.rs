//! One cell of the table: a cluster size, a workload and a number in flight, measured once.

use std::time::Duration;

use serde::Serialize;

use super::load::{self, Load, Until};
use super::{CONNECTIONS_MAX, IN_FLIGHT_PER_CONNECTION, Options, Target, Workload};
use crate::fill::{self, Values};
use crate::servers::Cluster;
use crate::{Result, procfs};

/// Share of the measured time or operations that is run before it, unmeasured: connections open, caches
/// and branch predictors warm.
const WARM_UP_SHARE: u32 = 5;
/// More failed requests than this share mean that something else is measured than was meant.
const FAILED_PER_MILLE_MAX: u64 = 10;

/// What to run.
pub(super) struct Cell {
    pub(super) nodes: usize,
    pub(super) workload: Workload,
    pub(super) in_flight: usize,
    leader_only: bool,
    until: Until,
    warm_up: Until,
    keys: u64,
    values: Values,
}

/// What one round of a cell gave.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) operations: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    pub(super) ops_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
    /// Processor time of all server processes.
    pub(super) server_cpu_us_per_op: f64,
    /// Processor time of this process.
    pub(super) client_cpu_us_per_op: f64,
    /// Resident memory of all server processes at the end of the round.
    pub(super) resident_bytes: f64,
}

impl Cell {
    pub(super) fn new(options: &Options, nodes: usize, workload: Workload, in_flight: usize) -> Cell {
        let (until, warm_up) = match options.ops {
            Some(ops) => (Until::Operations(ops), Until::Operations(ops.div_ceil(WARM_UP_SHARE.into()))),
            None => {
                let time = Duration::from_secs(options.seconds);
                (Until::Elapsed(time), Until::Elapsed(time / WARM_UP_SHARE))
            }
        };
        let leader_only = options.target == Target::Leader;
        let values = Values::new(options.value_bytes);
        Cell { nodes, workload, in_flight, leader_only, until, warm_up, keys: options.keys, values }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        let workload = match self.workload {
            Workload::Put => "put",
            Workload::Get => "get",
        };
        format!(
            "{} node{}, {workload}, {} in flight",
            self.nodes,
            if self.nodes == 1 { "" } else { "s" },
            self.in_flight
        )
    }

    /// Runs it once on `cluster`.
    pub(super) async fn measure(&self, cluster: &Cluster) -> Result<Sample> {
        let connections = self.in_flight.div_ceil(IN_FLIGHT_PER_CONNECTION).min(CONNECTIONS_MAX);
        let channels = cluster.connect(connections, self.leader_only).await?;
        let load = |until| Load {
            workload: self.workload,
            in_flight: self.in_flight,
            until,
            keys: self.keys,
            values: self.values.clone(),
        };
        load::run(&channels, &load(self.warm_up)).await?;

        let us_since = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() * 1e6;
        let (servers_before, client_before) = (cluster.cpu_time()?, procfs::cpu_time(std::process::id())?);
        let done = load::run(&channels, &load(self.until)).await?;
        let (servers_after, client_after) = (cluster.cpu_time()?, procfs::cpu_time(std::process::id())?);
        let resident = cluster.memory()?.resident;

        let operations = done.latencies.count();
        if done.failed * 1000 > FAILED_PER_MILLE_MAX * (operations + done.failed) {
            let first = done.first_failure.unwrap_or_default();
            return Err(format!(
                "{} of {} requests failed, the first with: {first}",
                done.failed,
                operations + done.failed
            ));
        }
        fill::compact(&channels[0]).await?;
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        let seconds = done.elapsed.as_secs_f64();
        Ok(Sample {
            operations,
            failed: done.failed,
            seconds,
            ops_per_s: operations as f64 / seconds,
            p50_us: us(done.latencies.quantile(500)),
            p99_us: us(done.latencies.quantile(990)),
            p999_us: us(done.latencies.quantile(999)),
            max_us: us(done.latencies.max()),
            server_cpu_us_per_op: us_since(servers_after, servers_before) / operations as f64,
            client_cpu_us_per_op: us_since(client_after, client_before) / operations as f64,
            resident_bytes: resident as f64,
        })
    }
}
