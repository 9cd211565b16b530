//! A disk that fails to make writes durable, once, when the test says so (H17).
//!
//! The node is the real binary; only its `fdatasync` is another one, see `failing_fdatasync.rs`. That
//! works for programs that find the C library when they start, hence only for GNU/Linux.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::Process;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/failing_fdatasync.rs");

/// The shared library, and the files that command it.
pub struct FailingSync {
    dir: TempDir,
}

impl FailingSync {
    /// Compiles the library.
    pub fn build() -> FailingSync {
        let failing = FailingSync { dir: tempfile::tempdir().unwrap() };
        let output = Command::new(rustc())
            .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-D", "warnings"])
            .arg("-o")
            .arg(failing.library())
            .arg(SOURCE)
            .output()
            .unwrap();
        assert!(output.status.success(), "compiling {SOURCE}: {}", String::from_utf8_lossy(&output.stderr));
        failing
    }

    /// Lets a node that does not run use it from its next start on.
    pub fn install(&self, node: &mut Process) {
        assert!(!node.is_running(), "stop the node first");
        node.environment = vec![("LD_PRELOAD", self.library()), ("FDATASYNC_FAILS_ONCE_IF", self.trigger(node))];
    }

    /// The node's next start is with its real disk.
    pub fn uninstall(&self, node: &mut Process) {
        assert!(!node.is_running(), "stop the node first");
        node.environment.clear();
    }

    /// The next sync of this node fails.
    pub fn fail_next(&self, node: &Process) {
        File::create(self.trigger(node)).unwrap();
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("libfailing_fdatasync.so")
    }

    fn trigger(&self, node: &Process) -> PathBuf {
        self.dir.path().join(format!("fail-{}", node.name))
    }
}

/// The compiler that belongs to the `cargo` that runs this test.
fn rustc() -> OsString {
    if let Some(chosen) = std::env::var_os("RUSTC") {
        return chosen;
    }
    let beside_cargo = Path::new(env!("CARGO")).with_file_name("rustc");
    if beside_cargo.exists() { beside_cargo.into() } else { "rustc".into() }
}
