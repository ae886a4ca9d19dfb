//! The `oncegate` command: parse, run, exit code.

use std::process::ExitCode;

use oncegate::cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run(cli::arguments::parse())
}
