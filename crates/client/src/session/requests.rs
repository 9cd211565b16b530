//! The numbers of a session's requests.
//!
//! A request has its number when it is first sent and keeps it: asked again, on any node, it gets the first answer. All
//! requests up to `acknowledged` have been answered. The server keeps the answers to no more than [`WINDOW`] requests
//! above that, so no more are sent; others wait in line.

use std::collections::{BTreeMap, VecDeque};

/// Most requests above the last acknowledged one: the server's bound.
const WINDOW: u64 = 64;
/// Most requests in line. A program that asks faster than the cluster answers is told so.
const LINE_MAX: usize = 65_536;

/// Requests that are under way, and those in line. `R` is what is asked.
#[derive(Debug)]
pub(crate) struct Requests<R> {
    next: u64,
    under_way: BTreeMap<u64, R>,
    line: VecDeque<R>,
}

impl<R> Requests<R> {
    pub(crate) fn new() -> Requests<R> {
        Requests { next: 1, under_way: BTreeMap::new(), line: VecDeque::new() }
    }

    /// Puts a request into the line; gives it back if the line is full.
    pub(crate) fn push(&mut self, request: R) -> Result<(), R> {
        if self.line.len() >= LINE_MAX {
            return Err(request);
        }
        self.push_always(request);
        Ok(())
    }

    /// Puts a request into the line, even if that is full: for what has a bound of its own.
    pub(crate) fn push_always(&mut self, request: R) {
        self.line.push_back(request);
    }

    /// Numbers the next request in line, if it may be sent.
    pub(crate) fn number_next(&mut self) -> Option<u64> {
        if self.next > self.acknowledged() + WINDOW {
            return None;
        }
        let request = self.line.pop_front()?;
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, request);
        Some(number)
    }

    /// All requests up to this one are answered.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.under_way.first_key_value().map_or(self.next, |(first, _)| *first) - 1
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut R> {
        self.under_way.get_mut(&number)
    }

    /// A request is answered, and will not be asked again.
    pub(crate) fn answered(&mut self, number: u64) -> Option<R> {
        self.under_way.remove(&number)
    }

    /// The numbers under way.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.under_way.keys().copied().collect()
    }

    pub(crate) fn under_way(&self) -> impl Iterator<Item = &R> {
        self.under_way.values()
    }

    pub(crate) fn under_way_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.under_way.values_mut()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.under_way.values_mut().chain(&mut self.line)
    }

    /// Under way and in line.
    pub(crate) fn all(&self) -> impl Iterator<Item = &R> {
        self.under_way.values().chain(&self.line)
    }

    /// Takes those that are not wanted any more. Their numbers, where they have one, are not used again.
    pub(crate) fn take(&mut self, unwanted: impl Fn(&R) -> bool) -> Vec<R> {
        let mut gone: Vec<R> =
            self.under_way.extract_if(.., |_, request| unwanted(request)).map(|(_, request)| request).collect();
        if self.line.iter().any(&unwanted) {
            let (from_line, kept): (VecDeque<R>, _) =
                std::mem::take(&mut self.line).into_iter().partition(|request| unwanted(request));
            self.line = kept;
            gone.extend(from_line);
        }
        gone
    }

    /// Everything there is, for whoever ends the session.
    pub(crate) fn drain(&mut self) -> Vec<R> {
        let under_way = std::mem::take(&mut self.under_way).into_values();
        under_way.chain(std::mem::take(&mut self.line)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.line.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server forgets what is acknowledged: acknowledging a request that has no answer yet would lose the answer.
    #[test]
    fn nothing_is_acknowledged_before_everything_up_to_it_is_answered() {
        let mut requests = Requests::new();
        for request in ["a", "b", "c"] {
            requests.push(request).unwrap();
        }
        assert_eq!(requests.acknowledged(), 0);
        assert_eq!([requests.number_next(), requests.number_next()], [Some(1), Some(2)]);
        assert_eq!(requests.answered(2), Some("b"));
        assert_eq!(requests.acknowledged(), 0);
        assert_eq!(requests.answered(1), Some("a"));
        assert_eq!(requests.acknowledged(), 2);
        assert_eq!(requests.number_next(), Some(3));
        assert_eq!(requests.answered(2), None, "an answer that comes twice is nobody's");
    }

    /// The server refuses more than its window, and a refused request would have to be asked again and again.
    #[test]
    fn no_more_are_under_way_than_the_server_remembers_answers_to() {
        let mut requests = Requests::new();
        for request in 0..100 {
            requests.push(request).unwrap();
        }
        let sent = std::iter::from_fn(|| requests.number_next()).count();
        assert_eq!(sent as u64, WINDOW);
        // Later answers free nothing as long as the first is missing.
        requests.answered(64).unwrap();
        assert_eq!(requests.number_next(), None);
        requests.answered(1).unwrap();
        assert_eq!(requests.number_next(), Some(65));
        assert_eq!(requests.number_next(), None);
    }

    /// A program that asks without end must not grow without end.
    #[test]
    fn a_full_line_gives_the_request_back() {
        let mut requests = Requests::new();
        for request in 0..LINE_MAX {
            requests.push(request).unwrap();
        }
        assert_eq!(requests.push(7), Err(7));
    }
}
