//! Memory of a proxy while a long body passes it in each direction.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{anyhow, ensure};
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    client::{Connection, Target},
    contender::Contender,
    report::{self, ratio},
    running::Running,
    trial::Bench,
    upstream,
};

/// Length of each body.
const BYTES: u64 = 1 << 30;

/// Time for a gateway to finish its start.
const SETTLED: Duration = Duration::from_secs(2);

const MIB: u64 = 1 << 20;

/// Resident memory of a proxy, in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Streamed {
    contender: Contender,
    idle_bytes: u64,
    /// The highest until the end of a response to a request with a key, which is too long to be stored.
    down_bytes: u64,
    /// The highest until the end of a request on a route without protection, which followed.
    up_bytes: u64,
}

impl Streamed {
    /// Returns the highest memory above that of an idle proxy, in MiB.
    pub(crate) fn above_idle_mib(&self) -> f64 {
        ratio(self.down_bytes.max(self.up_bytes).saturating_sub(self.idle_bytes), MIB)
    }
}

/// Measures each gateway among these contenders.
pub(crate) async fn measure(bench: &mut Bench, contenders: &[Contender]) -> Vec<Streamed> {
    let mut all = Vec::new();
    for contender in [Contender::ProxyMemory, Contender::ProxyRedis] {
        if !contenders.contains(&contender) {
            continue;
        }
        match of(bench, contender).await {
            Ok(streamed) => {
                report::say(&format!("{contender:<24} {:>8.1} MiB above idle", streamed.above_idle_mib()));
                all.push(streamed);
            }
            Err(error) => {
                bench.sound = false;
                bench.leave_out(format!("streams of {contender}: {error:#}"));
            }
        }
    }
    all
}

async fn of(bench: &Bench, contender: Contender) -> anyhow::Result<Streamed> {
    let running = Running::start(contender, bench.surroundings(), &bench.installed, &bench.parent()).await?;
    sleep(SETTLED).await;
    let proxy = running.gateway()?;
    let idle_bytes = proxy.resident_bytes()?;
    let mut connection = Connection::new(Arc::new(Target::parse(&running.url, Some(&running.credential), false)?));
    let broken = |why| anyhow!("a stream ended early: {why}");
    let got = connection.download(&format!("{}/{BYTES}", upstream::EXPORTS), "stream-1").await.map_err(broken)?;
    ensure!(got == (201, BYTES), "a response of {BYTES} bytes came as {got:?}");
    let down_bytes = proxy.peak_bytes()?;
    let got = connection.upload(upstream::UPLOADS, BYTES).await.map_err(broken)?;
    ensure!(got == (200, Some(BYTES)), "a request of {BYTES} bytes was answered {got:?}");
    let up_bytes = proxy.peak_bytes()?;
    running.stop().await;
    Ok(Streamed { contender, idle_bytes, down_bytes, up_bytes })
}

/// Memory as a table.
pub(crate) struct Streams<'a>(pub(crate) &'a [Streamed]);

impl fmt::Display for Streams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nResident memory while {} MiB pass in one body\n", BYTES / MIB)?;
        writeln!(f, "| Contender | idle | highest, response with a key | highest, request without protection |")?;
        writeln!(f, "| --- | ---: | ---: | ---: |")?;
        for it in self.0 {
            let [idle, down, up] = [it.idle_bytes, it.down_bytes, it.up_bytes].map(|bytes| ratio(bytes, MIB));
            writeln!(f, "| {} | {idle:.1} MiB | {down:.1} MiB | {up:.1} MiB |", it.contender)?;
        }
        Ok(())
    }
}
