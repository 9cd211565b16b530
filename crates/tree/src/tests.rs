//! The tree against the standard library's ordered map, and how full its nodes are.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Sorted by bytes: numbers as digits behind a beginning that most share, of different lengths.
struct ByDigits;
impl Order for ByDigits {
    type Item = (Vec<u8>, u64);
    type Pivot = Vec<u8>;
    type Probe<'a> = &'a [u8];
    fn probe(item: &(Vec<u8>, u64)) -> &[u8] {
        &item.0
    }
    fn pivot(item: &(Vec<u8>, u64)) -> Vec<u8> {
        item.0.clone()
    }
    fn compare(item: &(Vec<u8>, u64), probe: &[u8]) -> Ordering {
        item.0[..].cmp(probe)
    }
    fn compare_pivot(pivot: &Vec<u8>, probe: &[u8]) -> Ordering {
        pivot[..].cmp(probe)
    }

    const SHORT_BYTES: usize = 10;
    fn probe_bytes<'a>(probe: Self::Probe<'a>) -> &'a [u8] {
        probe
    }
    fn item_bytes(item: &(Vec<u8>, u64)) -> &[u8] {
        &item.0
    }
    fn pivot_bytes(pivot: &Vec<u8>) -> &[u8] {
        pivot
    }
}

fn digits(number: u32) -> Vec<u8> {
    match number % 5 {
        // Ends, zeros behind the end, and beginnings of others.
        0 => vec![0; number as usize % 11],
        1 => format!("/jobs/{}", number / 64).into_bytes(),
        // More in common than a branch knows of its pivots.
        2 => format!("/services/instances/of/a/name/that/goes/on/and/on/{number:07}").into_bytes(),
        _ => [format!("/services/instances/{:03}", number % 300).as_bytes(), &number.to_be_bytes()].concat(),
    }
}

struct ByNumber;
impl Order for ByNumber {
    type Item = (u32, u64);
    type Pivot = u32;
    type Probe<'a> = u32;
    fn probe(item: &(u32, u64)) -> u32 {
        item.0
    }
    fn pivot(item: &(u32, u64)) -> u32 {
        item.0
    }
    fn compare(item: &(u32, u64), probe: u32) -> Ordering {
        item.0.cmp(&probe)
    }
    fn compare_pivot(pivot: &u32, probe: u32) -> Ordering {
        pivot.cmp(&probe)
    }
}

impl<O: Order> Tree<O> {
    /// Panics if an invariant of the module comment is broken; returns the number of leaves.
    fn check(&self) -> usize {
        let mut leaf_depths = Vec::new();
        let count = check_node(&self.root, None, None, 0, &mut leaf_depths);
        assert_eq!(count, self.len);
        assert!(leaf_depths.windows(2).all(|pair| pair[0] == pair[1]));
        leaf_depths.len()
    }
}

fn check_node<O: Order>(
    node: &Node<O>,
    low: Option<&O::Pivot>,
    high: Option<&O::Pivot>,
    depth: usize,
    leaf_depths: &mut Vec<usize>,
) -> usize {
    assert!(node.width() <= NODE_MAX.max(O::LEAF_MAX));
    assert!(depth == 0 || node.width() > 0);
    match node {
        Node::Leaf(items) => {
            leaf_depths.push(depth);
            assert!(items.windows(2).all(|pair| O::compare(&pair[0], O::probe(&pair[1])).is_lt()));
            let relation = |pivot: &O::Pivot, item| O::compare_pivot(pivot, O::probe(item));
            assert!(items.iter().all(|item| low.is_none_or(|low| relation(low, item).is_le())));
            assert!(items.iter().all(|item| high.is_none_or(|high| relation(high, item).is_gt())));
            // Only the last leaf of all has no end.
            items.check(high.is_none());
            items.len()
        }
        Node::Branch(branch) => {
            assert_eq!(branch.pivots.len() + 1, branch.children.len());
            branch.pivots.check(false);
            let mut total = 0;
            for (at, child) in branch.children.iter().enumerate() {
                let low = if at == 0 { low } else { branch.pivots.get(at - 1) };
                let high = branch.pivots.get(at).or(high);
                assert_eq!(check_node(&child.node, low, high, depth + 1, leaf_depths), child.count);
                total += child.count;
            }
            total
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32),
    InsertRun(u32, u32),
    Remove(u32),
    RemoveRun(u32, u32),
    RemoveFirst(u32),
    PushLast(u32),
}

fn step() -> impl Strategy<Value = Step> {
    const KEYS: u32 = 5_000;
    prop_oneof![
        4 => (0..KEYS).prop_map(Step::Insert),
        2 => (0..KEYS, 1..600u32).prop_map(|(from, count)| Step::InsertRun(from, count)),
        3 => (0..KEYS).prop_map(Step::Remove),
        2 => (0..KEYS, 1..900u32).prop_map(|(from, count)| Step::RemoveRun(from, count)),
        1 => (1..200u32).prop_map(Step::RemoveFirst),
        1 => (1..300u32).prop_map(Step::PushLast),
    ]
}

fn run(tree: &mut Tree<ByNumber>, model: &mut BTreeMap<u32, u64>, step: &Step, stamp: u64) {
    match *step {
        Step::Insert(key) => assert_eq!(tree.insert(key, (key, stamp)).map(|old| old.1), model.insert(key, stamp)),
        // Descending within the run and with holes, so that neither end is favoured.
        Step::InsertRun(from, count) => (from..from + count).rev().filter(|key| key % 7 != 0).for_each(|key| {
            assert_eq!(tree.insert(key, (key, stamp)).map(|old| old.1), model.insert(key, stamp));
        }),
        Step::Remove(key) => assert_eq!(tree.remove(key).map(|old| old.1), model.remove(&key)),
        Step::RemoveRun(from, count) => (from..from + count).for_each(|key| {
            assert_eq!(tree.remove(key).map(|old| old.1), model.remove(&key));
        }),
        Step::RemoveFirst(count) => {
            for _ in 0..count {
                let Some((key, stamp)) = model.pop_first() else { return };
                assert_eq!(tree.remove(key), Some((key, stamp)));
            }
        }
        Step::PushLast(count) => {
            let from = model.last_key_value().map_or(0, |(key, _)| key + 1);
            for key in from..from + count {
                tree.push_last((key, stamp));
                model.insert(key, stamp);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Every index of the store is this tree: a wrong count, a lost item or a wrong neighbour here
    /// is a wrong answer everywhere.
    #[test]
    fn the_tree_behaves_like_the_standard_ordered_map(
        steps in proptest::collection::vec(step(), 1..60),
        probes in proptest::collection::vec((0u32..6_000, 0u32..6_000), 1..20),
    ) {
        let (mut tree, mut model) = (Tree::<ByNumber>::new(), BTreeMap::new());
        for (stamp, step) in steps.iter().enumerate() {
            run(&mut tree, &mut model, step, stamp as u64);
            tree.check();
        }
        prop_assert!(tree.iter_from(0).copied().eq(model.iter().map(|(key, stamp)| (*key, *stamp))));
        for (low, high) in probes {
            prop_assert_eq!(tree.get(low).map(|item| item.1), model.get(&low).copied());
            prop_assert_eq!(tree.predecessor(low).map(|item| item.0), model.range(..low).next_back().map(|(key, _)| *key));
            prop_assert_eq!(tree.rank(low), model.range(..low).count());
            prop_assert_eq!(tree.nth(low as usize).map(|item| item.0), model.keys().nth(low as usize).copied());
            let expected = if low < high { model.range(low..high).count() } else { 0 };
            prop_assert_eq!(tree.count_range(low, high), expected);
            prop_assert!(tree.iter_from(low).map(|item| item.0).eq(model.range(low..).map(|(key, _)| *key)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Keys are searched by a few of their bytes; neither what they begin with nor where they end may lead astray.
    #[test]
    fn a_tree_sorted_by_bytes_behaves_like_the_standard_ordered_map(
        steps in proptest::collection::vec((0u32..2_000, 1..200u32, any::<bool>()), 1..60),
        probes in proptest::collection::vec(0u32..3_000, 1..40),
    ) {
        let (mut tree, mut model) = (Tree::<ByDigits>::new(), BTreeMap::new());
        for (stamp, (from, count, is_insert)) in steps.into_iter().enumerate() {
            // In no order that bytes have.
            for key in (from..from + count).map(|number| digits(number * 7)) {
                if is_insert {
                    let before = tree.insert(&key, (key.clone(), stamp as u64));
                    prop_assert_eq!(before.map(|old| old.1), model.insert(key, stamp as u64));
                } else {
                    prop_assert_eq!(tree.remove(&key).map(|old| old.1), model.remove(&key));
                }
            }
            tree.check();
        }
        prop_assert!(tree.iter_from(&[]).cloned().eq(model.clone()));
        for probe in probes.into_iter().map(digits) {
            prop_assert_eq!(tree.get(&probe).map(|item| item.1), model.get(&probe).copied());
            let before = model.range(..probe.clone());
            prop_assert_eq!(tree.rank(&probe), before.clone().count());
            prop_assert_eq!(tree.predecessor(&probe).map(|item| &item.0), before.last().map(|(key, _)| key));
            prop_assert!(tree.iter_from(&probe).map(|item| &item.0).eq(model.range(probe..).map(|(key, _)| key)));
        }
    }
}

/// The memory budget per key rests on this: history and bulk loads arrive in order.
#[test]
fn a_sequential_load_leaves_every_leaf_full() {
    let mut tree = Tree::<ByNumber>::new();
    for key in 0..1_000 * NODE_MAX as u32 {
        tree.insert(key, (key, 0));
    }
    assert_eq!(tree.check(), 1_000);
}

/// Clients that load side by side bring runs of keys that overtake each other; half empty leaves would cost each of a
/// million keys a dozen bytes.
#[test]
fn runs_that_overtake_each_other_leave_leaves_nearly_full() {
    // What a run has beyond full leaves is a leaf of its own, or the front of the next one.
    for (run_length, percent_more) in [(126, 1), (128, 25), (200, 15), (1_000, 5)] {
        let mut tree = Tree::<ByNumber>::new();
        for run in 0..500 {
            // Eight clients: 3, 0, 5, 2, 7, 4, 1, 6, and on.
            let start = (run / 8 * 8 + (run % 8 * 5 + 3) % 8) * run_length;
            (start..start + run_length).for_each(|key| assert_eq!(tree.insert(key, (key, 0)), None));
        }
        let least = tree.len() / NODE_MAX;
        let leaves = tree.check();
        assert!(leaves <= least + least * percent_more / 100, "{leaves} leaves where {least} would do");
    }
}

/// Keys that come in falling order must not leave a leaf for each behind a full one.
#[test]
fn a_falling_run_behind_a_full_leaf_fills_the_next() {
    let mut tree = Tree::<ByNumber>::new();
    let full = NODE_MAX as u32;
    (0..full).for_each(|key| assert_eq!(tree.insert(key, (key, 0)), None));
    (full..6_464).rev().for_each(|key| assert_eq!(tree.insert(key, (key, 0)), None));
    assert!(tree.check() <= 6_464 / (NODE_MAX / 2) + 2, "{} leaves", tree.check());
}

/// A store that shrank must give the memory back, whatever the order of the deletions.
#[test]
fn deleting_nearly_everything_leaves_few_nodes() {
    let mut tree = Tree::<ByNumber>::new();
    (0..100_000).for_each(|key| assert_eq!(tree.insert(key * 7_919 % 100_000, (key * 7_919 % 100_000, 0)), None));
    (0..100_000).filter(|key| key % 100 != 0).for_each(|key| assert!(tree.remove(key).is_some()));
    assert_eq!(tree.len(), 1_000);
    assert!(tree.check() <= 1_000 / merge_below(NODE_MAX) + 1, "{} leaves for 1000 items", tree.check());
    (0..100_000).step_by(100).for_each(|key| assert!(tree.remove(key).is_some()));
    assert_eq!((tree.len(), tree.check(), tree.iter_from(0).count()), (0, 1, 0));
}
