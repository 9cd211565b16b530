//! Finding the request that no node can read.
//!
//! A node ends a stream over a message that it cannot read, and does not say which one that was. Sent again with all
//! the others, it would end every stream, for ever, and nothing would be renewed any more. So after such an end requests
//! are let out one at a time: the one that was out alone when it happens again is the one, and since it was not read it
//! was not carried out. The others are answered as if nothing had been.

use std::collections::{BTreeSet, VecDeque};

use tidelock_native_api::v1::{self, from_client::Message};

use crate::session::Output;

/// A request by its session and number.
type RequestId = (i64, u64);

#[derive(Default)]
pub(super) struct OneByOne {
    /// A stream was ended over a message that is not found yet, and may be among what was out.
    is_on: bool,
    /// Sessions have said all that a new stream must hear.
    is_connected: bool,
    /// Let out, and no answer came yet.
    out: BTreeSet<RequestId>,
    /// Held back, in their order. No more than sessions have under way.
    line: VecDeque<v1::Request>,
}

impl OneByOne {
    /// What may be sent of all this, in its order; the rest is kept until its turn.
    pub(super) fn let_through(&mut self, outputs: Vec<Output>) -> Vec<Output> {
        let mut through = Vec::with_capacity(outputs.len());
        for output in outputs {
            match output {
                Output::Send(Message::Request(request)) if self.is_on => self.line.push_back(request),
                Output::Send(Message::Request(request)) => {
                    self.out.insert((request.session, request.number));
                    through.push(Output::Send(Message::Request(request)));
                }
                other => through.push(other),
            }
        }
        if self.is_on && self.out.is_empty() {
            match self.line.pop_front() {
                Some(request) => {
                    self.out.insert((request.session, request.number));
                    through.push(Output::Send(Message::Request(request)));
                }
                // All that was under way is answered: whatever it was, it is gone.
                None => self.is_on = !self.is_connected,
            }
        }
        through
    }

    pub(super) fn answered(&mut self, session: i64, number: u64) {
        self.out.remove(&(session, number));
    }

    pub(super) fn connected(&mut self) {
        self.is_connected = true;
    }

    pub(super) fn disconnected(&mut self) {
        self.is_connected = false;
        self.out.clear();
        self.line.clear();
    }

    /// The stream was ended over a message. The request that it was, if it is found.
    pub(super) fn bad_message(&mut self) -> Option<RequestId> {
        let alone = self.out.pop_first().filter(|_| self.out.is_empty());
        if alone.is_none() {
            self.is_on = true;
        }
        alone
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidelock_native_api::v1::{self, from_client::Message, lost::Reason, request::Op, to_client};

    use crate::clock::Moment;
    use crate::engine::{Engine, Todo};
    use crate::error::{Code, Error};
    use crate::session::{Output, Ticket, Wish};

    const PATIENCE: Duration = Duration::from_secs(5);

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000)
    }

    fn add(name: &str) -> Op {
        Op::Add(v1::Add { name: name.into(), delta: 1, fencing: None })
    }

    fn from_cluster(message: to_client::Message) -> v1::ToClient {
        v1::ToClient { message: Some(message) }
    }

    /// An engine with one open session, and a cluster that cannot read requests for `bad`.
    struct Pair {
        engine: Engine,
        /// Requests sent and not read yet.
        sent: Vec<v1::Request>,
        carried_out: Vec<u64>,
        streams: u32,
        answered: Vec<Ticket>,
        failed: Vec<(Ticket, Error)>,
    }

    impl Pair {
        fn open() -> Pair {
            let (sent, carried_out, answered, failed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut pair = Pair { engine: Engine::default(), sent, carried_out, streams: 1, answered, failed };
            pair.engine.open(1, Duration::from_secs(30), 77, now());
            pair.engine.connected(now());
            let opened = v1::OpenReply { session: 5, ttl_ms: 30_000, client: 77, ..Default::default() };
            pair.engine.received(from_cluster(to_client::Message::Opened(opened)), now());
            pair.carry_out();
            pair
        }

        fn ask(&mut self, ticket: Ticket, op: Op) {
            let wish = Wish { op, ticket: Some(ticket), consumes: None, patience: PATIENCE, wait: None };
            self.engine.ask(1, wish, now());
        }

        fn carry_out(&mut self) {
            loop {
                let todo = self.engine.take_todo();
                if todo.is_empty() {
                    return;
                }
                for todo in todo {
                    match todo {
                        Todo::Session(Output::Send(Message::Request(request))) => self.sent.push(request),
                        Todo::Session(Output::Answered { ticket, .. }) => self.answered.push(ticket),
                        Todo::Session(Output::Failed { ticket, error }) => self.failed.push((ticket, error)),
                        Todo::StreamEnded => {
                            self.streams += 1;
                            self.sent.clear();
                            self.engine.disconnected();
                            self.engine.connected(now());
                        }
                        _ => {}
                    }
                }
            }
        }

        /// Lets the cluster read all that is sent, until nothing is.
        fn settle(&mut self) {
            self.carry_out();
            for _ in 0..100 {
                if self.sent.is_empty() {
                    return;
                }
                let request = self.sent.remove(0);
                let is_bad = matches!(&request.op, Some(Op::Add(add)) if add.name == "bad");
                let message = if is_bad {
                    let lost = v1::Lost { reason: Reason::BadMessage.into(), session: 0, message: "too large".into() };
                    to_client::Message::Lost(lost)
                } else {
                    if !self.carried_out.contains(&request.number) {
                        self.carried_out.push(request.number);
                    }
                    let answer = v1::answer::Answer::Counter(v1::CounterChange { before: 0, after: 1 });
                    let result = Some(v1::reply::Result::Answer(v1::Answer { answer: Some(answer) }));
                    let (session, number) = (request.session, request.number);
                    to_client::Message::Reply(v1::Reply { session, number, result, ..Default::default() })
                };
                self.engine.received(from_cluster(message), now());
                self.carry_out();
            }
            panic!("it never comes to rest: {} streams", self.streams);
        }
    }

    /// Sent again on every stream it would end every stream, and the guards of the whole client would run out.
    #[test]
    fn a_request_that_no_node_can_read_fails_and_is_not_sent_for_ever() {
        let mut pair = Pair::open();
        pair.ask(1, add("bad"));
        pair.settle();
        assert_eq!((pair.streams, pair.answered.len()), (2, 0));
        assert_eq!(pair.failed[0].1.code(), Some(Code::Mistaken), "{:?}", pair.failed);
        pair.ask(2, add("good"));
        pair.settle();
        assert_eq!((pair.streams, &pair.answered[..]), (2, &[2][..]));
    }

    /// Who asked for something sensible at the same time gets its answer: which of them it was is found out.
    #[test]
    fn requests_beside_one_that_no_node_can_read_are_answered() {
        let mut pair = Pair::open();
        for (ticket, name) in [(1, "good"), (2, "bad"), (3, "good"), (4, "bad"), (5, "good")] {
            pair.ask(ticket, add(name));
        }
        pair.settle();
        assert_eq!(pair.answered, [1, 3, 5]);
        assert_eq!(pair.failed.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(pair.carried_out, [1, 3, 5]);
        // And from then on several are sent at a time again.
        pair.ask(6, add("good"));
        pair.ask(7, add("good"));
        pair.carry_out();
        assert_eq!(pair.sent.len(), 2);
    }
}
