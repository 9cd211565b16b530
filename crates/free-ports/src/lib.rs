//! Ports of this machine that a server can be told to listen on a moment later.
//!
//! Asking the system for port 0 and closing it again gives a port that any outgoing connection may
//! take before the server does: the system serves both from one range. These are from below that
//! range, and kept for the caller: another process that asks here gets others until this one ends.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// Below are the ports that well-known servers use.
const FIRST: u16 = 10_000;
/// What Linux gives to outgoing connections unless told otherwise starts here.
const USUAL_END: u16 = 32_768;

/// The marks of the ports this process was given. A mark is a locked file, and the lock ends with the process.
static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// `count` different ports of the loopback interface that nobody listens on and no connection will take.
///
/// # Errors
/// Where too few ports are left.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let marks = std::env::temp_dir().join("tidelock-ports");
    // Where no mark can be made (the directory is another user's), a port is only free at this moment.
    let _ = fs::create_dir_all(&marks);
    let end = first_outgoing().filter(|&end| end > FIRST).unwrap_or(USUAL_END);
    let span = u32::from(end - FIRST);
    // Processes start at different places: one after another would try what its predecessors hold.
    let start = std::process::id().wrapping_mul(2_654_435_761) % span;
    let mut kept = KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut found = Vec::with_capacity(count);
    for step in 0..span {
        if found.len() == count {
            break;
        }
        let port = FIRST + u16::try_from((start + step) % span).expect("the span is within a u16");
        let mark = File::options().create(true).truncate(false).write(true).open(marks.join(port.to_string()));
        let ours = mark.as_ref().map_or(true, |mark| mark.try_lock().is_ok());
        if ours && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            kept.extend(mark);
            found.push(port);
        }
    }
    if found.len() < count {
        return Err(io::Error::other(format!("no {count} free ports between {FIRST} and {end}")));
    }
    Ok(found)
}

/// Where the range begins from which the system serves outgoing connections, if it says so.
fn first_outgoing() -> Option<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{first_outgoing, free_ports};
    use std::collections::BTreeSet;

    /// A port given twice is two servers that cannot both start.
    #[test]
    fn no_port_is_given_twice_and_none_is_one_that_a_connection_could_take() {
        let first = free_ports(20).unwrap();
        let second = free_ports(20).unwrap();
        let all: BTreeSet<u16> = first.iter().chain(&second).copied().collect();
        assert_eq!(all.len(), 40);
        let outgoing = first_outgoing().unwrap_or(super::USUAL_END);
        assert!(all.iter().all(|&port| port < outgoing), "{all:?}");
    }
}
