//! The fault matrix: a store is taken away in every way that we know, while 64 callers work. What they were told must be
//! explained, they must be told in time, and be served again soon after. One table of faults for each store.

mod noop;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod policies;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::clock::{Clock, SystemClock};
use oncegate::domain::terms::{LeaseEnd, Retention, Terms};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::history::check::explained_with_echoes;
use oncegate_testkit::history::doubles::{Double, doubles};
use oncegate_testkit::history::over_http::OverHttp;
use oncegate_testkit::history::workload::{Service, Workload};
use oncegate_testkit::history::{Answer, Event, Reply, Story};
use oncegate_testkit::say::say;
use oncegate_testkit::wait::until;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::noop::Noop;
use crate::support::gateway;

/// The deadline of the gateways here: shorter than the default, so that an outage need not be long.
const DEADLINE: Duration = Duration::from_millis(500);
/// What an answer may take beyond its deadline.
const BEYOND: Duration = Duration::from_millis(10);
/// When a breaker has opened at the latest, counted from when the store went away: a deadline, and what a busy machine adds.
const OPENED: Duration = Duration::from_millis(800);
/// What an answer may take once a breaker is open.
const OPEN: Duration = Duration::from_millis(5);
/// What "service is back" may take.
const BACK: Duration = Duration::from_secs(1);
/// How many steps lie between a store that is back and a caller that is served, each of which a busy machine delays by
/// what it makes everybody wait: it is noticed, connected to, looked at, and trusted again little by little.
const STEPS: u32 = 10;

/// The shortest lease that callers ask for; half of it is the shortest deadline.
const SHORTEST_LEASE: Duration = Duration::from_millis(400);

/// How many calls are answered before a store is taken away, how long it is away, and how long it is watched afterwards.
const BEFORE: usize = 300;
const AWAY: Duration = Duration::from_millis(1200);
const AFTER: Duration = Duration::from_millis(1100);

/// A store that can be taken away and brought back, with its data.
trait Store {
    /// The ways in which it can.
    type Fault: Copy + fmt::Debug;

    /// Where the gateway finds it.
    fn url(&self) -> String;

    /// Where a gateway finds it whose way to it nothing befalls.
    fn direct_url(&self) -> String;

    /// Takes it away.
    async fn strike(&mut self, fault: Self::Fault);

    /// Brings it back, and returns once it serves whoever asks.
    async fn mend(&mut self, fault: Self::Fault);
}

/// A gateway before a store. It decides nothing while the store is out, unless the configuration says so.
async fn gateway(store: &impl Store, config: &str) -> Gateway {
    let deadline = format!("{}ms", DEADLINE.as_millis());
    let setup = gateway::on(store.url()).config(config).env("ONCEGATE_DEFAULTS__DEADLINE", deadline);
    let gateway = setup.start().await;
    let client = gateway.client();
    until("service", Duration::from_secs(5), async || client.claim(fresh::contents()).await.status == 201).await;
    gateway
}

/// The callers: 64 of them, about a thousand calls a second, leases of which some end meanwhile.
fn workload() -> Workload {
    let day = Retention::For(Duration::from_hours(24));
    let unknown_retention = Retention::For(Duration::from_hours(24 * 7));
    let lease = Duration::from_secs(30);
    Workload {
        seed: fresh::number() >> 8,
        callers: 64,
        keys: 48,
        events_per_key: 12,
        terms: Terms { lease, retention: day, unknown_retention, on_lease_end: LeaseEnd::Release },
        leases: vec![SHORTEST_LEASE, Duration::from_millis(1500), lease],
        retentions: vec![Retention::For(Duration::from_secs(1)), day],
        pace: Duration::from_millis(40),
    }
}

/// What callers saw of one fault.
struct Seen {
    story: Story,
    /// How long answers took to those who asked while the store was away, in order.
    took: Vec<Duration>,
    /// The same of those who asked after the breaker had opened.
    took_later: Vec<Duration>,
    /// What 99 of a hundred callers of a handler that does nothing waited at most in the first of these times, in the second,
    /// and after both.
    noop_p99: Duration,
    noop_p99_later: Duration,
    noop_p99_after: Duration,
    /// From when the store was back to the first new grant by it, if there was one.
    first_grant: Option<Duration>,
    /// From when the store was back to the last call that it did not answer.
    last_loss: Duration,
}

/// Lets callers work while the store goes away and comes back.
async fn watch<S: Store>(store: &mut S, fault: S::Fault, gateway: &Gateway) -> Seen {
    watch_all(store, fault, &[gateway], workload()).await
}

/// The same, where the callers work at several gateways.
async fn watch_all<S: Store>(store: &mut S, fault: S::Fault, gateways: &[&Gateway], workload: Workload) -> Seen {
    let seed = workload.seed;
    let clock = Arc::new(SystemClock::new());
    let (told, stop) = (Story::new(clock.clone()), CancellationToken::new());
    let noop = Noop::start(clock.clone(), workload.pace, stop.clone()).await;
    let service = |gateway: &&Gateway| Arc::new(OverHttp(gateway.client())) as Arc<dyn Service>;
    let services = gateways.iter().map(service).collect();
    let calling = tokio::spawn(workload.run(services, told.clone(), stop.clone()));
    until("callers are told something", Duration::from_secs(10), async || {
        told.keys().values().map(Vec::len).sum::<usize>() >= BEFORE
    })
    .await;
    store.strike(fault).await;
    let struck = clock.monotonic();
    sleep(AWAY).await;
    let mending = clock.monotonic();
    store.mend(fault).await;
    let mended = clock.monotonic();
    sleep(AFTER).await;
    stop.cancel();
    calling.await.expect("no caller panics");
    say(format_args!("{fault:?}: seed {seed}"));

    let events: Vec<Event> = told.keys().into_values().flatten().collect();
    let took = |from: Duration| {
        let during = events.iter().filter(|event| (from..mending).contains(&event.begun));
        let mut took: Vec<Duration> = during.map(Event::took).collect();
        took.sort_unstable();
        took
    };
    let since = |at: Option<Duration>| at.map(|at| at.saturating_sub(mended));
    let is_grant = |event: &&Event| matches!(event.reply, Reply::Told(Answer::Granted { repeated: false, .. }));
    let first = events.iter().filter(is_grant).map(|event| event.answered).filter(|at| *at > mended).min();
    let is_lost = |event: &&Event| matches!(event.reply, Reply::Unknown | Reply::Refused | Reply::Degraded(..));
    let last = events.iter().filter(is_lost).map(|event| event.answered).max();
    let (first_grant, last_loss) = (since(first), since(last).unwrap_or_default());
    let noop = noop.stopped().await;
    Seen {
        took: took(struck),
        took_later: took(struck + OPENED),
        story: told,
        noop_p99: noop.p99(struck..mending),
        noop_p99_later: noop.p99(struck + OPENED..mending),
        noop_p99_after: noop.p99(mending..Duration::MAX),
        first_grant,
        last_loss,
    }
}

impl Seen {
    /// Holds what was seen to what is promised while decisions wait for the store. `opens` says whether it does not answer
    /// anything meanwhile, so that the breaker opens.
    fn assert_promises(&self, fault: &impl fmt::Debug, opens: bool) {
        say(format_args!("{fault:?}: {self}"));
        self.assert_explained(fault);
        assert_eq!(self.doubles(), [], "{fault:?}: granted twice");
        self.assert_in_time(fault, opens, Duration::ZERO);
    }

    /// Holds what was told to the contract.
    fn assert_explained(&self, fault: &impl fmt::Debug) {
        // A gateway that has waited for half of the shortest deadline may have sent a call a second time.
        let echoes = explained_with_echoes(&self.story, SHORTEST_LEASE / 4);
        say(format_args!("{fault:?}: {echoes} keys were held for a lease by a call that was sent twice"));
    }

    /// Holds the times alone to what is promised. Calls may be lost for so much longer, while the store is told what waits.
    fn assert_in_time(&self, fault: &impl fmt::Debug, opens: bool, waits: Duration) {
        let limit = DEADLINE + BEYOND + self.noop_p99;
        let p99 = percentile(&self.took, 99);
        assert!(p99 <= limit, "{fault:?}: p99 is {p99:?}, beside {:?} where nothing is done", self.noop_p99);
        // A handler that does nothing is one program; here are two, and the way between them. What is measured is short, so a
        // busy machine may hit the one and spare the other.
        let limit = OPEN + self.noop_p99.max(self.noop_p99_later) * 4;
        let p99 = percentile(&self.took_later, 99);
        assert!(!opens || p99 <= limit, "{fault:?}: p99 is {p99:?} with the breaker open; {limit:?} is allowed");
        let limit = BACK + self.noop_p99_after * STEPS;
        let first =
            self.first_grant.unwrap_or_else(|| panic!("{fault:?}: nothing was granted once the store was back"));
        assert!(first <= limit, "{fault:?}: the first grant came after {first:?}; {limit:?} is allowed");
        let last = self.last_loss;
        assert!(last <= limit + waits, "{fault:?}: calls were still lost after {last:?}; {limit:?} is allowed");
    }

    /// What was granted twice.
    fn doubles(&self) -> Vec<Double> {
        self.story.keys().values().flat_map(|events| doubles(events)).collect()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.story.keys();
        let events = keys.values().map(Vec::len).sum::<usize>();
        let count = |matches: fn(&Reply) -> bool| keys.values().flatten().filter(|event| matches(&event.reply)).count();
        let told = count(|reply| matches!(reply, Reply::Told(_)));
        let degraded = count(|reply| matches!(reply, Reply::Degraded(..)));
        let first = self.first_grant.map_or_else(|| "never".to_owned(), |first| format!("{first:?}"));
        let (refused, unknown) = (count(|reply| *reply == Reply::Refused), count(|reply| *reply == Reply::Unknown));
        write!(
            f,
            "{} keys, {events} calls: {told} told, {degraded} degraded, {refused} refused, {unknown} unknown; away: {} \
             answers, p50 {:?}, p99 {:?}, later p50 {:?}, p99 {:?}, beside {:?}; back: first grant {first}, last loss {:?}",
            keys.len(),
            self.took.len(),
            percentile(&self.took, 50),
            percentile(&self.took, 99),
            percentile(&self.took_later, 50),
            percentile(&self.took_later, 99),
            self.noop_p99,
            self.last_loss,
        )
    }
}

/// What so many of a hundred stay below, of values in order.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}
