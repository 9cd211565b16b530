//! `tidelock dev`: a small cluster on this machine, one child process per node.
//!
//! The nodes are real: separate processes with separate data, started by the same `serve` that runs in
//! production. Kill one and see what happens; nothing is restarted. When this process ends, however it
//! ends, the nodes end too: each reads its standard input, which is a pipe that closes with us.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tidelock_free_ports::free_ports;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::admin_client::{self, AdminUrl};
use crate::announce::{program, say};
use crate::cli::DevArgs;
use crate::failure::Failure;
use crate::signals::Signals;

/// How long the cluster may take to elect a leader and answer.
const READY_PATIENCE: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(50);
/// How long a node may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// Clients of three protocols, peers, administration.
const PORTS_PER_NODE: usize = 5;
/// Remembers the ports, because the nodes remember each other's addresses.
const LAYOUT_FILE: &str = "dev.json";

/// Who listens where.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Layout {
    token: String,
    nodes: Vec<NodeLayout>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct NodeLayout {
    name: String,
    client_port: u16,
    peer_port: u16,
    admin_port: u16,
    /// `None` in a directory from before ZooKeeper clients were served.
    #[serde(default)]
    zookeeper_port: Option<u16>,
    /// `None` in a directory from before the native API was served.
    #[serde(default)]
    native_port: Option<u16>,
}

/// The directory of a cluster; removed at the end unless the user named it.
struct Workspace {
    dir: PathBuf,
    temporary: bool,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

pub(crate) fn run(args: &DevArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let workspace = Workspace::open(args.dir.as_deref())?;
    let layout = workspace.layout(usize::from(args.nodes))?;
    runtime.block_on(supervise(&workspace, &layout))
}

async fn supervise(workspace: &Workspace, layout: &Layout) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let (stop, stopping) = watch::channel(false);
    let (exits, mut exited) = mpsc::channel(layout.nodes.len());
    for node in &layout.nodes {
        let child = spawn(workspace, layout, node)?;
        tokio::spawn(look_after(node.name.clone(), child, stopping.clone(), exits.clone()));
    }
    drop(exits);

    tokio::select! {
        biased;
        () = signals.next() => {}
        ready = until_ready(layout) => match ready {
            true => greet(workspace, layout),
            false => eprintln!(
                "the cluster is not ready after {READY_PATIENCE:?}; see the logs in {}",
                workspace.dir.join("logs").display()
            ),
        },
    }
    let mut running = layout.nodes.len();
    let verdict = loop {
        tokio::select! {
            () = signals.next() => break Ok(()),
            Some((name, status)) = exited.recv() => {
                running -= 1;
                let log = workspace.log_path(&name);
                eprintln!("node {name} ended ({status}); its log is {}", log.display());
                if running == 0 {
                    break Err(Failure::new("all nodes have ended").hint("look at the end of their logs"));
                }
            }
        }
    };
    let _ = stop.send(true);
    tokio::select! {
        // A second Ctrl-C: dropping the children kills them.
        () = signals.next() => {}
        () = async { while exited.recv().await.is_some() {} } => {}
    }
    verdict
}

/// Waits for a node to end, or ends it: politely first, then by force. Only ever by its own id.
async fn look_after(
    name: String,
    mut child: Child,
    mut stopping: watch::Receiver<bool>,
    exits: mpsc::Sender<(String, String)>,
) {
    // Waiting for a child closes its standard input, which would end it; ours to hold until then.
    let lifeline = child.stdin.take();
    let by_itself = tokio::select! {
        status = child.wait() => Some(describe(status)),
        () = async { let _ = stopping.wait_for(|stop| *stop).await; } => None,
    };
    let status = match by_itself {
        Some(status) => status,
        None => stop_child(&mut child).await,
    };
    drop(lifeline);
    let _ = exits.send((name, status)).await;
}

async fn stop_child(child: &mut Child) -> String {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
        Ok(status) => describe(status),
        Err(_) => {
            let _ = child.kill().await;
            "killed".to_owned()
        }
    }
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn spawn(workspace: &Workspace, layout: &Layout, node: &NodeLayout) -> Result<Child, Failure> {
    let failed =
        |what: &str, error: &std::io::Error| Failure::new(format!("cannot {what} node {}: {error}", node.name));
    let program = std::env::current_exe().map_err(|error| failed("find the program for", &error))?;
    let log_path = workspace.log_path(&node.name);
    let log =
        File::options().create(true).append(true).open(&log_path).map_err(|error| failed("open the log of", &error))?;
    let log_too = log.try_clone().map_err(|error| failed("open the log of", &error))?;
    let cluster: Vec<String> =
        layout.nodes.iter().map(|node| format!("{}=127.0.0.1:{}", node.name, node.peer_port)).collect();
    let mut command = Command::new(program);
    command
        .args(["serve", "--stop-when-stdin-ends", "--name", &node.name])
        .arg("--data-dir")
        .arg(workspace.dir.join(&node.name))
        .arg("--initial-cluster")
        .arg(cluster.join(","))
        .args(["--cluster-token", &layout.token])
        .args(["--client-listen", &format!("127.0.0.1:{}", node.client_port)])
        .args(["--admin-listen", &format!("127.0.0.1:{}", node.admin_port)])
        .args(["--zookeeper-listen", &node.zookeeper()])
        .args(["--native-listen", &node.native()])
        .stdin(Stdio::piped())
        .stdout(log_too)
        .stderr(log)
        // A group of its own: Ctrl-C in the terminal reaches us alone, and we stop the nodes in order.
        .process_group(0)
        .kill_on_drop(true);
    // The nodes are configured by the flags above alone.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDELOCK_") {
            command.env_remove(name);
        }
    }
    command.spawn().map_err(|error| failed("start", &error))
}

async fn until_ready(layout: &Layout) -> bool {
    let deadline = tokio::time::Instant::now() + READY_PATIENCE;
    for node in &layout.nodes {
        let Ok(url) = AdminUrl::parse(&format!("127.0.0.1:{}", node.admin_port)) else { return false };
        while !admin_client::is_ready(&url).await {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }
    true
}

fn greet(workspace: &Workspace, layout: &Layout) {
    let urls = |port: fn(&NodeLayout) -> u16| -> String {
        layout.nodes.iter().map(|node| format!("http://127.0.0.1:{}", port(node))).collect::<Vec<_>>().join(",")
    };
    let (clients, admins) = (urls(|node| node.client_port), urls(|node| node.admin_port));
    let natives: Vec<String> = layout.nodes.iter().map(|node| format!("http://{}", node.native())).collect();
    let natives = natives.join(",");
    // A directory of an older version has no ports for it.
    let lock_line = match layout.nodes.iter().all(|node| node.native_port.is_some()) {
        true => format!("\n  {} lock nightly --native {natives} -- echo one at a time", program()),
        false => String::new(),
    };
    let zookeepers = layout.nodes.iter().map(NodeLayout::zookeeper).collect::<Vec<_>>().join(",");
    let program = program();
    let kept = if workspace.temporary { "removed at the end" } else { "kept" };
    let count = layout.nodes.len();
    say(&format!(
        "Tidelock {version}, {count} nodes on this machine, ready to serve client requests.

  etcd clients  {clients}
  ZooKeeper     {zookeepers}
  native API    {natives}
  admin         {admins}
  data, logs    {dir} ({kept})

Try, in another terminal:
  etcdctl --endpoints={clients} put greeting hello
  {program} get greeting --endpoints {clients}
  zkCli.sh -server {zookeepers} create /greeting hello{lock_line}
  {program} status --admin {admins}

Ctrl-C stops them all.
",
        version = env!("CARGO_PKG_VERSION"),
        dir = workspace.dir.display(),
    ));
}

impl Workspace {
    fn open(dir: Option<&Path>) -> Result<Workspace, Failure> {
        let workspace = match dir {
            Some(dir) => Workspace { dir: dir.to_owned(), temporary: false },
            None => {
                let unique = format!("tidelock-dev-{}-{:08x}", std::process::id(), rand::random::<u32>());
                Workspace { dir: std::env::temp_dir().join(unique), temporary: true }
            }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(workspace.dir.join("logs")).map_err(|error| {
            Failure::new(format!("cannot create {}: {error}", workspace.dir.display()))
                .hint("name a directory you may write to with --dir")
        })?;
        Ok(workspace)
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    /// The ports of last time if the directory has been used before, else free ones.
    fn layout(&self, nodes: usize) -> Result<Layout, Failure> {
        let path = self.dir.join(LAYOUT_FILE);
        if let Ok(text) = fs::read_to_string(&path) {
            let layout: Layout = serde_json::from_str(&text).map_err(|error| {
                Failure::new(format!("{} cannot be understood: {error}", path.display())).hint("use another --dir")
            })?;
            if layout.nodes.len() != nodes {
                let found = layout.nodes.len();
                return Err(Failure::usage(format!("{} holds a cluster of {found} nodes", self.dir.display()))
                    .hint(format!("run `tidelock dev --nodes {found}`, or use another --dir")));
            }
            return Ok(layout);
        }
        let layout =
            Layout::with_free_ports(nodes).map_err(|error| Failure::new(format!("cannot find free ports: {error}")))?;
        let text = serde_json::to_string_pretty(&layout)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
        fs::write(&path, text).map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
        Ok(layout)
    }
}

impl NodeLayout {
    /// Where it serves ZooKeeper clients.
    fn zookeeper(&self) -> String {
        self.zookeeper_port.map_or_else(|| "none".to_owned(), |port| format!("127.0.0.1:{port}"))
    }

    /// Where it serves the native API.
    fn native(&self) -> String {
        self.native_port.map_or_else(|| "none".to_owned(), |port| format!("127.0.0.1:{port}"))
    }
}

impl Layout {
    fn with_free_ports(nodes: usize) -> std::io::Result<Layout> {
        let ports = free_ports(nodes * PORTS_PER_NODE)?;
        let node = |(ports, letter): (&[u16], char)| NodeLayout {
            name: letter.to_string(),
            client_port: ports[0],
            peer_port: ports[1],
            admin_port: ports[2],
            zookeeper_port: Some(ports[3]),
            native_port: Some(ports[4]),
        };
        let nodes = ports.chunks_exact(PORTS_PER_NODE).zip('a'..='z').map(node).collect();
        Ok(Layout { token: format!("dev-{:08x}", rand::random::<u32>()), nodes })
    }
}
