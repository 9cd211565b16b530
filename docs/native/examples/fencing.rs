//! The Rust of `docs/native/fencing.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Code, Error};

pub async fn only_the_holder_writes(client: &Client) -> Result<(), Error> {
    let guard = client.lock("rates").acquire().await?;
    client.write().admit(&guard).put("rates/eur", "1.07").delete("rates/draft").send().await?;

    // Beside the lock a key may have to be as it was read: `if_absent`, `if_changed_at(key, mod_revision)`.
    let again = client.write().admit(&guard).if_absent("rates/eur").put("rates/eur", "1.08").send().await;
    assert_eq!(again.err().and_then(|error| error.code()), Some(Code::KeyChanged));
    guard.release().await
}

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
