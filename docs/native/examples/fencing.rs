//! The Rust of `docs/native/fencing.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Error};

pub async fn the_old_one_is_kept_out(client: &Client) -> Result<(), Error> {
    let lock = client.lock("ledger");
    let old = lock.acquire().await?;
    let old_token = old.token();
    old.release().await?;

    let new = lock.acquire().await?;
    let fence = client.fence("ledger");
    fence.admit(new.token()).await?; // before it reads
    assert!(fence.admit(old_token).await.is_err_and(|error| error.is_lost()));
    new.release().await
}
