//! How each system is told to run a member: same shape, same durability, each system's own defaults for
//! everything else.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kind, System};

/// etcd refuses writes once its file reaches 2 GiB by default; a benchmark must not end there.
const ETCD_QUOTA_BYTES: u64 = 8 << 30;

/// Where one member lives.
#[derive(Clone, Debug)]
pub(super) struct Place {
    name: String,
    data: PathBuf,
    pub(super) client: SocketAddr,
    peer: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Place {
    /// Places for all members; three addresses for each.
    pub(super) fn all(nodes: usize, data: &Path, addresses: &[SocketAddr]) -> Vec<Place> {
        let place = |(at, addresses): (usize, &[SocketAddr])| {
            let name = format!("n{}", at + 1);
            let data = data.join(&name);
            Place { name, data, client: addresses[0], peer: addresses[1], admin: addresses[2] }
        };
        addresses.chunks_exact(3).take(nodes).enumerate().map(place).collect()
    }

    /// What the member says goes there.
    pub(super) fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }
}

/// The command that runs the member at `place` of the cluster at `all`.
pub(super) fn of(system: &System, place: &Place, all: &[Place]) -> Command {
    let mut command = Command::new(&system.binary);
    match system.kind {
        Kind::Tidelock => tidelock(&mut command, place, all),
        Kind::Etcd => etcd(&mut command, place, all),
    }
    command.args(&system.extra);
    command
}

fn tidelock(command: &mut Command, place: &Place, all: &[Place]) {
    let founders: Vec<String> = all.iter().map(|place| format!("{}={}", place.name, place.peer)).collect();
    command.arg("serve").args(["--name", &place.name]).arg("--data-dir").arg(&place.data);
    command.args(["--client-listen", &place.client.to_string()]);
    command.args(["--peer-listen", &place.peer.to_string()]);
    command.args(["--admin-listen", &place.admin.to_string()]);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Members that were given different lists, or a shared port, form no cluster.
    #[test]
    fn every_member_gets_the_same_list_and_its_own_addresses() {
        let addresses: Vec<SocketAddr> = (1..=9).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let places = Place::all(3, Path::new("data"), &addresses);
        for (kind, list) in [
            (Kind::Tidelock, "n1=127.0.0.1:2,n2=127.0.0.1:5,n3=127.0.0.1:8"),
            (Kind::Etcd, "n1=http://127.0.0.1:2,n2=http://127.0.0.1:5,n3=http://127.0.0.1:8"),
        ] {
            let system = System { kind, binary: "server".into(), name: String::new(), extra: Vec::new() };
            for place in &places {
                let command = of(&system, place, &places);
                let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
                assert!(arguments.contains(&list.to_string()), "{arguments:?}");
                assert!(arguments.iter().any(|a| a.ends_with(&place.client.to_string())), "{arguments:?}");
            }
        }
    }
}
