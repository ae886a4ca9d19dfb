//! A `PgBouncer` for one test in front of a PostgreSQL server: transaction pooling over few connections; killed on drop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tempfile::TempDir;

use crate::fresh;
use crate::missing::tool;
use crate::postgres_server::{command, give_to_server};

/// A running pooler.
pub struct PgBouncer {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts a pooler that connects as this user. Returns `None` if it is not installed: the test skips itself then,
    /// and on CI it fails.
    pub async fn start(server: SocketAddr, user: &str) -> Option<Self> {
        Self::start_with(server, user, &["default_pool_size = 4"]).await
    }

    /// Starts a pooler with lines of configuration.
    pub async fn start_with(server: SocketAddr, user: &str, config: &[&str]) -> Option<Self> {
        tool("pgbouncer")?;
        for _ in 0..5 {
            // Another program may take the port first; then it exits.
            let mut pooler = Self::launch(server, user, config);
            while pooler.child.try_wait().expect("its status").is_none() {
                if pooler.connect("postgres").await.is_ok() {
                    return Some(pooler);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        panic!("PgBouncer does not start");
    }

    fn launch(server: SocketAddr, user: &str, more: &[&str]) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fresh::port()));
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("pgbouncer.ini");
        let lines = format!(
            "[databases]\n* = host={} port={} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\n{}\n",
            server.ip(),
            server.port(),
            address.port(),
            more.join("\n")
        );
        std::fs::write(&config, lines).expect("its configuration");
        // Like the server, it refuses to run as root.
        give_to_server(folder.path());
        let mut pgbouncer = command(Path::new("pgbouncer"));
        pgbouncer.arg("--quiet").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: pgbouncer.spawn().expect("it starts"), address, _folder: folder }
    }

    /// Returns a new connection.
    pub async fn connect(&self, database: &str) -> sqlx::Result<PgConnection> {
        // It rejects session settings that it does not know.
        self.url(database, "").parse::<PgConnectOptions>()?.extra_float_digits(None).connect().await
    }

    /// Returns the URL of a database through the pooler. More keys can be appended, each after an `&`.
    pub fn url(&self, database: &str, keys: &str) -> String {
        format!("postgres://anyone@{}/{database}?sslmode=disable{keys}", self.address)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
