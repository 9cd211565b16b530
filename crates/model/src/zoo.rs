//! The bug zoo: mistakes planted in the production code on purpose, to show that the simulator finds them.
//!
//! Without the feature `zoo`, which nothing but the simulator's own zoo run turns on, every question here is
//! a constant `false` and the planted lines do not exist in what is compiled. With it, at most one bug is
//! awake in a process, chosen once by [`plant`]. The list and what each one teaches:
//! `docs/internals/simulation.md`.

/// Whether the named bug is awake: `planted!(AckBeforeSync)`.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::zoo::is_planted($crate::zoo::Bug::$bug)
    };
}

/// Makes the list of inhabitants and their names out of one table, so that neither lacks one of the other's.
macro_rules! inhabitants {
    ($($(#[$says:meta])* $bug:ident = $name:literal,)*) => {
        /// The inhabitants: the invariant each one breaks, and what it does to a user.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[$says])* $bug,)*
        }

        impl Bug {
            /// All of them, by the name the command line uses.
            pub const ALL: &[(&str, Bug)] = &[$(($name, Bug::$bug),)*];
        }
    };
}

inhabitants! {
    // Promises and the disk.
    /// H2, R2: writes are acknowledged while they are only in memory, and synced about once a second. A power
    /// cut loses acknowledged writes.
    AckBeforeSync = "ack-before-sync",
    /// H2, R2: every other batch is acknowledged without a sync of its own.
    EveryOtherSyncSkipped = "every-other-sync-skipped",
    /// H17: a sync that failed is tried again and believed, though the system has dropped what it was to write.
    SyncErrorRetried = "sync-error-retried",
    /// R2: a follower tells the leader that it stored entries, or that it votes, before the disk has them.
    FollowerAcksBeforeSync = "follower-acks-before-sync",
    /// H2: a cluster of one need not wait for anybody, so it does not wait for its disk either.
    LoneNodeAcksBeforeSync = "lone-node-acks-before-sync",
    /// R5: which term it is and for whom a node voted is not written down. After a restart it votes again.
    PromiseNotPersisted = "promise-not-persisted",
    /// H22: a snapshot gets its final name before its bytes are durable.
    SnapshotNamedBeforeSync = "snapshot-named-before-sync",
    /// R2: the journal is trimmed when a snapshot begins, not when it is durable.
    JournalTrimmedTooSoon = "journal-trimmed-too-soon",
    /// H15, H16: a record of the journal with a good header is believed whatever its content.
    RecordChecksumIgnored = "record-checksum-ignored",
    /// R5: after a restart, entries that another leader had replaced are back in the log.
    ReplacedEntriesReturn = "replaced-entries-return",
    /// H16: frames between members are believed without looking at their checksums.
    FrameChecksumIgnored = "frame-checksum-ignored",

    // Snapshots and applying.
    /// H1: a snapshot says that it holds one entry more than it does, and that entry is never carried out.
    AppliedAheadOfData = "applied-ahead-of-data",
    /// H25: a snapshot leaves out which proposals were carried out, so a node that starts from it does some
    /// again.
    SnapshotForgetsRequests = "snapshot-forgets-requests",
    /// M1: a snapshot names the voters there were when the node started.
    SnapshotForgetsVoters = "snapshot-forgets-voters",
    /// H11: after a restart leases do not know their keys any more, and leave them behind when they end.
    LoadedLeasesOwnNothing = "loaded-leases-own-nothing",
    /// H25: a proposal that is sent again because its leader was lost is carried out again.
    ResentProposalDoneTwice = "resent-proposal-done-twice",
    /// H24: the order of changes depends on what happens to be in a node's memory, as that of a hash table
    /// does.
    OrderDependsOnMemory = "order-depends-on-memory",

    // Transactions, revisions, compaction.
    /// R1: a transaction that changes nothing takes a revision all the same.
    NoChangeTakesARevision = "no-change-takes-a-revision",
    /// R1: a response tells the revision after the whole batch, not after its own request.
    HeaderOfTheWholeBatch = "header-of-the-whole-batch",
    /// R4: a comparison with the last change of a key that is gone always holds.
    AbsentKeyMatches = "absent-key-matches",
    /// H6: a compaction to a revision that does not exist yet is carried out.
    FutureIsCompacted = "future-is-compacted",
    /// H6: a watch from exactly the compacted revision, which is still held, is refused.
    CompactedRevisionUnwatchable = "compacted-revision-unwatchable",
    /// H6: compaction takes the changes of the revision it was asked to keep. A watcher that goes on from
    /// there misses them.
    CompactionDropsItsOwnRevision = "compaction-drops-its-own-revision",
    /// R2: a write that got no answer in time is reported as certainly not done. It may be.
    TimeoutToldAsNotDone = "timeout-told-as-not-done",

    // Reads.
    /// H7, R3: a linearizable read is answered from whatever the node has.
    ReadWithoutBarrier = "read-without-barrier",
    /// H14: a node that was started again shows at once what it has, which may be less than it had shown before.
    LocalReadAfterStart = "local-read-after-start",
    /// H14: a node that was started again lets watches begin at what it has, and tells what clients had seen before.
    WatchOpenedAfterStart = "watch-opened-after-start",
    /// R3: a read is answered once the leader is confirmed, before this node carried out what was agreed on.
    ReadBeforeApply = "read-before-apply",
    /// H7: every round of "do I still lead?" has the same name, so an answer to an old one passes for an
    /// answer to a new one.
    ReadContextReused = "read-context-reused",
    /// H7: a leader trusts that nobody else leads for an election timeout after it heard of a majority.
    /// Pauses break that.
    LeaseBasedReads = "lease-based-reads",

    // Leases.
    /// H8: a leader that was deposed goes on ending leases, which are renewed elsewhere.
    ExpiryByDeposedLeader = "expiry-by-deposed-leader",
    /// H8, L1: a new leader believes that all leases have run out.
    NewLeaderForgetsTimeLeft = "new-leader-forgets-time-left",
    /// L1: a lease ends at its first deadline, renewed or not.
    RenewalOverlooked = "renewal-overlooked",
    /// H8, L4: a lease whose end is already in the log is renewed.
    EndingLeaseRenewed = "ending-lease-renewed",
    /// H20, L1: leases run by the wall clock, which somebody may set.
    LeasesByWallClock = "leases-by-wall-clock",
    /// L1: a renewal counts from when the clock was last looked at, not from when it came.
    LeaseClockBehind = "lease-clock-behind",
    /// L3: one key of a lease stays when it ends.
    LeaseEndLeavesAKey = "lease-end-leaves-a-key",
    /// L3: the keys of a lease that ends are deleted at a revision each.
    LeaseKeysGoOneByOne = "lease-keys-go-one-by-one",
    /// L3: a key that was moved to another lease still goes with its old one.
    MovedKeyStaysWithOldLease = "moved-key-stays-with-old-lease",
    /// H9, L4: a key can be put on a lease that is over, where it stays for ever.
    PutOnDeadLease = "put-on-dead-lease",

    // Watches.
    /// H5, W3: events that find a watcher's queue full are dropped.
    FullQueueDropsEvents = "full-queue-drops-events",
    /// H5, W3: a watcher whose queue was full is told what comes after the events that did not fit.
    LagBeginsTooLate = "lag-begins-too-late",
    /// H5, W2: a watcher that caught up is told the last revision again.
    TakenBackOneTooEarly = "taken-back-one-too-early",
    /// H5, W3: watchers are not told what a snapshot from the leader brought.
    WatchersMissTheJump = "watchers-miss-the-jump",
    /// H5, W6: a watcher is told how far it is while it still lags behind that.
    ProgressWhileLagging = "progress-while-lagging",
    /// H5, W6: progress is answered with the store's revision, past the events that wait in the queue.
    ProgressPastTheQueue = "progress-past-the-queue",
    /// H6, W9: a watch from a future revision is told what comes before that.
    FutureWatchToldAtOnce = "future-watch-told-at-once",
    /// W8: a watcher whose next revision was compacted is told nothing any more, not even that.
    CompactedWatchStaysSilent = "compacted-watch-stays-silent",
    /// R4, W4: the changes of one transaction arrive in several responses.
    RevisionToldInPieces = "revision-told-in-pieces",
    /// W7: when history is read again, the previous value of an event is the new one.
    PreviousIsTheEventItself = "previous-is-the-event-itself",

    // Users and roles.
    /// A1: who proved to be somebody before users and roles changed is still believed.
    OldProofCounts = "old-proof-counts",
    /// A1: what was allowed where it came in is carried out, whatever was revoked meanwhile.
    ApplyAsksNobody = "apply-asks-nobody",
    /// A1: a watcher goes on after its user lost the right to read.
    RevokedWatcherGoesOn = "revoked-watcher-goes-on",

    // ZooKeeper's sessions, znodes and watches.
    /// S1, H11: one ephemeral znode of a session stays when it ends.
    SessionEndLeavesAnEphemeral = "session-end-leaves-an-ephemeral",
    /// S2, H11: who comes back with a session that is over is let in, under its old id.
    ClosedSessionLetIn = "closed-session-let-in",
    /// S3: packets are noted at the node that gets them, and the leader hears nothing of it.
    SessionRenewedHereOnly = "session-renewed-here-only",
    /// S4: sync is answered with whatever the node has.
    SyncWithoutBarrier = "sync-without-barrier",
    /// S4: the number of a sequential znode is the number of its siblings, so it is given out twice.
    NumberFromSiblings = "number-from-siblings",
    /// S5: what changed while a client was away fires no watch.
    WatchLostWhileAway = "watch-lost-while-away",
    /// S5: a one-shot watch stays after it fired.
    OneShotWatchStays = "one-shot-watch-stays",

    // Native primitives.
    /// K2: a writer is let in beside readers.
    WriterJoinsReaders = "writer-joins-readers",
    /// K2: permits are given out as long as one is left, however many are asked for.
    PermitsOverbooked = "permits-overbooked",
    /// K1: the token of a grant is that of the place, so it goes back when one who waited long is let in.
    TokenOfThePlace = "token-of-the-place",
    /// K5: who came last is let in first.
    LastComeFirstServed = "last-come-first-served",
    /// K5: readers that come later share with those that hold, while a writer waits.
    NewcomerOvertakesWriter = "newcomer-overtakes-writer",
    /// K5: a release changes the places of all who wait, and wakes them all.
    ReleaseWakesEverybody = "release-wakes-everybody",
    /// K5: a holder that gives its place up lets nobody in.
    GivingUpWakesNobody = "giving-up-wakes-nobody",
    /// S1, K2: a session that ends leaves the places at which it waited, and is let in when its turn comes.
    DeadWaiterStays = "dead-waiter-stays",
    /// S1: one thing that a session held stays when it ends.
    SessionEndLeavesAHolding = "session-end-leaves-a-holding",
    /// S2: a session that was closed goes on answering.
    ClosedNativeSessionAnswers = "closed-native-session-answers",
    /// K3: whoever knows the token of a holder can release what it holds.
    ReleaseByAnybody = "release-by-anybody",
    /// K3: a renewal is carried out whatever its token.
    RenewalUnfenced = "renewal-unfenced",
    /// E1: a leader's successor leads in the same epoch.
    SuccessorKeepsTheEpoch = "successor-keeps-the-epoch",
    /// E1: the successor a leader named is never told.
    SuccessorNeverTold = "successor-never-told",
    /// E1: whoever wants to can say what the leader shows.
    ProclaimByAnybody = "proclaim-by-anybody",
    /// E1: observers of an election are not told what its leader shows from now on.
    ProclamationNeverTold = "proclamation-never-told",
    /// E1, K5: observers are not told that a leader went, or a place in a queue.
    VacancyNeverTold = "vacancy-never-told",
    /// B1: a barrier for more than two opens when one is missing.
    BarrierOpensOneEarly = "barrier-opens-one-early",
    /// B1: a double barrier is told to be left by all while one is still inside.
    DoubleBarrierLeftEarly = "double-barrier-left-early",
    /// B1: the last one inside a double barrier dies, and those who left are told that it left, although a death was to
    /// break the meeting.
    BarrierBreakToldAsLeft = "barrier-break-told-as-left",
    /// B1: a barrier that is to shrink goes on waiting for the dead.
    DeadPartyStillExpected = "dead-party-still-expected",
    /// B1: a latch opens when one is left to be counted down.
    LatchOpensOneEarly = "latch-opens-one-early",
    /// P1: a phase ends when one of the phasers of the tree is done.
    PhaseEndsWithOneChild = "phase-ends-with-one-child",
    /// P1: a party that died is waited for, for ever.
    PhaserDeathHoldsUp = "phaser-death-holds-up",
    /// P1: a party that goes before it arrived takes another's count along, and the phase ends without that one.
    DeadPartyCountedTwice = "dead-party-counted-twice",
    /// H25: a native request that is asked again is carried out again.
    NativeRetryDoneTwice = "native-retry-done-twice",
    /// R3: a block of numbers begins with the last one of the block before.
    BlocksOverlap = "blocks-overlap",
    /// K4: a fence lets old tokens through.
    FenceAdmitsOldTokens = "fence-admits-old-tokens",
    /// K4: a counter is compared and set under any token.
    CompareAndSetUnfenced = "compare-and-set-unfenced",
    /// K6: a transaction that shows a token is carried out however old it is.
    OldTokenInATransaction = "old-token-in-a-transaction",
    /// K4: a transaction shows a token and is let through, and the fence does not remember it.
    ShownTokenForgotten = "shown-token-forgotten",
    /// K6: a fence lets each token through once.
    TokenLetThroughOnce = "token-let-through-once",
    /// K3, K6: a native write is carried out however old the token of its lock is.
    WriteUnderOldToken = "write-under-old-token",
    /// K3: whoever knows the token of a holder can write what its lock guards.
    WriteByAnybody = "write-by-anybody",
    /// R2: a native write whose condition does not hold is told to be done.
    UnmetWriteToldAsDone = "unmet-write-told-as-done",
    /// K5: permits that a resize adds are given to nobody.
    ResizeWakesNobody = "resize-wakes-nobody",
    /// K2: something is forgotten while it is used.
    ForgottenWhileUsed = "forgotten-while-used",
    /// S3: who asks for a session whose end is only proposed is told that it is over.
    EndingSessionToldAsOver = "ending-session-told-as-over",
    /// S3: a session's end is not told to a node's native face while it has not taken what was told before.
    EndsToldWhenIdle = "ends-told-when-idle",
    /// S3: a node that takes over the state of another does not say that sessions may have ended.
    EndsMissTheJump = "ends-miss-the-jump",
    /// U1: an object that is retired may go at once, whoever keeps it.
    RetiredWhileKept = "retired-while-kept",
    /// U1: an object that may go is protected again, while its owner deletes it.
    RetiredProtectedAgain = "retired-protected-again",
    /// U1: a version may go while the last one published before it is read.
    ReadersOverlooked = "readers-overlooked",

    // Members.
    /// H21: a member that lost its disk is welcomed back under its old id.
    WipedDiskRejoins = "wiped-disk-rejoins",
    /// M1: a member that was removed is still counted among the voters.
    RemovedMemberStillVotes = "removed-member-still-votes",
}

#[cfg(feature = "zoo")]
static AWAKE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(NONE);

#[cfg(feature = "zoo")]
const NONE: u8 = u8::MAX;

/// Wakes one bug, for the rest of the process.
#[cfg(feature = "zoo")]
pub fn plant(bug: Bug) {
    AWAKE.store(bug as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this bug is awake.
#[cfg(feature = "zoo")]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    AWAKE.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether this bug is awake: never, in a build without the zoo.
#[cfg(not(feature = "zoo"))]
#[must_use]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}
