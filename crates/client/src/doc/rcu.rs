use tidelock_client::{Client, Error};

pub async fn replace(client: &Client) -> Result<(), Error> {
    let config = client.rcu("config");
    config.publish("s3://config/1").await?;
    let mut reader = config.read().await?;
    assert_eq!(reader.data(), "s3://config/1");

    // Whoever may replace it holds a lock, and a fence keeps out who held it before.
    let editor = client.lock("config-editor").acquire().await?;
    let second = config.clone().fenced("config", editor.token()).publish("s3://config/2").await?;
    editor.release().await?;

    reader.refresh().await?;
    assert_eq!((reader.version(), &reader.data()[..]), (second, &b"s3://config/2"[..]));
    // Nobody reads anything older any more: s3://config/1 may be deleted.
    config.synchronize(second).await?;
    reader.check()?; // what is read is kept
    reader.finish().await?;
    config.forget().await // nobody reads it any more at all
}
