//! The commands in README.md, as a newcomer would paste them: every `tidelock` line of its shell blocks
//! is run against a real node, or checked where running it would start one or needs more members.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use support::{Cluster, tidelock};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words of every `tidelock` command in the shell blocks of a document, without `tidelock` itself.
fn commands(document: &str) -> Vec<Vec<String>> {
    let mut in_shell = false;
    let mut lines = Vec::new();
    for line in document.lines() {
        match line.strip_prefix("```") {
            Some(language) => in_shell = language == "sh",
            None if in_shell => lines.push(line),
            None => {}
        }
    }
    let whole = lines.join("\n").replace("\\\n", " ");
    whole.lines().filter_map(|line| line.trim().strip_prefix("tidelock")).map(words).collect()
}

/// Splits as a shell would, as far as the examples need it: spaces, and both kinds of quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '\'' | '"' => rest[1..].find(first).expect("the quote is closed") + 1,
            _ => rest.find(' ').unwrap_or(rest.len()),
        };
        words.push(rest[..end].trim_start_matches(['\'', '"']).to_owned());
        rest = rest[end..].trim_start_matches(['\'', '"']).trim_start();
    }
    words
}

/// The command without its addresses, which are those of the reader's machine.
fn without_addresses(words: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--endpoints" | "--admin" => _ = words.next(),
            _ => kept.push(word.clone()),
        }
    }
    kept
}

fn run(cluster: &Cluster, arguments: &[String]) -> Output {
    tidelock()
        .args(arguments)
        .current_dir(root())
        .env("TIDELOCK_ENDPOINTS", cluster.endpoints())
        .env("TIDELOCK_ADMIN", cluster.admins())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A first command that fails is the last one a newcomer tries.
#[test]
fn every_command_in_the_readme_works() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let commands = commands(&readme);
    assert!(commands.len() >= 10, "only {} commands were found: are the blocks still marked as sh?", commands.len());
    let cluster = Cluster::start(1);
    for command in commands {
        let text = command.join(" ");
        let mut arguments = without_addresses(&command);
        // These would go on for ever; their settings are checked as if they did.
        match arguments.first().map(String::as_str) {
            Some("serve") if !text.contains("--check") => arguments.push("--check".into()),
            Some("dev") | None => arguments.push("--help".into()),
            _ => {}
        }
        let output = run(&cluster, &arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        // The one node there is has no b to hand over to, and no d to remove.
        let is_about_others = text.starts_with("member transfer") || text.starts_with("member remove");
        let works = if is_about_others { told.contains("there is no member") } else { output.status.success() };
        assert!(works, "tidelock {text}: {}\n{told}", output.status);
    }
}

/// The check above is worth something only if a wrong line would be noticed.
#[test]
fn commands_are_found_in_shell_blocks_and_split_like_a_shell_does() {
    let document =
        "tidelock no\n```sh\ntidelock put k 'a b' \\\n  --lease \"\"\ncargo run\n```\n```text\ntidelock no\n```\n";
    assert_eq!(commands(document), [["put", "k", "a b", "--lease", ""]]);
}
