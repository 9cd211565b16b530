//! `tidelock lease grant|revoke|keep-alive|ttl|list`.

use std::time::Duration;

use futures_util::stream;
use serde_json::json;
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;

use super::connection::{self, Connection, read_failure, write_failure};
use crate::cli::{ClientArgs, LeaseAction, LeaseArgs, Output};
use crate::failure::Failure;
use crate::output::{Printer, key_json, lease_text};

/// A lease is renewed this many times within its life, so that one lost renewal does not end it.
const RENEWALS_PER_TTL: u32 = 3;

pub(crate) async fn lease(args: &LeaseArgs) -> Result<(), Failure> {
    let mut client = connection::leases(&args.client).await?;
    let printer = Printer::new(args.client.output);
    match args.action {
        LeaseAction::Grant { ttl, id } => grant(&mut client, &printer, ttl, id).await,
        LeaseAction::Revoke { id } => revoke(&mut client, &printer, id).await,
        LeaseAction::KeepAlive { id, once } => keep_alive(&args.client, &printer, id, once).await,
        LeaseAction::Ttl { id, keys } => ttl(&mut client, &printer, id, keys).await,
        LeaseAction::List => list(&mut client, &printer).await,
    }
}

async fn grant(client: &mut LeaseClient<Connection>, printer: &Printer, ttl: i64, id: i64) -> Result<(), Failure> {
    let request = pb::LeaseGrantRequest { ttl, id };
    let answer = client.lease_grant(request).await.map_err(|status| write_failure(&status))?.into_inner();
    let id = lease_text(answer.id);
    match printer.format {
        Output::Json => printer.json(&json!({ "id": id, "ttl": answer.ttl }))?,
        Output::Text => printer.line(&format!("lease {id} lives {} s unless renewed", answer.ttl))?,
    }
    Ok(())
}

async fn revoke(client: &mut LeaseClient<Connection>, printer: &Printer, id: i64) -> Result<(), Failure> {
    client.lease_revoke(pb::LeaseRevokeRequest { id }).await.map_err(|status| write_failure(&status))?;
    match printer.format {
        Output::Json => printer.json(&json!({ "id": lease_text(id), "revoked": true }))?,
        Output::Text => printer.line(&format!("lease {} ended", lease_text(id)))?,
    }
    Ok(())
}

/// Renews until stopped, over a new stream each time: a renewal is rare, and a node that went away
/// must not end the lease while others could take it.
async fn keep_alive(args: &ClientArgs, printer: &Printer, id: i64, once: bool) -> Result<(), Failure> {
    loop {
        let ttl = renew(args, id).await?;
        if ttl <= 0 {
            return Err(Failure::new(format!("lease {} does not exist (any more)", lease_text(id)))
                .hint("grant a new one with `tidelock lease grant SECONDS`"));
        }
        match printer.format {
            Output::Json => printer.json(&json!({ "id": lease_text(id), "ttl": ttl }))?,
            Output::Text => printer.line(&format!("lease {} renewed, lives {ttl} s", lease_text(id)))?,
        }
        if once {
            return Ok(());
        }
        let ttl_s = u64::try_from(ttl).unwrap_or(1);
        tokio::time::sleep(Duration::from_secs(ttl_s) / RENEWALS_PER_TTL).await;
    }
}

async fn renew(args: &ClientArgs, id: i64) -> Result<i64, Failure> {
    let mut client = connection::leases(args).await?;
    let request = stream::iter([pb::LeaseKeepAliveRequest { id }]);
    let mut answers = client.lease_keep_alive(request).await.map_err(|status| read_failure(&status))?.into_inner();
    let patience = Duration::from_millis(args.connection.timeout_ms);
    match tokio::time::timeout(patience, answers.message()).await {
        Ok(Ok(Some(answer))) => Ok(answer.ttl),
        Ok(Ok(None)) => Err(Failure::new("the node ended the stream without an answer").hint("retry")),
        Ok(Err(status)) => Err(read_failure(&status)),
        Err(_) => {
            Err(Failure::new(format!("no answer within {patience:?}")).hint("check `tidelock status`, then retry"))
        }
    }
}

async fn ttl(client: &mut LeaseClient<Connection>, printer: &Printer, id: i64, keys: bool) -> Result<(), Failure> {
    let request = pb::LeaseTimeToLiveRequest { id, keys };
    let answer = client.lease_time_to_live(request).await.map_err(|status| read_failure(&status))?.into_inner();
    if printer.format == Output::Json {
        let keys: Vec<_> = answer.keys.iter().map(|key| key_json(key)).collect();
        return Ok(printer.json(&json!({
            "id": lease_text(id),
            "ttl": answer.ttl,
            "granted_ttl": answer.granted_ttl,
            "keys": keys,
        }))?);
    }
    if answer.ttl < 0 {
        printer.line(&format!("lease {} does not exist (any more)", lease_text(id)))?;
        return Ok(());
    }
    printer.line(&format!("lease {} lives {} s of {} s", lease_text(id), answer.ttl, answer.granted_ttl))?;
    for key in &answer.keys {
        printer.bytes_line("", key)?;
    }
    Ok(())
}

async fn list(client: &mut LeaseClient<Connection>, printer: &Printer) -> Result<(), Failure> {
    let answer =
        client.lease_leases(pb::LeaseLeasesRequest {}).await.map_err(|status| read_failure(&status))?.into_inner();
    let ids: Vec<String> = answer.leases.iter().map(|lease| lease_text(lease.id)).collect();
    if printer.format == Output::Json {
        return Ok(printer.json(&json!({ "leases": ids }))?);
    }
    for id in ids {
        printer.line(&id)?;
    }
    Ok(())
}
