//! Just enough HTTP to press a button on the admin port.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;

/// A snapshot of a large store takes seconds; a hung server must not hold the run for ever.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// Answers of the admin API are small.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) code: u16,
    /// What follows the head.
    pub(crate) body: String,
}

/// Sends a request without a body and waits for the whole answer.
pub(crate) async fn ask(address: SocketAddr, method: &str, path: &str) -> Result<Answer> {
    let asked = tokio::time::timeout(ANSWER_LIMIT, exchange(address, method, path)).await;
    let answer = asked.map_err(|_| format!("{method} {path}: no answer within {ANSWER_LIMIT:?}"))?;
    let bytes = answer.map_err(|error| format!("{method} {path} at {address}: {error}"))?;
    parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| format!("{method} {path}: the answer is not HTTP"))
}

async fn exchange(address: SocketAddr, method: &str, path: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Answer { code, body: body.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal taken for a success would measure a snapshot that was never taken.
    #[test]
    fn the_status_code_is_read() {
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno");
        assert_eq!(answer, Some(Answer { code: 503, body: "no".into() }));
        assert_eq!(parse("SSH-2.0"), None);
    }
}
