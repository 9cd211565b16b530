//! What `etcd --help` and `etcd --version` print. The help is made from the table of flags, so it cannot
//! promise a flag that does nothing.

use std::fmt::Write as _;

use super::environment::variable;
use super::flags::{FLAGS, Kind};
use crate::fate::Fate;

/// Printed after a command line that cannot be read.
pub(crate) const USAGE: &str = "Usage:

  etcd [flags]
    Start a Tidelock node that takes etcd's place.

  etcd --version
    Show the version of etcd it answers like, and its own.

  etcd -h | --help
    Show all flags, and which of them have an effect.

  etcd --config-file
    Path to etcd's configuration file. Flags and environment variables are ignored when there is one.
";

/// Everything about the flags.
pub(crate) fn text() -> String {
    let mut out = format!("{USAGE}\nEvery flag is also a variable: --data-dir is {}.\n", variable("data-dir"));
    let mut section = |title: &str, wanted: fn(&Fate) -> Option<String>| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{title}:");
        for flag in FLAGS {
            let Some(remark) = wanted(&flag.fate) else { continue };
            let value = match flag.kind {
                Kind::Bool => "",
                Kind::Text => " TEXT",
                Kind::Number => " NUMBER",
                Kind::Duration => " DURATION",
            };
            let _ = writeln!(out, "  --{}{value}{remark}", flag.name);
        }
    };
    section("In force, with etcd's meaning", |fate| (*fate == Fate::Honoured).then(String::new));
    section("Taken without effect", |fate| match fate {
        Fate::NoEffect(why) => Some(format!("\n      {why}")),
        _ => None,
    });
    section("Refused", |fate| match fate {
        Fate::Refused { instead, .. } => Some(format!("\n      {instead}")),
        _ => None,
    });
    out
}

/// In etcd's words where scripts look: the first line.
pub(crate) fn version() -> String {
    let etcd = tidelock_face_etcd::maintenance::ETCD_VERSION;
    format!(
        "etcd Version: {etcd}\nServed by: Tidelock {}\nOS/Arch: {}/{}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_in_the_help_once() {
        let text = text();
        for flag in FLAGS {
            let count = text
                .lines()
                .filter(|line| line.trim_start().split(' ').next() == Some(&format!("--{}", flag.name)))
                .count();
            assert_eq!(count, 1, "{}", flag.name);
        }
    }

    /// Harnesses read the version off the first line.
    #[test]
    fn the_first_line_of_the_version_is_etcds() {
        assert!(version().starts_with("etcd Version: 3."));
    }
}
