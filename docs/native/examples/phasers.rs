//! The Rust of `docs/native/phasers.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Error};

pub async fn round_after_round(client: &Client) -> Result<(), Error> {
    let rounds = client.phaser("rounds");
    let (mut one, mut other) = (rounds.register(1).await?, rounds.register(1).await?);
    let first = other.arrive().await?; // says so, and does not wait: it works ahead
    assert_eq!(one.arrive_and_await().await?, first + 1);

    let late = rounds.register(1).await?; // comes in the middle
    late.arrive_and_deregister().await?; // and goes again
    one.arrive_and_deregister().await?;
    other.arrive_and_deregister().await.map(drop)
}

pub async fn a_tree(client: &Client) -> Result<(), Error> {
    let mut whole = client.phaser("job").register(1).await?; // the coordinator's own party, in the root
    let rack = client.phaser("job/rack-1").parent("job");
    let mut workers = rack.register(100).await?;
    let phase = workers.arrive_some(99).await?;
    let (next, last) = tokio::join!(whole.arrive_and_await(), workers.arrive_some(1));
    last?;
    assert_eq!(next?, phase + 1); // the root went on when the last one of the rack had come
    workers.arrive_and_deregister().await?;
    whole.arrive_and_deregister().await.map(drop)
}
