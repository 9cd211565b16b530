//! Clients of native primitives: a session each, and with it locks, permits, elections, barriers, latches, phasers,
//! counters, fences, versions and hazards.
//!
//! A client does what the client library will do: it renews its session every third of its time, asks again with the
//! same number, at any node, when there was no answer, waits for what its node is told, gives its place up when it has
//! waited long enough, and believes to hold something for four fifths of its time after the last renewal. And it does
//! what no library prevents: it sleeps through the end of its session, dies with all it holds, comes back with old
//! tokens, and tries to give back what is another's.
//!
//! `session` is how all of them ask and wait; what is asked for is in `queues`, `meetings` and `counts`.

mod counts;
mod fenced;
mod meetings;
mod queues;
mod session;

use tidelock_model::Name;

use super::Setup;
use crate::client::Client;
use crate::coverage;
use crate::history::Micros;

use session::Session;

/// Longest life of a session.
const LIFE_MAX: Micros = 25_000_000;
/// Clients that do the same within this time are likely to meet.
const MEETING: Micros = 6_000_000;
/// Old tokens that a client keeps.
const OLD_TOKENS: usize = 4;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

/// What a client remembers from one session to the next: tokens that it must not use any more, and how many numbers it
/// has drawn that nobody else draws.
#[derive(Default)]
struct Memory {
    old_tokens: Vec<(tidelock_model::Kind, Name, u64)>,
    deltas: u64,
}

impl Memory {
    fn keep_token(&mut self, kind: tidelock_model::Kind, name: &Name, token: u64) {
        if self.old_tokens.len() == OLD_TOKENS {
            self.old_tokens.remove(0);
        }
        self.old_tokens.push((kind, name.clone(), token));
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("the names here are short")
}

async fn run(client: Client) {
    let mut memory = Memory::default();
    let mut sessions = 0;
    while !client.stopping() {
        client.think_a_while().await;
        sessions += 1;
        let Some(mut session) = Session::open(&client, sessions).await else { continue };
        let until = client.now() + client.between(LIFE_MAX / 8, LIFE_MAX);
        while !client.stopping() && client.now() < until && !session.is_over() {
            do_something(&mut session, &mut memory).await;
            session.rest().await;
        }
        end(&mut session).await;
    }
}

/// One thing after the other; now and then the session sleeps or dies in the middle of it, which is up to each.
async fn do_something(session: &mut Session<'_>, memory: &mut Memory) {
    if session.client().chance(10) {
        fenced::cut_off(session);
    }
    match session.client().below(100) {
        0..2 => counts::forget(session).await,
        2..4 => fenced::write_with_old_token(session, memory).await,
        4 => session.renew_late().await,
        5..30 => queues::lock(session, memory).await,
        30..41 => queues::semaphore(session).await,
        41..56 => queues::election(session, memory).await,
        56..68 => meetings::barrier(session).await,
        68..76 => meetings::latch(session).await,
        76..88 => meetings::phaser(session).await,
        88..92 => counts::count(session, memory).await,
        92..96 => counts::versions(session).await,
        _ => counts::hazard(session).await,
    }
}

/// Ends a session: by saying so, by sleeping through its end and asking for something then, by waiting to be told of it,
/// by renewing it too late, or without a word.
async fn end(session: &mut Session<'_>) {
    let client = session.client().clone();
    if session.is_over() {
        return;
    }
    match client.below(10) {
        0..4 => session.close().await,
        4..5 if !client.stopping() => session.await_end().await,
        5..6 if !client.stopping() => {
            session.renew_late().await;
            counts::touch(session).await;
        }
        6..8 if !client.stopping() => {
            client.around().coverage.hit(coverage::NATIVE_OVERSLEPT);
            session.oversleep().await;
            counts::touch(session).await;
        }
        _ => {}
    }
}

/// Which of `n` things those do who do it about now.
fn by_the_clock(client: &Client, n: u64) -> u64 {
    client.now() / MEETING % n
}
