//! The handshake: the only packets without a header.

use bytes::Bytes;

use super::jute::{Defect, Reader, put_bool, put_bytes, put_int, put_long, put_packet};

/// How long a session's password is.
pub const PASSWORD_LENGTH: usize = 16;

/// A client's first frame: a new session, or one that is to go on here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// 0; ZooKeeper does not look at it.
    pub protocol_version: i32,
    /// The newest zxid the client has seen. A server that is behind must not show it an older state.
    pub last_zxid_seen: i64,
    /// The session timeout the client wishes, in ms.
    pub timeout_ms: i32,
    /// 0 asks for a new session.
    pub session_id: i64,
    /// What proves that the session is the client's. Of any length; null is read as empty.
    pub password: Bytes,
    /// Whether a server that only answers reads will do. `None`: the client is from before 3.4 and does not
    /// know of such servers; the reply must not mention it either.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Reads the first frame of a connection.
    ///
    /// # Errors
    /// It is no connect request: the connection ends without a reply.
    pub fn parse(frame: Bytes) -> Result<ConnectRequest, Defect> {
        let mut reader = Reader::new(frame);
        Ok(ConnectRequest {
            protocol_version: reader.int()?,
            last_zxid_seen: reader.long()?,
            timeout_ms: reader.int()?,
            session_id: reader.long()?,
            password: reader.buffer()?.unwrap_or_default(),
            read_only: if reader.is_empty() { None } else { Some(reader.boolean()?) },
        })
    }
}

/// The answer to a [`ConnectRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The session timeout that counts, in ms; 0 says that the session is over.
    pub timeout_ms: i32,
    /// The session's id.
    pub session_id: i64,
    /// What the client must show to go on elsewhere.
    pub password: [u8; PASSWORD_LENGTH],
    /// Whether this server only answers reads. `None` exactly if the request's was: old clients take a longer
    /// reply for a broken one.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// Tells a client that its session is over or was never its own. The connection ends after it.
    #[must_use]
    pub fn session_over(request: &ConnectRequest) -> ConnectResponse {
        ConnectResponse {
            timeout_ms: 0,
            session_id: 0,
            password: [0; PASSWORD_LENGTH],
            read_only: request.read_only.map(|_| false),
        }
    }

    /// Appends the packet, length included.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_packet(out, |out| {
            put_int(out, 0); // The protocol's version.
            put_int(out, self.timeout_ms);
            put_long(out, self.session_id);
            put_bytes(out, &self.password);
            if let Some(read_only) = self.read_only {
                put_bool(out, read_only);
            }
        });
    }
}
