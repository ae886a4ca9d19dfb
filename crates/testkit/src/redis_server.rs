//! A redis-server of a test's own, on a free port of the loopback interface and in a folder of its own; killed on drop.
//! It can be stopped, killed and started again the ways a server goes in real life.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use crate::missing;

/// What begins the line of configuration that has a port put into it here.
const TLS_PORT: &str = "tls-port ";

/// A running, stopped or killed redis-server.
pub struct RedisServer {
    folder: TempDir,
    port: u16,
    config: Vec<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server that keeps its data in memory only. Nothing where redis-server is not installed: the test is
    /// to be skipped then, loudly; on CI it fails instead.
    pub async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with lines of configuration, such as `["appendonly yes"]`.
    pub async fn start_with(config: &[&str]) -> Option<Self> {
        if !is_installed() {
            missing::skip("redis-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder for the server");
        let config = config.iter().map(ToString::to_string).collect();
        let mut server = Self { folder, port: 0, config, child: None };
        for _ in 0..5 {
            // Somebody else may take the port before the server does; then it ends at once.
            server.port = free_port();
            for line in server.config.iter_mut().filter(|line| line.starts_with(TLS_PORT)) {
                *line = format!("{TLS_PORT}{}", free_port());
            }
            server.launch();
            if server.is_ready().await {
                return Some(server);
            }
            server.kill();
        }
        panic!("redis-server does not start; its log:\n{}", server.log());
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Its URL over TLS, where its configuration has a `tls-port`, whichever.
    pub fn tls_url(&self) -> String {
        let port = self.config.iter().find_map(|line| line.strip_prefix(TLS_PORT)).expect("it speaks TLS");
        format!("rediss://127.0.0.1:{port}")
    }

    /// Sends a command over a connection of its own.
    pub fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        let words: Vec<&str> = command.split(' ').collect();
        self.ask_words(&words)
    }

    /// Sends a command with a password.
    pub fn ask_as<T: FromRedisValue>(&self, password: &str, command: &str) -> T {
        let url = self.url().replace("redis://", &format!("redis://:{password}@"));
        let words: Vec<&str> = command.split(' ').collect();
        Self::try_ask(&url, &words).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Sends a command whose words may hold spaces.
    pub fn ask_words<T: FromRedisValue>(&self, words: &[&str]) -> T {
        Self::try_ask(&self.url(), words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends a command to the server of this URL, as its user.
    pub fn try_ask<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
        let mut connection = redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// A connection for commands whose words are no text.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("its URL");
        client.get_connection_with_timeout(Duration::from_secs(1)).expect("a connection")
    }

    /// A line of its configuration.
    pub fn setting(&self, name: &str) -> &str {
        let value = self.config.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect("a line of its configuration")
    }

    /// Whether it was not killed.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Takes its folder away, so that every snapshot fails.
    pub fn break_saving(&self) {
        let _ = std::fs::remove_dir_all(self.folder.path());
    }

    /// Freezes the process: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Ends the process with no chance to save anything.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed server again on the same port, with what it has saved.
    pub async fn restart(&mut self) {
        self.restart_with(&[]);
        assert!(self.is_ready().await, "redis-server does not start again; its log:\n{}", self.log());
    }

    /// Starts a killed server again with more configuration, without waiting until it is ready.
    pub fn restart_with(&mut self, config: &[&str]) {
        self.kill();
        self.config.extend(config.iter().map(ToString::to_string));
        self.launch();
    }

    /// Starts a killed server again on the same port, without its data.
    pub async fn restart_empty(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(self.folder.path()).expect("its folder").flatten() {
            let _ = std::fs::remove_dir_all(entry.path());
            let _ = std::fs::remove_file(entry.path());
        }
        self.restart().await;
    }

    /// Waits until it serves; false if it has ended instead.
    pub async fn is_ready(&mut self) -> bool {
        for _ in 0..500 {
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                return false;
            }
            match Self::try_ask::<String>(&self.url(), &["PING"]) {
                Ok(_) => return true,
                // It is up, and wants a password.
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
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("redis-server starts"));
    }

    /// By the shell, since sending a signal takes unsafe code.
    fn signal(&self, name: &str) {
        let id = self.child.as_ref().expect("it runs").id();
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {id}")).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("redis.log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_installed() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
