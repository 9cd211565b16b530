//! `cargo xtask zoo`: wakes each planted bug in turn and shows which seed finds it, and by what.
//!
//! A bug is awake in a whole process, so each has a process of its own: this program again, with `--bug`. A process
//! that dies has found its bug too; the seed is the last one it said it would begin ([`BEGINS`]).
//!
//! Each seed that found a bug is run once more with none awake. If it fails then too, it found something else: it
//! does not count, the hunt goes on behind it, and the zoo as a whole is red.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use tidelock_model::zoo::Bug;
use tidelock_simulator::campaign::Failure;

use crate::Result;

/// How a line begins that names the seed that begins.
pub(crate) const BEGINS: &str = "begins: ";
/// How the line begins that says what was found; its parts are divided by tabs.
const FOUND: &str = "found: ";
/// Between these the table stands in the documentation.
const MARKERS: (&str, &str) = ("<!-- zoo:begin -->", "<!-- zoo:end -->");
/// Bytes of a message that are shown: the rest is in the trace.
const MESSAGE_SHOWN: usize = 160;
/// Finders of a bug that are named; many a bug breaks nearly everything.
const FINDERS_SHOWN: usize = 3;
/// Bytes of what a dying process says that are read.
const LAST_WORDS_MAX: u64 = 64 << 10;

#[derive(Args)]
pub(crate) struct Options {
    /// Seeds to try for each bug
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    max_seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// Bugs at a time, each on one core
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    parallel: usize,
    /// Only these
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    bugs: Vec<String>,
    /// Put the table into docs/internals/simulation.md; with --bugs, their rows
    #[arg(long)]
    write_docs: bool,
}

/// What came of one bug.
#[derive(Clone, Debug, Default)]
struct Hunt {
    bug: &'static str,
    seed: Option<u64>,
    tried: u64,
    finder: String,
    message: String,
    took: Duration,
    /// Seeds that fail without the bug as well.
    fail_anyway: Vec<u64>,
}

/// The line that tells this program's parent what was found.
pub(crate) fn found(failure: &Failure) -> String {
    let one_line = |text: &str| text.replace(['\t', '\n'], " ");
    let finders = failure.violations.iter().map(|violation| format!("{} {}", violation.invariant, violation.checker));
    let mut distinct: Vec<String> = Vec::new();
    for finder in finders {
        if !distinct.contains(&finder) {
            distinct.push(finder);
        }
    }
    let more = distinct.len().saturating_sub(FINDERS_SHOWN);
    distinct.truncate(FINDERS_SHOWN);
    if more > 0 {
        distinct.push(format!("{more} more"));
    }
    let message = failure.violations.first().map_or(String::new(), |violation| one_line(&violation.message));
    format!("{FOUND}{}\t{}\t{message}", failure.seed, distinct.join(", "))
}

/// Hunts all bugs that were asked for; whether all were found and nothing else.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let known: Vec<&'static str> = Bug::ALL.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = options.bugs.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("there is no bug {unknown:?}; there are: {}", known.join(", ")));
    }
    let asked = |name: &&'static str| options.bugs.is_empty() || options.bugs.iter().any(|bug| bug == name);
    let bugs: Vec<&'static str> = known.into_iter().filter(asked).collect();
    let hunts = hunt_all(&bugs, options)?;
    println!("\n{}", table(&hunts.iter().map(row).collect::<Vec<_>>()));
    let missed: Vec<&str> = hunts.iter().filter(|hunt| hunt.seed.is_none()).map(|hunt| hunt.bug).collect();
    if !missed.is_empty() {
        println!("NOT FOUND within {} seeds: {}", options.max_seeds, missed.join(", "));
    }
    let mut fail_anyway: Vec<u64> = hunts.iter().flat_map(|hunt| hunt.fail_anyway.clone()).collect();
    fail_anyway.sort_unstable();
    fail_anyway.dedup();
    if !fail_anyway.is_empty() {
        println!("seeds that fail without any bug: {fail_anyway:?}");
    }
    if options.write_docs {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/simulation.md");
        write_between_markers(&file, &hunts)?;
    }
    Ok(missed.is_empty() && fail_anyway.is_empty())
}

fn hunt_all(bugs: &[&'static str], options: &Options) -> Result<Vec<Hunt>> {
    let next = AtomicUsize::new(0);
    let hunts: Mutex<Vec<Option<Result<Hunt>>>> = Mutex::new(vec![None; bugs.len()]);
    thread::scope(|scope| {
        for _ in 0..options.parallel.clamp(1, bugs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(bug) = bugs.get(place) else { return };
                    let hunt = hunt(bug, options);
                    if let Ok(hunt) = &hunt {
                        println!("{}", line(hunt));
                    }
                    hunts.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(hunt);
                }
            });
        }
    });
    hunts.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Looks for a seed that fails with the bug and not without it.
fn hunt(bug: &'static str, options: &Options) -> Result<Hunt> {
    let began = Instant::now();
    let (mut from, end) = (options.from, options.from + options.max_seeds);
    let mut fail_anyway = Vec::new();
    loop {
        let found = hunt_from(bug, from, end - from)?;
        let tried = found.seed.map_or(options.max_seeds, |seed| seed - options.from + 1);
        let hunt = Hunt { tried, took: began.elapsed(), fail_anyway: fail_anyway.clone(), ..found };
        match hunt.seed {
            Some(seed) if !is_clean_without_bugs(seed)? => {
                fail_anyway.push(seed);
                from = seed + 1;
            }
            _ => return Ok(hunt),
        }
        if from == end {
            return Ok(Hunt { bug, tried, took: began.elapsed(), fail_anyway, ..Hunt::default() });
        }
    }
}

/// The first seed that fails with the bug; how many were tried and how long it took is left open.
fn hunt_from(bug: &'static str, from: u64, seeds: u64) -> Result<Hunt> {
    let mut command = this_program()?;
    command.args(["--bug", bug, "--tell", "--threads", "1"]);
    command.args(["--seeds", &seeds.to_string(), "--from", &from.to_string()]);
    let (told, last_words, status) = listen(command)?;
    let mut hunt = Hunt { bug, ..Hunt::default() };
    match told {
        Told { found: Some(found), .. } => read_found(&found, &mut hunt)?,
        _ if status.success() => {}
        Told { begun: Some(seed), .. } => {
            hunt.seed = Some(seed);
            hunt.finder = format!("the process ended ({status})");
            hunt.message =
                last_words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_string();
        }
        _ => return Err(format!("{bug}: the process ended before its first seed ({status}): {last_words}")),
    }
    Ok(hunt)
}

/// Whether a seed finds nothing when there is nothing to find. In a campaign of one seed it does not run twice,
/// so what differs between two runs counts for the bug.
fn is_clean_without_bugs(seed: u64) -> Result<bool> {
    let mut command = this_program()?;
    command.args(["--seeds", "1", "--from", &seed.to_string()]);
    listen(command).map(|(_, _, status)| status.success())
}

/// What a process said on its standard output.
#[derive(Default)]
struct Told {
    begun: Option<u64>,
    found: Option<String>,
}

fn listen(mut command: Command) -> Result<(Told, String, ExitStatus)> {
    let failed = |error: std::io::Error| format!("running the simulator: {error}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Read beside the other one, so that neither fills up while nobody looks.
    let last_words = thread::spawn(move || {
        let mut text = Vec::new();
        let Some(mut stderr) = stderr else { return text };
        let _ = stderr.by_ref().take(LAST_WORDS_MAX).read_to_end(&mut text);
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        text
    });
    let mut told = Told::default();
    for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(failed)?;
        if let Some(seed) = line.strip_prefix(BEGINS) {
            told.begun = seed.parse().ok();
        } else if let Some(found) = line.strip_prefix(FOUND) {
            told.found = Some(found.to_string());
        }
    }
    let status = child.wait().map_err(failed)?;
    let last_words = last_words.join().unwrap_or_default();
    Ok((told, String::from_utf8_lossy(&last_words).into_owned(), status))
}

fn read_found(line: &str, hunt: &mut Hunt) -> Result<()> {
    let mut parts = line.splitn(3, '\t');
    let mut part = || parts.next().ok_or_else(|| format!("{}: cannot read {line:?}", hunt.bug));
    let (seed, finder, message) = (part()?, part()?, part()?);
    hunt.seed = Some(seed.parse().map_err(|_| format!("{}: {seed:?} is no seed", hunt.bug))?);
    (hunt.finder, hunt.message) = (finder.to_string(), message.to_string());
    Ok(())
}

/// This program as it was started, even if a new build took its place meanwhile.
fn this_program() -> Result<Command> {
    let running = Path::new("/proc/self/exe");
    let path: PathBuf = match running.exists() {
        true => running.to_path_buf(),
        false => std::env::current_exe().map_err(|error| format!("looking for this program: {error}"))?,
    };
    Ok(Command::new(path))
}

fn line(hunt: &Hunt) -> String {
    let seconds = hunt.took.as_secs_f64();
    match hunt.seed {
        Some(seed) => {
            let (bug, tried, finder) = (hunt.bug, hunt.tried, &hunt.finder);
            format!("{bug:<36} seed {seed} ({tried} tried, {seconds:.1} s): {finder}: {}", shortened(&hunt.message))
        }
        None => format!("{:<36} NOT FOUND ({} tried, {seconds:.1} s)", hunt.bug, hunt.tried),
    }
}

fn shortened(message: &str) -> String {
    let end = message.char_indices().map(|(at, _)| at).find(|at| *at >= MESSAGE_SHOWN);
    end.map_or(message.to_string(), |end| format!("{}...", &message[..end]))
}

/// The table for people and for the documentation.
fn table(rows: &[String]) -> String {
    let mut text = String::from("| Bug | Found by | Seed | Seeds tried | Time |\n| --- | --- | --- | --- | --- |\n");
    rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    text
}

fn row(hunt: &Hunt) -> String {
    let seed = hunt.seed.map_or("not found".to_string(), |seed| seed.to_string());
    let (finder, tried, seconds) = (&hunt.finder, hunt.tried, hunt.took.as_secs_f64());
    format!("{} {finder} | {seed} | {tried} | {seconds:.1} s |", row_begin(hunt.bug))
}

fn row_begin(bug: &str) -> String {
    format!("| `{bug}` |")
}

/// The rows of a table that was written before, with those of these hunts in their place: all in the order of the list
/// of bugs, and none of a bug that there is no more.
fn merged(before: &str, hunts: &[Hunt]) -> Vec<String> {
    let of = |(bug, _): &(&'static str, Bug)| {
        let hunted = hunts.iter().find(|hunt| hunt.bug == *bug).map(row);
        hunted.or_else(|| before.lines().find(|line| line.starts_with(&row_begin(bug))).map(str::to_string))
    };
    Bug::ALL.iter().filter_map(of).collect()
}

fn write_between_markers(file: &Path, hunts: &[Hunt]) -> Result<()> {
    let wrong = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(wrong)?;
    let changed = between_markers(&text, |before| table(&merged(before, hunts))).ok_or_else(|| {
        let (begin, end) = MARKERS;
        format!("{}: there must be one {begin} and behind it one {end}", file.display())
    })?;
    std::fs::write(file, changed).map_err(wrong)
}

fn between_markers(text: &str, table: impl Fn(&str) -> String) -> Option<String> {
    let (before, rest) = text.split_once(MARKERS.0)?;
    let (old, after) = rest.split_once(MARKERS.1)?;
    Some(format!("{before}{}\n{}{}{after}", MARKERS.0, table(old), MARKERS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunted() -> Hunt {
        let mut hunt = Hunt { bug: "a-bug", tried: 4, ..Hunt::default() };
        read_found("17\tR2 durable, L1 lease_early\tlost: a", &mut hunt).unwrap();
        hunt
    }

    /// The table is written by a machine into a page that people wrote: it must leave the rest alone, and say
    /// the same when written twice.
    #[test]
    fn the_table_stands_between_its_markers_and_nowhere_else() {
        let page = format!("above\n{}\nold\n{}\nbelow\n", MARKERS.0, MARKERS.1);
        let new = |_: &str| table(&[row(&hunted())]);
        let once = between_markers(&page, new).unwrap();
        assert!(once.starts_with("above\n") && once.ends_with("\nbelow\n") && !once.contains("old"), "{once}");
        assert!(once.contains("| `a-bug` | R2 durable, L1 lease_early | 17 | 4 | 0.0 s |"), "{once}");
        assert_eq!(between_markers(&once, new).unwrap(), once);
        assert_eq!(between_markers("no markers", new), None);
    }

    /// The whole zoo takes long: who adds a bug hunts that one, and the others keep what was measured of them.
    #[test]
    fn some_rows_are_written_anew_and_the_others_stay() {
        let hunt = |bug, finder: &str| Hunt { bug, seed: Some(3), tried: 3, finder: finder.into(), ..Hunt::default() };
        let names: Vec<&'static str> = Bug::ALL.iter().map(|(name, _)| *name).collect();
        let [first, second, third, ..] = names[..] else { panic!("there are more") };
        let before = table(&[row(&hunt(third, "R3 x")), row(&hunt(first, "R1 x")), row(&hunt("gone", "R2 x"))]);
        let after = merged(&before, &[hunt(second, "R2 y"), hunt(third, "R3 y")]);
        let expected = [hunt(first, "R1 x"), hunt(second, "R2 y"), hunt(third, "R3 y")].map(|hunt| row(&hunt));
        assert_eq!(after, expected);
    }

    /// A bug that was missed must be seen at a glance.
    #[test]
    fn a_bug_that_was_not_found_says_so() {
        let missed = Hunt { bug: "hidden", tried: 1000, ..Hunt::default() };
        assert!(line(&missed).contains("NOT FOUND (1000 tried"));
        assert!(row(&missed).contains("| not found | 1000 |"));
        assert!(read_found("x\ty\tz", &mut Hunt::default()).is_err());
        assert!(read_found("1\ty", &mut Hunt::default()).is_err());
    }
}
