//! A file system of its own for one node, small enough to be filled in a second.
//!
//! It is mounted in a mount namespace that nobody else sees, held by a process that does nothing else:
//! when the test ends, so does that process, and the mount is gone with it. The node is started inside
//! the namespace; the test reaches the files through `/proc`. All of this needs root.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Cluster, Process, free_ports, wait_for};

const MIB: usize = 1 << 20;

/// A mounted file system.
pub struct SmallDisk {
    holder: Child,
    mount_point: PathBuf,
}

impl SmallDisk {
    /// Mounts one of `mib` MiB at `mount_point`, an existing directory; or says why that is impossible.
    pub fn mount(mount_point: &Path, mib: usize) -> Result<SmallDisk, String> {
        let script = format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && touch \"$0/mounted\" && exec sleep 600");
        let spawned = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(mount_point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let holder = spawned.map_err(|error| format!("cannot run unshare: {error}"))?;
        let mut disk = SmallDisk { holder, mount_point: mount_point.to_owned() };
        let mounted = wait_for("the mount", || {
            if disk.path("mounted").exists() {
                return Some(true);
            }
            disk.holder.try_wait().unwrap().map(|_| false)
        });
        if mounted { Ok(disk) } else { Err("mounting a tmpfs in a namespace of its own is not permitted here".into()) }
    }

    /// A file on it, as this process can reach it.
    pub fn path(&self, name: &str) -> PathBuf {
        let inside = self.mount_point.strip_prefix("/").expect("temporary directories have absolute paths");
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(inside).join(name)
    }

    /// Takes `mib` MiB of it away.
    pub fn put_ballast(&self, mib: usize) {
        let mut file = File::create(self.path("ballast")).unwrap();
        (0..mib).for_each(|_| file.write_all(&[1; MIB]).unwrap());
    }

    /// Takes away all that is left.
    pub fn fill_with_ballast(&self) {
        let mut file = File::create(self.path("more-ballast")).unwrap();
        while file.write_all(&[1; 64 << 10]).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
    }

    /// Gives back what was taken away.
    pub fn drop_ballast(&self) {
        for name in ["ballast", "more-ballast"] {
            let _ = std::fs::remove_file(self.path(name));
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Cluster {
    /// A cluster of one, not started, with its data on a small disk where `ballast_mib` of `mib` MiB are
    /// taken; or why that is impossible here.
    pub fn on_small_disk(mib: usize, ballast_mib: usize) -> Result<(Cluster, SmallDisk), String> {
        let dir = tempfile::tempdir().unwrap();
        let mut node = Process::new("a", dir.path(), &free_ports(3), Vec::new());
        std::fs::create_dir(node.data_dir()).unwrap();
        let disk = SmallDisk::mount(&node.data_dir(), mib)?;
        disk.put_ballast(ballast_mib);
        let holder = disk.holder.id().to_string();
        node.launcher = ["nsenter", "--target", &holder, "--mount"].map(str::to_owned).to_vec();
        node.arguments = vec!["--initial-cluster".to_owned(), format!("a=127.0.0.1:{}", node.peer_port)];
        Ok((Cluster { nodes: vec![node], dir }, disk))
    }
}
