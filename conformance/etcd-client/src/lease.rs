//! Leases: grant, attach, renew, look at, expire, revoke.

use std::time::{Duration, Instant};

use etcd_client::{GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, WatchOptions};

use crate::{Checked, Runner, Servers, ensure, refused, same};

pub async fn checks(runner: &mut Runner) {
    runner.check("grant_attach_look_and_revoke", grant_and_revoke).await;
    runner.check("chosen_ids", chosen_ids).await;
    runner.check("the_shortest_lease", shortest).await;
    runner.check("keep_alive_stream_holds_a_lease", keep_alive_stream).await;
    runner.check("an_expired_lease_takes_its_keys_at_one_revision", expiry).await;
    runner.check("missing_leases", missing).await;
}

async fn grant_and_revoke(servers: Servers) -> Checked {
    let mut client = servers.client("lease/").await?;
    let granted = client.lease_grant(60, None).await?;
    ensure(granted.id() > 0 && granted.ttl() == 60, format!("an odd lease: {granted:?}"))?;
    let on_lease = || Some(PutOptions::new().with_lease(granted.id()));
    client.put("lease/b", "v", on_lease()).await?;
    client.put("lease/a", "v", on_lease()).await?;
    client.put("lease/left", "v", on_lease()).await?;
    // Written without a lease, a key is off it.
    client.put("lease/left", "v", None).await?;
    same("the key tells its lease", client.get("lease/a", None).await?.kvs()[0].lease(), granted.id())?;
    let options = Some(LeaseTimeToLiveOptions::new().with_keys());
    let told = client.lease_time_to_live(granted.id(), options).await?;
    let mut keys = told.keys().to_vec();
    keys.sort();
    same("its keys", keys, vec![b"lease/a".to_vec(), b"lease/b".to_vec()])?;
    ensure(told.granted_ttl() == 60 && (55..=60).contains(&told.ttl()), format!("odd times: {told:?}"))?;
    let listed = client.leases().await?;
    ensure(listed.leases().iter().any(|lease| lease.id() == granted.id()), "not listed")?;
    let before = client.get("lease/a", None).await?.header().ok_or("no header")?.revision();
    let revoked = client.lease_revoke(granted.id()).await?.header().ok_or("no header")?.revision();
    same("all keys go at one revision", revoked, before + 1)?;
    let found = client.get("lease/", Some(GetOptions::new().with_prefix())).await?;
    same("what stays", found.kvs().iter().map(|kv| kv.key()).collect::<Vec<_>>(), vec![&b"lease/left"[..]])
}

async fn chosen_ids(servers: Servers) -> Checked {
    let mut client = servers.client("chosen/").await?;
    let id = 424_242;
    let _ = client.lease_revoke(id).await;
    same("the id", client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(id))).await?.id(), id)?;
    let again = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(id))).await;
    refused(again, "etcdserver: lease already exists")?;
    client.lease_revoke(id).await?;
    Ok(())
}

async fn shortest(servers: Servers) -> Checked {
    let mut client = servers.client("shortest/").await?;
    let granted = client.lease_grant(1, None).await?;
    same("raised to what outlives an election", granted.ttl(), 2)?;
    client.lease_revoke(granted.id()).await?;
    refused(client.lease_grant(9_000_000_001, None).await, "etcdserver: too large lease TTL")
}

async fn keep_alive_stream(servers: Servers) -> Checked {
    let mut client = servers.client("kept/").await?;
    let lease = client.lease_grant(2, None).await?.id();
    client.put("kept/k", "v", Some(PutOptions::new().with_lease(lease))).await?;
    // Renewed through another node than it was granted by, for longer than it would live by itself.
    let (mut keeper, mut answers) = servers.client_at(1).await?.lease_keep_alive(lease).await?;
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        keeper.keep_alive().await?;
        let answer = answers.message().await?.ok_or("the stream ended")?;
        same("the time to live", (answer.id(), answer.ttl()), (lease, 2))?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    same("the key is there", client.get("kept/k", None).await?.count(), 1)?;
    client.lease_revoke(lease).await?;
    keeper.keep_alive().await?;
    let answer = answers.message().await?.ok_or("the stream ended")?;
    same("a revoked lease is an answer, not an error", (answer.id(), answer.ttl()), (lease, 0))
}

async fn expiry(servers: Servers) -> Checked {
    let mut client = servers.client("expire/").await?;
    let began = Instant::now();
    let lease = client.lease_grant(2, None).await?.id();
    let mut last = 0;
    for key in ["expire/c", "expire/a", "expire/b"] {
        let put = client.put(key, "v", Some(PutOptions::new().with_lease(lease))).await?;
        last = put.header().ok_or("no header")?.revision();
    }
    let after = WatchOptions::new().with_prefix().with_start_revision(last + 1);
    let mut stream = client.watch("expire/", Some(after)).await?;
    stream.message().await?;
    let told = stream.message().await?.ok_or("the stream ended")?;
    let keys: Vec<&[u8]> = told.events().iter().filter_map(|event| Some(event.kv()?.key())).collect();
    same("all in one response, sorted", keys, vec![&b"expire/a"[..], b"expire/b", b"expire/c"])?;
    let revisions: Vec<i64> = told.events().iter().filter_map(|event| Some(event.kv()?.mod_revision())).collect();
    ensure(revisions.iter().all(|revision| *revision == revisions[0]), "at several revisions")?;
    ensure(began.elapsed() >= Duration::from_secs(2), "it expired early")?;
    ensure(began.elapsed() < Duration::from_secs(8), "it expired late")
}

async fn missing(servers: Servers) -> Checked {
    let mut client = servers.client("missing/").await?;
    refused(client.lease_revoke(31_337).await, "etcdserver: requested lease not found")?;
    let told = client.lease_time_to_live(31_337, None).await?;
    same("time to live", (told.id(), told.ttl(), told.granted_ttl()), (31_337, -1, 0))
}
