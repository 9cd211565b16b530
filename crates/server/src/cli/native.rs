//! The shapes of the commands for locks and the like: `lock`, `elect`, `barrier`, `locks`, `sessions`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{ConnectionArgs, Output};

/// Where to find nodes, for the commands that hold things.
#[derive(Clone, Debug, Args)]
pub(crate) struct NativeArgs {
    /// Nodes to talk to, comma separated; another one is tried when one cannot be reached
    #[arg(
        long,
        env = "TIDELOCK_NATIVE",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "127.0.0.1:7481",
        help_heading = "Connection"
    )]
    pub(crate) native: Vec<String>,

    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// How to hold something while a program runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct HoldArgs {
    /// How long it outlives this machine, from 1s to 24h: 20s, 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(crate) ttl: Duration,

    /// How long to wait for it at most; 0s: have it at once or not at all [default: without an end]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) wait: Option<Duration>,

    /// How long the program may take to end after SIGTERM when it is lost, before SIGKILL. It gets SIGTERM when 0.8 of the
    /// time to live are over: with a longer grace than the rest it may run beside the next holder, and only the token keeps
    /// the two apart [default: a fifth of --ttl, 5s at most]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    grace: Option<Duration>,

    /// What others are shown by `tidelock locks` [default: this process and machine]
    #[arg(long, value_name = "TEXT")]
    pub(crate) data: Option<String>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<String>,
}

/// The longest grace unless told: a program that needs longer to stop should say so.
const GRACE_DEFAULT_MAX: Duration = Duration::from_secs(5);

impl HoldArgs {
    /// Unless told it ends with the time to live, as long as nobody else can have what is held.
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or_else(|| (self.ttl / 5).min(GRACE_DEFAULT_MAX))
    }
}

/// The exit codes of what runs a program, as the help has them.
macro_rules! exit_codes {
    () => {
        "

Exit codes:
  the program's own, or 128 + N if signal N ended it
    2  asked for wrongly
   69  no node could be reached, or none answered in time
   75  not granted within --wait; the program was not started
   76  lost while the program ran, which was ended; or the session ended while waiting, and it was not started
   77  refused: missing rights, or the name is used with other numbers
  126  the program could not be started
  127  there is no such program"
    };
}

/// `tidelock lock`.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:
  tidelock lock nightly -- ./backup.sh            one at a time, in the order of asking
  tidelock lock nightly --wait 0s -- ./backup.sh  only if nobody else does it now
  tidelock lock report --shared -- ./read.sh      with others that share, without who does not
  tidelock lock import -n 3 -- ./import.sh        at most three at a time

The program finds the fencing token in TIDELOCK_TOKEN: it is larger than every one given for that name before.
Send it along with every write and let the resource refuse smaller ones.
If the lock is lost the program's whole process group gets SIGTERM, and SIGKILL after --grace.",
    exit_codes!()
))]
pub(crate) struct LockArgs {
    /// The lock
    pub(crate) name: String,

    /// Hold it together with others that share it
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Take one of so many permits; all that use the name must say the same number
    #[arg(short = 'n', long, value_name = "PERMITS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    #[command(flatten)]
    pub(crate) hold: HoldArgs,

    #[command(flatten)]
    pub(crate) native: NativeArgs,
}

/// `tidelock elect`.
#[derive(Debug, Args)]
#[command(after_help = concat!(
    "Examples:
  tidelock elect scheduler -- ./schedule           runs while this candidate leads
  tidelock elect scheduler --data 10.0.0.7:9000 -- ./schedule

The program finds its epoch in TIDELOCK_TOKEN. It is started once this candidate leads, and ended if it leads no more.",
    exit_codes!()
))]
pub(crate) struct ElectArgs {
    /// The election
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) hold: HoldArgs,

    #[command(flatten)]
    pub(crate) native: NativeArgs,
}

/// What becomes of the others when one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenOneGoes {
    /// They go on without it
    Shrink,
    /// They are told, and end with code 76
    Break,
}

/// `tidelock barrier`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock barrier deploy --parties 3 && ./go      the third one to come lets all three go on
  tidelock barrier deploy --parties 3 --wait 1m --on-death break

Exit codes: 0 all are there; 2 asked for wrongly; 69 no node could be reached; 75 not all came within --wait; 76 one
went that the others counted on; 77 refused.")]
pub(crate) struct BarrierArgs {
    /// The barrier
    pub(crate) name: String,

    /// How many shall meet; all must say the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) parties: u32,

    /// How long to wait for the others at most [default: without an end]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) wait: Option<Duration>,

    /// What becomes of the others when one dies or gives up; all must say the same
    #[arg(long, value_enum, default_value_t = WhenOneGoes::Shrink)]
    pub(crate) on_death: WhenOneGoes,

    #[command(flatten)]
    pub(crate) native: NativeArgs,
}

/// `tidelock locks`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock locks                     who holds what and who waits, of locks, semaphores and elections
  tidelock locks billing/ --watch    those whose names begin like this, once a second
  tidelock locks --output json")]
pub(crate) struct LocksArgs {
    /// Only names that begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Go on showing them, once a second, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,

    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) native: NativeArgs,
}

/// `tidelock sessions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock sessions
  tidelock sessions --end 7c00000000000a01    end one, with all that it holds; its owner is told")]
pub(crate) struct SessionsArgs {
    /// End this session instead of listing them: its id in hex, as it is listed, or in decimal, as the HTTP API has it
    #[arg(long, value_name = "SESSION", value_parser = parse_session)]
    pub(crate) end: Option<i64>,

    /// How to print the answer
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) native: NativeArgs,
}

/// `tidelock completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock completions bash > /etc/bash_completion.d/tidelock
  tidelock completions zsh > ~/.zfunc/_tidelock")]
pub(crate) struct CompletionsArgs {
    /// For which shell
    pub(crate) shell: clap_complete::Shell,
}

/// `tidelock man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock man | man -l -                the page of the program itself
  tidelock man --dir /usr/share/man/man1 one page for it and for each of its commands")]
pub(crate) struct ManArgs {
    /// Write the pages of the program and of all its commands into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// A time as people write it: a number with ms, s, m or h.
fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a time is a number and a unit: 500ms, 20s, 5m, 1h".to_owned())?;
    let ms = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err("a time is a number and a unit: 500ms, 20s, 5m, 1h".into()),
    };
    ms.map(Duration::from_millis).ok_or_else(|| "that is too long".into())
}

/// A session id as one of our answers has it: hex from the commands, decimal from the HTTP API. No hex number that
/// fits has more than 16 digits, and no session's decimal one has fewer than 19.
fn parse_session(text: &str) -> Result<i64, String> {
    let is_decimal = text.len() > 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = match is_decimal {
        true => text.parse(),
        false => i64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16),
    };
    parsed.map_err(|_| "a session is a number as `tidelock sessions` or the HTTP API has it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program is told to end at 0.8 of the time to live. Were its grace longer than the rest by default, it would run
    /// beside the next holder without anybody having said so.
    #[test]
    fn the_grace_ends_with_the_time_to_live_unless_told() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            hold: HoldArgs,
        }
        let grace = |words: &[&str]| {
            let words = ["lock"].iter().chain(words).chain(&["--", "true"]);
            <Command as clap::Parser>::try_parse_from(words).unwrap().hold.grace()
        };
        assert_eq!(grace(&[]), Duration::from_secs(2));
        assert_eq!(grace(&["--ttl", "1s"]), Duration::from_millis(200));
        assert_eq!(grace(&["--ttl", "1h"]), Duration::from_secs(5));
        assert_eq!(grace(&["--grace", "1m"]), Duration::from_secs(60));
    }

    /// The same session, however an answer has put it; one taken for another would be ended in its place.
    #[test]
    fn session_ids_are_taken_in_hex_and_in_decimal() {
        let id = 0x7c00_0000_0000_0a01_i64;
        for text in [format!("{id:x}"), format!("0x{id:x}"), id.to_string()] {
            assert_eq!(parse_session(&text), Ok(id), "{text}");
        }
        assert_eq!(parse_session("7100000000000001"), Ok(0x7100_0000_0000_0001), "16 digits are hex");
        for wrong in ["", "x", "0x", "-", "99999999999999999999", "7c00000000000a010"] {
            assert!(parse_session(wrong).is_err(), "{wrong}");
        }
    }

    /// A wrong unit that is taken for seconds would hold a lock for hours.
    #[test]
    fn times_have_a_unit_that_is_one() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_time("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "20", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
