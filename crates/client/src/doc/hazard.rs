use std::time::Duration;
use tidelock_client::{Client, Error};

pub async fn look_then_remove(client: &Client) -> Result<(), Error> {
    let segment = client.hazard("segment-17").ttl(Duration::from_secs(30));
    let looking = segment.protect().await?;
    println!("reading segment 17");
    looking.confirm().await?; // it was there all the while
    looking.finish().await?;

    let epoch = segment.retire().await?; // waits until nobody looks
    println!("segment 17 may go; its epoch is {epoch}");
    Ok(())
}
