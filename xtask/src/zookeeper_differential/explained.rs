//! The differences that are meant or ZooKeeper's own, each as narrow as it can be put, with the reason.
//!
//! A rule makes the two sides alike where its reason holds and leaves everything else as it is. It is tried only when
//! they differ, and counted when all that were used made them equal. What a rule lets pass must be in
//! `docs/compatibility/zookeeper.md`, or be a matter of chance in ZooKeeper that is told here.
//!
//! That a refused write takes a zxid with ZooKeeper and none with us needs no rule: zxids are compared by the
//! operation that made them (see `masking.rs`).

use super::answer::{Field, Item, Value};
use super::call::Call;
use super::observed::{ASKED, BEFORE, Observed};

/// What was done: the request, or none where a session came back.
pub(super) type Done<'a> = Option<&'a Call>;

/// The error of what a quota refuses.
const QUOTA_EXCEEDED: i64 = -125;

/// A difference with a reason.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) reason: &'static str,
    /// Makes (ours, theirs) alike as far as the reason goes.
    apply: fn(Done<'_>, &mut Observed, &mut Observed),
}

/// All of them.
pub(super) const RULES: [Rule; 13] = [
    Rule {
        name: "names in another order",
        reason: "ZooKeeper lists children and ephemerals in the order of a hash table; ours are sorted",
        apply: order_of_names,
    },
    Rule {
        name: "whoAmI: in another order",
        reason: "ZooKeeper keeps them in a hash table; ours come in the order they were proved in",
        apply: order_of_identities,
    },
    Rule {
        name: "getACL: whom an entry \"auth\" stood for, in another order",
        reason: "ZooKeeper keeps them in a hash table; the order of entries gives and takes no rights",
        apply: order_of_entries,
    },
    Rule {
        name: "a session again: its connection before was not ended",
        reason: "a race in ZooKeeper: the end of a still older one makes it forget which is the session's",
        apply: forgotten_connection,
    },
    Rule {
        name: "getAllChildrenNumber: of the empty path",
        reason: "taken for the root on both sides; ZooKeeper counts the root itself, too",
        apply: descendants_of_the_empty_path,
    },
    Rule {
        name: "closeSession: which of its znodes goes first",
        reason: "all at one zxid, with ZooKeeper in the order of a hash table",
        apply: order_of_deletions,
    },
    Rule {
        name: "header zxid of a reply that shows no state",
        reason: "meant: what this connection was told; ZooKeeper tells the newest there is",
        apply: header_of_plain_replies,
    },
    Rule {
        name: "a multi that changes nothing takes no zxid",
        reason: "meant: nothing was changed at it",
        apply: multi_without_change,
    },
    Rule {
        name: "an operation that does not exist",
        reason: "meant: refused with -6, and the connection goes on",
        apply: unknown_operation,
    },
    Rule {
        name: "a wrong password",
        reason: "meant: checked before anything is disturbed; ZooKeeper first ends the session's connection",
        apply: wrong_password,
    },
    Rule {
        name: "multi: a quota that its own operations bring near",
        reason: "meant: in a multi every operation counts for those after it; ZooKeeper judges all by what was before",
        apply: quota_in_multi,
    },
    Rule {
        name: "deleteContainer: refused",
        reason: "meant: ZooKeeper deletes for whoever asks, whatever the list of rights says",
        apply: deleted_container,
    },
    Rule {
        name: "/zookeeper/config of one server",
        reason: "meant: lists it, so that clients find its address; a single ZooKeeper leaves it empty",
        apply: config_of_one_server,
    },
];

/// Each rule, for what was asked.
pub(super) fn rules(done: Done<'_>) -> impl Iterator<Item = (&'static str, impl FnOnce(&mut Observed, &mut Observed))> {
    RULES.iter().map(move |rule| {
        (rule.name, move |ours: &mut Observed, theirs: &mut Observed| (rule.apply)(done, ours, theirs))
    })
}

fn order_of_names(_: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let (Some(Item::Reply { fields: ours, .. }), Some(Item::Reply { fields: theirs, .. })) =
        (ours.reply_mut(), theirs.reply_mut())
    else {
        return;
    };
    for field in ours.iter_mut().chain(theirs) {
        if let Value::Names(Some(names)) = &mut field.value {
            names.sort();
        }
    }
}

fn order_of_identities(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    if done != Some(&Call::WhoAmI) {
        return;
    }
    for side in [ours, theirs] {
        if let Some(Item::Reply { fields, .. }) = side.reply_mut() {
            let mut values: Vec<Value> = fields.iter().map(|field| field.value.clone()).collect();
            values.sort_by_key(|value| format!("{value:?}"));
            fields.iter_mut().zip(values).for_each(|(field, value)| field.value = value);
        }
    }
}

fn order_of_entries(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    if !matches!(done, Some(Call::GetAcl { .. })) {
        return;
    }
    // One entry became several with the same rights, side by side; those may change places.
    let rights = |field: &Field| match &field.value {
        Value::Text(Some(entry)) => entry.split(':').next().map(ToString::to_string),
        _ => None,
    };
    for side in [ours, theirs] {
        let Some(Item::Reply { fields, .. }) = side.reply_mut() else { return };
        for run in fields.chunk_by_mut(|one, next| rights(one).is_some() && rights(one) == rights(next)) {
            let mut values: Vec<Value> = run.iter().map(|field| field.value.clone()).collect();
            values.sort_by_key(|value| format!("{value:?}"));
            run.iter_mut().zip(values).for_each(|(field, value)| field.value = value);
        }
    }
}

fn forgotten_connection(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let before = |side: &Observed| side.0.get(BEFORE).cloned().unwrap_or_default();
    if done.is_none() && before(ours) == [Item::Closed] && before(theirs) == [Item::Silence] {
        theirs.0.insert(BEFORE.to_string(), before(ours));
    }
}

fn descendants_of_the_empty_path(done: Done<'_>, ours: &mut Observed, _: &mut Observed) {
    if matches!(done, Some(Call::AllChildren { path }) if path.is_empty())
        && let Some(Item::Reply { fields, .. }) = ours.reply_mut()
        && let Some(Field { value: Value::Number(count), .. }) = fields.first_mut()
    {
        *count += 1;
    }
}

fn order_of_deletions(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    if done != Some(&Call::CloseSession) {
        return;
    }
    for items in ours.0.values_mut().chain(theirs.0.values_mut()) {
        // Events stand before replies, here as there; only events change places.
        let events = items.iter().take_while(|item| matches!(item, Item::Event { .. })).count();
        items[..events].sort_by_key(|item| format!("{item:?}"));
    }
}

fn shows_no_state(call: &Call, error: i32) -> bool {
    match call {
        Call::Ping | Call::WhoAmI | Call::Check { .. } | Call::Raw { .. } => true,
        // Refused before anybody looked at the tree.
        Call::Create { .. } | Call::Multi(_) => error != 0,
        _ => error == -5 || error == -8,
    }
}

fn header_of_plain_replies(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let (Some(call), Some(Item::Reply { error, zxid, .. }), Some(Item::Reply { zxid: their, .. })) =
        (done, ours.reply_mut(), theirs.reply_mut())
    else {
        return;
    };
    if shows_no_state(call, *error) {
        their.clone_from(zxid);
    }
}

fn multi_without_change(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let Some(Call::Multi(calls)) = done else { return };
    if calls.iter().any(|call| !matches!(call, Call::Check { .. })) {
        return;
    }
    for side in [ours, theirs] {
        if let Some(Item::Reply { fields, .. }) = side.reply_mut() {
            fields.retain(|field| field.name != "moved");
        }
    }
}

fn unknown_operation(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let refused = matches!(ours.reply(), Some(Item::Reply { error: -6, .. }));
    let Some(row) = theirs.0.get_mut(ASKED) else { return };
    // A check exists only inside a multi.
    if matches!(done, Some(Call::Raw { .. } | Call::Check { .. })) && refused && row.last() == Some(&Item::Closed) {
        row.pop();
    }
}

fn wrong_password(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let refused = matches!(ours.0.get(ASKED).map(Vec::as_slice), Some([Item::Greeting { timeout: 0, .. }]));
    if done.is_none()
        && refused
        && !ours.0.contains_key(BEFORE)
        && theirs.0.get(BEFORE).is_some_and(|row| *row == [Item::Closed])
    {
        theirs.0.remove(BEFORE);
    }
}

fn quota_in_multi(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let exceeded = |side: &Observed| match side.reply() {
        Some(Item::Reply { fields, .. }) => {
            let error = |field: &Field| field.name.ends_with(".error") && field.value == Value::Number(QUOTA_EXCEEDED);
            fields.iter().any(error)
        }
        _ => false,
    };
    // Operations above the one that was refused make the difference; a multi of one has none.
    if matches!(done, Some(Call::Multi(calls)) if calls.len() > 1) && exceeded(ours) != exceeded(theirs) {
        ours.clone_from(theirs);
    }
}

fn deleted_container(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    let Some(Call::DeleteContainer { .. }) = done else { return };
    if matches!(ours.reply(), Some(Item::Reply { error: -6, .. }))
        && let (Some(ours), Some(theirs @ Item::Reply { error: -101, .. })) = (ours.reply_mut(), theirs.reply())
    {
        ours.clone_from(theirs);
    }
}

fn config_of_one_server(done: Done<'_>, ours: &mut Observed, theirs: &mut Observed) {
    const CONFIG: &str = "/zookeeper/config";
    // What it holds, and what follows from its having been written.
    const FOLLOWS: [&str; 5] = ["data", "dataLength", "mtime", "mzxid", "version"];
    if !done.is_some_and(|call| format!("{call:?}").contains(CONFIG)) {
        return;
    }
    let told = theirs.0.get(ASKED).cloned().unwrap_or_default();
    if let (Some(Call::SetWatches { .. } | Call::SetWatches2 { .. }), Some(ours)) = (done, ours.0.get_mut(ASKED)) {
        let of_config = |item: &Item| matches!(item, Item::Event { path: Some(path), .. } if path == CONFIG);
        ours.retain(|item| !of_config(item) || told.contains(item));
    }
    let (Some(Item::Reply { fields: ours, .. }), Some(Item::Reply { fields: theirs, .. })) =
        (ours.reply_mut(), theirs.reply_mut())
    else {
        return;
    };
    let empty = [Value::Data(Some(Vec::new())), Value::Number(0), Value::Masked("0".to_string())];
    for (our, their) in ours.iter_mut().zip(theirs) {
        let name = our.name.rsplit('.').next().unwrap_or_default();
        if our.name == their.name && FOLLOWS.contains(&name) && empty.contains(&their.value) {
            our.value = their.value.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::Hits;

    fn reply(names: &[&str]) -> Observed {
        let names = Value::Names(Some(names.iter().map(ToString::to_string).collect()));
        let fields = vec![Field { name: "children".to_string(), value: names }];
        let mut observed = Observed::default();
        observed.add(ASKED, vec![Item::Reply { xid: 1, error: 0, zxid: Value::Masked("of 1".to_string()), fields }]);
        observed
    }

    /// Too wide a rule would let a missing child pass.
    #[test]
    fn children_may_change_places_and_nothing_else() {
        let call = Call::GetChildren { path: "/".to_string(), watch: false };
        let explains =
            |one: &[&str], other: &[&str]| Hits::default().explain((&reply(one), &reply(other)), rules(Some(&call)));
        assert!(explains(&["a", "b"], &["b", "a"]));
        assert!(!explains(&["a", "b"], &["a"]));
        assert!(!explains(&["a", "b"], &["a", "c"]));
    }

    /// The order of events is what clients build on; only the end of a session leaves it open.
    #[test]
    fn events_may_change_places_only_when_a_session_ends() {
        let event = |path: &str| Item::Event {
            kind: 2,
            state: 3,
            path: Some(path.to_string()),
            zxid: Value::Masked("of 2".to_string()),
        };
        let side = |paths: [&str; 2]| {
            let mut observed = Observed::default();
            observed.add("session 1", paths.iter().map(|path| event(path)).collect());
            observed
        };
        let explains =
            |call: &Call| Hits::default().explain((&side(["/a", "/b"]), &side(["/b", "/a"])), rules(Some(call)));
        assert!(explains(&Call::CloseSession));
        assert!(!explains(&Call::Multi(Vec::new())));
    }
}
