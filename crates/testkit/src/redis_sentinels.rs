//! A primary, its replicas and Sentinels of a test's own, on free ports of the loopback interface; killed on drop.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::FromRedisValue;
use tempfile::TempDir;

use crate::fresh;
use crate::process::Process;
use crate::redis_server::RedisServer;
use crate::wait::until;

/// Name of the primary.
pub const NAME: &str = "main";

/// Time after which a server counts as dead: as short as a loaded machine allows.
const DOWN_AFTER: Duration = Duration::from_millis(500);

/// Servers and their Sentinels. The first server is the primary at the start.
pub struct RedisSentinels {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<Sentinel>,
}

/// A Sentinel.
pub struct Sentinel {
    /// First, so that it is killed before its folder is removed.
    process: Process,
    folder: TempDir,
    port: u16,
    /// Port for TLS, if the servers replicate over it.
    tls_port: Option<u16>,
}

impl RedisSentinels {
    /// Starts a primary, replicas and three Sentinels. Returns nothing if redis-server is not installed.
    pub async fn start(replicas: usize) -> Option<Self> {
        Self::start_with(replicas, &[]).await
    }

    /// The same, with servers that have these lines of configuration, too. With `tls-replication yes` the Sentinels get all
    /// lines of TLS.
    pub async fn start_with(replicas: usize, config: &[&str]) -> Option<Self> {
        let config = [&["repl-diskless-sync-delay 0"], config].concat();
        let mut servers = vec![RedisServer::start_with(&config).await?];
        let primary = servers[0].replication_address();
        for _ in 0..replicas {
            let server = RedisServer::start_with(&config).await?;
            server.query::<()>(&format!("REPLICAOF {} {}", primary.ip(), primary.port()));
            servers.push(server);
        }
        let is_tls = config.contains(&"tls-replication yes");
        let of_tls = |line: &&str| is_tls && line.starts_with("tls-") && !line.starts_with("tls-port");
        let tls: Vec<_> = config.iter().copied().filter(of_tls).collect();
        let mut group = Self { servers, sentinels: Vec::new() };
        // A Sentinel reads the replicas of a primary when it starts, and then every ten seconds.
        group.replicas_in_step(replicas).await;
        group.sentinels = (0..3).map(|_| Sentinel::start(primary, &tls)).collect();
        group.settled(replicas).await;
        Some(group)
    }

    /// The URL that names the Sentinels.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let scheme = if self.sentinels[0].tls_port.is_some() { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// Waits until every Sentinel knows the others and this many replicas.
    pub async fn settled(&self, replicas: usize) {
        self.wait("the Sentinels know one another and all replicas", |group| {
            group.sentinels.iter().filter(|sentinel| sentinel.process.is_started()).all(|sentinel| {
                let Some(state) = sentinel.query::<Vec<String>>(&["SENTINEL", "MASTER", NAME]) else { return false };
                let field = |name: &str| state.chunks(2).find(|pair| pair[0] == name).map(|pair| &*pair[1]);
                field("num-other-sentinels") == Some("2") && field("num-slaves") == Some(&*replicas.to_string())
            })
        })
        .await;
        self.replicas_in_step(replicas).await;
    }

    /// Waits until this many replicas have all data of the primary.
    async fn replicas_in_step(&self, replicas: usize) {
        self.wait("all replicas are in step", |group| {
            group.servers.iter().any(|server| {
                // A server that is demoted closes its connections.
                server.is_running()
                    && RedisServer::try_query::<String>(&server.url(), &["INFO", "replication"])
                        .is_ok_and(|info| info.matches("state=online").count() >= replicas)
            })
        })
        .await;
    }

    /// Index of the primary that the Sentinels name.
    pub fn primary(&self) -> usize {
        let named =
            |sentinel: &Sentinel| sentinel.query::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        let (_, port) = self.sentinels.iter().find_map(named).expect("a Sentinel answers");
        self.servers.iter().position(|server| server.replication_address().port() == port).expect("a server of ours")
    }

    /// Makes the Sentinels promote a replica while the primary lives.
    pub fn failover(&self) {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.process.is_started()).expect("a Sentinel runs");
        sentinel.query::<()>(&["SENTINEL", "FAILOVER", NAME]).expect("the failover starts");
    }

    /// Waits until the Sentinels name another primary than this one, and returns it.
    pub async fn taken_over(&self, from: usize) -> usize {
        self.wait("a replica took over", |group| group.primary() != from).await;
        self.primary()
    }

    async fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, Duration::from_secs(20), async || holds(self)).await;
    }
}

impl Sentinel {
    fn start(primary: SocketAddr, tls: &[&str]) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder for the Sentinel"), fresh::port());
        let tls_port = (!tls.is_empty()).then(fresh::port);
        let tls_line = tls_port.map(|port| format!("tls-port {port}"));
        let tls_lines = tls_line.as_deref().into_iter().chain(tls.iter().copied());
        let tls: String = tls_lines.flat_map(|line| [line, "\n"]).collect();
        let down_after = DOWN_AFTER.as_millis();
        let config = format!(
            "{tls}port {port}\nbind 127.0.0.1\ndir {}\nlogfile sentinel.log\nsentinel monitor {NAME} {} {} 2\n\
             sentinel down-after-milliseconds {NAME} {down_after}\nsentinel failover-timeout {NAME} 3000\n",
            folder.path().display(),
            primary.ip(),
            primary.port()
        );
        fs::write(folder.path().join("sentinel.conf"), config).expect("its configuration is written");
        let mut sentinel = Self { folder, port, tls_port, process: Process::default() };
        sentinel.launch();
        sentinel
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port.unwrap_or(self.port)).into()
    }

    /// Ends the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn launch(&mut self) {
        let mut command = Command::new("redis-server");
        command.arg(self.folder.path().join("sentinel.conf")).arg("--sentinel");
        self.process = Process::start(command.stderr(Stdio::null()));
    }

    fn query<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        RedisServer::try_query(&format!("redis://127.0.0.1:{}", self.port), words).ok()
    }
}
