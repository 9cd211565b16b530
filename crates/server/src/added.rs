//! Starting as a member that was added to a running cluster before, with `etcdctl member add`.
//!
//! All such a node knows is where the others' peer ports are and where the cluster believes it to be. So it asks
//! the peers for the members and takes the id of the one with its own address: if it was never started. One
//! that was has promised things on a disk that is not here, and must not come back under its id (H21).
//!
//! Names are published only after the start, so "never started" is not left to the list alone. Before it
//! does anything under its id, the node introduces itself, with the number of its new disk, to every other
//! member; each writes it down or refuses because it knows another. The price: all of them must be up for a
//! moment. Whoever is gone for good is to be removed first, as with every replacement.

use std::path::Path;
use std::time::Duration;

use tidelock_model::{ClusterId, Member, NodeId};
use tidelock_node::peers::Connector;
use tidelock_node::peers::enquiry::{self, Acquainted};

use crate::admin_api::hex;
use crate::failure::Failure;
use crate::membership::Joined;

/// How long a node tries to find itself before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// Attempts between two log lines.
const ATTEMPTS_PER_LOG_LINE: u32 = 10;

/// Why it is not done yet: may change by itself, or not.
enum NotYet {
    Wait(String),
    Stop(Failure),
}

/// Finds this node among the members of a running cluster, makes it known to all of them and takes its id on.
pub(crate) async fn become_added(
    connector: &dyn Connector,
    data_dir: &Path,
    own: &[String],
    others: &[String],
) -> Result<Joined, Failure> {
    let disk: u64 = rand::random();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut attempts = 0;
    let joined = loop {
        let why = match attempt(connector, own, others, disk).await {
            Ok(joined) => break joined,
            Err(NotYet::Stop(failure)) => return Err(failure),
            Err(NotYet::Wait(why)) => why,
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(Failure::new(format!("this node cannot enter the cluster: {why}")).hint(
                "add it first (`etcdctl member add NAME --peer-urls=URL`), list all running members in \
                 --initial-cluster, and remove those that are gone for good",
            ));
        }
        if attempts % ATTEMPTS_PER_LOG_LINE == 0 {
            tracing::info!(%why, "not in the cluster yet; trying again");
        }
        attempts += 1;
        tokio::time::sleep(PAUSE).await;
    };
    tracing::info!(node = %hex(joined.node.0), cluster = %hex(joined.cluster.0), "found by peer address, and known to all");
    let adopted = tidelock_node::adopt_identity(data_dir, joined.cluster, joined.node, disk, joined.members.clone());
    adopted.map_err(|error| Failure::new(format!("cannot write who this node is: {error}")))?;
    Ok(joined)
}

async fn attempt(connector: &dyn Connector, own: &[String], others: &[String], disk: u64) -> Result<Joined, NotYet> {
    let found = find(connector, own, others).await?;
    let rest: Vec<&Member> = found.members.iter().filter(|member| member.id != found.node).collect();
    // All must be there before the first one writes this disk down: a start that is given up in between would
    // use the id up.
    for member in &rest {
        reach(connector, member, found.cluster).await?;
    }
    let advertise = own.first().map_or("", String::as_str);
    for member in rest {
        introduce(connector, member, &found, disk, advertise).await?;
    }
    Ok(found)
}

/// Asks one after the other who has a member with one of our addresses.
async fn find(connector: &dyn Connector, own: &[String], others: &[String]) -> Result<Joined, NotYet> {
    let mut problems = Vec::new();
    for target in others {
        match enquiry::ask(connector, target).await {
            Ok(Acquainted { cluster, members, .. }) => match own_entry(&members, own)? {
                Some(node) => return Ok(Joined { cluster, node, members }),
                None => problems.push(format!("{target} knows no member at {}", own.join(" or "))),
            },
            Err(error) => problems.push(format!("{target}: {error}")),
        }
    }
    Err(NotYet::Wait(problems.join("; ")))
}

/// The member with one of our addresses, which must never have been started.
fn own_entry(members: &[Member], own: &[String]) -> Result<Option<NodeId>, NotYet> {
    let Some(entry) = members.iter().find(|member| member.peer_addresses.iter().any(|address| own.contains(address)))
    else {
        return Ok(None);
    };
    if entry.name.is_empty() && entry.client_urls.is_empty() {
        return Ok(Some(entry.id));
    }
    let what =
        format!("the member at this peer address, {} ({}), has been started before", hex(entry.id.0), entry.name);
    Err(NotYet::Stop(used(&what, entry.id)))
}

fn used(what: &str, id: NodeId) -> Failure {
    let id = hex(id.0);
    Failure::new(format!("{what}, and its data is not in this data directory; what it had promised is lost")).hint(format!(
        "use the data directory it had; if that is gone, remove this member and add it again: `etcdctl member remove \
         {id}`, then `etcdctl member add`"
    ))
}

async fn reach(connector: &dyn Connector, member: &Member, cluster: ClusterId) -> Result<(), NotYet> {
    let mut problems = Vec::new();
    for target in &member.peer_addresses {
        match enquiry::ask(connector, target).await {
            Ok(there) if there.cluster == cluster && there.node == member.id => return Ok(()),
            Ok(there) => {
                problems.push(format!("{target} is {} of cluster {}", hex(there.node.0), hex(there.cluster.0)));
            }
            Err(error) => problems.push(format!("{target}: {error}")),
        }
    }
    let who = if member.name.is_empty() { hex(member.id.0) } else { member.name.clone() };
    let problems = problems.join("; ");
    Err(NotYet::Wait(format!("every member must take note of a new one, and {who} does not answer ({problems})")))
}

async fn introduce(
    connector: &dyn Connector,
    member: &Member,
    found: &Joined,
    disk: u64,
    advertise: &str,
) -> Result<(), NotYet> {
    let mut problems = Vec::new();
    for target in &member.peer_addresses {
        let to = (found.cluster, member.id);
        match enquiry::introduce(connector, target, to, found.node, disk, advertise).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) if reason.contains(tidelock_node::OTHER_DISK) => {
                let what = format!("member {} was started before, with another disk", hex(found.node.0));
                return Err(NotYet::Stop(used(&what, found.node)));
            }
            Ok(Err(reason)) => problems.push(format!("{target}: {reason}")),
            Err(error) => problems.push(format!("{target}: {error}")),
        }
    }
    Err(NotYet::Wait(problems.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::MemberRole;

    fn member(id: u64, name: &str, address: &str) -> Member {
        Member {
            id: NodeId(id),
            name: name.into(),
            peer_addresses: vec![address.into()],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        }
    }

    /// H21: a wiped member that takes its id on again could vote twice and forget what it acknowledged.
    #[test]
    fn h21_the_id_of_a_member_that_was_started_is_not_taken_on() {
        let members = [member(1, "a", "h:1"), member(2, "", "h:2")];
        assert!(matches!(own_entry(&members, &["h:2".into()]), Ok(Some(NodeId(2)))));
        assert!(matches!(own_entry(&members, &["h:3".into()]), Ok(None)));
        let Err(NotYet::Stop(failure)) = own_entry(&members, &["h:9".into(), "h:1".into()]) else { panic!("taken on") };
        assert!(failure.to_string().contains("remove this member and add it again"), "{failure}");
    }
}
