//! Many seeds, each run on its own, on all cores: what is run before a change goes in.
//!
//! What holds:
//! - A world is made, lives and is judged within one thread; threads share nothing but the list of seeds, so a
//!   seed does the same whoever runs beside it.
//! - Every [`TWICE_EVERY`]th seed runs twice and must do exactly the same. A run that depends on anything but
//!   its seed cannot be replayed, and then nothing it finds is worth anything.
//! - A panic is a finding like any other: the assertions in the nodes are checkers too. So is a run that does
//!   not end ([`RUN_TIME_MAX`]); the process must end soon after that one, since a thread cannot be stopped.
//! - A campaign that did not reach what it is for is red, though no checker said anything ([`coverage`]).
//!
//! `report.rs` says what came of it. The only clock here measures for people; no world sees it.

mod report;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::check::Violation;
use crate::coverage;
use crate::history::Micros;
use crate::plan::{Overrides, Plan, UnknownName};
use crate::trace::Lines;
use crate::world::{Outcome, World};

pub use report::{Failure, Report, replay_command};

/// Of so many seeds one runs twice.
pub const TWICE_EVERY: usize = 10;
/// How long one seed may take by the clock on the wall. It usually takes a second; two minutes of a busy
/// machine are still no reason to cry wolf.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(300);
/// Messages from the threads that may wait; they are small and taken at once.
const MESSAGES_WAITING_MAX: usize = 256;
/// Futures of a whole run are polled inside each other, in builds without optimisation with large frames.
const STACK_BYTES: usize = 16 << 20;

/// Runs whose trace is known. The hash must be the same on every machine and in every build: the test
/// `the_pinned_seeds_do_what_they_always_did` looks at the one with assertions, `cargo xtask sim --pinned` at
/// the one that is shipped. Whoever changes what a run does on purpose puts the new hashes here; both
/// commands print them.
pub const PINNED_TRACES: &[(u64, &str, u128)] = &[
    (37, "quiet", 0x1ad1_2b90_1de1_9190_f0c8_dfd8_322e_5367),
    (17, "quiet, with native clients", 0x931d_c8ed_4fc3_4382_adeb_5f09_650c_950f),
    (22, "brutal", 0x8be2_f1d0_94a2_5d37_e026_be3a_760f_07f0),
];

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Which seeds, in this order.
    pub seeds: Vec<u64>,
    /// How many at a time.
    pub threads: usize,
    /// What is changed about each of their plans.
    pub overrides: Overrides,
    /// Whether no more seeds are begun once one has failed.
    pub stop_at_first: bool,
}

/// How a campaign is getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This seed begins.
    Begins(u64),
    /// This seed has ended.
    Ended {
        /// Which.
        seed: u64,
        /// Whether something was found.
        failed: bool,
    },
}

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct SeedResult {
    /// Which.
    pub seed: u64,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Virtual time that passed.
    pub simulated: Micros,
    /// Requests asked, and answered with certainty.
    pub operations: (u64, u64),
    /// What was reached, how often.
    pub coverage: BTreeMap<String, u64>,
    /// Whether it ran twice.
    pub twice: bool,
}

enum Message {
    Begins(u64),
    Ended(Box<SeedResult>),
}

impl Campaign {
    /// Runs all seeds; `told` hears how it is getting on.
    pub fn run(&self, mut told: impl FnMut(Progress)) -> Result<Report, UnknownName> {
        // A wrong name is the same for every seed.
        Plan::draw_with(0, &self.overrides)?;
        let began = Instant::now();
        let mut report = Report::new(self);
        let stop = Arc::new(AtomicBool::new(false));
        let messages = self.start_threads(&stop);
        let mut running: BTreeMap<u64, Instant> = BTreeMap::new();
        loop {
            match messages.recv_timeout(Duration::from_secs(1)) {
                Ok(Message::Begins(seed)) => {
                    running.insert(seed, Instant::now());
                    told(Progress::Begins(seed));
                }
                Ok(Message::Ended(result)) => {
                    running.remove(&result.seed);
                    let (seed, failed) = (result.seed, !result.violations.is_empty());
                    report.take(*result);
                    told(Progress::Ended { seed, failed });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let stuck = running.iter().find(|(_, began)| began.elapsed() > RUN_TIME_MAX);
            if let Some((seed, _)) = stuck {
                stop.store(true, Ordering::Relaxed);
                report.take(stuck_result(*seed));
                break;
            }
        }
        report.finish(began.elapsed());
        Ok(report)
    }

    fn start_threads(&self, stop: &Arc<AtomicBool>) -> mpsc::Receiver<Message> {
        let (sender, receiver) = mpsc::sync_channel(MESSAGES_WAITING_MAX);
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..self.threads.clamp(1, self.seeds.len().max(1)) {
            let (next, stop) = (next.clone(), stop.clone());
            let (campaign, sender) = (self.clone(), sender.clone());
            let work = move || campaign.work_through(&next, &stop, &sender);
            thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("a machine has room for a few threads");
        }
        receiver
    }

    /// One thread's share: takes seeds until none is left.
    fn work_through(&self, next: &AtomicUsize, stop: &AtomicBool, sender: &SyncSender<Message>) {
        while !stop.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = self.seeds.get(place).copied() else { return };
            let twice = place % TWICE_EVERY == TWICE_EVERY - 1;
            // Nobody listens any more: the campaign was given up.
            if sender.send(Message::Begins(seed)).is_err() {
                return;
            }
            let result =
                run_seed(seed, &self.overrides, twice).expect("the names were looked at before the first seed");
            stop.fetch_or(self.stop_at_first && !result.violations.is_empty(), Ordering::Relaxed);
            if sender.send(Message::Ended(Box::new(result))).is_err() {
                return;
            }
        }
    }
}

/// Runs one seed, and again if it is to be compared with itself.
pub fn run_seed(seed: u64, overrides: &Overrides, twice: bool) -> Result<SeedResult, UnknownName> {
    let plan = Plan::draw_with(seed, overrides)?;
    let mut result =
        SeedResult { seed, violations: vec![], simulated: 0, operations: (0, 0), coverage: BTreeMap::new(), twice };
    let first = run_plan(plan.clone(), Lines::Dropped);
    let again = twice.then(|| run_plan(plan, Lines::Dropped));
    if let Some(difference) = again.and_then(|again| difference(&first, &again)) {
        result.violations.push(difference);
    }
    match first {
        Err(panicked) => result.violations.push(panicked),
        Ok(outcome) => {
            result.violations.extend(outcome.violations);
            result.simulated = outcome.simulated;
            result.operations = outcome.operations;
            result.coverage = outcome.coverage;
        }
    }
    Ok(result)
}

fn difference(first: &Result<Outcome, Violation>, again: &Result<Outcome, Violation>) -> Option<Violation> {
    let what = |run: &Result<Outcome, Violation>| match run {
        Ok(outcome) => format!("{} events with hash {:032x}", outcome.events, outcome.trace_hash),
        Err(panicked) => panicked.to_string(),
    };
    let (first, again) = (what(first), what(again));
    let message = format!("two runs of one seed differ: {first}, then {again}");
    (first != again).then_some(Violation { invariant: "determinism", checker: "twice", message })
}

fn stuck_result(seed: u64) -> SeedResult {
    let message = format!("did not end within {} s of real time", RUN_TIME_MAX.as_secs());
    let violations = vec![Violation { invariant: "liveness", checker: "stuck", message }];
    SeedResult { seed, violations, simulated: 0, operations: (0, 0), coverage: BTreeMap::new(), twice: false }
}

/// Lives through one plan. A panic is caught and given as what it is: something that must not happen.
pub fn run_plan(plan: Plan, lines: Lines) -> Result<Outcome, Violation> {
    static HOOK: Once = Once::new();
    HOOK.call_once(record_panics);
    CATCHING.set(true);
    // Nothing of the world outlives the panic: it was made inside.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| World::new(plan, lines).run()));
    CATCHING.set(false);
    outcome.map_err(|payload| {
        let place = PANICKED_AT.take().unwrap_or_else(|| "somewhere".to_string());
        let message = format!("{place}: {}", message_of(payload.as_ref()));
        Violation { invariant: "assertion", checker: "panic", message }
    })
}

thread_local! {
    /// Whether a panic of this thread is caught and told later.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// Where this thread panicked first.
    static PANICKED_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes where a panic in a run came from, which its payload does not say, and prints nothing.
fn record_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !CATCHING.get() {
            return print(info);
        }
        let place = info.location().map_or("somewhere".to_string(), |at| format!("{}:{}", at.file(), at.line()));
        PANICKED_AT.with_borrow_mut(|first| {
            // The second one comes from what is dropped on the way, and ends the process: show both.
            if let Some(first) = first {
                eprintln!("panicked at {first}, and again while unwinding:");
                return print(info);
            }
            *first = Some(place);
        });
    }));
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_string())
}

/// Where seeds begin that nobody chose: another place for every commit, the same for all who look at it, so
/// that many hands cover many seeds and a red one is red for everybody. Without git, the time.
#[must_use]
pub fn fresh_base() -> u64 {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = output.ok().filter(|output| output.status.success());
    let head = head.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let of_commit = head.and_then(|head| u64::from_str_radix(head.get(..8)?, 16).ok());
    of_commit.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

/// How many threads to use if nothing is said.
#[must_use]
pub fn all_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the pinned seeds and says for each what came out and whether it is what was pinned.
#[must_use]
pub fn check_pinned() -> Vec<(String, bool)> {
    let check = |(seed, what, expected): &(u64, &str, u128)| match run_plan(Plan::draw(*seed), Lines::Dropped) {
        Ok(outcome) => {
            let (hash, violations) = (outcome.trace_hash, outcome.violations.len());
            let line =
                format!("seed {seed} ({what}): hash {hash:#034x}, pinned {expected:#034x}, {violations} violations");
            (line, hash == *expected && violations == 0)
        }
        Err(panicked) => (format!("seed {seed} ({what}): {panicked}"), false),
    };
    PINNED_TRACES.iter().map(check).collect()
}

/// Whether what a campaign reached can be judged: with faults left out or clients missing it cannot.
fn is_judged(overrides: &Overrides) -> bool {
    *overrides == Overrides::default()
}

/// What a campaign of so many seeds fell short of.
fn shortfalls(totals: &BTreeMap<String, u64>, seeds: u64, overrides: &Overrides) -> Vec<String> {
    if is_judged(overrides) { coverage::shortfalls(totals, seeds) } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan that cannot be carried out.
    fn impossible() -> Plan {
        Plan { workloads: vec![("no such workload", 1)], ..Plan::draw(1) }
    }

    /// The assertions in the nodes are checkers too; a panic must name its place and not end the campaign.
    #[test]
    fn a_panic_in_a_run_is_a_finding_with_its_place() {
        for _ in 0..2 {
            let panicked = run_plan(impossible(), Lines::Dropped).err().expect("it panics");
            assert_eq!((panicked.invariant, panicked.checker), ("assertion", "panic"));
            assert!(panicked.message.contains("workload.rs:"), "{panicked}");
            assert!(panicked.message.contains("plans name workloads that exist"), "{panicked}");
        }
    }

    /// If two runs of a seed differ, nothing the simulator finds can be looked at again: this must be red.
    #[test]
    fn two_runs_that_differ_are_a_finding() {
        let outcome = |trace_hash| {
            Ok(Outcome {
                plan: Plan::draw(1),
                violations: Vec::new(),
                trace_hash,
                events: 5,
                simulated: 0,
                coverage: BTreeMap::new(),
                operations: (0, 0),
                lines: Vec::new(),
            })
        };
        assert_eq!(difference(&outcome(1), &outcome(1)), None);
        assert_eq!(difference(&outcome(1), &outcome(2)).map(|found| found.invariant), Some("determinism"));
        let panicked = || run_plan(impossible(), Lines::Dropped);
        assert_eq!(difference(&panicked(), &panicked()), None);
        assert!(difference(&outcome(1), &panicked()).is_some());
    }

    /// A name that means nothing must be refused before anything is run, not run as something else.
    #[test]
    fn a_campaign_with_an_unknown_name_is_refused() {
        let overrides = Overrides { only: vec!["crahs".to_string()], ..Overrides::default() };
        let campaign = Campaign { seeds: vec![1], threads: 1, overrides, stop_at_first: false };
        let mut heard = 0;
        assert!(campaign.run(|_| heard += 1).is_err());
        assert_eq!(heard, 0);
    }

    /// Every seed is run once and told, whichever thread had it.
    #[test]
    fn a_campaign_runs_every_seed_once() {
        let overrides = Overrides { safety: Some(1_000_000), nodes: Some(1), ..Overrides::default() };
        let campaign = Campaign { seeds: (1..=11).collect(), threads: 3, overrides, stop_at_first: false };
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        let report = campaign.run(|progress| match progress {
            Progress::Begins(seed) => begun.push(seed),
            Progress::Ended { seed, .. } => ended.push(seed),
        });
        let report = report.expect("nothing is named");
        begun.sort_unstable();
        ended.sort_unstable();
        assert_eq!((&begun, &ended), (&campaign.seeds, &campaign.seeds));
        assert_eq!((report.seeds, report.twice), (11, 1));
        assert!(report.operations.0 > 0);
    }
}
