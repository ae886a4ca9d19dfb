//! Instruction counts of the pure pieces of a call, compared with the recorded ones: `make bench`.
//!
//! Instructions, not time: a busy machine counts them like an idle one. See `docs/adr/0023-instruction-counts.md`.

mod pieces;
mod recorded;
mod valgrind;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use self::recorded::{Outcome, Recorded};

/// The gateway's allocator: allocations are a good part of the counts.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Counts the instructions of the pure pieces of a call and compares them with the recorded ones.
#[derive(Parser)]
struct Args {
    /// Record the new counts, because the change is intended.
    #[arg(long)]
    record: bool,
    /// Run this piece without counting: the program calls itself like this under valgrind.
    #[arg(long, requires = "times")]
    piece: Option<String>,
    /// Number of repetitions of the piece.
    #[arg(long)]
    times: Option<usize>,
    /// Passed by `cargo bench` to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(name) = &args.piece {
        let piece = pieces::all().find(|piece| piece.name == *name).with_context(|| format!("no piece is `{name}`"))?;
        (piece.run)(args.times.unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = pieces::all().map(|piece| piece.name).collect();
    let counted = valgrind::count(&names)?;
    let mut out = std::io::stdout().lock();
    if args.record {
        Recorded::of(&counted)?.write()?;
        writeln!(out, "recorded in {}; commit it with the change that it belongs to", recorded::FILE)?;
        return Ok(ExitCode::SUCCESS);
    }
    let compared = Recorded::read()?.compare(&counted);
    write!(out, "{compared}")?;
    Ok(match compared.outcome() {
        Outcome::Unchanged => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::FAILURE,
    })
}
