//! Our style, enforced by machine: `cargo xtask tidy`, and the same as a test of this crate.
//!
//! A rule earns its place here when a reader would otherwise have to hold it in mind during review and
//! neither the compiler, clippy nor cargo-deny can check it. Every finding names a file and a line, the
//! rule, and what to do about it. An exception is a line in `waivers.rs` with its reason; a waiver that
//! is no longer needed is itself a finding, so the table only shrinks.
//!
//! Checked are the files git tracks or would track, as they are on disk: a finding shows before the
//! commit, not after.
//!
//! Not here: formatting (rustfmt), lints and banned calls (clippy.toml), licences (deny.toml).

mod layers;
mod length;
mod links;
mod scan;
mod tree;
mod waivers;
mod words;

use std::fmt;
use std::path::Path;

use tree::Tree;

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the root of the repository.
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) line: usize,
    /// Short name of the rule.
    pub(crate) rule: &'static str,
    /// What is wrong and what to do.
    pub(crate) advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file, self.line, self.rule, self.advice)
    }
}

/// Checks the repository at `root`; an empty list is a tidy one.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    Ok(check_tree(&Tree::from_git(root)?))
}

fn check_tree(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    length::check(tree, &mut findings);
    words::check(tree, &mut findings);
    layers::check(tree, &mut findings);
    links::check(tree, &mut findings);
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gate itself: what a reviewer is promised holds for the repository as it is on disk.
    #[test]
    fn the_repository_is_tidy() {
        let findings = check(&crate::workspace::root()).unwrap();
        let list: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "{} finding(s):\n{}", list.len(), list.join("\n"));
    }
}
