//! Which real etcd to compare with: one of the line whose answers ours follow, if there is one.

use std::path::Path;

use crate::Result;
use crate::servers::{System, peer};

/// The line of versions whose answers are ours.
const LINE: &str = "etcd 3.7.";

/// The etcd to compare with.
pub(super) fn find(given: Option<&Path>, install: bool) -> Result<System> {
    let mut system = peer::etcd(given, install).map_err(|why| match given {
        Some(_) => why,
        None => "no etcd to compare with: give one with --peer, or add --install-peer".to_string(),
    })?;
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
