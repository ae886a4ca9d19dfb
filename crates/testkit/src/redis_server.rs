//! A redis-server for one test, on a free port of the loopback interface and in a temporary folder; killed on drop. It can be
//! frozen, killed and started again.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use crate::process::Process;
use crate::{folder, fresh, missing};

/// Start of the line of configuration that gets a free port.
const TLS_PORT: &str = "tls-port ";

/// A running, stopped or killed redis-server.
pub struct RedisServer {
    /// First, so that it is killed before its folder is removed.
    process: Process,
    folder: TempDir,
    port: u16,
    config: Vec<String>,
    is_frozen: AtomicBool,
}

impl RedisServer {
    /// Starts a server that keeps its data in memory only. Returns `None` if redis-server is not installed: the test
    /// skips itself then, and on CI it fails.
    pub async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with lines of configuration, such as `["appendonly yes"]`.
    pub async fn start_with(config: &[&str]) -> Option<Self> {
        if !is_installed() {
            missing::skip("redis-server");
            return None;
        }
        let folder = folder::temporary();
        let config = config.iter().map(ToString::to_string).collect();
        let mut server =
            Self { folder, port: 0, config, process: Process::default(), is_frozen: AtomicBool::default() };
        for _ in 0..5 {
            // Another process may take the port first. Then the server exits.
            server.port = fresh::port();
            for line in server.config.iter_mut().filter(|line| line.starts_with(TLS_PORT)) {
                *line = format!("{TLS_PORT}{}", fresh::port());
            }
            server.launch();
            if server.is_ready().await {
                return Some(server);
            }
            server.kill();
        }
        panic!("redis-server does not start; its log:\n{}", server.log());
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Returns its URL over TLS, if its configuration has a `tls-port`.
    pub fn tls_url(&self) -> String {
        let port = self.config.iter().find_map(|line| line.strip_prefix(TLS_PORT)).expect("it speaks TLS");
        format!("rediss://127.0.0.1:{port}")
    }

    /// Returns the address that replicas and Sentinels know: that of TLS, if the server replicates over it.
    pub fn replication_address(&self) -> SocketAddr {
        let is_tls = self.config.iter().any(|line| line == "tls-replication yes");
        let port = if is_tls { self.setting("tls-port").parse().expect("a port") } else { self.port };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Sends a command over a new connection.
    pub fn query<T: FromRedisValue>(&self, command: &str) -> T {
        let words: Vec<&str> = command.split(' ').collect();
        self.query_words(&words)
    }

    /// Sends a command with a password.
    pub fn query_as<T: FromRedisValue>(&self, password: &str, command: &str) -> T {
        let url = self.url().replace("redis://", &format!("redis://:{password}@"));
        let words: Vec<&str> = command.split(' ').collect();
        Self::try_query(&url, &words).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Sends a command whose words may contain spaces.
    pub fn query_words<T: FromRedisValue>(&self, words: &[&str]) -> T {
        Self::try_query(&self.url(), words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends a command to the server of this URL, as its user.
    pub fn try_query<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
        let mut connection = redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// Returns a connection, for commands with binary words.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("its URL");
        client.get_connection_with_timeout(Duration::from_secs(1)).expect("a connection")
    }

    /// Returns the value of a line of its configuration.
    pub fn setting(&self, name: &str) -> &str {
        let value = self.config.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect("a line of its configuration")
    }

    /// Returns the ID of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns true unless it was killed or is frozen.
    pub fn is_running(&self) -> bool {
        self.process.is_started() && !self.is_frozen.load(Ordering::Relaxed)
    }

    /// Removes its folder, so that every snapshot fails.
    pub fn break_saving(&self) {
        let _ = std::fs::remove_dir_all(self.folder.path());
    }

    /// Freezes the process: connections stay open, without any reply.
    pub fn freeze(&self) {
        self.process.freeze();
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.process.thaw();
        self.is_frozen.store(false, Ordering::Relaxed);
    }

    /// Kills the process. It saves nothing.
    pub fn kill(&mut self) {
        self.process.kill();
        self.is_frozen.store(false, Ordering::Relaxed);
    }

    /// Restarts the server on the same port, with the data it has saved.
    pub async fn restart(&mut self) {
        self.restart_with(&[]);
        assert!(self.is_ready().await, "redis-server does not restart; its log:\n{}", self.log());
    }

    /// Restarts the server with additional configuration, and does not wait until it is ready.
    pub fn restart_with(&mut self, config: &[&str]) {
        self.kill();
        self.config.extend(config.iter().map(ToString::to_string));
        self.launch();
    }

    /// Restarts the server on the same port, without its data.
    pub async fn restart_empty(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(self.folder.path()).expect("its folder").flatten() {
            let _ = std::fs::remove_dir_all(entry.path());
            let _ = std::fs::remove_file(entry.path());
        }
        self.restart().await;
    }

    /// Waits until it is ready. Returns false if it has exited.
    pub async fn is_ready(&mut self) -> bool {
        for _ in 0..3000 {
            if !self.process.is_started() || self.process.has_exited() {
                return false;
            }
            match Self::try_query::<String>(&self.url(), &["PING"]) {
                Ok(_) => return true,
                // It is ready, and requires a password.
                Err(error) if error.code() == Some("NOAUTH") => return true,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        false
    }

    fn launch(&mut self) {
        let mut command = Command::new("redis-server");
        let port = self.port.to_string();
        command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--logfile", "redis.log"]);
        command.arg("--dir").arg(self.folder.path());
        for line in &self.config {
            let (name, value) = line.split_once(' ').expect("a name and a value");
            command.arg(format!("--{name}")).arg(value);
        }
        self.process = Process::start(command.stderr(Stdio::null()));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("redis.log")).unwrap_or_default()
    }
}

fn is_installed() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
