use std::time::Duration;
use tidelock_client::{Client, Error};

pub async fn work_together(client: &Client) -> Result<(), Error> {
    let job = client.double_barrier("job", 2).ttl(Duration::from_secs(30));
    let worker = async || {
        let inside = job.enter().await?; // all are here
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {} // the work
            lost = inside.lost() => return Err(lost),
        }
        inside.leave().await // all are done
    };
    let (one, other) = tokio::join!(worker(), worker());
    one.and(other)
}
