//! Generates client and server stubs from `proto/`, in Rust alone: no `protoc` on the build machine.

use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    // Comments stay in the descriptors: the OpenAPI document that is made of them shows them.
    let files = protox::compile(["proto/native.proto"], ["proto"])?;
    let out_dir = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out_dir).join("descriptors.bin"), files.encode_to_vec())?;
    // `bytes` fields share the receive buffer; maps are in order, so that equal errors have equal bytes.
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(files)?;
    Ok(())
}
