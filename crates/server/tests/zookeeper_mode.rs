//! In a ZooKeeper's place: started with its configuration file, and asked in the way its operators ask.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use as_etcd::{Member, output};
use support::{free_ports, tidelock, wait_for};

/// The answer to a four-letter word; empty if nobody answers.
fn ask(port: u16, word: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        if stream.write_all(word.as_bytes()).is_ok() {
            let _ = stream.read_to_string(&mut answer);
        }
    }
    answer
}

/// What `zkServer.sh status` looks for.
fn mode(port: u16) -> Option<String> {
    let answer = ask(port, "srvr");
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}

/// Writes a configuration file with its data directory beside it.
fn zoo_cfg(dir: &Path, name: &str, myid: Option<usize>, text: &str) -> PathBuf {
    let data = dir.join(name);
    std::fs::create_dir_all(&data).unwrap();
    if let Some(myid) = myid {
        std::fs::write(data.join("myid"), format!("{myid}\n")).unwrap();
    }
    let path = dir.join(format!("{name}.cfg"));
    std::fs::write(&path, format!("# of {name}\ntickTime=2000\ndataDir={}\n{text}", data.display())).unwrap();
    path
}

fn started(dir: &Path, name: &str, arguments: &[&str], zoo_cfg: &Path) -> Member {
    let mut command = tidelock();
    command.args(arguments).arg("--zoo-cfg").arg(zoo_cfg).current_dir(dir).stdin(Stdio::null());
    Member::start(command, dir, name)
}

/// The smallest file there is must give a server that scripts written for ZooKeeper recognise, and that is still
/// there after a restart: its data must be found again although its peer port is another one.
#[test]
fn a_single_node_answers_as_zookeeper_does_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_ports(1)[0];
    let text =
        format!("clientPort={port}\nclientPortAddress=127.0.0.1\ninitLimit=10\n4lw.commands.whitelist=srvr,ruok\n");
    let file = zoo_cfg(dir.path(), "data", None, &text);
    std::fs::create_dir(dir.path().join("data/version-2")).unwrap();
    for round in 0..2 {
        let mut node = started(dir.path(), &format!("node{round}"), &[], &file);
        node.wait_until_ready();
        let answer = ask(port, "srvr");
        assert!(answer.starts_with("Zookeeper version: "), "{answer}");
        assert_eq!(mode(port).as_deref(), Some("standalone"), "{answer}");
        assert_eq!(ask(port, "ruok"), "imok");
        assert!(ask(port, "mntr").contains("not in the whitelist"));
        let log = node.log();
        assert!(log.contains("initLimit has no effect: "), "{log}");
        assert!(log.contains("holds the data of a real ZooKeeper, which is not imported"), "{log}");
        assert!(log.contains(&format!("zookeeper://127.0.0.1:{port}")), "{log}");
        assert_eq!(node.terminate(), None, "it stops by itself, with exit code 0");
    }
    assert!(dir.path().join("data/tidelock").is_dir());
    assert!(
        std::fs::read_dir(dir.path().join("data/version-2")).unwrap().next().is_none(),
        "ZooKeeper's files are its own"
    );
}

/// The whole point: the files of an ensemble of three work with the program exchanged. When the leader is killed
/// another one takes its place, and the old one comes back as a follower.
#[test]
fn three_servers_form_a_cluster_and_replace_their_leader() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(9);
    let servers: String = (0..3)
        .map(|at| format!("server.{}=localhost:{}:{}:participant\n", at + 1, ports[at * 3 + 1], ports[at * 3 + 2]))
        .collect();
    let files: Vec<PathBuf> = (0..3)
        .map(|at| {
            let text = format!(
                "clientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n4lw.commands.whitelist=*\ninitLimit=4\n\
                 reconfigEnabled=true\nsyncLimit=2\n{servers}peerType=participant\n",
                ports[at * 3]
            );
            zoo_cfg(dir.path(), &format!("server{at}"), Some(at + 1), &text)
        })
        .collect();
    let mut nodes: Vec<Member> =
        files.iter().enumerate().map(|(at, file)| started(dir.path(), &format!("node{at}"), &[], file)).collect();
    nodes.iter_mut().for_each(Member::wait_until_ready);
    let modes = || -> Vec<String> { (0..3).map(|at| mode(ports[at * 3]).unwrap_or_default()).collect() };
    let leader_of = |modes: &[String]| modes.iter().position(|mode| mode == "leader");
    let leader = wait_for("one leader and two followers", || {
        let modes = modes();
        leader_of(&modes).filter(|_| modes.iter().filter(|mode| *mode == "follower").count() == 2)
    });
    nodes[leader].kill();
    wait_for("another leader", || leader_of(&modes()).filter(|next| *next != leader));
    nodes[leader] = started(dir.path(), "again", &[], &files[leader]);
    nodes[leader].wait_until_ready();
    wait_for("the old leader to follow", || (modes()[leader] == "follower").then_some(()));
}

/// Flags beat the file, and open what ZooKeeper does not have.
#[test]
fn flags_beside_the_file_open_further_doors() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(3);
    let file = zoo_cfg(dir.path(), "data", None, "clientPort=1\nclientPortAddress=127.0.0.1\n");
    let address = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let arguments =
        ["serve", "--zookeeper-listen", &address(0), "--client-listen", &address(1), "--admin-listen", &address(2)];
    let mut node = started(dir.path(), "node", &arguments, &file);
    node.wait_until_ready();
    assert_eq!(mode(ports[0]).as_deref(), Some("standalone"));
    let health = |port: u16| support::http(port, "GET", "/health", "").map(|(status, _)| status);
    assert_eq!((health(ports[1]), health(ports[2])), (Some(200), Some(200)));
}

/// A server that cannot be what its file says must not start, must say why, and must leave nothing behind.
#[test]
fn a_file_that_cannot_be_honoured_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = zoo_cfg(dir.path(), "data", None, "clientPort=1\nserver.1=h:1:2\nserver.2=h:3:4\nxyzzy=1\n");
    let (refused, text) = output(tidelock().arg("--zoo-cfg").arg(&file));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text.contains("myid file is missing") && text.contains("xyzzy (line 7): unknown key"), "{text}");
    assert!(!dir.path().join("data/tidelock").exists());
    let (checked, text) = output(tidelock().args(["serve", "--check", "--zoo-cfg"]).arg(dir.path().join("none.cfg")));
    assert_eq!(checked.status.code(), Some(2), "{text}");
}

/// ZooKeeper clients are served beside etcd's by any node that is told to, and by no other.
#[test]
fn a_node_serves_zookeeper_clients_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(4);
    let listen: Vec<String> = ["client-listen", "peer-listen", "admin-listen", "zookeeper-listen"]
        .iter()
        .zip(&ports)
        .map(|(name, port)| format!("--{name}=127.0.0.1:{port}"))
        .collect();
    let mut command = tidelock();
    command.arg("serve").args(&listen).current_dir(dir.path()).stdin(Stdio::null());
    let mut node = Member::start(command, dir.path(), "node");
    node.wait_until_ready();
    assert_eq!(mode(ports[3]).as_deref(), Some("standalone"));
    drop(node);
    let mut command = tidelock();
    command.arg("serve").args(&listen[..3]).current_dir(dir.path()).stdin(Stdio::null());
    let mut node = Member::start(command, dir.path(), "without");
    node.wait_until_ready();
    assert_eq!(mode(ports[3]), None);
}
