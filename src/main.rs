//! argv → exit code, and who allocates; everything else is in the library.

use std::process::ExitCode;

/// With many variants an evaluation allocates on several threads what is freed on others: glibc's heaps keep all of it,
/// and musl's has one lock. Figures stand in `docs/DEPENDENCIES.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    wva::cmd::main()
}
