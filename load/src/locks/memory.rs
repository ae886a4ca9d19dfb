//! Memory of one gateway while many callers wait at it, and whether all are answered in time.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    caller::{Caller, holds, waiting},
    taken::Taken,
};
use crate::{contender::Contender, goals::at_most, report::ratio, running::Running, trial::Bench};

/// Highest memory above that of an idle gateway.
const WANTED_MIB: f64 = 120.0;

/// Time for the calls of a lock to begin their wait: no metric counts them.
const ENTERED: Duration = Duration::from_secs(2);

/// Longest time after the wait until all are answered.
const LATE: Duration = Duration::from_mins(1);

const MIB: u64 = 1 << 20;

/// Callers of one lock.
pub(super) async fn of_locks(bench: &Bench, callers: usize, wait: Duration) -> anyhow::Result<Taken> {
    let running = start(bench, callers).await?;
    let path = holds("hot");
    Caller::new(&running.gateways[0].api).acquire("hot", &json!({ "lease": "10m" })).await?;
    let crowd = Crowd::enter(&running, callers, |_| (path.clone(), json!({ "wait": seconds(wait) }))).await?;
    sleep(ENTERED).await;
    crowd.end(running, &format!("{callers} callers that wait for a lock"), wait).await
}

/// Callers of claims of this many keys.
pub(super) async fn of_claims(bench: &Bench, callers: usize, keys: usize, wait: Duration) -> anyhow::Result<Taken> {
    let running = start(bench, callers).await?;
    let gateway = &running.gateways[0];
    let mut holder = Caller::new(&gateway.api);
    for key in 0..keys {
        // Held for longer than the callers wait.
        let held = json!({ "contents": format!("key-{key}"), "lease": "10m" });
        holder.post("/v1/claims", &held, 201).await?;
    }
    let call = |caller| {
        ("/v1/claims".to_owned(), json!({ "contents": format!("key-{}", caller % keys), "wait": seconds(wait) }))
    };
    let crowd = Crowd::enter(&running, callers, call).await?;
    let all = u64::try_from(callers)?;
    while waiting(gateway).await? < all {
        ensure!(crowd.began.elapsed() < wait, "not all callers waited at once: the first were answered already");
        sleep(Duration::from_millis(50)).await;
    }
    crowd.end(running, &format!("{callers} callers that wait for claims of {keys} key(s)"), wait).await
}

async fn start(bench: &Bench, callers: usize) -> anyhow::Result<Running> {
    // One app gets half of the waiting calls.
    let settings = format!("[limits]\nconnections = {}\nwaiting = {}\n", callers + callers / 5 + 100, 2 * callers);
    Running::start_gateways(Contender::Memory, 1, &settings, &bench.installed, &bench.parent()).await
}

fn seconds(wait: Duration) -> String {
    format!("{}s", wait.as_secs())
}

/// Callers that wait at a gateway.
struct Crowd {
    callers: Vec<Caller>,
    idle_bytes: u64,
    began: Instant,
}

impl Crowd {
    async fn enter(running: &Running, size: usize, call: impl Fn(usize) -> (String, Value)) -> anyhow::Result<Self> {
        let idle_bytes = running.gateway()?.resident_bytes()?;
        let (began, mut callers) = (Instant::now(), Vec::with_capacity(size));
        for number in 0..size {
            let (mut caller, (path, body)) = (Caller::new(&running.gateways[0].api), call(number));
            caller.send(&path, &body).await?;
            callers.push(caller);
        }
        Ok(Self { callers, idle_bytes, began })
    }

    /// Reads the memory, then all answers.
    async fn end(mut self, running: Running, what: &str, wait: Duration) -> anyhow::Result<Taken> {
        let bytes = running.gateway()?.resident_bytes()?.saturating_sub(self.idle_bytes);
        let answers = try_join_all(self.callers.iter_mut().map(|caller| caller.answer(409)));
        let answers = timeout(wait + LATE, answers).await.context("not all callers were answered")??;
        let took = self.began.elapsed();
        let waited = |body: &Value| body["waited_ms"].as_u64().is_some_and(|ms| ms > 0);
        ensure!(answers.iter().all(waited), "a caller was answered without having waited");
        running.stop().await;
        let targets = vec![at_most(&format!("memory above idle, {what}, in MiB"), Some(ratio(bytes, MIB)), WANTED_MIB)];
        let (took, wait) = (took.as_secs_f64(), wait.as_secs());
        Ok(Taken::new(
            targets,
            format!("{what}: all answered {took:.1} s after the first came, for a wait of {wait} s"),
        ))
    }
}
