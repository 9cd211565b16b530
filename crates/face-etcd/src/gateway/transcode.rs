//! JSON to protobuf and back, by the descriptors of the API: a new call needs no code here.
//!
//! Out: names as in the proto files, 64-bit numbers as strings, bytes as base64, enumerations by name, nothing
//! that has its default. In: those names or their camelCase, numbers as numbers or strings, base64 of either
//! alphabet with or without padding, enumerations by name or number; what is unknown is passed over. Both as
//! etcd has it.

use std::collections::HashMap;

use bytes::Bytes;
use prost_reflect::DescriptorPool;
use tidelock_client_port::{Shape, Unreadable};
use tonic::Status;

use super::routes::ROUTES;

/// What is known of one gRPC method.
#[derive(Clone)]
pub(super) struct Method {
    /// `package.Service/Method`.
    pub(super) name: &'static str,
    /// None: this server does not have it.
    pub(super) shape: Option<Shape>,
}

/// All methods by path.
pub(super) fn methods() -> HashMap<&'static str, Method> {
    let pool = DescriptorPool::decode(tidelock_etcd_api::FILE_DESCRIPTOR_SET)
        .expect("the descriptors were written when this was built");
    ROUTES.iter().map(|&(path, name)| (path, Method { name, shape: Shape::of(&pool, name) })).collect()
}

/// One request, encoded. What is unknown in it is passed over.
pub(super) fn request_from_json(shape: &Shape, json: &[u8]) -> Result<Bytes, Status> {
    shape.request_from_json(json, false).map_err(|unreadable| match unreadable {
        Unreadable::CutOff => Status::invalid_argument("unexpected EOF"),
        Unreadable::Malformed(why) => Status::invalid_argument(format!("proto: {why}")),
    })
}

/// Appends one response, which was encoded by this server, as JSON.
pub(super) fn response_to_json(shape: &Shape, encoded: Bytes, out: &mut Vec<u8>) -> Result<(), Status> {
    shape.response_to_json(encoded, true, out).map_err(Status::internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;
    use tidelock_etcd_api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader, TxnRequest};
    use tidelock_etcd_api::mvccpb::KeyValue;

    fn shape_of(path: &str) -> Shape {
        methods()[path].shape.clone().unwrap()
    }

    fn range(json: &str) -> Result<RangeRequest, Status> {
        request_from_json(&shape_of("/v3/kv/range"), json.as_bytes()).map(|bytes| RangeRequest::decode(bytes).unwrap())
    }

    /// Clients in other languages write what their JSON libraries make of the types: each of these is sent
    /// by some.
    #[test]
    fn requests_are_read_in_every_spelling_that_etcd_reads() {
        let expected = RangeRequest {
            key: "k".into(),
            range_end: vec![0xfb, 0xff].into(),
            limit: 5,
            sort_order: 2,
            serializable: true,
            ..Default::default()
        };
        for json in [
            r#"{"key":"aw==","range_end":"+/8=","limit":"5","sort_order":"DESCEND","serializable":true}"#,
            r#"{"key":"aw","rangeEnd":"-_8","limit":5,"sortOrder":2,"serializable":true,"nobody":{"knows":[1]}}"#,
            r#" {"key":"aw==","range_end":"+/8=","limit":5.0,"sort_order":"DESCEND","serializable":true,"revision":null} x"#,
        ] {
            assert_eq!(range(json).unwrap(), expected, "{json}");
        }
        assert_eq!(range("").unwrap(), RangeRequest::default());
        assert_eq!(range("{}").unwrap(), RangeRequest::default());
    }

    /// A request read wrongly would be carried out wrongly: what cannot be understood is refused.
    #[test]
    fn what_cannot_be_understood_is_refused_and_not_guessed() {
        for json in [
            "{",
            "null",
            "[]",
            "junk",
            r#"{"key":"*"}"#,
            r#"{"key":5}"#,
            r#"{"limit":"x"}"#,
            r#"{"limit":1.5}"#,
            r#"{"limit":99999999999999999999}"#,
        ] {
            assert_eq!(range(json).unwrap_err().code(), tonic::Code::InvalidArgument, "{json}");
        }
        assert_eq!(range("{").unwrap_err().message(), "unexpected EOF");
        let two = r#"{"compare":[{"version":"1","value":"eA=="}]}"#;
        assert!(request_from_json(&shape_of("/v3/kv/txn"), two.as_bytes()).is_err(), "one target, not two");
    }

    /// The reader must give up on nesting before the stack does: anybody can send this.
    #[test]
    fn nesting_without_end_is_refused() {
        let json = r#"{"success":[{"request_txn":"#.repeat(100_000);
        assert!(request_from_json(&shape_of("/v3/kv/txn"), json.as_bytes()).is_err());
        let json = format!("{{\"unknown\":{}", "[".repeat(1_000_000));
        assert!(request_from_json(&shape_of("/v3/kv/txn"), json.as_bytes()).is_err());
        // As deep as transactions may be nested, it is read.
        let deep = format!("{}{{}}{}", r#"{"success":[{"request_txn":"#.repeat(17), "}]}".repeat(17));
        let encoded = request_from_json(&shape_of("/v3/kv/txn"), deep.as_bytes()).unwrap();
        assert!(TxnRequest::decode(encoded).is_ok());
    }

    #[test]
    fn answers_are_written_as_etcd_writes_them() {
        let header = ResponseHeader { cluster_id: u64::MAX, member_id: 2, revision: 7, raft_term: 0 };
        let kv = KeyValue { key: "a".into(), mod_revision: 3, value: vec![0xfb, 0xff].into(), ..Default::default() };
        let response = RangeResponse { header: Some(header), kvs: vec![kv], more: true, count: 9 };
        let mut json = Vec::new();
        response_to_json(&shape_of("/v3/kv/range"), response.encode_to_vec().into(), &mut json).unwrap();
        let expected = r#"{"header":{"cluster_id":"18446744073709551615","member_id":"2","revision":"7"},"kvs":[{"key":"YQ==","mod_revision":"3","value":"+/8="}],"more":true,"count":"9"}"#;
        assert_eq!(String::from_utf8(json).unwrap(), expected);
    }

    proptest! {
        /// Anybody can send anything: it is read or refused, and nothing else happens.
        #[test]
        fn no_text_can_do_harm(text in "[{}\\[\\]\":,a-z_0-9 \\\\e.-]{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for path in ["/v3/kv/txn", "/v3/watch", "/v3/kv/range"] {
                let shape = shape_of(path);
                let _ = request_from_json(&shape, text.as_bytes());
                let _ = request_from_json(&shape, &bytes);
                let _ = response_to_json(&shape, bytes.clone().into(), &mut Vec::new());
            }
        }

        /// Whatever is stored comes out as it went in, through both directions and both alphabets.
        #[test]
        fn keys_of_any_bytes_survive(key in proptest::collection::vec(any::<u8>(), 0..64), limit in any::<i64>()) {
            let shape = shape_of("/v3/kv/range");
            let request = RangeRequest { key: key.clone().into(), limit, ..Default::default() };
            // The two messages have bytes in field 1 and 2: written by the one, read by the other.
            let written = KeyValue { key: key.into(), ..Default::default() };
            let answer = RangeResponse { kvs: vec![written], count: limit, ..Default::default() };
            let mut json = Vec::new();
            response_to_json(&shape, answer.encode_to_vec().into(), &mut json).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let mut asked = json["kvs"][0].clone();
            asked["limit"] = json["count"].clone();
            let read = request_from_json(&shape, asked.to_string().as_bytes()).unwrap();
            prop_assert_eq!(RangeRequest::decode(read).unwrap(), request);
        }
    }
}
