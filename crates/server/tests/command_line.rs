//! The command line as users meet it, on the real binary: where settings come from, what is refused,
//! exit codes. Nothing here needs a node.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Output, Stdio};

use support::tidelock;

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    tidelock().args(arguments).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Operators override a file by a variable and both by a flag; any other order would make an
/// emergency change have no effect.
#[test]
fn a_flag_beats_a_variable_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    std::fs::write(&file, "name = 'from-file'\nheartbeat-ms = 20\nelection-ms = 200\n").unwrap();
    let arguments = ["serve", "--check", "--config", file.to_str().unwrap(), "--name", "from-flag"];
    let output = run(&arguments, &[("TIDELOCK_NAME", "from-env"), ("TIDELOCK_HEARTBEAT_MS", "30")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in ["name = \"from-flag\"", "heartbeat-ms = 30", "election-ms = 200"] {
        assert!(shown.contains(expected), "{expected:?} is missing from:\n{shown}");
    }
}

/// Supervisors tell "fix the settings" (2) from "try again" (1) by the exit code, and a refused start
/// must leave nothing behind.
#[test]
fn wrong_settings_are_listed_with_exit_code_2_and_nothing_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let arguments =
        ["serve", "--data-dir", data.to_str().unwrap(), "--admin-listen", "0.0.0.0:1", "--heartbeat-ms", "9000"];
    let output = run(&arguments, &[]);
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("--admin-listen") && shown.contains("--election-ms"), "{shown}");
    assert!(!data.exists());
}

#[test]
fn an_unknown_command_is_a_usage_error() {
    assert_eq!(run(&["frobnicate"], &[]).status.code(), Some(2));
}

/// Somebody whose node is down must be told so, and what to do, not be left with a stack of errors.
#[test]
fn a_command_without_a_node_fails_with_exit_code_1_and_says_what_to_do() {
    // Port 1 is never ours and nobody listens there.
    for arguments in [
        &["get", "k", "--endpoints", "http://127.0.0.1:1"][..],
        &["status", "--admin", "http://127.0.0.1:1"],
        &["member", "list", "--admin", "http://127.0.0.1:1"],
    ] {
        let output = run(arguments, &[]);
        let shown = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {shown}");
        assert!(shown.contains("what to do:"), "{arguments:?}: {shown}");
    }
}

/// A transaction that was misread would be carried out all the same, so it must be refused before
/// anybody is contacted.
#[test]
fn a_malformed_transaction_is_refused_before_it_is_sent() {
    let output = run(&["txn", "--if", "mod(k) ~ 1", "--then", "put k v", "--endpoints", "http://127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("tidelock txn --help"));
}

#[test]
fn the_version_is_told() {
    let output = run(&["--version"], &[]);
    assert_eq!(text(&output.stdout).trim(), format!("tidelock {}", env!("CARGO_PKG_VERSION")));
}
