//! Who is in the cluster. Members' peer addresses are `host:port` with us and URLs with etcd.
//!
//! Whether a change is safe is judged by the leader below. Judged here, from what this member knows, is what
//! etcd's members judge themselves: how many learners there may be, and whether enough members ever started.

use tidelock_coordinator::Consistency;
use tidelock_etcd_api::etcdserverpb::cluster_server::Cluster;
use tidelock_etcd_api::etcdserverpb::{
    Member as WireMember, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse,
};
use tidelock_model::limits::{MEMBER_TEXT_BYTES_MAX, MEMBER_URLS_MAX};
use tidelock_model::{Caller, Errand, Member, MemberChange, MemberRole, Members, NodeId, Query, QueryAnswer};
use tonic::{Request, Response, Status};

use crate::error_map::FaceError;
use crate::kv::MISMATCH;
use crate::services::Services;

/// The peer addresses in `urls`, sorted as etcd sorts them: `http://` or `https://`, then a host and a
/// port, then nothing.
pub fn peer_addresses(urls: &[String]) -> Result<Vec<String>, FaceError> {
    if urls.is_empty() || urls.len() > MEMBER_URLS_MAX {
        return Err(FaceError::MemberBadUrls);
    }
    let mut addresses = urls.iter().map(|url| peer_address(url)).collect::<Result<Vec<_>, _>>()?;
    addresses.sort();
    Ok(addresses)
}

fn peer_address(url: &str) -> Result<String, FaceError> {
    let url = url.trim();
    let address =
        url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).filter(|rest| !rest.contains('/'));
    let address = address.filter(|address| address.len() <= MEMBER_TEXT_BYTES_MAX).ok_or(FaceError::MemberBadUrls)?;
    let (host, port) = address.rsplit_once(':').ok_or(FaceError::MemberBadUrls)?;
    // An IPv6 address is told from a host with a second port by its brackets.
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_is_good = !host.is_empty() && (bracketed || !host.contains([':', '[', ']', '@']));
    let port_is_good = port.parse::<u16>().is_ok();
    if host_is_good && port_is_good { Ok(address.to_owned()) } else { Err(FaceError::MemberBadUrls) }
}

/// A request for a new member, with the id it shall get.
pub fn add_to_change(request: &MemberAddRequest, id: NodeId) -> Result<MemberChange, FaceError> {
    Ok(MemberChange::Add(Member {
        id,
        name: String::new(),
        peer_addresses: peer_addresses(&request.peer_ur_ls)?,
        client_urls: Vec::new(),
        role: if request.is_learner { MemberRole::Learner } else { MemberRole::Voter },
        zookeeper: None,
    }))
}

/// A member as etcd writes it. The members of a cluster all speak TLS to each other, or none does.
#[must_use]
pub fn wire_member(member: &Member, peers_use_tls: bool) -> WireMember {
    let scheme = if peers_use_tls { "https" } else { "http" };
    WireMember {
        id: member.id.0,
        name: member.name.clone(),
        peer_ur_ls: member.peer_addresses.iter().map(|address| format!("{scheme}://{address}")).collect(),
        client_ur_ls: member.client_urls.clone(),
        is_learner: member.role == MemberRole::Learner,
    }
}

/// Whether enough voters have ever started to be a majority after the change, as far as this member knows.
/// One that never did cannot be counted on. A lone member may get its first companion all the same.
#[must_use]
pub fn enough_started(members: &[Member], change: &MemberChange) -> bool {
    let is_voter = |member: &Member| member.role == MemberRole::Voter;
    let counts = match change {
        MemberChange::Add(member) => is_voter(member),
        MemberChange::Remove(id) => !members.iter().any(|member| member.id == *id && !is_voter(member)),
        _ => false,
    };
    let by_id = members.iter().map(|member| (member.id, member.clone())).collect();
    let mut after = Members { by_id, removed: Vec::new() };
    after.apply(change);
    let voters = after.by_id.values().filter(|member| is_voter(member)).count();
    // A member tells its name when it starts.
    let started = after.by_id.values().filter(|member| is_voter(member) && !member.name.is_empty()).count();
    let grows_from_one = matches!(change, MemberChange::Add(_)) && started == 1 && voters == 2;
    !counts || grows_from_one || started > voters / 2
}

/// Whether one more learner would be one too many.
#[must_use]
pub fn adds_learner_too_many(members: &[Member], change: &MemberChange, learners_max: usize) -> bool {
    let is_learner = |member: &&Member| member.role == MemberRole::Learner;
    matches!(change, MemberChange::Add(member) if is_learner(&member))
        && members.iter().filter(is_learner).count() >= learners_max
}

impl Services {
    async fn change(&self, caller: &Caller, change: MemberChange) -> Result<Vec<WireMember>, FaceError> {
        self.refuse_on_learner()?;
        // Who may not change them need not hear why they cannot be changed.
        self.permit(caller, &Errand::ChangeMembers(&change))?;
        // As this member knows them: these answers must not take a majority, whose lack they may be about.
        let members = self.members(caller, Consistency::Local).await?;
        if adds_learner_too_many(&members, &change, self.config.limits.learners_max) {
            return Err(FaceError::TooManyLearners);
        }
        if !enough_started(&members, &change) {
            return Err(FaceError::MemberNotEnoughStarted);
        }
        let members = self.coordinator.change_members(caller.clone(), change).await?;
        Ok(self.wire_members(&members))
    }

    fn wire_members(&self, members: &[Member]) -> Vec<WireMember> {
        members.iter().map(|member| wire_member(member, self.config.peers_use_tls)).collect()
    }

    async fn members(&self, caller: &Caller, consistency: Consistency) -> Result<Vec<Member>, FaceError> {
        match self.read(caller, Query::Members, consistency).await? {
            QueryAnswer::Members { members, .. } => Ok(members),
            _ => Err(MISMATCH),
        }
    }
}

// Headers here tell no revision: membership is not in etcd's store.
#[tonic::async_trait]
impl Cluster for Services {
    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        let id = NodeId(rand::random_range(1..=u64::MAX));
        let change = add_to_change(request.get_ref(), id)?;
        let members = self.change(&self.caller(&request)?, change).await?;
        let member = members.iter().find(|member| member.id == id.0).cloned();
        let header = Some(self.headers.without_revision());
        Ok(Response::new(MemberAddResponse { header, member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let caller = self.caller(&request)?;
        let members = self.change(&caller, MemberChange::Remove(NodeId(request.into_inner().id))).await?;
        Ok(Response::new(MemberRemoveResponse { header: Some(self.headers.without_revision()), members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let peer_addresses = peer_addresses(&request.peer_ur_ls)?;
        let change = MemberChange::Readdress { id: NodeId(request.id), peer_addresses, role: MemberRole::Voter };
        let members = self.change(&caller, change).await?;
        Ok(Response::new(MemberUpdateResponse { header: Some(self.headers.without_revision()), members }))
    }

    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let linearizable = request.into_inner().linearizable;
        let consistency = if linearizable { Consistency::Linearizable } else { Consistency::Local };
        let members = self.wire_members(&self.members(&caller, consistency).await?);
        Ok(Response::new(MemberListResponse { header: Some(self.headers.without_revision()), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let caller = self.caller(&request)?;
        let members = self.change(&caller, MemberChange::Promote(NodeId(request.into_inner().id))).await?;
        Ok(Response::new(MemberPromoteResponse { header: Some(self.headers.without_revision()), members }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(urls: &[&str]) -> Result<Vec<String>, FaceError> {
        peer_addresses(&urls.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn peer_urls_become_addresses_and_come_back_as_urls() {
        let found = addresses(&["https://b:2380", " http://[::1]:2380"]).unwrap();
        assert_eq!(found, ["[::1]:2380", "b:2380"]);
        let request = MemberAddRequest { peer_ur_ls: vec!["http://c:1".into()], is_learner: true };
        let MemberChange::Add(member) = add_to_change(&request, NodeId(9)).unwrap() else { panic!("not an addition") };
        let wire = wire_member(&member, false);
        assert_eq!((wire.id, wire.is_learner, wire.peer_ur_ls), (9, true, vec!["http://c:1".to_owned()]));
    }

    fn member(id: u64, name: &str, role: MemberRole) -> Member {
        Member { id: NodeId(id), name: name.into(), peer_addresses: vec![], client_urls: vec![], role, zookeeper: None }
    }

    /// Operators do different things about a member they forgot to start and one they cannot reach.
    #[test]
    fn members_that_never_started_do_not_count_towards_a_majority() {
        let voter = |id, name| member(id, name, MemberRole::Voter);
        let add = MemberChange::Add(voter(9, ""));
        let remove = |id| MemberChange::Remove(NodeId(id));
        let two_of_three = [voter(1, "a"), voter(2, "b"), voter(3, "")];
        assert!(!enough_started(&two_of_three, &add));
        assert!(!enough_started(&two_of_three, &remove(2)));
        assert!(enough_started(&two_of_three, &remove(3)));
        let three = [voter(1, "a"), voter(2, "b"), voter(3, "c")];
        assert!(enough_started(&three, &add) && enough_started(&three, &remove(3)));
        // A cluster grows from one, and the last member cannot leave.
        let one = [voter(1, "a")];
        assert!(enough_started(&one, &add) && !enough_started(&one, &remove(1)));
        // Learners do not vote.
        let with_learner = [voter(1, "a"), voter(2, ""), member(3, "", MemberRole::Learner)];
        assert!(enough_started(&with_learner, &remove(3)) && !enough_started(&with_learner, &add));
        assert!(enough_started(&with_learner, &MemberChange::Add(member(9, "", MemberRole::Learner))));
    }

    /// Every learner is sent everything by the leader: etcd's operators rely on being kept to one.
    #[test]
    fn a_second_learner_is_one_too_many() {
        let [learner, voter] = [MemberRole::Learner, MemberRole::Voter].map(|role| member(9, "", role));
        let voters = [member(1, "a", MemberRole::Voter)];
        let with_learner = [member(1, "a", MemberRole::Voter), member(2, "", MemberRole::Learner)];
        let too_many =
            |members: &[Member], added: &Member| adds_learner_too_many(members, &MemberChange::Add(added.clone()), 1);
        assert!(!too_many(&voters, &learner));
        assert!(too_many(&with_learner, &learner));
        assert!(!too_many(&with_learner, &voter));
        assert!(!adds_learner_too_many(&with_learner, &MemberChange::Promote(NodeId(2)), 1));
    }

    /// An address that nobody can reach would cost the cluster a vote.
    #[test]
    fn peer_urls_that_cannot_be_dialled_are_refused() {
        for bad in [
            "c:1",
            "http://c",
            "http://c:",
            "http://:1",
            "http://c:1/x",
            "http://c:99999",
            "unix://c:1",
            "http://a:b:1",
        ] {
            assert_eq!(addresses(&[bad]), Err(FaceError::MemberBadUrls), "{bad}");
        }
        assert_eq!(addresses(&[]), Err(FaceError::MemberBadUrls));
    }
}
