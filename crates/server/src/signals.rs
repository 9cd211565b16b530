//! Being told to stop: Ctrl-C and a polite request mean the same.

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

/// SIGINT and SIGTERM mean the same: stop in order.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Signals, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        self.next_number().await;
    }

    /// The next one, by its number.
    pub(crate) async fn next_number(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}
