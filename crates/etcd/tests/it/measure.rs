//! Measures claims: `cargo test --release -p oncegate-etcd --test it -- --ignored --nocapture measure`. For comparisons on one machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_etcd::Options;
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::output::print;

use super::{settle, success};

const TIME: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_claims_and_outcomes() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let engine = Arc::new(oncegate_etcd::open(&cluster.url(), Options::default()).unwrap());
    super::serves_again(&*engine).await;
    for callers in [1, 16, 64, 256] {
        for settles in [false, true] {
            let (calls, failures) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let clock = Arc::new(SystemClock::new());
            let tasks: Vec<_> = (0..callers)
                .map(|_| {
                    let (engine, clock) = (engine.clone(), clock.clone());
                    let (calls, failures) = (calls.clone(), failures.clone());
                    tokio::spawn(async move {
                        while clock.monotonic() < TIME {
                            let request = fresh_claim();
                            let claimed = engine.claim(&request, DEADLINE).await.is_ok();
                            let settled =
                                !settles || engine.settle(&settle(&request, success("1")), DEADLINE).await.is_ok();
                            let count = if claimed && settled { &calls } else { &failures };
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let rate = calls.load(Ordering::Relaxed) as u64 / TIME.as_secs();
            let failures = failures.load(Ordering::Relaxed);
            print(format_args!("{callers} callers, settles {settles}: {rate}/s, {failures} failures"));
        }
    }
}
