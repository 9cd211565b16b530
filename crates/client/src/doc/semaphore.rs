use tidelock_client::{Client, Code, Error};

pub async fn import(client: &Client) -> Result<(), Error> {
    let imports = client.semaphore("imports", 3);
    let two = imports.acquire(2).await?;
    let refused = imports.try_acquire(2).await;
    assert_eq!(refused.err().and_then(|error| error.code()), Some(Code::Busy));
    two.release().await
}
