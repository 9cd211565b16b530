//! The command line, read as Go's flag package reads it: `-x`, `--x`, `--x=y`, `--x y`; a boolean never takes
//! the next word; the last of several counts; `--` and the first word that is no flag end the flags.

use std::collections::BTreeMap;

use super::flags::{self, Flag, Kind};

/// Where a value came from; messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Variable,
    File,
}

/// A value that somebody gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) value: String,
    pub(crate) source: Source,
}

/// Everything that was given, by the name of the flag.
pub(crate) type Values = BTreeMap<&'static str, Given>;

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Version,
    Run(Values),
}

/// Reads the command line. The error is in Go's words, which scripts look for, with a hint of ours.
pub(crate) fn read(words: &[String]) -> Result<Asked, String> {
    let mut values = Values::new();
    let mut version = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return Err(not_a_flag(word));
        };
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        if rest.is_empty() {
            // Two dashes alone: whatever follows is no flag, and etcd takes nothing else.
            return words.next().map_or(Ok(finish(values, version)), |word| Err(not_a_flag(word)));
        }
        if rest.starts_with(['-', '=']) {
            return Err(format!("bad flag syntax: {word}"));
        }
        let (name, value) = match rest.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (rest, None),
        };
        match name {
            "h" | "help" => return Ok(Asked::Help),
            "version" => version = value.as_deref().is_none_or(|value| parse_bool(value) == Some(true)),
            _ => {
                let flag = flags::find(name).ok_or_else(|| not_defined(name))?;
                let value = match (value, flag.kind) {
                    (Some(value), _) => value,
                    (None, Kind::Bool) => "true".to_owned(),
                    (None, _) => words.next().cloned().ok_or_else(|| format!("flag needs an argument: -{name}"))?,
                };
                check(flag, &value, Source::Flag)?;
                values.insert(flag.name, Given { value, source: Source::Flag });
            }
        }
    }
    Ok(finish(values, version))
}

fn finish(values: Values, version: bool) -> Asked {
    if version { Asked::Version } else { Asked::Run(values) }
}

fn not_a_flag(word: &str) -> String {
    match word {
        "gateway" | "grpc-proxy" => format!(
            "etcd {word} is a program of its own that Tidelock does not have\n  what to do: let clients connect to the \
             members directly, or put a TCP load balancer before them"
        ),
        _ => format!("{word:?} is not a valid flag"),
    }
}

fn not_defined(name: &str) -> String {
    let hint = flags::nearest(name).map(|nearest| format!("\n  what to do: did you mean --{nearest}?"));
    format!("flag provided but not defined: -{name}{}", hint.unwrap_or_default())
}

/// Whether a value has the shape its flag needs.
pub(crate) fn check(flag: &Flag, value: &str, source: Source) -> Result<(), String> {
    let name = flag.name;
    let good = match flag.kind {
        Kind::Text => return Ok(()),
        Kind::Bool => parse_bool(value).is_some(),
        // Go flags that are numbers take other bases too; nobody writes them.
        Kind::Number => value.parse::<i64>().is_ok(),
        Kind::Duration => super::duration::parse(value).is_ok() || (source == Source::File && is_number(value)),
    };
    match (good, flag.kind) {
        (true, _) => Ok(()),
        (false, Kind::Bool) => Err(format!("invalid boolean value {value:?} for -{name}: parse error")),
        (false, _) => Err(format!("invalid value {value:?} for flag -{name}: parse error")),
    }
}

fn is_number(value: &str) -> bool {
    value.parse::<u64>().is_ok()
}

/// As Go reads truth.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<Vec<(&'static str, String)>, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        match read(&words)? {
            Asked::Run(values) => Ok(values.into_iter().map(|(name, given)| (name, given.value)).collect()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Unit files use every form; one that is misread starts a node that is not the one described.
    #[test]
    fn flags_are_read_in_all_of_gos_forms() {
        let expected = Ok(vec![("name", "a".to_owned()), ("pre-vote", "true".to_owned())]);
        assert_eq!(run(&["--name=a", "--pre-vote"]), expected);
        assert_eq!(run(&["-name", "a", "-pre-vote=true"]), expected);
        assert_eq!(run(&["--name", "b", "--pre-vote=T", "--name", "a"]).unwrap()[0].1, "a");
        assert_eq!(run(&["--initial-cluster=a=http://h:1"]).unwrap()[0].1, "a=http://h:1");
        assert_eq!(run(&["--name", "--odd"]).unwrap()[0].1, "--odd");
        assert_eq!(run(&["--name=a", "--"]).unwrap().len(), 1);
    }

    /// `--pre-vote false` turns nothing off in etcd: the word is an argument, which it refuses. So must we, or a
    /// flag would mean one thing here and another there.
    #[test]
    fn a_boolean_does_not_take_the_next_word() {
        assert_eq!(run(&["--pre-vote", "false"]), Err("\"false\" is not a valid flag".to_owned()));
    }

    /// Scripts and people look for Go's words.
    #[test]
    fn mistakes_are_told_in_gos_words_with_a_hint() {
        let refused = |words: &[&str]| run(words).unwrap_err();
        assert_eq!(
            refused(&["--lsten-client-urls=x"]),
            "flag provided but not defined: -lsten-client-urls\n  what to do: did you mean --listen-client-urls?"
        );
        assert_eq!(refused(&["--xyzzy"]), "flag provided but not defined: -xyzzy");
        assert_eq!(refused(&["--name"]), "flag needs an argument: -name");
        assert_eq!(
            refused(&["--heartbeat-interval=soon"]),
            "invalid value \"soon\" for flag -heartbeat-interval: parse error"
        );
        assert_eq!(refused(&["--pre-vote=maybe"]), "invalid boolean value \"maybe\" for -pre-vote: parse error");
        assert_eq!(refused(&["---x"]), "bad flag syntax: ---x");
        assert!(refused(&["grpc-proxy", "start"]).contains("program of its own"));
    }
}
