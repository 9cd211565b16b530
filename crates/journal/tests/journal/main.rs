//! What the journal promises, tried against disks that tear, lose, fill up and rot.

// The exemption for tests in clippy.toml covers test functions, not the functions they share.
#![allow(clippy::unwrap_used)]

mod crash;
mod damage;
mod driver;
mod os_disk;
mod snapshot_file;
mod snapshot_start;
mod space;
