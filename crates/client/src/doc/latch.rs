use tidelock_client::{Client, Error, OnDeath};

pub async fn wait_for_both(client: &Client) -> Result<(), Error> {
    let ready = client.latch("ready");
    ready.set(2, OnDeath::Break).await?;
    // Who promises and dies breaks the latch, so that nobody waits for ever.
    let promise = ready.pledge().await?;
    promise.check()?; // nobody takes this process for dead
    assert_eq!(promise.count_down().await?, 1);
    assert_eq!(ready.count_down(1).await?, 0);
    ready.wait().await
}
