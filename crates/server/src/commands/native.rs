//! Reaching nodes for what is held, and saying in words and by exit codes why something there did not work.

use std::time::Duration;

use tidelock_client::{Client, Code, Error, Failure as NotTried, Loss};

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
    let mut options = Client::options().patience(Duration::from_millis(args.timeout_ms));
    if let Some(ttl) = ttl {
        options = options.ttl(ttl);
    }
    if let Some(file) = &args.cacert {
        options = options.authority(read(file)?);
    }
    if let (Some(certificate), Some(key)) = (&args.cert_file, &args.key_file) {
        options = options.identity(read(certificate)?, read(key)?);
    }
    if let Some((name, password)) = credentials(args)? {
        options = options.user(&name, &password);
    }
    options.connect(&args.native).await.map_err(|error| failure(&error))
}

fn credentials(args: &NativeArgs) -> Result<Option<(String, String)>, Failure> {
    let Some(user) = &args.user else { return Ok(None) };
    match (user.split_once(':'), &args.password) {
        (Some((name, password)), None) => Ok(Some((name.to_owned(), password.to_owned()))),
        (None, Some(password)) => Ok(Some((user.clone(), password.clone()))),
        (Some(_), Some(_)) => Err(Failure::usage("the password is given twice, in --user and in --password")),
        (None, None) => Err(Failure::usage(format!("the password of {user} is missing"))
            .hint("set TIDELOCK_PASSWORD, or write --user NAME:PASSWORD")),
    }
}

fn read(file: &std::path::Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("{} cannot be read: {error}", file.display())))
}

/// What to tell the user, and which code to end with.
pub(crate) fn failure(error: &Error) -> Failure {
    let said = Failure::new(error.to_string());
    match error {
        Error::Failed(NotTried::BadOption(_)) => Failure::usage(error.to_string()),
        Error::Failed(_) => said.code(UNREACHABLE).hint(
            "check `tidelock status`; name running nodes with --native or TIDELOCK_NATIVE (port 7481 by default)",
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
