//! The `tidelock` program. Everything is in the library of the same name; see its `run`.

/// Fewer stalls than the system allocator when many threads allocate and free small buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    tidelock::run()
}
