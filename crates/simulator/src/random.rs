//! The one source of chance in a run: everything that is drawn comes from a [`Random`], and every
//! `Random` comes from the run's seed.
//!
//! Parts of the simulator that draw independently each [`Random::fork`] their own stream by a label.
//! A fork depends on the seed and the labels on the way to it, never on how much was drawn before, so a
//! part that draws more than it used to does not change what the other parts draw.
//!
//! The numbers are the same on every platform, in every build and in every version: pinned seeds would
//! mean nothing otherwise. There are no floats here; chances are in thousandths.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use xxhash_rust::xxh3::xxh3_128;

/// A stream of numbers. Cheap to make; a clone goes on with the same numbers as the original.
#[derive(Clone, Debug)]
pub struct Random {
    /// What this stream was made from; forks are made from it too.
    key: [u8; 16],
    numbers: ChaCha8Rng,
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random::from_key(xxh3_128(&seed.to_le_bytes()).to_le_bytes())
    }

    /// An independent stream. The same label gives the same stream again, however much was drawn from
    /// this one in between.
    #[must_use]
    pub fn fork(&self, label: &str) -> Random {
        let mut from = self.key.to_vec();
        from.extend_from_slice(label.as_bytes());
        Random::from_key(xxh3_128(&from).to_le_bytes())
    }

    /// An independent stream for one of several alike parts.
    #[must_use]
    pub fn fork_numbered(&self, label: &str, number: u64) -> Random {
        self.fork(&format!("{label}/{number}"))
    }

    fn from_key(key: [u8; 16]) -> Random {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&key);
        Random { key, numbers: ChaCha8Rng::from_seed(seed) }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.numbers.next_u64()
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below 0");
        // Uneven by less than n in 2^64, and always takes exactly one number from the stream.
        let product = u128::from(self.number()) * u128::from(n);
        (product >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "there is no number from {low} to {high}");
        match (high - low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.number(),
        }
    }

    /// A number from `low` to `high`, both included, with all orders of magnitude between them equally
    /// likely: for durations and sizes, of which most should be small and some large.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "there is no number from {low} to {high}");
        // Draws how many bits the distance from `low` has, then the distance.
        let bits = self.between(0, u64::from(u64::BITS - (high - low).leading_zeros()));
        let most = if bits == u64::from(u64::BITS) { u64::MAX } else { (1 << bits) - 1 };
        let least = most >> 1;
        low + self.between(least.min(high - low), most.min(high - low))
    }

    /// True so many times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of these; there is at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Puts these into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pinned seed of every bug ever found relies on these numbers: should they change, all pinned
    /// runs would silently become other runs.
    #[test]
    fn the_numbers_of_a_seed_and_of_its_forks_never_change() {
        let mut random = Random::new(42);
        let mut fork = random.fork("network");
        let mut numbered = random.fork_numbered("node", 3).fork("disk");
        let drawn = [&mut random, &mut fork, &mut numbered].map(|random| [random.number(), random.number()]);
        let pinned = [
            [6252998091002797022, 7752476988356233735],
            [9414326235862202702, 16554342490239280580],
            [3127552747860762734, 12017254533953170353],
        ];
        assert_eq!(drawn, pinned);
    }

    /// A workload that draws once more must not change the faults of a seed.
    #[test]
    fn a_fork_does_not_depend_on_what_was_drawn_before() {
        let mut random = Random::new(7);
        let before = random.fork("a").number();
        random.number();
        assert_eq!(random.fork("a").number(), before);
        assert_ne!(random.fork("b").number(), before);
        assert_ne!(Random::new(8).fork("a").number(), before);
    }

    /// A bound that is never reached, or overstepped, would leave faults undrawn or crash a run.
    #[test]
    fn bounds_are_reached_and_kept() {
        let mut random = Random::new(1);
        let mut seen = [0_u64; 5];
        for _ in 0..5000 {
            seen[random.between(10, 14) as usize - 10] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_eq!(random.between(3, 3), 3);
        random.between(0, u64::MAX);
        assert!((0..1000).all(|_| random.below(1) == 0));
    }

    /// Faults in thousandths: never at 0, always at 1000, and in proportion between.
    #[test]
    fn chances_are_in_thousandths() {
        let mut random = Random::new(2);
        assert!((0..1000).all(|_| !random.chance(0)));
        assert!((0..1000).all(|_| random.chance(1000)));
        let hits = (0..10_000).filter(|_| random.chance(300)).count();
        assert!((2800..3200).contains(&hits), "{hits}");
    }

    /// Durations drawn this way must stay within their bounds, be mostly small and sometimes large.
    #[test]
    fn magnitudes_are_mostly_small_and_sometimes_large() {
        let mut random = Random::new(3);
        let drawn: Vec<u64> = (0..10_000).map(|_| random.magnitude(100, 2_000_000)).collect();
        assert!(drawn.iter().all(|value| (100..=2_000_000).contains(value)));
        assert!(drawn.iter().filter(|value| **value < 2_000).count() > 3000);
        assert!(drawn.iter().filter(|value| **value > 500_000).count() > 300);
        assert_eq!(random.magnitude(5, 5), 5);
        random.magnitude(0, u64::MAX);
    }

    /// An order that cannot come up is a bug that cannot be found.
    #[test]
    fn every_order_and_every_item_comes_up() {
        let mut random = Random::new(4);
        let mut orders = std::collections::BTreeSet::new();
        let mut picks = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut items = [1, 2, 3, 4];
            random.shuffle(&mut items);
            orders.insert(items);
            picks.insert(*random.pick(&[1, 2, 3]));
        }
        assert_eq!((orders.len(), picks.len()), (24, 3));
    }
}
