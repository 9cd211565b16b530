//! What went wrong and what to do about it, as the user of the command line reads it.
//!
//! Every failure says what happened; most say what to do next. The kind decides the exit code: 1 for
//! things that did not work, 2 for things that were asked for wrongly. Commands whose callers must tell
//! more apart have codes of their own, which their help lists.

use std::fmt;
use std::process::ExitCode;

/// A failure to be printed before the program ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
    usage: bool,
    silent: bool,
    code: Option<u8>,
}

impl Failure {
    /// Something did not work.
    pub(crate) fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), hint: None, usage: false, silent: false, code: None }
    }

    /// Something was asked for wrongly.
    pub(crate) fn usage(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), hint: None, usage: true, silent: false, code: None }
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Ends the program with this code instead.
    pub(crate) fn code(mut self, code: u8) -> Failure {
        self.code = Some(code);
        self
    }

    /// Ends the program with somebody else's code, without a word: that one has said what there is to say.
    pub(crate) fn exit(code: i32) -> Failure {
        // What does not fit is a failure all the same.
        Failure { silent: true, ..Failure::new("").code(u8::try_from(code).unwrap_or(u8::MAX)) }
    }

    /// The same in other words.
    pub(crate) fn reworded(self, reword: impl Fn(&str) -> String) -> Failure {
        let hint = self.hint.as_deref().map(&reword);
        Failure { what: reword(&self.what), hint, ..self }
    }

    /// Whether there is nobody left to tell.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }

    /// 1: it failed; 2: it was asked for wrongly; or a code of its own.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.unwrap_or(if self.usage { 2 } else { 1 }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  what to do: {hint}"),
            None => Ok(()),
        }
    }
}

/// Only our own output is written with `?`. A reader that has seen enough (`tidelock get ... | head`)
/// closes the pipe; that is no news to anyone.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        let silent = error.kind() == std::io::ErrorKind::BrokenPipe;
        Failure { silent, ..Failure::new(format!("writing the output failed: {error}")) }
    }
}
