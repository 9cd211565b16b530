//! Cuts Rust text into code, comments and literals, so that a rule about code is not tripped by a
//! comment that mentions it, nor by the rule's own table.
//!
//! The views have the shape of the original: same lines, same columns (in characters), blanks for
//! everything else. The cutting knows strings, raw strings, characters, lifetimes and
//! nested comments, which is all that can hide a brace or a quote; it does not parse Rust.

/// Two views of one file; literals are in neither.
pub(super) struct Views {
    /// What the compiler sees, literals blanked.
    pub(super) code: String,
    /// Line, block and doc comments.
    pub(super) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Cuts `text`.
pub(super) fn views(text: &str) -> Views {
    let chars: Vec<char> = text.chars().collect();
    let kinds = classify(&chars);
    let view = |wanted: Kind| -> String {
        chars.iter().zip(&kinds).map(|(&c, &kind)| if kind == wanted || c == '\n' { c } else { ' ' }).collect()
    };
    Views { code: view(Kind::Code), comments: view(Kind::Comment) }
}

fn classify(chars: &[char]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; chars.len()];
    let mut at = 0;
    while at < chars.len() {
        let (kind, end) = token(chars, at);
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// The kind of what starts at `at`, and where it ends.
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let here = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    match (here(0), here(1)) {
        ('/', '/') => (Kind::Comment, find(chars, at, '\n')),
        ('/', '*') => (Kind::Comment, block_comment_end(chars, at)),
        ('"', _) => (Kind::Literal, quoted_end(chars, at, '"')),
        ('r', '"' | '#') if starts_word(chars, at) => raw_string(chars, at),
        ('\'', '\\') => (Kind::Literal, quoted_end(chars, at, '\'')),
        ('\'', _) if here(2) == '\'' => (Kind::Literal, at + 3),
        _ => (Kind::Code, at + 1),
    }
}

/// Whether an `r` at `at` can open a raw string: it is not the tail of a word, `br` and `cr` apart.
fn starts_word(chars: &[char], at: usize) -> bool {
    let word = |offset: usize| {
        at.checked_sub(offset).and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric() || *c == '_')
    };
    let prefix = at.checked_sub(1).is_some_and(|before| matches!(chars[before], 'b' | 'c'));
    !word(1) || (prefix && !word(2))
}

fn raw_string(chars: &[char], at: usize) -> (Kind, usize) {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return (Kind::Code, at + 1); // A raw identifier such as r#type.
    }
    let closes = |quote: usize| {
        chars[quote] == '"' && chars[quote + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    let end = (open + 1..chars.len()).find(|quote| closes(*quote));
    (Kind::Literal, end.map_or(chars.len(), |quote| quote + 1 + hashes))
}

fn quoted_end(chars: &[char], at: usize, quote: char) -> usize {
    let mut next = at + 1;
    while next < chars.len() {
        match chars[next] {
            '\\' => next += 2,
            c if c == quote => return next + 1,
            _ => next += 1,
        }
    }
    chars.len()
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut next = at;
    while next + 1 < chars.len() {
        match (chars[next], chars[next + 1]) {
            ('/', '*') => (depth, next) = (depth + 1, next + 2),
            ('*', '/') => (depth, next) = (depth - 1, next + 2),
            _ => next += 1,
        }
        if depth == 0 {
            return next;
        }
    }
    chars.len()
}

fn find(chars: &[char], from: usize, wanted: char) -> usize {
    chars[from..].iter().position(|c| *c == wanted).map_or(chars.len(), |offset| from + offset)
}

/// A function and the lines it spans, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Its name.
    pub(super) name: String,
    /// The line of its `fn`.
    pub(super) line: usize,
    /// Lines from there to its closing brace.
    pub(super) lines: usize,
}

/// The functions with a body in `code` (a code view).
pub(super) fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts = at == 0 || !is_word_byte(bytes[at - 1]);
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !starts || name.is_empty() {
            continue;
        }
        let Some(body) = body_start(bytes, at) else { continue };
        let end = matching_brace(bytes, body);
        let line_of = |to: usize| 1 + bytes[..to].iter().filter(|byte| **byte == b'\n').count();
        let line = line_of(at);
        found.push(Function { name, line, lines: line_of(end) - line + 1 });
    }
    found
}

/// The opening brace of the body of the function whose `fn` is at `at`; `None` for a declaration.
fn body_start(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (next, byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(next),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn matching_brace(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0i32;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether `text` at byte `at` begins a word of its own: no letter, digit or underscore before it.
pub(super) fn begins_word(text: &str, at: usize) -> bool {
    at == 0 || !is_word_byte(text.as_bytes()[at - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule about code that is tripped by a string or a comment teaches people to write around it.
    #[test]
    fn strings_and_comments_are_not_code() {
        let views = views("let a = \"x{\\\"\"; // note {\nlet b = r#\"y\"}\"#; /* a /* b */ c */ let c = '{';");
        assert_eq!(views.code.split_whitespace().collect::<Vec<_>>().join(" "), "let a = ; let b = ; let c = ;");
        assert!(views.comments.contains("// note {") && views.comments.contains("/* a /* b */ c */"));
    }

    /// `'a` is no opening quote: taken for one it would hide the rest of the file from every rule.
    #[test]
    fn a_lifetime_does_not_hide_what_follows() {
        let views = views("fn f<'a>(x: &'a str) -> r#type { '\\'' ; todo }");
        assert!(views.code.contains("<'a>(x: &'a str) -> r#type {") && views.code.contains("todo }"));
    }

    /// Lengths must count the function, not the file, and array types hold semicolons too.
    #[test]
    fn a_functions_length_ends_at_its_own_brace() {
        let code = "fn short(x: [u8; 2]) {\n}\ntrait T { fn declared(&self); }\nfn long() {\n  if x {\n  }\n}\n";
        let found = functions(code);
        let want = |name: &str, line, lines| Function { name: name.into(), line, lines };
        assert_eq!(found, [want("short", 1, 2), want("long", 4, 4)]);
    }
}
