//! Asks what seldom has an answer only after it rang.
//!
//! A task that waits for several things is not told which of them woke it. Where one of them comes all the time and the
//! others hardly ever, asking all of them each time costs more than the one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Remembers whether one of the rare ones rang; nothing before they were first asked.
#[derive(Default)]
pub(crate) struct Rarely(Option<(Arc<Bell>, Waker)>);

/// Passes a wake-up on to the task, and remembers it.
struct Bell {
    task: Waker,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Rarely {
    /// Asks `ask`, if it rang since it last was pending, or if another task asks now.
    pub(crate) fn poll<T>(&mut self, cx: &Context<'_>, ask: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if !self.0.as_ref().is_some_and(|(bell, _)| bell.task.will_wake(cx.waker())) {
            let bell = Arc::new(Bell { task: cx.waker().clone(), rung: AtomicBool::new(true) });
            let waker = Waker::from(Arc::clone(&bell));
            self.0 = Some((bell, waker));
        }
        let Some((bell, waker)) = &self.0 else { return Poll::Pending };
        // Before asking: what rings meanwhile is asked again.
        if !bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let answer = ask(&mut Context::from_waker(waker));
        if answer.is_ready() {
            // Nobody has promised to ring: there may be more.
            bell.rung.store(true, Ordering::Release);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is not asked when it rings is a client whose request is never looked at; one that is asked all the time
    /// is what this is here to prevent.
    #[test]
    fn it_is_asked_at_first_and_after_it_rang_and_not_else() {
        let mut rarely = Rarely::default();
        let mut kept = None;
        let cx = Context::from_waker(Waker::noop());
        let mut poll = |rarely: &mut Rarely, answer: Poll<()>| {
            let mut asked = false;
            let got = rarely.poll(&cx, |cx| {
                (asked, kept) = (true, Some(cx.waker().clone()));
                answer
            });
            if let Some(ring) = kept.take_if(|_| asked) { (got, Some(ring)) } else { (got, None) }
        };
        let (got, ring) = poll(&mut rarely, Poll::Pending);
        assert_eq!(got, Poll::Pending);
        let ring = ring.expect("asked at first");
        assert!(poll(&mut rarely, Poll::Ready(())).1.is_none(), "asked though it did not ring");
        ring.wake_by_ref();
        assert_eq!(poll(&mut rarely, Poll::Ready(())).0, Poll::Ready(()));
        // Whoever answers may have more to say.
        assert!(poll(&mut rarely, Poll::Pending).1.is_some());
        assert!(poll(&mut rarely, Poll::Pending).1.is_none());
    }
}
