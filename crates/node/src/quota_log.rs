//! Tells of soft limits of quotas that were broken. A soft limit stops nobody, so whoever runs into it does so again
//! and again: a line is written when their number has doubled, and the log stays small.

/// Writes the lines.
#[derive(Default)]
pub(crate) struct QuotaLog {
    /// How often it happened since the node started.
    times: u64,
}

impl QuotaLog {
    /// Changes of these znodes broke a soft limit.
    pub(crate) fn exceeded(&mut self, paths: &[String]) {
        for path in paths {
            self.times += 1;
            if self.times.is_power_of_two() {
                tracing::warn!(path, times = self.times, "a soft limit of a quota is exceeded");
            }
        }
    }
}
