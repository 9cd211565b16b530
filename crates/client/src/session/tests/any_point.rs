//! Whatever happens in whatever order: what is not wanted any more leaves nothing behind, and who waits is let in.

use proptest::prelude::*;

use super::fake::NAME;
use super::{Pair, Ticket, acquire_of};

/// The elections. Several: what ends all at once is granted all at once, under one number.
const NAMES: [&str; 3] = [NAME, "m", "n"];

fn name() -> impl Strategy<Value = usize> {
    0..NAMES.len()
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Abandon(usize),
    DropHeld(usize),
    ToCluster,
    ToClient,
    Disconnect,
    Connect,
    StrangerEnters(usize),
    StrangerLeaves(usize),
    StrangerNamesUs(usize),
    StrangersDie,
    Unavailable,
    Overloaded,
    Compact,
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => name().prop_map(Step::Ask),
        3 => any::<prop::sample::Index>().prop_map(|index| Step::Abandon(index.index(1 << 16))),
        2 => any::<prop::sample::Index>().prop_map(|index| Step::DropHeld(index.index(1 << 16))),
        8 => Just(Step::ToCluster),
        8 => Just(Step::ToClient),
        1 => Just(Step::Disconnect),
        3 => Just(Step::Connect),
        3 => name().prop_map(Step::StrangerEnters),
        2 => name().prop_map(Step::StrangerLeaves),
        1 => name().prop_map(Step::StrangerNamesUs),
        1 => Just(Step::StrangersDie),
        1 => Just(Step::Unavailable),
        1 => Just(Step::Overloaded),
        1 => Just(Step::Compact),
        2 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 0..120)
}

/// Does all this, and tells which tickets are still wanted.
fn carry_out(pair: &mut Pair, steps: Vec<Step>) -> Vec<Ticket> {
    let (mut next, mut wanted): (Ticket, Vec<Ticket>) = (1, Vec::new());
    for step in steps {
        match step {
            Step::Ask(name) => {
                pair.ask(next, acquire_of(NAMES[name]));
                wanted.push(next);
                next += 1;
            }
            Step::Abandon(which) if !wanted.is_empty() => {
                let ticket = wanted.swap_remove(which % wanted.len());
                // Whoever has its answer holds it and drops that instead.
                if !pair.told.contains(&ticket) {
                    pair.abandon(ticket);
                }
            }
            Step::DropHeld(which) if !pair.held.is_empty() => pair.drop_held(which % pair.held.len()),
            Step::ToCluster => pair.carry_to_cluster(),
            Step::ToClient => pair.carry_to_client(),
            Step::Disconnect => pair.disconnect(),
            Step::Connect => pair.connect(),
            Step::StrangerEnters(name) => pair.cluster.stranger_enters(NAMES[name]),
            Step::StrangerLeaves(name) => pair.cluster.stranger_leaves(NAMES[name]),
            Step::StrangerNamesUs(name) => pair.cluster.stranger_names_us(NAMES[name]),
            Step::StrangersDie => pair.cluster.strangers_die(),
            Step::Unavailable => pair.cluster.unavailable += 1,
            Step::Overloaded => pair.cluster.overloaded += 1,
            Step::Compact => pair.cluster.compact(),
            Step::Abandon(_) | Step::DropHeld(_) => {}
            Step::Pass => pair.pass_a_moment(),
        }
        assert!(pair.cluster.holders() <= 1, "K2");
    }
    (pair.cluster.unavailable, pair.cluster.overloaded) = (0, 0);
    wanted
}

/// Named to follow the leader before it was told its place, with the history gone: what the session holds names the leader's
/// place alone, and the answer, when it comes, the one that is gone. Neither says that they are the same.
#[test]
fn a_place_that_moved_before_its_answer_came_is_found() {
    let mut pair = Pair::new();
    let before =
        vec![Step::Connect, Step::ToCluster, Step::StrangerEnters(0), Step::Ask(0), Step::ToClient, Step::Ask(0)];
    let away = vec![Step::ToCluster, Step::Disconnect, Step::StrangerNamesUs(0), Step::Unavailable, Step::Compact];
    let back = vec![Step::Connect, Step::ToCluster, Step::ToCluster];
    let wanted = carry_out(&mut pair, [before, away, back].concat());
    for _ in 0..2 * wanted.len() + 4 {
        pair.settle();
        while !pair.held.is_empty() {
            pair.drop_held(0);
        }
        pair.pass_a_moment();
    }
    assert_eq!(&pair.failed, &[]);
    assert!(wanted.iter().all(|ticket| pair.told.contains(ticket)), "{:?}", pair.told);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is dropped, at whatever point, over whatever connections: when nobody wants anything any more, nothing
    /// of this session is in the queue (K2, K5), each request happened once (H25), and each ticket was told once.
    #[test]
    fn nothing_is_left_behind_by_who_drops_at_any_point(steps in steps()) {
        let mut pair = Pair::new();
        let wanted = carry_out(&mut pair, steps);
        for ticket in wanted.into_iter().filter(|ticket| !pair.told.contains(ticket)).collect::<Vec<_>>() {
            pair.abandon(ticket);
        }
        pair.connect();
        for _ in 0..4 {
            pair.settle();
            while !pair.held.is_empty() {
                pair.drop_held(0);
            }
            pair.pass_a_moment();
        }
        pair.settle();
        prop_assert_eq!(&pair.failed, &[]);
        prop_assert_eq!(pair.cluster.ours(), 0);
        prop_assert!(pair.session.requests.is_empty());
        prop_assert!(pair.session.early.is_empty() && pair.session.places.is_empty());
    }
    /// Whoever still wants a place has its turn in the end, whatever was lost or came late: a grant that nobody hears of
    /// stops the whole queue.
    #[test]
    fn who_goes_on_waiting_is_let_in_in_the_end(steps in steps()) {
        let mut pair = Pair::new();
        let wanted = carry_out(&mut pair, steps);
        pair.connect();
        while pair.cluster.strangers() > 0 {
            NAMES.iter().for_each(|name| pair.cluster.stranger_leaves(name));
        }
        for _ in 0..2 * wanted.len() + 4 {
            pair.settle();
            while !pair.held.is_empty() {
                pair.drop_held(0);
            }
            pair.pass_a_moment();
        }
        prop_assert_eq!(&pair.failed, &[]);
        for ticket in wanted {
            prop_assert!(pair.told.contains(&ticket), "ticket {} waits for ever", ticket);
        }
    }
}
