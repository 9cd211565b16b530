//! What a run reached: how often each kind of fault struck and each rare path was taken.
//!
//! A simulation that never reached what it is for is green and worth nothing. So every kind of fault and
//! every rare path has a name here and a least number of times per thousand seeds; a run with less is red
//! ([`shortfalls`]). Names are constants made in the same place as the requirement, so that what is counted
//! and what is required cannot differ.
//!
//! The minimums are well below what runs usually reach (a third or less), so that a red run means a lost
//! fault kind and not bad luck.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Runs of fewer seeds are not judged: rare paths may be missing by chance.
pub const SEEDS_TO_JUDGE: u64 = 100;

/// Makes the constants and the table of requirements from one list.
macro_rules! paths {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $minimum:literal;)*) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*

        /// Every name and how often it must be hit in a thousand seeds. With 0 it is only counted.
        pub const REQUIRED: &[(&str, u64)] = &[$(($constant, $minimum)),*];
    };
}

paths! {
    /// A node was killed.
    CRASH = "fault: crash", 300;
    /// A node was killed at one of its disk operations.
    CRASH_AT_WRITE = "fault: crash-at-write", 200;
    /// All nodes were killed at once.
    CRASH_ALL = "fault: crash-all", 100;
    /// A node was stopped as an operator would.
    STOP = "fault: stop", 100;
    /// A node did nothing for a while.
    PAUSE = "fault: pause", 200;
    /// A node lost its disk.
    WIPE = "fault: wipe", 50;
    /// Some pairs of nodes could not talk.
    PARTITION = "fault: partition", 300;
    /// Some pairs of nodes could talk now and then.
    FLAP = "fault: flap", 100;
    /// A disk was full.
    DISK_FULL = "fault: disk-full", 100;
    /// A disk was slow.
    DISK_SLOW = "fault: disk-slow", 100;
    /// A sync failed.
    SYNC_ERROR = "fault: sync-error", 100;
    /// A write failed.
    WRITE_ERROR = "fault: write-error", 100;
    /// A durable byte changed.
    BIT_ROT = "fault: bit-rot", 50;
    /// A durable sector was overwritten by another one.
    MISDIRECT = "fault: misdirect", 50;
    /// A node's clock ran at another rate.
    CLOCK_RATE = "fault: clock-rate", 100;
    /// A node's wall clock jumped.
    CLOCK_JUMP = "fault: clock-jump", 100;
    /// Clients could not reach a node.
    CLIENTS_CUT_OFF = "fault: clients-cut-off", 100;
    /// A node was told that the leader is gone, although it lived.
    FALSE_ALARM = "fault: false-alarm", 100;

    /// A cut around one node, both ways.
    ISOLATE = "cut: isolate", 100;
    /// A cut of what one node receives.
    ONE_WAY_IN = "cut: one-way-in", 50;
    /// A cut of what one node sends.
    ONE_WAY_OUT = "cut: one-way-out", 50;
    /// A cut into two groups.
    HALVES = "cut: halves", 50;
    /// A cut into two groups that share one node.
    BRIDGE = "cut: bridge", 50;
    /// A cut that leaves each node its neighbours.
    RING = "cut: ring", 50;

    /// A frame was lost.
    FRAME_LOST = "network: loss", 10_000;
    /// A frame arrived twice.
    FRAME_DUPLICATED = "network: duplicate", 10_000;
    /// A frame arrived with a wrong bit.
    FRAME_CORRUPTED = "network: corrupt", 1_000;
    /// A frame was drawn to arrive before one that was sent earlier.
    FRAME_REORDERED = "network: reorder", 10_000;
    /// A frame was held back for longer than usual.
    FRAME_DELAYED = "network: delay", 2_000;
    /// A connection broke and the receiver was told.
    LINK_BROKEN = "network: link broken", 500;

    /// Another node leads than before.
    LEADER_CHANGE = "path: leader change", 3_000;
    /// A node was told that the leader is gone, by its connections that had ended, and it was.
    LEADER_SEEN_GONE = "path: leader seen gone by a broken link", 300;
    /// Somebody led within half an election timeout after a leader had been killed.
    QUICK_SUCCESSION = "path: quick succession", 100;
    /// A node took over the snapshot of another.
    SNAPSHOT_INSTALLED = "path: snapshot install", 300;
    /// A node took a snapshot.
    SNAPSHOT_TAKEN = "path: snapshot taken", 3_000;
    /// A node gave up the oldest part of its log.
    JOURNAL_TRIMMED = "path: journal trimmed", 1_000;
    /// A watcher could not keep up and read history.
    WATCHER_LAGGING = "path: watcher lagging", 100;
    /// A watcher was ended because its revisions are no longer held.
    WATCHER_COMPACTED = "path: watcher cancelled by compaction", 100;
    /// History was compacted while there were watchers.
    COMPACTION_UNDER_WATCH = "path: compaction under watch", 1_000;
    /// A lease ran out.
    LEASE_EXPIRED = "path: lease expired", 500;
    /// A lease was ended by its client.
    LEASE_REVOKED = "path: lease revoked", 500;
    /// A proposal was sent again, to the same leader or another.
    PROPOSAL_RESENT = "path: proposal resent", 300;
    /// A client that waited for a lock got it.
    LOCK_HANDED_OVER = "path: lock handed over", 200;
    /// A client that believed to hold a lock was told that its lease is over.
    LOCK_LEASE_OVER = "path: lease of a lock holder ran out", 20;
    /// A user lost a right.
    RIGHT_REVOKED = "path: right revoked", 200;
    /// A user's write was refused because it has not the right.
    WRITE_DENIED = "path: write refused for lack of rights", 200;
    /// A watcher was ended because its user lost the right.
    WATCHER_REVOKED = "path: watcher ended for lack of rights", 20;
    /// A session of ZooKeeper's went on at another connection.
    SESSION_REATTACHED = "path: session went on at another connection", 300;
    /// A client that wanted to go on was told that its session is over.
    SESSION_OVER = "path: client told that its session is over", 50;
    /// A session was closed by its client.
    SESSION_CLOSED = "path: session closed", 100;
    /// A session of ZooKeeper's ran out.
    SESSION_EXPIRED = "path: session expired", 200;
    /// A session that ended had ephemeral znodes.
    EPHEMERALS_WENT = "path: ephemeral znodes went with their session", 100;
    /// A watch on a znode fired.
    ZNODE_WATCH_FIRED = "path: watch on a znode fired", 1_000;
    /// A watch fired for a change that came while its client was away.
    ZNODE_WATCH_CAUGHT_UP = "path: watch fired for what its client missed", 50;
    /// A request about a znode was refused because it is too large.
    OVERSIZED_REFUSED = "path: oversized request of a znode refused", 20;
    /// A client that waited in a native queue was let in.
    NATIVE_HANDED_OVER = "path: native place granted to one who waited", 1_000;
    /// A client left a native queue before its turn.
    NATIVE_GAVE_UP = "path: native place given up before its turn", 150;
    /// A client asked again under the same number, and was answered.
    NATIVE_ASKED_AGAIN = "path: native request asked again", 1_000;
    /// A client died with all it held.
    NATIVE_CLIENT_DIED = "path: native client died", 1_000;
    /// A client slept through the end of its session, and went on.
    NATIVE_OVERSLEPT = "path: native client slept through the end of its session", 300;
    /// An old token, or another's, was refused.
    NATIVE_STALE_REFUSED = "path: native token refused", 150;
    /// A fence refused an old token.
    NATIVE_FENCED = "path: native fence refused an old token", 100;
    /// A transaction that showed the token of a lock was carried out.
    NATIVE_FENCED_WRITE = "path: native token shown in a transaction", 300;
    /// A transaction that showed an old token was refused.
    NATIVE_FENCED_WRITE_REFUSED = "path: native transaction refused for its old token", 50;
    /// A native write was carried out: every token was good, and every condition held.
    NATIVE_WRITE = "path: native write under good tokens", 300;
    /// A native write was refused for a token or a condition.
    NATIVE_WRITE_REFUSED = "path: native write refused", 100;
    /// K6, the stated limit: where no token is asked for, one who had lost its lock wrote after the next holder.
    NATIVE_UNFENCED_WENT_BACK = "path: old holder of a native lock wrote where no token is asked for", 15;
    /// A client could reach no node for a while.
    NATIVE_CLIENT_CUT_OFF = "path: native client cut off from all nodes", 100;
    /// A semaphore got another number of permits.
    NATIVE_RESIZED = "path: native semaphore resized", 300;
    /// Something that nobody used was removed.
    NATIVE_FORGOTTEN = "path: native name forgotten", 200;
    /// Something was to be removed that somebody used.
    NATIVE_FORGET_REFUSED = "path: native name in use not forgotten", 20;
    /// A leader named its successor.
    NATIVE_SUCCESSOR = "path: native leader named its successor", 100;
    /// A client waited for the next phase of a phaser, and it came.
    NATIVE_PHASE_AWAITED = "path: native phase awaited", 300;
    /// A native session ran out.
    NATIVE_SESSION_EXPIRED = "path: native session expired", 1_000;
    /// A client that followed its session was told of its end.
    NATIVE_END_TOLD = "path: native client told of the end of its session", 100;
    /// A session was renewed when its time was nearly over, or over.
    NATIVE_RENEWED_LATE = "path: native session renewed in the last moment", 100;
    /// The end of a session let somebody else in.
    NATIVE_DEATH_LET_IN = "path: end of a native session let another in", 300;
    /// One release let several in.
    NATIVE_SEVERAL_LET_IN = "path: native release let several in", 30;
    /// A barrier opened.
    NATIVE_BARRIER_OPENED = "path: native barrier opened", 300;
    /// All left a double barrier.
    NATIVE_BARRIER_LEFT = "path: native double barrier left by all", 100;
    /// A barrier broke.
    NATIVE_BARRIER_BROKE = "path: native barrier broke", 50;
    /// A latch opened.
    NATIVE_LATCH_OPENED = "path: native latch opened", 300;
    /// A latch broke.
    NATIVE_LATCH_BROKE = "path: native latch broke", 10;
    /// A phase of a phaser ended, with parties in more than one phaser of its tree.
    NATIVE_TREE_ADVANCED = "path: native phase of several phasers ended", 100;
    /// A tree of phasers broke.
    NATIVE_PHASER_BROKE = "path: native phaser broke", 20;
    /// Old versions may go because a reader went on or died.
    NATIVE_VERSIONS_FREED = "path: native versions freed by their readers", 50;
    /// A retired object may go because the last who kept it went.
    NATIVE_HAZARD_CLEARED = "path: native hazard cleared later", 20;
    /// The members changed.
    MEMBERSHIP_CHANGED = "path: membership change", 200;
    /// A learner became a voter.
    LEARNER_PROMOTED = "path: learner promoted", 50;
    /// Several members changed in one step, through a joint configuration.
    JOINT_CHANGE = "path: joint change", 50;
    /// A node found that its state differs from the others' and stopped. Legal faults never lead there.
    DIVERGENCE_STOP = "path: divergence stop", 0;
    /// A node found its disk damaged and refused to start.
    DAMAGE_REFUSED = "path: node refused damaged disk", 50;
    /// A node noticed that its disk is full.
    DISK_FULL_SEEN = "path: disk full seen", 50;
    /// A node started with what its disk held.
    RESTART = "path: restart", 1_000;
    /// A node was killed while a disk operation was under way.
    CRASH_DURING_IO = "path: crash during io", 200;
}

/// The counters of one run. Clones count into the same ones.
#[derive(Clone, Debug, Default)]
pub struct Coverage(Rc<RefCell<BTreeMap<&'static str, u64>>>);

impl Coverage {
    /// Counts one.
    pub fn hit(&self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts several.
    pub fn add(&self, name: &'static str, times: u64) {
        if times > 0 {
            *self.0.borrow_mut().entry(name).or_default() += times;
        }
    }

    /// How often it was counted.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.borrow().get(name).copied().unwrap_or_default()
    }

    /// Adds all counters to those of other runs.
    pub fn merge_into(&self, totals: &mut BTreeMap<String, u64>) {
        for (name, times) in self.0.borrow().iter() {
            *totals.entry((*name).to_string()).or_default() += times;
        }
    }

    /// All counters.
    #[must_use]
    pub fn totals(&self) -> BTreeMap<String, u64> {
        let mut totals = BTreeMap::new();
        self.merge_into(&mut totals);
        totals
    }
}

/// What was not reached often enough in a run of so many seeds, for people; empty if all was.
#[must_use]
pub fn shortfalls(totals: &BTreeMap<String, u64>, seeds: u64) -> Vec<String> {
    if seeds < SEEDS_TO_JUDGE {
        return Vec::new();
    }
    let mut missing = Vec::new();
    for (name, per_thousand) in REQUIRED {
        let required = per_thousand * seeds / 1000;
        let reached = totals.get(*name).copied().unwrap_or_default();
        if reached < required {
            missing.push(format!("{name}: reached {reached} times in {seeds} seeds, at least {required} required"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enough_for(seeds: u64) -> BTreeMap<String, u64> {
        REQUIRED.iter().map(|(name, minimum)| ((*name).to_string(), minimum * seeds / 1000)).collect()
    }

    /// A run that lost one kind of fault must be red, and say which.
    #[test]
    fn a_path_that_was_not_reached_is_named() {
        let mut totals = enough_for(1000);
        assert_eq!(shortfalls(&totals, 1000), Vec::<String>::new());
        *totals.get_mut(SNAPSHOT_INSTALLED).unwrap() -= 1;
        totals.remove(RING);
        let missing = shortfalls(&totals, 1000);
        assert_eq!(missing.len(), 2);
        assert!(missing[0].contains("ring") && missing[1].contains("snapshot install"), "{missing:?}");
    }

    /// Twice the seeds must reach twice as much; a handful of seeds cannot be judged at all.
    #[test]
    fn what_is_required_grows_with_the_seeds() {
        assert_eq!(shortfalls(&enough_for(1000), 2000).len(), REQUIRED.iter().filter(|(_, least)| *least > 0).count());
        assert_eq!(shortfalls(&enough_for(200), 200), Vec::<String>::new());
        assert_eq!(shortfalls(&BTreeMap::new(), SEEDS_TO_JUDGE - 1), Vec::<String>::new());
        assert_ne!(shortfalls(&BTreeMap::new(), SEEDS_TO_JUDGE), Vec::<String>::new());
    }

    /// Two paths under one name would hide that one of them is never reached.
    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = REQUIRED.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), REQUIRED.len());
    }

    /// The parts of a run count through clones; all of it must arrive in the totals.
    #[test]
    fn clones_count_into_the_same_counters() {
        let coverage = Coverage::default();
        let clone = coverage.clone();
        coverage.hit(CRASH);
        clone.add(CRASH, 2);
        clone.add(PAUSE, 0);
        assert_eq!((coverage.get(CRASH), coverage.get(PAUSE)), (3, 0));
        let mut totals = BTreeMap::from([(CRASH.to_string(), 1)]);
        coverage.merge_into(&mut totals);
        assert_eq!(totals, BTreeMap::from([(CRASH.to_string(), 4)]));
    }
}
