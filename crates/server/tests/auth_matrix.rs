//! A1: who may do what. Every call, by every kind of user, over every shape of range, with and without the space
//! alarm (H18: it must not open anything); what must come out is worked out by a model of a few lines that knows
//! nothing of intervals.
//!
//! The model itself is checked against a real etcd, with users and keys that this makes there:
//!
//!     AUTH_MATRIX_ENDPOINT=http://127.0.0.1:2379 cargo test -p tidelock --test auth_matrix
//!
//! etcd 3.7.3 differs in two ways, which are left out of account there: out of space it says so to everybody, without
//! asking who they are, and it lets nobody ask about the user without a name.

#![allow(clippy::unwrap_used)]

#[path = "auth_matrix/calls.rs"]
mod calls;
#[path = "auth_matrix/model.rs"]
mod model;
mod support;

use std::collections::BTreeMap;

use calls::{Client, PLAIN_CALLS, RANGE_CALLS, SINGLE_CALLS};
use model::{CALLERS, Caller, KEYS, RANGES, Verdict};
use support::Cluster;
use tidelock_etcd_api::etcdserverpb as pb;

/// How the server answers every case in one state of the cluster: how many, and those that were wrong.
async fn run(client: &Client, tokens: &BTreeMap<&str, String>, state: &str, wrong: &mut Vec<String>) -> usize {
    let mut cases = 0;
    let mut judge = |what: String, expected: Verdict, found: Verdict| {
        cases += 1;
        if expected != found {
            wrong.push(format!("{state}: {what}: expected {expected:?}, found {found:?}"));
        }
    };
    for caller in CALLERS {
        let token = tokens.get(caller.name).map(String::as_str);
        // Before anything is deleted: these are about leases and what they own.
        for call in SINGLE_CALLS {
            for key in KEYS {
                let found = (call.run)(client, token, key).await;
                judge(format!("{} of {key:?} by {}", call.name, caller.name), call.verdict(caller, key), found);
            }
        }
        for call in PLAIN_CALLS {
            let found = (call.run)(client, token, caller).await;
            judge(format!("{} by {}", call.name, caller.name), (call.verdict)(caller), found);
        }
    }
    for caller in CALLERS {
        let token = tokens.get(caller.name).map(String::as_str);
        for call in RANGE_CALLS {
            for range in RANGES {
                let found = (call.run)(client, token, *range).await;
                judge(format!("{} of {range:?} by {}", call.name, caller.name), call.verdict(caller, *range), found);
            }
        }
    }
    cases
}

async fn tokens(client: &Client) -> BTreeMap<&'static str, String> {
    let mut tokens = BTreeMap::new();
    for Caller { name, .. } in CALLERS.iter().filter(|caller| caller.is_known()) {
        tokens.insert(*name, client.come_in(name).await);
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a1_every_call_needs_exactly_what_it_touches() {
    let elsewhere = std::env::var("AUTH_MATRIX_ENDPOINT").ok();
    let cluster = if elsewhere.is_none() { Some(Cluster::start(1)) } else { None };
    let url = elsewhere.unwrap_or_else(|| cluster.as_ref().unwrap().nodes[0].client_url());
    let client = Client::connect(&url).await;
    client.found().await;
    let tokens = tokens(&client).await;
    let root = tokens["root"].clone();

    let mut wrong: Vec<String> = Vec::new();
    client.fill(&root).await;
    let mut cases = run(&client, &tokens, "healthy", &mut wrong).await;
    client.fill(&root).await;
    client.alarm(&root, pb::alarm_request::AlarmAction::Activate).await;
    cases += run(&client, &tokens, "out of space", &mut wrong).await;
    client.alarm(&root, pb::alarm_request::AlarmAction::Deactivate).await;

    if cluster.is_none() {
        let of_etcd = |text: &String| {
            text.ends_with("found Allowed") && (text.starts_with("out of space: put") || text.contains("oneself by :"))
        };
        wrong.retain(|text| !of_etcd(text));
    }
    println!("{cases} cases");
    assert!(cases > 4_500, "only {cases} cases");
    let shown: Vec<&String> = wrong.iter().take(40).collect();
    assert!(wrong.is_empty(), "{} of {cases} cases are wrong: {shown:#?}", wrong.len());
}
