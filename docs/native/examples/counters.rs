//! The Rust of `docs/native/counters.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Code, Error};

pub async fn numbers_of_its_own(client: &Client) -> Result<(), Error> {
    let orders = client.counter("orders");
    let block = orders.next_block(1000).await?; // one entry of the log for a thousand numbers
    println!("these are nobody else's: {block:?}");
    Ok(())
}

pub async fn compare_and_set(client: &Client) -> Result<(), Error> {
    let stock = client.counter("stock");
    stock.add(5).await?;
    loop {
        let seen = stock.get().await?;
        match stock.compare_and_set(seen, seen * 2).await {
            Err(error) if error.code() == Some(Code::Mismatch) => {} // somebody was quicker: look again
            done => return done,
        }
    }
}

pub async fn only_the_holder_counts(client: &Client) -> Result<(), Error> {
    let lock = client.lock("stock-taking");
    let old = lock.acquire().await?;
    let counted = client.counter("counted").fenced("stock-taking", old.token());
    counted.add(7).await?;
    old.release().await?;

    let new = lock.acquire().await?;
    client.fence("stock-taking").admit(new.token()).await?; // from here on the old one is out
    assert!(counted.add(7).await.is_err_and(|error| error.is_lost()));
    assert_eq!(client.counter("counted").get().await?, 7);
    new.release().await
}
