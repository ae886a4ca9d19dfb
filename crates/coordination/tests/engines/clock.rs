//! The store's clock, which gateways advance: it never decreases, never runs ahead, and stops without them.

use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, RecordName, Records as _, Topology as _};

use super::{
    Cluster, again, delete_clock, erase, granted, inspected, is_duplicate, leased, open, serves_again, set_clock,
    set_clock_back, soon,
};

/// Most that the clock gains, over any span.
const GAIN: Duration = Duration::from_millis(500);

/// A reading of the clock: the times of request and answer, and the value.
#[derive(Clone, Copy, Debug)]
struct Look {
    sent: Duration,
    received: Duration,
    shown: Timestamp,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_gateways_that_push_it_the_clock_is_never_ahead_and_never_goes_back() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engines: Vec<_> = (0..4).map(|_| open(&cluster.url())).collect();
    for engine in &engines {
        serves_again(engine).await;
    }
    let (own, name) = (SystemClock::new(), RecordName::Metadata("none".into()));
    let mut looks: Vec<Look> = Vec::new();
    while own.monotonic() < Duration::from_secs(4) {
        let sent = own.monotonic();
        let Ok(view) = engines[looks.len() % 4].get_record(&name, DEADLINE).await else { continue };
        looks.push(Look { sent, received: own.monotonic(), shown: view.now });
    }
    for (at, earlier) in looks.iter().enumerate() {
        for later in &looks[at..] {
            assert!(later.shown >= earlier.shown, "it goes back: {earlier:?}, {later:?}");
            let gained = later.shown.since(earlier.shown);
            assert!(
                gained <= later.received.saturating_sub(earlier.sent) + GAIN,
                "it is ahead: {earlier:?}, {later:?}"
            );
        }
    }
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    assert!(
        last.shown.since(first.shown) >= last.sent.saturating_sub(first.received) / 4,
        "it is far behind: {first:?}, {last:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_gateway_runs_the_clock_stands_still_and_no_lease_ends() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let request = leased(Duration::from_secs(3));
    let engine = open(&cluster.url());
    granted(&engine, &request).await;
    engine.close().await;
    drop(engine);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let engine = open(&cluster.url());
    assert!(is_duplicate(&engine, &again(&request)).await, "no gateway has advanced the clock");
    soon("the lease ends", async || engine.read(&request.key).await == Ok(None)).await;
}

/// A gateway that still runs takes over the clock from one that was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_gateway_that_has_gone_ends_by_the_clock_of_another_one() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let (engine, other) = (open(&cluster.url()), open(&cluster.url()));
    serves_again(&other).await;
    let request = leased(Duration::from_millis(500));
    granted(&engine, &request).await;
    drop(engine);
    soon("the lease ends", async || other.read(&request.key).await == Ok(None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_emptied_is_noticed_and_its_clock_goes_on_above_the_old_one() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let (request, name) = (fresh_claim(), RecordName::Metadata("none".into()));
    granted(&engine, &request).await;
    let before = engine.get_record(&name, DEADLINE).await.unwrap().now;
    erase(&cluster);
    soon("the loss is noticed", async || engine.data_lost() > 0).await;
    serves_again(&engine).await;
    assert!(engine.get_record(&name, DEADLINE).await.unwrap().now >= before);
    assert_eq!(engine.data_lost(), 1, "it is one loss, however often it is noticed");
    granted(&engine, &again(&request)).await;
}

/// Measured by the holder's clock from before the claim call, in several phases of the store's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lasts_for_at_least_its_length_and_ends_soon_after() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let (engine, other, own) = (open(&cluster.url()), open(&cluster.url()), SystemClock::new());
    serves_again(&other).await;
    for _ in 0..8 {
        let request = leased(Duration::from_millis(200));
        let sent = own.monotonic();
        granted(&engine, &request).await;
        soon("the lease ends", async || !is_duplicate(&other, &again(&request)).await).await;
        let lasted = own.monotonic().saturating_sub(sent);
        assert!(lasted >= request.terms.lease, "it has ended after {lasted:?}");
    }
}

/// Another program uses the same keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_none_is_refused_and_left_as_it_is() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    granted(&engine, &fresh_claim()).await;
    drop(engine);
    // Eight bytes are as long as a clock.
    for value in ["not ours", "3"] {
        set_clock(&cluster, value.as_bytes());
        inspected::assert_problem(&cluster.url(), "another program uses these keys").await;
        let engine = open(&cluster.url());
        soon("it says so", async || {
            let refused = engine.claim(&fresh_claim(), DEADLINE).await.expect_err("it is refused");
            refused.reason().contains("choose another prefix")
        })
        .await;
        assert_eq!(engine.data_lost(), 0, "nothing is lost");
        drop(engine);
        set_clock_back(&cluster);
        serves_again(&open(&cluster.url())).await;
    }
}

/// As after a restored snapshot: the store has its marker, and its clock is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_clock_went_back_has_lost_data_and_its_clock_goes_on_above_what_was_seen() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let (request, name) = (fresh_claim(), RecordName::Metadata("none".into()));
    granted(&engine, &request).await;
    let before = engine.get_record(&name, DEADLINE).await.unwrap().now;
    set_clock_back(&cluster);
    soon("the loss is noticed", async || engine.data_lost() > 0).await;
    serves_again(&engine).await;
    assert!(engine.get_record(&name, DEADLINE).await.unwrap().now >= before);
    assert_eq!(engine.data_lost(), 1);
    assert!(is_duplicate(&engine, &again(&request)).await, "its lease has not ended");
}

/// How far it was is lost, so no lease can be judged any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_alone_was_deleted_is_a_loss_for_every_gateway_and_is_made_again() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let (engine, other) = (open(&cluster.url()), open(&cluster.url()));
    let request = fresh_claim();
    granted(&engine, &request).await;
    serves_again(&other).await;
    delete_clock(&cluster);
    for engine in [&engine, &other] {
        soon("the loss is noticed", async || engine.data_lost() > 0).await;
        serves_again(engine).await;
        assert_eq!(engine.data_lost(), 1, "it is one loss");
        assert!(is_duplicate(engine, &again(&request)).await, "the claim is still there");
    }
}
