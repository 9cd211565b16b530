//! `cargo xtask sim` and `cargo xtask zoo`: build the simulator as suits the occasion and pass everything on.
//!
//! A campaign is built with assertions and with panics that can be caught (profile `sim`). The known traces are
//! looked at in the very build that is shipped (profile `release`). Planted bugs are compiled in only where they
//! are asked for.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::{Result, workspace};

/// What is passed on to the simulator; `--help` among it.
#[derive(Args)]
pub(crate) struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the simulator.
pub(crate) fn run(passed: &Passed) -> Result<()> {
    start(&passed.arguments)
}

/// Runs the bug zoo.
pub(crate) fn zoo(passed: &Passed) -> Result<()> {
    let arguments: Vec<OsString> = std::iter::once("zoo".into()).chain(passed.arguments.iter().cloned()).collect();
    start(&arguments)
}

fn start(arguments: &[OsString]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The directory stays the caller's: that is where files named on the command line are.
    let manifest = workspace::root().join("Cargo.toml");
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--manifest-path"])
        .arg(manifest)
        .args(["--package", "tidelock-simulator"])
        .args(build(arguments))
        .arg("--")
        .args(arguments)
        .status()
        .map_err(|error| format!("running cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the simulator found something or could not run, see above".to_string()) }
}

/// How the simulator is built for these arguments.
fn build(arguments: &[OsString]) -> Vec<&'static str> {
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let with_value = |name: &str| arguments.iter().any(|argument| argument.to_string_lossy().starts_with(name));
    if given("--pinned") {
        return vec!["--release"];
    }
    let bugs = arguments.first().is_some_and(|first| first == "zoo") || given("--bug") || with_value("--bug=");
    if bugs { vec!["--profile", "sim", "--features", "zoo"] } else { vec!["--profile", "sim"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A campaign in a build with bugs, or a zoo without any, would prove nothing.
    #[test]
    fn bugs_are_compiled_in_only_where_they_are_asked_for() {
        let build = |line: &str| build(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>()).join(" ");
        assert_eq!(build("--seeds 10"), "--profile sim");
        assert_eq!(build("zoo --max-seeds 10"), "--profile sim --features zoo");
        assert_eq!(build("--bug x --seed 1"), "--profile sim --features zoo");
        assert_eq!(build("--seed 1 --bug=x"), "--profile sim --features zoo");
        assert_eq!(build("--pinned"), "--release");
    }
}
