//! Redis: locks as its lock libraries take them, by `SET name value NX PX ttl`, and by a script that deletes the name if
//! it still has the value.
//!
//! Nobody is told when a lock is free: who is refused asks again after a pause, and there is no order among those who
//! wait. Libraries pause about 200 ms; ours pause less, which is in Redis' favour here and costs it some processor time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::lock_run::{LockLoad, LockRun, Locked};
use crate::lines::{Actor, Answer, Language, Lines, Tag, Turn};
use crate::random::Random;
use crate::redis::Value;

/// Longer than any run: nobody extends these locks.
const TTL_MS: &[u8] = b"600000";
/// How long who was refused waits before the next attempt: somewhere between the two, so that not all come at once.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Compare and delete in one step: a lock that ran out and was taken by another must not be given back by the first.
const RELEASE: &[u8] =
    b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
/// The tag of the request that loads the script.
const SCRIPT: Tag = Tag::MAX >> 2;

/// Lets workers take locks.
pub fn lock_by_set(load: &LockLoad<'_>) -> Result<Locked, String> {
    let mut lines = Lines::open(Language::Redis, load.addresses)?;
    let now = Instant::now();
    let worker = |at: usize| Worker {
        line: load.line_of(at),
        name: load.name_of(at),
        value: String::new(),
        cycles: 0,
        holds: false,
        since: now,
    };
    let mut actor = Workers {
        workers: (0..load.workers).map(worker).collect(),
        script: Vec::new(),
        pausing: BinaryHeap::new(),
        random: Random::new(7),
        run: LockRun::new(load.time),
    };
    lines.run(&mut actor)?;
    Ok(actor.run.finish())
}

struct Worker {
    line: usize,
    name: String,
    /// Known to nobody else: a new one for each time the lock is asked for.
    value: String,
    cycles: u64,
    /// The lock was granted, and is being given back.
    holds: bool,
    since: Instant,
}

struct Workers {
    workers: Vec<Worker>,
    /// The digest that the loaded script is called by.
    script: Vec<u8>,
    /// Who was refused, and when the next attempt is due; one entry for each worker at most.
    pausing: BinaryHeap<Reverse<(Instant, usize)>>,
    random: Random,
    run: LockRun,
}

impl Workers {
    fn begin(&mut self, lines: &mut Lines, at: usize) {
        let worker = &mut self.workers[at];
        worker.since = lines.now();
        worker.cycles += 1;
        worker.value = format!("{at}-{}", worker.cycles);
        self.attempt(lines, at);
    }

    fn attempt(&self, lines: &mut Lines, at: usize) {
        let Worker { line, name, value, .. } = &self.workers[at];
        let words: [&[u8]; 6] = [b"SET", name.as_bytes(), value.as_bytes(), b"NX", b"PX", TTL_MS];
        lines.command(*line, at as Tag, &words);
    }

    fn release(&mut self, lines: &mut Lines, at: usize) {
        self.workers[at].holds = true;
        let Worker { line, name, value, .. } = &self.workers[at];
        let words: [&[u8]; 5] = [b"EVALSHA", &self.script, b"1", name.as_bytes(), value.as_bytes()];
        lines.command(*line, at as Tag, &words);
    }

    fn pause(&mut self, now: Instant, at: usize) {
        let span = (PAUSE_MAX - PAUSE_MIN).as_micros() as u64;
        let due = now + PAUSE_MIN + Duration::from_micros(self.random.below(span));
        self.pausing.push(Reverse((due, at)));
    }

    fn replied(&mut self, lines: &mut Lines, at: usize, value: Value<'_>) {
        let now = lines.now();
        match (self.workers[at].holds, value) {
            (false, Value::Status(b"OK")) => {
                self.run.acquired(now, self.workers[at].since);
                self.release(lines, at);
            }
            (false, Value::Nothing) => self.pause(now, at),
            (true, Value::Number(1)) => {
                self.workers[at].holds = false;
                if self.run.cycle(lines, self.workers[at].since) {
                    self.begin(lines, at);
                }
            }
            (holds, value) => {
                let asked = if holds { "the script" } else { "SET" };
                self.run.fail(format!("{asked} was answered with {}", value.words()));
            }
        }
    }
}

impl Actor for Workers {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        match answer {
            Answer::Value(Value::Text(digest)) if tag == SCRIPT => self.script = digest.to_vec(),
            Answer::Value(value) if tag == SCRIPT => {
                self.run.fail(format!("SCRIPT LOAD was answered with {}", value.words()));
            }
            Answer::Value(value) => self.replied(lines, tag as usize, value),
            Answer::Message(_) | Answer::End(_) | Answer::Reply { .. } => {}
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.run.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if self.run.prepares() {
            lines.command(0, SCRIPT, &[b"SCRIPT", b"LOAD", RELEASE]);
        } else if self.run.begins(now, !self.script.is_empty()) {
            (0..self.workers.len()).for_each(|at| self.begin(lines, at));
        }
        while let Some(Reverse((_, at))) = self.pausing.peek().copied().filter(|Reverse((due, _))| *due <= now) {
            self.pausing.pop();
            self.attempt(lines, at);
        }
        match (self.run.turn(now), self.pausing.peek()) {
            (Turn::Wait(until), Some(Reverse((due, _)))) => Turn::Wait(Some(until.unwrap_or(*due).min(*due))),
            (turn, _) => turn,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::*;

    type Held = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

    /// One command, or nothing at the end of the connection.
    fn command(from: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
        let number = |from: &mut dyn BufRead| {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            line.get(1..)?.trim_end().parse::<usize>().ok()
        };
        let count = number(from)?;
        (0..count)
            .map(|_| {
                let mut word = vec![0; number(from)? + 2];
                from.read_exact(&mut word).ok()?;
                word.truncate(word.len() - 2);
                Some(word)
            })
            .collect()
    }

    /// As much of a Redis as locks need. `gives_back` is whether the script finds the value it is given.
    fn serve(stream: TcpStream, held: &Held, gives_back: bool) {
        let mut out = stream.try_clone().unwrap();
        let mut from = BufReader::new(stream);
        while let Some(words) = command(&mut from) {
            let mut held = held.lock().unwrap();
            let answer = match words[0].as_slice() {
                b"PING" => "+PONG\r\n",
                b"SCRIPT" => "$3\r\nabc\r\n",
                b"SET" if held.contains_key(&words[1]) => "$-1\r\n",
                b"SET" => {
                    assert_eq!(words[3..], [&b"NX"[..], b"PX", TTL_MS]);
                    held.insert(words[1].clone(), words[2].clone());
                    "+OK\r\n"
                }
                b"EVALSHA" => {
                    assert_eq!(words[1..3], [&b"abc"[..], b"1"]);
                    assert_eq!(held.remove(&words[3]).as_ref(), Some(&words[4]), "the holder's own value");
                    if gives_back { ":1\r\n" } else { ":0\r\n" }
                }
                _ => "-ERR unknown command\r\n",
            };
            out.write_all(answer.as_bytes()).unwrap();
        }
    }

    fn redis(gives_back: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let held = Held::default();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let held = Arc::clone(&held);
                std::thread::spawn(move || serve(stream, &held, gives_back));
            }
        });
        address
    }

    /// A figure for Redis stands beside ours: those who are refused must come again, and only what was held and given
    /// back may count.
    #[test]
    fn workers_take_turns_and_a_lock_that_was_not_given_back_is_a_failure() {
        let time = Duration::from_millis(400);
        let lock = |addresses: &[SocketAddr], workers, contended| {
            lock_by_set(&LockLoad { addresses, name: "lock", workers, contended, time }).unwrap()
        };
        for (contended, workers) in [(false, 4), (true, 4)] {
            let address = redis(true);
            let locked = lock(&[address, address], workers, contended);
            assert_eq!(locked.first_failure, None);
            assert!(locked.cycles > 0 && locked.acquires.count() >= locked.cycles);
        }
        let locked = lock(&[redis(false)], 1, true);
        assert_eq!(locked.first_failure.as_deref(), Some("the script was answered with 0"));
    }
}
