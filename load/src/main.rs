//! `oncegate-load`: puts a gateway under load and reports the results. Command line and exit code: 0 success, 1 a
//! broken promise, 2 a run that failed.

#![expect(
    clippy::disallowed_methods,
    reason = "a load generator measures real time, and no two of its runs are the same"
)]

mod capacity;
mod client;
mod compare;
mod contender;
mod failover;
mod fill;
mod footprint;
mod goals;
mod ledger;
mod library;
mod locks;
mod noop;
mod pace;
mod peers;
mod postgres;
mod proc;
mod programs;
mod proxied;
mod recorder;
mod redis;
mod report;
mod runner;
mod running;
mod scenario;
mod setting;
mod soak;
mod streamed;
#[cfg(test)]
mod tests;
mod trial;
mod upstream;
mod wire;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::{
    client::Target,
    compare::{Comparison, Measurement},
    contender::Contender,
    locks::{Extent, LONGEST_WAIT, Subject},
    pace::Pacing,
    proc::Watched,
    runner::Plan,
    scenario::Scenario,
    soak::{Soak, Soaked},
    wire::Dialect,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Puts an Oncegate gateway under load and checks its promises")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load one gateway and report latencies, rates and broken promises
    Run(RunArgs),
    /// Serve the reference: a no-op handler that parses claims
    Noop {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
    },
    /// Serve requests as a service behind a proxy does, and count them by idempotency key
    Upstream {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:9000")]
        listen: SocketAddr,
    },
    /// Serve claims by the client library's own cluster mode
    Library {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
        /// URLs of some nodes
        #[arg(long, value_delimiter = ',')]
        nodes: Vec<String>,
    },
    /// Compare the reference server, a gateway on each engine and alternatives side by side
    Compare(CompareArgs),
    /// Measure locks against their targets, next to claims, redis-py's lock and etcd's
    Locks(FigureArgs),
    /// Measure claim calls that wait for a claim in progress, against their targets
    Waiting(FigureArgs),
    /// Let each engine work for an hour, with faults, and check that what it uses does not grow
    Soak(SoakArgs),
}

#[derive(Args)]
struct RunArgs {
    /// URL of the gateway's API
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Behaviour of the callers
    #[arg(long, value_enum, default_value = "settle")]
    scenario: Scenario,
    /// Operations started per second, even if earlier ones are unanswered
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Instead of a rate: every connection starts its next operation when the previous one is answered
    #[arg(long, conflicts_with = "rate")]
    closed: bool,
    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Load before the measurement, in seconds; checked, but not measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=600))]
    warm_up: u64,
    /// Connections, and so the maximum of requests in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Process whose CPU time to report, such as gateway=1234; may be repeated
    #[arg(long = "pid", value_name = "NAME=PID")]
    pids: Vec<Watched>,
    /// `<app_key>.<secret>`, if the gateway has apps configured
    #[arg(long, env = "ONCEGATE_CREDENTIAL", hide_env_values = true)]
    credential: Option<String>,
    /// Do not check promises, for the reference server, which keeps none
    #[arg(long)]
    no_checks: bool,
    /// Permit an address beyond loopback
    #[arg(long)]
    allow_remote: bool,
}

#[derive(Args)]
struct CompareArgs {
    /// Behaviour of the callers
    #[arg(long, value_enum, default_value = "unique")]
    scenario: Scenario,
    /// Duration of each contender's measurement in each round, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds; each measures every contender once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Connections of the generator
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,
    /// Only these contenders, such as postgres,pgbench; the reference server of the scenario is always measured
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<Contender>,
    /// Also measure the figures of the targets: all kinds except live, or the named ones
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "rates,latencies,failover,sizes,streams")]
    targets: Vec<Measurement>,
    /// Live claims during `--targets=live`
    #[arg(long, default_value_t = 5_000_000, value_name = "CLAIMS")]
    live: u64,
    #[command(flatten)]
    paths: PathArgs,
    /// Also write the tables into this file, between its lines `<!-- measured: begin -->` and `<!-- measured: end -->`; those
    /// of the proxied scenario between `<!-- proxied: begin -->` and `<!-- proxied: end -->`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Paths of what a measurement runs and writes.
#[derive(Args)]
struct PathArgs {
    /// Path of the gateway's executable [default: the one in the folder of this executable]
    #[arg(long, value_name = "PATH")]
    gateway: Option<PathBuf>,
    /// Directory for the stores' data [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Args)]
struct SoakArgs {
    /// Rounds on each engine. Growth is judged between the second and the last third
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(soak::ROUNDS_MIN..=10_000))]
    rounds: u64,
    /// Duration of each round, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Operations per second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Only these engines: memory, disk, redis, postgres
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    only: Vec<Contender>,
    #[command(flatten)]
    paths: PathArgs,
    /// Also write the tables into this file, between its lines `<!-- soak: begin -->` and `<!-- soak: end -->`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct FigureArgs {
    /// Duration of each run, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds; in each the contenders take turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Callers that wait at once; for the store calls of a release, a fifth of them
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(50..=20_000))]
    callers: u64,
    /// Only these engines: memory, redis, postgres
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    only: Vec<Contender>,
    #[command(flatten)]
    paths: PathArgs,
    /// Also write the table into this file, between its lines `<!-- locks: begin -->` and `<!-- locks: end -->`, or those of
    /// `waiting`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            report::say(&format!("oncegate-load: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Runs a command. Returns whether every promise was kept.
fn dispatch(command: Command) -> anyhow::Result<bool> {
    // One thread for the generator: on a small machine a second one would take the CPU time that is measured.
    let mut runtime = match command {
        Command::Noop { .. } | Command::Upstream { .. } | Command::Library { .. } => {
            tokio::runtime::Builder::new_multi_thread()
        }
        Command::Run(_) | Command::Compare(_) | Command::Locks(_) | Command::Waiting(_) | Command::Soak(_) => {
            tokio::runtime::Builder::new_current_thread()
        }
    };
    let runtime = runtime.enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            // An interrupt drops the children, which kills them.
            () = interrupted() => anyhow::bail!("interrupted"),
            done = async {
                match command {
                    Command::Run(args) => run(args).await,
                    Command::Noop { listen } => noop::serve(listen).await.map(|()| true),
                    Command::Upstream { listen } => upstream::serve(listen).await.map(|()| true),
                    Command::Library { listen, nodes } => library::serve(listen, nodes).await.map(|()| true),
                    Command::Compare(args) => compare(args).await,
                    Command::Locks(args) => figures(Subject::Locks, args).await,
                    Command::Waiting(args) => figures(Subject::Waiting, args).await,
                    Command::Soak(args) => soak(args).await,
                }
            } => done,
        }
    })
}

async fn run(args: RunArgs) -> anyhow::Result<bool> {
    let plan = Plan {
        target: Target::parse(&args.url, args.credential.as_deref(), args.allow_remote)?,
        upstream: None,
        dialect: Dialect::Gateway,
        scenario: args.scenario,
        pacing: if args.closed { Pacing::Closed } else { Pacing::Open { per_second: args.rate } },
        warm_up: Duration::from_secs(args.warm_up),
        measured: Duration::from_secs(args.seconds),
        kept_after: runner::KEPT_AFTER,
        connections: args.connections,
        checks: !args.no_checks,
        watched: args.pids,
        progress: true,
    };
    let report = runner::run(plan).await?;
    report::show(&report.to_string())?;
    if let Some(path) = &args.json {
        report::write_json(path, &report)?;
    }
    Ok(report.is_sound())
}

async fn compare(args: CompareArgs) -> anyhow::Result<bool> {
    let comparison = Comparison {
        scenario: args.scenario,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        connections: args.connections,
        only: args.only,
        targets: args.targets,
        live: args.live,
        gateway: args.paths.gateway,
        dir: args.paths.dir,
    };
    let (compared, sound) = compare::run(comparison).await?;
    report::show(&compared.to_string())?;
    if let Some(path) = &args.json {
        report::write_json(path, &compared)?;
    }
    if let Some(path) = &args.into {
        report::write_between(path, compared.marks(), &compared.to_string())?;
    }
    Ok(sound)
}

async fn soak(args: SoakArgs) -> anyhow::Result<bool> {
    let soak = Soak {
        only: args.only,
        rounds: args.rounds,
        measured: Duration::from_secs(args.seconds),
        per_second: args.rate,
        gateway: args.paths.gateway,
        dir: args.paths.dir,
    };
    let (soaked, is_sound) = soak::run(soak).await?;
    report::show(&soaked.to_string())?;
    if let Some(path) = &args.json {
        report::write_json(path, &soaked)?;
    }
    if let Some(path) = &args.into {
        report::write_between(path, Soaked::marks(), &soaked.to_string())?;
    }
    Ok(is_sound)
}

async fn figures(subject: Subject, args: FigureArgs) -> anyhow::Result<bool> {
    let extent = Extent {
        subject,
        only: args.only,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        callers: usize::try_from(args.callers)?,
        wait: LONGEST_WAIT,
        gateway: args.paths.gateway,
        dir: args.paths.dir,
    };
    let (figures, sound) = locks::run(extent).await?;
    report::show(&figures.to_string())?;
    if let Some(path) = &args.json {
        report::write_json(path, &figures)?;
    }
    if let Some(path) = &args.into {
        report::write_between(path, figures.marks(), &figures.to_string())?;
    }
    Ok(sound)
}

/// Waits for SIGINT or SIGTERM.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
