//! Where things are in the checkout, and how the server binary gets built.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a directory of the checkout").to_path_buf()
}

/// Where builds and results go. On the disk of the checkout, so that a benchmark's fsync is a real one.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The release binary of the server: the one given, or a fresh build. Building is a matter of a second
/// when nothing changed, and figures of yesterday's binary are worse than none.
pub(crate) fn server_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return existing(given);
    }
    eprintln!("building the server (release)");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--package", "tidelock", "--bin", "tidelock"])
        .current_dir(root())
        .status()
        .map_err(|error| format!("running cargo: {error}"))?;
    if !status.success() {
        return Err("the server does not build; give a binary with --tidelock-bin, or fix the build".to_string());
    }
    existing(&target().join("release/tidelock"))
}

/// The etcd to compare with: the one given, or the first on PATH.
pub(crate) fn etcd_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return existing(given);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("etcd")).find(|file| file.is_file());
    found.ok_or_else(|| "there is no etcd on PATH; install one or give it with --etcd-bin".to_string())
}

/// The Redis: the binary given, or the one on `PATH`.
pub(crate) fn redis_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return existing(given);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join("redis-server"));
    let missing = "there is no redis-server on PATH; install your distribution's package redis-server \
                   (Debian: apt-get install redis-server), or give a binary with --redis-bin";
    files.find(|file| file.is_file()).ok_or_else(|| missing.to_string())
}

fn existing(file: &Path) -> Result<PathBuf> {
    file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))
}

/// The commit that is checked out, with a mark if the tree has changes.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    let changed = git(&["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty());
    if changed { format!("{head}+changes") } else { head }
}
