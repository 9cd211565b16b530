//! Deposits money into an account under a lock, and can be stopped between reading the balance and writing it.
//!
//! `examples/paused-process/run` starts two of these, stops the first, lets the second take over, and wakes the
//! first. What becomes of the account depends on `PROTECTION`:
//!
//! - `none`: writes what it worked out, as if nothing had happened;
//! - `token`: sends the fencing token along, and the database compares it with the largest it has seen;
//! - `check`: asks the guard right before the write;
//! - `early-check`: asks the guard, and is stopped between that and the write.
//!
//! Settings come from the environment: `WHO`, `DEPOSIT`, `PROTECTION`, `PAUSE` (if set, it waits for a line on standard
//! input before it writes), `TIDELOCK_NATIVE`, and those of `psql` (`PGHOST`, `PGUSER`, ...).

use std::env::var;
use std::error::Error;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidelock_client::{Client, Token};

/// How long the lock outlives a process that says nothing.
const TTL: Duration = Duration::from_secs(2);

const READ: &str = include_str!("sql/read.sql");
const WRITE: &str = include_str!("sql/write.sql");
const FENCED_READ: &str = include_str!("sql/fenced-read.sql");
const FENCED_WRITE: &str = include_str!("sql/fenced-write.sql");

/// Takes the lock, reads, is perhaps stopped, writes.
#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let (who, protection) = (var("WHO")?, var("PROTECTION")?);
    let deposit: i64 = var("DEPOSIT")?.parse()?;
    let client = Client::connect([var("TIDELOCK_NATIVE")?]).await?;

    let guard = client.lock("ledger").ttl(TTL).data(who.clone()).acquire().await?;
    say(&who, &format!("holds the lock, token {}", guard.token()));

    let is_fenced = protection == "token";
    let read = sql(if is_fenced { FENCED_READ } else { READ }, &who, guard.token(), 0)?;
    let balance: i64 = read.lines().next().ok_or("the account cannot be read with this token")?.parse()?;
    say(&who, &format!("read a balance of {balance} and will write {}", balance + deposit));

    if protection == "early-check" {
        guard.check()?;
        say(&who, "check() says that the lock is still its own");
    }
    if var("PAUSE").is_ok() {
        say(&who, "is about to write");
        std::io::stdin().read_line(&mut String::new())?;
    }
    if protection == "check"
        && let Err(lost) = guard.check()
    {
        say(&who, &format!("check() says: {lost}. It writes nothing"));
        return Ok(());
    }

    let told = sql(if is_fenced { FENCED_WRITE } else { WRITE }, &who, guard.token(), balance + deposit)?;
    say(&who, &format!("sends {} to the database, which says: {}", balance + deposit, told.trim()));
    match guard.release().await {
        Ok(()) => say(&who, "gave the lock back"),
        Err(error) => say(&who, &format!("cannot give the lock back: {error}")),
    }
    Ok(())
}

fn say(who: &str, what: &str) {
    println!("{who}: {what}");
}

/// Runs one statement with `psql`, and gives what it prints: rows, and what the statement did (`UPDATE 1`).
fn sql(statement: &str, who: &str, token: Token, balance: i64) -> Result<String, Box<dyn Error>> {
    let mut psql = Command::new("psql")
        .args(["--no-psqlrc", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1", "--file=-"])
        .args([format!("--set=who={who}"), format!("--set=token={token}"), format!("--set=balance={balance}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // Dropped at once, so that psql sees the end of it.
    psql.stdin.take().ok_or("psql has a standard input")?.write_all(statement.as_bytes())?;
    let output = psql.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("psql: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
