//! The fault matrix: a store fails in every way that we know, while 64 callers work. Their answers must be
//! explained and in time, and service must return soon. One table of faults for each store.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod coordination;
mod noop;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod policies;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod shard;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::history::check::explained_with_echoes;
use oncegate_testkit::history::double_grants::{DoubleGrant, double_grants};
use oncegate_testkit::history::http_service::HttpService;
use oncegate_testkit::history::workload::{Service, Workload};
use oncegate_testkit::history::{Answer, Event, History, Reply};
use oncegate_testkit::output::print;
use oncegate_testkit::wait::until;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::noop::Noop;
use crate::support::{gateway, times_count};

/// The deadline of these gateways: shorter than the default, so that a short outage is enough.
const DEADLINE: Duration = Duration::from_millis(500);
/// Tolerance of an answer's time beyond its deadline.
const BEYOND: Duration = Duration::from_millis(10);
/// Latest opening of a breaker after the start of the outage: a deadline, and a margin for a busy machine.
const OPENED: Duration = Duration::from_millis(800);
/// Longest answer while a breaker is open.
const OPEN: Duration = Duration::from_millis(5);
/// Longest time until service is back.
const BACK: Duration = Duration::from_secs(1);
/// Number of steps between the return of the store and a served caller. A busy machine delays each step: the gateway
/// notices the store, connects, checks it, and gradually sends calls again.
const STEPS: u32 = 10;

/// The shortest lease that callers ask for; half of it is the shortest deadline.
const SHORTEST_LEASE: Duration = Duration::from_millis(400);

/// Number of calls before an outage, its length, and the length of the measurement after it.
const BEFORE: usize = 300;
const AWAY: Duration = Duration::from_millis(1200);
const AFTER: Duration = Duration::from_millis(1100);

/// One round at a time. Its callers keep a processor busy: several rounds at once leave too little of it for a store to be back in time.
static ROUND: Semaphore = Semaphore::const_new(1);

/// A store that can be taken away and brought back, with its data.
trait Store {
    /// Kinds of faults.
    type Fault: Copy + fmt::Debug;

    /// URL for the gateway.
    fn url(&self) -> String;

    /// URL for a gateway without network faults.
    fn direct_url(&self) -> String;

    /// Takes it away.
    async fn strike(&mut self, fault: Self::Fault);

    /// Heals the fault, and returns once the store serves every caller.
    async fn mend(&mut self, fault: Self::Fault);

    /// Reports whether the fault reaches the part of the store that keeps this key.
    fn is_struck(&self, _key: &str) -> bool {
        true
    }
}

/// A gateway before a store. While the store is out, it decides only under the policies of this configuration.
async fn gateway(store: &impl Store, config: &str) -> Gateway {
    let deadline = format!("{}ms", DEADLINE.as_millis());
    let setup = gateway::on(store.url()).config(config).env("ONCEGATE_DEFAULTS__DEADLINE", deadline);
    let gateway = setup.start().await;
    let client = gateway.client();
    until("service", Duration::from_secs(10), async || client.claim(fresh::contents()).await.status == 201).await;
    gateway
}

/// The callers: 64 of them, about a thousand calls per second, with leases that may end during the outage.
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

/// Results of callers for one fault.
struct Seen {
    history: History,
    /// Time of the outage.
    away: Range<Duration>,
    /// Times of the answers to calls during the outage, in order.
    took: Vec<Duration>,
    /// The time while the breaker is open.
    later: Range<Duration>,
    /// Times of the answers to calls in it, in order.
    took_later: Vec<Duration>,
    /// Time within which 99 of a hundred callers of a no-op handler were answered, in the first of these periods, in
    /// the second, and after both.
    noop_p99: Duration,
    noop_p99_later: Duration,
    noop_p99_after: Duration,
    /// From when the store was back to the first new grant by it, if there was one.
    first_grant: Option<Duration>,
    /// From when the store was back to the last call that it did not answer.
    last_loss: Duration,
}

/// Reports whether a call was granted by the store, and for the first time.
fn is_grant(event: &Event) -> bool {
    matches!(event.reply, Reply::Answered(Answer::Granted { repeated: false, .. }))
}

/// Lets callers work while the store goes away and comes back.
async fn watch<S: Store>(store: &mut S, fault: S::Fault, gateway: &Gateway) -> Seen {
    watch_all(store, fault, &[gateway], workload()).await
}

/// The same, where the callers work at several gateways.
async fn watch_all<S: Store>(store: &mut S, fault: S::Fault, gateways: &[&Gateway], workload: Workload) -> Seen {
    let _round = ROUND.acquire().await.expect("never closed");
    let seed = workload.seed;
    let clock = Arc::new(SystemClock::new());
    let (history, stop) = (History::new(clock.clone()), CancellationToken::new());
    let noop = Noop::start(clock.clone(), workload.pace, stop.clone()).await;
    let service = |gateway: &&Gateway| Arc::new(HttpService(gateway.client())) as Arc<dyn Service>;
    let services = gateways.iter().map(service).collect();
    let calling = tokio::spawn(workload.run(services, history.clone(), stop.clone()));
    until("callers are answered", Duration::from_secs(10), async || {
        history.keys().values().map(Vec::len).sum::<usize>() >= BEFORE
    })
    .await;
    store.strike(fault).await;
    let struck = clock.monotonic();
    sleep(AWAY).await;
    let mending = clock.monotonic();
    store.mend(fault).await;
    let mended = clock.monotonic();
    sleep(AFTER).await;
    // A busy machine takes longer to serve again; `assert_in_time` says when that is too long.
    until("a grant once the store is back", AFTER, async || {
        let keys = history.keys();
        let mut struck = keys.iter().filter(|(key, _)| store.is_struck(key)).flat_map(|(_, events)| events);
        struck.any(|event| is_grant(event) && event.started > mended)
    })
    .await;
    stop.cancel();
    calling.await.expect("no caller panics");
    print(format_args!("{fault:?}: seed {seed}"));

    let events: Vec<Event> = history.keys().into_values().flatten().collect();
    let since = |at: Option<Duration>| at.map(|at| at.saturating_sub(mended));
    let first =
        events.iter().filter(|event| is_grant(event)).map(|event| event.answered).filter(|at| *at > mended).min();
    let is_lost = |event: &&Event| matches!(event.reply, Reply::Unknown | Reply::Refused | Reply::Degraded(..));
    let last = events.iter().filter(is_lost).map(|event| event.answered).max();
    let (first_grant, last_loss) = (since(first), since(last).unwrap_or_default());
    let noop = noop.stopped().await;
    Seen {
        took: times(events.iter(), &(struck..mending)),
        took_later: times(events.iter(), &(struck + OPENED..mending)),
        later: struck + OPENED..mending,
        history,
        away: struck..mended,
        noop_p99: noop.p99(struck..mending),
        noop_p99_later: noop.p99(struck + OPENED..mending),
        noop_p99_after: noop.p99(mending..Duration::MAX),
        first_grant,
        last_loss,
    }
}

impl Seen {
    /// Compares the observations with the promises while decisions wait for the store. `opens`: the store answers
    /// nothing during the outage, so the breaker opens.
    fn assert_promises(&self, fault: &impl fmt::Debug, opens: bool) {
        print(format_args!("{fault:?}: {self}"));
        self.assert_explained(fault);
        assert_eq!(self.double_grants(), [], "{fault:?}: granted twice");
        self.assert_in_time(fault, opens, Duration::ZERO);
    }

    /// Checks the answers against the contract.
    fn assert_explained(&self, fault: &impl fmt::Debug) {
        // A gateway that has waited for half of the shortest deadline may have sent a call a second time.
        let echoes = explained_with_echoes(&self.history, SHORTEST_LEASE / 4);
        print(format_args!("{fault:?}: {echoes} keys were held for a lease by a call that was sent twice"));
    }

    /// Checks the times only. Calls may fail for this much longer, during the delivery of spooled entries.
    fn assert_in_time(&self, fault: &impl fmt::Debug, opens: bool, waits: Duration) {
        let first =
            self.first_grant.unwrap_or_else(|| panic!("{fault:?}: nothing was granted once the store was back"));
        if !times_count() {
            return;
        }
        let limit = DEADLINE + BEYOND + self.noop_p99;
        let p99 = percentile(&self.took, 99);
        assert!(p99 <= limit, "{fault:?}: p99 is {p99:?}, and {:?} of the no-op handler", self.noop_p99);
        // A no-op handler is one program; here are two with a connection between them. The measured times are short, so
        // a busy machine may delay only one of them.
        let limit = OPEN + self.noop_p99.max(self.noop_p99_later) * 4;
        let p99 = percentile(&self.took_later, 99);
        assert!(!opens || p99 <= limit, "{fault:?}: p99 is {p99:?} with the breaker open; {limit:?} is allowed");
        let limit = BACK + self.noop_p99_after * STEPS;
        assert!(first <= limit, "{fault:?}: the first grant came after {first:?}; {limit:?} is allowed");
        let last = self.last_loss;
        assert!(last <= limit + waits, "{fault:?}: calls were still lost after {last:?}; {limit:?} is allowed");
    }

    /// Applies the promise of an open breaker only to the calls of these keys. A store answers the calls of other keys.
    fn expect_open_for(&mut self, is_out: impl Fn(&str) -> bool) {
        let keys = self.history.keys();
        let out = keys.iter().filter(|(key, _)| is_out(key)).flat_map(|(_, events)| events);
        self.took_later = times(out, &self.later);
    }

    /// Returns the double grants.
    fn double_grants(&self) -> Vec<DoubleGrant> {
        self.history.keys().values().flat_map(|events| double_grants(events)).collect()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.history.keys();
        let events = keys.values().map(Vec::len).sum::<usize>();
        let count = |matches: fn(&Reply) -> bool| keys.values().flatten().filter(|event| matches(&event.reply)).count();
        let answered = count(|reply| matches!(reply, Reply::Answered(_)));
        let degraded = count(|reply| matches!(reply, Reply::Degraded(..)));
        let first = self.first_grant.map_or_else(|| "never".to_owned(), |first| format!("{first:?}"));
        let (refused, unknown) = (count(|reply| *reply == Reply::Refused), count(|reply| *reply == Reply::Unknown));
        write!(
            f,
            "{} keys, {events} calls: {answered} answered, {degraded} degraded, {refused} refused, {unknown} unknown; away: {} \
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

/// Returns the times of the answers to calls that were sent in this time, in order.
fn times<'e>(events: impl Iterator<Item = &'e Event>, sent: &Range<Duration>) -> Vec<Duration> {
    let mut took: Vec<Duration> = events.filter(|event| sent.contains(&event.started)).map(Event::took).collect();
    took.sort_unstable();
    took
}

/// Returns a percentile of sorted values.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}
