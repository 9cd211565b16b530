//! Connections to a server that speaks the etcd API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_api::etcdserverpb::{RangeRequest, StatusRequest};
use tonic::transport::{Channel, Endpoint};

use crate::Result;

/// How long a request may take before it counts as failed. Above the servers' own limit, so that their
/// verdict is seen and not ours.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one attempt to reach a starting server may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between attempts. Small, because restart time is measured with it.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
/// HTTP/2 windows that never throttle our small messages; the default of 64 KiB would.
const WINDOW_BYTES: u32 = 4 << 20;

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

/// Waits until a linearizable read at `address` succeeds, and says how long after `start` that was.
/// `alive` says why the wait is in vain, if it is.
pub(crate) async fn first_read(
    address: SocketAddr,
    start: Instant,
    limit: Duration,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Duration> {
    let mut last_error = String::from("no attempt was made");
    while start.elapsed() < limit {
        alive()?;
        // A new connection each time: a lazy one backs off after a refusal.
        let mut kv = KvClient::new(channel(address));
        let read = RangeRequest { key: "bench/ready".into(), ..RangeRequest::default() };
        match tokio::time::timeout(ATTEMPT_TIMEOUT, kv.range(read)).await {
            Ok(Ok(_)) => return Ok(start.elapsed()),
            Ok(Err(status)) => last_error = status.message().to_string(),
            Err(_) => last_error = "no answer".to_string(),
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
    Err(format!("{address} did not answer a read within {limit:?}: {last_error}"))
}

/// Whether the member at `address` leads.
pub(crate) async fn leads(address: SocketAddr) -> Result<bool> {
    let mut maintenance = MaintenanceClient::new(channel(address));
    let status = maintenance.status(StatusRequest::default()).await;
    let status = status.map_err(|status| format!("status of {address}: {}", status.message()))?.into_inner();
    let member = status.header.map_or(0, |header| header.member_id);
    Ok(member != 0 && member == status.leader)
}
