//! argv → exit code, and who allocates; everything else is in the library.

use std::process::ExitCode;

/// An evaluation of many variants allocates on several threads what others free, and glibc's heaps keep all of it.
/// Figures stand in `docs/DEPENDENCIES.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wva::cmd::main()
}
