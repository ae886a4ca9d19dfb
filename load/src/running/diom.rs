//! Diom: a service with an API for idempotency, caches, queues and more, and its own replicated store.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use tokio::{net::TcpStream, process::Command};

use super::{Running, free_address};
use crate::{
    client::{Connection, Target},
    contender::Installed,
};

/// Request that succeeds once it has elected itself.
const READY: (&str, &str) = ("/api/v1.idempotency.start", r#"{"key":"ready","lock_period_ms":1}"#);

impl Running {
    /// Starts one node with its defaults: its log is on the disk before an answer, as in the disk engine.
    pub(super) async fn start_diom(&mut self, installed: &Installed, listen: SocketAddr) -> anyhow::Result<()> {
        let program = installed.diom.as_ref().context("diom-server is not on PATH")?;
        let mut command = Command::new(program);
        command.env("DIOM_LISTEN_ADDRESS", listen.to_string());
        command.env("DIOM_CLUSTER_LISTEN_ADDRESS", free_address().to_string());
        // The same credential as for a gateway. It may do everything, so that no roles are needed.
        command.env("DIOM_ADMIN_TOKEN", &self.credential);
        let data = self.dir().join("diom");
        for folder in ["DIOM_PERSISTENT_DB_PATH", "DIOM_EPHEMERAL_DB_PATH"] {
            command.env(folder, &data);
        }
        self.spawn("gateway", command)?;
        let target = Arc::new(Target::parse(&self.url, Some(&self.credential), false)?);
        let (path, body) = READY;
        self.wait_until("gateway", async || {
            TcpStream::connect(listen).await.is_ok()
                && Connection::new(Arc::clone(&target)).post(path, body).await.is_ok_and(|answer| answer.status == 200)
        })
        .await
    }
}
