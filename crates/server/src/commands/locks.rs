//! `tidelock locks` and `tidelock sessions`: who holds what, who waits, and for how long yet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::time::Duration;

use serde_json::{Value, json};
use tidelock_client::Client;
use tidelock_client::inspect::{Kind, Member, Session};

use super::native::{self, failure};
use crate::cli::{LocksArgs, Output, SessionsArgs};
use crate::failure::Failure;
use crate::output::{Printer, escaped};

/// What stands in lines, in the order shown.
const QUEUES: [(Kind, &str); 3] = [(Kind::Lock, "lock"), (Kind::Semaphore, "semaphore"), (Kind::Election, "election")];
/// Most places shown of one line; how many more there are is said.
const PLACES_SHOWN: u32 = 100;
/// How often `--watch` looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One line with who stands in it.
struct Line {
    kind: &'static str,
    name: String,
    places: Vec<Member>,
    count: u64,
}

/// What was found at a time.
struct Found {
    lines: Vec<Line>,
    /// How long each session has left, in milliseconds.
    left: BTreeMap<i64, u64>,
}

pub(crate) async fn locks(args: &LocksArgs) -> Result<(), Failure> {
    let client = native::connect(&args.native, None).await?;
    let printer = Printer::new(args.output);
    let clears = args.watch && args.output == Output::Text && std::io::stdout().is_terminal();
    loop {
        let found = look(&client, &args.prefix).await?;
        if clears {
            // The cursor to the top, and everything below it away.
            printer.line("\x1b[H\x1b[J")?;
        }
        match args.output {
            Output::Text => printer.line(&table(&found))?,
            Output::Json => printer.json(&found_json(&found))?,
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn look(client: &Client, prefix: &str) -> Result<Found, Failure> {
    let mut lines = Vec::new();
    for (kind, word) in QUEUES {
        let asked = client.names_with_members(kind, prefix, PLACES_SHOWN).await;
        for found in asked.map_err(|error| failure(&error))? {
            // A semaphore that nobody uses is no news; a lock is not even known then.
            if found.members > 0 {
                lines.push(Line { kind: word, name: found.name, places: found.first, count: found.members });
            }
        }
    }
    let shown: BTreeSet<i64> = lines.iter().flat_map(|line| &line.places).map(|place| place.session).collect();
    let shown: Vec<i64> = shown.into_iter().collect();
    let sessions = client.sessions_of(&shown).await.map_err(|error| failure(&error))?;
    let left = sessions.into_iter().map(|session| (session.session, session.remaining_ms)).collect();
    Ok(Found { lines, left })
}

fn table(found: &Found) -> String {
    if found.lines.is_empty() {
        return "nothing is held, and nobody waits".into();
    }
    let mut rows = vec![["KIND", "NAME", "STATE", "TOKEN", "SESSION", "LEFT", "DATA"].map(str::to_owned)];
    for line in &found.lines {
        for (at, place) in line.places.iter().enumerate() {
            let state = match place.token {
                0 => format!("waits{}, {at} before it", mode(place)),
                _ => format!("holds{}", mode(place)),
            };
            let token = if place.token == 0 { String::new() } else { place.token.to_string() };
            let left = found.left.get(&place.session).map_or_else(String::new, |left| seconds(*left));
            let (session, data) = (format!("{:x}", place.session), cell(&place.data));
            rows.push([line.kind.into(), cell(line.name.as_bytes()), state, token, session, left, data]);
        }
        if let Some(more) = not_shown(line) {
            let none = String::new;
            rows.push([line.kind.into(), cell(line.name.as_bytes()), more, none(), none(), none(), none()]);
        }
    }
    aligned(&rows)
}

/// What is said of those of a line that are not shown. Who holds stands before who waits; if the last that is shown
/// holds, then so may others.
fn not_shown(line: &Line) -> Option<String> {
    let more = line.count.checked_sub(line.places.len() as u64).filter(|more| *more > 0)?;
    let all_wait = line.places.last().is_none_or(|last| last.token == 0);
    Some(if all_wait { format!("{more} more wait") } else { format!("{more} more hold or wait") })
}

/// Somebody's bytes in one cell of a table: nothing in them ends a line or moves a column.
fn cell(bytes: &[u8]) -> String {
    escaped(bytes).replace('\n', "\\n").replace('\t', "\\t")
}

fn mode(place: &Member) -> String {
    use tidelock_client::inspect::Mode;
    match place.mode() {
        Mode::Shared => " shared".into(),
        Mode::Permits if place.token == 0 => format!(" for {}", place.weight.max(1)),
        Mode::Permits => format!(" {}", place.weight.max(1)),
        Mode::Exclusive | Mode::Unspecified => String::new(),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{}s", ms / 1000, ms % 1000 / 100)
}

/// Columns as wide as what is in them; the last one as it comes.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn found_json(found: &Found) -> Value {
    let place = |place: &Member| {
        json!({
            "place": place.place,
            "token": place.token,
            "session": format!("{:x}", place.session),
            "left_ms": found.left.get(&place.session),
            "shared": place.mode() == tidelock_client::inspect::Mode::Shared,
            "permits": place.weight,
            "data": String::from_utf8_lossy(&place.data),
        })
    };
    let line = |line: &Line| {
        let (held, waiting): (Vec<&Member>, Vec<&Member>) = line.places.iter().partition(|place| place.token != 0);
        let (held, waiting) = (held.into_iter().map(place), waiting.into_iter().map(place));
        json!({
            "kind": line.kind,
            "name": line.name,
            "count": line.count,
            "holders": held.collect::<Vec<_>>(),
            "waiting": waiting.collect::<Vec<_>>(),
        })
    };
    Value::Array(found.lines.iter().map(line).collect())
}

pub(crate) async fn sessions(args: &SessionsArgs) -> Result<(), Failure> {
    let client = native::connect(&args.native, None).await?;
    let printer = Printer::new(args.output);
    if let Some(session) = args.end {
        client.end_session(session).await.map_err(|error| failure(&error))?;
        match args.output {
            Output::Text => printer.line(&format!("session {session:x} is over"))?,
            Output::Json => printer.json(&json!({ "ended": format!("{session:x}") }))?,
        }
        return Ok(());
    }
    let found = client.sessions().await.map_err(|error| failure(&error))?;
    match args.output {
        Output::Text if found.is_empty() => printer.line("there are no sessions")?,
        Output::Text => printer.line(&session_table(&found))?,
        Output::Json => printer.json(&Value::Array(found.iter().map(session_json).collect()))?,
    }
    Ok(())
}

fn session_table(found: &[Session]) -> String {
    let mut rows = vec![["SESSION", "TTL", "LEFT", "OWNER", "HOLDS"].map(str::to_owned)];
    for session in found {
        let (id, owner) = (format!("{:x}", session.session), cell(session.owner.as_bytes()));
        let (ttl, left) = (seconds(session.ttl_ms.into()), seconds(session.remaining_ms));
        rows.push([id, ttl, left, owner, session.count.to_string()]);
    }
    aligned(&rows)
}

fn session_json(session: &Session) -> Value {
    let holding = |held: &tidelock_client::inspect::Holding| {
        let kind = held.kind().as_str_name().to_lowercase();
        json!({ "kind": kind, "name": held.name, "place": held.place, "token": held.token })
    };
    json!({
        "session": format!("{:x}", session.session),
        "ttl_ms": session.ttl_ms,
        "left_ms": session.remaining_ms,
        "owner": session.owner,
        "count": session.count,
        "holdings": session.holdings.iter().map(holding).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hundreds that share a lock do not wait for anything.
    #[test]
    fn those_who_are_not_shown_are_said_to_wait_only_if_they_do() {
        let line = |tokens: &[u64], count| {
            let place = |token: &u64| Member { token: *token, ..Default::default() };
            Line { kind: "lock", name: "l".into(), places: tokens.iter().map(place).collect(), count }
        };
        assert_eq!(not_shown(&line(&[7, 8], 2)), None);
        assert_eq!(not_shown(&line(&[7, 8], 5)).unwrap(), "3 more hold or wait");
        assert_eq!(not_shown(&line(&[7, 0], 5)).unwrap(), "3 more wait");
    }
}
