//! What comes back: replies and events, as fields with names, so that a difference can be named and a rule can say
//! exactly which field it is about.

use std::fmt;

use super::call::opcode;
use super::packets::{Fields, Truncated};

/// The value of a field.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Text(Option<String>),
    Data(Option<Vec<u8>>),
    Names(Option<Vec<String>>),
    /// The three that differ from server to server; masked before they are compared.
    Zxid(i64),
    Time(i64),
    Session(i64),
    /// One of these, by the name both servers have for it.
    Masked(String),
}

impl fmt::Debug for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(out, "{number}"),
            Value::Text(None) | Value::Data(None) | Value::Names(None) => write!(out, "null"),
            Value::Text(Some(text)) => write!(out, "{text:?}"),
            Value::Data(Some(data)) => write!(out, "b\"{}\"", data.escape_ascii()),
            Value::Names(Some(names)) => write!(out, "{names:?}"),
            Value::Zxid(raw) | Value::Session(raw) => write!(out, "{raw:#x}"),
            Value::Time(raw) => write!(out, "{raw}"),
            Value::Masked(name) => write!(out, "{name}"),
        }
    }
}

/// A field of a reply.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) value: Value,
}

impl fmt::Debug for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={:?}", self.name, self.value)
    }
}

/// Something that came over a connection, or happened to it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Item {
    Reply {
        xid: i32,
        error: i32,
        zxid: Value,
        fields: Vec<Field>,
    },
    Event {
        kind: i32,
        state: i32,
        path: Option<String>,
        zxid: Value,
    },
    /// The answer to a handshake.
    Greeting {
        timeout: i32,
        session: Value,
        password: &'static str,
        read_only: Option<bool>,
    },
    /// The server ended the connection.
    Closed,
    /// Nothing came though something should have.
    Silence,
    /// Bytes that are no reply.
    Garbage(Vec<u8>),
}

impl fmt::Debug for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Reply { xid, error, zxid, fields } => {
                write!(out, "reply xid={xid} err={error} zxid={zxid:?} {fields:?}")
            }
            Item::Event { kind, state, path, zxid } => {
                write!(out, "event {} state={state} {path:?} zxid={zxid:?}", event_name(*kind))
            }
            Item::Greeting { timeout, session, password, read_only } => {
                write!(out, "greeting timeout={timeout} session={session:?} {password} read_only={read_only:?}")
            }
            Item::Closed => write!(out, "CLOSED"),
            Item::Silence => write!(out, "SILENCE"),
            Item::Garbage(bytes) => write!(out, "GARBAGE {}", bytes.escape_ascii()),
        }
    }
}

fn event_name(kind: i32) -> String {
    match kind {
        1 => "created".to_string(),
        2 => "deleted".to_string(),
        3 => "dataChanged".to_string(),
        4 => "childrenChanged".to_string(),
        other => format!("of kind {other}"),
    }
}

impl Item {
    /// The word by which differences are grouped.
    pub(super) fn kind(&self) -> String {
        match self {
            Item::Reply { error, .. } => format!("{error}"),
            Item::Event { kind, .. } => event_name(*kind),
            Item::Greeting { timeout: 0, .. } => "refused".to_string(),
            Item::Greeting { .. } => "greeted".to_string(),
            Item::Closed => "closed".to_string(),
            Item::Silence => "silence".to_string(),
            Item::Garbage(_) => "garbage".to_string(),
        }
    }

    /// The zxid in its header.
    pub(super) fn zxid(&self) -> Option<i64> {
        match self {
            Item::Reply { zxid: Value::Zxid(zxid), .. } | Item::Event { zxid: Value::Zxid(zxid), .. } => Some(*zxid),
            _ => None,
        }
    }
}

/// The xid of events.
const EVENT: i32 = -1;

/// Reads a packet that is an event or the reply to an operation of this number.
pub(super) fn read(packet: &[u8], opcode: i32) -> Item {
    try_read(packet, opcode).unwrap_or_else(|Truncated| Item::Garbage(packet.to_vec()))
}

fn try_read(packet: &[u8], opcode: i32) -> Result<Item, Truncated> {
    let mut from = Fields(packet);
    let (xid, zxid, error) = (from.int()?, Value::Zxid(from.long()?), from.int()?);
    if xid == EVENT {
        let (kind, state, path) = (from.int()?, from.int()?, from.text()?);
        return Ok(Item::Event { kind, state, path, zxid });
    }
    let mut to = Record::default();
    if error == 0 {
        to.body(&mut from, opcode)?;
    }
    if !from.0.is_empty() {
        to.push("rest", Value::Data(Some(from.0.to_vec())));
    }
    Ok(Item::Reply { xid, error, zxid, fields: to.fields })
}

/// The fields of a record while it is read.
#[derive(Default)]
struct Record {
    prefix: String,
    fields: Vec<Field>,
}

impl Record {
    fn push(&mut self, name: &str, value: Value) {
        self.fields.push(Field { name: format!("{}{name}", self.prefix), value });
    }

    fn body(&mut self, from: &mut Fields<'_>, opcode: i32) -> Result<(), Truncated> {
        match opcode {
            opcode::CREATE | opcode::SYNC => self.push("path", Value::Text(from.text()?)),
            opcode::CREATE2 | opcode::CREATE_CONTAINER | opcode::CREATE_TTL => {
                self.push("path", Value::Text(from.text()?));
                self.stat(from)?;
            }
            opcode::EXISTS | opcode::SET_DATA | opcode::SET_ACL => self.stat(from)?,
            opcode::GET_DATA => {
                self.push("data", Value::Data(from.data()?));
                self.stat(from)?;
            }
            opcode::GET_ACL => {
                let entries = from.int()?;
                self.push("entries", Value::Number(entries.into()));
                for at in 0..entries {
                    let (perms, scheme, id) = (from.int()?, from.text()?, from.text()?);
                    let entry = format!("{perms} {}:{}", scheme.unwrap_or_default(), id.unwrap_or_default());
                    self.push(&format!("acl{at}"), Value::Text(Some(entry)));
                }
                self.stat(from)?;
            }
            opcode::GET_CHILDREN => self.push("children", Value::Names(from.texts()?)),
            opcode::GET_CHILDREN2 => {
                self.push("children", Value::Names(from.texts()?));
                self.stat(from)?;
            }
            opcode::GET_EPHEMERALS => self.push("ephemerals", Value::Names(from.texts()?)),
            opcode::ALL_CHILDREN => self.push("count", Value::Number(from.int()?.into())),
            opcode::ADD_WATCH => self.push("err", Value::Number(from.int()?.into())),
            opcode::WHO_AM_I => {
                let entries = from.int()?;
                for at in 0..entries {
                    let (scheme, user) = (from.text()?, from.text()?);
                    let who = format!("{}:{}", scheme.unwrap_or_default(), user.unwrap_or_default());
                    self.push(&format!("who{at}"), Value::Text(Some(who)));
                }
            }
            opcode::MULTI | opcode::MULTI_READ => self.multi(from)?,
            _ => {}
        }
        Ok(())
    }

    fn multi(&mut self, from: &mut Fields<'_>) -> Result<(), Truncated> {
        for at in 0.. {
            let (opcode, done, error) = (from.int()?, from.flag()?, from.int()?);
            self.prefix = if done { "end.".to_string() } else { format!("{at}.") };
            self.push("type", Value::Number(opcode.into()));
            self.push("err", Value::Number(error.into()));
            if done {
                break;
            }
            if opcode == -1 {
                self.push("error", Value::Number(from.int()?.into()));
            } else {
                self.body(from, opcode)?;
            }
        }
        self.prefix.clear();
        Ok(())
    }

    fn stat(&mut self, from: &mut Fields<'_>) -> Result<(), Truncated> {
        for name in ["czxid", "mzxid"] {
            self.push(name, Value::Zxid(from.long()?));
        }
        for name in ["ctime", "mtime"] {
            self.push(name, Value::Time(from.long()?));
        }
        for name in ["version", "cversion", "aversion"] {
            self.push(name, Value::Number(from.int()?.into()));
        }
        self.push("ephemeralOwner", Value::Session(from.long()?));
        for name in ["dataLength", "numChildren"] {
            self.push(name, Value::Number(from.int()?.into()));
        }
        self.push("pzxid", Value::Zxid(from.long()?));
        Ok(())
    }
}
