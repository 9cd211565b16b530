use tidelock_client::{Client, Error};

pub async fn two_rounds(client: &Client) -> Result<(), Error> {
    let rounds = client.phaser("rounds");
    let (mut one, mut other) = (rounds.register(1).await?, rounds.register(1).await?);
    let first = other.arrive().await?; // says so, and does not wait
    assert_eq!(one.arrive_and_await().await?, first + 1);
    other.check()?; // still a party: nobody goes on without it
    one.arrive_and_deregister().await?;
    other.arrive_and_deregister().await.map(drop)
}
