//! The two servers as processes: ours, and a real ZooKeeper out of its jars.
//!
//! Both on loopback, with their data in memory where there is such a disk, ended and removed when dropped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::answer::Item;
use super::connection::{Connection, Hello};
use crate::servers::cleanup::DataDir;
use crate::servers::free_addresses;
use crate::servers::process::Server;
use crate::{Result, workspace};

/// What our answers follow.
const VERSION: &str = "3.9.4";
/// How long a server may take to answer its first client.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Between attempts to reach it.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// Memory as a disk, where there is one: a differential run waits for answers, not for a disk.
const MEMORY_DISK: &str = "/dev/shm";

/// A server that answers.
pub(super) struct RunningServer {
    /// Where ZooKeeper's clients reach it, node by node.
    pub(super) addresses: Vec<SocketAddr>,
    /// When it was started.
    pub(super) started: Instant,
    nodes: Vec<Server>,
    // After the process: it ends before its data is removed.
    _data: DataDir,
}

impl RunningServer {
    /// Waits until a session can be opened at `address`.
    async fn wait_for(&mut self, address: SocketAddr) -> Result<()> {
        let hello = Hello { seen: 0, timeout: 4_000, session: 0, password: vec![0; 16], read_only: Some(false) };
        while self.started.elapsed() < START_LIMIT {
            self.check_alive()?;
            let (_, item) = Connection::open(address, &hello).await;
            if matches!(item, Item::Greeting { .. }) {
                return Ok(());
            }
            tokio::time::sleep(ATTEMPT_PAUSE).await;
        }
        Err(format!("{address} did not open a session within {START_LIMIT:?}"))
    }

    /// Fails with its last words if it ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(Server::check_alive)
    }
}

/// The directory of a real ZooKeeper's jars: the one given, or the installed one.
pub(super) fn peer(given: Option<&Path>) -> Result<PathBuf> {
    let directory =
        given.map_or_else(|| workspace::target().join(format!("peers/zookeeper-{VERSION}")), Path::to_path_buf);
    if directory.is_dir() {
        Ok(directory)
    } else {
        let missing = directory.display();
        Err(format!("there are no jars in {missing}: run conformance/zookeeper/install, or name others with --peer"))
    }
}

/// A line for both sides.
const QUOTAS: &str = "enforceQuota=true\n";

/// Starts ours: one node, or several.
pub(super) async fn start_tidelock(binary: &Path, nodes: usize) -> Result<RunningServer> {
    let data = data_directory()?;
    let (clients, peers) = (free_addresses(nodes)?, free_addresses(2 * nodes)?);
    let server = |(at, address): (usize, &SocketAddr)| format!("server.{}={address}:{}\n", at + 1, address.port());
    let servers: String = peers[..nodes].iter().enumerate().map(server).collect();
    let mut commands = Vec::new();
    for (at, client) in clients.iter().enumerate() {
        let directory = data.path().join(format!("n{at}"));
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let myid = directory.join("myid");
        std::fs::write(&myid, (at + 1).to_string()).map_err(|error| format!("{}: {error}", myid.display()))?;
        let configuration = format!(
            "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n{servers}{QUOTAS}",
            directory.display(),
            client.port()
        );
        let mut command = Command::new(binary);
        command.args(["serve", "--log-level", "warn", "--admin-listen", &peers[nodes + at].to_string()]);
        command.arg("--zoo-cfg").arg(configuration_file(&directory, &configuration)?);
        commands.push((command, *client));
    }
    start(commands, data).await
}

/// Starts a real ZooKeeper, standalone.
pub(super) async fn start_zookeeper(jars: &Path) -> Result<RunningServer> {
    let data = data_directory()?;
    let [address] = free_addresses(1)?[..] else { return Err("no address".to_string()) };
    let configuration = format!(
        "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         admin.enableServer=false\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\n{QUOTAS}",
        data.path().join("data").display(),
        address.port()
    );
    let file = configuration_file(data.path(), &configuration)?;
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]);
    // Quick, not durable: nothing crashes here.
    command.arg("-Dzookeeper.forceSync=no");
    // Empty containers go when the run asks for it, not by the clock.
    command.arg(format!("-Dznode.container.checkIntervalMs={}", i32::MAX));
    command.arg(format!("-Dlogback.configurationFile={}", log_configuration(data.path())?.display()));
    command.arg("-cp").arg(jars.join("*")).arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&file);
    start(vec![(command, address)], data).await
}

fn configuration_file(directory: &Path, text: &str) -> Result<PathBuf> {
    let file = directory.join("zoo.cfg");
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// It says everything by default, which would fill the memory disk.
fn log_configuration(directory: &Path) -> Result<PathBuf> {
    let file = directory.join("logback.xml");
    let text = "<configuration>\n  <appender name=\"console\" class=\"ch.qos.logback.core.ConsoleAppender\">\n    \
                <encoder><pattern>%level %logger{0} %msg%n</pattern></encoder>\n  </appender>\n  \
                <root level=\"ERROR\"><appender-ref ref=\"console\"/></root>\n</configuration>\n";
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

fn data_directory() -> Result<DataDir> {
    let memory = Path::new(MEMORY_DISK);
    let parent = if memory.is_dir() { memory.to_path_buf() } else { workspace::target() };
    DataDir::under(&parent, "differential-")
}

async fn start(commands: Vec<(Command, SocketAddr)>, data: DataDir) -> Result<RunningServer> {
    let started = Instant::now();
    let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
    for (at, (command, address)) in commands.into_iter().enumerate() {
        nodes.push(Server::start(command, &data.path().join(format!("log{at}")))?);
        addresses.push(address);
    }
    let mut running = RunningServer { addresses, started, nodes, _data: data };
    for address in running.addresses.clone() {
        running.wait_for(address).await?;
    }
    Ok(running)
}
