use tidelock_client::{Client, Error};

pub async fn keep_the_old_one_out(client: &Client) -> Result<(), Error> {
    let lock = client.lock("ledger");
    let old = lock.acquire().await?;
    let old_token = old.token();
    old.release().await?;
    let new = lock.acquire().await?;

    let fence = client.fence("ledger");
    fence.admit(new.token()).await?;
    assert!(fence.admit(old_token).await.is_err_and(|error| error.is_lost()));
    new.release().await
}
