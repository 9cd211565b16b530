//! The header of every answer, and the one spelling of our numbers as etcd's signed ones.

use std::sync::Arc;

use tidelock_coordinator::Coordinator;
use tidelock_etcd_api::etcdserverpb::ResponseHeader;
use tidelock_model::{ClusterId, NodeId, Revision};

/// A revision as etcd writes it.
#[must_use]
pub fn wire_revision(revision: Revision) -> i64 {
    wire_number(revision.0)
}

/// A count as etcd writes it. No count comes near the limit; a hostile one stops at it.
#[must_use]
pub fn wire_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Makes headers. Who we are is asked once, the term for every header.
#[derive(Clone)]
pub struct Headers {
    cluster: ClusterId,
    node: NodeId,
    coordinator: Arc<dyn Coordinator>,
}

impl Headers {
    /// For answers of this node, which must know its cluster and node id by now.
    #[must_use]
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Headers {
        let status = coordinator.status();
        Headers { cluster: status.cluster, node: status.node, coordinator }
    }

    /// The header of an answer given at `revision`.
    #[must_use]
    pub fn at(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader { revision: wire_revision(revision), ..self.without_revision() }
    }

    /// The header of an answer that has nothing to do with the store: revision zero.
    #[must_use]
    pub fn without_revision(&self) -> ResponseHeader {
        let raft_term = self.coordinator.term().0;
        ResponseHeader { cluster_id: self.cluster.0, member_id: self.node.0, revision: 0, raft_term }
    }

    /// A header at the store's present revision. Asks for the whole status: not for the hot path.
    #[must_use]
    pub fn now(&self) -> ResponseHeader {
        self.at(self.coordinator.revision())
    }
}
