//! How long a run will take, said before it begins: rounds times their length, and what comes on top.
//!
//! The constants are what was seen on two processors; another machine is quicker or slower, and so is the run.

use std::time::Duration;

use tidelock_load::Protocol;

use super::options::Part;
use super::{Bench, Suite, growth, leases, locks, native, overload, points};
use crate::Result;
use crate::servers::Kind;

/// Seconds for things that are not rounds: a cluster's start, filling 100,000 keys, waiting until memory holds still, a
/// Java machine's warm-up, connections and compaction around a round.
const START: f64 = 3.0;
const FILL: f64 = 4.0;
const SETTLE: f64 = 6.0;
const WARM_UP_OF_JAVA: f64 = 24.0;
const AROUND: f64 = 0.6;
/// Until the servers are done with what a round of locks left them.
const QUIET: f64 = 0.8;
/// Keys per second of a large fill; grants per second with a put for each, ours and etcd's.
const KEYS_PER_S: f64 = 80_000.0;
const LEASES_PER_S: f64 = 25_000.0;
const PEER_LEASES_PER_S: f64 = 4_000.0;
/// Sessions per second with a lock for each, at one node; arrivals of parties per second.
const SESSIONS_PER_S: f64 = 30_000.0;
const ARRIVALS_PER_S: f64 = 60_000.0;

/// One sentence for the terminal.
pub(super) fn text(bench: &Bench) -> Result<String> {
    let mut seconds = 0.0;
    let mut parts = Vec::new();
    for suite in bench.options.suites() {
        let expected = of(bench, suite)?;
        seconds += expected;
        parts.push(format!("{} {}", suite.name(), words(expected)));
    }
    Ok(format!("this takes about {}: {}", words(seconds), parts.join(", ")))
}

fn words(seconds: f64) -> String {
    let time = Duration::from_secs_f64(seconds.max(1.0)).as_secs();
    if time < 90 { format!("{time} s") } else { format!("{} min", (time + 30) / 60) }
}

/// Seconds that `suite` is expected to take.
fn of(bench: &Bench, suite: Suite) -> Result<f64> {
    let options = &bench.options;
    let kinds: Vec<Kind> = bench.systems_of(suite).map(|system| system.kind).collect();
    let takes_part = |kind: Kind| kinds.contains(&kind);
    let systems = kinds.len() as f64;
    let java = if takes_part(Kind::Zookeeper) { WARM_UP_OF_JAVA } else { 0.0 };
    let (rounds, seconds) = (options.rounds() as f64, options.seconds() as f64);
    let point = seconds * 1.2 + AROUND;
    let million = if options.quick { 1e5 } else { 1e6 };
    Ok(match suite {
        Suite::Etcd | Suite::Zookeeper => {
            let protocol = if suite == Suite::Etcd { Protocol::Etcd } else { Protocol::Zookeeper };
            let cases = points::count(options, protocol)? as f64;
            cases * rounds * systems * point + options.nodes.len() as f64 * ((START + FILL) * systems + java)
        }
        Suite::Watch => 3.0 * rounds * systems * (seconds + 1.5) + START * systems,
        Suite::Leases => {
            let count = if options.quick { leases::QUICK_LEASES } else { leases::LEASES };
            let peers = options.peer_leases.min(count);
            let of = |kind: &Kind| granting(*kind, if *kind == Kind::Tidelock { count } else { peers }, seconds);
            rounds * kinds.iter().map(of).sum::<f64>()
        }
        Suite::Memory => rounds * systems * (START + million / KEYS_PER_S + 3.0 * SETTLE + 5.0),
        Suite::Failover => {
            let stopped = if takes_part(Kind::Zookeeper) { 12.0 } else { 0.0 };
            rounds * (systems * 3.0 * 7.5 + stopped) + systems * (START + FILL) + java
        }
        Suite::Locks => {
            let all = locks::round_count(options.quick, takes_part) as f64 * rounds;
            all * (seconds + AROUND + QUIET) + 2.0 * START * systems + 2.0 * java
        }
        Suite::Native => {
            let (sessions, arrivals) = native::work(options.quick);
            let phasers = rounds * (arrivals as f64 / ARRIVALS_PER_S + 2.0 * AROUND);
            systems * (2.0 * START + sessions as f64 / SESSIONS_PER_S + 4.0 * SETTLE + phasers)
        }
        Suite::Background => systems * (START + million / KEYS_PER_S + rounds * 16.0),
        Suite::Overload => {
            let round = f64::from(overload::LONGER) * seconds + 2.0 + 10.0 + 2.0;
            overload::FACTORS.len() as f64 * rounds * systems * round + systems * (START + FILL)
        }
        Suite::Growth => growing(bench, &kinds, point, seconds),
        Suite::All => 0.0,
    })
}

/// Granting `count` leases with a key each, weighing and renewing them.
fn granting(kind: Kind, count: u64, seconds: f64) -> f64 {
    let per_s = if kind == Kind::Tidelock { LEASES_PER_S } else { PEER_LEASES_PER_S };
    START + count as f64 / per_s + 3.0 * SETTLE + seconds
}

fn growing(bench: &Bench, kinds: &[Kind], point: f64, seconds: f64) -> f64 {
    let (options, mut sum) = (&bench.options, 0.0);
    let systems = |with_peers: bool| if with_peers { kinds.len() as f64 } else { 1.0 };
    for &keys in growth::shortened(&growth::KEYS, options.quick) {
        sum += systems(keys <= growth::PEER_KEYS_MAX) * (START + keys as f64 / KEYS_PER_S / 2.0 + 2.0 * point);
    }
    let mut parts = if options.wants(Part::Keys) { sum } else { 0.0 };
    if options.wants(Part::Watchers) {
        for &watchers in growth::shortened(&growth::WATCHERS, options.quick) {
            parts += systems(watchers <= growth::PEER_WATCHERS_MAX) * (seconds + 1.0 + watchers as f64 / 20_000.0);
        }
    }
    if options.wants(Part::Leases) {
        for &count in growth::shortened(&growth::LEASES, options.quick) {
            let taking_part = kinds.iter().filter(|kind| **kind == Kind::Tidelock || count <= growth::PEER_LEASES_MAX);
            parts += taking_part.map(|kind| granting(*kind, count, seconds)).sum::<f64>();
        }
    }
    if options.wants(Part::Members) {
        let members = growth::shortened(&growth::MEMBERS, options.quick).len() as f64;
        parts += members * systems(true) * (START + FILL + point);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "About 2400 s" makes nobody fetch a coffee.
    #[test]
    fn times_are_said_in_minutes_from_a_minute_and_a_half_on() {
        assert_eq!(
            (words(0.0), words(89.0), words(91.0), words(2_400.0)),
            ("1 s".into(), "89 s".into(), "2 min".into(), "40 min".into())
        );
    }
}
