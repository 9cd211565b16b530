//! Asks a server that is coming up until it answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::etcd_messages::{self, method};
use crate::lines::{Access, Actor, Answer, Language, Lines, Tag, Turn};
use crate::redis::Value;
use crate::workload::BESIDE;
use crate::zookeeper::{self, opcode};

/// Between questions.
const PAUSE: Duration = Duration::from_millis(5);
/// A question without an answer for so long is asked again. So is for a connection: a ZooKeeper that is coming up may take
/// one, and never answer its greeting.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until `address` answers a read, one that needs a majority if there is one, and says how long after `start` that was. `alive` says
/// why the wait is in vain, if it is.
pub fn first_read(
    language: impl Into<Language>,
    address: SocketAddr,
    start: Instant,
    limit: Duration,
    alive: impl FnMut() -> Result<(), String>,
) -> Result<Duration, String> {
    let language = language.into();
    let mut probe = Probe {
        language,
        until: start + limit,
        alive,
        ask_at: start,
        open_by: start,
        asked: 0,
        is_over: false,
        answered: None,
        why: None,
    };
    while !probe.is_over {
        let mut lines = Lines::start(language, &[address], Access::default())?;
        probe.open_by = lines.now() + PATIENCE;
        lines.run(&mut probe)?;
    }
    match (probe.answered, probe.why) {
        (Some(answered), _) => Ok(answered.duration_since(start)),
        (None, why) => {
            let why = why.unwrap_or_else(|| "no answer".to_string());
            Err(format!("{address} did not answer a read within {limit:?}: {why}"))
        }
    }
}

struct Probe<A> {
    language: Language,
    until: Instant,
    alive: A,
    ask_at: Instant,
    /// When a connection that is silent is given up.
    open_by: Instant,
    asked: Tag,
    /// There is an answer, or none will come.
    is_over: bool,
    answered: Option<Instant>,
    why: Option<String>,
}

impl<A: FnMut() -> Result<(), String>> Actor for Probe<A> {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        if tag != self.asked {
            return;
        }
        match answer {
            Answer::Value(Value::Error(why)) => self.why = Some(String::from_utf8_lossy(why).into_owned()),
            Answer::Message(_) | Answer::Reply { error: 0, .. } | Answer::Value(_) => self.answered = Some(lines.now()),
            Answer::Reply { error, .. } => self.why = Some(format!("error {error}")),
            Answer::End(status) if self.answered.is_none() => self.why = Some(status.message),
            Answer::End(_) => {}
        }
        self.ask_at = lines.now() + PAUSE;
    }

    fn opened(&mut self, lines: &mut Lines, _: usize) {
        self.ask_at = lines.now();
    }

    fn lost(&mut self, lines: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.open_by = lines.now() + PATIENCE;
        self.why = Some(why.to_string());
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if let Err(why) = (self.alive)() {
            (self.why, self.is_over) = (Some(why), true);
            return Turn::Done;
        }
        self.is_over = self.answered.is_some() || now >= self.until;
        if self.is_over {
            return Turn::Done;
        }
        if !lines.is_open(0) {
            // Without a pause this would take a processor from the server that is waited for.
            return if now < self.open_by { Turn::Wait(Some(now + PAUSE)) } else { Turn::Done };
        }
        if now >= self.ask_at {
            self.asked += 1;
            self.ask_at = now + PATIENCE;
            match self.language {
                Language::Etcd => lines.call(0, self.asked, method::RANGE, |out| {
                    etcd_messages::bytes(out, 1, b"bench/ready");
                }),
                Language::Redis => lines.command(0, self.asked, &[b"GET", b"bench/ready"]),
                Language::Zookeeper => {
                    lines.ask(0, self.asked | BESIDE, opcode::SYNC, |out| zookeeper::bytes(out, b"/"));
                    lines.ask(0, self.asked, opcode::EXISTS, |out| {
                        zookeeper::bytes(out, b"/");
                        out.push(0);
                    });
                }
            }
        }
        Turn::Wait(Some(self.ask_at.min(now + PAUSE * 10)))
    }
}
