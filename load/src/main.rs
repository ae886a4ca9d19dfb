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
mod cores;
mod curves;
mod failover;
mod fill;
mod footprint;
mod goals;
mod languages;
mod ledger;
mod library;
mod locks;
mod network;
mod noop;
mod pace;
mod peers;
mod postgres;
mod proc;
mod programs;
mod proxied;
mod quorum;
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
mod way;
mod ways;
mod wire;

use std::{fmt::Display, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;
use serde::Serialize;

use crate::{
    arguments::{Cli, Command, CompareArgs, CurveArgs, FigureArgs, LanguageArgs, PathArgs, RunArgs, SoakArgs},
    client::Target,
    compare::Comparison,
    locks::{Extent, LONGEST_WAIT, Subject},
    pace::Pacing,
    runner::Plan,
    sizes::Sizes,
    soak::Soak,
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
        | Command::Network { .. }
        | Command::Compare(_)
        | Command::Locks(_)
        | Command::Waiting(_)
        | Command::Curves(_)
        | Command::Languages(_)
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
                    Command::Network { listen, to, round_trip } => {
                        network::serve(listen, to, round_trip)?;
                        // Until the process is killed.
                        std::future::pending().await
                    }
                    Command::Compare(args) => compare(args).await,
                    Command::Locks(args) => figures(Subject::Locks, args).await,
                    Command::Waiting(args) => figures(Subject::Waiting, args).await,
                    Command::Curves(args) => curves(args).await,
                    Command::Languages(args) => languages(args).await,
                    Command::Soak(args) => soak(args).await,
                }
            } => done,
        }
    })
}

async fn run(args: RunArgs) -> anyhow::Result<bool> {
    let cores = args.cores.unwrap_or_default();
    cores.start_generator()?;
    let (url, credential, remote) = (&args.url, args.credential.as_deref(), args.allow_remote);
    let target = match &args.authority {
        Some(authority) => Target::secured(url, credential, remote, authority)?,
        None => Target::parse(url, credential, remote)?,
    };
    let plan = Plan {
        target,
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
        cores,
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
    let PathArgs { gateway, dir, into, json } = args.paths;
    let cores = args.cores.unwrap_or_default();
    cores.start_generator()?;
    if args.tls || args.network.is_some() {
        let extent = ways::Extent {
            tls: args.tls,
            network: args.network,
            only: args.only,
            measured: Duration::from_secs(args.seconds),
            rounds: args.rounds,
            connections: args.connections,
            cores,
            gateway,
            dir,
        };
        let (ways, sound) = ways::run(extent).await?;
        publish(&ways, "ways", into, json)?;
        return Ok(sound);
    }
    let comparison = Comparison {
        scenario: args.scenario,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        connections: args.connections,
        only: args.only,
        targets: args.targets,
        live: args.live,
        cores,
        gateway,
        dir,
    };
    let (compared, sound) = compare::run(comparison).await?;
    publish(&compared, compared.marks(), into, json)?;
    Ok(sound)
}

async fn curves(args: CurveArgs) -> anyhow::Result<bool> {
    let PathArgs { gateway, dir, into, json } = args.paths;
    let extent = curves::Extent {
        axes: args.of,
        only: args.only,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        most: args.most,
        gateway,
        dir,
    };
    let (curves, is_sound) = curves::run(extent).await?;
    publish(&curves, "curves", into, json)?;
    Ok(is_sound)
}

async fn languages(args: LanguageArgs) -> anyhow::Result<bool> {
    let PathArgs { gateway, dir, into, json } = args.paths;
    let cores = args.cores.unwrap_or_default();
    cores.start_generator()?;
    let extent = languages::Extent {
        only: args.only,
        peers: args.peers,
        callers: args.callers,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        cores,
        gateway,
        dir,
    };
    let (languages, sound) = languages::run(extent).await?;
    publish(&languages, "languages", into, json)?;
    Ok(sound)
}

async fn soak(args: SoakArgs) -> anyhow::Result<bool> {
    let PathArgs { gateway, dir, into, json } = args.paths;
    let soak = Soak {
        only: args.only,
        rounds: args.rounds,
        measured: Duration::from_secs(args.seconds),
        per_second: args.rate,
        gateway,
        dir,
    };
    let (soaked, is_sound) = soak::run(soak).await?;
    publish(&soaked, "soak", into, json)?;
    Ok(is_sound)
}

async fn figures(subject: Subject, args: FigureArgs) -> anyhow::Result<bool> {
    let PathArgs { gateway, dir, into, json } = args.paths;
    let extent = Extent {
        subject,
        only: args.only,
        measured: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        callers: usize::try_from(args.callers)?,
        wait: LONGEST_WAIT,
        gateway,
        dir,
    };
    let (figures, sound) = locks::run(extent).await?;
    publish(&figures, figures.marks(), into, json)?;
    Ok(sound)
}

/// Shows the figures, and writes them into the files that were named, if any. The marks are the name of their lines on a page.
fn publish(
    figures: &(impl Display + Serialize),
    marks: &str,
    into: Option<PathBuf>,
    json: Option<PathBuf>,
) -> anyhow::Result<()> {
    let text = figures.to_string();
    report::show(&text)?;
    if let Some(path) = json {
        report::write_json(&path, figures)?;
    }
    if let Some(path) = into {
        report::write_between(&path, marks, &text)?;
    }
    Ok(())
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
