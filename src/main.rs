//! argv → exit code. Installs the crypto provider; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    wva::cmd::main()
}
