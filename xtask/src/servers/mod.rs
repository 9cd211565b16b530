//! Real servers as child processes on loopback: one to some nodes of one system.
//!
//! A [`Cluster`] owns its processes and its data directory. Dropping it ends the processes by their ids
//! and removes the data; [`cleanup`] does the same when this process panics. What a server writes to
//! its standard streams is kept in a file beside its data and shown if it does not come up.

pub(crate) mod admin;
pub(crate) mod cleanup;
mod command_line;
pub(crate) mod peer;
pub(crate) mod process;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidelock_free_ports::free_ports;
use tidelock_load::{Language, Protocol};
use tonic::transport::Channel;

use crate::procfs::{self, Memory};
use crate::{Result, client, workspace};
use command_line::Place;
use process::Server;

/// How long a cluster may take to elect a leader and answer a first read.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a store may take to come back from disk.
const RESTART_LIMIT: Duration = Duration::from_secs(600);
/// How often memory is looked at while it settles, and for how long at most.
const SETTLE_STEP: Duration = Duration::from_millis(500);
const SETTLE_STEPS_MAX: usize = 40;
/// Looks in a row at which it must hold still: allocators give memory back a second or more after it was
/// freed.
const SETTLE_STILL: usize = 8;
/// Servers that use less of a processor than this are done with what they had to do, or were waited for long enough.
const QUIET_SHARE: f64 = 0.1;
const QUIET_LOOK: Duration = Duration::from_millis(500);
const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Ours.
    Tidelock,
    /// The real etcd.
    Etcd,
    /// The real ZooKeeper.
    #[value(skip)]
    Zookeeper,
    /// The real Redis: one node, not replicated.
    #[value(skip)]
    Redis,
}

/// A program and what it calls itself.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// Which program.
    pub(crate) kind: Kind,
    /// Its file.
    pub(crate) binary: PathBuf,
    /// Name and version, for reports.
    pub(crate) name: String,
    /// Arguments beside those every member gets.
    pub(crate) extra: Vec<String>,
}

impl System {
    /// Either: the binary given, or the usual one.
    pub(crate) fn of(kind: Kind, given: Option<&Path>) -> Result<System> {
        match kind {
            Kind::Tidelock => System::tidelock(given),
            Kind::Etcd => System::etcd(given),
            Kind::Zookeeper => peer::zookeeper(given, false),
            Kind::Redis => System::redis(given),
        }
    }

    /// Ours: the binary given, or a fresh build.
    pub(crate) fn tidelock(given: Option<&Path>) -> Result<System> {
        let binary = workspace::server_binary(given)?;
        Ok(System { kind: Kind::Tidelock, binary, name: "tidelock".to_string(), extra: Vec::new() })
    }

    /// etcd: the binary given, or the one on PATH.
    pub(crate) fn etcd(given: Option<&Path>) -> Result<System> {
        let binary = workspace::etcd_binary(given)?;
        let output = std::process::Command::new(&binary).arg("--version").output();
        let output = output.map_err(|error| format!("{} --version: {error}", binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().next().and_then(|line| line.strip_prefix("etcd Version: ")).unwrap_or("?");
        Ok(System { kind: Kind::Etcd, binary, name: format!("etcd {version}"), extra: Vec::new() })
    }
}

impl System {
    /// Whether it runs on a Java machine, which compiles what is hot while it runs.
    pub(crate) fn is_java(&self) -> bool {
        self.kind == Kind::Zookeeper
    }

    /// How many members it has where others have `nodes`: Redis has no replication that a lock could rest on.
    pub(crate) fn members(&self, nodes: usize) -> usize {
        if self.kind == Kind::Redis { 1 } else { nodes }
    }

    /// Redis: the binary given, or the one on PATH.
    pub(crate) fn redis(given: Option<&Path>) -> Result<System> {
        let binary = workspace::redis_binary(given)?;
        let output = std::process::Command::new(&binary).arg("--version").output();
        let output = output.map_err(|error| format!("{} --version: {error}", binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
        let name = format!("Redis {version}, not replicated");
        Ok(System { kind: Kind::Redis, binary, name, extra: Vec::new() })
    }

    /// ZooKeeper: from the jars in `directory`.
    pub(crate) fn zookeeper(directory: &Path) -> Result<System> {
        let found = std::fs::read_dir(directory).into_iter().flatten().flatten().find_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
            version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_string())
        });
        let missing = || format!("there are no jars of ZooKeeper in {}", directory.display());
        let name = format!("ZooKeeper {}", found.ok_or_else(missing)?);
        Ok(System { kind: Kind::Zookeeper, binary: directory.to_path_buf(), name, extra: Vec::new() })
    }
}

/// Running members of one cluster.
pub(crate) struct Cluster {
    /// What runs.
    pub(crate) system: System,
    members: Vec<Member>,
    // After the members: processes end before their data is removed.
    _data: cleanup::DataDir,
}

struct Member {
    place: Place,
    server: Server,
}

impl Cluster {
    /// Starts `nodes` members with their data under the target directory, and waits until each of them
    /// answers a linearizable read.
    pub(crate) async fn start(system: &System, nodes: usize) -> Result<Cluster> {
        Cluster::start_under(system, nodes, &workspace::target()).await
    }

    /// The same with their data in a new directory under `parent`.
    pub(crate) async fn start_under(system: &System, nodes: usize, parent: &Path) -> Result<Cluster> {
        let data = cleanup::DataDir::under(parent, "bench-")?;
        let places = Place::all(nodes, data.path(), &free_addresses(nodes * command_line::ADDRESSES_EACH)?);
        let mut members = Vec::with_capacity(nodes);
        for place in &places {
            let server = Server::start(command_line::of(system, place, &places)?, &place.log())?;
            members.push(Member { place: place.clone(), server });
        }
        let mut cluster = Cluster { system: system.clone(), members, _data: data };
        cluster.wait_ready(START_LIMIT).await?;
        Ok(cluster)
    }

    async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        for member in &mut self.members {
            let Member { place, server } = member;
            first_read(self.system.kind, place, server, start, limit)?;
        }
        Ok(())
    }

    /// Kills member `at` as a crash would, starts it again, and says how long after its start it
    /// answered a first linearizable read.
    pub(crate) async fn crash_and_restart(&mut self, at: usize) -> Result<Duration> {
        self.kill(at);
        let start = Instant::now();
        self.start_again(at)?;
        let Member { place, server } = &mut self.members[at];
        first_read(self.system.kind, place, server, start, RESTART_LIMIT)
    }

    /// Kills member `at` as a crash would.
    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].server.kill();
    }

    /// Starts member `at`, which was killed; does not wait for it.
    pub(crate) fn start_again(&mut self, at: usize) -> Result<()> {
        let places: Vec<Place> = self.members.iter().map(|member| member.place.clone()).collect();
        let Member { place, server } = &mut self.members[at];
        *server = Server::start(command_line::of(&self.system, place, &places)?, &place.log())?;
        Ok(())
    }

    /// Stops member `at` without ending it, as a frozen machine would.
    pub(crate) fn stop(&self, at: usize) -> Result<()> {
        self.members[at].server.signal(rustix::process::Signal::STOP)
    }

    /// Lets a stopped member go on.
    pub(crate) fn go_on(&self, at: usize) -> Result<()> {
        self.members[at].server.signal(rustix::process::Signal::CONT)
    }

    /// Waits until every member answers a read that needs a majority.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        self.wait_ready(RESTART_LIMIT).await
    }

    /// Where clients of `protocol` reach the members.
    pub(crate) fn endpoints(&self, protocol: Protocol) -> Vec<SocketAddr> {
        let address = |member: &Member| match protocol {
            Protocol::Etcd => member.place.client,
            Protocol::Zookeeper => member.place.zookeeper,
        };
        self.members.iter().map(address).collect()
    }

    /// Where clients of Redis' protocol reach it; of Redis alone.
    pub(crate) fn redis_endpoints(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.place.client).collect()
    }

    /// Where clients of the native API reach the members; of ours alone.
    pub(crate) fn native_endpoints(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.place.native).collect()
    }

    /// How many members there are.
    pub(crate) fn nodes(&self) -> usize {
        self.members.len()
    }

    /// Which member leads.
    pub(crate) async fn leader_at(&self) -> Result<usize> {
        for (at, member) in self.members.iter().enumerate() {
            let leads = match self.system.kind {
                Kind::Tidelock | Kind::Etcd => client::leads(member.place.client).await.unwrap_or(false),
                Kind::Zookeeper => client::zookeeper_leads(member.place.zookeeper).await.unwrap_or(false),
                Kind::Redis => true,
            };
            if leads {
                return Ok(at);
            }
        }
        Err(format!("no member of {} leads", self.system.name))
    }

    /// The members' processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.server.pid()).collect()
    }

    /// At least `count` connections, as many to each member, or all to the leader.
    pub(crate) async fn connect(&self, count: usize, leader_only: bool) -> Result<Vec<Channel>> {
        let mut addresses: Vec<SocketAddr> = self.members.iter().map(|member| member.place.client).collect();
        if leader_only {
            addresses = vec![addresses[self.leader_at().await?]];
        }
        let count = count.next_multiple_of(addresses.len());
        Ok((0..count).map(|at| client::channel(addresses[at % addresses.len()])).collect())
    }

    /// Where member `at` is administered.
    pub(crate) fn admin(&self, at: usize) -> SocketAddr {
        self.members[at].place.admin
    }

    /// Waits until the servers are done with what came before.
    pub(crate) async fn quiet(&self) -> Result<()> {
        let spent = || self.pids().iter().map(|pid| procfs::cpu_time(*pid)).sum::<Result<Duration>>();
        let give_up = Instant::now() + QUIET_LIMIT;
        loop {
            let before = spent()?;
            tokio::time::sleep(QUIET_LOOK).await;
            let busy = spent()?.saturating_sub(before).as_secs_f64() / QUIET_LOOK.as_secs_f64();
            if busy < QUIET_SHARE || Instant::now() > give_up {
                return Ok(());
            }
        }
    }

    /// Resident memory of all members.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let mut sum = Memory::default();
        for member in &self.members {
            let memory = procfs::memory(member.server.pid())?;
            sum.resident += memory.resident;
            sum.anonymous += memory.anonymous;
        }
        Ok(sum)
    }

    /// Resident memory of all members once it holds still (to 1 % for some seconds), or after a bounded
    /// wait.
    pub(crate) async fn settled_memory(&self) -> Result<Memory> {
        let mut last = self.memory()?;
        let mut still = 0;
        for _ in 0..SETTLE_STEPS_MAX {
            tokio::time::sleep(SETTLE_STEP).await;
            let now = self.memory()?;
            still = if now.resident.abs_diff(last.resident) * 100 <= last.resident { still + 1 } else { 0 };
            last = now;
            if still == SETTLE_STILL {
                break;
            }
        }
        Ok(last)
    }
}

/// Waits for a read that needs a majority (of Redis: any), in the protocol that is the system's own. Blocks its thread, which is one of
/// several.
fn first_read(kind: Kind, place: &Place, server: &mut Server, start: Instant, limit: Duration) -> Result<Duration> {
    let (language, address) = match kind {
        Kind::Tidelock | Kind::Etcd => (Language::Etcd, place.client),
        Kind::Zookeeper => (Language::Zookeeper, place.zookeeper),
        Kind::Redis => (Language::Redis, place.client),
    };
    tokio::task::block_in_place(|| tidelock_load::first_read(language, address, start, limit, || server.check_alive()))
}

/// Addresses nobody listens on, kept for this process.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let ports = free_ports(count).map_err(|error| format!("looking for free ports: {error}"))?;
    Ok(ports.into_iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect())
}
