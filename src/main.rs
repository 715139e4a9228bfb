//! The entry point and the allocator; everything else is in the library.

use std::process::ExitCode;

/// In an evaluation of many variants, one thread frees what another allocated, and glibc's heaps keep that memory. For figures
/// see `docs/DEPENDENCIES.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wva::cmd::main()
}
