//! Histories of locks under faults: many callers acquire, queue, share, re-enter, hang up and crash. The store stops,
//! messages are lost, and gateways are killed while callers wait there. The oracle checks exclusion, order and fences.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::SystemClock;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::history::SKEW;
use oncegate_testkit::history::locks::http_service::HttpLockService;
use oncegate_testkit::history::locks::workload::{LockService, LockWorkload};
use oncegate_testkit::history::locks::{LockAnswer, LockHistory, Oracle};
use oncegate_testkit::output::print;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::until;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::SOON;
use crate::support::gateway;

/// Length of a fault: longer than the second after which an absent head of a queue loses its place.
const AWAY: Duration = Duration::from_millis(1200);

/// Grants between two faults.
const GRANTS: usize = 25;

/// Unanswered calls arrive when a fault ends, and a busy machine delays them.
const ORACLE: Oracle = Oracle { skew: SKEW, late: Duration::from_secs(4), slack: Duration::from_secs(5) };

/// Working callers, and their observations.
struct Work {
    seed: u64,
    history: LockHistory,
    stop: CancellationToken,
    calling: JoinHandle<()>,
}

impl Work {
    fn start(gateways: &[&Gateway]) -> Self {
        let (history, stop) = (LockHistory::new(Arc::new(SystemClock::new())), CancellationToken::new());
        let seed = fresh::number() >> 8;
        let workload = LockWorkload {
            seed,
            callers: 20,
            locks: 3,
            leases: [400, 1500, 5000].map(Duration::from_millis).to_vec(),
            waits: [0, 200, 1000].map(Duration::from_millis).to_vec(),
            pace: Duration::from_millis(15),
            careless: 8,
        };
        let service = |gateway: &&Gateway| Arc::new(HttpLockService(gateway.client())) as Arc<dyn LockService>;
        let services = gateways.iter().map(service).collect();
        let calling = tokio::spawn(workload.run(services, history.clone(), stop.clone()));
        Self { seed, history, stop, calling }
    }

    /// Waits until the callers have got some more holds.
    async fn goes_on(&self) {
        let grants = || self.history.count(|answer| matches!(answer, LockAnswer::Granted { .. }));
        let before = grants();
        until("locks are granted", SOON, async || grants() >= before + GRANTS).await;
    }

    async fn check(self) {
        self.goes_on().await;
        self.stop.cancel();
        self.calling.await.expect("no caller panics");
        let queued = self.history.count(|answer| matches!(answer, LockAnswer::Held { position: Some(_), .. }));
        print(format_args!("seed {}: {queued} answers with a position", self.seed));
        assert!(queued > 0, "callers queue");
        if let Err((lock, violation)) = self.history.check(&ORACLE) {
            panic!("seed {}: {lock}: {violation:?}", self.seed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_callers_that_hang_up_and_crash_see_what_locks_promise() {
    let gateway = gateway::on_memory().start().await;
    let work = Work::start(&[&gateway]);
    for _ in 0..3 {
        work.goes_on().await;
    }
    work.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_disk_a_gateway_that_is_killed_with_waiters_keeps_what_locks_promise() {
    let folder = tempfile::tempdir().unwrap();
    let setup = gateway::on_disk(folder.path()).listen(&format!("127.0.0.1:{}", fresh::port()));
    let mut gateway = setup.start().await;
    let work = Work::start(&[&gateway]);
    for _ in 0..2 {
        work.goes_on().await;
        gateway.kill();
        gateway = setup.start().await;
    }
    work.check().await;
}

/// A store that stops and resumes, as by SIGSTOP and SIGCONT.
trait Stops {
    fn stop(&self);
    fn resume(&self);
}

impl Stops for RedisServer {
    fn stop(&self) {
        self.freeze();
    }

    fn resume(&self) {
        self.thaw();
    }
}

#[cfg(feature = "postgres")]
impl Stops for PostgresServer {
    fn stop(&self) {
        self.freeze();
    }

    fn resume(&self) {
        self.thaw();
    }
}

/// One gateway reaches the store through the proxy, another one directly, and a third is killed.
async fn locks_keep_their_promises(server: &impl Stops, url: &str, proxy: &TcpProxy, url_of_proxy: &str) {
    let start = async |url: &str| gateway::on(url).env("ONCEGATE_DEFAULTS__DEADLINE", "500ms").start().await;
    let (mut dying, direct, beyond) = (start(url).await, start(url).await, start(url_of_proxy).await);
    let work = Work::start(&[&dying, &direct, &beyond]);
    for mode in [Mode::HalfOpen, Mode::Blackhole] {
        work.goes_on().await;
        proxy.set(mode);
        sleep(AWAY).await;
        proxy.set(Mode::Pass);
        proxy.drop_connections();
    }
    work.goes_on().await;
    server.stop();
    sleep(AWAY).await;
    server.resume();
    work.goes_on().await;
    dying.kill();
    work.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_locks_keep_their_promises_when_messages_are_lost_the_store_stops_and_a_gateway_is_killed() {
    let Some(server) = RedisServer::start().await else { return };
    let proxy = TcpProxy::start(server.address()).await;
    let url_of_proxy = format!("redis://{}", proxy.address());
    locks_keep_their_promises(&server, &server.url(), &proxy, &url_of_proxy).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_locks_keep_their_promises_when_messages_are_lost_the_store_stops_and_a_gateway_is_killed() {
    let Some(server) = PostgresServer::start().await else { return };
    let proxy = TcpProxy::start_any(server.address()).await;
    let url_of_proxy = server.url().replace(&server.address().to_string(), &proxy.address().to_string());
    locks_keep_their_promises(&server, &server.url(), &proxy, &url_of_proxy).await;
}
