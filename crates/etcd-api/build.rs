//! Generates client and server stubs from `proto/`, in Rust alone: no `protoc` on the build machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/rpc.proto"], ["proto"])?;
    // `bytes` fields share the receive buffer instead of copying out of it: values are the bulk of
    // every request and answer.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
