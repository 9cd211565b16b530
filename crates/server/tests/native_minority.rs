//! A node that is cut off from the majority, as its clients see it: it grants nothing, shows nothing that may be old, and
//! who holds something there knows in time.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use serde_json::json;
use support::until::until;
use support::{Cluster, within};
use tidelock_client::inspect::Kind;
use tidelock_client::{Client, Error, Loss};

const TTL: Duration = Duration::from_secs(2);

async fn at(ports: &[u16], ttl: Duration) -> Client {
    let urls: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let options = Client::options().ttl(ttl).patience(Duration::from_secs(2));
    within("a client", options.connect(urls)).await.unwrap()
}

/// L19, K6, EL5: the lonely node was the leader, or it was not: in both cases it grants no lock and believes in no
/// holder. When the others are back, what was free goes on, and the lock has one holder with a larger token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l19_a_minority_grants_no_lock_and_its_holders_know_in_time() {
    let (cluster, ports) = Cluster::start_native(3);
    for was_leader in [false, true] {
        let leader = tokio::task::block_in_place(|| cluster.wait_for_leader());
        let lonely = if was_leader { leader } else { (leader + 1) % 3 };
        let (held, free) = (format!("held-{was_leader}"), format!("free-{was_leader}"));
        let (holder, other) = (at(&ports[lonely..=lonely], TTL).await, at(&ports[lonely..=lonely], TTL).await);
        // The client must have a session by then, or nothing of it would be at stake.
        other.lock("warm").acquire().await.unwrap().release().await.unwrap();
        let guard = holder.lock(&held).acquire().await.unwrap();
        let leading = holder.election(&held).campaign().await.unwrap();
        guard.check().unwrap();

        let others: Vec<usize> = (0..3).filter(|node| *node != lonely).collect();
        others.iter().for_each(|node| cluster.nodes[*node].pause());
        // Nobody else can have the lock before its time is over, and by then the holder has stopped.
        let lost = within("the loss", async { tokio::join!(guard.lost(), leading.lost()) }).await;
        assert_eq!(lost, (Error::Lost(Loss::Expired), Error::Lost(Loss::Expired)));
        assert!(guard.check().is_err() && leading.check().is_err());
        // A lock that nobody has is not granted either, by the stream or by plain HTTP; and nothing is told that
        // may be long over.
        let granted = within("an answer", other.lock(&free).wait(Duration::from_secs(1)).acquire()).await;
        // Nor is it said that somebody has it: who would wait for that may go to another node instead.
        let nobody_answers = matches!(granted, Err(Error::Failed(_) | Error::Unknown { .. }));
        assert!(nobody_answers, "by one of three: {granted:?}");
        let mut script = support::tidelock();
        script.args(["lock", &free, "--wait", "1s", "--native", &format!("127.0.0.1:{}", ports[lonely]), "--", "true"]);
        let ended = tokio::task::block_in_place(|| script.output()).unwrap();
        assert_eq!(ended.status.code(), Some(69), "{}", String::from_utf8_lossy(&ended.stderr));
        let told = within("an answer", other.names(Kind::Lock, "")).await;
        assert!(told.is_err(), "one of three cannot know: {told:?}");
        let port = ports[lonely];
        let opened = tokio::task::block_in_place(|| {
            support::http(port, "POST", "/v1/native/open", &json!({ "ttlMs": 2000 }).to_string())
        });
        let is_told_why = |text: &str| text.contains("NO_LEADER") || text.contains("NO_ANSWER");
        assert!(opened.as_ref().is_none_or(|(status, text)| *status != 200 && is_told_why(text)), "{opened:?}");

        others.iter().for_each(|node| cluster.nodes[*node].resume());
        let anywhere = at(&ports, Duration::from_secs(10)).await;
        let next = until("the lock to be granted again", async || anywhere.lock(&held).acquire().await.ok()).await;
        assert!(next.token() > guard.token());
        assert!(guard.check().is_err(), "what is lost stays lost");
        // What was asked for in vain holds nothing: it was given up, or ends with its session.
        drop((granted, other));
        let free = until("the other lock to be free", async || anywhere.lock(&free).try_acquire().await.ok()).await;
        free.release().await.unwrap();
    }
}
