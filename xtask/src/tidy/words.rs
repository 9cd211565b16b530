//! Words that may not stand in the tree, or only in some places of it.
//!
//! Rules about code look at code alone, so that a comment may speak of what is banned; rules about
//! unfinished work look at comments too. The tables below are string literals and trip none of them.

use super::Finding;
use super::scan::begins_word;
use super::tree::{File, Rust, Tree};

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        let mut report = |line, rule, advice: &str| {
            findings.push(Finding { file: file.path.clone(), line, rule, advice: advice.to_string() });
        };
        unfinished(rust, &mut report);
        endless_queues(rust, &mut report);
        raft(file, rust, &mut report);
        impure(file, rust, &mut report);
        crate_doc(file, &mut report);
    }
    for file in &tree.files {
        let mut report = |line, rule, advice: &str| {
            findings.push(Finding { file: file.path.clone(), line, rule, advice: advice.to_string() });
        };
        machine_paths(file, &mut report);
        file_name(file, &mut report);
    }
}

type Report<'a> = dyn FnMut(usize, &'static str, &str) + 'a;

/// Lines (from 1) of `view` that hold `word` as the beginning of a word.
fn lines_with<'a>(view: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let holds = move |line: &str| line.match_indices(word).any(|(at, _)| begins_word(line, at));
    view.lines().enumerate().filter(move |(_, line)| holds(line)).map(|(at, _)| at + 1)
}

fn unfinished(rust: &Rust, report: &mut Report<'_>) {
    for word in ["todo!(", "unimplemented!("] {
        for line in lines_with(&rust.views.code, word) {
            report(line, "unfinished", "code that is not written yet does not enter the tree");
        }
    }
    for word in ["FIXME", "XXX"] {
        for view in [&rust.views.code, &rust.views.comments] {
            for line in lines_with(view, word) {
                report(line, "unfinished", "fix it now, or say as a sentence what is missing and why that is fine");
            }
        }
    }
}

/// clippy.toml bans the calls it can resolve; this also catches the types and renamed imports.
fn endless_queues(rust: &Rust, report: &mut Report<'_>) {
    const WORDS: [&str; 7] = [
        "unbounded_channel",
        "unbounded(",
        "unbounded::",
        "UnboundedSender",
        "UnboundedReceiver",
        "std::sync::mpsc::channel",
        "mpsc::channel()",
    ];
    for word in WORDS {
        for line in lines_with(&rust.views.code, word) {
            report(line, "unbounded", "every queue has a bound with a name: use a bounded channel");
        }
    }
}

/// Where the Raft library may be named. Its types stop there, so the rest of the tree does not depend
/// on its quirks and a reader finds all of them in one place.
const RAFT_HOME: &str = "crates/replica/src/consensus";

fn raft(file: &File, rust: &Rust, report: &mut Report<'_>) {
    if file.path.starts_with(RAFT_HOME) {
        return;
    }
    for (at, line) in rust.views.code.lines().enumerate() {
        // A module of ours reached through a longer path may be called raft; the library may not.
        let named = line.match_indices("raft").any(|(start, word)| {
            let rest = &line[start + word.len()..];
            let of_a_path = line[..start].ends_with("::") && !line[..start].trim().is_empty();
            begins_word(line, start) && !of_a_path && (rest.starts_with("::") || line.trim_start() == "use raft;")
        });
        if named {
            report(at + 1, "raft-home", "the Raft library is named only under crates/replica/src/consensus*");
        }
    }
}

/// Crates whose answers must not differ between machines or replays.
pub(super) const PURE: [&str; 4] = ["crates/model/", "crates/tree/", "crates/state/", "crates/replica/"];

/// Whether a file is part of what a pure crate ships; its examples and benches may look at the clock.
fn is_pure(path: &str) -> bool {
    PURE.iter().any(|pure| path.strip_prefix(pure).is_some_and(|rest| rest.starts_with("src/")))
}

/// Clippy bans the clock, threads and hash maps there by resolving names; floats have no name to ban,
/// and the rest is caught here even where a macro or an alias hides it from clippy.
fn impure(file: &File, rust: &Rust, report: &mut Report<'_>) {
    if !is_pure(&file.path) {
        return;
    }
    for word in ["f32", "f64", "Instant", "SystemTime", "HashMap", "HashSet", "thread_rng", "tokio::", "rand::"] {
        for line in lines_with(&rust.views.code, word).filter(|line| !rust.is_test(*line)) {
            let advice =
                format!("`{word}` may differ between replicas or replays: take an input or use an ordered type");
            report(line, "impure", &advice);
        }
    }
}

fn crate_doc(file: &File, report: &mut Report<'_>) {
    if file.path.ends_with("src/lib.rs") && !file.text.starts_with("//!") {
        report(1, "crate-doc", "begin with a //! comment: what the crate is for, what holds, what it refuses");
    }
}

/// Paths of one machine. Tests may use such names as keys, and say `temp_dir` for files; but a path
/// into somebody's checkout or home is wrong everywhere.
fn machine_paths(file: &File, report: &mut Report<'_>) {
    const ADVICE: &str = "a path of one machine: take it as an argument, or use a temporary directory";
    if file.path.starts_with("xtask/src/tidy/") {
        return; // This table.
    }
    let holds = |line: &str, word: &str| {
        let starts_path =
            |at: usize| at == 0 || !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '/' || c == '.');
        line.match_indices(word).any(|(at, _)| starts_path(at))
    };
    for (at, line) in file.text.lines().enumerate() {
        let line_number = at + 1;
        let words: &[&str] = match &file.rust {
            Some(rust) if rust.is_test(line_number) => &["/home/", "/root/."],
            Some(_) => &["/home/", "/root/", "/tmp/"],
            None => &["/home/", "/root/"],
        };
        if words.iter().any(|word| holds(line, word)) {
            report(line_number, "machine-path", ADVICE);
        }
    }
}

fn file_name(file: &File, report: &mut Report<'_>) {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let directories = file.path.split('/').rev().skip(1).map(str::to_ascii_lowercase);
    for part in std::iter::once(stem).chain(directories) {
        let vague =
            |word: &str| matches!(word, "util" | "utils" | "common" | "helper" | "helpers" | "manager" | "misc");
        if part.split(['_', '-']).any(vague) {
            report(1, "vague-name", "name the file after what is in it, so that a newcomer can guess it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    /// Each rule must be able to fire, or it guards nothing.
    #[test]
    fn every_banned_word_is_found() {
        for (path, text, rule) in [
            ("a.rs", "fn f() { todo!() }", "unfinished"),
            ("a.rs", "// FIXME: later\n", "unfinished"),
            ("a.rs", "use tokio::sync::mpsc::unbounded_channel as queue;", "unbounded"),
            ("a.rs", "let (tx, rx) = mpsc::channel();", "unbounded"),
            ("crates/node/src/run.rs", "use raft::Config;", "raft-home"),
            ("crates/replica/src/replica.rs", "fn f(x: raft::Config) {}", "raft-home"),
            ("crates/state/src/apply.rs", "let share = 0.5f64; let y: f64 = share;", "impure"),
            ("crates/model/src/key.rs", "use std::collections::HashMap;", "impure"),
            ("crates/model/src/lib.rs", "mod key;", "crate-doc"),
            ("a.rs", "let path = \"/tmp/x\";", "machine-path"),
            ("docs/a.md", "see /home/ada/x", "machine-path"),
            ("a.rs", "#[cfg(test)]\nmod tests {\nlet p = \"/home/ada/x\";\n}", "machine-path"),
            ("crates/node/src/utils.rs", "", "vague-name"),
            ("crates/node/src/peer_manager.rs", "", "vague-name"),
            ("docs/common/a.md", "", "vague-name"),
        ] {
            assert_eq!(rules(path, text), [rule], "{path}: {text}");
        }
    }

    /// A false alarm costs more than the rule is worth: people learn to ignore it.
    #[test]
    fn what_only_looks_like_a_banned_word_is_left_alone() {
        for (path, text) in [
            ("a.rs", "// An unbounded_channel would not do, and raft::Config is not ours.\n"),
            ("a.rs", "let word = \"todo!()\"; let n = mpsc::channel(8);"),
            ("a.rs", "use crate::raft::Thing;"),
            ("a.rs", "use draft::Thing;"),
            ("crates/replica/src/consensus.rs", "use raft::Config;"),
            ("crates/replica/src/consensus/storage.rs", "use raft::Config;"),
            ("crates/node/src/run.rs", "use std::time::Instant;"),
            ("crates/state/examples/weigh.rs", "use std::time::Instant;"),
            (
                "crates/state/src/apply.rs",
                "// No f64 and no HashMap here.\n#[cfg(test)]\nmod tests {\nuse std::collections::HashMap;\n}",
            ),
            ("a.rs", "let url = \"http://host/home/item\";"),
            ("tests/a.rs", "let znode = \"/tmp/queue\";"),
            ("crates/node/src/commonly_asked.rs", ""),
        ] {
            assert_eq!(rules(path, text), [""; 0], "{path}: {text}");
        }
    }
}
