//! `tidelock lock` and its kin on the real binary: what the program is given, who goes first, what happens on loss, and
//! the exit codes that scripts go by.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use support::{Cluster, tidelock, wait_for};

/// Lines of `--watch` that a test has not looked at; more wait in the pipe.
const SHOWN_MAX: usize = 64;

/// A node that serves the native API.
struct Node {
    cluster: Cluster,
    port: u16,
}

fn start_node() -> Node {
    let (cluster, ports) = Cluster::start_native(1);
    Node { cluster, port: ports[0] }
}

/// A command of the binary against this node.
fn command(node: &Node, words: &[&str]) -> Command {
    let mut command = tidelock();
    command.args(words).env("TIDELOCK_NATIVE", format!("127.0.0.1:{}", node.port)).stdin(Stdio::null());
    command
}

fn run(node: &Node, words: &[&str]) -> Output {
    command(node, words).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// One that runs beside the test, and is killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(node: &Node, words: &[&str]) -> Running {
    Running(command(node, words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn wait_for_file(path: &Path) {
    wait_for(&format!("{} to be written", path.display()), || path.exists().then_some(()));
}

fn locks(node: &Node) -> serde_json::Value {
    let output = run(node, &["locks", "--output", "json"]);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How many wait for the first lock there is.
fn waiting(node: &Node) -> usize {
    locks(node)[0]["waiting"].as_array().map_or(0, Vec::len)
}

/// L1: the program fences its writes by what it finds in TIDELOCK_TOKEN, so it must be there and grow.
#[test]
fn a_program_is_run_under_a_lock_and_finds_its_token() {
    let node = start_node();
    let mut last = 0;
    for command in ["lock", "lock", "elect", "elect"] {
        let output = run(&node, &[command, "nightly", "--", "sh", "-c", "echo $TIDELOCK_TOKEN"]);
        assert!(output.status.success(), "{}", said(&output));
        let token: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!(token > last, "{command}: {token} after {last}");
        last = token;
    }
    assert_eq!(locks(&node), serde_json::json!([]), "it is given back when the program ends");
}

/// L7: two of them do not run at the same time, and the second runs when the first is done.
#[test]
fn the_second_program_runs_after_the_first() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let script = format!("touch {0}/first; while [ ! -e {0}/go ]; do sleep 0.05; done", dir.path().display());
    let mut first = start(&node, &["lock", "l", "--", "sh", "-c", &script]);
    wait_for_file(&path("first"));
    let mut second = start(&node, &["lock", "l", "--", "touch", path("second").to_str().unwrap()]);
    wait_for("the second to wait", || (waiting(&node) == 1).then_some(()));
    assert!(!path("second").exists());
    fs::write(path("go"), "").unwrap();
    assert!(first.0.wait().unwrap().success());
    assert!(second.0.wait().unwrap().success());
    assert!(path("second").exists());
}

/// Scripts tell "somebody else does it" from "it failed" by the code.
#[test]
fn exit_codes_tell_apart_what_happened() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let code = |words: &[&str]| {
        let output = run(&node, words);
        (output.status.code(), said(&output))
    };
    let is = |words: &[&str], expected: i32| {
        let (code, said) = code(words);
        assert_eq!(code, Some(expected), "{words:?}: {said}");
    };
    is(&["lock", "l", "--", "sh", "-c", "exit 7"], 7);
    is(&["lock", "l", "--", "sh", "-c", "kill -TERM $$"], 128 + 15);
    is(&["lock", "l", "--", "/no/such/program"], 127);
    is(&["lock", "l", "--", dir.path().to_str().unwrap()], 126);
    is(&["lock", "l"], 2);
    is(&["lock", "l", "--ttl", "soon", "--", "true"], 2);
    is(&["lock", "l", "--ttl", "1ms", "--", "true"], 2);
    is(&["lock", "", "--", "true"], 2);
    is(&["lock", &"n".repeat(100_000), "--", "true"], 2);
    is(&["lock", "l", "--data", &"d".repeat(5000), "--", "true"], 2);
    is(&["lock", "l", "--native", "127.0.0.1:1", "--", "true"], 69);
    let held = dir.path().join("held");
    let script = format!("touch {}; exec sleep 1000", held.display());
    let _holder = start(&node, &["lock", "busy", "-n", "1", "--", "sh", "-c", &script]);
    wait_for_file(&held);
    is(&["lock", "busy", "-n", "1", "--wait", "0s", "--", "true"], 75);
    is(&["lock", "busy", "-n", "1", "--wait", "100ms", "--", "true"], 75);
    is(&["lock", "busy", "-n", "2", "--", "true"], 77);
    is(&["barrier", "b", "--parties", "2", "--wait", "100ms"], 75);
    is(&["barrier", "b", "--parties", "1"], 0);
}

/// What `ps` shows of the process that wrote its number there; `None`: nothing.
fn state_of(marker: &Path) -> Option<char> {
    let pid = fs::read_to_string(marker).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
}

/// Nothing is left but what nobody has waited for.
fn is_gone(marker: &Path) -> bool {
    matches!(state_of(marker), None | Some('Z'))
}

/// K6: who lost the lock must not go on working, not even a child that ignores being asked.
#[test]
fn a_program_is_ended_when_its_lock_is_lost() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let (polite, stubborn) = (dir.path().join("polite"), dir.path().join("stubborn"));
    // Writes its own pid, and that of a child that ignores SIGTERM.
    let script = format!(
        "sh -c 'trap \"\" TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.1; done' & \
         echo $$ > {1}.new; mv {1}.new {1}; wait",
        stubborn.display(),
        polite.display()
    );
    let mut holder = start(&node, &["lock", "l", "--grace", "500ms", "--", "sh", "-c", &script]);
    wait_for_file(&polite);
    wait_for_file(&stubborn);
    end_the_holder(&node);
    assert_eq!(holder.0.wait().unwrap().code(), Some(76));
    assert!(is_gone(&polite));
    wait_for("the stubborn child to be gone", || is_gone(&stubborn).then_some(()));
}

/// Ends the session of whoever holds the only lock there is.
fn end_the_holder(node: &Node) {
    let session = locks(node)[0]["holders"][0]["session"].as_str().unwrap().to_owned();
    let ended = run(node, &["sessions", "--end", &session]);
    assert!(ended.status.success(), "{}", said(&ended));
}

/// The grace is for putting things in order. Killed before it is over, a program leaves half of something; never killed,
/// one that does not listen works on without its lock.
#[test]
fn a_program_that_lost_its_lock_has_its_grace_and_no_more() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let path = dir.path().display();
    // Asked to end, this one puts things in order for a while and ends.
    let orderly = format!(
        "trap 'touch {path}/asked; sleep 0.5; touch {path}/done; exit 0' TERM; touch {path}/orderly; \
         while :; do sleep 0.05; done"
    );
    let mut holder = start(&node, &["lock", "l", "--grace", "10m", "--", "sh", "-c", &orderly]);
    wait_for_file(&file("orderly"));
    end_the_holder(&node);
    assert_eq!(code_of(&mut holder), Some(76));
    assert!(file("done").exists(), "it was killed within its grace");
    // This one hears it, and goes on.
    fs::remove_file(file("asked")).unwrap();
    let grace = std::time::Duration::from_secs(2);
    let deaf = format!("trap 'touch {path}/asked' TERM; touch {path}/deaf; while :; do sleep 0.05; done");
    let mut holder = start(&node, &["lock", "l", "--grace", "2s", "--", "sh", "-c", &deaf]);
    wait_for_file(&file("deaf"));
    let before = std::time::Instant::now();
    end_the_holder(&node);
    assert_eq!(code_of(&mut holder), Some(76));
    assert!(file("asked").exists() && before.elapsed() >= grace, "after {:?}", before.elapsed());
}

/// L12: the same when nobody can be reached: then nobody says that the lock is lost, and it is all the same.
#[test]
fn a_program_is_ended_when_no_node_can_be_reached_any_more() {
    let mut node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", held.display());
    let mut holder = start(&node, &["elect", "e", "--ttl", "2s", "--", "sh", "-c", &script]);
    wait_for_file(&held);
    node.cluster.nodes[0].kill();
    assert_eq!(holder.0.wait().unwrap().code(), Some(76));
    assert!(is_gone(&held));
}

/// Ctrl-C while waiting must not leave a place in the queue that others wait behind.
#[test]
fn a_waiter_that_is_interrupted_leaves_the_queue() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let script = format!("touch {}; exec sleep 1000", held.display());
    let _holder = start(&node, &["lock", "l", "--", "sh", "-c", &script]);
    wait_for_file(&held);
    let mut command = command(&node, &["lock", "l", "--", "true"]);
    let mut waiter = Running(command.process_group(0).stderr(Stdio::null()).spawn().unwrap());
    wait_for("the waiter", || (waiting(&node) == 1).then_some(()));
    let pid = rustix::process::Pid::from_raw(i32::try_from(waiter.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!waiter.0.wait().unwrap().success());
    wait_for("the place to be given up", || (waiting(&node) == 0).then_some(()));
}

/// A lock on the real binary, started by `env` so that it hears signals that whoever runs the tests ignores.
fn start_with_signals(node: &Node, how: &str, words: &[&str]) -> Running {
    let mut command = Command::new("env");
    command.args([how, support::TIDELOCK]).args(words).env("TIDELOCK_NATIVE", format!("127.0.0.1:{}", node.port));
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().unwrap())
}

fn signal(running: &Running, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(&running.0), signal).unwrap();
}

/// How it ended, in good time.
fn code_of(running: &mut Running) -> Option<i32> {
    wait_for("the command to end", || running.0.try_wait().unwrap()).code()
}

/// A program that says where it is, and stays.
fn stays(marker: &Path) -> String {
    format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", marker.display())
}

/// K6: a terminal that is closed and a connection that is dropped send SIGHUP. A program that ran on without its lock
/// would soon run beside the next holder.
#[test]
fn a_program_under_a_lock_ends_when_the_terminal_hangs_up() {
    use rustix::process::Signal;
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    for (asked, number) in [(Signal::HUP, 1), (Signal::QUIT, 3)] {
        let held = dir.path().join(format!("held-{number}"));
        let how = format!("--default-signal={number}");
        let mut holder = start_with_signals(&node, &how, &["lock", "l", "--", "sh", "-c", &stays(&held)]);
        wait_for_file(&held);
        signal(&holder, asked);
        assert_eq!(code_of(&mut holder), Some(128 + number));
        assert!(is_gone(&held));
        assert_eq!(locks(&node), serde_json::json!([]), "it is given back at once");
    }
}

/// Who starts it with `nohup` wants it to outlive the terminal.
#[test]
fn a_hang_up_that_is_to_be_ignored_is_ignored() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder = start_with_signals(&node, "--ignore-signal=HUP", &["lock", "l", "--", "sh", "-c", &stays(&held)]);
    wait_for_file(&held);
    // The program ignores it as well: who hears a signal passes that on to nobody.
    let status = fs::read_to_string(format!("/proc/{}/status", fs::read_to_string(&held).unwrap().trim())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "{status}");
    signal(&holder, rustix::process::Signal::HUP);
    signal(&holder, rustix::process::Signal::TERM);
    assert_eq!(code_of(&mut holder), Some(128 + 15));
}

/// K6: a holder that is stopped by Ctrl-Z renews nothing, while its program would run on.
#[test]
fn ctrl_z_does_not_stop_who_holds_a_lock() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder =
        start_with_signals(&node, "--default-signal=TSTP", &["lock", "l", "--", "sh", "-c", &stays(&held)]);
    wait_for_file(&held);
    signal(&holder, rustix::process::Signal::TSTP);
    signal(&holder, rustix::process::Signal::TERM);
    // A stopped process would not hear it.
    assert_eq!(code_of(&mut holder), Some(128 + 15));
}

/// A program that stands still hears nothing: told to end, it must not be waited for for ever, with the lock held.
#[test]
fn a_program_that_was_stopped_is_ended_all_the_same() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder = start(&node, &["lock", "l", "--", "sh", "-c", &stays(&held)]);
    wait_for_file(&held);
    let program = fs::read_to_string(&held).unwrap().trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(program.unwrap(), rustix::process::Signal::STOP).unwrap();
    wait_for("the program to stand still", || (state_of(&held) == Some('T')).then_some(()));
    signal(&holder, rustix::process::Signal::TERM);
    assert_eq!(code_of(&mut holder), Some(128 + 15));
}

/// K6: nobody renews the lock of a holder that was killed. Its program must not run on until the next one has it.
#[test]
fn a_program_is_killed_when_who_holds_its_lock_is_killed() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder = start(&node, &["lock", "l", "--ttl", "2s", "--", "sh", "-c", &stays(&held)]);
    wait_for_file(&held);
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    wait_for("the program to be gone", || is_gone(&held).then_some(()));
}

/// Runs a script on a terminal of its own, types `input`, and gives what the terminal showed.
fn on_a_terminal(node: &Node, script: &str, input: &[u8]) -> String {
    let mut command = Command::new("script");
    command.args(["-qec", script, "/dev/null"]).env("TIDELOCK_NATIVE", format!("127.0.0.1:{}", node.port));
    command.env("TIDELOCK", support::TIDELOCK).env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let mut typed = running.0.stdin.take().unwrap();
    let mut shown = running.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut shown, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    std::io::Write::write_all(&mut typed, input).unwrap();
    // It ends by itself, or the test has failed: then it is killed, and what it showed so far tells why.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("the script to end", || running.0.try_wait().unwrap());
    }));
    drop(running);
    drop(typed);
    let shown = reader.join().unwrap();
    assert!(ended.is_ok(), "it did not end, and showed: {shown}");
    shown
}

/// A program that asks a question, or an editor, would be stopped by the terminal for ever, with the lock held.
#[test]
fn a_program_under_a_lock_may_use_the_terminal_and_gives_it_back() {
    let node = start_node();
    // Also two at a time in one pipeline, where the second has the terminal, and once more afterwards.
    let script = "$TIDELOCK lock a -- sh -c 'read x; echo first-$x'; \
                  $TIDELOCK lock a -- echo piped | sh -c 'read y; read x < /dev/tty; echo second-$y-$x'; \
                  read x; echo third-$x";
    let shown = on_a_terminal(&node, script, b"one\ntwo\nthree\n");
    for expected in ["first-one", "second-piped-two", "third-three"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

/// L11: those that share run together, and at most as many as there are permits.
#[test]
fn shared_locks_and_permits_let_several_in() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    for (kind, words) in [("shared", &["--shared"][..]), ("permits", &["-n", "2"])] {
        let meet = |me: &str, other: &str| {
            let (me, other) = (dir.path().join(format!("{kind}-{me}")), dir.path().join(format!("{kind}-{other}")));
            let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", me.display(), other.display());
            start(&node, &[&["lock", kind], words, &["--", "sh", "-c", &script]].concat())
        };
        let (mut one, mut other) = (meet("a", "b"), meet("b", "a"));
        assert!(one.0.wait().unwrap().success());
        assert!(other.0.wait().unwrap().success());
    }
}

/// B1: the last one to come lets all go on.
#[test]
fn a_barrier_lets_all_go_when_the_last_one_comes() {
    let node = start_node();
    let mut one = start(&node, &["barrier", "b", "--parties", "2"]);
    let sessions = || {
        let output = run(&node, &["sessions", "--output", "json"]);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        found.as_array().unwrap().iter().filter(|session| session["count"] == 1).count()
    };
    wait_for("the first to be there", || (sessions() == 1).then_some(()));
    assert!(one.0.try_wait().unwrap().is_none());
    assert!(run(&node, &["barrier", "b", "--parties", "2"]).status.success());
    assert!(one.0.wait().unwrap().success());
}

/// A script that is told that the others did not come waits for them; one that is told that no node works goes to another,
/// or calls somebody. And who is the last one to come has nobody to wait for.
#[test]
fn a_barrier_without_a_leader_is_told_apart_from_one_to_which_not_all_came() {
    let (cluster, ports) = Cluster::start_native(3);
    let leader = cluster.wait_for_leader();
    let lonely = Node { cluster, port: ports[leader] };
    let ends_with = |words: &[&str], code| {
        let output = run(&lonely, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
    };
    ends_with(&["barrier", "b", "--parties", "1", "--wait", "0s"], 0);
    ends_with(&["barrier", "b", "--parties", "2", "--wait", "0s"], 75);
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    others.iter().for_each(|node| lonely.cluster.nodes[*node].pause());
    ends_with(&["barrier", "b", "--parties", "2", "--wait", "500ms"], 69);
    others.iter().for_each(|node| lonely.cluster.nodes[*node].resume());
}

/// A script that is told 1 believes that its program ran and failed. The file of this binary loses its right to be run while
/// the lock is waited for, so nothing can be started from it.
#[test]
fn a_program_that_could_not_be_started_for_whatever_reason_is_said_not_to_have_run() {
    let node = start_node();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder = start(&node, &["lock", "l", "--", "sh", "-c", &stays(&held)]);
    wait_for_file(&held);
    // Not by this process: a file that it has open for writing, or a child of another test's, cannot be run.
    let binary = dir.path().join("tidelock");
    assert!(Command::new("cp").args([Path::new(support::TIDELOCK), &binary]).status().unwrap().success());
    let mut command = Command::new(&binary);
    command.args(["lock", "l", "--", "true"]).env("TIDELOCK_NATIVE", format!("127.0.0.1:{}", node.port));
    let mut waiter = Running(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_for("the second to wait", || (waiting(&node) == 1).then_some(()));
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o644)).unwrap();
    signal(&holder, rustix::process::Signal::TERM);
    assert_eq!(code_of(&mut holder), Some(128 + 15));
    assert_eq!(code_of(&mut waiter), Some(126));
    assert_eq!(locks(&node), serde_json::json!([]), "and what it was to run under is given back");
}

/// People look at this when something hangs: who has it, since when, who waits.
#[test]
fn locks_are_listed_with_holder_token_queue_and_time_left() {
    let node = start_node();
    let none = run(&node, &["locks"]);
    assert!(said(&none).contains("nothing is held"), "{}", said(&none));
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let script = format!("echo $TIDELOCK_TOKEN > {0}.new; mv {0}.new {0}; exec sleep 1000", held.display());
    let _holder = start(&node, &["lock", "billing/a", "--data", "the \u{1b}\n\tone", "--", "sh", "-c", &script]);
    wait_for_file(&held);
    let _waiter = start(&node, &["lock", "billing/a", "--", "true"]);
    wait_for("the waiter", || (waiting(&node) == 1).then_some(()));
    let _reader = start(&node, &["lock", "billing/a", "--shared", "--", "true"]);
    wait_for("the reader", || (waiting(&node) == 2).then_some(()));
    let shown = said(&run(&node, &["locks", "billing/"]));
    let token = fs::read_to_string(&held).unwrap();
    let holder = shown.lines().find(|line| line.contains("holds")).unwrap();
    assert!(holder.contains("billing/a") && holder.contains(token.trim()), "{shown}");
    assert!(holder.contains("the \\x1b\\n\\tone"), "others' bytes do not command the terminal: {shown}");
    assert!(shown.lines().any(|line| line.contains("waits, 1 before it")), "{shown}");
    assert!(shown.lines().any(|line| line.contains("waits shared, 2 before it")), "{shown}");
    let found = locks(&node);
    let left = found[0]["holders"][0]["left_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&left), "{found}");
    assert!(said(&run(&node, &["locks", "other/"])).contains("nothing is held"));
}

/// Somebody looks on while things hang: a lock that is taken must appear, and go again, without asking anew.
#[test]
fn locks_are_shown_as_they_come_and_go() {
    let node = start_node();
    let mut command = command(&node, &["locks", "--watch", "--output", "json"]);
    let mut watcher = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = std::io::BufRead::lines(std::io::BufReader::new(watcher.0.stdout.take().unwrap()));
    let (sender, shown) = std::sync::mpsc::sync_channel(SHOWN_MAX);
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let until_shown = |what: &str, is_it: &dyn Fn(&serde_json::Value) -> bool| {
        let deadline = std::time::Instant::now() + support::PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let line = shown.recv_timeout(left).unwrap_or_else(|_| panic!("{what} was not shown"));
            if is_it(&serde_json::from_str(&line).unwrap()) {
                return;
            }
        }
    };
    until_shown("nothing", &|found| found.as_array().unwrap().is_empty());
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let mut holder = start(&node, &["lock", "seen", "--", "sh", "-c", &stays(&held)]);
    until_shown("the lock", &|found| found[0]["name"] == "seen" && found[0]["holders"][0]["token"] != 0);
    wait_for_file(&held);
    signal(&holder, rustix::process::Signal::TERM);
    holder.0.wait().unwrap();
    until_shown("the end of it", &|found| found.as_array().unwrap().is_empty());
    drop(watcher);
    let _ = reader.join();
}

/// Operators end what hangs: a session that is not there is no reason to speak of lost work, and the id is taken as any
/// of our answers gives it.
#[test]
fn sessions_are_ended_by_the_id_that_answers_give() {
    let node = start_node();
    let unknown = run(&node, &["sessions", "--end", "deadbeef"]);
    assert_eq!(unknown.status.code(), Some(77), "{}", said(&unknown));
    assert!(said(&unknown).contains("no session deadbeef"), "{}", said(&unknown));
    let dir = tempfile::tempdir().unwrap();
    for form in ["hex", "0xhex", "decimal"] {
        let held = dir.path().join(form);
        let mut holder = start(&node, &["lock", "l", "--", "sh", "-c", &stays(&held)]);
        wait_for_file(&held);
        let hex = locks(&node)[0]["holders"][0]["session"].as_str().unwrap().to_owned();
        let id = match form {
            "hex" => hex,
            "0xhex" => format!("0x{hex}"),
            _ => i64::from_str_radix(&hex, 16).unwrap().to_string(),
        };
        let ended = run(&node, &["sessions", "--end", &id]);
        assert!(ended.status.success(), "{id}: {}", said(&ended));
        assert_eq!(holder.0.wait().unwrap().code(), Some(76));
    }
}

/// Packagers install these; they need no node.
#[test]
fn completions_and_manual_pages_are_printed() {
    let run = |words: &[&str]| tidelock().args(words).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && said(&output).contains("tidelock"), "{shell}");
    }
    let page = run(&["man"]);
    assert!(page.status.success() && said(&page).contains(".TH"), "{}", said(&page));
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["man", "--dir", dir.path().to_str().unwrap()]).status.success());
    let lock = fs::read_to_string(dir.path().join("tidelock-lock.1")).unwrap();
    assert!(lock.contains("TIDELOCK_TOKEN"), "{lock}");
}
