//! Fenced locks, elections, barriers, phasers and more, held in a Tidelock cluster.
//!
//! ```
#![doc = include_str!("doc/lock.rs")]
//! ```
//!
//! | You need | Use | It ends when |
//! | --- | --- | --- |
//! | one at a time | [`Client::lock`] | the [`Guard`] is dropped or released |
//! | many readers or one writer | [`Client::rw_lock`] | the same |
//! | at most N at a time | [`Client::semaphore`] | the same |
//! | one leader, known to all | [`Client::election`] | the [`Leadership`] is dropped or resigned |
//! | N that start together | [`Client::barrier`] | all are there |
//! | N that start and end together | [`Client::double_barrier`] | all have left |
//! | to wait for N events | [`Client::latch`] | it is counted down |
//! | many that go from phase to phase | [`Client::phaser`] | the [`Party`] is dropped or deregistered |
//! | numbers | [`Client::counter`] | |
//! | to keep out who lost its lock | [`Client::fence`] | |
//! | to replace something that others read | [`Client::rcu`] | nobody reads the old version |
//! | to remove something that others look at | [`Client::hazard`] | nobody looks at it |
//!
//! # What holds
//!
//! - Places are granted in the order of asking, and one release wakes one waiter. A grant has a [`Token`] that is larger
//!   than every one given for that name before.
//! - Futures may be dropped at any point, guards at any time: no place in a queue and no holder is left behind.
//! - Any node will do: each passes on to the leader what is the leader's to decide. The client goes to another one of
//!   those it was given when its own dies or falls silent.
//! - A request that is sent again, since a node died or an answer got lost, happens once: the cluster knows it by its number.
//! - What is held is renewed every third of its time to live. [`Guard::check`] fails before anybody else can have it,
//!   even if this process was stopped or the machine slept meanwhile.
//! - Errors say whether nothing happened, something is lost, or nobody knows: see [`Error`].
//!
//! # What does not
//!
//! A lock alone cannot keep a slow write from arriving late. Send the token along and let the resource refuse old ones, or
//! ask [`Fence`].

mod barrier;
mod client;
mod clock;
mod counter;
mod dial;
mod election;
mod engine;
mod error;
mod guard;
mod handle;
mod hazard;
mod held;
mod inbox;
pub mod inspect;
mod latch;
mod limits;
mod lock;
mod nodes;
mod options;
mod phaser;
mod rcu;
mod semaphore;
mod session;
mod task;
mod write;

pub use barrier::{Barrier, DoubleBarrier, Inside, OnDeath};
pub use client::Client;
pub use counter::{Counter, Fence};
pub use election::{Election, Leader, LeaderChanges, Leadership};
pub use error::{Code, Error, Failure, Loss, Refusal};
pub use guard::{Guard, Token};
pub use hazard::{Hazard, Protection};
pub use latch::{Latch, Pledge};
pub use lock::{Lock, RwLock, WriteGuard};
pub use options::Options;
pub use phaser::{Party, Phaser};
pub use rcu::{Rcu, RcuReader};
pub use semaphore::Semaphore;
pub use write::Write;

/// What the README shows must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
