//! A real etcd on loopback, its command line tools, and what they print.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A machine busy with other tests takes seconds to start a server.
const START_DEADLINE: Duration = Duration::from_secs(60);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Where a program is, if it is on the PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// The tool that restores and judges files: etcdctl up to 3.4, etcdutl since.
pub(crate) fn file_tool() -> &'static str {
    if find("etcdutl").is_some() { "etcdutl" } else { "etcdctl" }
}

/// A key as etcdctl prints it: base64 of key and value, and the numbers.
pub(crate) type PrintedKey = (String, String, [i64; 4]);

/// A server, stopped when dropped.
pub(crate) struct Etcd {
    child: Child,
    endpoint: String,
    /// `name:password` once auth is on.
    pub(crate) user: Option<&'static str>,
}

impl Etcd {
    /// Starts a member on a directory, restored from `snapshot` if there is one.
    pub(crate) fn start(data: &Path, snapshot: Option<&Path>, user: Option<&'static str>) -> Etcd {
        let (endpoint, peer) = (free_url(), free_url());
        let cluster = format!("member={peer}");
        let data_dir = data.display().to_string();
        let place = ["--name", "member", "--data-dir", &data_dir, "--initial-cluster", &cluster];
        if let Some(snapshot) = snapshot {
            let snapshot = snapshot.display().to_string();
            let order = ["snapshot", "restore", &snapshot, "--initial-advertise-peer-urls", &peer];
            run(file_tool(), &[&order[..], &place].concat(), "");
        }
        let urls = ["--listen-client-urls", "--advertise-client-urls"].map(|flag| format!("{flag}={endpoint}"));
        let peers = ["--listen-peer-urls", "--initial-advertise-peer-urls"].map(|flag| format!("{flag}={peer}"));
        let child = Command::new("etcd")
            .args(place)
            .args(urls)
            .args(peers)
            .args(["--logger", "zap", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let etcd = Etcd { child, endpoint, user };
        let started = Instant::now();
        while etcd.command(&["endpoint", "health"]).output().is_ok_and(|output| !output.status.success()) {
            assert!(started.elapsed() < START_DEADLINE, "etcd does not start");
            thread::sleep(TRY_AGAIN_AFTER);
        }
        etcd
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(arguments).args(["--endpoints", &self.endpoint]);
        command.args(self.user.map(|user| format!("--user={user}")));
        command
    }

    /// Runs etcdctl and gives what it prints.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        self.ctl_with(arguments, "")
    }

    /// Whether etcdctl fails.
    pub(crate) fn refuses(&self, arguments: &[&str]) -> bool {
        !self.command(arguments).output().unwrap().status.success()
    }

    /// The same as [`Etcd::ctl`] with something to read.
    pub(crate) fn ctl_with(&self, arguments: &[&str], input: &str) -> String {
        output_of(self.command(arguments), input)
    }

    /// Where clients reach it.
    // Not every test that shares this file asks.
    #[allow(dead_code)]
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// All keys as of a revision.
    pub(crate) fn keys(&self, revision: i64) -> Vec<PrintedKey> {
        let revision = format!("--rev={revision}");
        let answer = parse(&self.ctl(&["get", "", "--prefix", "-w", "json", &revision]));
        let keys = answer["kvs"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        keys.iter()
            .map(|key| {
                let numbers = ["create_revision", "mod_revision", "version", "lease"].map(|name| number(&key[name]));
                (text(&key["key"]), text(&key["value"]), numbers)
            })
            .collect()
    }

    /// The store's revision.
    pub(crate) fn revision(&self) -> i64 {
        number(&parse(&self.ctl(&["get", "no such key", "-w", "json"]))["header"]["revision"])
    }

    /// Ids in hexadecimal, sorted.
    pub(crate) fn leases(&self) -> Vec<String> {
        let list = self.ctl(&["lease", "list"]);
        let mut ids: Vec<String> = list.lines().skip(1).map(str::to_owned).collect();
        ids.sort();
        ids
    }

    /// Stops the server as an operator would and waits until its files are at rest.
    pub(crate) fn stop(mut self) {
        let id = self.child.id().to_string();
        run("kill", &[&id], "");
        self.child.wait().unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What etcd's own tool says about a file: hash, revision, number of keys, size.
pub(crate) fn status(file: &Path) -> [i64; 4] {
    let printed = run(file_tool(), &["snapshot", "status", &file.display().to_string(), "-w", "json"], "");
    let status = parse(&printed);
    ["hash", "revision", "totalKey", "totalSize"].map(|name| number(&status[name]))
}

/// Runs bbolt's own check if the tool is there.
pub(crate) fn check_structure(file: &Path) {
    match find("bbolt") {
        Some(_) => assert_eq!(run("bbolt", &["check", &file.display().to_string()], "").trim(), "OK"),
        None => eprintln!("bbolt is not on the PATH: its check is skipped"),
    }
}

/// Runs a program to its end; it must succeed.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").args(arguments);
    output_of(command, input)
}

fn output_of(mut command: Command, input: &str) -> String {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool runs");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn parse(printed: &str) -> Value {
    serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Zero is not printed, and newer tools print large numbers as texts.
fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn free_url() -> String {
    format!("http://127.0.0.1:{}", tidelock_free_ports::free_ports(1).unwrap()[0])
}
