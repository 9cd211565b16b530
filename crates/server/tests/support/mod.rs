//! Real `tidelock` processes for tests: started on free loopback ports with temporary data, waited for
//! by condition and deadline, killed by their own id, cleaned up when dropped.
//!
//! A node keeps its ports and data over [`Process::kill`] and [`Process::start`], so that a test can
//! crash it and bring it back. A test that fails prints the end of every node's log.

// Every test binary uses another part of this file.
#![allow(dead_code, unreachable_pub)]
// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

pub mod agreement;
pub mod data_files;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub mod failing_sync;
pub mod keeper;
pub mod native;
pub mod rejoin;
pub mod requests;
pub mod small_disk;
pub mod tls;
pub mod until;
pub mod users;
pub mod watcher;
pub mod writers;
pub mod zookeeper;

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tonic::transport::Channel;

/// How long anything may take before a test gives up. Generous: test machines are slow and busy.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often conditions are looked at.
const POLL: Duration = Duration::from_millis(20);
/// Lines of a node's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 40;

/// The binary under test.
pub const TIDELOCK: &str = env!("CARGO_BIN_EXE_tidelock");

/// A command of the binary under test, with nothing inherited from the environment of the test.
pub fn tidelock() -> Command {
    launched_by(&[])
}

/// The same, started by another program that takes it as its last arguments.
fn launched_by(launcher: &[String]) -> Command {
    let mut words = launcher.iter().map(String::as_str).chain([TIDELOCK]);
    let mut command = Command::new(words.next().expect("there is at least the binary itself"));
    command.args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDELOCK_") {
            command.env_remove(name);
        }
    }
    command
}

/// One node.
pub struct Process {
    pub name: String,
    pub client_port: u16,
    pub peer_port: u16,
    pub admin_port: u16,
    dir: PathBuf,
    arguments: Vec<String>,
    /// A program that starts it, with its arguments; empty: nothing does.
    launcher: Vec<String>,
    /// Environment variables it gets besides the test's own.
    environment: Vec<(&'static str, PathBuf)>,
    child: Option<Child>,
}

/// Some nodes and their data.
pub struct Cluster {
    pub nodes: Vec<Process>,
    dir: TempDir,
}

/// As many ports as asked for, kept for this process.
pub fn free_ports(count: usize) -> Vec<u16> {
    tidelock_free_ports::free_ports(count).unwrap()
}

impl Cluster {
    /// Founds a cluster of `count` nodes and waits until all of them are ready.
    pub fn start(count: usize) -> Cluster {
        Cluster::start_with(count, &[])
    }

    /// The same, with extra arguments to every `serve`.
    pub fn start_with(count: usize, extra: &[&str]) -> Cluster {
        let mut cluster = Cluster::prepare(count, extra);
        cluster.start_all();
        cluster
    }

    /// The same, not started yet.
    pub fn prepare(count: usize, extra: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports(count * 3);
        let names: Vec<String> = ('a'..='z').take(count).map(String::from).collect();
        let founders: Vec<String> =
            names.iter().zip(ports.chunks(3)).map(|(name, ports)| format!("{name}=127.0.0.1:{}", ports[1])).collect();
        let mut founding = vec!["--initial-cluster".to_owned(), founders.join(",")];
        founding.extend(extra.iter().map(|&argument| argument.to_owned()));
        let nodes = names
            .iter()
            .zip(ports.chunks(3))
            .map(|(name, ports)| Process::new(name, dir.path(), ports, founding.clone()))
            .collect();
        Cluster { nodes, dir }
    }

    /// Starts all nodes and waits until they are ready.
    pub fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Process::start);
        self.nodes.iter_mut().for_each(Process::wait_until_ready);
    }

    /// Adds a node that joins through the first one; not started yet.
    pub fn add_joining(&mut self, name: &str) -> &mut Process {
        let through = format!("http://127.0.0.1:{}", self.nodes[0].admin_port);
        let arguments = vec!["--join".to_owned(), through];
        self.nodes.push(Process::new(name, self.dir.path(), &free_ports(3), arguments));
        self.nodes.last_mut().unwrap()
    }

    /// Client URLs of all nodes, comma separated.
    pub fn endpoints(&self) -> String {
        self.nodes.iter().map(Process::client_url).collect::<Vec<_>>().join(",")
    }

    /// Admin URLs of all nodes, comma separated.
    pub fn admins(&self) -> String {
        self.nodes.iter().map(Process::admin_url).collect::<Vec<_>>().join(",")
    }

    /// The position of the node that leads, once there is one.
    pub fn wait_for_leader(&self) -> usize {
        wait_for("a leader", || {
            self.nodes.iter().position(|node| {
                node.is_running()
                    && node.admin_get("/v1/status").is_some_and(|body| body.contains("\"role\":\"leader\""))
            })
        })
    }

    /// Runs a command of the binary against this cluster; panics if it fails.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = tidelock()
            .args(arguments)
            .env("TIDELOCK_ENDPOINTS", self.endpoints())
            .env("TIDELOCK_ADMIN", self.admins())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "tidelock {arguments:?}: {}\n{out}{err}", output.status);
        out.into_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.nodes.iter().for_each(Process::show_log);
        }
    }
}

impl Process {
    fn new(name: &str, dir: &Path, ports: &[u16], arguments: Vec<String>) -> Process {
        Process {
            name: name.to_owned(),
            client_port: ports[0],
            peer_port: ports[1],
            admin_port: ports[2],
            dir: dir.to_owned(),
            arguments,
            launcher: Vec::new(),
            environment: Vec::new(),
            child: None,
        }
    }

    /// Starts the process; does not wait for anything.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "node {} runs already", self.name);
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let child = launched_by(&self.launcher)
            .arg("serve")
            .args(["--name", &self.name])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--client-listen", &format!("127.0.0.1:{}", self.client_port)])
            .args(["--peer-listen", &format!("127.0.0.1:{}", self.peer_port)])
            .args(["--admin-listen", &format!("127.0.0.1:{}", self.admin_port)])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until the node says it can serve.
    pub fn wait_until_ready(&mut self) {
        wait_for(&format!("node {} to be ready", self.name), || {
            let ended = self.child.as_mut().expect("the node was started").try_wait().unwrap();
            assert!(ended.is_none(), "node {} ended: {}", self.name, ended.unwrap_or_default());
            self.admin_get("/readyz").map(|_| ())
        });
    }

    /// Waits until the process ends by itself.
    pub fn wait_until_ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("the node was started");
        let status = wait_for(&format!("node {} to end", self.name), || child.try_wait().unwrap());
        self.child = None;
        status
    }

    /// Whether the process ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }

    /// Ends the process the hard way, as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Asks the process to stop and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        signal(self.child.as_ref().expect("the node runs"), "TERM");
        self.wait_until_ended()
    }

    /// Freezes the process, as a long pause of the machine would.
    pub fn pause(&self) {
        signal(self.child.as_ref().expect("the node runs"), "STOP");
    }

    /// Lets a frozen process go on.
    pub fn resume(&self) {
        signal(self.child.as_ref().expect("the node runs"), "CONT");
    }

    /// The most memory it has held so far, in bytes.
    pub fn resident_bytes_max(&self) -> usize {
        let pid = self.child.as_ref().expect("the node runs").id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    /// Whether the process was started and not ended by the test.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Where clients reach it.
    pub fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    /// Where administrators reach it.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin_port)
    }

    /// Where its data is.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn show_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        eprintln!("--- end of the log of node {}\n{}", self.name, tail.join("\n"));
    }

    /// The body of a successful `GET` at the admin address.
    pub fn admin_get(&self, path: &str) -> Option<String> {
        let (status, body) = http(self.admin_port, "GET", path, "")?;
        (status == 200).then_some(body)
    }

    /// A client of its key-value service.
    pub async fn kv(&self) -> KvClient<Channel> {
        let channel = Channel::from_shared(self.client_url()).unwrap();
        within("a connection", async move { KvClient::new(channel.connect().await.unwrap()) }).await
    }

    /// A client of its lease service.
    pub async fn leases(&self) -> LeaseClient<Channel> {
        let channel = Channel::from_shared(self.client_url()).unwrap();
        within("a connection", async move { LeaseClient::new(channel.connect().await.unwrap()) }).await
    }

    /// A client of its watch service.
    pub async fn watches(&self) -> WatchClient<Channel> {
        let channel = Channel::from_shared(self.client_url()).unwrap();
        within("a connection", async move { WatchClient::new(channel.connect().await.unwrap()) }).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, name: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match name {
        "TERM" => Signal::TERM,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        other => panic!("unknown signal {other}"),
    };
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// One HTTP exchange on loopback; `None` if nobody answers.
pub fn http(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Looks again and again until `condition` gives something, or panics saying what was waited for.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(POLL);
    }
}

/// The value of `future`, or a panic saying what did not come in time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}
