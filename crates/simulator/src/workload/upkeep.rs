//! What operators do: compact history, take snapshots, hand leadership on. All of it far more often than
//! anyone would, so that everything else happens while it happens.

use tidelock_coordinator::Consistency;
use tidelock_model::{Caller, MemberRole, NodeId, Query, QueryAnswer};

use super::Setup;
use crate::client::Client;
use crate::history::{Micros, Request};

/// Shortest and longest time between two things.
const PAUSE: (Micros, Micros) = (800_000, 4_000_000);
/// How much history is left by most compactions, at most.
const LEFT_MAX: u64 = 150;

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients, |client, _| run(client));
}

async fn run(client: Client) {
    while !client.stopping() {
        client.think(PAUSE.0, PAUSE.1).await;
        match client.below(10) {
            0..5 => compact(&client).await,
            5..8 => snapshot(&client).await,
            _ => hand_on_leadership(&client).await,
        }
    }
}

async fn compact(client: &Client) {
    let revision = match client.below(12) {
        // What is compacted already, what is now, and what is not yet: the edges.
        0 => 1,
        1 => client.newest_revision(),
        2 => client.newest_revision() + i64::try_from(client.below(5)).expect("small"),
        _ => client.past_revision(LEFT_MAX),
    };
    client.ask(Request::Compact { revision }).await;
}

async fn snapshot(client: &Client) {
    if let Some(node) = client.any_node() {
        // It may fail, on a full disk for example; the node must live with that.
        client.call_at(node, |coordinator| async move { coordinator.take_snapshot(Caller::Internal).await }).await;
    }
}

async fn hand_on_leadership(client: &Client) {
    let Some(node) = client.any_node() else { return };
    // The leader can be asked itself; most of the time it is, so that leadership moves.
    let leader = client.call_at(node, |coordinator| async move { coordinator.status().leader }).await.flatten();
    let asked = leader.filter(|_| client.chance(800)).unwrap_or(node);
    let Some(voters) = voters(client, node).await else { return };
    if !voters.is_empty() {
        let to = *client.pick(&voters);
        client
            .call_at(asked, |coordinator| async move { coordinator.transfer_leadership(Caller::Internal, to).await })
            .await;
    }
}

/// Who votes, as far as a node knows.
async fn voters(client: &Client, node: NodeId) -> Option<Vec<NodeId>> {
    let asked = client.call_at(node, |coordinator| async move {
        coordinator.read(Caller::Internal, Query::Members, Consistency::Local).await
    });
    let Ok(QueryAnswer::Members { members, .. }) = asked.await? else { return None };
    Some(members.iter().filter(|member| member.role == MemberRole::Voter).map(|member| member.id).collect())
}
