use tidelock_client::{Client, Error};

pub async fn only_the_holder_writes(client: &Client) -> Result<(), Error> {
    let guard = client.lock("config").acquire().await?;
    client.write().admit(&guard).put("config/limit", "100").delete("config/draft").send().await?;
    guard.release().await
}
