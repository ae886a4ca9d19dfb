//! How many instructions the pure pieces of a call take, held to what is recorded beside this folder: `make bench`.
//!
//! Instructions, not time: a busy machine counts them like an idle one. See `docs/adr/0023-instruction-counts.md`.

mod pieces;
mod recorded;
mod valgrind;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use self::recorded::{Recorded, Verdict};

/// The gateway's allocator: allocating is a good part of what is counted.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Counts the instructions of the pure pieces of a call and compares them with what is recorded.
#[derive(Parser)]
struct Args {
    /// Write down what is counted now, because the change is meant.
    #[arg(long)]
    record: bool,
    /// Do this piece, and count nothing: how this program runs itself under valgrind.
    #[arg(long, requires = "times")]
    piece: Option<String>,
    /// How often.
    #[arg(long)]
    times: Option<usize>,
    /// What `cargo bench` says to every bench.
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
        Recorded::of(counted)?.write()?;
        writeln!(out, "recorded in {}; commit it with the change that it belongs to", recorded::FILE)?;
        return Ok(ExitCode::SUCCESS);
    }
    let compared = Recorded::read()?.compare(&counted);
    write!(out, "{compared}")?;
    Ok(match compared.verdict() {
        Verdict::Held => ExitCode::SUCCESS,
        Verdict::Broken => ExitCode::FAILURE,
    })
}
