//! Waiting for something that has to be asked over the network.

use std::time::{Duration, Instant};

use super::PATIENCE;

/// How often it is asked.
const POLL: Duration = Duration::from_millis(50);

/// Asks again and again until `ask` gives something, or panics saying what was waited for.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(POLL).await;
    }
}
