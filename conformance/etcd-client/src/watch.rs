//! Watches: order, completeness, history, filters, progress, cancellation.

use etcd_client::{Client, DeleteOptions, EventType, WatchFilterType, WatchOptions, WatchResponse, WatchStream};

use crate::{Checked, Runner, Servers, ensure, same};

type Failed = Box<dyn std::error::Error>;

pub async fn checks(runner: &mut Runner) {
    runner.check("live_events", live_events).await;
    runner.check("many_events_in_order_without_gaps", many_events).await;
    runner.check("large_events", large_events).await;
    runner.check("history_then_live", history_then_live).await;
    runner.check("created_comes_before_the_first_event", created_comes_first).await;
    runner.check("previous_values_only_if_asked", previous_values).await;
    runner.check("filters", filters).await;
    runner.check("a_transaction_is_one_response", one_response).await;
    runner.check("several_watchers_on_one_stream", several_watchers).await;
    runner.check("progress_on_request", progress).await;
    runner.check("compacted_start", compacted_start).await;
    runner.check("refused_watches", refused_watches).await;
    runner.check("a_future_start_delivers_nothing_older", future_start).await;
}

async fn next(stream: &mut WatchStream) -> Result<WatchResponse, Failed> {
    stream.message().await?.ok_or_else(|| "the stream ended".into())
}

/// Opens a watch and waits until the server says that it stands.
async fn open(client: &mut Client, key: &str, options: WatchOptions) -> Result<WatchStream, Failed> {
    let mut stream = client.watch(key, Some(options)).await?;
    let created = next(&mut stream).await?;
    ensure(created.created() && !created.canceled(), format!("not created: {created:?}"))?;
    Ok(stream)
}

/// Opens a watch of everything after now. "Now" is asked for: the node that serves the watch may be behind,
/// and would begin with what was before.
async fn open_now(client: &mut Client, key: &str, options: WatchOptions) -> Result<WatchStream, Failed> {
    let now = client.get(key, None).await?.header().ok_or("no header")?.revision();
    open(client, key, options.with_start_revision(now + 1)).await
}

/// The values (or "-" for deletions) of the next `count` events and their revisions.
async fn events(stream: &mut WatchStream, count: usize) -> Result<Vec<(String, i64)>, Failed> {
    let mut found = Vec::new();
    while found.len() < count {
        for event in next(stream).await?.events() {
            let kv = event.kv().ok_or("an event without a key")?;
            let value = if event.event_type() == EventType::Put { kv.value_str()? } else { "-" };
            found.push((value.to_owned(), kv.mod_revision()));
        }
    }
    Ok(found)
}

fn prefix() -> WatchOptions {
    WatchOptions::new().with_prefix()
}

async fn live_events(servers: Servers) -> Checked {
    let mut client = servers.client("live/").await?;
    let mut stream = open_now(&mut client, "live/", prefix()).await?;
    let first = client.put("live/a", "1", None).await?.header().ok_or("no header")?.revision();
    client.put("elsewhere", "x", None).await?;
    client.delete("live/a", None).await?;
    let expected = vec![("1".to_owned(), first), ("-".to_owned(), first + 2)];
    same("the events", events(&mut stream, 2).await?, expected)
}

/// W1-W3: in order, each once, none missing, while other clients write.
async fn many_events(servers: Servers) -> Checked {
    const COUNT: usize = 2000;
    let mut client = servers.client("stream/").await?;
    let mut stream = open_now(&mut client, "stream/", prefix()).await?;
    let writers: Vec<_> = (0..10)
        .map(|writer| {
            let mut client = client.kv_client();
            tokio::spawn(async move {
                for i in 0..COUNT / 10 {
                    client.put(format!("stream/{writer}"), i.to_string(), None).await?;
                }
                Ok::<(), etcd_client::Error>(())
            })
        })
        .collect();
    let seen = events(&mut stream, COUNT).await?;
    for writer in writers {
        writer.await??;
    }
    ensure(seen.windows(2).all(|pair| pair[0].1 < pair[1].1), "events are not in order")?;
    same("no event is missing or told twice", (seen.len(), seen[COUNT - 1].1 - seen[0].1), (COUNT, COUNT as i64 - 1))?;
    // From the past the same events come again.
    let mut again = open(&mut client, "stream/", prefix().with_start_revision(seen[0].1)).await?;
    ensure(events(&mut again, COUNT).await? == seen, "history tells other events than were told live")
}

async fn large_events(servers: Servers) -> Checked {
    let mut client = servers.client("heavy/").await?;
    let mut stream = open_now(&mut client, "heavy/", prefix()).await?;
    for value in ["a", "b", "c", "d", "e"] {
        client.put("heavy/k", value.repeat(1024 * 1024), None).await?;
    }
    for (value, _) in events(&mut stream, 5).await? {
        same("the length", value.len(), 1024 * 1024)?;
    }
    client.delete("heavy/", Some(DeleteOptions::new().with_prefix())).await?;
    Ok(())
}

async fn history_then_live(servers: Servers) -> Checked {
    let mut client = servers.client("history/").await?;
    let first = client.put("history/k", "0", None).await?.header().ok_or("no header")?.revision();
    for i in 1..5 {
        client.put("history/k", i.to_string(), None).await?;
    }
    let mut stream = open(&mut client, "history/k", WatchOptions::new().with_start_revision(first + 2)).await?;
    client.put("history/k", "5", None).await?;
    let expected: Vec<_> = (2..=5).map(|i| (i.to_string(), first + i)).collect();
    same("from the third on", events(&mut stream, 4).await?, expected)
}

/// Clients drop events of a watch that they were not told of yet, and never ask again. It takes luck to
/// meet such a server at it, hence the many tries.
async fn created_comes_first(servers: Servers) -> Checked {
    let mut client = servers.client("first/").await?;
    let revision = client.put("first/k", "v", None).await?.header().ok_or("no header")?.revision();
    let opening: Vec<_> = (0..16)
        .map(|number| {
            let servers = servers.clone();
            tokio::spawn(async move {
                let mut client = servers.client_at(number).await.map_err(|error| error.to_string())?;
                for _ in 0..100 {
                    let options = WatchOptions::new().with_start_revision(revision);
                    let mut stream = open(&mut client, "first/k", options).await.map_err(|error| error.to_string())?;
                    events(&mut stream, 1).await.map_err(|error| error.to_string())?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for opened in opening {
        opened.await??;
    }
    Ok(())
}

async fn previous_values(servers: Servers) -> Checked {
    let mut client = servers.client("previous/").await?;
    client.put("previous/k", "old", None).await?;
    let mut with = open_now(&mut client, "previous/k", WatchOptions::new().with_prev_key()).await?;
    let mut without = open_now(&mut client, "previous/k", WatchOptions::new()).await?;
    client.put("previous/k", "new", None).await?;
    let told = next(&mut with).await?;
    let previous = told.events().first().and_then(|event| event.prev_kv()).map(|kv| kv.value());
    same("asked for", previous, Some(&b"old"[..]))?;
    let told = next(&mut without).await?;
    ensure(told.events().first().is_some_and(|event| event.prev_kv().is_none()), "told unasked")
}

async fn filters(servers: Servers) -> Checked {
    let mut client = servers.client("filter/").await?;
    let without = |filter: WatchFilterType| prefix().with_filters(vec![filter]);
    let mut deletes = open_now(&mut client, "filter/", without(WatchFilterType::NoPut)).await?;
    let mut puts = open_now(&mut client, "filter/", without(WatchFilterType::NoDelete)).await?;
    client.put("filter/k", "1", None).await?;
    client.delete("filter/k", None).await?;
    client.put("filter/k", "2", None).await?;
    client.delete("filter/k", None).await?;
    let values = |events: Vec<(String, i64)>| events.into_iter().map(|event| event.0).collect::<Vec<_>>();
    same("deletes only", values(events(&mut deletes, 2).await?), vec!["-".to_owned(), "-".to_owned()])?;
    same("puts only", values(events(&mut puts, 2).await?), vec!["1".to_owned(), "2".to_owned()])
}

/// W4: what one transaction changed arrives together.
async fn one_response(servers: Servers) -> Checked {
    use etcd_client::{Txn, TxnOp};
    let mut client = servers.client("atomic/").await?;
    let mut stream = open_now(&mut client, "atomic/", prefix()).await?;
    let puts: Vec<TxnOp> = (0..100).rev().map(|i| TxnOp::put(format!("atomic/{i:02}"), "v", None)).collect();
    client.txn(Txn::new().and_then(puts)).await?;
    let told = next(&mut stream).await?;
    let keys: Vec<&str> = told.events().iter().filter_map(|event| event.kv()?.key_str().ok()).collect();
    same("all at once, in the order written", (keys.len(), keys[0], keys[99]), (100, "atomic/99", "atomic/00"))
}

async fn several_watchers(servers: Servers) -> Checked {
    let mut client = servers.client("several/").await?;
    let mut stream = open_now(&mut client, "several/a", WatchOptions::new()).await?;
    stream.watch("several/b", Some(WatchOptions::new())).await?;
    same("the second id", next(&mut stream).await?.watch_id(), 1)?;
    stream.watch("several/c", Some(WatchOptions::new().with_watch_id(77))).await?;
    same("a chosen id", next(&mut stream).await?.watch_id(), 77)?;
    client.put("several/c", "1", None).await?;
    same("whose event", next(&mut stream).await?.watch_id(), 77)?;
    stream.watch("several/d", Some(WatchOptions::new().with_watch_id(77))).await?;
    let refused = next(&mut stream).await?;
    same("an id in use", (refused.watch_id(), refused.canceled()), (-1, true))?;
    stream.cancel(77).await?;
    let canceled = next(&mut stream).await?;
    same("cancelled", (canceled.watch_id(), canceled.canceled()), (77, true))?;
    client.put("several/c", "2", None).await?;
    client.put("several/b", "3", None).await?;
    same("after that only others", next(&mut stream).await?.watch_id(), 1)
}

/// W6: told progress means that everything up to there was told.
async fn progress(servers: Servers) -> Checked {
    let mut client = servers.client("progress/").await?;
    let mut stream = open_now(&mut client, "progress/", prefix()).await?;
    let mut last = 0;
    for i in 0..5 {
        last = client.put("progress/k", i.to_string(), None).await?.header().ok_or("no header")?.revision();
    }
    let mut seen = 0;
    // A server may leave a question unanswered while it still has events to tell: it is asked again.
    loop {
        stream.request_progress().await?;
        let Ok(told) = tokio::time::timeout(std::time::Duration::from_millis(500), next(&mut stream)).await else {
            continue;
        };
        let told = told?;
        seen = told.events().iter().filter_map(|event| event.kv()).map(|kv| kv.mod_revision()).max().unwrap_or(seen);
        if told.events().is_empty() {
            let revision = told.header().ok_or("no header")?.revision();
            ensure(seen >= revision.min(last), format!("progress {revision} overtook events, seen is {seen}"))?;
            if revision >= last {
                return Ok(());
            }
        }
    }
}

async fn compacted_start(servers: Servers) -> Checked {
    let mut client = servers.client("gone/").await?;
    let first = client.put("gone/k", "1", None).await?.header().ok_or("no header")?.revision();
    let second = client.put("gone/k", "2", None).await?.header().ok_or("no header")?.revision();
    client.compact(second, None).await?;
    // A watch is served from what its member has applied, here as in etcd: the read makes sure that this one has come
    // as far as the compaction.
    let mut watcher = servers.client_at(1).await?;
    watcher.get("gone/k", None).await?;
    let mut stream = open(&mut watcher, "gone/k", WatchOptions::new().with_start_revision(first)).await?;
    let told = next(&mut stream).await?;
    same("told where to go on", (told.canceled(), told.compact_revision()), (true, second))
}

async fn refused_watches(servers: Servers) -> Checked {
    let mut client = servers.client("refuse/").await?;
    let mut stream = client.watch("b", Some(WatchOptions::new().with_range("a"))).await?;
    let told = next(&mut stream).await?;
    same("an empty range", (told.created(), told.canceled(), told.watch_id()), (true, true, -1))
}

async fn future_start(servers: Servers) -> Checked {
    let mut client = servers.client("future/").await?;
    let now = client.put("future/k", "now", None).await?.header().ok_or("no header")?.revision();
    let mut stream = open(&mut client, "future/k", WatchOptions::new().with_start_revision(now + 3)).await?;
    for i in 1..=4 {
        client.put("future/k", i.to_string(), None).await?;
    }
    let expected = vec![("3".to_owned(), now + 3), ("4".to_owned(), now + 4)];
    same("the events", events(&mut stream, 2).await?, expected)
}
