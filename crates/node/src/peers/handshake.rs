//! The first two frames of every connection: the dialing side says who it is and whom it means, the
//! accepting side answers yes, or no with a reason a person can act on.
//!
//! The layout is for ever: any version must be able to tell any other why they do not match. Fields
//! may be added at the end, where older nodes ignore them.
//! - Hello: magic (8 bytes), lowest and highest protocol version, cluster, sender, intended receiver,
//!   purpose (1 byte), address of the sender as text, number of the sender's disk.
//! - Answer: magic, then 1, version agreed on, cluster, node; or 0 and the reason as text.
//!
//! Both sides check the other's cluster and node id: a wrong address in a configuration must never
//! join two clusters or make one node's messages count as another's.

use bytes::Bytes;
use tidelock_model::{ClusterId, DecodeError, NodeId, Reader, Wire, put_bytes, put_varint};

use super::frame::{BrokenLink, FrameReader, FrameWriter};
use super::stream::PeerStream;

/// The versions this build speaks.
pub(super) const VERSIONS: Versions = Versions { min: 1, max: 1 };

/// Largest handshake frame.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 2 * 1024;

const MAGIC: [u8; 8] = *b"tidepeer";
/// Longest reason or address; both are cut to this when sent.
const TEXT_BYTES_MAX: usize = 512;
/// What a reader accepts, leaving room for a newer version with more to say.
const TEXT_BYTES_READ_MAX: usize = 1024;

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl Versions {
    /// The newest version both speak.
    fn agree(self, other: Versions) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min && newest >= other.min).then_some(newest)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    Messages,
    Snapshot,
}

/// Who we are.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) disk: u64,
    pub(super) versions: Versions,
    pub(super) advertise: String,
}

/// What the dialing side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: Versions,
    pub(super) cluster: ClusterId,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) purpose: Purpose,
    pub(super) advertise: String,
    pub(super) disk: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Accepted { version: u32, cluster: ClusterId, node: NodeId },
    Refused { reason: String },
}

/// Why a handshake led to no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other side said no, or we did after its answer.
    #[error("{0}")]
    Refused(String),
    /// What arrived is no handshake.
    #[error("the other side does not speak the Tidelock peer protocol ({0}); check that the address is a peer address")]
    NotAPeer(String),
    /// The connection did not live long enough.
    #[error("{0}")]
    Broken(BrokenLink),
}

impl From<BrokenLink> for HandshakeError {
    fn from(broken: BrokenLink) -> HandshakeError {
        if broken.is_garbage() { Self::NotAPeer(broken.to_string()) } else { Self::Broken(broken) }
    }
}

impl From<DecodeError> for HandshakeError {
    fn from(error: DecodeError) -> HandshakeError {
        Self::NotAPeer(error.to_string())
    }
}

impl Hello {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, u64::from(self.versions.min));
        put_varint(&mut out, u64::from(self.versions.max));
        self.cluster.encode(&mut out);
        self.from.encode(&mut out);
        self.to.encode(&mut out);
        out.push(match self.purpose {
            Purpose::Messages => 1,
            Purpose::Snapshot => 2,
        });
        put_bytes(&mut out, cut(&self.advertise).as_bytes());
        put_varint(&mut out, self.disk);
        out.into()
    }

    fn decode(bytes: &Bytes) -> Result<Hello, HandshakeError> {
        let mut input = after_magic(bytes)?;
        Ok(Hello {
            versions: Versions { min: input.varint32()?, max: input.varint32()? },
            cluster: ClusterId::decode(&mut input)?,
            from: NodeId::decode(&mut input)?,
            to: NodeId::decode(&mut input)?,
            purpose: match input.byte()? {
                1 => Purpose::Messages,
                2 => Purpose::Snapshot,
                tag => return Err(DecodeError::UnknownTag { what: "purpose", tag }.into()),
            },
            advertise: printable(&input.text(TEXT_BYTES_READ_MAX)?),
            disk: input.varint()?,
        })
    }
}

impl Answer {
    fn encode(&self) -> Bytes {
        let mut out = MAGIC.to_vec();
        match self {
            Answer::Accepted { version, cluster, node } => {
                out.push(1);
                put_varint(&mut out, u64::from(*version));
                cluster.encode(&mut out);
                node.encode(&mut out);
            }
            Answer::Refused { reason } => {
                out.push(0);
                put_bytes(&mut out, cut(reason).as_bytes());
            }
        }
        out.into()
    }

    fn decode(bytes: &Bytes) -> Result<Answer, HandshakeError> {
        let mut input = after_magic(bytes)?;
        if input.flag()? {
            let version = input.varint32()?;
            let (cluster, node) = (ClusterId::decode(&mut input)?, NodeId::decode(&mut input)?);
            Ok(Answer::Accepted { version, cluster, node })
        } else {
            Ok(Answer::Refused { reason: printable(&input.text(TEXT_BYTES_READ_MAX)?) })
        }
    }
}

fn after_magic(bytes: &Bytes) -> Result<Reader, HandshakeError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(HandshakeError::NotAPeer("no greeting".into()));
    }
    Ok(Reader::new(bytes.slice(MAGIC.len()..)))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Text of a stranger, made harmless for a terminal that shows our log.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|each| if each.is_control() { '?' } else { each }).collect()
}

impl Identity {
    /// Dials: says hello and takes the answer. Returns the version agreed on.
    pub(super) async fn greet(
        &self,
        stream: &mut dyn PeerStream,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
        to: NodeId,
        purpose: Purpose,
    ) -> Result<u32, HandshakeError> {
        let hello = Hello {
            versions: self.versions,
            cluster: self.cluster,
            from: self.node,
            to,
            purpose,
            advertise: self.advertise.clone(),
            disk: self.disk,
        };
        writer.push(&[], hello.encode())?;
        writer.flush(stream).await?;
        match Answer::decode(&reader.read(stream).await?)? {
            Answer::Refused { reason } => Err(HandshakeError::Refused(reason)),
            Answer::Accepted { version, cluster, node } => {
                // An honest acceptor has checked all this; we do not take its word for it.
                if cluster != self.cluster || node != to {
                    let reason = format!("node {node} of cluster {cluster:x} answered instead of node {to}");
                    return Err(HandshakeError::Refused(reason));
                }
                if version < self.versions.min || version > self.versions.max {
                    return Err(HandshakeError::Refused(format!("it chose protocol {version}, which we do not speak")));
                }
                Ok(version)
            }
        }
    }

    /// Accepts: takes the first frame, which must be a hello, judges it and answers. Returns the hello, with our verdict: the
    /// version agreed on, or the reason we gave.
    pub(super) async fn answer(
        &self,
        stream: &mut dyn PeerStream,
        first: &Bytes,
        writer: &mut FrameWriter,
        admits: impl FnOnce(NodeId, u64) -> Result<(), String>,
    ) -> Result<(Hello, Result<u32, String>), HandshakeError> {
        let hello = Hello::decode(first)?;
        let verdict = self.judge(&hello, admits);
        let answer = match &verdict {
            Ok(version) => Answer::Accepted { version: *version, cluster: self.cluster, node: self.node },
            Err(reason) => Answer::Refused { reason: reason.clone() },
        };
        writer.push(&[], answer.encode())?;
        writer.flush(stream).await?;
        Ok((hello, verdict))
    }

    fn judge(&self, hello: &Hello, admits: impl FnOnce(NodeId, u64) -> Result<(), String>) -> Result<u32, String> {
        if hello.cluster != self.cluster {
            return Err(format!(
                "this is cluster {:x}, the caller belongs to cluster {:x}; correct the peer addresses, or give the \
                 caller a fresh data directory if it should join this cluster",
                self.cluster, hello.cluster
            ));
        }
        if hello.to != self.node {
            return Err(format!(
                "this is node {}, not node {}; correct the peer address of node {1}",
                self.node, hello.to
            ));
        }
        if hello.from == self.node {
            return Err(format!(
                "this is node {0} and the caller says it is node {0} too; stop one of the two, and check that no \
                 data directory was copied",
                self.node
            ));
        }
        let version = self.versions.agree(hello.versions).ok_or_else(|| {
            format!(
                "this node speaks peer protocol {} to {}, the caller {} to {}; upgrade the older one first",
                self.versions.min, self.versions.max, hello.versions.min, hello.versions.max
            )
        })?;
        admits(hello.from, hello.disk)?;
        Ok(version)
    }
}
