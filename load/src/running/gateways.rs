//! Gateways that share a store, and an etcd to compare them with.

use std::{net::Ipv4Addr, path::Path, sync::Arc};

use anyhow::Context as _;
use tokio::process::Command;

use super::{Running, free_address, postgres_url};
use crate::{
    client::{Connection, Target},
    contender::{Contender, Installed},
    proc::Watched,
    programs::find_program,
    quorum::Quorum,
};

/// Request that etcd answers once it has elected itself.
const ETCD_READY: (&str, &str) = ("/v3/lease/grant", r#"{"TTL":"1"}"#);

impl Running {
    /// Starts gateways on one store of this kind, with these settings, and the defaults for all others.
    pub(crate) async fn start_gateways(
        store: Contender,
        count: usize,
        settings: &str,
        installed: &Installed,
        parent: &Path,
    ) -> anyhow::Result<Self> {
        let (mut running, _) = Self::empty(parent)?;
        let engine = running.start_store(store, installed).await?;
        for _ in 0..count {
            running.start_gateway(installed, free_address(), &engine, settings).await?;
        }
        Ok(running)
    }

    /// Starts a store if it is a process, and returns the URL of the engine.
    pub(super) async fn start_store(&mut self, store: Contender, installed: &Installed) -> anyhow::Result<String> {
        match store {
            Contender::Memory => Ok("memory:".to_owned()),
            Contender::Disk => Ok(format!("disk:{}", self.dir().join("claims").display())),
            Contender::Redis => {
                let redis = self.start_redis(installed).await?;
                let redis = self.reach(redis).await?;
                Ok(self.redis_url(redis))
            }
            Contender::Postgres => {
                self.start_postgres(installed).await?;
                let postgres = self.reach((Ipv4Addr::LOCALHOST, self.port).into()).await?;
                Ok(postgres_url(postgres.port()))
            }
            Contender::Etcd => Ok(self.keep_quorum(Quorum::start_etcd().await?)),
            Contender::ZooKeeper => Ok(self.keep_quorum(Quorum::start_zookeeper().await?)),
            other => anyhow::bail!("{other} is no store of a gateway"),
        }
    }

    /// Keeps a quorum that has started, and returns the URL of the engine.
    fn keep_quorum(&mut self, quorum: Quorum) -> String {
        self.watched.extend(quorum.ids().into_iter().map(|id| Watched::server("store", id)));
        self.quorum.insert(quorum).url()
    }

    /// Starts an etcd of one member.
    pub(crate) async fn start_etcd(parent: &Path) -> anyhow::Result<Self> {
        let program = find_program("etcd").context("etcd is not installed")?;
        let (mut running, _) = Self::empty(parent)?;
        let peers = format!("http://{}", free_address());
        let mut command = Command::new(program);
        command.args(["--listen-client-urls", &running.url, "--advertise-client-urls", &running.url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        command.arg("--data-dir").arg(running.dir().join("etcd"));
        running.spawn("store", command)?;
        let target = running.etcd()?;
        let (path, body) = ETCD_READY;
        running
            .wait_until("store", async || {
                Connection::new(Arc::clone(&target)).post(path, body).await.is_ok_and(|answer| answer.status == 200)
            })
            .await?;
        Ok(running)
    }

    /// Returns its address.
    pub(crate) fn etcd(&self) -> anyhow::Result<Arc<Target>> {
        Ok(Arc::new(Target::parse(&self.url, None, false)?))
    }
}
