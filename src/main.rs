//! The `oncegate` command: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use oncegate::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run(Cli::parse())
}
