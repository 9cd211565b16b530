//! The guides in `docs/native/` and `docs/locks-in-scripts.md`, as a reader would use them: their Rust is compiled and run against a real node, their
//! commands are run, their calls with `curl` are made, and their SQL is that of `crates/client/examples/ledger/sql`, which
//! `paused_process.rs` runs.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

/// What the guides show.
#[path = "../../../docs/native/examples"]
mod examples {
    #![allow(unreachable_pub)]
    pub mod barriers;
    pub mod counters;
    pub mod elections;
    pub mod fencing;
    pub mod locks;
    pub mod phasers;
    pub mod rcu_and_hazard;
}

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Cluster, http, within};
use tidelock_client::Client;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Name and text of all files in a directory that end like this.
fn files(directory: &str, ending: &str) -> Vec<(String, String)> {
    let listed = std::fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<(String, String)> = listed
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap()))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {directory} ends with {ending}");
    files
}

/// The blocks of one language in a document.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    let opening = format!("```{language}");
    for line in document.lines() {
        match &mut block {
            None if line == opening => block = Some(String::new()),
            Some(_) if line == "```" => found.extend(block.take()),
            Some(text) => *text += &format!("{line}\n"),
            None => {}
        }
    }
    found
}

async fn connect(port: u16) -> Client {
    within("a client", Client::connect([format!("127.0.0.1:{port}")])).await.unwrap()
}

/// Code that a reader copies must be code that runs: each block is part of a file that the test below runs.
#[test]
fn the_rust_and_sql_of_the_guides_are_those_of_the_tested_files() {
    let rust = files("docs/native/examples", ".rs");
    let sql = files("crates/client/examples/ledger/sql", ".sql");
    let mut seen = 0;
    for (page, text) in files("docs/native", ".md") {
        for block in blocks(&text, "rust") {
            let known = rust.iter().any(|(_, code)| code.contains(block.trim()));
            assert!(known, "{page} shows Rust that no file in docs/native/examples has:\n{block}");
            seen += 1;
        }
        for block in blocks(&text, "sql") {
            let known = sql.iter().any(|(_, code)| code.trim() == block.trim());
            assert!(known, "{page} shows SQL that is no file in crates/client/examples/ledger/sql:\n{block}");
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} blocks were found: are they still marked as rust and sql?");
}

/// What the guides show must work as it is shown.
#[tokio::test]
async fn the_rust_of_the_guides_runs() {
    use examples::{barriers, counters, elections, fencing, locks, phasers, rcu_and_hazard};
    let (_cluster, ports) = Cluster::start_native(1);
    let client = connect(ports[0]).await;
    within("one_at_a_time", locks::one_at_a_time(&client)).await.unwrap();
    within("stopped_when_lost", locks::stopped_when_lost(&client)).await.unwrap();
    within("readers_and_a_writer", locks::readers_and_a_writer(&client)).await.unwrap();
    within("at_most_three", locks::at_most_three(&client)).await.unwrap();
    within("one_wakes_the_next", locks::one_wakes_the_next(&client)).await.unwrap();
    within("lead", elections::lead(&client)).await.unwrap();
    within("follow", elections::follow(&client)).await.unwrap();
    let other = connect(ports[0]).await;
    within("the_next_one_follows", elections::the_next_one_follows(other, &client)).await.unwrap();
    within("start_together", barriers::start_together(&client)).await.unwrap();
    within("start_and_end_together", barriers::start_and_end_together(&client)).await.unwrap();
    within("wait_for_three_events", barriers::wait_for_three_events(&client)).await.unwrap();
    within("a_promise_that_is_not_kept", barriers::a_promise_that_is_not_kept(&client)).await.unwrap();
    within("round_after_round", phasers::round_after_round(&client)).await.unwrap();
    within("a_tree", phasers::a_tree(&client)).await.unwrap();
    within("numbers_of_its_own", counters::numbers_of_its_own(&client)).await.unwrap();
    within("compare_and_set", counters::compare_and_set(&client)).await.unwrap();
    within("only_the_holder_counts", counters::only_the_holder_counts(&client)).await.unwrap();
    within("replace", rcu_and_hazard::replace(&client)).await.unwrap();
    within("look_then_remove", rcu_and_hazard::look_then_remove(&client)).await.unwrap();
    within("only_the_holder_writes", fencing::only_the_holder_writes(&client)).await.unwrap();
    within("the_old_one_is_kept_out", fencing::the_old_one_is_kept_out(&client)).await.unwrap();
    // Long enough that a busy machine is not taken for a lost lock.
    let ttl = Duration::from_secs(4);
    within("longer_than_its_ttl", locks::longer_than_its_time_to_live(&client, ttl)).await.unwrap();
}

/// Words in capitals stand for what an earlier answer told: `"TOKEN"` for its `token`.
fn fill_in(text: &str, told: &BTreeMap<String, String>) -> String {
    told.iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("\"{name}\""), &format!("\"{value}\"")))
}

/// Keeps all numbers of an answer by their names.
fn remember(answer: &Value, told: &mut BTreeMap<String, String>) {
    for (name, value) in answer.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => drop(told.insert(name.to_uppercase(), text.clone())),
            other => remember(other, told),
        }
    }
}

/// Makes a call as `curl` would: `curl -s URL -d 'BODY'`, with the status after a `#` if it is not 200.
fn call(port: u16, line: &str, told: &mut BTreeMap<String, String>) {
    let (call, expected) = line.split_once(" # ").unwrap_or((line, "200"));
    let (url, body) = call.strip_prefix("curl -s ").unwrap().split_once(" -d ").unwrap();
    let path = url.trim_matches('\'').strip_prefix("http://127.0.0.1:7481").unwrap();
    let body = fill_in(body.trim_matches('\''), told);
    let (status, text) = http(port, "POST", path, &body).unwrap();
    assert_eq!(status.to_string(), expected, "{line}\n{body}\n{text}");
    // A refusal has numbers, too, but they are not what the next call is about.
    if status == 200 {
        remember(&serde_json::from_str(&text).unwrap(), told);
    }
}

/// Runs a block as a shell would, with `tidelock` on the path and no other node than ours in reach.
fn run(port: u16, block: &str) {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidelock"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-e", "-c", &format!("{block}\nwait")])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("TIDELOCK_NATIVE", format!("127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{block}{}\n{said}", output.status);
}

/// A command that fails as it is printed is the last one a newcomer tries.
#[test]
fn the_commands_and_calls_of_the_guides_work_as_they_are_printed() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (mut calls, mut scripts) = (0, 0);
    for (page, text) in files("docs/native", ".md").into_iter().chain(files("docs", "locks-in-scripts.md")) {
        let mut told = BTreeMap::new();
        for block in blocks(&text, "sh") {
            println!("{page}:\n{block}");
            if block.starts_with("curl") {
                for line in block.lines() {
                    call(ports[0], line, &mut told);
                    calls += 1;
                }
            } else if block.starts_with("tidelock") {
                run(ports[0], &block);
                scripts += 1;
            }
        }
    }
    assert!(calls > 20 && scripts > 5, "only {calls} calls and {scripts} scripts were found: are they marked as sh?");
}

/// The checks above are worth something only if a wrong block would be noticed.
#[test]
fn blocks_are_found_by_their_language_and_answers_are_filled_in() {
    let document = "```sh\ntidelock a\n```\ntext\n```rust\nlet a = 1;\nlet b = 2;\n```\n```\nnothing\n```\n";
    assert_eq!(blocks(document, "sh"), ["tidelock a\n"]);
    assert_eq!(blocks(document, "rust"), ["let a = 1;\nlet b = 2;\n"]);
    let mut told = BTreeMap::new();
    remember(&serde_json::json!({ "session": "7", "answer": { "place": { "token": "9" } } }), &mut told);
    assert_eq!(fill_in(r#"{"session": "SESSION", "token": "TOKEN"}"#, &told), r#"{"session": "7", "token": "9"}"#);
}
