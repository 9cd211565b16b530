//! Containers without children and znodes past their time to live are looked for by the leader alone. Whether one
//! goes is judged again when the entry is applied.

use tidelock_coordinator::{Consistency, Role};
use tidelock_model::{Caller, Command, Query, QueryAnswer, ZnodeCommand, ZnodeFound, ZnodeQuery, ZnodeRead};

use crate::Face;
use crate::outside::Ticks;

/// Znodes deleted by one entry.
const REAPED_AT_ONCE: u32 = 1000;

impl Face {
    /// Looks now and then, until dropped.
    pub(crate) async fn reap(&self) {
        let mut ticks = Ticks::new(&self.outside, self.config.reap_interval);
        loop {
            ticks.next().await;
            if self.coordinator.status().role == Role::Leader {
                self.reap_once().await;
            }
        }
    }

    async fn reap_once(&self) {
        let query = ZnodeQuery { identities: Vec::new(), reads: vec![ZnodeRead::Reapable(REAPED_AT_ONCE)] };
        let found = self.coordinator.read(Caller::Internal, Query::Znodes(query), Consistency::Local).await;
        let Ok(QueryAnswer::Znodes { found, .. }) = found else { return };
        let Some(Ok(ZnodeFound::Paths(paths))) = found.into_iter().next() else { return };
        if !paths.is_empty() {
            let command = Command::Znode(ZnodeCommand::Reap { paths });
            // Whatever became of it, the next look finds what is left.
            let _ = self.coordinator.propose(Caller::Internal, command, None).await;
        }
    }
}
