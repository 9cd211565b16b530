//! etcd's v3 wire types with client and server stubs, generated from `proto/` at build time.
//!
//! Package, message and field names and numbers are exactly those of etcd 3.7, so that unmodified
//! clients talk to us. Nothing of ours is in here: what the messages mean is `face-etcd`'s business.

/// Everything `proto/` says, as an encoded `FileDescriptorSet`: for translating messages whose type is
/// known only at run time.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Keys with their versions, and events.
pub mod mvccpb {
    // Generated: the meaning of each field is in `proto/kv.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("mvccpb");
}

/// Users, roles and permissions.
pub mod authpb {
    // Generated: the meaning of each field is in `proto/auth.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("authpb");
}

/// Requests, answers and services.
pub mod etcdserverpb {
    // Generated: the meaning of each field is in `proto/rpc.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("etcdserverpb");
}

/// Locks that the server waits for.
pub mod v3lockpb {
    // Generated: the meaning of each field is in `proto/lock.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("v3lockpb");
}

/// Elections that the server waits for.
pub mod v3electionpb {
    // Generated: the meaning of each field is in `proto/election.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("v3electionpb");
}

/// Whether a server can serve, as all of gRPC asks it.
pub mod healthpb {
    // Generated: the meaning of each field is in `proto/health.proto`, and its style is the generator's.
    #![allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all, clippy::pedantic)]
    tonic::include_proto!("grpc.health.v1");
}

#[cfg(test)]
mod tests {
    use super::etcdserverpb::{WatchResponse, compare};
    use super::mvccpb::{Event, KeyValue};
    use prost::Message;

    /// Clients decode by number: these bytes were worked out by hand from etcd's public field numbers.
    #[test]
    fn field_numbers_are_the_ones_clients_know() {
        let kv =
            KeyValue { key: "k".into(), create_revision: 2, mod_revision: 3, version: 4, value: "v".into(), lease: 5 };
        let kv_bytes = [0x0a, 1, b'k', 0x10, 2, 0x18, 3, 0x20, 4, 0x2a, 1, b'v', 0x30, 5];
        assert_eq!(kv.encode_to_vec(), kv_bytes);

        let event = Event { r#type: 1, kv: None, prev_kv: None };
        let response = WatchResponse { watch_id: 1, fragment: true, events: vec![event], ..Default::default() };
        assert_eq!(response.encode_to_vec(), [0x10, 1, 0x38, 1, 0x5a, 2, 0x08, 1]);

        let compare = super::etcdserverpb::Compare {
            target_union: Some(compare::TargetUnion::Lease(7)),
            range_end: "z".into(),
            ..Default::default()
        };
        assert_eq!(compare.encode_to_vec(), [0x40, 7, 0x82, 0x04, 1, b'z']);
    }
}
