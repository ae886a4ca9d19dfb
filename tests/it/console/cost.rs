//! What many operators that look cost the gateway, its callers and its store: streams are bounded, the overview calls no store, callers do
//! not feel it, and memory stays small.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::output::print;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::{times_count, until};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::browser::Browser;
use super::live::{SOON, Stream};
use super::{ROLES, operated, operators};
use crate::support::gateway;

/// Streams of a gateway, and of one session.
const STREAMS_MAX: usize = 32;
const STREAMS_OF_SESSION_MAX: usize = 4;

/// Pages a second.
const PAGES: u32 = 10;

/// Rounds of a measurement. A busy machine may disturb one of them; what pages cost is in each.
const ROUNDS: usize = 3;

/// Signs in as often as it takes, and opens all streams that a gateway has.
async fn opened(gateway: &Gateway) -> (Browser, Vec<Stream>) {
    let mut streams = Vec::new();
    let mut last = None;
    for number in 0..STREAMS_MAX / STREAMS_OF_SESSION_MAX {
        let browser = Browser::signed_in(gateway, ROLES[number % ROLES.len()]).await;
        for _ in 0..STREAMS_OF_SESSION_MAX {
            streams.push(Stream::open(gateway, &browser.cookie).await);
        }
        last = Some(browser);
    }
    assert!(streams.iter().all(|stream| stream.status() == "200"), "{} streams are open", streams.len());
    (last.expect("a session"), streams)
}

#[tokio::test]
async fn a_gateway_has_32_streams_and_answers_204_beyond_until_one_ends() {
    let gateway = operated().start().await;
    let (_browser, mut streams) = opened(&gateway).await;
    let other = Browser::signed_in(&gateway, "act").await;
    let refused = Stream::open(&gateway, &other.cookie).await;
    assert_eq!(refused.status(), "204", "{}", refused.text);
    let page = other.get("/console/").await.expect(200).text;
    assert!(page.contains("id=\"live\" hidden"), "the script shows it: {page}");
    streams.pop();
    until("a stream is free", SOON, async || Stream::open(&gateway, &other.cookie).await.status() == "200").await;
}

/// Loads the overview again and again while `time` passes, and returns how often.
async fn look(browser: &Browser, time: Duration) -> u32 {
    let mut ticks = interval(Duration::from_secs(1) / PAGES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (clock, mut pages) = (SystemClock::new(), 0);
    let started = clock.monotonic();
    while clock.monotonic().saturating_sub(started) < time {
        ticks.tick().await;
        browser.get("/console/").await.expect(200);
        pages += 1;
    }
    pages
}

/// Commands that a server has processed.
fn commands(server: &RedisServer) -> u64 {
    let stats = server.query::<String>("INFO stats");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("its count");
    line.trim().parse().expect("a number")
}

/// Commands a second that a server gets while `during` runs.
async fn rate<T>(server: &RedisServer, during: impl Future<Output = T>) -> (f64, T) {
    let clock = SystemClock::new();
    let (before, started) = (commands(server), clock.monotonic());
    let done = during.await;
    let count = u32::try_from(commands(server) - before).unwrap();
    (f64::from(count) / clock.monotonic().saturating_sub(started).as_secs_f64(), done)
}

#[tokio::test]
async fn looking_costs_the_store_at_most_one_call_a_second() {
    // Longer than the interval in which a gateway writes its line for the others.
    const TIME: Duration = Duration::from_secs(12);
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).config(&operators(&ROLES)).patient().start().await;
    gateway.client().claim(json!("A-1")).await.expect(201);
    let mut extra = Vec::new();
    for _ in 0..ROUNDS {
        let (quiet, ()) = rate(&server, tokio::time::sleep(TIME)).await;
        let (browser, streams) = opened(&gateway).await;
        let (watched, pages) = rate(&server, look(&browser, TIME)).await;
        let open = streams.len();
        print(format_args!("{pages} pages and {open} streams: {watched:.2} commands a second, {quiet:.2} without"));
        assert!(pages >= 12, "only {pages} pages");
        extra.push(watched - quiet);
        if watched - quiet <= 1.0 {
            return;
        }
    }
    panic!("more commands a second because of the console: {extra:.2?}");
}

/// Callers that claim one order after another.
const CALLERS: usize = 32;

/// Lets callers claim as fast as they are answered while `time` passes. Returns claims a second, and the 99th percentile of the answers.
async fn saturated(gateway: &Gateway, time: Duration) -> (f64, Duration) {
    let clock = Arc::new(SystemClock::new());
    let started = clock.monotonic();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (clock, client) = (clock.clone(), gateway.client());
        callers.spawn(async move {
            let mut took = Vec::new();
            while clock.monotonic().saturating_sub(started) < time {
                let body = json!({ "operation": "order.submit", "contents": fresh::contents() }).to_string();
                let sent = clock.monotonic();
                assert_eq!(client.post_status("/v1/claims", body).await, Ok(201));
                took.push(clock.monotonic().saturating_sub(sent));
            }
            took
        });
    }
    let mut took: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    took.sort_unstable();
    let claims = f64::from(u32::try_from(took.len()).unwrap());
    (claims / clock.monotonic().saturating_sub(started).as_secs_f64(), took[took.len() * 99 / 100])
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_that_look_are_not_felt_by_callers() {
    const RATE_MIN: f64 = 0.98;
    const P99_MAX: f64 = 1.05;
    let (rounds, time) = if times_count() { (10, Duration::from_secs(3)) } else { (2, Duration::from_millis(500)) };
    let without = operated().config("[console]\nenabled = false\n").start().await;
    let with = operated().start().await;
    let (browser, _streams) = opened(&with).await;
    let (mut quiet, mut watched) = (Vec::new(), Vec::new());
    saturated(&without, time).await;
    saturated(&with, time).await;
    for round in 0..rounds {
        // They take turns: other work of this machine affects both.
        for is_first in [round % 2 == 0, round % 2 == 1] {
            if is_first {
                quiet.push(saturated(&without, time).await);
            } else {
                watched.push(tokio::join!(saturated(&with, time), look(&browser, time)).0);
            }
        }
    }
    let rate = |of: &[(f64, Duration)]| of.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let p99 = |of: &[(f64, Duration)]| of.iter().map(|(_, p99)| p99.as_secs_f64()).fold(f64::MAX, f64::min);
    let (of_rate, of_p99) = (rate(&watched) / rate(&quiet), p99(&watched) / p99(&quiet));
    print(format_args!(
        "claims a second: {:.0}, {:.0} without the console: {of_rate:.3}, {RATE_MIN} is allowed; p99: {:.2} ms, {:.2} ms without: \
         {of_p99:.3}, {P99_MAX} is allowed",
        rate(&watched),
        rate(&quiet),
        p99(&watched) * 1e3,
        p99(&quiet) * 1e3
    ));
    assert!(!times_count() || of_rate >= RATE_MIN && of_p99 <= P99_MAX, "{watched:?}, {quiet:?} without the console");
}

/// Its memory without the pages of its executable: those are shared, and a test build has many more.
fn private_kib(gateway: &Gateway) -> i64 {
    gateway.kib("RssAnon").cast_signed()
}

#[tokio::test]
async fn streams_and_pages_take_little_memory() {
    const KIB_MAX: i64 = 12 << 10;
    let time = Duration::from_secs(if times_count() { 60 } else { 10 });
    let without = operated().config("[console]\nenabled = false\n").start().await;
    let with = operated().start().await;
    for gateway in [&without, &with] {
        let claim = json!({ "operation": "order.submit", "contents": "A-1", "lease": "10m" });
        gateway.client().post("/v1/claims", &claim).await.expect(201);
        for _ in 0..200 {
            gateway.client().post("/v1/claims", &claim).await.expect(409);
        }
    }
    let (browser, streams) = opened(&with).await;
    let mut measured = Vec::new();
    // The allocator takes some MiB for itself, at unpredictable times. What pages keep grows in each round.
    for _ in 0..ROUNDS {
        let pages = look(&browser, time).await;
        let [less, more] = [&without, &with].map(private_kib);
        let open = streams.len();
        print(format_args!(
            "{pages} pages and {open} streams: {more} KiB, {less} KiB without; {KIB_MAX} more are allowed"
        ));
        measured.push(more - less);
        if more - less <= KIB_MAX {
            return;
        }
    }
    panic!("KiB more than without the console: {measured:?}");
}
