//! Generates client and server stubs from `proto/`, in Rust alone: no `protoc` on the build machine.

use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        ["proto/rpc.proto", "proto/lock.proto", "proto/election.proto", "proto/health.proto"],
        ["proto"],
    )?;
    // What the JSON gateway reads to translate; comments and positions are of no use to it.
    let mut descriptors = files.clone();
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out_dir = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out_dir).join("descriptors.bin"), descriptors.encode_to_vec())?;
    // `bytes` fields share the receive buffer instead of copying out of it: values are the bulk of
    // every request and answer.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
