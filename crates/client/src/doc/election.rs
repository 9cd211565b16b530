use tidelock_client::{Client, Error};

pub async fn lead(client: &Client) -> Result<(), Error> {
    let election = client.election("scheduler").data("10.0.0.7:9000");
    let leading = election.campaign().await?;
    println!("leading in epoch {}", leading.token());

    let mut changes = client.election("scheduler").observe().await?;
    let leader = changes.next().await?.expect("we lead");
    assert_eq!(leader.token, leading.token());

    leading.proclaim("10.0.0.7:9001").await?;
    let leader = changes.next().await?.expect("we still lead");
    assert_eq!(leader.data, "10.0.0.7:9001");
    leading.resign().await
}
