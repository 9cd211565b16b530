//! Asks a server that is coming up until it answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::etcd_messages::{self, method};
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::workload::BESIDE;
use crate::zookeeper::{self, opcode};

/// Between questions.
const PAUSE: Duration = Duration::from_millis(5);
/// A question without an answer for so long is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until `address` answers a read that needs a majority, and says how long after `start` that was. `alive` says
/// why the wait is in vain, if it is.
pub fn first_read(
    protocol: Protocol,
    address: SocketAddr,
    start: Instant,
    limit: Duration,
    alive: impl FnMut() -> Result<(), String>,
) -> Result<Duration, String> {
    let mut lines = Lines::start(protocol, &[address])?;
    let mut probe = Probe { protocol, until: start + limit, alive, ask_at: start, asked: 0, answered: None, why: None };
    lines.run(&mut probe)?;
    match (probe.answered, probe.why) {
        (Some(answered), _) => Ok(answered.duration_since(start)),
        (None, why) => {
            let why = why.unwrap_or_else(|| "no answer".to_string());
            Err(format!("{address} did not answer a read within {limit:?}: {why}"))
        }
    }
}

struct Probe<A> {
    protocol: Protocol,
    until: Instant,
    alive: A,
    ask_at: Instant,
    asked: Tag,
    answered: Option<Instant>,
    why: Option<String>,
}

impl<A: FnMut() -> Result<(), String>> Actor for Probe<A> {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        if tag != self.asked {
            return;
        }
        match answer {
            Answer::Message(_) | Answer::Reply { error: 0, .. } => self.answered = Some(lines.now()),
            Answer::Reply { error, .. } => self.why = Some(format!("error {error}")),
            Answer::End(status) if self.answered.is_none() => self.why = Some(status.message),
            Answer::End(_) => {}
        }
        self.ask_at = lines.now() + PAUSE;
    }

    fn opened(&mut self, lines: &mut Lines, _: usize) {
        self.ask_at = lines.now();
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.why = Some(why.to_string());
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if let Err(why) = (self.alive)() {
            self.why = Some(why);
            return Turn::Done;
        }
        if self.answered.is_some() || now >= self.until {
            return Turn::Done;
        }
        if lines.is_open(0) && now >= self.ask_at {
            self.asked += 1;
            self.ask_at = now + PATIENCE;
            match self.protocol {
                Protocol::Etcd => lines.call(0, self.asked, method::RANGE, |out| {
                    etcd_messages::bytes(out, 1, b"bench/ready");
                }),
                Protocol::Zookeeper => {
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
