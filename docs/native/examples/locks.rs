//! The Rust of `docs/native/locks.md`. `crates/server/tests/native_guides.rs` runs it.

use std::time::{Duration, Instant};

use tidelock_client::{Client, Code, Error, Token};

pub async fn one_at_a_time(client: &Client) -> Result<(), Error> {
    let lock = client.lock("billing").ttl(Duration::from_secs(20)).wait(Duration::from_secs(5));
    let guard = lock.acquire().await?;
    for invoice in 1..=3 {
        guard.check()?; // asks nobody, so it is cheap enough for every step
        send(invoice, guard.token()).await;
    }
    guard.release().await
}

pub async fn stopped_when_lost(client: &Client) -> Result<(), Error> {
    // The work is dropped where it waits as soon as the lock is lost.
    client.lock("billing").run(async |guard| send(4, guard.token()).await).await
}

pub async fn readers_and_a_writer(client: &Client) -> Result<(), Error> {
    let catalog = client.rw_lock("catalog");
    let (one, other) = (catalog.read().await?, catalog.read().await?);
    let refused = catalog.try_write().await;
    assert_eq!(refused.err().and_then(|error| error.code()), Some(Code::Busy));
    one.release().await?;
    other.release().await?;

    let writing = catalog.write().await?;
    let reading = writing.downgrade().await?; // nobody writes in between
    reading.release().await
}

pub async fn at_most_three(client: &Client) -> Result<(), Error> {
    let imports = client.semaphore("imports", 3);
    let two = imports.acquire(2).await?;
    let refused = imports.try_acquire(2).await; // one is left
    assert_eq!(refused.err().and_then(|error| error.code()), Some(Code::Busy));
    two.release().await
}

pub async fn longer_than_its_time_to_live(client: &Client, ttl: Duration) -> Result<(), Error> {
    let guard = client.lock("report").ttl(ttl).acquire().await?;
    let begun = Instant::now();
    while begun.elapsed() < ttl + ttl / 4 {
        guard.check()?; // counts from the last renewal that was acknowledged, not from the grant
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    guard.release().await
}

pub async fn one_wakes_the_next(client: &Client) -> Result<(), Error> {
    let lock = client.lock("queue");
    let first = lock.acquire().await?;
    let before = first.token();
    let (second, released) = tokio::join!(lock.acquire(), first.release()); // one waits, the other lets it in
    released?;
    let second = second?;
    assert!(second.token() > before); // for ever, also after the lock was free for a year
    second.release().await
}

async fn send(invoice: u32, token: Token) {
    println!("invoice {invoice}, sent under token {token}");
}
