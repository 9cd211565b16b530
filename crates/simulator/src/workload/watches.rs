//! Watch streams of one to three watchers, opened in the past, now and in the future, at any node; taken
//! up again at another one, right after what was told last, when the connection broke.

use super::Setup;
use crate::client::{Client, Habits, WatchSpec};
use crate::history::Micros;

/// What is watched: a first key and where the range ends.
const RANGES: &[(&str, Option<&str>)] = &[
    ("reg/", Some("reg0")),
    ("reg/0", None),
    ("reg/1", None),
    ("account/", Some("account0")),
    ("list/", Some("list0")),
    ("counter/0", None),
    ("lease/", Some("lease0")),
    ("session/", Some("session0")),
    ("bulk/", Some("bulk0")),
    ("a", Some("z")),
];

/// How far before and after the newest revision watchers start.
const OFFSET: u64 = 100;
/// Shortest and longest life of a stream that nothing breaks.
const LASTS: (Micros, Micros) = (1_000_000, 25_000_000);
/// How many streams, in thousandths, are read slowly.
const SLOW_PERMILLE: u64 = 330;
/// Longest pause of a slow reader between two responses.
const DAWDLES_MAX: Micros = 3_000_000;
/// Pause before a broken stream is opened again.
const RECONNECT: (Micros, Micros) = (10_000, 500_000);

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each_lingering(clients, |client, _| run(client));
}

async fn run(client: Client) {
    while !client.stopping() {
        let slow = client.chance(SLOW_PERMILLE);
        let habits = habits(&client, slow);
        let mut specs: Vec<WatchSpec> = (0..client.between(1, 3)).map(|_| spec(&client, slow)).collect();
        // A client that goes on elsewhere has the whole of its watch to go on with.
        while !specs.is_empty() {
            if let Some(node) = client.any_node() {
                let watched = client.watch(node, specs, &habits).await;
                specs = if watched.broke { watched.unfinished } else { Vec::new() };
            }
            client.think(RECONNECT.0, RECONNECT.1).await;
        }
    }
}

fn habits(client: &Client, slow: bool) -> Habits {
    Habits {
        dawdles: if slow { client.between(DAWDLES_MAX / 10, DAWDLES_MAX) } else { 0 },
        asks_progress_permille: *client.pick(&[0, 200, 500]),
        reopens_permille: *client.pick(&[0, 50, 200]),
        notify_every: client.between(500_000, 4_000_000),
        lasts: client.between(LASTS.0, LASTS.1),
    }
}

fn spec(client: &Client, slow: bool) -> WatchSpec {
    // Slow readers watch much, or they would keep up.
    let (key, end) = if slow && client.chance(700) { ("a", Some("z")) } else { *client.pick(RANGES) };
    let offset = i64::try_from(client.between(0, 2 * OFFSET)).expect("small") - i64::try_from(OFFSET).expect("small");
    let start = match client.below(10) {
        0..4 => 0,
        4..9 => (client.newest_revision() + offset).max(1),
        // From the beginning, which is mostly compacted by then.
        _ => 1,
    };
    let (no_puts, no_deletes) = *client.pick(&[(false, false), (false, false), (false, true), (true, false)]);
    WatchSpec {
        key: key.to_owned(),
        end: end.map(str::to_owned),
        start,
        no_puts,
        no_deletes,
        previous: client.chance(400),
        notify: client.chance(500),
    }
}
