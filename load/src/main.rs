//! `oncegate-load`: puts a gateway under load and reports the results. Command line and exit code: 0 success, 1 a
//! broken promise, 2 a run that failed.

#![expect(
    clippy::disallowed_methods,
    reason = "a load generator measures real time, and no two of its runs are the same"
)]

mod arguments;
mod capacity;
mod client;
mod compare;
mod contender;
mod curves;
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
mod sizes;
mod soak;
mod streamed;
#[cfg(test)]
mod tests;
mod trial;
mod upstream;
mod wire;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;

use crate::{
    arguments::{Cli, Command, CompareArgs, CurveArgs, FigureArgs, RunArgs, SoakArgs},
    client::Target,
    compare::Comparison,
    curves::Curves,
    locks::{Extent, LONGEST_WAIT, Subject},
    pace::Pacing,
    runner::Plan,
    sizes::Sizes,
    soak::{Soak, Soaked},
    wire::Dialect,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
        Command::Run(_)
        | Command::Compare(_)
        | Command::Locks(_)
        | Command::Waiting(_)
        | Command::Curves(_)
        | Command::Soak(_) => tokio::runtime::Builder::new_current_thread(),
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
                    Command::Curves(args) => curves(args).await,
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
        sizes: Sizes::of(args.scenario),
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

async fn curves(args: CurveArgs) -> anyhow::Result<bool> {
    let extent = curves::Extent {
        axes: args.of,
        only: args.only,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        most: args.most,
        gateway: args.paths.gateway,
        dir: args.paths.dir,
    };
    let (curves, is_sound) = curves::run(extent).await?;
    report::show(&curves.to_string())?;
    if let Some(path) = &args.json {
        report::write_json(path, &curves)?;
    }
    if let Some(path) = &args.into {
        report::write_between(path, Curves::marks(), &curves.to_string())?;
    }
    Ok(is_sound)
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
