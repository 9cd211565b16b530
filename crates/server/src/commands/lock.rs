//! `tidelock lock` and `tidelock elect`: run a program while a lock is held, or while leading.

use tidelock_client::{Election, Guard, Lock, RwLock, Semaphore};

use super::native;
use super::supervise::{Supervision, hold_and_run};
use crate::cli::{ElectArgs, HoldArgs, LockArgs};
use crate::failure::Failure;

/// A lock, or a share or permit of one.
pub(crate) async fn lock(args: &LockArgs) -> Result<(), Failure> {
    let (name, hold) = (&args.name, &args.hold);
    let client = native::connect(&args.native, Some(hold.ttl)).await?;
    let supervision = Supervision { client: client.clone(), program: &hold.program, grace: hold.grace() };
    let data = data(hold);
    let granted = async {
        let guard: Guard = match (args.shared, args.permits) {
            (true, _) => {
                let lock = client.rw_lock(name).data(data);
                hold.wait.into_iter().fold(lock, RwLock::wait).read().await?
            }
            (false, Some(permits)) => {
                let semaphore = client.semaphore(name, permits).data(data);
                hold.wait.into_iter().fold(semaphore, Semaphore::wait).acquire(1).await?
            }
            (false, None) => {
                let lock = client.lock(name).data(data);
                hold.wait.into_iter().fold(lock, Lock::wait).acquire().await?
            }
        };
        Ok(guard)
    };
    hold_and_run(granted, supervision).await
}

/// The lead of an election.
pub(crate) async fn elect(args: &ElectArgs) -> Result<(), Failure> {
    let hold = &args.hold;
    let client = native::connect(&args.native, Some(hold.ttl)).await?;
    let supervision = Supervision { client: client.clone(), program: &hold.program, grace: hold.grace() };
    let election = client.election(&args.name).data(data(hold));
    let election = hold.wait.into_iter().fold(election, Election::wait);
    hold_and_run(async { election.campaign().await }, supervision).await
}

/// What others are shown: who this is, unless something else was said.
fn data(hold: &HoldArgs) -> String {
    hold.data.clone().unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("process {} on {}", std::process::id(), if host.is_empty() { "this machine" } else { host.trim() })
    })
}
