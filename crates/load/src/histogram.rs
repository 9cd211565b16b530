//! Latencies, counted in buckets that are at most 1.6 % wide, so that a run of any length takes 30 KB.

use std::time::Duration;

/// Buckets per power of two, as a power of two: 64 of them make each at most 1/64 wide.
const FINENESS: u32 = 6;
const PER_OCTAVE: usize = 1 << FINENESS;
const BUCKETS: usize = (64 - FINENESS as usize + 1) * PER_OCTAVE;

/// How often which latency was seen.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// Nothing seen yet.
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0, max_ns: 0 }
    }

    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts all of `other` too.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The latency that `per_mille` of 1000 did not exceed (500 is the median); zero if nothing was counted.
    pub fn quantile(&self, per_mille: u64) -> Duration {
        let rank = (self.count * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_bound(at).min(self.max_ns));
            }
        }
        Duration::ZERO
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PER_OCTAVE as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINENESS;
    (shift as usize + 1) * PER_OCTAVE + (ns >> shift) as usize - PER_OCTAVE
}

fn upper_bound(bucket: usize) -> u64 {
    if bucket < 2 * PER_OCTAVE {
        return bucket as u64;
    }
    let shift = (bucket / PER_OCTAVE - 1) as u32;
    let mantissa = (bucket % PER_OCTAVE + PER_OCTAVE) as u128;
    u64::try_from(((mantissa + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A percentile that is off by more than the buckets' width would make the tables lie.
    #[test]
    fn quantiles_are_within_two_percent() {
        let mut histogram = Histogram::new();
        for us in 1..=10_000u64 {
            histogram.record(Duration::from_micros(us));
        }
        for (per_mille, exact_us) in [(500, 5_000.0), (990, 9_900.0), (999, 9_990.0)] {
            let got = histogram.quantile(per_mille).as_secs_f64() * 1e6;
            assert!((got / exact_us - 1.0).abs() < 0.02, "{per_mille}: {got}");
        }
        assert_eq!(histogram.quantile(1000), Duration::from_millis(10));
        assert_eq!(histogram.max(), Duration::from_millis(10));
    }

    /// Every value must land in a bucket whose bounds hold it, the extremes included.
    #[test]
    fn every_value_lies_within_its_bucket() {
        for ns in [0, 1, 63, 64, 127, 128, 129, 1_000_000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let at = bucket(ns);
            assert!(upper_bound(at) >= ns, "{ns}");
            assert!(at == 0 || upper_bound(at - 1) < ns, "{ns}");
        }
    }

    /// Merging workers' histograms must not lose requests.
    #[test]
    fn merging_adds_up() {
        let (mut left, mut right) = (Histogram::new(), Histogram::new());
        left.record(Duration::from_micros(5));
        right.record(Duration::from_millis(7));
        left.merge(&right);
        assert_eq!((left.count(), left.max()), (2, Duration::from_millis(7)));
        assert_eq!(Histogram::new().quantile(500), Duration::ZERO);
    }
}
