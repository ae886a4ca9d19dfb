//! The same work by Redis alone, with `redis-benchmark`, and the size of its data, by `redis-cli`.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::{
    proc::Watched,
    programs::{find_program, run},
    report::ratio,
    wire::Terms,
};

/// Commands of the first, unmeasured run, which determines how many fill the time.
const TRIAL: u64 = 100_000;

/// Number of different keys: nearly all are new.
const KEYS: &str = "2000000000";

/// Values that are measured for their size.
const SAMPLE: u32 = 50;

/// Programs that come with the server.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    benchmark: PathBuf,
    cli: PathBuf,
}

/// Result of `redis-benchmark`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) per_second: f64,
    pub(crate) elapsed: Duration,
    /// CPU time of the server.
    pub(crate) server_us: u64,
}

impl Tools {
    pub(crate) fn find() -> Option<Self> {
        let of = |kind: &str| {
            let (benchmark, cli) = (format!("{kind}-benchmark"), format!("{kind}-cli"));
            find_program(&benchmark).zip(find_program(&cli)).map(|(benchmark, cli)| Self { benchmark, cli })
        };
        of("redis").or_else(|| of("valkey"))
    }

    /// Measures the command of the gateway's engine, with values of the same length, `pipeline` at a time on each
    /// connection.
    pub(crate) async fn sets(
        &self,
        server: &Watched,
        port: u16,
        connections: u64,
        pipeline: u32,
        seconds: u64,
    ) -> anyhow::Result<Sets> {
        let per_second = self.benchmark(port, connections, pipeline, TRIAL).await?;
        let count = rounded(per_second * Duration::from_secs(seconds).as_secs_f64());
        let before = server.cpu_us()?;
        let per_second = self.benchmark(port, connections, pipeline, count).await?;
        ensure!(per_second > 0.0, "redis-benchmark did nothing");
        let server_us = server.cpu_us()? - before;
        let elapsed = Duration::from_secs_f64(ratio(count, 1) / per_second);
        Ok(Sets { per_second, elapsed, server_us })
    }

    async fn benchmark(&self, port: u16, connections: u64, pipeline: u32, count: u64) -> anyhow::Result<f64> {
        let terms = Terms::new("load", "load.unique", Some("306s"));
        // The program inserts twelve digits, so the key is as long as with a global ID.
        let key = terms.key(&format!("{}__rand_int__", "0".repeat(20)));
        let mut command = Command::new(&self.benchmark);
        command.args(["-p", &port.to_string(), "-c", &connections.to_string(), "-P", &pipeline.to_string()]);
        command.args(["-n", &count.to_string(), "-r", KEYS, "--csv"]);
        command.args(["SET", &key, &terms.value(1_234_567, &Terms::attempt()), "NX", "GET", "PX", "300000"]);
        let output = run(&mut command).await?;
        rate(&output).with_context(|| format!("redis-benchmark does not say its rate:\n{output}"))
    }

    /// Returns the memory that the server has allocated, in bytes.
    pub(crate) async fn used_memory(&self, port: u16) -> anyhow::Result<u64> {
        let info = self.query(port, &["INFO", "memory"]).await?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.context("the server does not report its used_memory")
    }

    /// Returns the size of the longest of some values, in bytes, without the contents.
    pub(crate) async fn value_bytes(&self, port: u16) -> anyhow::Result<u64> {
        let mut longest = 0;
        for _ in 0..SAMPLE {
            let key = self.query(port, &["RANDOMKEY"]).await?;
            if !key.contains("og:{") {
                continue;
            }
            let value = self.query(port, &["GET", key.trim_end()]).await?;
            let (rest, contents) = value.trim_end().split_once("c=").context("a value without contents")?;
            ensure!(contents.starts_with('{'), "a value of another program");
            longest = longest.max(rest.len() + "c=".len());
        }
        ensure!(longest > 0, "the server has no claims");
        Ok(u64::try_from(longest)?)
    }

    async fn query(&self, port: u16, arguments: &[&str]) -> anyhow::Result<String> {
        run(Command::new(&self.cli).args(["-p", &port.to_string(), "--raw"]).args(arguments)).await
    }
}

/// Returns the rate in the report, the seventh field from the end: the command before it may contain commas.
fn rate(output: &str) -> Option<f64> {
    output.lines().last()?.rsplit(',').nth(6)?.trim_matches('"').parse().ok()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive and far below 2^53")]
pub(crate) fn rounded(count: f64) -> u64 {
    count as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_parsed_from_the_report() {
        let output = "\"test\",\"rps\"\n\"SET k {\"a\":1,\"b\":2}\",\"69930.07\",\"0.6\",\"0.0\",\"0.6\",\"1.2\",\"1.8\",\"5.0\"\n";
        assert_eq!(rate(output), Some(69_930.07));
        assert_eq!(rate("Could not connect"), None);
    }
}
