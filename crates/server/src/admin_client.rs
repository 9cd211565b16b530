//! A caller of the admin API: one small HTTP/1.0 exchange per call over a fresh connection.
//!
//! HTTP/1.0 because the server then sends a plain body and closes, so that reading to the end is the
//! whole protocol. Answers are bounded in size and time. The admin API is plain HTTP on loopback or a
//! trusted network; anything else (TLS, redirects, proxies, chunked bodies) is refused, not followed.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::admin_api::{AddMember, ErrorReport, MemberAdded, MemberList, StatusReport, TransferLeadership};
use crate::admin_history::{AskHistory, HistoryReport};
use crate::config::check_host_port;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for an answer; above the server's own limits, so that its reasons arrive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Far above any honest answer; a wrong address could otherwise feed us for ever.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// The admin URL of a node, `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminUrl {
    authority: String,
}

impl AdminUrl {
    pub(crate) fn parse(text: &str) -> Result<AdminUrl, String> {
        if text.starts_with("https://") {
            return Err("asks for TLS, which comes later".into());
        }
        let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        check_host_port(authority, false)?;
        Ok(AdminUrl { authority: authority.to_owned() })
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// Why a call got no answer it can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// Nobody was reached; nothing was asked. Another address may be tried.
    Unreachable { url: AdminUrl, why: String },
    /// Somebody was reached but no answer came, or none we understand: a change may have happened.
    NoAnswer { url: AdminUrl, why: String },
    /// The node said no, and why.
    Refused { status: u16, report: ErrorReport },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unreachable { url, why } => write!(f, "{url} cannot be reached: {why}"),
            CallError::NoAnswer { url, why } => write!(f, "{url} did not answer: {why}"),
            CallError::Refused { report, .. } => f.write_str(&report.error),
        }
    }
}

impl CallError {
    /// The word the node gave for its refusal.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            CallError::Refused { report, .. } => Some(&report.code),
            CallError::Unreachable { .. } | CallError::NoAnswer { .. } => None,
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> String {
        match self {
            CallError::Unreachable { .. } => {
                "check that the node runs and that --admin names its admin address (port 7480 by default)".into()
            }
            CallError::NoAnswer { .. } => {
                "check that the address is an admin address; list the members before you retry a change".into()
            }
            CallError::Refused { report, .. } => report.hint.clone(),
        }
    }
}

/// `GET /v1/status`.
pub(crate) async fn status(url: &AdminUrl) -> Result<StatusReport, CallError> {
    call(url, "GET", "/v1/status", None::<&()>).await
}

/// `GET /v1/members`.
pub(crate) async fn members(url: &AdminUrl) -> Result<MemberList, CallError> {
    call(url, "GET", "/v1/members", None::<&()>).await
}

/// `POST /v1/members`.
pub(crate) async fn add_member(url: &AdminUrl, request: &AddMember) -> Result<MemberAdded, CallError> {
    call(url, "POST", "/v1/members", Some(request)).await
}

/// `POST /v1/members/{id}/promote`.
pub(crate) async fn promote(url: &AdminUrl, id: &str) -> Result<MemberList, CallError> {
    call(url, "POST", &format!("/v1/members/{id}/promote"), None::<&()>).await
}

/// `DELETE /v1/members/{id}`.
pub(crate) async fn remove_member(url: &AdminUrl, id: &str) -> Result<MemberList, CallError> {
    call(url, "DELETE", &format!("/v1/members/{id}"), None::<&()>).await
}

/// `POST /v1/leadership`.
pub(crate) async fn transfer_leadership(url: &AdminUrl, to: &str) -> Result<MemberList, CallError> {
    call(url, "POST", "/v1/leadership", Some(&TransferLeadership { to: to.to_owned() })).await
}

/// `POST /v1/history`.
pub(crate) async fn history(url: &AdminUrl, request: &AskHistory) -> Result<HistoryReport, CallError> {
    call(url, "POST", "/v1/history", Some(request)).await
}

/// Whether the node says it can serve.
pub(crate) async fn is_ready(url: &AdminUrl) -> bool {
    matches!(exchange(url, "GET", "/readyz", &[]).await, Ok(Answer { status: 200, .. }))
}

async fn call<Q: Serialize, A: DeserializeOwned>(
    url: &AdminUrl,
    method: &str,
    path: &str,
    request: Option<&Q>,
) -> Result<A, CallError> {
    let no_answer = |why: String| CallError::NoAnswer { url: url.clone(), why };
    let body = match request {
        Some(request) => serde_json::to_vec(request).map_err(|error| no_answer(error.to_string()))?,
        None => Vec::new(),
    };
    let answer = exchange(url, method, path, &body).await?;
    if (200..300).contains(&answer.status) {
        return serde_json::from_slice(&answer.body)
            .map_err(|error| no_answer(format!("its answer is not that of an admin address: {error}")));
    }
    match serde_json::from_slice(&answer.body) {
        Ok(report) => Err(CallError::Refused { status: answer.status, report }),
        Err(_) => Err(no_answer(format!("it answered with HTTP status {} and no reason", answer.status))),
    }
}

struct Answer {
    status: u16,
    body: Vec<u8>,
}

async fn exchange(url: &AdminUrl, method: &str, path: &str, body: &[u8]) -> Result<Answer, CallError> {
    let unreachable = |why: String| CallError::Unreachable { url: url.clone(), why };
    let no_answer = |why: String| CallError::NoAnswer { url: url.clone(), why };
    let connecting = TcpStream::connect(&url.authority);
    let mut stream = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable(format!("no connection within {CONNECT_TIMEOUT:?}"))),
    };
    let mut request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        url.authority,
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    let talking = async {
        stream.write_all(&request).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, talking).await {
        Ok(Ok(bytes)) => parse_answer(&bytes).map_err(no_answer),
        Ok(Err(error)) => Err(no_answer(error.to_string())),
        Err(_) => Err(no_answer(format!("nothing came within {ANSWER_TIMEOUT:?}"))),
    }
}

fn parse_answer(bytes: &[u8]) -> Result<Answer, String> {
    const NOT_HTTP: &str = "what it sent is not an HTTP answer";
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").ok_or(NOT_HTTP)?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| NOT_HTTP)?;
    let body = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status_line = lines.next().filter(|line| line.starts_with("HTTP/1.")).ok_or(NOT_HTTP)?;
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(NOT_HTTP)?;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("it sends a kind of body an admin address never sends".into());
        }
        if name.eq_ignore_ascii_case("content-length") && value.trim().parse() != Ok(body.len()) {
            return Err("its answer was cut short".into());
        }
    }
    Ok(Answer { status, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A half-received list of members must not be taken for the whole one.
    #[test]
    fn a_cut_answer_is_not_taken_for_a_whole_one() {
        let whole = b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        let answer = parse_answer(whole).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, b"{}".as_slice()));
        for end in 0..whole.len() {
            assert!(parse_answer(&whole[..end]).is_err(), "cut at {end}");
        }
    }

    /// Pointing a command at the etcd port is the likeliest mistake; it must say so, not hang or panic.
    #[test]
    fn what_is_not_http_is_refused() {
        for noise in [&b""[..], b"\0\0\x12\x04\0\0\0\0\0", b"\r\n\r\n", b"HTTP/1.1 x\r\n\r\n", b"SSH-2.0\r\n\r\n"] {
            assert!(parse_answer(noise).is_err(), "{noise:?}");
        }
    }

    #[test]
    fn admin_urls_are_told_from_nonsense() {
        assert_eq!(AdminUrl::parse("http://h:7480/").unwrap().to_string(), "http://h:7480");
        assert_eq!(AdminUrl::parse("127.0.0.1:7480").unwrap().to_string(), "http://127.0.0.1:7480");
        assert!(AdminUrl::parse("https://h:7480").is_err());
        assert!(AdminUrl::parse("h").is_err());
    }
}
