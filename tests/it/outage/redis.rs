//! Redis that writes every answer to its log first, and its faults.

use std::time::Duration;

use oncegate_testkit::history::check::{SKEW, check};
use oncegate_testkit::output::print;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::until;

use super::{AWAY, Store, gateway, watch};

/// Configuration that makes an answer durable before it is sent.
pub(super) const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

/// A way for Redis to be out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// SIGSTOP.
    Stopped,
    /// SIGKILL; started again with its log.
    Killed,
    /// Nothing arrives, without an error.
    Silent,
    /// Requests arrive, replies do not.
    HalfOpen,
    /// Connections are closed and refused.
    Refused,
    /// At its `maxmemory`.
    Full,
    /// Started again, with so long a log that reading it takes a while.
    Loading,
    /// Made a replica of something that is not there.
    Demoted,
}

pub(super) const FAULTS: [Fault; 8] = [
    Fault::Stopped,
    Fault::Killed,
    Fault::Silent,
    Fault::HalfOpen,
    Fault::Refused,
    Fault::Full,
    Fault::Demoted,
    Fault::Loading,
];

/// A server and the way to it.
pub(super) struct Redis {
    server: RedisServer,
    proxy: TcpProxy,
}

impl Redis {
    pub(super) async fn start() -> Option<Self> {
        let server = RedisServer::start_with(&DURABLE).await?;
        let proxy = TcpProxy::start(server.address()).await;
        Some(Self { server, proxy })
    }
}

impl Store for Redis {
    type Fault = Fault;

    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    fn direct_url(&self) -> String {
        self.server.url()
    }

    async fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped => self.server.freeze(),
            Fault::Killed => self.server.kill(),
            Fault::Silent => self.proxy.set(Mode::Blackhole),
            Fault::HalfOpen => self.proxy.set(Mode::HalfOpen),
            Fault::Refused => self.proxy.refuse().await,
            Fault::Full => drop(self.server.query::<String>("CONFIG SET maxmemory 1")),
            Fault::Demoted => drop(self.server.query::<String>("REPLICAOF 127.0.0.1 1")),
            Fault::Loading => {
                // Each entry of the log takes so many microseconds to read, and the server looks up now and then.
                self.server.restart_with(&["key-load-delay 300"]);
            }
        }
    }

    async fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped => self.server.thaw(),
            Fault::Killed => self.server.restart().await,
            Fault::Silent | Fault::HalfOpen | Fault::Refused => self.proxy.heal().await,
            Fault::Full => drop(self.server.query::<String>("CONFIG SET maxmemory 0")),
            Fault::Demoted => drop(self.server.query::<String>("REPLICAOF NO ONE")),
            Fault::Loading => assert!(self.server.is_ready().await),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_true_and_in_time_under_faults_of_redis() {
    let Some(mut redis) = Redis::start().await else { return };
    let gateway = gateway(&redis, "").await;
    for fault in FAULTS {
        let seen = watch(&mut redis, fault, &gateway).await;
        // A full one still reports duplicates.
        seen.assert_promises(&fault, fault != Fault::Full);
    }
}

/// A primary, its asynchronous replica, and the proxy to the present primary.
struct Replicated {
    primary: RedisServer,
    replica: RedisServer,
    between: TcpProxy,
    proxy: TcpProxy,
}

/// For how long the replica has not heard from its primary when that dies.
const LAG: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
struct Promoted;

impl Replicated {
    async fn start() -> Option<Self> {
        let primary = RedisServer::start_with(&DURABLE).await?;
        let replica = RedisServer::start_with(&DURABLE).await?;
        let between = TcpProxy::start_any(primary.address()).await;
        let proxy = TcpProxy::start(primary.address()).await;
        let port = between.address().port();
        replica.query::<String>(&format!("REPLICAOF 127.0.0.1 {port}"));
        until("the replica follows", Duration::from_secs(20), async || {
            replica.query::<String>("INFO replication").contains("master_link_status:up")
        })
        .await;
        Some(Self { primary, replica, between, proxy })
    }
}

impl Store for Replicated {
    type Fault = Promoted;

    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    fn direct_url(&self) -> String {
        self.primary.url()
    }

    async fn strike(&mut self, Promoted: Promoted) {
        self.between.set(Mode::Blackhole);
        tokio::time::sleep(LAG).await;
        self.primary.kill();
    }

    async fn mend(&mut self, Promoted: Promoted) {
        self.replica.query::<String>("REPLICAOF NO ONE");
        self.proxy.redirect_to(self.replica.address());
    }
}

/// Replication is asynchronous, so the newest grants may be lost with their primary, and granted again. Nothing can
/// promise otherwise; it is counted, and published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_a_promoted_redis_replica_lost_is_counted() {
    let Some(mut stage) = Replicated::start().await else { return };
    let gateway = gateway(&stage, "").await;
    let seen = watch(&mut stage, Promoted, &gateway).await;
    let keys = seen.history.keys();
    let unexplained = keys.values().filter(|events| check(events, SKEW).is_err()).count();
    print(format_args!("{seen}"));
    print(format_args!(
        "a replica that lags {LAG:?} was promoted after {AWAY:?}: of {} keys, {unexplained} show lost writes, {} were \
         granted twice",
        keys.len(),
        seen.double_grants().len()
    ));
    seen.assert_in_time(&Promoted, true, Duration::ZERO);
}
