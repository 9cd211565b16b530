//! Transactions: compares of all forms, branches, nesting, refusals.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
};

use crate::{Checked, Runner, Servers, ensure, refused, same};

pub async fn checks(runner: &mut Runner) {
    runner.check("compares_of_all_forms", compares_of_all_forms).await;
    runner.check("compares_of_absent_keys", compares_of_absent_keys).await;
    runner.check("compares_of_ranges", compares_of_ranges).await;
    runner.check("branches_and_what_they_answer", branches).await;
    runner.check("nested_transactions", nested).await;
    runner.check("refused_transactions_change_nothing", refusals).await;
    runner.check("a_counter_loses_no_increment", counter).await;
}

async fn holds(client: &mut Client, compare: Compare) -> Result<bool, Error> {
    Ok(client.txn(Txn::new().when([compare])).await?.succeeded())
}

const OPS: [CompareOp; 4] = [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual];

async fn compares_of_all_forms(servers: Servers) -> Checked {
    let mut client = servers.client("compare/").await?;
    let lease = client.lease_grant(60, None).await?.id();
    client.put("compare/k", "m", None).await?;
    let put = client.put("compare/k", "m", Some(PutOptions::new().with_lease(lease))).await?;
    let modified = put.header().ok_or("no header")?.revision();
    let created = client.get("compare/k", None).await?.kvs()[0].create_revision();
    // For each target: made of a number that is one less, equal and one more than what is stored.
    type Form = Box<dyn Fn(CompareOp, i64) -> Compare + Send + Sync>;
    let forms: [(&str, Form); 5] = [
        ("version", Box::new(|op, by| Compare::version("compare/k", op, 2 + by))),
        ("create", Box::new(move |op, by| Compare::create_revision("compare/k", op, created + by))),
        ("mod", Box::new(move |op, by| Compare::mod_revision("compare/k", op, modified + by))),
        ("lease", Box::new(move |op, by| Compare::lease("compare/k", op, lease + by))),
        ("value", Box::new(|op, by| Compare::value("compare/k", op, ["l", "m", "n"][(by + 1) as usize]))),
    ];
    for (target, form) in &forms {
        for by in [-1, 0, 1] {
            let mut found = Vec::new();
            for op in OPS {
                found.push(holds(&mut client, form(op, by)).await?);
            }
            same(target, found, vec![by == 0, by < 0, by > 0, by != 0])?;
        }
    }
    client.lease_revoke(lease).await?;
    Ok(())
}

async fn compares_of_absent_keys(servers: Servers) -> Checked {
    let mut client = servers.client("absent/").await?;
    for op in OPS {
        let value = holds(&mut client, Compare::value("absent/k", op, "")).await?;
        ensure(!value, format!("a value compare ({op:?}) of an absent key holds"))?;
    }
    ensure(holds(&mut client, Compare::version("absent/k", CompareOp::Equal, 0)).await?, "version is not 0")?;
    ensure(holds(&mut client, Compare::create_revision("absent/k", CompareOp::Equal, 0)).await?, "created is not 0")?;
    ensure(holds(&mut client, Compare::mod_revision("absent/k", CompareOp::Less, 1)).await?, "modified is not 0")?;
    ensure(holds(&mut client, Compare::lease("absent/k", CompareOp::Equal, 0)).await?, "lease is not 0")
}

async fn compares_of_ranges(servers: Servers) -> Checked {
    let mut client = servers.client("ranges/").await?;
    client.put("ranges/a", "1", None).await?;
    client.put("ranges/b", "1", None).await?;
    let all = |op, value: &str| Compare::value("ranges/", op, value).with_prefix();
    ensure(holds(&mut client, all(CompareOp::Equal, "1")).await?, "all equal, and it does not hold")?;
    client.put("ranges/b", "2", None).await?;
    ensure(!holds(&mut client, all(CompareOp::Equal, "1")).await?, "one differs, and it holds")?;
    ensure(holds(&mut client, all(CompareOp::Greater, "0")).await?, "all are greater, and it does not hold")
}

async fn branches(servers: Servers) -> Checked {
    let mut client = servers.client("branch/").await?;
    client.put("branch/a", "1", None).await?;
    let txn = |expected: &str| {
        Txn::new()
            .when([Compare::value("branch/a", CompareOp::Equal, expected)])
            .and_then([
                TxnOp::put("branch/b", "then", Some(PutOptions::new().with_prev_key())),
                TxnOp::get("branch/", Some(GetOptions::new().with_prefix())),
                TxnOp::delete("branch/a", Some(DeleteOptions::new().with_prev_key())),
                TxnOp::get("branch/", Some(GetOptions::new().with_prefix().with_count_only())),
            ])
            .or_else([TxnOp::get("branch/a", None)])
    };
    let failed = client.txn(txn("0")).await?;
    let before = failed.header().ok_or("no header")?.revision();
    same("the other branch", (failed.succeeded(), failed.op_responses().len()), (false, 1))?;
    let done = client.txn(txn("1")).await?;
    let after = done.header().ok_or("no header")?.revision();
    same("one revision for all of it", (done.succeeded(), after), (true, before + 1))?;
    match &done.op_responses()[..] {
        [TxnOpResponse::Put(put), TxnOpResponse::Get(two), TxnOpResponse::Delete(gone), TxnOpResponse::Get(one)] => {
            same("no value before", put.prev_key().is_none(), true)?;
            let found = two.kvs().iter().map(|kv| (kv.value(), kv.mod_revision())).collect::<Vec<_>>();
            same("ops see earlier ones", found[1], (&b"then"[..], after))?;
            same("deleted", (gone.deleted(), gone.prev_kvs()[0].value()), (1, &b"1"[..]))?;
            same("then one is left", one.count(), 1)
        }
        other => Err(format!("the answers do not fit the operations: {other:?}").into()),
    }
}

async fn nested(servers: Servers) -> Checked {
    let mut client = servers.client("nested/").await?;
    // The inner compare is judged before anything is written, though the outer branch writes its key first.
    let inner = Txn::new()
        .when([Compare::version("nested/a", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("nested/inner", "then", None)])
        .or_else([TxnOp::put("nested/inner", "else", None)]);
    let outer = Txn::new().and_then([TxnOp::put("nested/a", "1", None), TxnOp::txn(inner)]);
    let done = client.txn(outer).await?;
    let Some(TxnOpResponse::Txn(inner)) = done.op_responses().pop() else { return Err("no nested answer".into()) };
    same("the inner branch", inner.succeeded(), true)?;
    same("what it wrote", client.get("nested/inner", None).await?.kvs()[0].value(), b"then")
}

async fn refusals(servers: Servers) -> Checked {
    let mut client = servers.client("refused/").await?;
    let put = |key: &str| TxnOp::put(key, "v", None);
    let duplicate = "etcdserver: duplicate key given in txn request";
    refused(client.txn(Txn::new().and_then([put("refused/k"), put("refused/k")])).await, duplicate)?;
    let overlap = TxnOp::delete("refused/", Some(DeleteOptions::new().with_prefix()));
    refused(client.txn(Txn::new().and_then([put("refused/k"), overlap])).await, duplicate)?;
    let many: Vec<TxnOp> = (0..129).map(|i| put(&format!("refused/{i}"))).collect();
    refused(client.txn(Txn::new().and_then(many)).await, "etcdserver: too many operations in txn request")?;
    let lease = TxnOp::put("refused/leased", "v", Some(PutOptions::new().with_lease(987_654)));
    let missing = client.txn(Txn::new().and_then([put("refused/k"), lease])).await;
    refused(missing, "etcdserver: requested lease not found")?;
    let future = TxnOp::get("refused/k", Some(GetOptions::new().with_revision(i64::MAX)));
    let future = client.txn(Txn::new().and_then([put("refused/k"), future])).await;
    refused(future, "etcdserver: mvcc: required revision is a future revision")?;
    let found = client.get("refused/", Some(GetOptions::new().with_prefix())).await?;
    let found: Vec<&[u8]> = found.kvs().iter().map(|kv| kv.key()).collect();
    same("keys written by refused transactions", found, vec![])
}

/// Compare-and-swap from several clients at once: the sum must be what was added.
async fn counter(servers: Servers) -> Checked {
    const CLIENTS: usize = 4;
    const INCREMENTS: usize = 20;
    let mut client = servers.client("counter/").await?;
    client.put("counter/n", "0", None).await?;
    let mut adding = Vec::new();
    for number in 0..CLIENTS {
        let mut client = servers.client_at(number).await?;
        adding.push(tokio::spawn(async move {
            for _ in 0..INCREMENTS {
                while !add_one(&mut client).await? {}
            }
            Ok::<(), Error>(())
        }));
    }
    for added in adding {
        added.await??;
    }
    let sum = client.get("counter/n", None).await?;
    same("the sum", sum.kvs()[0].value_str()?, (CLIENTS * INCREMENTS).to_string().as_str())
}

async fn add_one(client: &mut Client) -> Result<bool, Error> {
    let found = client.get("counter/n", None).await?;
    let kv = &found.kvs()[0];
    let next = kv.value_str()?.parse::<u64>().unwrap_or(0) + 1;
    let unchanged = Compare::mod_revision("counter/n", CompareOp::Equal, kv.mod_revision());
    let txn = Txn::new().when([unchanged]).and_then([TxnOp::put("counter/n", next.to_string(), None)]);
    Ok(client.txn(txn).await?.succeeded())
}
