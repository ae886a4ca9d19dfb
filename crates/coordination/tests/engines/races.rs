//! Calls of several gateways on one key at once, with an ended record under it.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::DEADLINE;

use super::{Cluster, again, granted, leased, open, serves_again, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_take_over_an_ended_claim_exactly_one_is_granted() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engines = [open(&cluster.url()), open(&cluster.url()), open(&cluster.url())];
    for engine in &engines {
        serves_again(engine).await;
    }
    for _ in 0..4 {
        let ended = leased(Duration::from_millis(100));
        granted(&engines[0], &ended).await;
        soon("the lease ends", async || engines[1].read(&ended.key).await == Ok(None)).await;
        let long = leased(Duration::from_hours(1)).terms;
        let requests: Vec<_> =
            (0..60).map(|_| oncegate_core::claim::ClaimRequest { terms: long, ..again(&ended) }).collect();
        let calls = requests.iter().zip(engines.iter().cycle());
        let answers = join_all(calls.map(|(request, engine)| engine.claim(request, DEADLINE))).await;
        let granted = answers.iter().filter(|answer| matches!(answer, Ok(ClaimResponse::Granted(_)))).count();
        assert_eq!(granted, 1, "{answers:?}");
    }
}
