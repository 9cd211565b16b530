//! The faults a plan can hold, and whom they strike.
//!
//! Every kind of fault and every shape of a cut has one name, the one under which [`crate::coverage`] counts
//! it; the command line uses the same name without its group. A new kind of fault is a variant of [`Fault`]
//! and of [`Kind`], a counter, and an arm where plans are drawn; the compiler finds the rest.

use tidelock_model::NodeId;

use crate::coverage;
use crate::history::Micros;

/// A fault and when it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// When.
    pub at: Micros,
    /// What.
    pub fault: Fault,
}

/// One fault. Where it says "lasts" or "down" it is over by itself after that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node is killed and started again.
    Crash {
        /// Who.
        target: Target,
        /// How long until it is started again.
        down: Micros,
        /// What of its unsynced writes is on the disk then.
        keep: Keep,
    },
    /// A node is killed during one of its next changing disk operations.
    CrashAtWrite {
        /// Who.
        target: Target,
        /// During the how manieth operation from now on; 1 is the next.
        after: u64,
        /// How long until it is started again.
        down: Micros,
        /// What of its unsynced writes is on the disk then.
        keep: Keep,
    },
    /// All nodes are killed at once and started again.
    CrashAll {
        /// How long until they are started again.
        down: Micros,
        /// What of their unsynced writes is on the disks then.
        keep: Keep,
    },
    /// A node is asked to stop, and started again.
    Stop {
        /// Who.
        target: Target,
        /// How long until it is started again.
        down: Micros,
    },
    /// A node does nothing, and then goes on as if nothing had been.
    Pause {
        /// Who.
        target: Target,
        /// For how long.
        lasts: Micros,
    },
    /// A node is killed, its disk is replaced by an empty one, and it is started again as a founder.
    Wipe {
        /// Who.
        target: Target,
        /// How long until it is started again.
        down: Micros,
    },
    /// Some nodes cannot talk to some others.
    Partition {
        /// Which.
        shape: Shape,
        /// For how long.
        lasts: Micros,
    },
    /// A partition that comes and goes.
    Flap {
        /// Which nodes.
        shape: Shape,
        /// It comes or goes this often.
        period: Micros,
        /// For how long.
        lasts: Micros,
    },
    /// A disk has no room left.
    DiskFull {
        /// Whose.
        target: Target,
        /// For how long.
        lasts: Micros,
    },
    /// A disk takes longer for everything.
    DiskSlow {
        /// Whose.
        target: Target,
        /// How many times longer.
        factor: u64,
        /// For how long.
        lasts: Micros,
    },
    /// The next sync fails.
    SyncError {
        /// Whose.
        target: Target,
    },
    /// The next write fails half-way.
    WriteError {
        /// Whose.
        target: Target,
    },
    /// A bit of what is durable on a disk changes.
    BitRot {
        /// Whose.
        target: Target,
        /// Which bit: any number, to be taken modulo the bits there are.
        place: u64,
    },
    /// A sector of what is durable on a disk is replaced by a copy of another one.
    Misdirect {
        /// Whose.
        target: Target,
        /// Which sectors: any number, to be taken modulo the sectors there are.
        place: u64,
    },
    /// A node's clock runs faster or slower from now on.
    ClockRate {
        /// Whose.
        target: Target,
        /// By so many thousandths.
        permille: i64,
    },
    /// A node's wall clock is set to another time.
    ClockJump {
        /// Whose.
        target: Target,
        /// By so many milliseconds.
        millis: i64,
    },
    /// Clients cannot reach a node, its peers can.
    ClientsCutOff {
        /// Which.
        target: Target,
        /// For how long.
        lasts: Micros,
    },
    /// A node's connections with the leader break and it is told that the leader is gone, although it lives. If the
    /// leader itself is meant, all others are told.
    FalseAlarm {
        /// Who.
        target: Target,
    },
}

/// Whom a fault strikes; who that is is decided when it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Whoever leads; if nobody does, any node.
    Leader,
    /// Any node that does not lead, by a number to be taken modulo how many there are.
    Follower(u64),
    /// Any node, by a number to be taken modulo how many there are.
    Any(u64),
    /// The founding node with this id (founders have the ids from 1 on). Faults that destroy what is durable
    /// name their nodes this way, so that a plan can promise that they are a minority.
    Founder(u64),
}

impl Target {
    /// The node that is meant among these, which are in order of their ids; `None` if there is none.
    #[must_use]
    pub fn resolve(self, members: &[NodeId], leader: Option<NodeId>) -> Option<NodeId> {
        let leader = leader.filter(|leader| members.contains(leader));
        let nth = |candidates: &[NodeId], number: u64| {
            let count = candidates.len() as u64;
            (count > 0).then(|| candidates[(number % count) as usize])
        };
        match self {
            Target::Leader => leader.or_else(|| members.first().copied()),
            Target::Follower(number) => {
                let followers: Vec<NodeId> = members.iter().copied().filter(|node| Some(*node) != leader).collect();
                nth(&followers, number).or(leader)
            }
            Target::Any(number) => nth(members, number),
            Target::Founder(number) => members.iter().copied().find(|node| *node == NodeId(number)),
        }
    }
}

/// Which pairs of nodes a cut parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One node from all others.
    Isolate(Target),
    /// Nothing reaches this node; what it sends arrives.
    OneWayIn(Target),
    /// Nothing this node sends arrives; everything reaches it.
    OneWayOut(Target),
    /// Nodes whose bit is set from those whose bit is not; the first node has the lowest bit.
    Halves(u64),
    /// Two groups that only this node, by its place, can talk to both of.
    Bridge(u64),
    /// Each node talks only to its two neighbours; with three nodes or fewer this parts nobody.
    Ring,
}

/// What of the unsynced writes a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Everything, as when only the process dies.
    Everything,
    /// Each sector and each directory change with this chance in thousandths.
    Some(u64),
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the kind of the fault of the same name")]
pub enum Kind {
    Crash,
    CrashAtWrite,
    CrashAll,
    Stop,
    Pause,
    Wipe,
    Partition,
    Flap,
    DiskFull,
    DiskSlow,
    SyncError,
    WriteError,
    BitRot,
    Misdirect,
    ClockRate,
    ClockJump,
    ClientsCutOff,
    FalseAlarm,
}

impl Kind {
    /// All kinds.
    pub const ALL: &'static [Kind] = &[
        Kind::Crash,
        Kind::CrashAtWrite,
        Kind::CrashAll,
        Kind::Stop,
        Kind::Pause,
        Kind::Wipe,
        Kind::Partition,
        Kind::Flap,
        Kind::DiskFull,
        Kind::DiskSlow,
        Kind::SyncError,
        Kind::WriteError,
        Kind::BitRot,
        Kind::Misdirect,
        Kind::ClockRate,
        Kind::ClockJump,
        Kind::ClientsCutOff,
        Kind::FalseAlarm,
    ];

    /// The name it is counted under.
    #[must_use]
    pub fn counter(self) -> &'static str {
        match self {
            Kind::Crash => coverage::CRASH,
            Kind::CrashAtWrite => coverage::CRASH_AT_WRITE,
            Kind::CrashAll => coverage::CRASH_ALL,
            Kind::Stop => coverage::STOP,
            Kind::Pause => coverage::PAUSE,
            Kind::Wipe => coverage::WIPE,
            Kind::Partition => coverage::PARTITION,
            Kind::Flap => coverage::FLAP,
            Kind::DiskFull => coverage::DISK_FULL,
            Kind::DiskSlow => coverage::DISK_SLOW,
            Kind::SyncError => coverage::SYNC_ERROR,
            Kind::WriteError => coverage::WRITE_ERROR,
            Kind::BitRot => coverage::BIT_ROT,
            Kind::Misdirect => coverage::MISDIRECT,
            Kind::ClockRate => coverage::CLOCK_RATE,
            Kind::ClockJump => coverage::CLOCK_JUMP,
            Kind::ClientsCutOff => coverage::CLIENTS_CUT_OFF,
            Kind::FalseAlarm => coverage::FALSE_ALARM,
        }
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        without_group(self.counter())
    }

    /// Whether it destroys what is durable, so that a copy is gone for good.
    #[must_use]
    pub fn destroys(self) -> bool {
        matches!(self, Kind::Wipe | Kind::BitRot | Kind::Misdirect)
    }

    /// Whether it parts nodes from each other, so that it means nothing to a single node.
    #[must_use]
    pub fn parts(self) -> bool {
        matches!(self, Kind::Partition | Kind::Flap | Kind::FalseAlarm)
    }
}

/// The part of a counter's name that is used on the command line.
pub(crate) fn without_group(counter: &'static str) -> &'static str {
    counter.split_once(": ").map_or(counter, |(_, name)| name)
}

impl Fault {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Fault::Crash { .. } => Kind::Crash,
            Fault::CrashAtWrite { .. } => Kind::CrashAtWrite,
            Fault::CrashAll { .. } => Kind::CrashAll,
            Fault::Stop { .. } => Kind::Stop,
            Fault::Pause { .. } => Kind::Pause,
            Fault::Wipe { .. } => Kind::Wipe,
            Fault::Partition { .. } => Kind::Partition,
            Fault::Flap { .. } => Kind::Flap,
            Fault::DiskFull { .. } => Kind::DiskFull,
            Fault::DiskSlow { .. } => Kind::DiskSlow,
            Fault::SyncError { .. } => Kind::SyncError,
            Fault::WriteError { .. } => Kind::WriteError,
            Fault::BitRot { .. } => Kind::BitRot,
            Fault::Misdirect { .. } => Kind::Misdirect,
            Fault::ClockRate { .. } => Kind::ClockRate,
            Fault::ClockJump { .. } => Kind::ClockJump,
            Fault::ClientsCutOff { .. } => Kind::ClientsCutOff,
            Fault::FalseAlarm { .. } => Kind::FalseAlarm,
        }
    }

    /// Whom it strikes; `None` if it strikes several.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        match self {
            Fault::Crash { target, .. }
            | Fault::CrashAtWrite { target, .. }
            | Fault::Stop { target, .. }
            | Fault::Pause { target, .. }
            | Fault::Wipe { target, .. }
            | Fault::DiskFull { target, .. }
            | Fault::DiskSlow { target, .. }
            | Fault::SyncError { target }
            | Fault::WriteError { target }
            | Fault::BitRot { target, .. }
            | Fault::Misdirect { target, .. }
            | Fault::ClockRate { target, .. }
            | Fault::ClockJump { target, .. }
            | Fault::ClientsCutOff { target, .. }
            | Fault::FalseAlarm { target } => Some(*target),
            Fault::CrashAll { .. } | Fault::Partition { .. } | Fault::Flap { .. } => None,
        }
    }

    /// The shape of the cut, if it is one.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Fault::Partition { shape, .. } | Fault::Flap { shape, .. } => Some(*shape),
            _ => None,
        }
    }

    /// How long it takes until it is over; 0 for what happens in a moment. A clock's rate stays until it is
    /// changed again or faults end; it has 0 too.
    #[must_use]
    pub fn lasts(&self) -> Micros {
        match self {
            Fault::Crash { down: lasts, .. }
            | Fault::CrashAtWrite { down: lasts, .. }
            | Fault::CrashAll { down: lasts, .. }
            | Fault::Stop { down: lasts, .. }
            | Fault::Wipe { down: lasts, .. }
            | Fault::Pause { lasts, .. }
            | Fault::Partition { lasts, .. }
            | Fault::Flap { lasts, .. }
            | Fault::DiskFull { lasts, .. }
            | Fault::DiskSlow { lasts, .. }
            | Fault::ClientsCutOff { lasts, .. } => *lasts,
            Fault::SyncError { .. }
            | Fault::WriteError { .. }
            | Fault::BitRot { .. }
            | Fault::Misdirect { .. }
            | Fault::ClockRate { .. }
            | Fault::ClockJump { .. }
            | Fault::FalseAlarm { .. } => 0,
        }
    }
}

impl Shape {
    /// The names all shapes are counted under.
    pub const COUNTERS: &'static [&'static str] = &[
        coverage::ISOLATE,
        coverage::ONE_WAY_IN,
        coverage::ONE_WAY_OUT,
        coverage::HALVES,
        coverage::BRIDGE,
        coverage::RING,
    ];

    /// The name it is counted under.
    #[must_use]
    pub fn counter(&self) -> &'static str {
        match self {
            Shape::Isolate(_) => coverage::ISOLATE,
            Shape::OneWayIn(_) => coverage::ONE_WAY_IN,
            Shape::OneWayOut(_) => coverage::ONE_WAY_OUT,
            Shape::Halves(_) => coverage::HALVES,
            Shape::Bridge(_) => coverage::BRIDGE,
            Shape::Ring => coverage::RING,
        }
    }

    /// The directed links it cuts among these nodes, which are in order of their ids.
    #[must_use]
    pub fn links(&self, members: &[NodeId], leader: Option<NodeId>) -> Vec<(NodeId, NodeId)> {
        let places = members.len();
        let cuts: Box<dyn Fn(usize, usize) -> bool> = match *self {
            Shape::Isolate(target) => {
                let target = target.resolve(members, leader);
                Box::new(move |from, to| Some(members[from]) == target || Some(members[to]) == target)
            }
            Shape::OneWayIn(target) => {
                let target = target.resolve(members, leader);
                Box::new(move |_, to| Some(members[to]) == target)
            }
            Shape::OneWayOut(target) => {
                let target = target.resolve(members, leader);
                Box::new(move |from, _| Some(members[from]) == target)
            }
            Shape::Halves(mask) => Box::new(move |from, to| side(mask, from) != side(mask, to)),
            Shape::Bridge(number) => {
                let bridge = (number % places.max(1) as u64) as usize;
                // The others alternate between the two groups, counted from the bridge.
                let group = move |place: usize| (place + places - bridge) % places % 2;
                Box::new(move |from, to| from != bridge && to != bridge && group(from) != group(to))
            }
            Shape::Ring => Box::new(move |from, to| (from + 1) % places != to && (to + 1) % places != from),
        };
        let mut links = Vec::new();
        for from in 0..places {
            links
                .extend((0..places).filter(|to| *to != from && cuts(from, *to)).map(|to| (members[from], members[to])));
        }
        links
    }
}

fn side(mask: u64, place: usize) -> bool {
    mask >> (place % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u64) -> Vec<NodeId> {
        (1..=count).map(NodeId).collect()
    }

    fn cut(shape: Shape, count: u64, leader: Option<u64>) -> Vec<(u64, u64)> {
        shape.links(&nodes(count), leader.map(NodeId)).into_iter().map(|(from, to)| (from.0, to.0)).collect()
    }

    /// A shape that cuts other pairs than its name says would test something else than we think we test.
    #[test]
    fn shapes_cut_exactly_their_pairs() {
        assert_eq!(cut(Shape::Isolate(Target::Leader), 3, Some(2)), [(1, 2), (2, 1), (2, 3), (3, 2)]);
        assert_eq!(cut(Shape::OneWayIn(Target::Founder(3)), 3, None), [(1, 3), (2, 3)]);
        assert_eq!(cut(Shape::OneWayOut(Target::Follower(0)), 3, Some(1)), [(2, 1), (2, 3)]);
        assert_eq!(
            cut(Shape::Halves(0b001), 3, None),
            [(1, 2), (1, 3), (2, 1), (3, 1)],
            "the first node from the others"
        );
        // Node 2 is the bridge; 3 and 5 are on one side, 4 and 1 on the other.
        assert_eq!(cut(Shape::Bridge(1), 5, None), [(1, 3), (1, 5), (3, 1), (3, 4), (4, 3), (4, 5), (5, 1), (5, 4)]);
        assert_eq!(
            cut(Shape::Ring, 5, None),
            [(1, 3), (1, 4), (2, 4), (2, 5), (3, 1), (3, 5), (4, 1), (4, 2), (5, 2), (5, 3)]
        );
        assert_eq!(cut(Shape::Ring, 3, None), []);
        assert_eq!(cut(Shape::Bridge(7), 1, None), []);
        assert_eq!(cut(Shape::Isolate(Target::Any(4)), 0, None), []);
    }

    /// A fault meant for the leader that strikes somebody else leaves leader changes untested.
    #[test]
    fn targets_are_who_they_say() {
        let members = nodes(3);
        assert_eq!(Target::Leader.resolve(&members, Some(NodeId(3))), Some(NodeId(3)));
        assert_eq!(Target::Leader.resolve(&members, Some(NodeId(9))), Some(NodeId(1)), "a leader that is no member");
        for number in 0..10 {
            assert_ne!(Target::Follower(number).resolve(&members, Some(NodeId(2))), Some(NodeId(2)));
        }
        assert_eq!(Target::Follower(5).resolve(&nodes(1), Some(NodeId(1))), Some(NodeId(1)), "the only node there is");
        assert_eq!(Target::Any(4).resolve(&members, None), Some(NodeId(2)));
        assert_eq!(Target::Founder(2).resolve(&members, None), Some(NodeId(2)));
        assert_eq!(Target::Founder(4).resolve(&members, None), None, "removed meanwhile");
        assert_eq!(Target::Any(0).resolve(&[], None), None);
    }

    /// A kind missing from the list would never be drawn.
    #[test]
    fn all_kinds_are_listed_once_under_their_own_name() {
        let names: std::collections::BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        assert_eq!(Kind::ALL.last(), Some(&Kind::FalseAlarm), "the last variant");
        assert_eq!(Kind::FalseAlarm as usize + 1, Kind::ALL.len());
        assert_eq!(Kind::CrashAtWrite.name(), "crash-at-write");
    }
}
