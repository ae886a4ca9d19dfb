//! Apps that cannot harm each other: an app far beyond its quota, and an app without its store, do not change another
//! app's answers or their times.

use std::time::Duration;

use hyper::body::Bytes;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::caller::{app, caller};
use crate::support::{gateway, times_count};

/// Number of calls of the measured caller, and of each round.
const PACE: Duration = Duration::from_millis(4);
const CALLS: usize = 200;
/// Quiet rounds and noisy rounds alternate, so that other work of this machine affects both.
const ROUNDS: usize = 5;

/// Claims and settles at a steady pace, however long each answer takes; how long the claims took. All must be granted.
async fn watched(client: &Client) -> Vec<Duration> {
    let clock = std::sync::Arc::new(SystemClock::new());
    let mut calls = JoinSet::new();
    let mut pace = interval(PACE);
    for _ in 0..CALLS {
        pace.tick().await;
        let (client, clock) = (client.clone(), clock.clone());
        calls.spawn(async move {
            let started = clock.monotonic();
            let granted = client.claim(fresh::contents()).await.expect(201);
            let took = clock.monotonic().saturating_sub(started);
            client.settle(&granted, "success").await.expect(200);
            took
        });
    }
    calls.join_all().await
}

/// Length of the measurement.
fn length() -> Duration {
    PACE * u32::try_from(CALLS).unwrap()
}

/// Returns the 99th percentile.
fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Asserts that the noise has not been felt, by the p99 of each round. Other work of this machine makes some rounds
/// slow. If noise has an effect, all noisy rounds are slow. So the best ones are compared.
#[expect(clippy::print_stderr, reason = "the figures are worth a look")]
fn assert_unhurt(quiet: &[Duration], noisy: &[Duration]) {
    eprintln!("p99 in quiet: {quiet:?}, in noise: {noisy:?}");
    let (quiet, noisy) = (quiet.iter().min().expect("rounds"), noisy.iter().min().expect("rounds"));
    let is_hurt = *noisy > *quiet * 3 + Duration::from_millis(15);
    assert!(!times_count() || !is_hurt, "p99 is {quiet:?} in quiet, and {noisy:?} in noise");
}

/// Contents that cost a gateway something to look at.
fn heavy() -> Bytes {
    let entry = |number: u32| (format!("key {number} {:x}", fresh::number()), Value::from(number));
    let contents: Value = (0..1000).map(entry).collect();
    json!({ "contents": contents }).to_string().into()
}

/// Calls with one of these bodies after another, at this pace, for this time. Returns the statuses of the answers.
async fn noise(client: Client, bodies: Vec<Bytes>, pace: Duration, length: Duration) -> Vec<u16> {
    let mut bodies = bodies.iter().cycle().cloned();
    let mut ticks = interval(pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = JoinSet::new();
    for _ in 0..length.as_micros() / pace.as_micros() {
        ticks.tick().await;
        let (client, body) = (client.clone(), bodies.next().expect("a body"));
        calls.spawn(async move { client.post_status("/v1/claims", body).await.expect("an answer") });
    }
    calls.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_app_at_ten_times_its_quota_is_not_felt_by_another() {
    const RATE: u32 = 10;
    let quota = format!("[apps.noisy.quota]\nrequests_per_second = {RATE}\nburst = \"100ms\"\n");
    let config = format!("{}{quota}{}", app("noisy"), app("victim"));
    let gateway = gateway::on_memory().config(&config).start().await;
    let (noisy, victim) = (caller(&gateway, "noisy"), caller(&gateway, "victim"));
    watched(&victim).await;
    // Made in advance, so that only the gateway works on them.
    let bodies: Vec<_> = (0..32).map(|_| heavy()).collect();
    let clock = SystemClock::new();
    let (mut quiet, mut in_noise) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        quiet.push(p99(watched(&victim).await));
        let started = clock.monotonic();
        let asking = tokio::spawn(noise(noisy.clone(), bodies.clone(), Duration::from_secs(1) / (RATE * 10), length()));
        in_noise.push(p99(watched(&victim).await));
        let answers = asking.await.unwrap();
        let took = clock.monotonic().saturating_sub(started);
        // About its quota, no more and no less, however much it asked for.
        let granted = answers.iter().filter(|status| matches!(status, 201 | 409)).count();
        let refused = answers.iter().filter(|status| **status == 429).count();
        assert_eq!(granted + refused, answers.len(), "{answers:?}");
        let most = took.as_secs_f64() * f64::from(RATE) + 3.0;
        let granted = f64::from(u32::try_from(granted).unwrap());
        assert!((5.0..=most).contains(&granted), "{granted} of {} in {took:?}", answers.len());
    }
    assert_unhurt(&quiet, &in_noise);
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_whose_store_is_gone_is_not_felt_by_another() {
    use oncegate_testkit::redis_server::RedisServer;

    let Some(mut gone) = RedisServer::start().await else { return };
    let Some(kept) = RedisServer::start().await else { return };
    let config = format!(
        "[engines]\nkept = \"{}\"\n[chains.kept]\nengines = [\"kept\"]\n{}{}chain = \"kept\"\ndeadline = \"20s\"\n",
        kept.url(),
        app("hit"),
        app("spared")
    );
    let gateway = gateway::on(gone.url()).config(&config).start().await;
    let (hit, spared) = (caller(&gateway, "hit"), caller(&gateway, "spared"));
    watched(&spared).await;
    let body = Bytes::from(json!({ "contents": fresh::contents() }).to_string());
    let (mut quiet, mut in_trouble) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        until("its service is there", Duration::from_secs(10), async || {
            hit.claim(fresh::contents()).await.status == 201
        })
        .await;
        quiet.push(p99(watched(&spared).await));
        // A store that hangs is worse for its callers than an absent one.
        if round % 2 == 0 {
            gone.freeze();
        } else {
            gone.kill();
        }
        let asking = tokio::spawn(noise(hit.clone(), vec![body.clone()], Duration::from_millis(10), length()));
        in_trouble.push(p99(watched(&spared).await));
        let answers = asking.await.unwrap();
        assert!(answers.iter().all(|status| *status == 503), "{answers:?}");
        if round % 2 == 0 {
            gone.thaw();
        } else {
            gone.restart().await;
        }
    }
    assert_unhurt(&quiet, &in_trouble);
}
