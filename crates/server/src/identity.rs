//! Identities of a cluster that is founded from a list of members.
//!
//! All founding nodes are started with the same token and list, so each can compute the cluster's id
//! and everybody's node id without talking to the others. The order of the list does not matter.
//! Change anything in it and you found a different cluster, whose nodes turn each other away: that is
//! wanted, because two nodes started with different lists would not agree on what a majority is.
//!
//! The values are stored in data directories and compared between versions of this program, so the
//! way they are computed never changes (pinned in the tests).

use tidelock_model::{ClusterId, Member, MemberRole, NodeId};
use xxhash_rust::xxh3::xxh3_64;

/// A founding member as the user wrote it: `name=host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Founder {
    pub(crate) name: String,
    pub(crate) peer_address: String,
    /// Further addresses of the same member.
    pub(crate) more_addresses: Vec<String>,
    /// It does not vote, and nobody waits for it.
    pub(crate) observes: bool,
}

impl Founder {
    /// Whether this is one of its addresses.
    pub(crate) fn has_address(&self, address: &str) -> bool {
        self.peer_address == address || self.more_addresses.iter().any(|other| other == address)
    }

    /// Brings its addresses into the one order that everybody computes ids from.
    pub(crate) fn sort_addresses(&mut self) {
        let mut all = std::mem::take(self);
        let (name, observes, mut addresses) = (std::mem::take(&mut all.name), all.observes, all.addresses());
        addresses.sort();
        let mut addresses = addresses.into_iter();
        let peer_address = addresses.next().unwrap_or_default();
        *self = Founder { name, peer_address, more_addresses: addresses.collect(), observes };
    }

    /// All its addresses.
    pub(crate) fn addresses(self) -> Vec<String> {
        std::iter::once(self.peer_address).chain(self.more_addresses).collect()
    }
}

/// A cluster to be founded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Founding {
    pub(crate) cluster: ClusterId,
    pub(crate) members: Vec<Member>,
}

impl Founding {
    /// Computes who is who. Names and addresses must be distinct; `config` checked that.
    pub(crate) fn derive(token: &str, founders: &[Founder]) -> Founding {
        let mut founders = founders.to_vec();
        founders.sort();
        let mut list = vec![token];
        for founder in &founders {
            list.extend([founder.name.as_str(), founder.peer_address.as_str()]);
            list.extend(founder.more_addresses.iter().map(String::as_str));
            // Who takes somebody for a voter whom others take for an observer means another cluster.
            list.extend(founder.observes.then_some("observes"));
        }
        let cluster = stable_id("cluster", &list);
        let member = |founder: &Founder| Member {
            id: NodeId(stable_id(&format!("node {cluster:x}"), &[&founder.name, &founder.peer_address])),
            name: founder.name.clone(),
            peer_addresses: founder.clone().addresses(),
            client_urls: Vec::new(),
            role: if founder.observes { MemberRole::Learner } else { MemberRole::Voter },
            zookeeper: None,
        };
        Founding { cluster: ClusterId(cluster), members: founders.iter().map(member).collect() }
    }

    /// The member of that name.
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

/// What to say about a number of voters that is no better than one fewer.
pub(crate) fn even_number_of_voters(founders: &[Founder]) -> Option<String> {
    let count = founders.iter().filter(|founder| !founder.observes).count();
    let fewer = count.checked_sub(1).filter(|_| count.is_multiple_of(2))?;
    Some(format!("a cluster of {count} survives no more failures than one of {fewer}; use 1, 3 or 5 members"))
}

/// A hash that is never zero, because zero means "nobody". Lengths are hashed too, so that no two
/// different lists read alike.
fn stable_id(purpose: &str, parts: &[&str]) -> u64 {
    let mut text = Vec::new();
    for part in std::iter::once(&purpose).chain(parts) {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    xxh3_64(&text).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn founder(name: &str, peer_address: &str) -> Founder {
        Founder { name: name.into(), peer_address: peer_address.into(), more_addresses: Vec::new(), observes: false }
    }

    fn three() -> Vec<Founder> {
        vec![founder("a", "10.0.0.1:2380"), founder("b", "10.0.0.2:2380"), founder("c", "10.0.0.3:2380")]
    }

    /// Nodes of different versions of this program must agree on who they are; if these values change,
    /// a cluster being founded during an upgrade never forms.
    #[test]
    fn ids_are_the_same_in_every_version() {
        let founding = Founding::derive("tidelock", &three());
        let ids: Vec<u64> = founding.members.iter().map(|member| member.id.0).collect();
        assert_eq!(founding.cluster.0, 13_569_025_845_759_296_133);
        assert_eq!(ids, vec![17_262_621_069_184_655_065, 6_195_136_309_436_818_268, 7_799_676_315_031_761_995]);
    }

    /// Operators paste the list in any order; nodes started from differently ordered lists must still
    /// form one cluster.
    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let mut reversed = three();
        reversed.reverse();
        assert_eq!(Founding::derive("t", &three()), Founding::derive("t", &reversed));
    }

    /// Two clusters on the same hosts are kept apart by their token, and a node started with another
    /// list must not be taken for a member of this cluster.
    #[test]
    fn another_token_or_list_is_another_cluster_with_other_nodes() {
        let here = Founding::derive("t", &three());
        for there in [Founding::derive("u", &three()), Founding::derive("t", &three()[..1])] {
            assert_ne!(here.cluster, there.cluster);
            assert!(there.members.iter().all(|other| here.members.iter().all(|member| member.id != other.id)));
        }
    }
}
