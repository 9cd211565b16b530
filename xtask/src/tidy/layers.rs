//! Who may depend on whom. The picture is in ARCHITECTURE.md; this is the same as a table.
//!
//! No arrow points up, faces do not see each other, and the crates whose answers must be the same on
//! every machine depend on nothing that could make them differ. A new arrow is a line here, and a
//! review deserves to see it.

use toml::{Table, Value};

use super::Finding;
use super::tree::{File, Tree};
use super::words::PURE;

/// A crate and those of ours it may name. `face-*` stands for every face.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("tree", &[]),
    ("state", &["model", "tree"]),
    ("replica", &["model", "tree", "state"]),
    ("coordinator", &["model"]),
    ("journal", &["model"]),
    ("node", &["model", "state", "replica", "coordinator", "journal"]),
    ("etcd-api", &[]),
    ("native-api", &[]),
    ("tls", &[]),
    ("free-ports", &[]),
    ("http2", &[]),
    ("load", &["etcd-api", "native-api"]),
    ("etcd-backup", &["free-ports"]),
    ("client-port", &["model", "tls", "http2"]),
    ("face-etcd", &["model", "coordinator", "etcd-api", "etcd-backup", "tls", "http2", "client-port"]),
    ("face-native", &["model", "tree", "coordinator", "native-api", "tls", "http2", "client-port"]),
    ("face-zookeeper", &["model", "coordinator", "tls"]),
    ("face-consul", &["model", "coordinator", "tls"]),
    ("face-redis", &["model", "coordinator", "tls"]),
    ("client", &["native-api"]),
    ("console", &["model", "coordinator"]),
    ("simulator", &["model", "state", "replica", "coordinator", "journal", "node", "face-*", "etcd-api"]),
    ("conformance", &["model", "client", "etcd-api"]),
    (
        "server",
        &[
            "model",
            "coordinator",
            "node",
            "face-*",
            "console",
            "etcd-api",
            "native-api",
            "etcd-backup",
            "client",
            "tls",
            "free-ports",
            "load",
        ],
    ),
    ("xtask", &["model", "state", "etcd-api", "client", "simulator", "conformance", "free-ports", "journal", "load"]),
];

/// What the pure crates may bring in from outside, and with what right: plain data, hashing of bytes,
/// and the Raft library, whose one entropy leak is plugged in `consensus.rs`.
const PURE_OUTSIDE: &[(&str, &[&str])] = &[
    ("model", &["bytes", "triomphe", "thiserror"]),
    ("tree", &[]),
    ("state", &["bytes", "thiserror", "xxhash-rust"]),
    ("replica", &["bytes", "thiserror", "xxhash-rust", "raft", "slog"]),
];
/// What their tests may.
const PURE_OUTSIDE_TESTS: &[&str] = &["proptest", "tempfile"];

/// What each pure crate's clippy.toml must ban. A crate-level file replaces the workspace's whole one,
/// so a forgotten line is a rule that silently does not hold.
const PURE_BANS: &[&str] = &[
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::thread::sleep",
    "std::sync::mpsc::channel",
    "std::env::var",
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        let Some(name) = crate_name(&file.path) else { continue };
        let manifest: Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                let advice = format!("cannot be read: {error}");
                findings.push(Finding { file: file.path.clone(), line: 1, rule: "manifest", advice });
                continue;
            }
        };
        for dependency in dependencies(&manifest) {
            arrow(file, name, &dependency, findings);
            outside(file, name, &dependency, findings);
        }
    }
    for pure in PURE {
        bans(tree, pure, findings);
    }
}

/// The crate a manifest describes, without the `tidelock-` prefix of its package.
fn crate_name(path: &str) -> Option<&str> {
    match path {
        "xtask/Cargo.toml" => Some("xtask"),
        _ => path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/')),
    }
}

struct Dependency {
    name: String,
    for_tests: bool,
}

fn dependencies(manifest: &Table) -> Vec<Dependency> {
    let mut found = Vec::new();
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = platforms.filter_map(Value::as_table).chain([manifest]);
    for table in tables {
        for (section, for_tests) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            let Some(section) = table.get(section).and_then(Value::as_table) else { continue };
            for (key, value) in section {
                // A renamed dependency is the package it renames.
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                found.push(Dependency { name: package.to_string(), for_tests });
            }
        }
    }
    found
}

fn arrow(file: &File, name: &str, dependency: &Dependency, findings: &mut Vec<Finding>) {
    let Some(ours) = dependency.name.strip_prefix("tidelock-") else { return };
    let advice = match ARROWS.iter().find(|(from, _)| *from == name) {
        None => format!("crate {name} is not in the table of xtask/src/tidy/layers.rs: decide what it may depend on"),
        Some((_, to)) if to.iter().any(|to| matches(to, ours)) => return,
        Some((_, to)) => {
            format!("{name} may depend on {to:?} of our crates, not on {ours}: no arrow points up or sideways")
        }
    };
    findings.push(finding(file, &dependency.name, "layers", advice));
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern == name || pattern.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix))
}

fn outside(file: &File, name: &str, dependency: &Dependency, findings: &mut Vec<Finding>) {
    if dependency.name.starts_with("tidelock-") {
        return;
    }
    if dependency.name.starts_with("raft") && name != "replica" {
        let advice = "only crates/replica may depend on the Raft library".to_string();
        findings.push(finding(file, &dependency.name, "raft-home", advice));
    }
    let Some((_, allowed)) = PURE_OUTSIDE.iter().find(|(pure, _)| *pure == name) else { return };
    let for_tests = dependency.for_tests && PURE_OUTSIDE_TESTS.contains(&dependency.name.as_str());
    if !for_tests && !allowed.contains(&dependency.name.as_str()) {
        let advice = format!(
            "{name} must give the same answer on every machine: {} is not on its list in xtask/src/tidy/layers.rs",
            dependency.name
        );
        findings.push(finding(file, &dependency.name, "pure", advice));
    }
}

fn bans(tree: &Tree, pure: &str, findings: &mut Vec<Finding>) {
    if !tree.files.iter().any(|file| file.path.starts_with(pure)) {
        return;
    }
    let path = format!("{pure}clippy.toml");
    let text = tree.get(&path).map(|file| file.text.as_str()).unwrap_or_default();
    for ban in PURE_BANS {
        if !text.contains(&format!("\"{ban}\"")) {
            let advice = format!("must ban {ban}, as the other pure crates do");
            findings.push(Finding { file: path.clone(), line: 1, rule: "pure", advice });
        }
    }
}

/// Points at the dependency's line, or at the top if it is written in some other way.
fn finding(file: &File, dependency: &str, rule: &'static str, advice: String) -> Finding {
    let line = file.text.lines().position(|line| line.trim_start().starts_with(dependency)).unwrap_or(0) + 1;
    Finding { file: file.path.clone(), line, rule, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree::of(files), &mut findings);
        findings.iter().map(|finding| format!("{}:{} {}", finding.file, finding.line, finding.rule)).collect()
    }

    /// One arrow the wrong way and "faces share one core" is no longer true.
    #[test]
    fn an_arrow_that_points_up_or_sideways_is_found() {
        let up = "[dependencies]\nbytes.workspace = true\ntidelock-node.workspace = true\n";
        assert_eq!(findings(&[("crates/coordinator/Cargo.toml", up)]), ["crates/coordinator/Cargo.toml:3 layers"]);
        let sideways = "[dev-dependencies]\ntidelock-face-etcd = { path = \"../face-etcd\" }\n";
        assert_eq!(findings(&[("crates/face-redis/Cargo.toml", sideways)]), ["crates/face-redis/Cargo.toml:2 layers"]);
        let unknown = "[dependencies]\ntidelock-model.workspace = true\n";
        assert_eq!(findings(&[("crates/surprise/Cargo.toml", unknown)]), ["crates/surprise/Cargo.toml:2 layers"]);
        let fine = "[dependencies]\ntidelock-face-etcd.workspace = true\ntidelock-node.workspace = true\n";
        assert_eq!(findings(&[("crates/server/Cargo.toml", fine)]), [""; 0]);
    }

    /// The pure crates cannot read a clock by accident if nothing that has one is in their manifest.
    #[test]
    fn a_pure_crate_takes_only_what_is_on_its_list() {
        let clippy: String = PURE_BANS.iter().map(|ban| format!("\"{ban}\"\n")).collect();
        let check =
            |manifest: &str| findings(&[("crates/state/Cargo.toml", manifest), ("crates/state/clippy.toml", &clippy)]);
        assert_eq!(check("[dependencies]\nbytes = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n"), [""; 0]);
        assert_eq!(check("[dependencies]\nproptest = \"1\"\n"), ["crates/state/Cargo.toml:2 pure"]);
        assert_eq!(check("[dependencies]\nclock = { package = \"tokio\", version = \"1\" }\n").len(), 1);
        assert_eq!(check("[target.'cfg(unix)'.dependencies]\nparking_lot = \"0.12\"\n").len(), 1);
    }

    /// A crate-level clippy.toml replaces the workspace's, so a missing one bans nothing.
    #[test]
    fn a_pure_crate_without_its_bans_is_found() {
        let found = findings(&[("crates/state/src/lib.rs", "//! x")]);
        assert_eq!(found.len(), PURE_BANS.len());
    }

    /// Protobuf 2 comes in with the Raft library and is only safe while nobody else can reach it.
    #[test]
    fn only_replica_depends_on_the_raft_library() {
        assert_eq!(findings(&[("crates/node/Cargo.toml", "[dependencies]\nraft = \"0.7\"\n")]).len(), 1);
    }
}
