//! When a session is renewed, and until when what it holds may be relied on.
//!
//! The server counts the time to live from when it hears of a renewal. The client cannot know when that was, only that
//! it was not before the renewal was sent. So what is held may be relied on for 0.8 times the time to live after the
//! **sending** of the last renewal that was acknowledged; the rest is for what one does after the last look at it.

use std::time::Duration;

use crate::clock::Moment;

/// A renewal is due after this part of the time to live: two may be lost.
const RENEW_AFTER: f64 = 1.0 / 3.0;
/// A node that leaves a renewal unanswered for this part of the time to live is left for another one.
const SILENT_AFTER: f64 = 1.0 / 6.0;
/// What is held may be relied on for this part of the time to live.
const RELY_FOR: f64 = 0.8;

/// The renewals of one session.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    ttl: Duration,
    /// When the last acknowledged renewal was sent.
    acknowledged: Moment,
    /// When the first one without an answer was sent, on the connection there is.
    unanswered: Option<Moment>,
}

impl Renewal {
    /// A session that was asked for at `sent`; if several times, at the first.
    pub(crate) fn opened(ttl: Duration, sent: Moment) -> Renewal {
        Renewal { ttl, acknowledged: sent, unanswered: None }
    }

    /// Until when what is held may be relied on.
    pub(crate) fn valid_until(&self) -> Moment {
        self.acknowledged + self.ttl.mul_f64(RELY_FOR)
    }

    /// When the next renewal is to be sent; none while one is under way.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.unanswered.is_none().then(|| self.acknowledged + self.ttl.mul_f64(RENEW_AFTER))
    }

    /// When the node counts as silent, if it says nothing until then.
    pub(crate) fn silent_at(&self) -> Option<Moment> {
        self.unanswered.map(|sent| sent + self.ttl.mul_f64(SILENT_AFTER))
    }

    /// A renewal is on its way.
    pub(crate) fn sent(&mut self, now: Moment) {
        self.unanswered.get_or_insert(now);
    }

    /// The connection is gone, and with it what was on its way.
    pub(crate) fn disconnected(&mut self) {
        self.unanswered = None;
    }

    /// The renewal that was sent at `sent` is acknowledged, with this time to live.
    pub(crate) fn acknowledged(&mut self, sent: Moment, ttl: Duration) {
        self.ttl = ttl;
        self.acknowledged = self.acknowledged.max(sent);
        self.unanswered = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// An answer that was long under way must not make a lock look fresher than the server knows it to be.
    #[test]
    fn validity_counts_from_the_sending_of_what_was_acknowledged_not_from_the_answer() {
        let mut renewal = Renewal::opened(TTL, at(100));
        assert_eq!(renewal.valid_until(), at(124));
        renewal.sent(at(110));
        assert_eq!(renewal.valid_until(), at(124), "what was only sent counts for nothing");
        // The answer comes at 120; what it says is about 110.
        renewal.acknowledged(at(110), TTL);
        assert_eq!(renewal.valid_until(), at(134));
    }

    /// Answers can come late from a connection before: they must not take away what a later one gave.
    #[test]
    fn an_old_acknowledgement_does_not_shorten_a_newer_one() {
        let mut renewal = Renewal::opened(TTL, at(100));
        renewal.acknowledged(at(115), TTL);
        renewal.acknowledged(at(110), TTL);
        assert_eq!(renewal.valid_until(), at(139));
    }

    /// Two renewals fit before the deadline, and a silent node is left in time to find another.
    #[test]
    fn a_renewal_is_due_after_a_third_and_a_silent_node_is_left_after_a_sixth_more() {
        let mut renewal = Renewal::opened(TTL, at(100));
        assert_eq!(renewal.due(), Some(at(110)));
        assert_eq!(renewal.silent_at(), None);
        renewal.sent(at(110));
        assert_eq!((renewal.due(), renewal.silent_at()), (None, Some(at(115))));
        renewal.sent(at(112));
        assert_eq!(renewal.silent_at(), Some(at(115)), "asking more often does not make a node less silent");
        renewal.disconnected();
        assert_eq!(renewal.due(), Some(at(110)), "it is due on the next connection");
    }
}
