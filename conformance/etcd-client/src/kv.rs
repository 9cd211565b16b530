//! Put, get, delete, compaction.

use etcd_client::{CompactionOptions, DeleteOptions, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget};

use crate::{Checked, Runner, Servers, ensure, refused, same};

pub async fn checks(runner: &mut Runner) {
    runner.check("put_get_and_versions", put_get_and_versions).await;
    runner.check("values_of_one_mebibyte", values_of_one_mebibyte).await;
    runner.check("any_bytes_are_a_key", any_bytes_are_a_key).await;
    runner.check("ranges_limits_and_counts", ranges_limits_and_counts).await;
    runner.check("revision_bounds_filter_before_the_limit", revision_bounds).await;
    runner.check("sorting", sorting).await;
    runner.check("deletes_tell_what_was", deletes_tell_what_was).await;
    runner.check("contradictory_puts_are_refused", contradictory_puts).await;
    runner.check("compaction_and_its_refusals", compaction).await;
    runner.check("what_one_endpoint_acknowledged_all_tell", acknowledged_everywhere).await;
    runner.check("many_writers_at_once", many_writers).await;
}

fn keys(found: &GetResponse) -> Vec<&str> {
    found.kvs().iter().map(|kv| kv.key_str().unwrap_or("?")).collect()
}

async fn put_get_and_versions(servers: Servers) -> Checked {
    let mut client = servers.client("put/").await?;
    let first = client.put("put/k", "one", None).await?;
    let second = client.put("put/k", "two", Some(PutOptions::new().with_prev_key())).await?;
    let (first, previous) = (first.header().ok_or("no header")?.revision(), second.prev_key());
    same("the previous value", previous.map(|kv| kv.value()), Some(&b"one"[..]))?;
    let second = second.header().ok_or("no header")?.revision();
    same("one revision later", second, first + 1)?;
    let found = client.get("put/k", None).await?;
    let kv = found.kvs().first().ok_or("nothing found")?;
    let told = (kv.value(), kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease());
    same("what is found", told, (&b"two"[..], first, second, 2, 0))?;
    let before = client.get("put/k", Some(GetOptions::new().with_revision(first))).await?;
    same("what was", before.kvs()[0].value(), b"one")?;
    same("the header of an old read", before.header().map(|header| header.revision()), Some(second))?;
    let absent = client.get("put/absent", None).await?;
    same("an absent key", (absent.count(), absent.kvs().len(), absent.more()), (0, 0, false))?;
    let header = found.header().ok_or("no header")?;
    ensure(header.cluster_id() != 0 && header.member_id() != 0 && header.raft_term() != 0, "an empty header")
}

async fn values_of_one_mebibyte(servers: Servers) -> Checked {
    let mut client = servers.client("large/").await?;
    let value: Vec<u8> = (0..1024 * 1024).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for i in 0..3 {
        client.put(format!("large/{i}"), value.clone(), None).await?;
    }
    let found = client.get("large/", Some(GetOptions::new().with_prefix())).await?;
    ensure(found.kvs().len() == 3 && found.kvs().iter().all(|kv| kv.value() == value), "a value was changed")?;
    refused(client.put("large/over", vec![0; 1_600_000], None).await, "etcdserver: request is too large")?;
    client.delete("large/", Some(DeleteOptions::new().with_prefix())).await?;
    Ok(())
}

async fn any_bytes_are_a_key(servers: Servers) -> Checked {
    let mut client = servers.client("bytes/").await?;
    let key = [&b"bytes/"[..], &(0..=255).collect::<Vec<u8>>()].concat();
    client.put(key.clone(), vec![0, 255, 10], None).await?;
    let found = client.get(key.clone(), None).await?;
    same("key and value", (found.kvs()[0].key(), found.kvs()[0].value()), (&key[..], &[0, 255, 10][..]))?;
    // Keys are in the order of their bytes, not of any text.
    for name in [&b"bytes/\x80"[..], b"bytes/\x7f", b"bytes/\xff\xff", b"bytes/\xff"] {
        client.put(name, "", None).await?;
    }
    let found = client.get("bytes/\x7f", Some(GetOptions::new().with_range("bytes0"))).await?;
    let found: Vec<&[u8]> = found.kvs().iter().map(|kv| kv.key()).collect();
    same("the order", found, vec![b"bytes/\x7f", b"bytes/\x80", b"bytes/\xff", &b"bytes/\xff\xff"[..]])?;
    refused(client.put("", "value", None).await, "etcdserver: key is not provided")
}

async fn ranges_limits_and_counts(servers: Servers) -> Checked {
    let mut client = servers.client("range/").await?;
    for i in 0..20 {
        client.put(format!("range/{i:02}"), "v", None).await?;
    }
    let all = || GetOptions::new().with_prefix();
    let found = client.get("range/", Some(all().with_limit(3))).await?;
    same("a limited range", (keys(&found), found.more()), (vec!["range/00", "range/01", "range/02"], true))?;
    same("its count", found.count(), 20)?;
    let found = client.get("range/", Some(all().with_limit(20))).await?;
    same("a limit just met", (found.kvs().len(), found.more()), (20, false))?;
    let found = client.get("range/", Some(all().with_count_only())).await?;
    same("count only", (found.kvs().len(), found.count(), found.more()), (0, 20, false))?;
    let found = client.get("range/", Some(all().with_keys_only().with_limit(1))).await?;
    same("keys only", (found.kvs()[0].value(), found.kvs()[0].version()), (&b""[..], 1))?;
    let found = client.get("range/05", Some(GetOptions::new().with_range("range/08"))).await?;
    same("an interval", keys(&found), vec!["range/05", "range/06", "range/07"])?;
    let found = client.get("range/18", Some(GetOptions::new().with_from_key().with_limit(2))).await?;
    same("from a key on", keys(&found), vec!["range/18", "range/19"])?;
    let found = client.get("range/", Some(all().with_serializable())).await?;
    ensure(found.count() <= 20, "a serializable read counts too many")
}

async fn revision_bounds(servers: Servers) -> Checked {
    let mut client = servers.client("bounds/").await?;
    let mut revisions = Vec::new();
    for i in 0..6 {
        let put = client.put(format!("bounds/{i}"), "v", None).await?;
        revisions.push(put.header().ok_or("no header")?.revision());
    }
    client.put("bounds/0", "again", None).await?;
    let all = || GetOptions::new().with_prefix();
    let found = client.get("bounds/", Some(all().with_min_mod_revision(revisions[3]))).await?;
    same("modified since", keys(&found), vec!["bounds/0", "bounds/3", "bounds/4", "bounds/5"])?;
    same("the count is of the whole range", found.count(), 6)?;
    let found = client.get("bounds/", Some(all().with_max_create_revision(revisions[1]))).await?;
    same("created until", keys(&found), vec!["bounds/0", "bounds/1"])?;
    let bounded = all().with_min_create_revision(revisions[2]).with_max_mod_revision(revisions[4]).with_limit(2);
    let found = client.get("bounds/", Some(bounded)).await?;
    same("the limit counts what is left", (keys(&found), found.more()), (vec!["bounds/2", "bounds/3"], true))
}

async fn sorting(servers: Servers) -> Checked {
    let mut client = servers.client("sort/").await?;
    for (key, value) in
        [("sort/a", "3"), ("sort/b", "1"), ("sort/c", "2"), ("sort/a", "4"), ("sort/a", "5"), ("sort/b", "0")]
    {
        client.put(key, value, None).await?;
    }
    for (target, ascending) in [
        (SortTarget::Key, ["sort/a", "sort/b", "sort/c"]),
        (SortTarget::Version, ["sort/c", "sort/b", "sort/a"]),
        (SortTarget::Create, ["sort/a", "sort/b", "sort/c"]),
        (SortTarget::Mod, ["sort/c", "sort/a", "sort/b"]),
        (SortTarget::Value, ["sort/b", "sort/c", "sort/a"]),
    ] {
        let sorted = |order| Some(GetOptions::new().with_prefix().with_sort(target, order));
        same("ascending", keys(&client.get("sort/", sorted(SortOrder::Ascend)).await?), ascending.to_vec())?;
        let descending: Vec<&str> = ascending.into_iter().rev().collect();
        same("descending", keys(&client.get("sort/", sorted(SortOrder::Descend)).await?), descending)?;
    }
    Ok(())
}

async fn deletes_tell_what_was(servers: Servers) -> Checked {
    let mut client = servers.client("delete/").await?;
    for i in 0..4 {
        client.put(format!("delete/{i}"), format!("v{i}"), None).await?;
    }
    let one = client.delete("delete/0", Some(DeleteOptions::new().with_prev_key())).await?;
    same("one deleted", (one.deleted(), one.prev_kvs()[0].value()), (1, &b"v0"[..]))?;
    let at = one.header().ok_or("no header")?.revision();
    let none = client.delete("delete/0", None).await?;
    same("nothing to delete", (none.deleted(), none.header().map(|h| h.revision())), (0, Some(at)))?;
    let rest = client.delete("delete/", Some(DeleteOptions::new().with_prefix().with_prev_key())).await?;
    let previous: Vec<&[u8]> = rest.prev_kvs().iter().map(|kv| kv.value()).collect();
    same("the rest", (rest.deleted(), previous), (3, vec![&b"v1"[..], b"v2", b"v3"]))?;
    client.put("delete/0", "anew", None).await?;
    same("versions begin again", client.get("delete/0", None).await?.kvs()[0].version(), 1)
}

async fn contradictory_puts(servers: Servers) -> Checked {
    let mut client = servers.client("contradict/").await?;
    let options = || PutOptions::new();
    let ignore_value = Some(options().with_ignore_value());
    refused(client.put("contradict/k", "v", ignore_value.clone()).await, "etcdserver: value is provided")?;
    refused(client.put("contradict/k", "", ignore_value).await, "etcdserver: key not found")?;
    let ignore_lease = Some(options().with_ignore_lease().with_lease(5));
    refused(client.put("contradict/k", "v", ignore_lease).await, "etcdserver: lease is provided")?;
    let leased = Some(options().with_lease(987_654));
    refused(client.put("contradict/k", "v", leased).await, "etcdserver: requested lease not found")?;
    same("nothing was written", client.get("contradict/k", None).await?.count(), 0)
}

async fn compaction(servers: Servers) -> Checked {
    let mut client = servers.client("compact/").await?;
    let mut revisions = Vec::new();
    for i in 0..10 {
        let put = client.put("compact/k", format!("v{i}"), None).await?;
        revisions.push(put.header().ok_or("no header")?.revision());
    }
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let future = "etcdserver: mvcc: required revision is a future revision";
    client.compact(revisions[5], None).await?;
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    same("at the compacted revision", client.get("compact/k", at(revisions[5])).await?.kvs()[0].value(), b"v5")?;
    refused(client.get("compact/k", at(revisions[4])).await, compacted)?;
    refused(client.get("compact/k", at(revisions[9] + 1000)).await, future)?;
    refused(client.compact(revisions[5], None).await, compacted)?;
    refused(client.compact(revisions[9] + 1000, None).await, future)?;
    client.compact(revisions[9], Some(CompactionOptions::new().with_physical())).await?;
    refused(client.get("compact/k", at(revisions[8])).await, compacted)?;
    same("the present stays", client.get("compact/k", None).await?.kvs()[0].value(), b"v9")
}

/// R1: a read that begins after a write was acknowledged sees it, whichever node is asked.
async fn acknowledged_everywhere(servers: Servers) -> Checked {
    servers.client("everywhere/").await?;
    for round in 0..20 {
        let value = format!("v{round}");
        servers.client_at(round).await?.put("everywhere/k", value.clone(), None).await?;
        let found = servers.client_at(round + 1).await?.get("everywhere/k", None).await?;
        same("the last write", found.kvs()[0].value(), value.as_bytes())?;
    }
    Ok(())
}

async fn many_writers(servers: Servers) -> Checked {
    let mut client = servers.client("many/").await?;
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let mut client = client.kv_client();
            tokio::spawn(async move {
                for i in 0..50 {
                    client.put(format!("many/{writer}/{i}"), "v", None).await?;
                }
                Ok::<(), etcd_client::Error>(())
            })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    let found = client.get("many/", Some(GetOptions::new().with_prefix().with_keys_only())).await?;
    let mut revisions: Vec<i64> = found.kvs().iter().map(|kv| kv.mod_revision()).collect();
    revisions.sort_unstable();
    revisions.dedup();
    same("each write has its own revision", (found.count(), revisions.len()), (800, 800))
}
