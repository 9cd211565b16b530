//! What no server on this machine can go below: the same syncs, sends and wake-ups with nothing around them.
//!
//! Each figure is the floor of a row of the benchmark, so that what a server could still gain is told from what the
//! disk and the system take:
//! - a *sync* is the journal's: 4 KiB written past the cache into a file that is already there, and made durable;
//! - an *agreement* is what a lock that is handed over waits for: a request, two followers who are told, three syncs of
//!   which two must be over, an answer, and only then the next request;
//! - an *event* is one send to each of many connections, and somebody who reads them all.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{ClockId, clock_gettime};
use tidelock_journal::{Disk, DiskFile, OsDisk};
use tidelock_load::Histogram;

use crate::environment::Environment;
use crate::table::{self, Table};
use crate::{Result, progress};

/// What the journal writes for one small entry.
const BLOCK: usize = 4096;
/// Written around in, as in a segment of the journal.
const FILE_BYTES: u64 = 16 << 20;
/// A small request, its headers included, and the answer to it.
const REQUEST_BYTES: usize = 128;
/// Number of an agreement, as a follower says it.
const NUMBER_BYTES: usize = 8;
const FOLLOWERS: usize = 2;
/// A value of 1 KiB, its key and what stands around both.
const EVENT_BYTES: usize = 1_100;
const EVENTS_PER_S: u32 = 100;
/// Threads that send: one for each member.
const SENDERS: usize = 3;

/// How much.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Connections that are told of each event
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=5_000))]
    connections: u16,
    /// Where files are written and synced [default: where benchmarks keep their data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// What one kind of work took.
struct Floor {
    latencies: Histogram,
    elapsed: Duration,
    /// Processor time of what stands for the servers.
    cpu: Duration,
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<()> {
    let data = options.data.clone().unwrap_or_else(crate::workspace::target);
    std::fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
    println!("{}", Environment::look(&data)?.text());
    let table = measure(options, &data).map_err(|error| format!("measuring limits: {error}"))?;
    print!("\n{}", table.text());
    println!("\nCPU us: of each sync, of each agreement on all three members, of each event sent; without the client");
    Ok(())
}

fn measure(options: &Options, data: &Path) -> io::Result<Table> {
    let directory = tempfile::tempdir_in(data)?;
    let seconds = Duration::from_secs(options.seconds);
    let mut table = Table::new(1, &["floor", "per second", "p50", "p99", "CPU us"]);
    let bar = progress::bar(4, "limits");
    let mut add = |name: &str, floor: Floor| {
        bar.inc(1);
        let count = floor.latencies.count();
        let each_us = floor.cpu.as_secs_f64() * 1e6 / count.max(1) as f64;
        table.row(vec![
            name.to_string(),
            table::grouped((count as f64 / floor.elapsed.as_secs_f64()) as u64),
            table::duration(floor.latencies.quantile(500)),
            table::duration(floor.latencies.quantile(990)),
            format!("{each_us:.1}"),
        ]);
    };
    add("sync", syncs(directory.path(), 1, seconds)?);
    add("sync, three files at once", syncs(directory.path(), 1 + FOLLOWERS, seconds)?);
    add("agreement, one after the other", agreements(directory.path(), seconds)?);
    let name = format!("event, {} connections, {EVENTS_PER_S}/s", options.connections);
    add(&name, events(usize::from(options.connections), seconds)?);
    bar.finish_and_clear();
    Ok(table)
}

/// A file as the journal has them.
fn file(directory: &Path, number: usize) -> io::Result<Box<dyn DiskFile>> {
    // A directory is one node's.
    let disk = OsDisk::open(directory.join(number.to_string())).map_err(io::Error::other)?;
    let file = disk.create("floor")?;
    file.allocate_zeroed(FILE_BYTES)?;
    file.sync_data()?;
    Ok(file)
}

/// Writes block `number`, around and around, and syncs.
fn sync(file: &dyn DiskFile, number: u64) -> io::Result<()> {
    file.append(number * BLOCK as u64 % FILE_BYTES, &[0xa5; BLOCK])?;
    file.sync_data()
}

fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a thread of the measurement panicked"))?
}

/// `files` threads that write and sync one after the other, each its own file. The latencies of all, the rate of one.
fn syncs(directory: &Path, files: usize, seconds: Duration) -> io::Result<Floor> {
    let began = Instant::now();
    let worker = |number: usize| -> io::Result<(Histogram, Duration)> {
        let file = file(directory, number)?;
        let (mut latencies, before) = (Histogram::new(), thread_cpu());
        while began.elapsed() < seconds {
            let start = Instant::now();
            sync(&*file, latencies.count())?;
            latencies.record(start.elapsed());
        }
        Ok((latencies, thread_cpu().saturating_sub(before)))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..files).map(|number| scope.spawn(move || worker(number))).collect();
        let mut floor = Floor { latencies: Histogram::new(), elapsed: seconds * files as u32, cpu: Duration::ZERO };
        for thread in threads {
            let (latencies, cpu) = joined(thread)?;
            floor.latencies.merge(&latencies);
            floor.cpu += cpu;
        }
        Ok(floor)
    })
}

/// Two ends of a connection over loopback.
fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// One request under way: the next is sent when the last is answered.
fn agreements(directory: &Path, seconds: Duration) -> io::Result<Floor> {
    std::thread::scope(|scope| {
        let (mut client, requests) = connected()?;
        // Both followers answer into one connection, which spares the leader a wait for either.
        let (ack, acks) = connected()?;
        let (mut links, mut followers) = (Vec::new(), Vec::new());
        for number in 1..=FOLLOWERS {
            let (near, far) = connected()?;
            links.push(near);
            followers.push(follower(scope, file(directory, number)?, far, ack.try_clone()?));
        }
        let own = file(directory, 0)?;
        let leader = scope.spawn(move || lead(&*own, requests, &links, acks));

        let mut latencies = Histogram::new();
        let began = Instant::now();
        while began.elapsed() < seconds {
            let start = Instant::now();
            client.write_all(&[7; REQUEST_BYTES])?;
            client.read_exact(&mut [0; REQUEST_BYTES])?;
            latencies.record(start.elapsed());
        }
        let elapsed = began.elapsed();
        // The leader ends with its client, and the followers with the leader.
        drop(client);
        let mut cpu = joined(leader)?;
        for follower in followers {
            cpu += joined(follower)?;
        }
        Ok(Floor { latencies, elapsed, cpu })
    })
}

fn lead(own: &dyn DiskFile, mut requests: TcpStream, links: &[TcpStream], mut acks: TcpStream) -> io::Result<Duration> {
    let before = thread_cpu();
    let (mut request, mut number) = ([0; REQUEST_BYTES], 0u64);
    while requests.read_exact(&mut request).is_ok() {
        number += 1;
        request[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        for mut link in links {
            link.write_all(&request)?;
        }
        sync(own, number)?;
        // The slower follower's answer to the last one may be there first.
        let mut acknowledged = [0; NUMBER_BYTES];
        while u64::from_le_bytes(acknowledged) != number {
            acks.read_exact(&mut acknowledged)?;
        }
        requests.write_all(&request)?;
    }
    Ok(thread_cpu().saturating_sub(before))
}

fn follower<'scope>(
    scope: &'scope Scope<'scope, '_>,
    own: Box<dyn DiskFile>,
    mut link: TcpStream,
    mut ack: TcpStream,
) -> ScopedJoinHandle<'scope, io::Result<Duration>> {
    scope.spawn(move || {
        let before = thread_cpu();
        let (mut request, mut count) = ([0; REQUEST_BYTES], 0);
        while link.read_exact(&mut request).is_ok() {
            count += 1;
            sync(&*own, count)?;
            // Nobody reads the last one.
            if ack.write_all(&request[..NUMBER_BYTES]).is_err() {
                break;
            }
        }
        Ok(thread_cpu().saturating_sub(before))
    })
}

/// Events at fixed moments, each to every connection. Latencies count from the moment.
fn events(connections: usize, seconds: Duration) -> io::Result<Floor> {
    let pause = Duration::from_secs(1) / EVENTS_PER_S;
    let count = seconds.as_secs() * u64::from(EVENTS_PER_S);
    let (mut ends, mut far_ends) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let (near, far) = connected()?;
        far.set_nonblocking(true)?;
        ends.push(near);
        far_ends.push(mio::net::TcpStream::from_std(far));
    }
    // The first moment leaves time for threads to begin.
    let first = Instant::now() + pause * 10;
    std::thread::scope(|scope| {
        let senders: Vec<_> = ends
            .chunks(connections.div_ceil(SENDERS))
            .map(|mine| scope.spawn(move || send_events(mine, first, pause, count)))
            .collect();
        let latencies = read_events(&mut far_ends, first, pause, count)?;
        let mut cpu = Duration::ZERO;
        for sender in senders {
            cpu += joined(sender)?;
        }
        Ok(Floor { latencies, elapsed: seconds, cpu })
    })
}

fn send_events(ends: &[TcpStream], first: Instant, pause: Duration, count: u64) -> io::Result<Duration> {
    let before = thread_cpu();
    for number in 0..count as u32 {
        std::thread::sleep((first + pause * number).saturating_duration_since(Instant::now()));
        for mut end in ends {
            end.write_all(&[7; EVENT_BYTES])?;
        }
    }
    Ok(thread_cpu().saturating_sub(before))
}

fn read_events(ends: &mut [mio::net::TcpStream], first: Instant, pause: Duration, count: u64) -> io::Result<Histogram> {
    let mut poll = Poll::new()?;
    for (at, end) in ends.iter_mut().enumerate() {
        poll.registry().register(end, Token(at), Interest::READABLE)?;
    }
    let mut received = vec![0usize; ends.len()];
    let (mut latencies, mut ready, mut room) = (Histogram::new(), Events::with_capacity(1024), vec![0; 64 << 10]);
    while latencies.count() < count * ends.len() as u64 {
        poll.poll(&mut ready, None)?;
        for event in &ready {
            let at = event.token().0;
            let bytes = ends[at].read(&mut room)?;
            if bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            let whole = received[at] / EVENT_BYTES..(received[at] + bytes) / EVENT_BYTES;
            received[at] += bytes;
            for number in whole {
                latencies.record(now.saturating_duration_since(first + pause * number as u32));
            }
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floors are the ground on which goals are called out of reach: each must have done what it counts.
    #[test]
    fn every_floor_does_the_work_it_counts() {
        let directory = tempfile::tempdir().unwrap();
        let second = Duration::from_secs(1);
        let alone = syncs(directory.path(), 1, second).unwrap();
        let three = syncs(directory.path(), 3, second).unwrap();
        let agreed = agreements(directory.path(), second).unwrap();
        let told = events(7, second).unwrap();
        for floor in [&alone, &three, &agreed] {
            assert!(floor.latencies.count() > 0 && floor.cpu > Duration::ZERO);
        }
        assert_eq!(told.latencies.count(), 7 * u64::from(EVENTS_PER_S));
    }
}
