//! What the journal promises, tried against disks that tear, lose, fill up and rot.

mod crash;
mod damage;
mod driver;
mod os_disk;
mod snapshot_file;
mod snapshot_start;
mod space;
