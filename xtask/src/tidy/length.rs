//! Nothing is so long that it cannot be read in one sitting: limits on files and on functions.

use super::Finding;
use super::scan;
use super::tree::Tree;
use super::waivers::{LONG_FILES, LONG_FUNCTIONS, LongFile, LongFunction};

/// Lines of a Rust file. Style asks for 600; the gate leaves room for a last fix before a split.
const FILE_LINES_MAX: usize = 700;
/// Lines of a file of tests: cases are read one at a time.
const TEST_FILE_LINES_MAX: usize = 1000;
/// Lines of a function. Style asks for 70; as above.
const FUNCTION_LINES_MAX: usize = 90;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    files(tree, LONG_FILES, findings);
    functions(tree, LONG_FUNCTIONS, findings);
}

fn files(tree: &Tree, waivers: &[LongFile], findings: &mut Vec<Finding>) {
    for (file, _) in tree.rust() {
        let lines = file.text.lines().count();
        let rule_max = if file.is_test_file() { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX };
        let waiver = waivers.iter().find(|waiver| waiver.path == file.path);
        let max = waiver.map_or(rule_max, |waiver| waiver.lines);
        let advice = match waiver {
            _ if lines > max => format!("{lines} lines, {max} allowed: split it by subject, not by size"),
            Some(waiver) if lines <= rule_max => format!("no longer needs its waiver ({}): remove it", waiver.reason),
            _ => continue,
        };
        findings.push(Finding { file: file.path.clone(), line: 1, rule: "file-length", advice });
    }
    for waiver in waivers.iter().filter(|waiver| tree.get(waiver.path).is_none()) {
        findings.push(stale(waiver.path, "file-length", "waives a file that does not exist"));
    }
}

fn functions(tree: &Tree, waivers: &[LongFunction], findings: &mut Vec<Finding>) {
    let mut used = vec![false; waivers.len()];
    for (file, rust) in tree.rust() {
        for function in scan::functions(&rust.views.code) {
            if function.lines <= FUNCTION_LINES_MAX {
                continue;
            }
            let waiver = waivers.iter().position(|w| w.path == file.path && w.name == function.name);
            let max = waiver.map_or(FUNCTION_LINES_MAX, |at| waivers[at].lines);
            if let Some(at) = waiver {
                used[at] = true;
            }
            if function.lines > max {
                let advice = format!("fn {} has {} lines, {max} allowed: split it", function.name, function.lines);
                findings.push(Finding {
                    file: file.path.clone(),
                    line: function.line,
                    rule: "function-length",
                    advice,
                });
            }
        }
    }
    for (waiver, _) in waivers.iter().zip(used).filter(|(_, used)| !used) {
        let what = format!("waives fn {} ({}), which is short or gone", waiver.name, waiver.reason);
        findings.push(stale(waiver.path, "function-length", &what));
    }
}

fn stale(path: &str, rule: &'static str, what: &str) -> Finding {
    Finding { file: path.to_string(), line: 1, rule, advice: format!("waivers.rs {what}: remove the line") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "x();\n".repeat(lines - 2))
    }

    /// The limit is the point of the rule: one line over is a finding, the limit itself is not.
    #[test]
    fn one_line_over_the_limit_is_a_finding() {
        for (lines, wanted) in [(FUNCTION_LINES_MAX, 0), (FUNCTION_LINES_MAX + 1, 1)] {
            let mut findings = Vec::new();
            functions(&Tree::of(&[("a.rs", &long(lines))]), &[], &mut findings);
            assert_eq!(findings.len(), wanted, "{findings:?}");
        }
        for (path, lines, wanted) in
            [("a.rs", 701, 1), ("a.rs", 700, 0), ("tests/a.rs", 701, 0), ("a_tests.rs", 1001, 1)]
        {
            let mut findings = Vec::new();
            files(&Tree::of(&[(path, &"\n".repeat(lines))]), &[], &mut findings);
            assert_eq!(findings.len(), wanted, "{path} {lines}");
        }
    }

    /// A waiver that outlives its reason would let the next long function in unseen.
    #[test]
    fn a_waiver_holds_up_to_its_limit_and_must_be_needed() {
        let waiver = || LongFunction { path: "a.rs", name: "f", lines: 95, reason: "a table" };
        for (lines, wanted) in [(90, 1), (95, 0), (96, 1)] {
            let mut findings = Vec::new();
            functions(&Tree::of(&[("a.rs", &long(lines))]), &[waiver()], &mut findings);
            assert_eq!(findings.len(), wanted, "{lines}: {findings:?}");
        }
    }
}
