//! The files that are checked, read once and cut into what each rule looks at.

use std::path::Path;
use std::process::Command;

use super::scan::{self, Views};

/// Everything git tracks or would track.
pub(super) struct Tree {
    /// In the order of their paths.
    pub(super) files: Vec<File>,
}

/// One text file.
pub(super) struct File {
    /// Path from the root, with forward slashes.
    pub(super) path: String,
    /// As on disk.
    pub(super) text: String,
    /// Of a Rust file: its code and its comments apart.
    pub(super) rust: Option<Rust>,
}

/// A Rust file's views, and where its tests begin.
pub(super) struct Rust {
    /// Code and comments.
    pub(super) views: Views,
    /// The line, counted from 1, at which the test module begins; one past the end if there is none.
    /// Zero for a file that is nothing but tests.
    pub(super) tests_from: usize,
}

impl Tree {
    /// Reads what is there. Binary files are left out, they have no style.
    pub(super) fn from_git(root: &Path) -> Result<Tree, String> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("running git ls-files: {error}"))?;
        if !listing.status.success() {
            return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listing.stderr)));
        }
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
        let mut paths: Vec<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            // A file removed from disk but not yet from the index is on its way out: nothing to check.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            let text = String::from_utf8(bytes).unwrap_or_default();
            files.push(File::new(path, text));
        }
        Ok(Tree { files })
    }

    /// A tree that exists nowhere, for tests of the rules.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, (*text).to_string())).collect() }
    }

    /// The file at `path`.
    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }
}

impl File {
    fn new(path: &str, text: String) -> File {
        let rust = path.ends_with(".rs").then(|| {
            let views = scan::views(&text);
            let tests_from = if is_test_file(path) { 0 } else { first_test_line(&views.code) };
            Rust { views, tests_from }
        });
        File { path: path.to_string(), text, rust }
    }

    /// Whether the whole file is test code.
    pub(super) fn is_test_file(&self) -> bool {
        is_test_file(&self.path)
    }
}

impl Rust {
    /// Whether `line` (from 1) is test code.
    pub(super) fn is_test(&self, line: usize) -> bool {
        line >= self.tests_from
    }
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("tests.rs")
}

/// Our test modules stand last in a file, so the first line of one begins the tests.
fn first_test_line(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let module_follows = || {
            let next = lines[at + 1..].iter().find(|line| !line.trim().is_empty());
            next.is_some_and(|next| next.trim_start().starts_with("mod ") && next.contains('{'))
        };
        if line.contains("#[cfg(test)]") && module_follows() {
            return at + 1;
        }
    }
    lines.len() + 1
}
