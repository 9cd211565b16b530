//! The client's half of the codec, for the simulator and tests: what clients write, and what they read.
//!
//! A reply's body can only be read by who knows what was asked ([`read_body`]). Only what the simulator asks for is
//! told apart; the body of anything else is left alone.

use bytes::Bytes;

use super::codes::{opcode, xid};
use super::connect::{ConnectRequest, ConnectResponse, PASSWORD_LENGTH};
use super::jute::{Defect, MIN_STRING, Reader, put_bool, put_bytes, put_int, put_long, put_packet};
use super::records::Stat;
use super::request::Request;
use super::request_writer::request_frame;

/// A packet from the server, after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A watch fired.
    Event {
        /// That of the change.
        zxid: i64,
        /// The number of its kind.
        kind: i32,
        /// Where.
        path: String,
    },
    /// The answer to a request.
    Reply {
        /// Which.
        xid: i32,
        /// The newest change the client may have seen by now.
        zxid: i64,
        /// 0, or why not.
        error: i32,
        /// The rest, for [`read_body`].
        body: Bytes,
    },
}

/// What a reply tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or nothing that is told apart here.
    Nothing,
    /// The path that was made.
    Created(String, Option<Stat>),
    /// A stat.
    Stat(Stat),
    /// Data and stat.
    Data(Option<Bytes>, Stat),
    /// Names, and the stat if it was asked for.
    Children(Vec<String>, Option<Stat>),
    /// Paths.
    Paths(Vec<String>),
    /// What each operation did.
    Multi(Vec<Found>),
    /// The errors of a multi that was not carried out.
    MultiFailed(Vec<i32>),
}

/// Appends a request, length included.
pub fn write_request(out: &mut Vec<u8>, xid: i32, request: &Request) {
    let frame = request_frame(xid, request);
    put_packet(out, |out| out.extend_from_slice(&frame));
}

/// Appends the first packet of a connection, length included.
pub fn write_connect(out: &mut Vec<u8>, request: &ConnectRequest) {
    put_packet(out, |out| {
        put_int(out, request.protocol_version);
        put_long(out, request.last_zxid_seen);
        put_int(out, request.timeout_ms);
        put_long(out, request.session_id);
        put_bytes(out, &request.password);
        if let Some(read_only) = request.read_only {
            put_bool(out, read_only);
        }
    });
}

/// Reads the answer to the handshake.
///
/// # Errors
/// It is none.
pub fn read_connected(frame: Bytes) -> Result<ConnectResponse, Defect> {
    let mut reader = Reader::new(frame);
    let _protocol = reader.int()?;
    let (timeout_ms, session_id) = (reader.int()?, reader.long()?);
    let bytes = reader.buffer()?.unwrap_or_default();
    let mut password = [0; PASSWORD_LENGTH];
    password.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    let read_only = if reader.is_empty() { None } else { Some(reader.boolean()?) };
    Ok(ConnectResponse { timeout_ms, session_id, password, read_only })
}

/// Reads a later packet.
///
/// # Errors
/// It is none.
pub fn read_packet(frame: Bytes) -> Result<Packet, Defect> {
    let mut reader = Reader::new(frame);
    let (number, zxid, error) = (reader.int()?, reader.long()?, reader.int()?);
    if number == xid::NOTIFICATION {
        let (kind, _state) = (reader.int()?, reader.int()?);
        return Ok(Packet::Event { zxid, kind, path: reader.required_string("path")? });
    }
    Ok(Packet::Reply { xid: number, zxid, error, body: reader.rest() })
}

/// Reads the body of a reply without an error.
///
/// # Errors
/// It is not what answers this request.
pub fn read_body(request: &Request, body: Bytes) -> Result<Found, Defect> {
    let mut reader = Reader::new(body);
    Ok(match request {
        Request::Create(create) => {
            let path = reader.required_string("path")?;
            let stat = if create.call.is_answered_with_stat() { Some(Stat::read(&mut reader)?) } else { None };
            Found::Created(path, stat)
        }
        Request::Exists { .. } | Request::SetData { .. } => Found::Stat(Stat::read(&mut reader)?),
        Request::GetData { .. } => Found::Data(reader.buffer()?, Stat::read(&mut reader)?),
        Request::GetChildren { .. } => Found::Children(names(&mut reader)?, None),
        Request::GetChildren2 { .. } => Found::Children(names(&mut reader)?, Some(Stat::read(&mut reader)?)),
        Request::GetEphemerals { .. } => Found::Paths(names(&mut reader)?),
        Request::Multi(_) => multi(&mut reader)?,
        _ => Found::Nothing,
    })
}

fn names(reader: &mut Reader) -> Result<Vec<String>, Defect> {
    Ok(reader.vector(MIN_STRING, |reader| reader.required_string("name"))?.unwrap_or_default())
}

fn multi(reader: &mut Reader) -> Result<Found, Defect> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    loop {
        let (kind, done, _error) = (reader.int()?, reader.boolean()?, reader.int()?);
        if done {
            return Ok(if errors.is_empty() { Found::Multi(found) } else { Found::MultiFailed(errors) });
        }
        match kind {
            opcode::ERROR => errors.push(reader.int()?),
            opcode::CREATE => found.push(Found::Created(reader.required_string("path")?, None)),
            opcode::CREATE2 => {
                found.push(Found::Created(reader.required_string("path")?, Some(Stat::read(reader)?)));
            }
            opcode::SET_DATA => found.push(Found::Stat(Stat::read(reader)?)),
            _ => found.push(Found::Nothing),
        }
    }
}

impl Stat {
    fn read(reader: &mut Reader) -> Result<Stat, Defect> {
        Ok(Stat {
            czxid: reader.long()?,
            mzxid: reader.long()?,
            ctime: reader.long()?,
            mtime: reader.long()?,
            version: reader.int()?,
            cversion: reader.int()?,
            aversion: reader.int()?,
            ephemeral_owner: reader.long()?,
            data_length: reader.int()?,
            num_children: reader.int()?,
            pzxid: reader.long()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ErrorCode, MultiResult, Reply, opening, write_reply};

    fn frame(out: &[u8]) -> Bytes {
        Bytes::copy_from_slice(&out[4..])
    }

    fn round(request: &Request, reply: &Reply) -> (i32, Found) {
        let mut out = Vec::new();
        write_reply(&mut out, 3, 17, reply);
        let Packet::Reply { xid: 3, zxid: 17, error, body } = read_packet(frame(&out)).unwrap() else { panic!() };
        (error, if error == 0 { read_body(request, body).unwrap() } else { Found::Nothing })
    }

    /// The simulator judges by what this reads: it must be what the server wrote.
    #[test]
    fn what_the_server_writes_is_read_back() {
        let stat = Stat { czxid: 1, mzxid: 2, version: 3, ephemeral_owner: 4, pzxid: 5, ..Stat::default() };
        let get = Request::GetData { path: "/a".into(), watch: false };
        let data = Some(Bytes::from_static(b"x"));
        assert_eq!(round(&get, &Reply::Data { data: data.clone(), stat }), (0, Found::Data(data, stat)));
        assert_eq!(round(&get, &Reply::Error(ErrorCode::NoNode)), (-101, Found::Nothing));
        let multi = Request::Multi(Vec::new());
        let done = vec![MultiResult::Created { path: "/a".into(), stat: None }, MultiResult::DataSet(stat)];
        let told = vec![Found::Created("/a".into(), None), Found::Stat(stat)];
        assert_eq!(round(&multi, &Reply::Multi(done)), (0, Found::Multi(told)));
        let failed = Reply::MultiFailed { operations: 3, failed: 1, error: ErrorCode::NoNode };
        assert_eq!(round(&multi, &failed), (0, Found::MultiFailed(vec![0, -101, -2])));
    }

    /// A handshake that the server cannot read would make every run of the simulator empty.
    #[test]
    fn a_handshake_is_read_as_it_was_written() {
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 9,
            timeout_ms: 4000,
            session_id: 7,
            password: Bytes::from_static(&[1; PASSWORD_LENGTH]),
            read_only: Some(false),
        };
        let mut out = Vec::new();
        write_connect(&mut out, &request);
        assert!(opening(*out.first_chunk().unwrap(), 1000).is_ok());
        assert_eq!(ConnectRequest::parse(frame(&out)).unwrap(), request);
        let response =
            ConnectResponse { timeout_ms: 1, session_id: 2, password: [3; PASSWORD_LENGTH], read_only: Some(false) };
        let mut out = Vec::new();
        response.write(&mut out);
        assert_eq!(read_connected(frame(&out)).unwrap(), response);
    }
}
