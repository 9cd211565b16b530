//! Being told to stop: Ctrl-C and a polite request mean the same.

use std::task::Poll;

use rustix::process::Signal as Raw;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Ends this process by the signal that asked for it, as if nobody had caught it: what started the process then
/// sees that it was told to stop and did. The first process of a container cannot be ended by its own signal;
/// there this returns, and the exit code is all there is.
pub(crate) fn end_by(signal: i32) {
    if std::process::id() != 1 {
        // An error means that there is no such signal: then the process ends in the ordinary way.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// Signals that ask for something and are heard instead of obeyed.
pub(crate) struct Signals {
    heard: Vec<(i32, Signal)>,
}

impl Signals {
    /// SIGINT and SIGTERM mean the same: stop in order.
    pub(crate) fn listen() -> Result<Signals, Failure> {
        Signals::listen_to(&[SignalKind::interrupt(), SignalKind::terminate()])
    }

    /// All by which people, terminals and shells end a program. One that whoever started this process wants ignored
    /// (`nohup`) is left to be.
    pub(crate) fn listen_like_a_program() -> Result<Signals, Failure> {
        let mut signals = Signals::listen()?;
        signals.hear_unless_ignored([SignalKind::hangup(), SignalKind::quit()])?;
        Ok(signals)
    }

    /// From now on also those by which a program is stopped from the terminal, and goes on.
    pub(crate) fn hear_stops(&mut self) -> Result<(), Failure> {
        self.hear_unless_ignored([Raw::TSTP, Raw::CONT].map(|signal| SignalKind::from_raw(signal.as_raw())))
    }

    fn hear_unless_ignored(&mut self, kinds: [SignalKind; 2]) -> Result<(), Failure> {
        let ignored = ignored_signals();
        let heard = kinds.into_iter().filter(|kind| (ignored >> (kind.as_raw_value() - 1)) & 1 == 0);
        self.heard.extend(Signals::listen_to(&heard.collect::<Vec<_>>())?.heard);
        Ok(())
    }

    fn listen_to(kinds: &[SignalKind]) -> Result<Signals, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
        let listen = |kind: &SignalKind| Ok((kind.as_raw_value(), signal(*kind).map_err(failed)?));
        Ok(Signals { heard: kinds.iter().map(listen).collect::<Result<_, Failure>>()? })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        self.next_number().await;
    }

    /// The next one, by its number.
    pub(crate) async fn next_number(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let mut heard = self.heard.iter_mut();
            let next = heard.find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The signals that this process was started to ignore, one bit each. Nobody can tell: none.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
