//! Bytes of a claim in each store, and memory of an idle gateway.

use std::{fmt, fs, path::Path, time::Duration};

use anyhow::Context as _;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    client::Target,
    contender::Contender,
    fill,
    report::{self, ratio},
    running::Running,
    trial::Bench,
};

/// Claims to make.
const CLAIMS: u64 = 500_000;

/// Time for a gateway to finish its start.
const SETTLED: Duration = Duration::from_secs(2);

/// Footprint of an engine.
#[derive(Debug, Serialize)]
pub(crate) struct Footprint {
    pub(crate) engine: Contender,
    /// Resident memory of an idle gateway.
    pub(crate) idle_bytes: u64,
    /// Resident memory after all claims.
    pub(crate) busy_bytes: u64,
    /// Bytes per claim in the store: memory of the process, files, `used_memory`, the table with its indexes.
    pub(crate) bytes_per_claim: f64,
    /// Bytes of a value in Redis without the contents, on default terms.
    pub(crate) own_bytes: Option<u64>,
}

/// Measures the footprint of every engine among these contenders.
pub(crate) async fn measure(bench: &mut Bench, contenders: &[Contender]) -> Vec<Footprint> {
    let mut footprints = Vec::new();
    for engine in Contender::ENGINES {
        if !contenders.contains(&engine) {
            continue;
        }
        match of(bench, engine).await {
            Ok(footprint) => {
                report::say(&format!("{engine:<24} {:>8.0} bytes/claim", footprint.bytes_per_claim));
                footprints.push(footprint);
            }
            Err(error) => {
                bench.sound = false;
                bench.leave_out(format!("bytes of {engine}: {error:#}"));
            }
        }
    }
    footprints
}

async fn of(bench: &Bench, engine: Contender) -> anyhow::Result<Footprint> {
    let running = Running::start(engine, bench.surroundings(), &bench.installed, &bench.parent()).await?;
    sleep(SETTLED).await;
    let idle_bytes = running.gateway()?.resident_bytes()?;
    let before = kept_bytes(bench, &running, engine).await?;
    let target = Target::parse(&running.url, Some(&running.credential), false)?;
    // On Redis with default terms, as the target says; all claims are made long before the first lease ends.
    let kept = (engine != Contender::Redis).then_some(fill::KEPT);
    fill::fill(target, CLAIMS, kept).await?;
    let after = kept_bytes(bench, &running, engine).await?;
    let own_bytes = match (engine, &bench.installed.redis_tools) {
        (Contender::Redis, Some(tools)) => Some(tools.value_bytes(running.port).await?),
        _ => None,
    };
    let busy_bytes = running.gateway()?.resident_bytes()?;
    running.stop().await;
    let bytes_per_claim = ratio(after.saturating_sub(before), CLAIMS);
    Ok(Footprint { engine, idle_bytes, busy_bytes, bytes_per_claim, own_bytes })
}

/// Returns the size of the store's data, in bytes.
pub(crate) async fn kept_bytes(bench: &Bench, running: &Running, engine: Contender) -> anyhow::Result<u64> {
    match engine {
        Contender::Disk => Ok(files_bytes(running.dir())),
        Contender::Redis => {
            let tools = bench.installed.redis_tools.as_ref().context("redis-cli is not installed")?;
            tools.used_memory(running.port).await
        }
        Contender::Postgres => {
            let programs = bench.installed.postgres.as_ref().context("PostgreSQL is not installed")?;
            programs.table_bytes(running.port).await
        }
        _ => running.gateway()?.resident_bytes(),
    }
}

/// Returns the size of the files below a folder. A file that is deleted during the walk counts nothing.
fn files_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => files_bytes(&entry.path()),
        // Blocks of 512 bytes, since a sparse file is longer than its blocks.
        Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

/// Footprints as a table.
pub(crate) struct Footprints<'a>(pub(crate) &'a [Footprint]);

impl fmt::Display for Footprints<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        writeln!(
            f,
            "\n| Engine | bytes/claim in the store | of a value, without contents | gateway idle | after {CLAIMS} claims |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: |")?;
        for it in self.0 {
            let without = it.own_bytes.map_or("–".to_owned(), |bytes| bytes.to_string());
            let (idle, busy) = (ratio(it.idle_bytes, MIB), ratio(it.busy_bytes, MIB));
            writeln!(f, "| {} | {:.0} | {without} | {idle:.1} MiB | {busy:.1} MiB |", it.engine, it.bytes_per_claim)?;
        }
        Ok(())
    }
}
