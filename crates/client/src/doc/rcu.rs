use tidelock_client::{Client, Error};

pub async fn replace(client: &Client) -> Result<(), Error> {
    let config = client.rcu("config");
    config.publish("s3://config/1").await?;
    let mut reader = config.read().await?;
    assert_eq!(reader.data(), "s3://config/1");

    let second = config.publish("s3://config/2").await?;
    reader.refresh().await?;
    assert_eq!((reader.version(), &reader.data()[..]), (second, &b"s3://config/2"[..]));
    // Nobody reads anything older any more: s3://config/1 may be deleted.
    config.synchronize(second).await?;
    reader.finish().await
}
