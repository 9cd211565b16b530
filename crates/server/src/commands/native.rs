//! Reaching nodes for what is held, and saying in words and by exit codes why something there did not work.

use std::time::Duration;

use tidelock_client::{Client, Code, Error, Failure as NotTried, Loss};

use super::dialing::{credentials, resolve};
use crate::cli::NativeArgs;
use crate::failure::Failure;

/// No node could be reached, or none answered in time.
pub(crate) const UNREACHABLE: u8 = 69;
/// Not granted within the time that was given.
pub(crate) const NOT_IN_TIME: u8 = 75;
/// What was held is lost.
pub(crate) const LOST: u8 = 76;
/// The cluster said no.
pub(crate) const REFUSED: u8 = 77;

/// A client with that time to live.
pub(crate) async fn connect(args: &NativeArgs, ttl: Option<Duration>) -> Result<Client, Failure> {
    let mut options = Client::options().patience(Duration::from_millis(args.connection.timeout_ms));
    if let Some(ttl) = ttl {
        options = options.ttl(ttl);
    }
    if let Some((name, password)) = credentials(&args.connection)? {
        options = options.user(&name, &password);
    }
    let mut urls = Vec::new();
    for given in &args.native {
        let (url, dialer) = resolve(given, &args.connection)?;
        if let Some(dialer) = dialer {
            options = options.dialer(move |host, port| dialer.clone().dial(host, port));
        }
        urls.push(url);
    }
    options.connect(urls).await.map_err(|error| failure(&error))
}

/// What to tell the user, and which code to end with.
pub(crate) fn failure(error: &Error) -> Failure {
    let said = Failure::new(error.to_string());
    match error {
        Error::Failed(NotTried::BadOption(_)) => Failure::usage(error.to_string()),
        Error::Failed(_) => said.code(UNREACHABLE).hint(
            "check `tidelock status`; name running nodes with --native or TIDELOCK_NATIVE (port 7481 by default); \
             nodes with TLS need https:// and --cacert",
        ),
        Error::Unknown { .. } => said.code(UNREACHABLE).hint("look with `tidelock locks` before you try again"),
        Error::Lost(Loss::Broken) => said.code(LOST),
        Error::Lost(_) => said.code(LOST).hint("check what was done under the old token before you start again"),
        Error::Refused(refusal) => match refusal.code {
            Code::TimedOut | Code::Busy | Code::QueueFull | Code::BarrierOpen => {
                said.code(NOT_IN_TIME).hint("see who has it with `tidelock locks`, or give it more time with --wait")
            }
            Code::Denied => said.code(REFUSED).hint("come in as a user who may, with --user"),
            Code::Mistaken => Failure::usage(refusal.message.clone()),
            _ => said.code(REFUSED),
        },
    }
}
