//! The Rust of `docs/native/rcu-and-hazard.md`. `crates/server/tests/native_guides.rs` runs it.

use tidelock_client::{Client, Error};

pub async fn replace(client: &Client) -> Result<(), Error> {
    let config = client.rcu("config");
    config.publish("s3://config/1").await?;
    let mut reader = config.read().await?;
    println!("reading {:?}", reader.data());

    let second = config.publish("s3://config/2").await?;
    reader.refresh().await?; // reads the second from now on, and says so
    config.synchronize(second).await?; // nobody reads anything older: s3://config/1 may be deleted
    reader.finish().await
}

pub async fn look_then_remove(client: &Client) -> Result<(), Error> {
    let segment = client.hazard("segment-17");
    let looking = segment.protect().await?;
    let read = "what segment 17 says";
    looking.confirm().await?; // if this fails, what was read is thrown away
    println!("{read}");
    looking.finish().await?;

    let epoch = segment.retire().await?; // waits until nobody looks; the object may go
    println!("segment 17 went with epoch {epoch}");
    Ok(())
}
