//! Asking a peer port who is in the cluster, by one that is not a member yet or does not know its id.
//!
//! One frame each way, before and instead of the handshake: the question is its greeting alone, the answer the
//! cluster and its members as the asked node knows them, which may be behind. Whoever reaches a peer port may
//! ask; with TLS between members only holders of a certificate reach it.
//!
//! [`introduce`] makes a node known under an id before it does anything under it: the members write down its disk,
//! or refuse because they know another (H21).

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tidelock_model::{ClusterId, DecodeError, Member, NodeId, Reader, Wire, put_varint};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::frame::{FrameReader, FrameWriter};
use super::handshake::{HandshakeError, Identity, Purpose, VERSIONS};
use super::stream::{Connector, PeerStream};

const QUESTION: &[u8] = b"tidewho?";
const ANSWER: &[u8] = b"tidewho.";
/// Largest answer: as many members as any cluster has, with long names and many addresses.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
const MEMBERS_MAX: usize = 1024;
/// How long connecting, and answering, may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A cluster as one of its members knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquainted {
    /// The cluster.
    pub cluster: ClusterId,
    /// Who answered.
    pub node: NodeId,
    /// The members.
    pub members: Vec<Member>,
}

/// Whether the first frame of a connection is the question.
pub(super) fn is_question(frame: &[u8]) -> bool {
    frame.starts_with(QUESTION)
}

/// The answer to it.
pub(super) fn answer(cluster: ClusterId, node: NodeId, members: &[Member]) -> Bytes {
    let mut out = ANSWER.to_vec();
    cluster.encode(&mut out);
    node.encode(&mut out);
    put_varint(&mut out, members.len() as u64);
    members.iter().for_each(|member| member.encode(&mut out));
    out.into()
}

fn understood(frame: &Bytes) -> Result<Acquainted, DecodeError> {
    let mut input = Reader::new(frame.slice(ANSWER.len()..));
    let (cluster, node) = (ClusterId::decode(&mut input)?, NodeId::decode(&mut input)?);
    let count = input.count("the number of members", MEMBERS_MAX)?;
    let members = (0..count).map(|_| Member::decode(&mut input)).collect::<Result<_, _>>()?;
    // A later version may say more.
    Ok(Acquainted { cluster, node, members })
}

/// Asks the node at `target` (`host:port`) who is in its cluster.
pub async fn ask(connector: &dyn Connector, target: &str) -> io::Result<Acquainted> {
    within(async {
        let mut stream = connect(connector, target).await?;
        let mut writer = FrameWriter::new(PATIENCE, ANSWER_BYTES_MAX);
        let mut reader = FrameReader::new(ANSWER_BYTES_MAX);
        writer.push(&[], Bytes::from_static(QUESTION)).map_err(io::Error::other)?;
        writer.flush(&mut *stream).await.map_err(io::Error::other)?;
        let frame = reader.read(&mut *stream).await.map_err(io::Error::other)?;
        if !frame.starts_with(ANSWER) {
            return Err(io::Error::other("it does not say who is in its cluster; is it a Tidelock of this version?"));
        }
        understood(&frame).map_err(io::Error::other)
    })
    .await
}

/// Greets `to` at `target` as `node` with the disk of that number. `Ok(Err)`: it refused, and says why.
pub async fn introduce(
    connector: &dyn Connector,
    target: &str,
    to: (ClusterId, NodeId),
    node: NodeId,
    disk: u64,
    advertise: &str,
) -> io::Result<Result<(), String>> {
    within(async {
        let (cluster, to) = to;
        let identity = Identity { cluster, node, disk, versions: VERSIONS, advertise: advertise.to_owned() };
        let mut stream = connect(connector, target).await?;
        let mut writer = FrameWriter::new(PATIENCE, ANSWER_BYTES_MAX);
        let mut reader = FrameReader::new(ANSWER_BYTES_MAX);
        match identity.greet(&mut *stream, &mut reader, &mut writer, to, Purpose::Messages).await {
            Ok(_) => Ok(Ok(())),
            Err(HandshakeError::Refused(reason)) => Ok(Err(reason)),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    })
    .await
}

async fn connect(connector: &dyn Connector, target: &str) -> io::Result<Box<dyn PeerStream>> {
    let tcp = TcpStream::connect(target).await?;
    tcp.set_nodelay(true)?;
    connector.secure(target, tcp).await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {PATIENCE:?}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::MemberRole;

    /// What cannot be read back keeps every member that is added by hand from starting.
    #[test]
    fn an_answer_is_understood_and_a_broken_one_is_refused() {
        let member = Member {
            id: NodeId(3),
            name: String::new(),
            peer_addresses: vec!["h:1".into(), "h:2".into()],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        };
        let frame = answer(ClusterId(1), NodeId(2), std::slice::from_ref(&member));
        let expected = Acquainted { cluster: ClusterId(1), node: NodeId(2), members: vec![member] };
        assert_eq!(understood(&frame), Ok(expected));
        for length in ANSWER.len()..frame.len() {
            assert!(understood(&frame.slice(..length)).is_err(), "{length} bytes");
        }
    }
}
