//! Redis that writes every answer to its log first, and everything that can happen to it.

use super::{Seen, Store, gateway, watch};
use crate::support::history::check::{SKEW, check};
use crate::support::redis_server::RedisServer;
use crate::support::tcp_proxy::{Mode, TcpProxy};
use crate::support::wait::until;

/// What makes an answer durable before it is given.
const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

/// A way for Redis to be out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// SIGSTOP.
    Stopped,
    /// SIGKILL; started again with its log.
    Killed,
    /// Nothing passes, and nobody is told.
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

const FAULTS: [Fault; 8] = [
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
struct Redis {
    server: RedisServer,
    proxy: TcpProxy,
}

impl Redis {
    async fn start() -> Option<Self> {
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

    async fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped => self.server.freeze(),
            Fault::Killed => self.server.kill(),
            Fault::Silent => self.proxy.set(Mode::Blackhole),
            Fault::HalfOpen => self.proxy.set(Mode::HalfOpen),
            Fault::Refused => self.proxy.refuse().await,
            Fault::Full => drop(self.server.ask::<String>("CONFIG SET maxmemory 1")),
            Fault::Demoted => drop(self.server.ask::<String>("REPLICAOF 127.0.0.1 1")),
            Fault::Loading => {
                // Each entry of the log takes so many microseconds to read, and the server looks up now and then.
                self.server.restart_with(&["key-load-delay 1000"]);
            }
        }
    }

    async fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped => self.server.thaw(),
            Fault::Killed => self.server.restart().await,
            Fault::Silent | Fault::HalfOpen | Fault::Refused => self.proxy.heal().await,
            Fault::Full => drop(self.server.ask::<String>("CONFIG SET maxmemory 0")),
            Fault::Demoted => drop(self.server.ask::<String>("REPLICAOF NO ONE")),
            Fault::Loading => assert!(self.server.is_ready().await),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_redis_every_answer_is_true_and_in_time() {
    let Some(mut redis) = Redis::start().await else { return };
    let gateway = gateway(&redis, "").await;
    for fault in FAULTS {
        let seen = watch(&mut redis, fault, &gateway).await;
        seen.assert_promises(&fault);
    }
}
