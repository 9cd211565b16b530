//! A client of ZooKeeper's protocol that does nothing by itself: what is sent and what comes back is all there is.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The xid of events.
const EVENT: i32 = -1;

pub const EPHEMERAL: i32 = 1;
pub const SEQUENTIAL: i32 = 2;

/// A connection with its session.
pub struct Client {
    pub stream: TcpStream,
    next_xid: i32,
    pub session: i64,
    pub password: Vec<u8>,
    pub timeout_ms: i32,
    /// The server only answers reads.
    pub read_only: bool,
    /// The newest zxid a header told.
    pub zxid: i64,
    /// Events that came before the answers that were asked for: kind and path.
    pub events: VecDeque<(i32, String)>,
    /// The zxids in the headers of all events so far.
    pub event_zxids: Vec<i64>,
}

/// The figures of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub version: i32,
    pub cversion: i32,
    pub aversion: i32,
    pub owner: i64,
    pub data_length: i32,
    pub children: i32,
    pub pzxid: i64,
}

/// The number of an error.
pub type Refused = i32;

impl Client {
    /// Opens a new session.
    pub fn connect(port: u16) -> Client {
        Client::open(port, 4000, 0, &[0; 16], 0).unwrap()
    }

    /// Comes back to a session on another connection; an error if it is over.
    pub fn again(&self, port: u16) -> io::Result<Client> {
        Client::open(port, self.timeout_ms, self.session, &self.password, self.zxid)
    }

    pub fn open(port: u16, timeout_ms: i32, session: i64, password: &[u8], seen: i64) -> io::Result<Client> {
        Client::greet(port, timeout_ms, session, password, seen, false)
    }

    /// The same for a client that would be content with reading.
    pub fn open_reading(port: u16, timeout_ms: i32, session: i64, password: &[u8], seen: i64) -> io::Result<Client> {
        Client::greet(port, timeout_ms, session, password, seen, true)
    }

    fn greet(
        port: u16,
        timeout_ms: i32,
        session: i64,
        password: &[u8],
        seen: i64,
        may_only_read: bool,
    ) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut client = Client {
            stream,
            next_xid: 1,
            session,
            password: Vec::new(),
            timeout_ms,
            read_only: false,
            zxid: seen,
            events: VecDeque::new(),
            event_zxids: Vec::new(),
        };
        let mut greeting = Packet::default();
        greeting.int(0).long(seen).int(timeout_ms).long(session).buffer(Some(password)).byte(u8::from(may_only_read));
        client.send(&greeting)?;
        let mut answer = Fields(client.receive()?);
        answer.int();
        (client.timeout_ms, client.session) = (answer.int(), answer.long());
        client.password = answer.buffer().unwrap_or_default();
        client.read_only = answer.byte() != 0;
        if client.session == 0 {
            return Err(io::Error::other("the session is over"));
        }
        Ok(client)
    }

    pub fn send(&mut self, packet: &Packet) -> io::Result<()> {
        let length = i32::try_from(packet.0.len()).unwrap().to_be_bytes();
        self.stream.write_all(&[&length[..], &packet.0].concat())
    }

    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut packet = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut packet)?;
        Ok(packet)
    }

    /// Sends a request without waiting; gives its xid.
    pub fn ask(&mut self, opcode: i32, body: impl FnOnce(&mut Packet)) -> i32 {
        let xid = self.next_xid;
        self.next_xid += 1;
        let mut packet = Packet::default();
        packet.int(xid).int(opcode);
        body(&mut packet);
        self.send(&packet).unwrap();
        xid
    }

    /// The next answer, which must be to `xid`; events before it are put aside.
    pub fn answer(&mut self, xid: i32) -> Result<Fields, Refused> {
        loop {
            let (got, error, fields) = self.next().expect("the connection is open");
            if got != EVENT {
                assert_eq!(got, xid, "answers come in the order of requests");
                return if error == 0 { Ok(fields) } else { Err(error) };
            }
        }
    }

    fn next(&mut self) -> io::Result<(i32, i32, Fields)> {
        let mut fields = Fields(self.receive()?);
        let (xid, zxid, error) = (fields.int(), fields.long(), fields.int());
        // Replies to credentials tell none, nor do events that say what was missed while a client was away.
        if zxid != 0 && (xid, zxid) != (EVENT, -1) {
            assert!(zxid >= self.zxid, "zxids never go back: {zxid} after {}", self.zxid);
            self.zxid = zxid;
        }
        if xid == EVENT {
            let kind = fields.int();
            fields.int();
            self.events.push_back((kind, fields.text()));
            self.event_zxids.push(zxid);
        }
        Ok((xid, error, fields))
    }

    /// The next event, waiting for it if none was put aside.
    pub fn event(&mut self) -> (i32, String) {
        while self.events.is_empty() {
            self.next().expect("the connection is open");
        }
        self.events.pop_front().unwrap()
    }

    /// Whether the server ends the connection, without anything else coming first.
    pub fn is_closed_by_server(&mut self) -> bool {
        self.receive().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
    }

    /// Whether the server ends the connection when this is sent, be it before all of it was.
    pub fn is_turned_away(&mut self, opcode: i32, body: impl FnOnce(&mut Packet)) -> bool {
        let mut packet = Packet::default();
        packet.int(self.next_xid).int(opcode);
        body(&mut packet);
        self.send(&packet).is_err() || self.is_closed_by_server()
    }

    pub fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<String, Refused> {
        let xid = self.ask_create(path, data, flags);
        self.answer(xid).map(|mut fields| fields.text())
    }

    pub fn ask_create(&mut self, path: &str, data: &[u8], flags: i32) -> i32 {
        self.ask(1, |packet| {
            packet.text(path).buffer(Some(data)).int(1).int(31).text("world").text("anyone").int(flags);
        })
    }

    pub fn delete(&mut self, path: &str, version: i32) -> Result<(), Refused> {
        let xid = self.ask(2, |packet| {
            packet.text(path).int(version);
        });
        self.answer(xid).map(|_| ())
    }

    pub fn set(&mut self, path: &str, data: &[u8], version: i32) -> Result<Stat, Refused> {
        let xid = self.ask(5, |packet| {
            packet.text(path).buffer(Some(data)).int(version);
        });
        self.answer(xid).map(|mut fields| fields.stat())
    }

    pub fn exists(&mut self, path: &str, watch: bool) -> Result<Stat, Refused> {
        let xid = self.ask(3, |packet| {
            packet.text(path).byte(u8::from(watch));
        });
        self.answer(xid).map(|mut fields| fields.stat())
    }

    pub fn get(&mut self, path: &str, watch: bool) -> Result<(Vec<u8>, Stat), Refused> {
        let xid = self.ask(4, |packet| {
            packet.text(path).byte(u8::from(watch));
        });
        self.answer(xid).map(|mut fields| (fields.buffer().unwrap_or_default(), fields.stat()))
    }

    pub fn children(&mut self, path: &str, watch: bool) -> Result<Vec<String>, Refused> {
        let xid = self.ask(8, |packet| {
            packet.text(path).byte(u8::from(watch));
        });
        self.answer(xid).map(|mut fields| (0..fields.int()).map(|_| fields.text()).collect())
    }

    pub fn sync(&mut self) {
        let xid = self.ask(9, |packet| {
            packet.text("/");
        });
        self.answer(xid).unwrap();
    }

    pub fn ping(&mut self) {
        self.try_ping().unwrap();
    }

    /// The same, where the connection may be closed.
    pub fn try_ping(&mut self) -> io::Result<()> {
        let mut packet = Packet::default();
        packet.int(-2).int(11);
        self.send(&packet)?;
        while self.next()?.0 == EVENT {}
        Ok(())
    }

    /// Shows who this is; `user:password`.
    pub fn authenticate(&mut self, digest: &str) {
        let mut packet = Packet::default();
        packet.int(-4).int(100).int(0).text("digest").text(digest);
        self.send(&packet).unwrap();
        let mut fields = Fields(self.receive().unwrap());
        assert_eq!((fields.int(), fields.long(), fields.int()), (-4, 0, 0));
    }

    /// Changes the members: joining, leaving, all of them; the configuration after it.
    pub fn reconfig(&mut self, lists: [&str; 3], version: i64) -> Result<(String, Stat), Refused> {
        let xid = self.ask(16, |packet| {
            for list in lists {
                packet.text(list);
            }
            packet.long(version);
        });
        let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap_or_default()).unwrap();
        self.answer(xid).map(|mut fields| (text(fields.buffer()), fields.stat()))
    }

    /// What everybody may know about the members.
    pub fn config(&mut self, watch: bool) -> (String, Stat) {
        let (data, stat) = self.get("/zookeeper/config", watch).unwrap();
        (String::from_utf8(data).unwrap(), stat)
    }

    /// Ends the session.
    pub fn close(mut self) {
        let xid = self.ask(-11, |_| {});
        self.answer(xid).unwrap();
    }
}

/// Bytes to send.
#[derive(Default)]
pub struct Packet(pub Vec<u8>);

impl Packet {
    pub fn byte(&mut self, value: u8) -> &mut Packet {
        self.0.push(value);
        self
    }

    pub fn int(&mut self, value: i32) -> &mut Packet {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn long(&mut self, value: i64) -> &mut Packet {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn buffer(&mut self, value: Option<&[u8]>) -> &mut Packet {
        self.int(value.map_or(-1, |value| i32::try_from(value.len()).unwrap()));
        self.0.extend_from_slice(value.unwrap_or_default());
        self
    }

    pub fn text(&mut self, value: &str) -> &mut Packet {
        self.buffer(Some(value.as_bytes()))
    }
}

/// Bytes that came, read from the front.
#[derive(Debug)]
pub struct Fields(Vec<u8>);

impl Fields {
    fn take(&mut self, count: usize) -> Vec<u8> {
        self.0.drain(..count).collect()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    pub fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = self.int();
        usize::try_from(length).ok().map(|length| self.take(length))
    }

    pub fn text(&mut self) -> String {
        String::from_utf8(self.buffer().unwrap()).unwrap()
    }

    pub fn stat(&mut self) -> Stat {
        let (czxid, mzxid) = (self.long(), self.long());
        let _times = (self.long(), self.long());
        let (version, cversion, aversion) = (self.int(), self.int(), self.int());
        let (owner, data_length, children, pzxid) = (self.long(), self.int(), self.int(), self.long());
        Stat { czxid, mzxid, version, cversion, aversion, owner, data_length, children, pzxid }
    }
}
