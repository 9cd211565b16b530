use std::time::Duration;
use tidelock_client::{Client, Error};

pub async fn bill(client: &Client) -> Result<(), Error> {
    let lock = client.lock("billing").ttl(Duration::from_secs(20)).wait(Duration::from_secs(5));
    let guard = lock.acquire().await?;
    tokio::select! {
        () = send_invoices(guard.token().get()) => {}
        lost = guard.lost() => return Err(lost),
    }
    guard.check()?; // asks nobody: is it still ours?
    guard.release().await
}

async fn send_invoices(token: u64) {
    println!("UPDATE ledger SET ..., token = {token} WHERE id = 7 AND token <= {token}");
}
