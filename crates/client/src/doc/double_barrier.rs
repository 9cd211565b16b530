use tidelock_client::{Client, Error};

pub async fn work_together(client: &Client) -> Result<(), Error> {
    let job = client.double_barrier("job", 2);
    let worker = async || {
        let inside = job.enter().await?; // all are here
        inside.leave().await // all are done
    };
    let (one, other) = tokio::join!(worker(), worker());
    one.and(other)
}
