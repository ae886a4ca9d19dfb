//! Members of two clusters in one URL: each would grant the same claims.

use std::time::Duration;

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};

use super::{Cluster, again, granted, is_duplicate, open, serves_again, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_two_clusters_are_not_used_and_the_reason_is_said() {
    let Some(one) = Cluster::start_one().await else { return };
    let Some(other) = Cluster::start_one().await else { return };
    let request = fresh_claim();
    granted(&open(&one.url()), &request).await;
    let both = open(&format!("{},{}", one.url(), other.addresses()[0]));
    soon("it says so", async || {
        let refused = both.claim(&again(&request), DEADLINE).await.err();
        refused.is_some_and(|refused| refused.reason().contains("name the members of one cluster"))
    })
    .await;
    for _ in 0..20 {
        let answer = both.claim(&fresh_claim(), DEADLINE).await;
        assert!(answer.is_err(), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    soon("nothing is read", async || both.read(&request.key).await.is_err()).await;
    assert_eq!(both.data_lost(), 0, "nothing is lost");
    let engine = open(&one.url());
    serves_again(&engine).await;
    assert!(is_duplicate(&engine, &again(&request)).await, "the cluster serves those that name it alone");
}
