//! The paused process: who holds a lock is stopped for longer than the lock lives, another takes over, the first wakes
//! and writes. `examples/paused-process/run` plays it with a real PostgreSQL, as a reader can watch it; here its rows
//! are looked at.
//!
//! Without PostgreSQL (Debian's `postgresql`) these tests say so and are skipped, unless `TIDELOCK_NEEDS_POSTGRESQL` is
//! set. They install nothing.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

/// The program that deposits money: this test starts itself as it.
#[path = "../../client/examples/ledger/main.rs"]
#[allow(unreachable_pub)]
mod ledger;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Cluster;

/// What `run` ends with if there is no PostgreSQL.
const NOT_INSTALLED: i32 = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a reader watches.
fn script() -> Command {
    Command::new(root().join("examples/paused-process/run"))
}

/// The arguments that make this very program run one of its tests and show what that prints.
fn as_program(test: &str) -> [&str; 5] {
    ["--exact", test, "--include-ignored", "--nocapture", "--quiet"]
}

/// What the script printed; `None`: there is no PostgreSQL, and that was said.
fn played(script: &mut Command) -> Option<String> {
    let output = script.stdin(Stdio::null()).output().unwrap();
    let (told, complained) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(NOT_INSTALLED) {
        assert!(std::env::var_os("TIDELOCK_NEEDS_POSTGRESQL").is_none(), "{complained}");
        eprintln!("skipped: {complained}");
        return None;
    }
    assert!(output.status.success(), "{}\n{told}\n{complained}", output.status);
    Some(told)
}

/// K6, L22: only the token in the statement keeps a late write out. Without it the ledger is corrupt, and a check helps
/// only who is not stopped after it: the guide says so, and here it is seen.
#[test]
fn k6_a_paused_holder_corrupts_a_ledger_that_does_not_compare_tokens() {
    let (_cluster, ports) = Cluster::start_native(1);
    let me = std::env::current_exe().unwrap();
    let ledger = format!("{} {}", me.display(), as_program("the_ledger_program").join(" "));
    let mut script = script();
    script.env("TIDELOCK_NATIVE", format!("127.0.0.1:{}", ports[0])).env("LEDGER", ledger);
    let Some(told) = played(&mut script) else { return };
    println!("{told}");
    let rows: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("rows ")).collect();
    // B wrote 150. Where A is the last writer, what B was told is in the account is gone.
    assert_eq!(rows, ["none: 110|A", "token: 150|B", "check: 150|B", "early-check: 110|A"], "{told}");
    let of_a = |story: &str, words: &str| {
        let played = told.split("\n== ").find(|played| played.contains(&format!("rows {story}:"))).unwrap();
        assert!(played.lines().any(|line| line.trim_start().starts_with("A: ") && line.contains(words)), "{played}");
    };
    of_a("none", "the database, which says: UPDATE 1");
    of_a("token", "the database, which says: UPDATE 0");
    of_a("check", "It writes nothing");
    of_a("early-check", "check() says that the lock is still its own");
    of_a("early-check", "the database, which says: UPDATE 1");
}

/// Not a test by itself: what A and B are.
#[test]
#[ignore = "is started by the test above as a process of its own"]
fn the_ledger_program() {
    // Somebody may run all ignored tests.
    if std::env::var_os("PROTECTION").is_some() {
        ledger::main().unwrap();
    }
}

/// L9, L22: the statements of the guide keep an old token out, whatever comes in between; the one that is passed around
/// in articles, which compares and does not store, keeps nobody out.
#[test]
fn l22_the_statements_of_the_guide_refuse_an_old_token() {
    let me = std::env::current_exe().unwrap();
    let mut script = script();
    let told = played(script.arg("--database").arg(me).args(as_program("statements_beside_a_database")));
    assert!(told.is_none_or(|told| told.contains("1 passed")));
}

/// Runs a file of SQL; what psql prints.
fn sql(file: &str, who: &str, token: u64, balance: i64) -> String {
    let output = Command::new("psql")
        .args(["--no-psqlrc", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"])
        .args([format!("--set=who={who}"), format!("--set=token={token}"), format!("--set=balance={balance}")])
        .arg("--file")
        .arg(root().join("crates/client/examples/ledger/sql").join(file))
        .output()
        .unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn query(statement: &str) -> String {
    let arguments = ["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--command", statement];
    let output = Command::new("psql").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn new_account() {
    query("DROP TABLE IF EXISTS account");
    sql("schema.sql", "", 0, 0);
}

#[test]
#[ignore = "is started by the test above, beside a database"]
fn statements_beside_a_database() {
    if std::env::var_os("PGHOST").is_none() {
        return;
    }
    // The mistake: nobody remembers 34, so 33 is as good.
    new_account();
    assert_eq!(sql("compares-only.sql", "B", 34, 150), "UPDATE 1");
    assert_eq!(sql("compares-only.sql", "A", 33, 110), "UPDATE 1");
    assert_eq!(query("SELECT balance, writer FROM account"), "110|A");

    // Stored with the write it is refused; its own holder may write as often as it likes.
    new_account();
    assert_eq!(sql("fenced-write.sql", "B", 34, 150), "UPDATE 1");
    assert_eq!(sql("fenced-write.sql", "A", 33, 110), "UPDATE 0");
    assert_eq!(sql("fenced-write.sql", "B", 34, 160), "UPDATE 1");
    assert_eq!(query("SELECT balance, writer, last_token FROM account"), "160|B|34");

    // A write of the old one between a plain read and the write of the new one is taken, and lost.
    new_account();
    assert_eq!(sql("read.sql", "B", 34, 0), "100");
    assert_eq!(sql("fenced-write.sql", "A", 33, 110), "UPDATE 1");
    assert_eq!(sql("fenced-write.sql", "B", 34, 150), "UPDATE 1");
    assert_eq!(query("SELECT balance FROM account"), "150", "A was told that its 10 are there");

    // So the new one reads with its token, too, and from then on the old one is out.
    new_account();
    assert_eq!(sql("fenced-read.sql", "B", 34, 0), "100\nUPDATE 1");
    assert_eq!(sql("fenced-write.sql", "A", 33, 110), "UPDATE 0");
    assert_eq!(sql("fenced-read.sql", "A", 33, 0), "UPDATE 0");
    assert_eq!(sql("fenced-write.sql", "B", 34, 150), "UPDATE 1");
    assert_eq!(query("SELECT balance, writer, last_token FROM account"), "150|B|34");

    // One row that stands for many tables.
    sql("fence-table.sql", "", 0, 0);
    assert_eq!(sql("admit.sql", "B", 34, 0), "INSERT 0 1");
    assert_eq!(sql("admit.sql", "B", 34, 0), "INSERT 0 1");
    assert_eq!(sql("admit.sql", "A", 33, 0), "INSERT 0 0");
    assert_eq!(query("SELECT last_token FROM fence"), "34");
}
