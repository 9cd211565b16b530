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

/// The inhabitants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// H21: a member that lost its disk is welcomed back under its old id.
    WipedDiskRejoins = 1,
}

impl Bug {
    /// All of them, by the name the command line uses.
    pub const ALL: &[(&str, Bug)] = &[("wiped-disk-rejoins", Bug::WipedDiskRejoins)];
}

#[cfg(feature = "zoo")]
static AWAKE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

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
