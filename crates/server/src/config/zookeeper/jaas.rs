//! The file that tells a Java server who may come in by SASL (`java.security.auth.login.config`), as far as ZooKeeper's
//! users are in it:
//!
//! ```text
//! Server {
//!     org.apache.zookeeper.server.auth.DigestLoginModule required
//!     user_super="secret"
//!     user_ada="another";
//! };
//! ```
//!
//! Of a file without the section `Server` nobody comes. Other sections are other programs' and are skipped. What is in
//! `Server` must be understood: a user that is silently left out would be a riddle to who set it up.

use tidelock_face_zookeeper::SaslUsers;

/// The section that ZooKeeper's server reads.
const SECTION: &str = "Server";
const DIGEST: &str = "org.apache.zookeeper.server.auth.DigestLoginModule";
const KERBEROS: &str = "com.sun.security.auth.module.Krb5LoginModule";
/// What follows the name of a module.
const FLAGS: [&str; 4] = ["required", "requisite", "sufficient", "optional"];

/// The users in a file; `Err` says what is wrong with it, and what to do.
pub(crate) fn users(text: &str) -> Result<SaslUsers, (String, String)> {
    let mut words = Words { rest: text, line: 1 };
    let mut users = None;
    while let Some(name) = words.next()? {
        words.expect("{")?;
        let section = section(&mut words)?;
        if name.is(SECTION) {
            if users.is_some() {
                return Err(bad(name.line, "there is a second section Server", "keep one of the two"));
            }
            users = Some(users_of(&section)?);
        }
    }
    let users = users.unwrap_or_default();
    Ok(SaslUsers::new(users.iter().map(|(name, password)| (name.as_str(), password.as_str()))))
}

/// One module of a section: its class, and what it is told.
struct Module {
    class: Word,
    options: Vec<(Word, Word)>,
}

fn section(words: &mut Words<'_>) -> Result<Vec<Module>, (String, String)> {
    let mut modules = Vec::new();
    loop {
        let class = words.some()?;
        if class.is("}") {
            words.expect(";")?;
            return Ok(modules);
        }
        let flag = words.some()?;
        if !FLAGS.iter().any(|known| flag.text.eq_ignore_ascii_case(known)) {
            return Err(bad(
                flag.line,
                format_args!("{} is followed by no flag", class.text),
                "write required after it",
            ));
        }
        let mut options = Vec::new();
        loop {
            let name = words.some()?;
            if name.is(";") {
                break;
            }
            words.expect("=")?;
            options.push((name, words.some()?));
        }
        modules.push(Module { class, options });
    }
}

fn users_of(section: &[Module]) -> Result<Vec<(String, String)>, (String, String)> {
    let mut users: Vec<(String, String)> = Vec::new();
    for Module { class, options } in section {
        match class.text.as_str() {
            DIGEST => {}
            KERBEROS => {
                let fix =
                    "let clients show certificates (secureClientPort), or give them passwords with DigestLoginModule";
                return Err(bad(class.line, "Kerberos (GSSAPI) is not served", fix));
            }
            other => return Err(bad(class.line, format_args!("{other} is not known"), format!("use {DIGEST}"))),
        }
        for (option, value) in options {
            // Others are for Java, such as debug=true.
            let Some(name) = option.text.strip_prefix("user_") else { continue };
            if name.is_empty() || value.text.is_empty() {
                return Err(bad(option.line, "a user without a name or password", "write user_NAME=\"PASSWORD\""));
            }
            if value.text.contains("${") {
                return Err(bad(value.line, "properties (${...}) are not put in", "write the password itself"));
            }
            if users.iter().any(|(known, _)| known == name) {
                return Err(bad(option.line, format_args!("user_{name} is given twice"), "keep one of the two"));
            }
            users.push((name.to_owned(), value.text.clone()));
        }
    }
    Ok(users)
}

fn bad(line: usize, what: impl std::fmt::Display, fix: impl Into<String>) -> (String, String) {
    (format!("line {line}: {what}"), fix.into())
}

/// One word or sign, and where it is.
struct Word {
    text: String,
    quoted: bool,
    line: usize,
}

impl Word {
    /// Whether it is this, and not a text that says so.
    fn is(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

struct Words<'a> {
    rest: &'a str,
    line: usize,
}

impl Words<'_> {
    fn expect(&mut self, sign: &str) -> Result<(), (String, String)> {
        let word = self.some()?;
        if word.is(sign) {
            return Ok(());
        }
        let fix = "write it as Server { CLASS required user_NAME=\"PASSWORD\"; };";
        Err(bad(word.line, format_args!("there should be {sign:?}"), fix))
    }

    fn some(&mut self) -> Result<Word, (String, String)> {
        let line = self.line;
        self.next()?.ok_or_else(|| bad(line, "the file ends within a section", "end it with }; after the last module"))
    }

    fn next(&mut self) -> Result<Option<Word>, (String, String)> {
        self.skip_blanks()?;
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let (text, quoted) = match first {
            '{' | '}' | ';' | '=' => (self.take(1).to_owned(), false),
            '"' => (self.quoted()?, true),
            _ => {
                let is_end = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ';' | '=' | '"');
                let length = self.rest.find(is_end).unwrap_or(self.rest.len());
                (self.take(length).to_owned(), false)
            }
        };
        Ok(Some(Word { text, quoted, line }))
    }

    fn quoted(&mut self) -> Result<String, (String, String)> {
        let line = self.line;
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((at, c)) = characters.next() {
            match c {
                '"' => {
                    self.take(at + 1);
                    return Ok(text);
                }
                '\\' => text.extend(characters.next().map(|(_, c)| c)),
                '\n' => break,
                other => text.push(other),
            }
        }
        Err(bad(line, "a quotation has no end", "end it with \" on the same line"))
    }

    fn skip_blanks(&mut self) -> Result<(), (String, String)> {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.take(blanks);
            if self.rest.starts_with("//") || self.rest.starts_with('#') {
                let length = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take(length);
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/");
                let end = end.ok_or_else(|| bad(self.line, "a comment has no end", "end it with */"))?;
                self.take(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn take(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "/* users\n of ZooKeeper */\nClient { x.Y required a=b; };\nServer {\n    // the first\n    \
        org.apache.zookeeper.server.auth.DigestLoginModule required\n    debug=true user_super=\"s e;c}r\\\"et\"\n    \
        user_ada = bare; # and no more\n};\n";

    /// Files written for ZooKeeper must let in the same users with the same passwords.
    #[test]
    fn the_users_of_the_servers_section_are_read() {
        let expected = SaslUsers::new([("super", "s e;c}r\"et"), ("ada", "bare")]);
        assert_eq!(users(FILE), Ok(expected));
        assert_eq!(users(""), Ok(SaslUsers::default()), "an empty file lets nobody in, and is no mistake");
        assert_eq!(users("Client { x.Y required user_a=\"b\"; };"), Ok(SaslUsers::default()));
    }

    /// A user that is left out without a word is locked out; one that is misread may be let in.
    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
        for (text, expected) in [
            ("Server {\n com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };", "line 2: Kerberos"),
            ("Server { my.Module required; };", "my.Module is not known"),
            (&format!("Server {{ {module} user_a=\"b\" user_a=\"c\"; }};"), "user_a is given twice"),
            (&format!("Server {{ {module} user_=\"b\"; }};"), "without a name"),
            (&format!("Server {{ {module} user_a=\"\"; }};"), "without a name or password"),
            (&format!("Server {{ {module} user_a=\"${{x}}\"; }};"), "${...}"),
            (&format!("Server {{ {module}\nuser_a=\"b"), "line 2: a quotation has no end"),
            (&format!("Server {{ {module} user_a=\"b\""), "ends within a section"),
            (&format!("Server {{ {module} user_a \"b\"; }};"), "there should be \"=\""),
            (&format!("Server {{ {module}; }}; Server {{ {module}; }};"), "second section"),
            ("Server { a.B user_a=\"b\"; };", "no flag"),
            ("/* Server", "comment has no end"),
            ("Server", "ends within a section"),
        ] {
            let (what, _fix) = users(text).unwrap_err();
            assert!(what.contains(expected), "{text}: {what}");
        }
    }

    proptest! {
        /// A file that was not meant is a message, never a crash.
        #[test]
        fn arbitrary_files_are_read_or_refused(text in "[Server{}=;\"/*#\\\\\n ua_]{0,60}", any in ".{0,40}") {
            let _ = users(&text);
            let _ = users(&any);
            let _ = users(&format!("Server {{ {text}"));
        }
    }
}
