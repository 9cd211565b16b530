//! How a node gets into the cluster's list of members and stays correct in it: asking to be added,
//! telling its name and client URLs, asking to be promoted.
//!
//! Joining is safe to interrupt at any point. A member that was added but never started (it has no
//! client URLs yet) and claims our own peer address is left over from such an interruption: it is
//! removed and a fresh one is added, because ids are never reused (M1) and nobody can tell whether a
//! node with a lost disk has already acknowledged something under the old one.

use std::sync::Arc;
use std::time::Duration;

use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_model::{Caller, ClusterId, Command, Member, MemberRole, NodeId, Query, QueryAnswer, ZookeeperServer};

use crate::admin_api::{AddMember, MemberAdded, MemberReport, hex, parse_hex};
use crate::admin_client::{self, AdminUrl, CallError};
use crate::failure::Failure;

/// How long a node tries to be added before it gives up.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts of anything here.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause between attempts to publish; short, because clients that ask for the members right after the
/// start should find this one.
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);
/// Attempts to publish between two log lines about it.
const PUBLISHES_PER_LOG_LINE: u64 = 100;
/// Attempts between two log lines about the same thing.
const ATTEMPTS_PER_LOG_LINE: u64 = 10;

/// What a node that was added must know to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) members: Vec<Member>,
}

/// Asks the members at `urls`, one after the other, to add a learner that is reached at `peer_address`.
pub(crate) async fn join(urls: &[AdminUrl], peer_address: &str) -> Result<Joined, Failure> {
    let request = AddMember { peer_address: peer_address.to_owned(), name: None, learner: true };
    let deadline = tokio::time::Instant::now() + JOIN_PATIENCE;
    loop {
        let mut last = None;
        for url in urls {
            match admin_client::add_member(url, &request).await {
                Ok(added) => return understood(&added),
                Err(error) if error.code() == Some("address-taken") => {
                    remove_leftover(url, peer_address).await?;
                    last = Some(error);
                }
                Err(error @ CallError::Refused { status: 400..=499, .. }) => return Err(refused(&error)),
                Err(error) => last = Some(error),
            }
        }
        let Some(error) = last else { return Err(Failure::usage("--join names nobody")) };
        if tokio::time::Instant::now() >= deadline {
            return Err(refused(&error));
        }
        tracing::info!(%error, "the cluster did not add this node yet; trying again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn refused(error: &CallError) -> Failure {
    Failure::new(format!("this node was not added to the cluster: {error}")).hint(error.hint())
}

fn understood(added: &MemberAdded) -> Result<Joined, Failure> {
    let members = added.members.iter().map(MemberReport::to_member).collect::<Option<Vec<Member>>>();
    match (parse_hex(&added.cluster), parse_hex(&added.id), members) {
        (Some(cluster), Some(node), Some(members)) => {
            tracing::info!(node = %hex(node), cluster = %hex(cluster), "added to the cluster as a learner");
            Ok(Joined { cluster: ClusterId(cluster), node: NodeId(node), members })
        }
        _ => Err(Failure::new("the cluster's answer to --join cannot be understood")
            .hint("check that --join names admin addresses of the same version of Tidelock")),
    }
}

/// Removes the never-started member that has our address; a started one is somebody else's node.
async fn remove_leftover(url: &AdminUrl, peer_address: &str) -> Result<(), Failure> {
    let Ok(list) = admin_client::members(url).await else { return Ok(()) };
    let Some(owner) = list.members.iter().find(|member| member.peer_addresses.iter().any(|one| one == peer_address))
    else {
        return Ok(());
    };
    if owner.ever_started() {
        return Err(Failure::new(format!("peer address {peer_address} belongs to member {} ({})", owner.id, owner.name))
            .hint(format!(
                "if that node is gone for good: tidelock member remove {} --admin {url}; otherwise use another --peer-listen",
                owner.id
            )));
    }
    tracing::info!(member = %owner.id, "removing the member an interrupted join left behind");
    let _ = admin_client::remove_member(url, &owner.id).await;
    Ok(())
}

/// What a node tells of itself.
pub(crate) struct Published {
    pub(crate) name: String,
    pub(crate) client_urls: Vec<String>,
    pub(crate) zookeeper: Option<ZookeeperServer>,
}

impl Published {
    /// Whether a member is known with all of it. Whoever asks for no number has one that the cluster gave.
    fn is_known(&self, known: &Member) -> bool {
        let servers_match = match (&self.zookeeper, &known.zookeeper) {
            (Some(own), Some(known)) if own.number == 0 => {
                ZookeeperServer { number: known.number, ..own.clone() } == *known
            }
            (own, known) => own == known,
        };
        self.name == known.name && self.client_urls == known.client_urls && servers_match
    }
}

/// Tells the cluster this node's name and addresses for clients, unless it knows them already. Tries until that
/// is done: without it, clients that ask the cluster for its members never find this node.
pub(crate) async fn publish(coordinator: Arc<dyn Coordinator>, node: NodeId, published: Published) {
    let mut attempts: u64 = 0;
    loop {
        match publish_once(&*coordinator, node, &published).await {
            Ok(()) => return,
            Err(why) if attempts % PUBLISHES_PER_LOG_LINE == PUBLISHES_PER_LOG_LINE - 1 => {
                tracing::info!(%why, "this node's name and URLs are not published yet; trying again");
            }
            Err(_) => {}
        }
        attempts += 1;
        tokio::time::sleep(PUBLISH_PAUSE).await;
    }
}

async fn publish_once(coordinator: &dyn Coordinator, node: NodeId, published: &Published) -> Result<(), String> {
    let answer = coordinator
        .read(Caller::Internal, Query::Members, Consistency::Linearizable)
        .await
        .map_err(|error| error.to_string())?;
    let QueryAnswer::Members { members, .. } = answer else { unreachable!("Query::Members is answered by members") };
    let Some(known) = members.into_iter().find(|member| member.id == node) else {
        return Err("the cluster does not list this node yet".into());
    };
    if published.is_known(&known) {
        return Ok(());
    }
    let Published { name, client_urls, zookeeper } = published;
    let member = Member { name: name.clone(), client_urls: client_urls.clone(), zookeeper: zookeeper.clone(), ..known };
    let outcome = coordinator
        .propose(Caller::Internal, Command::PublishMember(member), None)
        .await
        .map_err(|error| error.to_string())?;
    match outcome.result {
        Ok(_) => Ok(()),
        Err(refusal) => Err(refusal.to_string()),
    }
}

/// Asks, once a second, that this learner be made a voter, until it is one. What the node itself
/// believes to be does not count: before it has caught up it knows no better.
pub(crate) async fn seek_promotion(coordinator: Arc<dyn Coordinator>, urls: Vec<AdminUrl>, node: NodeId) {
    let id = hex(node.0);
    let mut attempts: u64 = 0;
    loop {
        let reading = coordinator.read(Caller::Internal, Query::Members, Consistency::Linearizable);
        // A node that is still catching up may keep a read waiting; asking must go on meanwhile.
        if let Ok(Ok(QueryAnswer::Members { members, .. })) = tokio::time::timeout(RETRY_PAUSE, reading).await
            && members.iter().any(|member| member.id == node && member.role == MemberRole::Voter)
        {
            return;
        }
        for url in &urls {
            match admin_client::promote(url, &id).await {
                Ok(_) => {
                    tracing::info!("promoted: this node is a voter now");
                    return;
                }
                Err(error) if error.code() == Some("wrong-role") => return,
                Err(error) if attempts.is_multiple_of(ATTEMPTS_PER_LOG_LINE) => {
                    tracing::info!(%error, "not promoted yet; trying again");
                }
                Err(_) => {}
            }
        }
        attempts += 1;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}
