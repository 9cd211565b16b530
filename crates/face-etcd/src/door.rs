//! What comes in at the client port, gRPC or not: calls go to the services, the rest to the gateway, which
//! itself calls the services through here. Deadlines that clients set are kept here, for both.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::EtcdFace;
use crate::gateway::Gateway;
use crate::listener::ClientName;

/// The one service behind every connection. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Door {
    face: EtcdFace,
    gateway: Gateway,
}

impl Door {
    pub(crate) fn new(face: EtcdFace) -> Door {
        Door { gateway: Gateway::new(face.clone()), face }
    }

    pub(crate) fn face(&self) -> &EtcdFace {
        &self.face
    }

    /// Answers one request, whatever it is.
    pub(crate) async fn answer(self, mut request: Request<Body>) -> Response<Body> {
        if is_grpc(request.headers()) {
            call(self.face, request).await
        } else {
            // A certificate does not speak for who comes through the gateway: in etcd the gateway is a client of its
            // own, and proxies that put JSON clients behind one certificate are built on that. A token does.
            request.extensions_mut().remove::<ClientName>();
            // Boxed so that the calls, which are nearly everything, do not carry its size around.
            Box::pin(self.gateway.answer(request)).await
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Calls a gRPC method, and gives up when the time the client gave it is over. A write that is given up on
/// may still happen, as with any deadline.
pub(crate) async fn call(mut face: EtcdFace, request: Request<Body>) -> Response<Body> {
    let patience = request.headers().get("grpc-timeout").and_then(|value| time_given(value.as_bytes()));
    let answering = face.call(request);
    let answer = match patience {
        None => answering.await,
        Some(patience) => match tokio::time::timeout(patience, answering).await {
            Ok(answer) => answer,
            Err(_elapsed) => return Status::deadline_exceeded("context deadline exceeded").into_http(),
        },
    };
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// `grpc-timeout`: up to eight digits and a unit. One that cannot be read counts as none, as it always did.
pub(crate) fn time_given(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deadline misread by a factor of a thousand either cuts calls short or never ends them.
    #[test]
    fn deadlines_are_read_in_their_units() {
        let given = |text: &str| time_given(text.as_bytes());
        assert_eq!(given("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(given("3M"), Some(Duration::from_secs(180)));
        assert_eq!(given("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(given("250m"), Some(Duration::from_millis(250)));
        assert_eq!(given("7u"), Some(Duration::from_micros(7)));
        assert_eq!(given("1n"), Some(Duration::from_nanos(1)));
        for nonsense in ["", "S", "5", "5s", "-1S", "123456789S", "1.5S"] {
            assert_eq!(given(nonsense), None, "{nonsense}");
        }
    }
}
