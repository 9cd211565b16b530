//! How each system is told to run a member: same shape, same durability, each system's own defaults for
//! everything else.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kind, System};
use crate::Result;

/// etcd refuses writes once its file reaches 2 GiB by default; a benchmark must not end there.
const ETCD_QUOTA_BYTES: u64 = 8 << 30;
/// Memory for ZooKeeper's data and what it throws away; its own script gives it 1 GB, too little for a million keys.
const ZOOKEEPER_HEAP: &str = "-Xmx4g";
/// Addresses that a member needs.
pub(super) const ADDRESSES_EACH: usize = 6;

/// Where one member lives.
#[derive(Clone, Debug)]
pub(super) struct Place {
    number: usize,
    name: String,
    data: PathBuf,
    /// For clients of etcd's protocol; of Redis', if it is one.
    pub(super) client: SocketAddr,
    peer: SocketAddr,
    pub(super) admin: SocketAddr,
    /// For clients of ZooKeeper's protocol.
    pub(super) zookeeper: SocketAddr,
    election: SocketAddr,
    /// For clients of the native API.
    pub(super) native: SocketAddr,
}

impl Place {
    /// Places for all members.
    pub(super) fn all(nodes: usize, data: &Path, addresses: &[SocketAddr]) -> Vec<Place> {
        let place = |(at, addresses): (usize, &[SocketAddr])| {
            let name = format!("n{}", at + 1);
            let data = data.join(&name);
            let [client, peer, admin, zookeeper, election, native] = *addresses else {
                unreachable!("chunks are exact")
            };
            Place { number: at + 1, name, data, client, peer, admin, zookeeper, election, native }
        };
        addresses.chunks_exact(ADDRESSES_EACH).take(nodes).enumerate().map(place).collect()
    }

    /// What the member says goes there.
    pub(super) fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }
}

/// The command that runs the member at `place` of the cluster at `all`.
pub(super) fn of(system: &System, place: &Place, all: &[Place]) -> Result<Command> {
    let mut command = Command::new(&system.binary);
    match system.kind {
        Kind::Tidelock => tidelock(&mut command, place, all),
        Kind::Etcd => etcd(&mut command, place, all),
        Kind::Zookeeper => {
            command = Command::new("java");
            zookeeper(&mut command, &system.binary, place, all)?;
        }
        Kind::Redis => redis(&mut command, place)?,
    }
    command.args(&system.extra);
    Ok(command)
}

fn tidelock(command: &mut Command, place: &Place, all: &[Place]) {
    let founders: Vec<String> = all.iter().map(|place| format!("{}={}", place.name, place.peer)).collect();
    command.arg("serve").args(["--name", &place.name]).arg("--data-dir").arg(&place.data);
    command.args(["--client-listen", &place.client.to_string()]);
    command.args(["--peer-listen", &place.peer.to_string()]);
    command.args(["--admin-listen", &place.admin.to_string()]);
    command.args(["--zookeeper-listen", &place.zookeeper.to_string()]);
    command.args(["--native-listen", &place.native.to_string()]);
    command.args(["--initial-cluster", &founders.join(","), "--log-level", "warn"]);
}

fn etcd(command: &mut Command, place: &Place, all: &[Place]) {
    let url = |address: SocketAddr| format!("http://{address}");
    let founders: Vec<String> = all.iter().map(|place| format!("{}={}", place.name, url(place.peer))).collect();
    command.args(["--name", &place.name]).arg("--data-dir").arg(&place.data);
    command.args(["--listen-client-urls", &url(place.client), "--advertise-client-urls", &url(place.client)]);
    command.args(["--listen-peer-urls", &url(place.peer), "--initial-advertise-peer-urls", &url(place.peer)]);
    command.args(["--initial-cluster", &founders.join(","), "--initial-cluster-state", "new"]);
    command.args(["--quota-backend-bytes", &ETCD_QUOTA_BYTES.to_string()]);
    command.args(["--logger", "zap", "--log-level", "error"]);
}

/// Durable as the others are: every write is in the file, and synced, before it is answered.
fn redis(command: &mut Command, place: &Place) -> Result<()> {
    std::fs::create_dir_all(&place.data).map_err(|error| format!("{}: {error}", place.data.display()))?;
    command.args(["--port", &place.client.port().to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
    command.arg("--dir").arg(&place.data);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"]);
    Ok(())
}

/// The settings of the sample that comes with it, and no limit on connections from one address. `jars` is where it is.
fn zookeeper(command: &mut Command, jars: &Path, place: &Place, all: &[Place]) -> Result<()> {
    let member =
        |place: &Place| format!("server.{}=127.0.0.1:{}:{}\n", place.number, place.peer.port(), place.election.port());
    // A single one is not an ensemble.
    let members: String = if all.len() > 1 { all.iter().map(member).collect() } else { String::new() };
    let configuration = format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
         maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{members}",
        place.data.display(),
        place.zookeeper.port()
    );
    let log = "<configuration>\n  <appender name=\"console\" class=\"ch.qos.logback.core.ConsoleAppender\">\n    \
               <encoder><pattern>%level %logger{0} %msg%n</pattern></encoder>\n  </appender>\n  \
               <root level=\"ERROR\"><appender-ref ref=\"console\"/></root>\n</configuration>\n";
    let (file, log_file) = (place.data.with_extension("cfg"), place.data.with_extension("logback.xml"));
    std::fs::create_dir_all(&place.data)
        .and_then(|()| std::fs::write(place.data.join("myid"), place.number.to_string()))
        .and_then(|()| std::fs::write(&file, configuration))
        .and_then(|()| std::fs::write(&log_file, log))
        .map_err(|error| format!("{}: {error}", place.data.display()))?;
    command.args([ZOOKEEPER_HEAP, "-Djava.awt.headless=true", "-XX:+ExitOnOutOfMemoryError"]);
    command.arg(format!("-Dlogback.configurationFile={}", log_file.display()));
    command.arg("-cp").arg(jars.join("*")).arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members that were given different lists, or a shared port, form no cluster.
    #[test]
    fn every_member_gets_the_same_list_and_its_own_addresses() {
        let addresses: Vec<SocketAddr> = (1..=18).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let places = Place::all(3, Path::new("data"), &addresses);
        for (kind, list) in [
            (Kind::Tidelock, "n1=127.0.0.1:2,n2=127.0.0.1:8,n3=127.0.0.1:14"),
            (Kind::Etcd, "n1=http://127.0.0.1:2,n2=http://127.0.0.1:8,n3=http://127.0.0.1:14"),
        ] {
            let system = System { kind, binary: "server".into(), name: String::new(), extra: Vec::new() };
            for place in &places {
                let command = of(&system, place, &places).unwrap();
                let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
                assert!(arguments.contains(&list.to_string()), "{arguments:?}");
                assert!(arguments.iter().any(|a| a.ends_with(&place.client.to_string())), "{arguments:?}");
            }
        }
    }

    /// The same for ZooKeeper, which reads files.
    #[test]
    fn every_zookeeper_gets_a_file_of_its_own() {
        let data = tempfile::tempdir().unwrap();
        let addresses: Vec<SocketAddr> = (1..=18).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let places = Place::all(3, data.path(), &addresses);
        let system = System { kind: Kind::Zookeeper, binary: "jars".into(), name: String::new(), extra: Vec::new() };
        of(&system, &places[1], &places).unwrap();
        let text = std::fs::read_to_string(data.path().join("n2.cfg")).unwrap();
        assert!(text.contains("clientPort=10\n") && text.contains("server.3=127.0.0.1:14:17\n"), "{text}");
        assert_eq!(std::fs::read_to_string(data.path().join("n2/myid")).unwrap(), "2");
    }
}
