//! `tidelock barrier`: waits until all are there.

use tidelock_client::OnDeath;

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
    let mut signals = Signals::listen_like_a_program()?;
    let in_time = async {
        match args.wait {
            Some(wait) => tokio::time::timeout(wait, barrier.enter()).await.ok(),
            None => Some(barrier.enter().await),
        }
    };
    let met = tokio::select! {
        met = in_time => met,
        signal = signals.next_number() => {
            client.close().await;
            end_by(signal);
            return Err(Failure::exit(128 + signal));
        }
    };
    // Also when the time is over: the place is given up, and that must be known to the others.
    client.close().await;
    match met {
        Some(met) => met.map_err(|error| native::failure(&error)),
        None => Err(Failure::new(format!("not all {} were there in time", args.parties)).code(NOT_IN_TIME)),
    }
}
