//! Whether the nodes of a cluster agree (R5), from what they say of themselves.

use serde_json::Value;

use super::{Cluster, Process, wait_for};

impl Process {
    /// What the node says of itself; `None` while nobody answers.
    pub fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.admin_get("/v1/status")?).ok()
    }

    /// A number out of the status of a node that answers.
    pub fn status_number(&self, name: &str) -> u64 {
        wait_for(&format!("{name} of node {}", self.name), || self.status()?[name].as_u64())
    }
}

impl Cluster {
    /// Waits until all running nodes have carried out the same entries, and checks that they hold the
    /// same state: equal places with different digests are the worst failure there is (R5).
    pub fn wait_until_replicas_agree(&self) {
        wait_for("the replicas to be at the same place", || {
            let running = self.nodes.iter().filter(|node| node.is_running());
            let all: Vec<Value> = running.map(Process::status).collect::<Option<_>>()?;
            for (one, other) in all.iter().zip(all.iter().skip(1)) {
                if one["applied"] == other["applied"] {
                    assert_eq!(one["digest"], other["digest"], "R5: two nodes differ at one place: {one} {other}");
                }
            }
            let same = |name: &str| all.iter().all(|status| status[name] == all[0][name]);
            (same("applied") && same("digest") && same("revision")).then_some(())
        });
    }

    /// Client URLs of all nodes.
    pub fn client_urls(&self) -> Vec<String> {
        self.nodes.iter().map(Process::client_url).collect()
    }
}
