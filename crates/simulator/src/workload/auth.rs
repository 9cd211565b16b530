//! Users and roles: one client changes who may do what, all the time; others ask as users, with a proof of who
//! they are that is fresh or, on purpose, older; and some watch as users until they are told to stop.
//!
//! All other workloads ask as the node itself, which may do everything.

use tidelock_model::{AuthCommand, Caller, Command, Key, KeyRange, Permission, ROOT, Space, TOKEN_SECRET_BYTES};

use super::{Setup, get, put};
use crate::client::{Client, Habits, OnBehalf, WatchSpec};
use crate::coverage;
use crate::history::{Compare, Micros, Observation, Op, Request, Told};

/// Users, roles, and parts of the keys, each.
const PARTS: u64 = 3;
/// Keys in each part.
const KEYS: u64 = 3;
/// Shortest and longest time between two changes.
const CHANGE: (Micros, Micros) = (200_000, 1_200_000);
/// How long the admin waits before it asks another node.
const RETRY: (Micros, Micros) = (50_000, 300_000);
/// Shortest and longest time without any checks.
const OFF: (Micros, Micros) = (100_000, 2_000_000);
/// How often, in thousandths, a user comes with an older proof, and how much older at most.
const OLD_PROOF_PERMILLE: u64 = 150;
const BEHIND_MAX: u64 = 3;
/// Shortest and longest life of a user's watch stream.
const WATCHED: (Micros, Micros) = (2_000_000, 15_000_000);
/// Pause before a user watches again.
const WATCH_AGAIN: (Micros, Micros) = (100_000, 800_000);

pub(super) fn start(setup: &Setup, clients: u64) {
    let watchers = clients / 3;
    setup.each(1, |client, _| administer(client));
    setup.each(clients.saturating_sub(1 + watchers), |client, _| ask_as_users(client));
    setup.each_lingering(watchers, |client, _| watch_as_users(client));
}

fn part(number: u64) -> (String, String) {
    (format!("auth/{number}/"), format!("auth/{number}0"))
}

fn range(number: u64) -> KeyRange {
    let (start, end) = part(number);
    let key = |name: &str| Key::new(Space::User, name.as_bytes());
    KeyRange { start: key(&start), end: key(&end) }
}

impl Client {
    fn some_user(&self) -> String {
        format!("u{}", self.below(PARTS))
    }

    fn some_role(&self) -> String {
        format!("r{}", self.below(PARTS))
    }
}

async fn administer(client: Client) {
    set_up(&client).await;
    while !client.stopping() {
        client.think(CHANGE.0, CHANGE.1).await;
        change_something(&client).await;
    }
}

/// Makes a change, however often it has to be asked for; whether it was made. One that was made before is refused.
async fn make(client: &Client, command: AuthCommand) -> bool {
    while !client.stopping() {
        if let Some(node) = client.any_node() {
            let command = Command::Auth(command.clone());
            let call = client
                .call_at(node, |coordinator| async move { coordinator.propose(Caller::Internal, command, None).await });
            if let Some(Ok(outcome)) = call.await {
                client.around().recorder.observe(Observation::AuthAcknowledged { index: outcome.index });
                return outcome.result.is_ok();
            }
        }
        client.think(RETRY.0, RETRY.1).await;
    }
    false
}

async fn set_up(client: &Client) {
    let root = || ROOT.to_owned();
    make(client, AuthCommand::UserAdd { user: root(), password_hash: None }).await;
    make(client, AuthCommand::UserGrantRole { user: root(), role: root() }).await;
    for number in 0..PARTS {
        let (user, role) = (format!("u{number}"), format!("r{number}"));
        make(client, AuthCommand::UserAdd { user: user.clone(), password_hash: None }).await;
        make(client, AuthCommand::RoleAdd { role: role.clone() }).await;
        let permission = Permission::ReadWrite;
        make(client, AuthCommand::RoleGrantPermission { role: role.clone(), range: range(number), permission }).await;
        make(client, AuthCommand::UserGrantRole { user, role }).await;
    }
    enable(client).await;
}

async fn enable(client: &Client) {
    make(client, AuthCommand::Enable { token_secret: [7; TOKEN_SECRET_BYTES] }).await;
}

/// Takes a right from somebody. It counts if there was one to take.
async fn revoke(client: &Client, command: AuthCommand) {
    let made = make(client, command).await;
    client.around().coverage.add(coverage::RIGHT_REVOKED, u64::from(made));
}

async fn change_something(client: &Client) {
    let (user, role, range) = (client.some_user(), client.some_role(), range(client.below(PARTS)));
    match client.below(16) {
        0..5 => {
            make(client, AuthCommand::UserGrantRole { user, role }).await;
        }
        5..8 => revoke(client, AuthCommand::UserRevokeRole { user, role }).await,
        8..11 => {
            let permission = *client.pick(&[Permission::ReadWrite, Permission::ReadWrite, Permission::Read]);
            make(client, AuthCommand::RoleGrantPermission { role, range, permission }).await;
        }
        11..13 => revoke(client, AuthCommand::RoleRevokePermission { role, range }).await,
        13 => {
            revoke(client, AuthCommand::UserDelete { user: user.clone() }).await;
            client.think(CHANGE.0, CHANGE.1).await;
            make(client, AuthCommand::UserAdd { user: user.clone(), password_hash: None }).await;
            make(client, AuthCommand::UserGrantRole { user, role }).await;
        }
        14 => {
            revoke(client, AuthCommand::RoleDelete { role: role.clone() }).await;
            make(client, AuthCommand::RoleAdd { role }).await;
        }
        _ => {
            make(client, AuthCommand::Disable).await;
            client.think(OFF.0, OFF.1).await;
            enable(client).await;
        }
    }
}

async fn ask_as_users(client: Client) {
    while !client.stopping() {
        client.think_a_while().await;
        let Some(node) = (if client.chance(300) { client.any_node() } else { client.choose_node() }) else { continue };
        let behind = if client.chance(OLD_PROOF_PERMILLE) { client.between(1, BEHIND_MAX) } else { 0 };
        let user = OnBehalf { user: client.some_user(), behind };
        let request = request(&client);
        let writes = !matches!(request, Request::Op(Op::Get { .. }));
        let told = client.ask_for(node, Some(&user), request).await;
        let denied = matches!(&told, Told::Error(why) | Told::Refused(why) if why.contains("permission denied"));
        client.around().coverage.add(coverage::WRITE_DENIED, u64::from(writes && denied));
    }
}

fn some_key(client: &Client) -> String {
    format!("auth/{}/{}", client.below(PARTS), client.below(KEYS))
}

fn request(client: &Client) -> Request {
    let key = some_key(client);
    let serializable = client.chance(400);
    match client.below(10) {
        0..4 => Request::Op(put(&key, client.unique(), 0)),
        4..6 => Request::Op(Op::Get { key, end: None, at: 0, serializable }),
        6 => {
            let (key, end) = part(client.below(PARTS));
            Request::Op(Op::Get { key, end: Some(end), at: 0, serializable })
        }
        7 => Request::Op(Op::Delete { key, end: None }),
        _ => {
            // What the branch that is not taken needs is needed all the same.
            let other = if client.chance(300) { some_key(client) } else { key.clone() };
            let version = i64::try_from(client.below(3)).expect("small");
            let (compares, then) =
                (vec![Compare::VersionIs(key.clone(), version)], vec![put(&key, client.unique(), 0)]);
            Request::Txn { compares, then, otherwise: vec![get(&other)] }
        }
    }
}

async fn watch_as_users(client: Client) {
    while !client.stopping() {
        client.think(WATCH_AGAIN.0, WATCH_AGAIN.1).await;
        let Some(node) = client.any_node() else { continue };
        let habits = Habits {
            dawdles: if client.chance(200) { client.between(100_000, 1_000_000) } else { 0 },
            asks_progress_permille: 100,
            reopens_permille: *client.pick(&[0, 50]),
            notify_every: client.between(500_000, 4_000_000),
            lasts: client.between(WATCHED.0, WATCHED.1),
        };
        let specs = (0..client.between(1, 2)).map(|_| spec(&client)).collect();
        client.watch_for(node, Some(&client.some_user()), specs, &habits).await;
    }
}

fn spec(client: &Client) -> WatchSpec {
    let (key, end) = part(client.below(PARTS));
    let start = if client.chance(500) { 0 } else { client.past_revision(50) };
    let (no_puts, no_deletes, notify) = (false, false, client.chance(300));
    WatchSpec { key, end: Some(end), start, no_puts, no_deletes, previous: client.chance(300), notify }
}
