use tidelock_client::{Client, Error, OnDeath};

pub async fn start_together(client: &Client) -> Result<(), Error> {
    let start = client.barrier("start", 2).on_death(OnDeath::Break);
    let (one, other) = tokio::join!(start.enter(), start.enter());
    one.and(other)
}
