//! Clients of the native API for tests: one stream, with what came on it kept until it is asked for.

use tidelock_native_api::v1;
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::native_client::NativeClient;
use tidelock_native_api::v1::request::Op;
use tidelock_native_api::v1::to_client::Message as ToClient;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Channel;

use super::{Cluster, Process, free_ports, within};

impl Cluster {
    /// Founds a cluster that serves the native API, and waits until all nodes are ready. Where each serves it.
    pub fn start_native(count: usize) -> (Cluster, Vec<u16>) {
        let mut cluster = Cluster::prepare(count, &[]);
        let ports = cluster.nodes.iter_mut().map(Process::serve_native).collect();
        cluster.start_all();
        (cluster, ports)
    }
}

impl Process {
    /// Serves the native API from the next start on; at which port.
    pub fn serve_native(&mut self) -> u16 {
        let port = free_ports(1)[0];
        self.arguments.extend(["--native-listen".to_owned(), format!("127.0.0.1:{port}")]);
        port
    }
}

/// A client of unary calls.
pub async fn calls(port: u16) -> NativeClient<Channel> {
    let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    NativeClient::new(within("a connection", channel.connect()).await.unwrap())
}

/// One stream.
pub struct Stream {
    sender: mpsc::Sender<v1::FromClient>,
    receiver: Streaming<v1::ToClient>,
    /// Came and was not asked for.
    kept: Vec<ToClient>,
    number: u64,
}

impl Stream {
    pub async fn connect(port: u16) -> Stream {
        let mut client = calls(port).await;
        let (sender, requests) = mpsc::channel(1024);
        let requests = futures_util::stream::unfold(requests, |mut requests| async {
            requests.recv().await.map(|request| (request, requests))
        });
        let receiver = within("a stream", client.connect(requests)).await.unwrap().into_inner();
        Stream { sender, receiver, kept: Vec::new(), number: 0 }
    }

    pub async fn send(&self, message: FromClient) {
        self.sender.send(v1::FromClient { message: Some(message) }).await.unwrap();
    }

    /// Sends beside whoever reads.
    pub fn sender(&self) -> mpsc::Sender<v1::FromClient> {
        self.sender.clone()
    }

    /// The next message, whatever it is; nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<ToClient> {
        if !self.kept.is_empty() {
            return Some(self.kept.remove(0));
        }
        within("a message", self.receiver.message()).await.unwrap().and_then(|message| message.message)
    }

    /// Whether nothing more comes than what is kept.
    pub async fn next_is_over(&mut self) -> bool {
        within("the end", self.receiver.message()).await.unwrap().is_none()
    }

    /// The first message that `wanted` takes; the others are kept in order.
    pub async fn find<T>(&mut self, what: &str, wanted: impl Fn(&ToClient) -> Option<T>) -> T {
        if let Some(at) = self.kept.iter().position(|message| wanted(message).is_some()) {
            return wanted(&self.kept.remove(at)).unwrap();
        }
        loop {
            let message = within(what, self.receiver.message()).await.unwrap();
            let message = message.unwrap_or_else(|| panic!("the stream ended before {what}; kept {:?}", self.kept));
            let message = message.message.unwrap();
            match wanted(&message) {
                Some(found) => return found,
                None => self.kept.push(message),
            }
        }
    }

    /// Opens a session, which is attached to this stream.
    pub async fn open(&mut self, ttl_ms: u32) -> i64 {
        self.send(FromClient::Open(v1::OpenRequest { ttl_ms, client: 0 })).await;
        self.find("a session", |message| match message {
            ToClient::Opened(opened) => Some(opened.clone()),
            _ => None,
        })
        .await
        .session
    }

    /// Sends a request with the next number: which.
    pub async fn ask(&mut self, session: i64, op: Op) -> u64 {
        self.number += 1;
        self.ask_again(session, self.number, op).await;
        self.number
    }

    pub async fn ask_again(&self, session: i64, number: u64, op: Op) {
        let request = v1::Request { session, number, acknowledged: number.saturating_sub(32), op: Some(op) };
        self.send(FromClient::Request(request)).await;
    }

    /// The reply to a request.
    pub async fn reply(&mut self, number: u64) -> v1::Reply {
        self.find("a reply", |message| match message {
            ToClient::Reply(reply) if reply.number == number => Some(reply.clone()),
            _ => None,
        })
        .await
    }

    /// Asks and waits for the answer, which must be one.
    pub async fn done(&mut self, session: i64, op: Op) -> v1::answer::Answer {
        let number = self.ask(session, op).await;
        answer(&self.reply(number).await)
    }

    /// Asks and waits for the error, which must be one.
    pub async fn refused(&mut self, session: i64, op: Op) -> v1::Error {
        let number = self.ask(session, op).await;
        match self.reply(number).await.result {
            Some(v1::reply::Result::Error(error)) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Takes a lock that must be free: its token.
    pub async fn lock(&mut self, session: i64, name: &str) -> u64 {
        let place = self.place(session, name).await;
        assert_ne!(place.token, 0, "{name} is free");
        place.token
    }

    /// Takes a place in the queue of a lock.
    pub async fn place(&mut self, session: i64, name: &str) -> v1::Place {
        match self.done(session, acquire(name)).await {
            v1::answer::Answer::Place(place) => place,
            other => panic!("not a place: {other:?}"),
        }
    }

    /// The next grant that is pushed.
    pub async fn granted(&mut self) -> v1::Granted {
        self.find("a grant", |message| match message {
            ToClient::Notice(v1::Notice { notice: Some(v1::notice::Notice::Granted(granted)), .. }) => {
                Some(granted.clone())
            }
            _ => None,
        })
        .await
    }

    /// The next loss that is told.
    pub async fn lost(&mut self) -> v1::Lost {
        self.find("a loss", |message| match message {
            ToClient::Lost(lost) => Some(lost.clone()),
            _ => None,
        })
        .await
    }
}

pub fn answer(reply: &v1::Reply) -> v1::answer::Answer {
    match &reply.result {
        Some(v1::reply::Result::Answer(v1::Answer { answer: Some(answer) })) => *answer,
        other => panic!("no answer: {other:?}"),
    }
}

pub fn acquire(name: &str) -> Op {
    Op::Acquire(v1::Acquire { name: name.into(), mode: v1::Mode::Exclusive.into(), ..Default::default() })
}

pub fn release(name: &str, token: u64) -> Op {
    Op::Release(v1::Release { kind: v1::Kind::Lock.into(), name: name.into(), token })
}
