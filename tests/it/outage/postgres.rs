//! PostgreSQL that answers after its commit is on the disk, and its faults.

use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};

use super::{Store, gateway, watch};

/// A way for PostgreSQL to be out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// All its processes get SIGSTOP.
    Stopped,
    /// All its processes get SIGKILL; started again with its data.
    Killed,
    /// Nothing arrives, without an error.
    Silent,
    /// Requests arrive, replies do not.
    HalfOpen,
    /// Connections are closed and refused.
    Refused,
    /// Writes nothing any more.
    ReadOnly,
    /// Killed and not started again; its synchronous standby takes over.
    Promoted,
}

const FAULTS: [Fault; 7] =
    [Fault::Stopped, Fault::Killed, Fault::Silent, Fault::HalfOpen, Fault::Refused, Fault::ReadOnly, Fault::Promoted];

/// A server, its standby, and the proxy to the primary.
pub(super) struct Postgres {
    server: PostgresServer,
    standby: Option<PostgresServer>,
    proxy: TcpProxy,
}

impl Postgres {
    pub(super) async fn start() -> Option<Self> {
        let server = PostgresServer::start().await?;
        let proxy = TcpProxy::start_any(server.address()).await;
        Some(Self { server, standby: None, proxy })
    }
}

impl Store for Postgres {
    type Fault = Fault;

    fn url(&self) -> String {
        self.server.url().replace(&self.server.address().to_string(), &self.proxy.address().to_string())
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
            Fault::ReadOnly => {
                self.server.execute("ALTER SYSTEM SET default_transaction_read_only = on").await;
                self.server.execute("SELECT pg_reload_conf()").await;
            }
            Fault::Promoted => {
                assert!(self.standby.is_some(), "a standby follows before");
                self.server.kill();
            }
        }
    }

    async fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Stopped => self.server.thaw(),
            Fault::Killed => self.server.restart().await,
            Fault::Silent | Fault::HalfOpen | Fault::Refused => self.proxy.heal().await,
            Fault::ReadOnly => {
                self.server.execute("ALTER SYSTEM RESET default_transaction_read_only").await;
                self.server.execute("SELECT pg_reload_conf()").await;
            }
            Fault::Promoted => {
                self.server = self.standby.take().expect("it followed");
                self.server.promote().await;
                self.proxy.redirect_to(self.server.address());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_true_and_in_time_under_faults_of_postgres() {
    let Some(mut postgres) = Postgres::start().await else { return };
    let gateway = gateway(&postgres, "").await;
    for fault in FAULTS {
        if fault == Fault::Promoted {
            postgres.standby = Some(postgres.server.standby(&[]).await);
            postgres.server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
            postgres.server.execute("SELECT pg_reload_conf()").await;
        }
        let seen = watch(&mut postgres, fault, &gateway).await;
        // A read-only server still reports duplicates.
        seen.assert_promises(&fault, fault != Fault::ReadOnly);
    }
}
