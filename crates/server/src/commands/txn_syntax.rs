//! The small language of `tidelock txn`, read into etcd's wire types.
//!
//! ```text
//! condition   mod(KEY) = 17     create version lease value likewise, with = != < >
//!             exists(KEY)       missing(KEY)
//! operation   put KEY VALUE [lease=ID]     get KEY [END] [prefix]     del KEY [END] [prefix]
//! script      lines that begin with if, then or else; blank lines and lines that begin with # are skipped
//! ```
//!
//! Words end at white space; inside double quotes white space is kept and `\"` `\\` `\n` `\t` `\xHH` are
//! read as the byte they name. What is not understood is refused with the place it stands at; nothing
//! is guessed, because a transaction that was misread is carried out all the same.

use bytes::Bytes;
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tidelock_etcd_api::etcdserverpb::request_op::Request;

use super::connection::prefix_range;
use crate::cli::parse_lease;

/// A word, and whether it was quoted: a quoted `"prefix"` is a key, not the option.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    bytes: Vec<u8>,
    quoted: bool,
}

/// Reads one condition.
pub(super) fn parse_condition(text: &str) -> Result<pb::Compare, String> {
    let text = text.trim();
    let wrong = |why: &str| format!("condition {text:?}: {why}");
    let (subject, rest) = text.split_once('(').ok_or_else(|| wrong("expected something like mod(KEY) = 17"))?;
    let (key, rest) = read_key(rest).map_err(|why| wrong(&why))?;
    let rest = rest.trim();
    if key.is_empty() {
        return Err(wrong("the key is empty"));
    }
    let target = match subject.trim() {
        "exists" | "missing" if !rest.is_empty() => {
            return Err(wrong("nothing may follow exists(KEY) or missing(KEY)"));
        }
        "exists" => return Ok(compare(key, CompareResult::Greater, TargetUnion::Version(0))),
        "missing" => return Ok(compare(key, CompareResult::Equal, TargetUnion::Version(0))),
        other => other,
    };
    let (result, operand) = split_operator(rest).ok_or_else(|| wrong("expected = != < or > after the key"))?;
    let number = |operand: &str| {
        operand.parse::<i64>().map_err(|_| wrong(&format!("{operand:?} is not a number to compare {target} with")))
    };
    let operand = operand.trim();
    if operand.is_empty() {
        return Err(wrong("there is nothing to compare with"));
    }
    let target = match target {
        "mod" => TargetUnion::ModRevision(number(operand)?),
        "create" => TargetUnion::CreateRevision(number(operand)?),
        "version" => TargetUnion::Version(number(operand)?),
        "lease" => TargetUnion::Lease(parse_lease(operand).map_err(|why| wrong(&why))?),
        "value" => match words(operand).map_err(|why| wrong(&why))?.as_slice() {
            [word] => TargetUnion::Value(word.bytes.clone().into()),
            _ => return Err(wrong("put a value of several words in double quotes")),
        },
        other => {
            return Err(wrong(&format!("{other:?} is not one of mod create version lease value exists missing")));
        }
    };
    Ok(compare(key, result, target))
}

fn compare(key: Vec<u8>, result: CompareResult, target: TargetUnion) -> pb::Compare {
    let kind = match &target {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    pb::Compare {
        result: result.into(),
        target: kind.into(),
        key: key.into(),
        range_end: Bytes::new(),
        target_union: Some(target),
    }
}

fn split_operator(text: &str) -> Option<(CompareResult, &str)> {
    [
        ("!=", CompareResult::NotEqual),
        ("==", CompareResult::Equal),
        ("=", CompareResult::Equal),
        ("<", CompareResult::Less),
        (">", CompareResult::Greater),
    ]
    .into_iter()
    .find_map(|(sign, result)| text.strip_prefix(sign).map(|rest| (result, rest)))
}

/// The key between parentheses, the opening one already read, and what follows the closing one.
fn read_key(text: &str) -> Result<(Vec<u8>, &str), String> {
    let text = text.trim_start();
    if text.starts_with('"') {
        let (bytes, rest) = read_quoted(text)?;
        let rest = rest.trim_start().strip_prefix(')').ok_or("expected ) after the key")?;
        return Ok((bytes, rest));
    }
    let (key, rest) = text.split_once(')').ok_or("expected ) after the key")?;
    Ok((key.trim_end().as_bytes().to_vec(), rest))
}

/// Reads one operation.
pub(super) fn parse_operation(text: &str) -> Result<pb::RequestOp, String> {
    let text = text.trim();
    let wrong = |why: &str| format!("operation {text:?}: {why}");
    let words = words(text).map_err(|why| wrong(&why))?;
    let Some((verb, rest)) = words.split_first() else { return Err("an operation is empty".into()) };
    let request = match verb.bytes.as_slice() {
        b"put" => put(rest),
        b"get" => range(rest).map(|(key, range_end)| {
            Request::RequestRange(pb::RangeRequest { key, range_end, ..pb::RangeRequest::default() })
        }),
        b"del" => range(rest).map(|(key, range_end)| {
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false })
        }),
        _ => Err("expected put, get or del".into()),
    };
    Ok(pb::RequestOp { request: Some(request.map_err(|why| wrong(&why))?) })
}

fn put(words: &[Word]) -> Result<Request, String> {
    const SHAPE: &str = "expected put KEY VALUE [lease=ID]; quote what has spaces";
    let (key, value, lease) = match words {
        [key, value] => (key, value, 0),
        [key, value, option] if !option.quoted => {
            let text =
                std::str::from_utf8(&option.bytes).ok().and_then(|text| text.strip_prefix("lease=")).ok_or(SHAPE)?;
            (key, value, parse_lease(text)?)
        }
        _ => return Err(SHAPE.into()),
    };
    if key.bytes.is_empty() {
        return Err("the key is empty".into());
    }
    Ok(Request::RequestPut(pb::PutRequest {
        key: key.bytes.clone().into(),
        value: value.bytes.clone().into(),
        lease,
        ..pb::PutRequest::default()
    }))
}

fn range(words: &[Word]) -> Result<(Bytes, Bytes), String> {
    let is_prefix = |word: &Word| !word.quoted && word.bytes == b"prefix";
    match words {
        [key, option] if is_prefix(option) => Ok(prefix_range(&key.bytes)),
        [key, ..] if key.bytes.is_empty() => Err("the key is empty; `\"\" prefix` means all keys".into()),
        [key] => Ok((key.bytes.clone().into(), Bytes::new())),
        [key, end] => Ok((key.bytes.clone().into(), end.bytes.clone().into())),
        _ => Err("expected KEY, KEY END or KEY prefix; quote what has spaces".into()),
    }
}

/// Reads a script: one condition or operation to a line.
pub(super) fn parse_script(script: &str) -> Result<pb::TxnRequest, String> {
    let mut txn = pb::TxnRequest::default();
    for (number, line) in script.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |why: String| format!("line {}: {why}", number + 1);
        let (branch, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match branch {
            "if" => txn.compare.push(parse_condition(rest).map_err(at)?),
            "then" => txn.success.push(parse_operation(rest).map_err(at)?),
            "else" => txn.failure.push(parse_operation(rest).map_err(at)?),
            other => return Err(at(format!("{other:?} is not one of if, then, else"))),
        }
    }
    Ok(txn)
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('"') {
            let (bytes, after) = read_quoted(rest)?;
            if after.starts_with(|c: char| !c.is_whitespace()) {
                return Err("a closing quote must be followed by a space".into());
            }
            words.push(Word { bytes, quoted: true });
            rest = after.trim_start();
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(Word { bytes: rest.as_bytes()[..end].to_vec(), quoted: false });
            rest = rest[end..].trim_start();
        }
    }
    Ok(words)
}

/// Reads `"..."` at the start of `text`; answers with what it stands for and what follows it.
fn read_quoted(text: &str) -> Result<(Vec<u8>, &str), String> {
    let mut bytes = Vec::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((bytes, &text[at + 1..])),
            '\\' => match chars.next().map(|(_, escaped)| escaped) {
                Some('n') => bytes.push(b'\n'),
                Some('t') => bytes.push(b'\t'),
                Some(c @ ('"' | '\\')) => bytes.push(c as u8),
                Some('x') => {
                    let digits: String = chars.by_ref().take(2).map(|(_, digit)| digit).collect();
                    let byte = u8::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 2);
                    bytes.push(byte.ok_or_else(|| format!("\\x{digits} is not a byte in hex"))?);
                }
                _ => return Err("after a backslash only \" \\ n t and xHH are understood".into()),
            },
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err("a quote is not closed".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn condition(text: &str) -> (i32, i32, Vec<u8>, TargetUnion) {
        let compare = parse_condition(text).unwrap();
        (compare.result, compare.target, compare.key.to_vec(), compare.target_union.unwrap())
    }

    /// A misread sign or field turns a guarded write into an unguarded one.
    #[test]
    fn conditions_say_what_they_look_like() {
        let (equal, less) = (i32::from(CompareResult::Equal), i32::from(CompareResult::Less));
        let (modified, version) = (i32::from(CompareTarget::Mod), i32::from(CompareTarget::Version));
        assert_eq!(condition("mod(key) = 0"), (equal, modified, b"key".to_vec(), TargetUnion::ModRevision(0)));
        assert_eq!(condition("mod(key)<17"), (less, modified, b"key".to_vec(), TargetUnion::ModRevision(17)));
        assert_eq!(condition("missing(a)"), (equal, version, b"a".to_vec(), TargetUnion::Version(0)));
        assert_eq!(condition("exists(a)").0, i32::from(CompareResult::Greater));
        assert_eq!(condition("create(a) > 3").3, TargetUnion::CreateRevision(3));
        assert_eq!(condition("lease(a) = 6a1f").3, TargetUnion::Lease(0x6a1f));
        let (result, _, key, value) = condition("value(\"a )\\\" b\") != \"two words\"");
        assert_eq!((result, key), (i32::from(CompareResult::NotEqual), b"a )\" b".to_vec()));
        assert_eq!(value, TargetUnion::Value(Bytes::from_static(b"two words")));
    }

    /// Nothing is guessed: whatever is not understood is refused before it can be carried out.
    #[test]
    fn what_is_not_a_condition_is_refused() {
        for wrong in [
            "",
            "key = 1",
            "mod(key)",
            "mod(key) 1",
            "mod(key) = ",
            "mod(key) = x",
            "mod() = 1",
            "size(key) = 1",
            "value(k) = two words",
            "exists(k) = 1",
            "mod(key = 1",
            "value(k) = \"open",
            "mod(k) => 1",
        ] {
            assert!(parse_condition(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn operations_say_what_they_look_like() {
        let put = parse_operation("put \"a key\" \"line\\n\\x00\" lease=a").unwrap().request.unwrap();
        let expected = pb::PutRequest {
            key: "a key".into(),
            value: Bytes::from_static(b"line\n\0"),
            lease: 10,
            ..pb::PutRequest::default()
        };
        assert_eq!(put, Request::RequestPut(expected));
        let del = parse_operation("del dir/ prefix").unwrap().request.unwrap();
        let expected = pb::DeleteRangeRequest { key: "dir/".into(), range_end: "dir0".into(), prev_kv: false };
        assert_eq!(del, Request::RequestDeleteRange(expected));
    }

    /// A quoted word is never an option: otherwise a key called `prefix` would delete a whole range.
    #[test]
    fn a_quoted_word_is_never_an_option() {
        let Request::RequestDeleteRange(del) = parse_operation("del a \"prefix\"").unwrap().request.unwrap() else {
            panic!("not a delete");
        };
        assert_eq!((del.key.as_ref(), del.range_end.as_ref()), (&b"a"[..], &b"prefix"[..]));
        assert!(parse_operation("put a b \"lease=1\"").is_err());
    }

    #[test]
    fn what_is_not_an_operation_is_refused() {
        for wrong in ["", "put k", "put k v w", "get", "get a b c", "del \"\"", "put \"\" v", "incr k", "put k \"v\"w"]
        {
            assert!(parse_operation(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn a_script_is_read_line_by_line_and_errors_name_the_line() {
        let txn = parse_script("# take the lead\nif missing(l)\n\n  then put l me\nelse get l\n").unwrap();
        assert_eq!((txn.compare.len(), txn.success.len(), txn.failure.len()), (1, 1, 1));
        let error = parse_script("if missing(l)\nthen\n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    proptest! {
        /// Scripts come from files and pipes; noise must be refused, never a panic.
        #[test]
        fn noise_is_refused_or_read(noise in "(if|then|else|put|get|mod|\\(|\\)|\"|\\\\|x|[ -~\u{e9}\n]){0,40}") {
            let _ = parse_script(&noise);
            let _ = parse_condition(&noise);
            let _ = parse_operation(&noise);
        }
    }
}
