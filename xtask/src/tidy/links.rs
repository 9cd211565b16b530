//! Every relative link in a document leads somewhere, and to a heading that exists.
//!
//! A document is only worth its upkeep if a reader can follow it. Links out to the web are not
//! followed: a build must not depend on somebody else's server.

use super::Finding;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&file.text) {
            if let Some(advice) = broken(tree, file, target) {
                findings.push(Finding { file: file.path.clone(), line, rule: "link", advice });
            }
        }
    }
}

/// Targets of inline links and images outside of code, with their lines from 1.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_fence = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        for (open, _) in line.match_indices("](") {
            // An odd number of backticks before it means that the bracket is inside inline code.
            let in_code = line[..open].matches('`').count() % 2 == 1;
            let rest = &line[open + 2..];
            if let (false, Some(close)) = (in_code, rest.find(')')) {
                let target = rest[..close].split_whitespace().next().unwrap_or_default();
                found.push((at + 1, target.trim_matches(['<', '>'])));
            }
        }
    }
    found
}

fn broken(tree: &Tree, from: &File, target: &str) -> Option<String> {
    let outside = target.contains("://") || target.starts_with("mailto:");
    if outside {
        return None;
    }
    let (path, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let path = if path.is_empty() { from.path.clone() } else { resolve(&from.path, path)? };
    let directory = format!("{}/", path.trim_end_matches('/'));
    let Some(file) = tree.get(&path) else {
        let is_directory = path.is_empty() || tree.files.iter().any(|file| file.path.starts_with(&directory));
        return (!is_directory).then(|| format!("`{target}` leads nowhere: there is no {path} in the tree"));
    };
    let heading = heading?;
    let has = !file.path.ends_with(".md") || file.text.lines().any(|line| anchor(line).as_deref() == Some(heading));
    (!has).then(|| format!("`{target}`: {path} has no such heading"))
}

/// `path` as seen from the file `from`; leaves the tree only to be found missing.
fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = if path.starts_with('/') { vec![] } else { from.split('/').collect() };
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Some(path.to_string());
                }
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchor a heading gets when it is rendered.
fn anchor(line: &str) -> Option<String> {
    let title = line.starts_with('#').then(|| line.trim_start_matches('#').trim())?;
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.collect::<String>().to_lowercase().replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_links(text: &str) -> usize {
        let tree = Tree::of(&[
            ("docs/internals/a.md", text),
            ("docs/b.md", "# The write path (one put)\n"),
            ("LICENSE", ""),
            ("crates/x/src/lib.rs", ""),
        ]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.len()
    }

    /// A page that sends its reader to a file that was moved is worse than one without the link.
    #[test]
    fn a_link_to_nothing_is_found() {
        for text in
            ["[b](b.md)", "[b](../c.md)", "[b](../b.md#no-such)", "![p](p.png)", "[a](#here)", "[b](../../../b.md)"]
        {
            assert_eq!(broken_links(text), 1, "{text}");
        }
    }

    /// False alarms would make people write around the rule.
    #[test]
    fn a_link_that_leads_somewhere_is_fine() {
        for text in [
            "[b](../b.md) [l](../../LICENSE \"title\")",
            "[b](../b.md#the-write-path-one-put)",
            "# Here\n[a](#here)",
            "[x](../../crates/x) [y](../../crates/x/src/lib.rs)",
            "[w](https://example.org/x) `[b](b.md)`",
            "```\n[b](b.md)\n```",
        ] {
            assert_eq!(broken_links(text), 0, "{text}");
        }
    }
}
