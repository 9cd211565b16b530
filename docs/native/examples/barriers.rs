//! The Rust of `docs/native/barriers.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Error, Loss, OnDeath};

pub async fn start_together(client: &Client) -> Result<(), Error> {
    let start = client.barrier("start", 2).on_death(OnDeath::Break);
    let (one, other) = tokio::join!(start.enter(), start.enter());
    one.and(other)
}

pub async fn start_and_end_together(client: &Client) -> Result<(), Error> {
    let step = client.double_barrier("step-1", 2).on_death(OnDeath::Shrink);
    let worker = async || {
        let inside = step.enter().await?; // all are here
        println!("working");
        inside.leave().await // all are done
    };
    let (one, other) = tokio::join!(worker(), worker());
    one.and(other)
}

pub async fn wait_for_three_events(client: &Client) -> Result<(), Error> {
    let ready = client.latch("ready");
    ready.set(3, OnDeath::Break).await?;
    let promise = ready.pledge().await?; // who promises and dies breaks the latch
    promise.count_down().await?;
    ready.count_down(2).await?; // somebody that nobody knows by name
    ready.wait().await
}

pub async fn a_promise_that_is_not_kept(client: &Client) -> Result<(), Error> {
    let ready = client.latch("broken");
    ready.set(1, OnDeath::Break).await?;
    drop(ready.pledge().await?); // as if the process had died
    let told = ready.wait().await;
    assert_eq!(told, Err(Error::Lost(Loss::Broken)));
    Ok(())
}
