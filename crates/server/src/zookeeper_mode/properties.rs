//! The format of a zoo.cfg: Java properties, as `java.util.Properties` reads them.
//!
//! What holds: a file that Java reads is read here with the same keys and values, trimmed as ZooKeeper trims them.
//! One thing differs: the file is UTF-8, where Java takes every byte for a Latin letter.

use std::iter::Peekable;
use std::str::Chars;

/// What Java skips between a key and its value and at the beginning of a line.
const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: String,
    /// Where it begins, counted from one.
    pub(crate) line: usize,
}

/// Reads the text of a file; the error names the line.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, String> {
    logical_lines(text).into_iter().map(|(line, text)| entry(line, &text)).collect()
}

/// Lines without comments and blank ones, with those put together that a backslash at the end continues.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (at, natural) in text.split('\n').enumerate() {
        let natural = natural.trim_start_matches(BLANKS);
        // A comment cannot be continued, and what continues a line is no comment.
        if begun.is_none() && (natural.is_empty() || natural.starts_with(['#', '!'])) {
            continue;
        }
        let (line, mut whole) = begun.take().unwrap_or((at + 1, String::new()));
        let backslashes = natural.len() - natural.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            whole.push_str(&natural[..natural.len() - 1]);
            begun = Some((line, whole));
        } else {
            whole.push_str(natural);
            lines.push((line, whole));
        }
    }
    lines.extend(begun);
    lines
}

fn entry(line: usize, text: &str) -> Result<Entry, String> {
    let mut rest = text.chars().peekable();
    let key = unescaped(&mut rest, true).map_err(|what| format!("line {line}: {what}"))?;
    skip_blanks(&mut rest);
    if rest.next_if(|&separator| separator == '=' || separator == ':').is_some() {
        skip_blanks(&mut rest);
    }
    let value = unescaped(&mut rest, false).map_err(|what| format!("line {line}: {what}"))?;
    Ok(Entry { key: key.trim().to_owned(), value: value.trim().to_owned(), line })
}

fn skip_blanks(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|letter| BLANKS.contains(letter)).is_some() {}
}

/// What comes next, up to the end of the key or of the line.
fn unescaped(rest: &mut Peekable<Chars<'_>>, is_key: bool) -> Result<String, String> {
    let ends_key = |letter: char| is_key && (letter == '=' || letter == ':' || BLANKS.contains(&letter));
    let mut text = String::new();
    while let Some(letter) = rest.next_if(|&letter| !ends_key(letter)) {
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        match rest.next() {
            Some('t') => text.push('\t'),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('f') => text.push('\u{c}'),
            Some('u') => text.push(code_point(rest)?),
            Some(other) => text.push(other),
            None => {}
        }
    }
    Ok(text)
}

/// Four hexadecimal digits. Java takes halves of surrogate pairs one by one; nothing in a zoo.cfg needs them.
fn code_point(rest: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    let digits: String = rest.by_ref().take(4).collect();
    let all_digits = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let found = u32::from_str_radix(&digits, 16).ok().filter(|_| all_digits).and_then(char::from_u32);
    found.ok_or_else(|| format!("\\u{digits} is not a character: write \\u and four hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        read(text).unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    /// Every zoo.cfg in the world is in this format; a value that is misread starts another server than the one
    /// described.
    #[test]
    fn a_file_is_read_as_java_reads_it() {
        for (text, key, value) in [
            ("tickTime=2000", "tickTime", "2000"),
            ("  tickTime = 2000  ", "tickTime", "2000"),
            ("tickTime:2000", "tickTime", "2000"),
            ("tickTime 2000", "tickTime", "2000"),
            ("tickTime\t:\t2000", "tickTime", "2000"),
            ("server.1=a:2888:3888;2181", "server.1", "a:2888:3888;2181"),
            ("dataDir=/a b/c", "dataDir", "/a b/c"),
            ("dataDir=C:\\\\zk", "dataDir", "C:\\zk"),
            ("a\\=b\\:c=d=e", "a=b:c", "d=e"),
            ("list=one,\\\n   two,\\\r\n\tthree", "list", "one,two,three"),
            ("even=x\\\\\nnext=y", "even", "x\\"),
            ("word=\\u00e4\\u0041", "word", "äA"),
            ("tab=a\\tb", "tab", "a\tb"),
            ("other=\\q", "other", "q"),
            ("alone", "alone", ""),
            ("last=x\\", "last", "x"),
            ("a==b", "a", "=b"),
        ] {
            assert_eq!(pairs(text).first(), Some(&pair(key, value)), "{text:?}");
        }
    }

    /// A comment that were read as a setting, or a setting lost behind one, would not be noticed.
    #[test]
    fn comments_and_blank_lines_say_nothing() {
        let text = "# a=1\n! b=2\n\n   # c=3 \\\nd=4\r! e=5\r\n\t\nf=6\\\n# g\n\\\n\nh=7";
        // What continues a line is no comment, and a blank line ends it.
        assert_eq!(pairs(text), [pair("d", "4"), pair("f", "6# g"), pair("", ""), pair("h", "7")]);
        assert_eq!(pairs(""), []);
        let lines: Vec<usize> = read(text).unwrap().iter().map(|entry| entry.line).collect();
        assert_eq!(lines, [5, 8, 10, 12]);
    }

    /// A broken escape must stop the start and say where it is.
    #[test]
    fn a_broken_escape_is_refused_with_its_line() {
        for text in ["a=1\nb=\\u12", "a=1\nb=\\u12zz", "a=1\nb=\\ud800", "a=1\n\\u+123=b"] {
            let problem = read(text).unwrap_err();
            assert!(problem.starts_with("line 2: \\u"), "{text:?}: {problem}");
        }
    }

    proptest::proptest! {
        /// A file is input like any other: whatever is in it, reading ends with an answer.
        #[test]
        fn nothing_in_a_file_makes_reading_panic(text in "([a-z=:#! \\\\\\t\\f\\r\\nu0]|\\PC){0,60}") {
            let _ = read(&text);
        }
    }
}
