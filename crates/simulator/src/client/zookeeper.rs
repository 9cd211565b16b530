//! A client of a ZooKeeper face: speaks the wire protocol over a pipe in memory to the face's own connection, which
//! runs inside the node's door. Everything that goes over the pipe is written down as the client sees it.
//!
//! What holds: bytes arrive whole and in order, with the delays of a network; what was under way when a node stops
//! still arrives, and then the end. A client that gives a connection up may still have its requests carried out.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use tidelock_face_zookeeper::wire::client::{
    Found, Packet, read_body, read_connected, read_packet, write_connect, write_request,
};
use tidelock_face_zookeeper::wire::{ConnectRequest, Request, take_frame};
use tidelock_model::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::Client;
use crate::doors::within;
use crate::executor::Spawner;
use crate::history::{Greeted, Step, ZnodeLog};

/// Bytes that a pipe holds in each direction.
const PIPE_BYTES: usize = 64 << 10;
/// The largest packet a client takes.
const PACKET_MAX: usize = 4 << 20;
/// How much is read at a time.
const READ_BYTES: usize = 4 << 10;

/// What a client keeps of its session from one connection to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// Which session; 0: none yet.
    pub session: i64,
    /// What proves that it is the client's.
    pub password: Bytes,
    /// The newest zxid of a reply.
    pub seen: i64,
    /// The timeout it wishes or has, in milliseconds.
    pub timeout_ms: u32,
}

/// What came of an attempt to connect.
pub enum Connected {
    /// The session goes on, or begins, here.
    Here(Connection),
    /// It is over.
    Over,
    /// Nobody knows.
    Nowhere,
}

/// A connection with a session.
pub struct Connection {
    client: Client,
    pipe: DuplexStream,
    buffer: BytesMut,
    /// Where its log is.
    log: usize,
    next_xid: i32,
    /// Asked and not answered.
    waiting: VecDeque<(i32, Request)>,
    /// The newest zxid of a reply.
    pub seen: i64,
}

/// What a connection tells its client next.
pub enum News {
    /// A request was answered; which, and how. Errors are numbers.
    Reply(Box<Request>, Result<Found, i32>),
    /// A watch fired: the number of its kind, and where.
    Event(i32, String),
}

impl Client {
    /// Connects to the ZooKeeper face of a node; brings the ticket up to date.
    pub async fn connect(&self, node: NodeId, ticket: &mut Ticket, spawner: &Spawner) -> Connected {
        let recorder = &self.around().recorder;
        let log = recorder.znode_called(ZnodeLog {
            client: self.id(),
            node,
            called: recorder.stamp(),
            wanted: ticket.session,
            seen: ticket.seen,
            greeted: None,
            steps: Vec::new(),
            closed: None,
        });
        let patience = u64::from(ticket.timeout_ms) * 1_000;
        let greeting = self.0.around.clock.within(patience, self.greet(node, log, ticket, spawner)).await;
        let connected = greeting.unwrap_or(Connected::Nowhere);
        if !matches!(connected, Connected::Here(_)) {
            recorder.znode_closed(log);
        }
        connected
    }

    async fn greet(&self, node: NodeId, log: usize, ticket: &mut Ticket, spawner: &Spawner) -> Connected {
        self.travel().await;
        let Some((door, face)) = self.around().doors.zookeeper(node) else { return Connected::Nowhere };
        let (pipe, far_end) = tokio::io::duplex(PIPE_BYTES);
        spawner.spawn(async move {
            // However it ends, the client only sees that nothing more comes.
            let _ = within(&door, face.serve_connection(far_end, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).await;
        });
        let (buffer, waiting) = (BytesMut::new(), VecDeque::new());
        let (client, next_xid, seen) = (self.clone(), 1, ticket.seen);
        let mut connection = Connection { client, pipe, buffer, log, next_xid, waiting, seen };
        let mut out = Vec::new();
        write_connect(
            &mut out,
            &ConnectRequest {
                protocol_version: 0,
                last_zxid_seen: ticket.seen,
                timeout_ms: i32::try_from(ticket.timeout_ms).unwrap_or(i32::MAX),
                session_id: ticket.session,
                password: ticket.password.clone(),
                read_only: Some(false),
            },
        );
        if connection.pipe.write_all(&out).await.is_err() {
            return Connected::Nowhere;
        }
        let Some(response) = connection.frame().await.and_then(|frame| read_connected(frame).ok()) else {
            return Connected::Nowhere;
        };
        let recorder = &self.around().recorder;
        let Some(timeout_ms) = u32::try_from(response.timeout_ms).ok().filter(|timeout| *timeout > 0) else {
            recorder.znode_greeted(log, Greeted::Over);
            return Connected::Over;
        };
        recorder.znode_greeted(log, Greeted::Session { id: response.session_id, timeout_ms });
        let password = Bytes::copy_from_slice(&response.password);
        *ticket = Ticket { session: response.session_id, password, seen: ticket.seen, timeout_ms };
        Connected::Here(connection)
    }
}

impl Connection {
    /// Sends requests, all at once; `false`: the connection is gone.
    pub async fn send(&mut self, requests: Vec<Request>) -> bool {
        self.client.travel().await;
        let mut out = Vec::new();
        for request in requests {
            let xid = match request {
                Request::Ping => tidelock_face_zookeeper::wire::xid::PING,
                Request::SetWatches { .. } => tidelock_face_zookeeper::wire::xid::SET_WATCHES,
                _ => {
                    self.next_xid += 1;
                    self.next_xid
                }
            };
            write_request(&mut out, xid, &request);
            let step = Step::Asked { xid, request: request.clone() };
            self.client.around().recorder.znode_step(self.log, step);
            self.waiting.push_back((xid, request));
        }
        self.pipe.write_all(&out).await.is_ok()
    }

    /// Requests that were not answered yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What the node says next; `None`: nothing any more. May be dropped and asked again.
    pub async fn next(&mut self) -> Option<News> {
        let frame = self.frame().await?;
        let recorder = self.client.around().recorder.clone();
        match read_packet(frame).ok()? {
            Packet::Event { zxid, kind, path } => {
                recorder.znode_step(self.log, Step::Fired { zxid, kind, path: path.clone() });
                Some(News::Event(kind, path))
            }
            Packet::Reply { xid, zxid, error, body } => {
                // Out of order it cannot be read; that is found by the number that is written down.
                let asked = self.waiting.pop_front();
                let read = asked.as_ref().filter(|_| error == 0).map(|(_, request)| read_body(request, body));
                let found = read.transpose().ok().flatten().unwrap_or(Found::Nothing);
                recorder.znode_step(self.log, Step::Replied { xid, zxid, error, found: found.clone() });
                self.seen = self.seen.max(zxid);
                self.client.around().saw_revision(zxid);
                let (_, request) = asked?;
                Some(News::Reply(Box::new(request), if error == 0 { Ok(found) } else { Err(error) }))
            }
        }
    }

    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer, PACKET_MAX).ok()? {
                return Some(frame);
            }
            self.buffer.reserve(READ_BYTES);
            if self.pipe.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
            self.client.travel().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.client.around().recorder.znode_closed(self.log);
    }
}
