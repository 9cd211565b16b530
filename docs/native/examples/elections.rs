//! The Rust of `docs/native/elections.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Error, Token};

pub async fn lead(client: &Client) -> Result<(), Error> {
    let election = client.election("scheduler").data("10.0.0.7:9000");
    loop {
        let leading = election.campaign().await?; // waits until all before it have gone
        tokio::select! {
            () = schedule(leading.token()) => return leading.resign().await,
            lost = leading.lost() => println!("leads no more: {lost}. It stands again"),
        }
    }
}

pub async fn follow(client: &Client) -> Result<(), Error> {
    let mut changes = client.election("scheduler").observe().await?;
    match changes.next().await? {
        Some(leader) => println!("{:?} leads in epoch {}", leader.data, leader.token),
        None => println!("nobody leads"),
    }
    Ok(())
}

pub async fn the_next_one_follows(one: Client, other: &Client) -> Result<(), Error> {
    let first = one.election("succession").campaign().await?;
    let epoch = first.token();
    let candidate = other.election("succession");
    // The first goes without a word to the second, which the cluster tells.
    let ((), second) = tokio::join!(one.close(), candidate.campaign());
    let second = second?;
    assert!(second.token() > epoch);
    assert!(first.check().is_err());
    second.resign().await
}

async fn schedule(epoch: Token) {
    println!("scheduling in epoch {epoch}: every order carries it");
}
