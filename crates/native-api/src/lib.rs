//! The native API's wire types with client and server stubs, generated from `proto/` at build time.
//!
//! Nothing but the wire is in here: what the messages mean is `face-native`'s business, and the client's. A published
//! client depends on this crate, so it may depend on nothing of ours.

/// Everything `proto/` says, as an encoded `FileDescriptorSet` with its comments: for translating JSON, and for the
/// OpenAPI document.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Where a failed unary call has the encoded [`v1::Error`]: a trailer beside `grpc-status`.
pub const ERROR_TRAILER: &str = "tidelock-error-bin";

/// Requests, answers, notices and the service.
pub mod v1 {
    // Generated: the meaning of each field is in `proto/native.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("tidelock.v1");
}

#[cfg(test)]
mod tests {
    use super::v1::{Acquire, FromClient, Mode, Request, from_client, request};
    use prost::Message;

    /// Clients and servers of different versions meet: these bytes were worked out by hand, once.
    #[test]
    fn field_numbers_stay_what_they_were() {
        let op = request::Op::Acquire(Acquire { name: "n".into(), mode: Mode::Exclusive.into(), ..Default::default() });
        let request = Request { session: 5, number: 2, acknowledged: 1, op: Some(op) };
        let message = FromClient { message: Some(from_client::Message::Request(request)) };
        let acquire = [0x0a, 1, b'n', 0x10, 1];
        let head = [0x12, 13, 0x08, 5, 0x10, 2, 0x18, 1, 0x52, 5];
        assert_eq!(message.encode_to_vec(), [&head[..], &acquire].concat());
    }
}
