//! One connection to one server. It does nothing by itself: what is sent and what comes back is all there is.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::{Item, Value, read};
use super::call::opcode;
use super::packets::{Fields, Packet, Truncated};

/// How long an answer, or the end of a connection, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// No reply here is near it; a longer one is garbage.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Packets that are read in wait for one reply.
const PACKETS_MAX: usize = 10_000;
/// Pings have an xid of their own.
pub(super) const PING_XID: i32 = -2;
/// That of a sync which is none of the program's.
pub(super) const SYNC_XID: i32 = 0x7fff_fff0;

/// What a client says first.
#[derive(Clone, Debug)]
pub(super) struct Hello {
    pub(super) seen: i64,
    pub(super) timeout: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
    pub(super) read_only: Option<bool>,
}

/// What a session needs to be gone on with.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
}

/// A connection.
pub(super) struct Connection(TcpStream);

impl Connection {
    /// Connects and says hello; the connection if it is one, and what was answered. The password is in the session,
    /// not in the answer: no two servers give the same.
    pub(super) async fn open(address: SocketAddr, hello: &Hello) -> (Option<(Connection, Session)>, Item) {
        let Ok(stream) = TcpStream::connect(address).await else { return (None, Item::Closed) };
        // Without it every request waits for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let mut connection = Connection(stream);
        let mut packet = Packet::default();
        packet.int(0).long(hello.seen).int(hello.timeout).long(hello.session).data(Some(&hello.password));
        if let Some(read_only) = hello.read_only {
            packet.flag(read_only);
        }
        let answer = match connection.exchange(&packet).await {
            Ok(answer) => answer,
            Err(item) => return (None, item),
        };
        let Ok((session, item)) = greeting(&answer) else { return (None, Item::Garbage(answer)) };
        let lives = session.id != 0;
        (lives.then_some((connection, session)), item)
    }

    async fn exchange(&mut self, packet: &Packet) -> Result<Vec<u8>, Item> {
        self.0.write_all(&packet.framed()).await.map_err(|_| Item::Closed)?;
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Vec<u8>, Item> {
        let one = async {
            let length = self.0.read_i32().await.map_err(|_| Item::Closed)?;
            let length = usize::try_from(length).ok().filter(|length| *length <= REPLY_BYTES_MAX);
            let mut packet = vec![0; length.ok_or_else(|| Item::Garbage(Vec::new()))?];
            self.0.read_exact(&mut packet).await.map_err(|_| Item::Closed)?;
            Ok(packet)
        };
        tokio::time::timeout(PATIENCE, one).await.unwrap_or(Err(Item::Silence))
    }

    /// Sends a request and reads up to its reply: the events before it, and the reply or the end.
    pub(super) async fn ask(&mut self, xid: i32, opcode: i32, body: &[u8]) -> Vec<Item> {
        let mut packet = Packet::default();
        packet.int(xid).int(opcode).0.extend_from_slice(body);
        // A server that ended the connection may still have said something.
        let _ = self.0.write_all(&packet.framed()).await;
        self.read_to_reply(opcode).await
    }

    async fn read_to_reply(&mut self, opcode: i32) -> Vec<Item> {
        let mut items = Vec::new();
        while items.len() < PACKETS_MAX {
            let item = self.receive().await.map_or_else(|ended| ended, |packet| read(&packet, opcode));
            let is_event = matches!(item, Item::Event { .. });
            items.push(item);
            if !is_event {
                break;
            }
        }
        items
    }

    /// Everything that is on its way: a ping is answered behind it.
    pub(super) async fn ping(&mut self) -> Vec<Item> {
        self.ask(PING_XID, opcode::PING, &[]).await
    }

    /// The same, behind everything that happened at any node.
    pub(super) async fn sync(&mut self) -> Vec<Item> {
        let mut body = Packet::default();
        body.text("/");
        self.ask(SYNC_XID, opcode::SYNC, &body.0).await
    }

    /// Reads to the end, which the server is to make.
    pub(super) async fn read_to_end(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        loop {
            match self.receive().await {
                Ok(packet) if items.len() < PACKETS_MAX => items.push(read(&packet, 0)),
                Ok(_) => return items,
                Err(ended) => {
                    items.push(ended);
                    return items;
                }
            }
        }
    }
}

/// Whether a connection is of no more use after this.
pub(super) fn ends(item: &Item) -> bool {
    matches!(item, Item::Closed | Item::Silence | Item::Garbage(_))
}

fn greeting(answer: &[u8]) -> Result<(Session, Item), Truncated> {
    let mut fields = Fields(answer);
    let _version = fields.int()?;
    let (timeout, id, password) = (fields.int()?, fields.long()?, fields.data()?.unwrap_or_default());
    let read_only = if fields.0.is_empty() { None } else { Some(fields.flag()?) };
    let shown = match (password.len(), password.iter().all(|byte| *byte == 0)) {
        (16, true) => "a password of zeros",
        (16, false) => "a password",
        _ => "a password of another length",
    };
    let item = Item::Greeting { timeout, session: Value::Session(id), password: shown, read_only };
    Ok((Session { id, password }, item))
}
