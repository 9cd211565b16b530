//! An `fdatasync` that fails once on command, to be loaded into a node in front of the C library's.
//!
//! If the file named by [`COMMAND`] exists, the next call removes it and fails with `EIO`; every other
//! call does its work. That a second try would succeed is the point: a system tells of lost writes once,
//! and a node that tries again is told that all is well (H17).
//!
//! This is no module of any crate. `failing_sync.rs`, beside it, has `rustc` make a shared library of it,
//! because standing in for a C function takes unsafe code, which every crate here forbids, and because a
//! machine that runs the tests has `rustc` but perhaps no C compiler.

use std::ffi::{OsString, c_int};
use std::sync::OnceLock;

/// The environment variable that names the file.
const COMMAND: &str = "FDATASYNC_FAILS_ONCE_IF";
/// The same number on every Linux.
const EIO: c_int = 5;

unsafe extern "C" {
    fn fsync(file: c_int) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Stands in for the C library's function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    static TRIGGER: OnceLock<Option<OsString>> = OnceLock::new();
    let trigger = TRIGGER.get_or_init(|| std::env::var_os(COMMAND));
    // Removing it is the question and the answer at once: of several threads only one succeeds.
    if trigger.as_ref().is_some_and(|path| std::fs::remove_file(path).is_ok()) {
        // SAFETY: the C library gives every thread a place of its own for this number.
        unsafe { *__errno_location() = EIO };
        return -1;
    }
    // SAFETY: the caller's own arguments, unchanged. `fsync` promises all that `fdatasync` does, and needs
    // no system call number, which differs between processors.
    unsafe { fsync(file) }
}
