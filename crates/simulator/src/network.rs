//! What becomes of a frame between two nodes: whether, when and how it arrives. Decides only; the world
//! keeps the frames and delivers them at the time that is said here.
//!
//! Links are directed: what one way does says nothing about the other. Several cuts can be there at once, and a
//! link works when none of them cuts it. A frame sent into a cut is lost. A frame already under way when a
//! cut begins may still arrive; the world asks [`Network::arrives`] before it delivers.
//!
//! What holds: unless the plan says otherwise, frames of a link arrive in the order in which they were sent,
//! each later than the one before. After [`Network::heal_all`] every frame arrives, once, unchanged, in order
//! and soon.
//!
//! Not here: what a broken connection means to a node, and which faults strike when (`crate::plan`).

use std::collections::BTreeMap;

use bytes::Bytes;
use tidelock_model::NodeId;

use crate::coverage::{self, Coverage};
use crate::history::Micros;
use crate::plan::{NetworkPlan, Shape};
use crate::random::Random;

/// A cut, to be mended under this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CutId(u64);

/// A frame that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Micros,
    /// Who sent it.
    pub from: NodeId,
    /// Who gets it.
    pub to: NodeId,
    /// Its place among all that was sent on this link.
    pub sequence: u64,
    /// What arrives.
    pub bytes: Bytes,
    /// Whether that is not what was sent.
    pub corrupted: bool,
}

/// All links between all nodes.
pub struct Network {
    plan: NetworkPlan,
    random: Random,
    coverage: Coverage,
    links: BTreeMap<(NodeId, NodeId), Link>,
    cuts: BTreeMap<CutId, Cut>,
    next_cut: u64,
}

#[derive(Default)]
struct Link {
    /// How many cuts cut it now.
    cut_by: u64,
    /// How many frames were sent on it.
    sent: u64,
    /// Frames up to this one do not arrive any more.
    lost_through: u64,
    /// When the last of those that were sent arrives.
    last_arrival: Micros,
}

struct Cut {
    links: Vec<(NodeId, NodeId)>,
    active: bool,
}

impl Network {
    /// A network in which nothing is cut.
    #[must_use]
    pub fn new(plan: NetworkPlan, random: Random, coverage: Coverage) -> Network {
        Network { plan, random, coverage, links: BTreeMap::new(), cuts: BTreeMap::new(), next_cut: 0 }
    }

    /// Decides what becomes of a frame: what arrives, which may be nothing or the same frame twice.
    pub fn send(&mut self, now: Micros, from: NodeId, to: NodeId, sealed: Bytes) -> Vec<Delivery> {
        if !self.connected(from, to) {
            return Vec::new();
        }
        if self.random.chance(self.plan.loss) {
            self.coverage.hit(coverage::FRAME_LOST);
            return Vec::new();
        }
        let twice = self.random.chance(self.plan.duplicate);
        if twice {
            self.coverage.hit(coverage::FRAME_DUPLICATED);
            return vec![self.under_way(now, from, to, sealed.clone()), self.under_way(now, from, to, sealed)];
        }
        vec![self.under_way(now, from, to, sealed)]
    }

    fn under_way(&mut self, now: Micros, from: NodeId, to: NodeId, sealed: Bytes) -> Delivery {
        let corrupted = !sealed.is_empty() && self.random.chance(self.plan.corrupt);
        let bytes = if corrupted { self.corrupt(&sealed) } else { sealed };
        let drawn = now + self.delay();
        let link = self.links.entry((from, to)).or_default();
        link.sent += 1;
        let at = if self.plan.reorder { drawn } else { drawn.max(link.last_arrival + 1) };
        if at < link.last_arrival {
            self.coverage.hit(coverage::FRAME_REORDERED);
        }
        link.last_arrival = link.last_arrival.max(at);
        Delivery { at, from, to, sequence: link.sent, bytes, corrupted }
    }

    fn corrupt(&mut self, sealed: &Bytes) -> Bytes {
        self.coverage.hit(coverage::FRAME_CORRUPTED);
        let mut bytes = sealed.to_vec();
        let place = self.random.below(bytes.len() as u64) as usize;
        bytes[place] ^= 1 << self.random.below(8);
        bytes.into()
    }

    fn delay(&mut self) -> Micros {
        let NetworkPlan { delay_min, delay_max, slow, slow_max, .. } = self.plan;
        if slow > 0 && self.random.below(1_000_000) < slow {
            self.coverage.hit(coverage::FRAME_DELAYED);
            return self.random.between(delay_max, slow_max);
        }
        // Mostly near the least, as on real networks.
        self.random.magnitude(delay_min, delay_max)
    }

    /// Whether a frame that is due arrives, or was lost on its way when a cut or a crash came.
    #[must_use]
    pub fn arrives(&self, delivery: &Delivery) -> bool {
        let link = self.links.get(&(delivery.from, delivery.to));
        link.is_none_or(|link| delivery.sequence > link.lost_through)
    }

    /// Whether what the first sends can reach the second.
    #[must_use]
    pub fn connected(&self, from: NodeId, to: NodeId) -> bool {
        self.links.get(&(from, to)).is_none_or(|link| link.cut_by == 0)
    }

    /// Cuts links among these members, given in order of their ids. It is decided now which links those are;
    /// who leads later, or joins, changes nothing.
    pub fn cut(&mut self, shape: &Shape, members: &[NodeId], leader: Option<NodeId>) -> CutId {
        let links = shape.links(members, leader);
        // A ring of three, or a cut around the only node there is, tests nothing.
        self.coverage.add(shape.counter(), u64::from(!links.is_empty()));
        let id = CutId(self.next_cut);
        self.next_cut += 1;
        self.cuts.insert(id, Cut { links, active: false });
        self.flip(id);
        id
    }

    /// Ends a cut if it is in force, else puts it in force again; says whether it now is. A cut that was mended
    /// stays so.
    pub fn flip(&mut self, id: CutId) -> bool {
        let Some(cut) = self.cuts.get_mut(&id) else { return false };
        cut.active = !cut.active;
        for link in &cut.links {
            let link = self.links.entry(*link).or_default();
            if !cut.active {
                link.cut_by -= 1;
                continue;
            }
            link.cut_by += 1;
            if self.random.chance(self.plan.cut_loses) {
                link.lost_through = link.sent;
            }
        }
        cut.active
    }

    /// The links of a cut, in force or not; none once it is mended.
    #[must_use]
    pub fn cut_links(&self, id: CutId) -> &[(NodeId, NodeId)] {
        self.cuts.get(&id).map_or(&[], |cut| &cut.links)
    }

    /// Ends a cut for good.
    pub fn mend(&mut self, id: CutId) {
        if self.cuts.get(&id).is_some_and(|cut| cut.active) {
            self.flip(id);
        }
        self.cuts.remove(&id);
    }

    /// A node's connections ended with it: nothing that is under way to it arrives, and what it sent may not.
    pub fn node_down(&mut self, node: NodeId) {
        for ((from, to), link) in &mut self.links {
            if *to == node || (*from == node && self.random.chance(500)) {
                link.lost_through = link.sent;
            }
        }
    }

    /// Draws whether a connection breaks over a cut or a lost frame, so that the receiver is told.
    pub fn breaks(&mut self) -> bool {
        let breaks = self.random.chance(self.plan.breaks);
        if breaks {
            self.coverage.hit(coverage::LINK_BROKEN);
        }
        breaks
    }

    /// From now on the network is perfect. What is under way still arrives when it was to, and what is sent
    /// from now on after it.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
        self.links.values_mut().for_each(|link| link.cut_by = 0);
        self.plan = NetworkPlan::PERFECT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Target;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);
    const THREE: NodeId = NodeId(3);
    const ALL: [NodeId; 3] = [ONE, TWO, THREE];

    /// A network where nothing goes wrong but what the test asks for.
    fn network(change: impl FnOnce(&mut NetworkPlan)) -> (Network, Coverage) {
        let mut plan = NetworkPlan { delay_min: 100, delay_max: 10_000, ..NetworkPlan::PERFECT };
        change(&mut plan);
        let coverage = Coverage::default();
        (Network::new(plan, Random::new(1), coverage.clone()), coverage)
    }

    fn frame(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_le_bytes())
    }

    fn arrivals(network: &mut Network, count: u64) -> Vec<Delivery> {
        (0..count).flat_map(|number| network.send(number * 10, ONE, TWO, frame(number))).collect()
    }

    fn is_in_order(deliveries: &[Delivery]) -> bool {
        deliveries.is_sorted_by(|first, second| first.at < second.at)
    }

    /// Real links are streams: the nodes rely on the order, so a run that breaks it finds bugs that are none.
    #[test]
    fn frames_of_a_link_stay_in_order_unless_the_plan_says_otherwise() {
        let (mut ordered, coverage) =
            network(|plan| (plan.slow, plan.slow_max, plan.duplicate) = (5_000, 500_000, 100));
        let deliveries = arrivals(&mut ordered, 5_000);
        assert!(deliveries.len() > 5_000 && is_in_order(&deliveries));
        assert!(coverage.get(coverage::FRAME_DELAYED) > 5 && coverage.get(coverage::FRAME_REORDERED) == 0);

        let (mut any_order, coverage) = network(|plan| plan.reorder = true);
        let deliveries = arrivals(&mut any_order, 5_000);
        assert!(!is_in_order(&deliveries));
        assert!(coverage.get(coverage::FRAME_REORDERED) > 100);
    }

    /// Rates that are not what the plan says make every figure of a run wrong.
    #[test]
    fn loss_duplication_and_corruption_are_as_planned() {
        let (mut lossy, coverage) = network(|plan| plan.loss = 300);
        let arrived = arrivals(&mut lossy, 10_000).len();
        assert!((6_800..7_200).contains(&arrived), "{arrived}");
        assert_eq!(coverage.get(coverage::FRAME_LOST) as usize, 10_000 - arrived);

        let (mut doubling, _) = network(|plan| plan.duplicate = 100);
        let arrived = arrivals(&mut doubling, 10_000).len();
        assert!((10_850..11_150).contains(&arrived), "{arrived}");

        let (mut corrupting, _) = network(|plan| plan.corrupt = 20);
        let deliveries = arrivals(&mut corrupting, 10_000);
        let corrupted = deliveries.iter().filter(|delivery| delivery.corrupted).count();
        assert!((140..260).contains(&corrupted), "{corrupted}");
        for (number, delivery) in deliveries.iter().enumerate() {
            let sent = frame(number as u64);
            let wrong_bits: u32 = sent.iter().zip(&delivery.bytes).map(|(one, two)| (one ^ two).count_ones()).sum();
            assert_eq!(wrong_bits, u32::from(delivery.corrupted));
        }
    }

    /// Delays beyond the plan's would show as leader changes that nobody planned.
    #[test]
    fn delays_are_within_the_plan() {
        let (mut network, _) = network(|plan| (plan.slow, plan.slow_max, plan.reorder) = (50_000, 2_000_000, true));
        let delays: Vec<u64> = (0..10_000).map(|_| network.send(7, ONE, TWO, frame(0))[0].at - 7).collect();
        assert!(delays.iter().all(|delay| (100..=2_000_000).contains(delay)));
        let slow = delays.iter().filter(|delay| **delay > 10_000).count();
        assert!((400..600).contains(&slow), "{slow}");
    }

    /// Overlapping cuts are common in brutal runs; mending one must not mend the other.
    #[test]
    fn a_link_works_again_when_its_last_cut_is_mended() {
        let (mut network, coverage) = network(|_| {});
        let around_two = network.cut(&Shape::Isolate(Target::Leader), &ALL, Some(TWO));
        let into_two = network.cut(&Shape::OneWayIn(Target::Founder(2)), &ALL, None);
        assert!(!network.connected(ONE, TWO) && !network.connected(TWO, ONE) && network.connected(ONE, THREE));
        assert_eq!(network.send(0, ONE, TWO, frame(0)), []);
        network.mend(around_two);
        network.mend(around_two);
        assert!(!network.connected(ONE, TWO) && network.connected(TWO, ONE));
        network.mend(into_two);
        assert!(network.connected(ONE, TWO));
        assert_eq!(network.send(0, ONE, TWO, frame(0)).len(), 1);
        assert_eq!((coverage.get(coverage::ISOLATE), coverage.get(coverage::ONE_WAY_IN)), (1, 1));
        network.cut(&Shape::Ring, &ALL, None);
        assert_eq!(coverage.get(coverage::RING), 0, "three nodes are all neighbours");
    }

    /// A flapping cut must come back to the same links, and be gone for good when it is over.
    #[test]
    fn a_cut_can_come_and_go() {
        let (mut network, _) = network(|_| {});
        let cut = network.cut(&Shape::Halves(0b100), &ALL, None);
        assert_eq!(network.cut_links(cut).len(), 4);
        assert!(!network.flip(cut) && network.connected(ONE, THREE));
        assert!(network.flip(cut) && !network.connected(ONE, THREE));
        network.mend(cut);
        assert!(!network.flip(cut) && network.connected(ONE, THREE));
        assert_eq!(network.cut_links(cut), []);
    }

    /// Both happen on real networks: a frame that still gets through, and one that does not.
    #[test]
    fn frames_under_way_when_a_cut_begins_may_or_may_not_arrive() {
        for (cut_loses, arrives) in [(0, true), (1_000, false)] {
            let (mut network, _) = network(|plan| plan.cut_loses = cut_loses);
            let across = network.send(0, ONE, TWO, frame(0)).remove(0);
            let beside = network.send(0, ONE, THREE, frame(0)).remove(0);
            let cut = network.cut(&Shape::Isolate(Target::Founder(2)), &ALL, None);
            network.mend(cut);
            let later = network.send(1, ONE, TWO, frame(1)).remove(0);
            assert_eq!(network.arrives(&across), arrives);
            assert!(network.arrives(&beside) && network.arrives(&later));
        }
    }

    /// A node that was killed and started again must not get what was meant for its former life.
    #[test]
    fn nothing_that_was_under_way_reaches_a_node_that_went_down() {
        let (mut network, _) = network(|_| {});
        let before = network.send(0, ONE, TWO, frame(0)).remove(0);
        let other = network.send(0, ONE, THREE, frame(0)).remove(0);
        network.node_down(TWO);
        assert!(!network.arrives(&before) && network.arrives(&other));
        let after = network.send(0, ONE, TWO, frame(1)).remove(0);
        assert!(network.arrives(&after));
    }

    /// The healing phase blames what goes wrong on the nodes; the network must not add anything to it.
    #[test]
    fn a_healed_network_is_perfect() {
        let (mut network, coverage) = network(|plan| {
            (plan.loss, plan.duplicate, plan.corrupt, plan.breaks) = (300, 100, 20, 1_000);
            (plan.reorder, plan.slow, plan.slow_max) = (true, 100_000, 2_000_000);
        });
        let cut = network.cut(&Shape::Ring, &(1..=5).map(NodeId).collect::<Vec<_>>(), None);
        arrivals(&mut network, 100);
        assert!(network.breaks() && coverage.get(coverage::LINK_BROKEN) == 1);
        network.heal_all();
        network.mend(cut);
        assert!(network.connected(ONE, THREE) && !network.breaks());
        let start = 10_000_000;
        let deliveries: Vec<_> =
            (0..1_000).flat_map(|number| network.send(start + number * 10, ONE, THREE, frame(number))).collect();
        assert!(deliveries.len() == 1_000 && is_in_order(&deliveries));
        for (number, delivery) in deliveries.iter().enumerate() {
            assert_eq!((delivery.at, &delivery.bytes), (start + number as u64 * 10 + 500, &frame(number as u64)));
        }
    }

    /// The same seed must give the same network, frame by frame.
    #[test]
    fn what_becomes_of_frames_depends_on_the_seed_alone() {
        let plan = crate::plan::Plan::draw(3).network;
        let run = || arrivals(&mut Network::new(plan, Random::new(9), Coverage::default()), 500);
        assert_eq!(run(), run());
    }
}
