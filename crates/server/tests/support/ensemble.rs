//! Three servers, each with a zoo.cfg, in the place of a ZooKeeper ensemble.

// Every test binary uses another part of this file.
#![allow(dead_code, unreachable_pub)]
// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crate::as_etcd::Member;
use crate::support::{free_ports, tidelock, wait_for};

/// Whoever shows `super:test` may do everything.
const SUPER_DIGEST: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

/// Servers, numbered from 1; those beyond the first three are not started with the others.
pub struct Ensemble {
    dir: tempfile::TempDir,
    /// Client, peer and election port of each.
    ports: Vec<[u16; 3]>,
    lines: String,
    /// Numbers of those that every file lists as observers.
    observers: Vec<usize>,
    nodes: Vec<Option<Member>>,
}

impl Ensemble {
    /// Starts three servers and keeps ports for `more`. `lines` are added to every zoo.cfg.
    pub fn start(more: usize, lines: &str) -> Ensemble {
        let mut ensemble = Ensemble::prepare(more, lines);
        (1..=3).for_each(|number| ensemble.start_one(number, 3, &[]));
        (1..=3).for_each(|number| ensemble.wait_until_ready(number));
        ensemble
    }

    /// Starts three servers whose files list a fourth, an observer.
    pub fn start_observed() -> Ensemble {
        let mut ensemble = Ensemble::prepare(1, "");
        ensemble.observers.push(4);
        (1..=3).for_each(|number| ensemble.start_one(number, 4, &[]));
        (1..=3).for_each(|number| ensemble.wait_until_ready(number));
        ensemble
    }

    fn prepare(more: usize, lines: &str) -> Ensemble {
        let ports = free_ports((3 + more) * 3).chunks(3).map(|chunk| [chunk[0], chunk[1], chunk[2]]).collect();
        let dir = tempfile::tempdir().unwrap();
        let nodes = (0..3 + more).map(|_| None).collect();
        Ensemble { dir, ports, lines: lines.to_owned(), observers: Vec::new(), nodes }
    }

    /// `host:peerPort:electionPort:part;clientAddress`.
    pub fn line(&self, number: usize, part: &str) -> String {
        let [client, peer, election] = self.ports[number - 1];
        format!("server.{number}=127.0.0.1:{peer}:{election}:{part};127.0.0.1:{client}")
    }

    pub fn port(&self, number: usize) -> u16 {
        self.ports[number - 1][0]
    }

    /// Starts a server whose file lists the first `listed` of them.
    pub fn start_one(&mut self, number: usize, listed: usize, arguments: &[&str]) {
        let file = self.file(number, listed);
        let mut command = tidelock();
        command.arg("serve").args(arguments).arg("--zoo-cfg").arg(file);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        self.nodes[number - 1] = Some(Member::start(command, self.dir.path(), &format!("node{number}")));
    }

    pub fn wait_until_ready(&mut self, number: usize) {
        let node = self.nodes[number - 1].as_mut().unwrap();
        // The log of an earlier run may say so, too; this asks.
        node.wait_until_ready();
        wait_for("the server to answer", || mode(self.ports[number - 1][0]));
    }

    pub fn wait_until_ended(&mut self, number: usize) {
        self.nodes[number - 1].as_mut().unwrap().wait_until_ended();
    }

    pub fn kill(&mut self, number: usize) {
        self.nodes[number - 1].as_mut().unwrap().kill();
    }

    /// The one that leads.
    pub fn leader(&self) -> usize {
        let leads = |number: &usize| mode(self.port(*number)).as_deref() == Some("leader");
        wait_for("a leader", || (1..=self.nodes.len()).find(leads))
    }

    fn file(&self, number: usize, listed: usize) -> PathBuf {
        let data = self.dir.path().join(format!("data{number}"));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("myid"), number.to_string()).unwrap();
        let part = |number| if self.observers.contains(&number) { "observer" } else { "participant" };
        let servers: String = (1..=listed).map(|number| self.line(number, part(number)) + "\n").collect();
        let path = self.dir.path().join(format!("zoo{number}.cfg"));
        let (data, lines) = (data.display(), &self.lines);
        let text = format!(
            "tickTime=2000\ndataDir={data}\n4lw.commands.whitelist=*\nsuperDigest={SUPER_DIGEST}\n{lines}\n{servers}"
        );
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// The answer to a four-letter word; empty if nobody answers.
pub fn ask(port: u16, word: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        if stream.write_all(word.as_bytes()).is_ok() {
            let _ = stream.read_to_string(&mut answer);
        }
    }
    answer
}

/// Which part a server says it has.
pub fn mode(port: u16) -> Option<String> {
    ask(port, "srvr").lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}
