//! Where the time of one agreement goes, step by step, by the system's own trace of real servers.
//!
//! One worker takes a lock and gives it back at the leader of three, so one request is under way at a time. What the
//! servers and the client ask of the system meanwhile is traced, and put together to the chain that each request is:
//! from the client to the leader, to the followers, to the disk of the quicker one, and back.
//!
//! Needs root and tracefs. The trace has an instance of its own, which is removed afterwards.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tidelock_load::{Histogram, LockLoad, lock_natively};

use crate::environment::Environment;
use crate::servers::cleanup::SystemDir;
use crate::servers::{Cluster, System};
use crate::table::{self, Table};
use crate::{Result, workspace};

const MEMBERS: usize = 3;
const TRACEFS: &str = "/sys/kernel/tracing";
/// What is traced, and of which kind it is.
const CALLS: [(&str, Kind); 6] = [
    ("sendto", Kind::Send),
    ("writev", Kind::Send),
    ("recvfrom", Kind::Receive),
    ("read", Kind::Receive),
    ("pwrite64", Kind::Write),
    ("fdatasync", Kind::Sync),
];
/// Room for the trace, on each processor: some seconds of it.
const TRACE_KIB: &str = "65536";
/// The steps, each from the end of the one before.
const STEPS: [&str; 9] = [
    "the leader has read the request",
    "it begins to tell a follower",
    "it begins to tell the other",
    "the quicker follower begins to write",
    "it has written, and begins to sync",
    "it has synced, and answers",
    "the leader has read that",
    "it answers the client",
    "the client has read the answer",
];

/// How much.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds with a trace, and as many before it without
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10))]
    seconds: u64,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    tidelock_bin: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Receive,
    Write,
    Sync,
}

/// Whose a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Client,
    Member(usize),
}

/// One call of the system that gave something: from when to when, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Call {
    whose: Whose,
    thread: u32,
    kind: Kind,
    begin: f64,
    end: f64,
    result: u64,
}

/// Measures and prints.
pub(crate) async fn run(options: Options) -> Result<()> {
    let system = System::tidelock(options.tidelock_bin.as_deref())?;
    let trace = Trace::prepare()?;
    let cluster = Cluster::start(&system, MEMBERS).await?;
    let leader = cluster.leader_at().await?;
    let address = [cluster.native_endpoints()[leader]];
    let time = Duration::from_secs(options.seconds);
    let load = |name| LockLoad { addresses: &address, name, workers: 1, contended: false, time };
    let alone = tokio::task::block_in_place(|| lock_natively(&load("chain")))?;
    let threads = threads_of(&cluster)?;
    trace.begin(threads.keys())?;
    let traced = tokio::task::block_in_place(|| lock_natively(&load("chain-traced")))?;
    let calls = calls_of(&trace.end()?, &threads);
    if let Some(why) = alone.first_failure.or(traced.first_failure) {
        return Err(why);
    }
    println!("{}\n", Environment::look(&workspace::target())?.text());
    let chains = chains(&calls, leader);
    print!("{}", report(&chains)?.text());
    println!(
        "\n{} requests, by the trace; an acquire took {} at the median without it, and {} with it",
        table::grouped(chains.len() as u64),
        table::duration(alone.acquires.quantile(500)),
        table::duration(traced.acquires.quantile(500)),
    );
    Ok(())
}

/// Every thread of the servers and of this process.
fn threads_of(cluster: &Cluster) -> Result<HashMap<u32, Whose>> {
    let servers = cluster.pids().into_iter().enumerate().map(|(at, pid)| (pid, Whose::Member(at)));
    let mut threads = HashMap::new();
    for (pid, whose) in servers.chain([(std::process::id(), Whose::Client)]) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| format!("/proc/{pid}/task: {error}"))?;
        let ids = tasks.flatten().filter_map(|task| task.file_name().to_string_lossy().parse::<u32>().ok());
        threads.extend(ids.map(|thread| (thread, whose)));
    }
    Ok(threads)
}

/// An instance of the system's trace.
struct Trace {
    place: SystemDir,
}

impl Trace {
    fn prepare() -> Result<Trace> {
        let instances = Path::new(TRACEFS).join("instances");
        let path = instances.join(format!("tidelock-{}", std::process::id()));
        let hint = "run as root, where tracefs is mounted (mount -t tracefs nodev /sys/kernel/tracing)";
        let place = SystemDir::make(path).map_err(|error| format!("{}: {error}; {hint}", instances.display()))?;
        let trace = Trace { place };
        for (setting, value) in [("tracing_on", "0"), ("buffer_size_kb", TRACE_KIB), ("trace_clock", "mono")] {
            trace.set(setting, value)?;
        }
        for (call, _) in CALLS {
            for way in ["enter", "exit"] {
                trace.set(&format!("events/syscalls/sys_{way}_{call}/enable"), "1")?;
            }
        }
        Ok(trace)
    }

    fn set(&self, setting: &str, value: &str) -> Result<()> {
        let file = self.place.path().join(setting);
        fs::write(&file, value).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn begin<'a>(&self, threads: impl Iterator<Item = &'a u32>) -> Result<()> {
        let threads: Vec<String> = threads.map(u32::to_string).collect();
        self.set("set_event_pid", &threads.join(" "))?;
        self.set("tracing_on", "1")
    }

    fn end(&self) -> Result<String> {
        self.set("tracing_on", "0")?;
        let file = self.place.path().join("trace");
        let text = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The calls of `threads` that succeeded.
fn calls_of(trace: &str, threads: &HashMap<u32, Whose>) -> Vec<Call> {
    let mut open: HashMap<u32, (&str, f64)> = HashMap::new();
    let mut calls = Vec::new();
    for (thread, at, what) in trace.lines().filter_map(line_of) {
        let Some(whose) = threads.get(&thread).copied() else { continue };
        if let Some((name, result)) = what.split_once(" -> ") {
            let Some((_, begin)) = open.remove(&thread).filter(|(opened, _)| *opened == name) else { continue };
            let kind = CALLS.iter().find(|(call, _)| *call == name).map(|(_, kind)| *kind);
            // Negative ones are errors, in 64 bits.
            let result = result.trim_start_matches("0x");
            let result = u64::from_str_radix(result, 16).ok().filter(|result| *result <= i64::MAX as u64);
            if let (Some(kind), Some(result)) = (kind, result) {
                calls.push(Call { whose, thread, kind, begin, end: at, result });
            }
        } else if let Some((name, _)) = what.split_once('(') {
            open.insert(thread, (name, at));
        }
    }
    calls
}

/// A line of the trace: `comm-tid (pid) [cpu] flags seconds: sys_name(...)`, or `sys_name -> result`; the process is there
/// if somebody told the system to note it.
fn line_of(line: &str) -> Option<(u32, f64, &str)> {
    let (task, rest) = line.split_once(" [")?;
    let task = task.trim_end();
    let task = task.strip_suffix(')').and_then(|noted| noted.rsplit_once('(')).map_or(task, |(task, _)| task);
    let thread = task.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let (_, rest) = rest.split_once("] ")?;
    let (head, what) = rest.split_once(": ")?;
    let seconds: f64 = head.split_whitespace().last()?.parse().ok()?;
    Some((thread, seconds * 1e6, what.strip_prefix("sys_")?))
}

/// When each step of one request was over, in microseconds after it was sent; and the leader's own sync.
struct Chain {
    steps: [f64; STEPS.len()],
    own_sync: f64,
}

/// Puts the calls together to one chain for each request of the client's. What is not whole is left out: the first and
/// the last, and those in which something else came between.
fn chains(calls: &[Call], leader: usize) -> Vec<Chain> {
    let is_request = |call: &&Call| call.whose == Whose::Client && call.kind == Kind::Send;
    let mut requests: Vec<&Call> = calls.iter().filter(is_request).collect();
    requests.sort_by(|one, other| one.begin.total_cmp(&other.begin));
    let mut begun: Vec<&Call> = calls.iter().collect();
    begun.sort_by(|one, other| one.begin.total_cmp(&other.begin));
    let chain = |pair: &[&Call]| {
        let from = begun.partition_point(|call| call.begin < pair[0].begin);
        let to = begun.partition_point(|call| call.begin < pair[1].begin);
        chain_of(pair[0], &begun[from..to], leader)
    };
    requests.windows(2).filter_map(chain).collect()
}

/// The chain of a request, among all that was begun until the next one.
fn chain_of(request: &Call, calls: &[&Call], leader: usize) -> Option<Chain> {
    let first = |whose: Whose, kind: Kind, after: f64, fits: &dyn Fn(&Call) -> bool| {
        let is = |call: &&&Call| call.whose == whose && call.kind == kind && call.begin >= after && fits(call);
        calls.iter().find(is).copied()
    };
    let lead = Whose::Member(leader);
    let received = calls.iter().rfind(|call| call.whose == Whose::Client && call.kind == Kind::Receive)?;
    let read = first(lead, Kind::Receive, request.begin, &|call| call.result == request.result)?;
    let tells = first(lead, Kind::Send, read.end, &|call| call.thread == read.thread)?;
    let tells_other = first(lead, Kind::Send, tells.end, &|call| call.thread == read.thread)?;
    let own_write = first(lead, Kind::Write, read.end, &|_| true)?;
    let own_sync = first(lead, Kind::Sync, own_write.end, &|call| call.thread == own_write.thread)?;
    let followers = (0..MEMBERS).filter(|at| *at != leader).map(Whose::Member);
    let written = followers.filter_map(|follower| {
        let write = first(follower, Kind::Write, tells.begin, &|_| true)?;
        let sync = first(follower, Kind::Sync, write.end, &|call| call.thread == write.thread)?;
        let answer = first(follower, Kind::Send, sync.end, &|call| call.thread == write.thread)?;
        Some((write, sync, answer))
    });
    let (write, sync, answer) = written.min_by(|one, other| one.2.begin.total_cmp(&other.2.begin))?;
    let heard = first(lead, Kind::Receive, answer.begin, &|call| call.result == answer.result)?;
    let replies = first(lead, Kind::Send, heard.end, &|call| call.result == received.result)?;
    let ends = [
        read.end,
        tells.begin,
        tells_other.begin,
        write.begin,
        sync.begin,
        answer.begin,
        heard.end,
        replies.begin,
        received.end,
    ];
    let steps = ends.map(|end| end - request.begin);
    steps.is_sorted().then_some(Chain { steps, own_sync: own_sync.end - request.begin })
}

fn report(chains: &[Chain]) -> Result<Table> {
    if chains.is_empty() {
        return Err("the trace shows no whole request; try more --seconds".to_string());
    }
    let mut table = Table::new(1, &["step", "p50", "p10", "p90", "mean", "over at, p50"]);
    let mut add = |name: &str, took: &dyn Fn(&Chain) -> f64, at: &dyn Fn(&Chain) -> f64| {
        let (mut each, mut over, mut sum) = (Histogram::new(), Histogram::new(), 0.0);
        for chain in chains {
            each.record(microseconds(took(chain)));
            over.record(microseconds(at(chain)));
            sum += took(chain);
        }
        let mut row = vec![name.to_string()];
        row.extend([500, 100, 900].map(|per_mille| table::duration(each.quantile(per_mille))));
        row.push(table::duration(microseconds(sum / chains.len() as f64)));
        row.push(table::duration(over.quantile(500)));
        table.row(row);
    };
    for (at, name) in STEPS.iter().enumerate() {
        let before = |chain: &Chain| if at == 0 { 0.0 } else { chain.steps[at - 1] };
        add(name, &|chain| chain.steps[at] - before(chain), &|chain| chain.steps[at]);
    }
    add("beside it: the leader's own write and sync", &|chain| chain.own_sync - chain.steps[0], &|chain| {
        chain.own_sync
    });
    Ok(table)
}

fn microseconds(count: f64) -> Duration {
    Duration::from_nanos((count * 1e3).max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which processors write their lines is not that of the steps, and what fails is no step.
    #[test]
    fn a_trace_becomes_the_chain_of_its_request() {
        let line = |thread: u32, at: u32, what: &str| {
            let process = if at < 150 { format!("(  {thread}) ") } else { String::new() };
            format!("  some-name-{thread}  {process}[001] .....  7.0{at:05}: sys_{what}\n")
        };
        let call = |thread, from, to, name: &str, result: &str| {
            line(thread, from, &format!("{name}(fd: 1, buf: 0)")) + &line(thread, to, &format!("{name} -> {result}"))
        };
        let trace = [
            "# tracer: nop\n".to_string(),
            call(9, 100, 104, "sendto", "0x44"),
            call(1, 90, 91, "recvfrom", "0xfffffffffffffff5"),
            call(1, 110, 111, "recvfrom", "0x44"),
            call(1, 115, 118, "sendto", "0x80"),
            call(1, 119, 121, "sendto", "0x81"),
            call(11, 125, 150, "pwrite64", "0x1000"),
            call(11, 151, 240, "fdatasync", "0x0"),
            call(3, 130, 160, "pwrite64", "0x1000"),
            call(3, 161, 200, "fdatasync", "0x0"),
            call(3, 201, 205, "sendto", "0x2c"),
            call(2, 126, 150, "pwrite64", "0x1000"),
            call(2, 151, 220, "fdatasync", "0x0"),
            call(2, 221, 225, "sendto", "0x2d"),
            call(12, 210, 212, "recvfrom", "0x2c"),
            call(12, 214, 216, "sendto", "0x2a"),
            call(12, 250, 255, "sendto", "0x39"),
            call(9, 260, 261, "recvfrom", "0x39"),
            call(9, 263, 266, "sendto", "0x47"),
        ]
        .concat();
        let member = Whose::Member;
        let threads =
            [(9, Whose::Client), (1, member(0)), (11, member(0)), (12, member(0)), (2, member(1)), (3, member(2))];
        let calls = calls_of(&trace, &threads.into());
        let chains = chains(&calls, 0);
        let [chain] = chains.as_slice() else { panic!("{}", chains.len()) };
        let steps = chain.steps.map(|step| step.round() as u32);
        assert_eq!(steps, [11, 15, 19, 30, 61, 101, 112, 150, 161]);
        assert_eq!(chain.own_sync.round() as u32, 140);
        assert!(report(&chains).unwrap().text().contains("the client has read the answer"));
        assert!(report(&[]).is_err());
    }
}
