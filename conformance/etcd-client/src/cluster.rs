//! Members, status, leadership, maintenance.

use etcd_client::{AlarmAction, AlarmType};

use crate::{Checked, Runner, Servers, ensure, refused, same};

pub async fn checks(runner: &mut Runner) {
    runner.check("members_are_listed", members_are_listed).await;
    runner.check("status_agrees_on_the_leader", status_agrees).await;
    runner.check("leadership_moves_and_clients_go_on", leadership_moves).await;
    runner.check("unknown_members_are_refused", unknown_members).await;
    runner.check("alarms_and_defragmentation", maintenance).await;
}

async fn members_are_listed(servers: Servers) -> Checked {
    let listed = servers.client("cluster/").await?.member_list().await?;
    same("how many", listed.members().len(), servers.endpoints.len())?;
    for member in listed.members() {
        ensure(member.id() != 0 && !member.name().is_empty() && !member.is_learner(), format!("odd: {member:?}"))?;
        let urls = member.client_urls().iter().chain(member.peer_urls());
        ensure(urls.clone().count() >= 2 && urls.clone().all(|url| url.starts_with("http://")), "odd URLs")?;
        let known = servers.endpoints.iter().any(|endpoint| member.client_urls()[0].ends_with(endpoint.as_str()));
        ensure(known, format!("an unknown client URL: {:?}", member.client_urls()))?;
    }
    Ok(())
}

async fn status_agrees(servers: Servers) -> Checked {
    let mut leaders = Vec::new();
    for number in 0..servers.endpoints.len() {
        let status = servers.client_at(number).await?.status().await?;
        ensure(status.version().split('.').count() == 3, format!("an odd version: {:?}", status.version()))?;
        ensure(status.raft_index() > 0 && status.raft_term() > 0 && !status.is_learner(), format!("odd: {status:?}"))?;
        same("errors", status.errors().len(), 0)?;
        leaders.push(status.leader());
    }
    ensure(leaders[0] != 0 && leaders.iter().all(|leader| *leader == leaders[0]), format!("leaders: {leaders:?}"))
}

async fn leadership_moves(servers: Servers) -> Checked {
    let mut client = servers.client("moved/").await?;
    client.put("moved/k", "before", None).await?;
    let leader = client.status().await?.leader();
    let members = client.member_list().await?;
    let Some(target) = members
        .members()
        .iter()
        .filter(|member| !member.is_learner())
        .map(|member| member.id())
        .find(|id| *id != leader)
    else {
        // Alone: handing over to oneself is done at once.
        client.move_leader(leader).await?;
        return Ok(());
    };
    let mut leading = None;
    for number in 0..servers.endpoints.len() {
        let mut at = servers.client_at(number).await?;
        if at.get("moved/k", None).await?.header().ok_or("no header")?.member_id() == leader {
            leading = Some(at);
        } else {
            refused(at.move_leader(target).await, "etcdserver: not leader")?;
        }
    }
    leading.ok_or("no endpoint is the leader's")?.move_leader(target).await?;
    client.put("moved/k", "after", None).await?;
    for number in 0..servers.endpoints.len() {
        let mut at = servers.client_at(number).await?;
        same("read after it", at.get("moved/k", None).await?.kvs()[0].value(), b"after")?;
        // It has answered a read, so it knows of a leader, and there is only one in a term.
        same("the new leader", at.status().await?.leader(), target)?;
    }
    Ok(())
}

async fn unknown_members(servers: Servers) -> Checked {
    let mut client = servers.client("cluster/").await?;
    refused(client.member_remove(31_337).await, "etcdserver: member not found")?;
    refused(client.member_promote(31_337).await, "etcdserver: member not found")?;
    refused(client.member_update(31_337, ["http://127.0.0.1:1".to_owned()]).await, "etcdserver: member not found")
}

async fn maintenance(servers: Servers) -> Checked {
    let mut client = servers.client("cluster/").await?;
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await?;
    same("alarms", alarms.alarms().len(), 0)?;
    client.defragment().await?;
    Ok(())
}
