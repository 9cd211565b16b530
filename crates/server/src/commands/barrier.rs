//! `tidelock barrier`: waits until all are there.

use tidelock_client::{Barrier, Code, OnDeath};

use super::native::{self, NOT_IN_TIME};
use crate::cli::{BarrierArgs, WhenOneGoes};
use crate::failure::Failure;
use crate::signals::{Signals, end_by};

pub(crate) async fn barrier(args: &BarrierArgs) -> Result<(), Failure> {
    let client = native::connect(&args.native, None).await?;
    let on_death = match args.on_death {
        WhenOneGoes::Shrink => OnDeath::Shrink,
        WhenOneGoes::Break => OnDeath::Break,
    };
    let barrier = client.barrier(&args.name, args.parties).on_death(on_death);
    let barrier = args.wait.into_iter().fold(barrier, Barrier::wait);
    let mut signals = Signals::listen_like_a_program()?;
    let met = tokio::select! {
        met = barrier.enter() => met,
        signal = signals.next_number() => {
            client.close().await;
            end_by(signal);
            return Err(Failure::exit(128 + signal));
        }
    };
    // Also when it failed: what may be left of this party must not be counted on by the others.
    client.close().await;
    met.map_err(|error| match error.code() {
        // Nobody holds anything up here, so there is nothing to look for in `tidelock locks`.
        Some(Code::TimedOut) => Failure::new(error.to_string()).code(NOT_IN_TIME),
        _ => native::failure(&error),
    })
}
