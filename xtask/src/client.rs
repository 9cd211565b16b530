//! Questions to servers that are asked seldom: who leads.

use std::net::SocketAddr;
use std::time::Duration;

use tidelock_etcd_api::etcdserverpb::StatusRequest;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::Result;

/// How long a request may take before it counts as failed. Above the servers' own limit, so that their
/// verdict is seen and not ours.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// HTTP/2 windows that never throttle our small messages; the default of 64 KiB would.
const WINDOW_BYTES: u32 = 4 << 20;

/// Answers to four-letter words are short.
const WORD_BYTES_MAX: u64 = 1 << 16;

/// A connection, made when first used.
pub(crate) fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
    endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .timeout(REQUEST_TIMEOUT)
        .connect_lazy()
}

/// Whether the member at `address` leads.
pub(crate) async fn leads(address: SocketAddr) -> Result<bool> {
    let mut maintenance = MaintenanceClient::new(channel(address));
    let status = maintenance.status(StatusRequest::default()).await;
    let status = status.map_err(|status| format!("status of {address}: {}", status.message()))?.into_inner();
    let member = status.header.map_or(0, |header| header.member_id);
    Ok(member != 0 && member == status.leader)
}

/// The term that the member at `address` is in: it grows with every election.
pub(crate) async fn term(address: SocketAddr) -> Result<u64> {
    let status = MaintenanceClient::new(channel(address)).status(StatusRequest::default()).await;
    Ok(status.map_err(|status| format!("status of {address}: {}", status.message()))?.into_inner().raft_term)
}

/// Whether the ZooKeeper at `address` leads its ensemble, or is alone.
pub(crate) async fn zookeeper_leads(address: SocketAddr) -> Result<bool> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.take(WORD_BYTES_MAX).read_to_string(&mut answer).await?;
        Ok(answer)
    };
    let asked = tokio::time::timeout(REQUEST_TIMEOUT, ask).await.map_err(|_| format!("{address} said nothing"))?;
    let answer: String = asked.map_err(|error: std::io::Error| format!("srvr at {address}: {error}"))?;
    Ok(answer.lines().any(|line| matches!(line, "Mode: leader" | "Mode: standalone")))
}
