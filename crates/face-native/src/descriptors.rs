//! The descriptors of our API, by which JSON is translated. They take megabytes, so they are read when the first
//! client asks in JSON, and a node whose clients all speak gRPC never does.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;
use tidelock_client_port::Shape;
use tidelock_native_api::FILE_DESCRIPTOR_SET;

use crate::unary::SERVICE;

static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the descriptors were written when this was built")
});

pub(crate) fn descriptors() -> &'static DescriptorPool {
    &DESCRIPTORS
}

/// What a method of the service takes and gives.
pub(crate) fn shape_of(method: &str) -> Shape {
    Shape::of(&DESCRIPTORS, &format!("{SERVICE}/{method}")).expect("the service has all methods")
}
