//! Compares `once` around an empty function with the same two calls by hand with `reqwest`: the ratio of the CPU of this process.
//!
//! From `clients/rust`: `../../scripts/with-gateway cargo run --release --features reqwest --example cost SECONDS`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oncegate_client::{Client, Options, WorkError, contents};
use reqwest::Body;
use serde_json::{Value, json};

const ROUNDS: usize = 9;
/// The first rounds open connections and fill caches.
const WARM_UP: usize = 2;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    ByHand,
    Once,
}

struct Caller {
    client: Client,
    http: reqwest::Client,
    url: String,
    credential: Option<String>,
    orders: AtomicU64,
}

impl Caller {
    fn order(&self) -> String {
        format!("A-{}-{}", std::process::id(), self.orders.fetch_add(1, Ordering::Relaxed))
    }

    async fn call(&self, way: Way) -> Result<(), Failure> {
        match way {
            Way::Once => {
                let contents = contents! { "order_id" => self.order() };
                self.client.once("order.submit", contents, |_| async { Ok::<_, WorkError>(7) }).await?;
                Ok(())
            }
            Way::ByHand => self.by_hand().await,
        }
    }

    async fn by_hand(&self) -> Result<(), Failure> {
        let nonce = nonce_of(&self.order());
        let claim =
            json!({ "operation": "order.submit", "contents": { "order_id": self.order() }, "attempt_nonce": nonce });
        let granted = self.post("/v1/claims", &claim).await?;
        let id = granted["global_id"].as_str().ok_or("no claim")?;
        let outcome = json!({ "attempt": granted["attempt"], "outcome": "success", "result": 7 });
        self.post(&format!("/v1/claims/{id}/outcome"), &outcome).await?;
        Ok(())
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.http.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        if let Some(credential) = &self.credential {
            request = request.header("authorization", format!("Bearer {credential}"));
        }
        let response = request.body(Body::from(body.to_string())).send().await?.error_for_status()?;
        Ok(serde_json::from_slice(&response.bytes().await?)?)
    }
}

/// A nonce of 32 characters that was not used before.
fn nonce_of(order: &str) -> String {
    format!("{:-<32}", order.chars().take(32).collect::<String>())
}

/// CPU time of this process, in clock ticks of a hundredth of a second.
fn cpu_ticks() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// Microseconds of CPU for each call.
async fn measure(caller: &Arc<Caller>, way: Way, callers: usize, time: Duration) -> Result<f64, Failure> {
    let (before, begin) = (cpu_ticks()?, Instant::now());
    let running: Vec<_> = (0..callers)
        .map(|_| {
            let caller = Arc::clone(caller);
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while begin.elapsed() < time {
                    caller.call(way).await?;
                    calls += 1;
                }
                Ok::<u32, Failure>(calls)
            })
        })
        .collect();
    let mut calls = 0;
    for each in running {
        calls += each.await??;
    }
    let ticks = u32::try_from(cpu_ticks()? - before)?;
    Ok(f64::from(ticks) * 10_000.0 / f64::from(calls))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let seconds = std::env::args().nth(1).unwrap_or_else(|| "3".to_owned()).parse()?;
    let caller = Arc::new(Caller {
        client: Client::from_env(Options::default())?,
        http: reqwest::Client::new(),
        url: std::env::var("ONCEGATE_URL")?,
        credential: std::env::var("ONCEGATE_CREDENTIAL").ok(),
        orders: AtomicU64::new(0),
    });
    for callers in [1, 64] {
        let mut found = Vec::new();
        for round in 0..ROUNDS {
            // Alternately, so that both run under the same load.
            let ways = if round % 2 == 0 { [Way::ByHand, Way::Once] } else { [Way::Once, Way::ByHand] };
            let mut took = [0.0; 2];
            for way in ways {
                took[usize::from(way == Way::Once)] =
                    measure(&caller, way, callers, Duration::from_secs(seconds)).await?;
            }
            if round >= WARM_UP {
                found.push((took[1] / took[0], took));
            }
        }
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (ratio, [by_hand, once]) = found[found.len() / 2];
        let (least, most) = (found[0].0, found[found.len() - 1].0);
        println!(
            "{callers:>2} callers: by hand {by_hand:.0} us, once {once:.0} us, {ratio:.2} times ({least:.2} to {most:.2})"
        );
    }
    Ok(())
}
