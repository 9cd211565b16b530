use tidelock_client::{Client, Error};

pub async fn update_then_read(client: &Client) -> Result<(), Error> {
    let catalog = client.rw_lock("catalog");
    let writing = catalog.write().await?;
    println!("changing the catalog under token {}", writing.token());
    // Others may read from now on, but nobody writes before we are done.
    let reading = writing.downgrade().await?;
    let also_reading = catalog.read().await?;
    also_reading.release().await?;
    reading.release().await
}
