//! A gateway process for one test: the built binary, on ports of its choice, with its log kept for the test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::wait::{until, wait_until_frozen};
use crate::{folder, strace};

/// Longest wait for a line of the log.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// Lines of the log that a failed test prints.
const LOG_SHOWN: usize = 100;

/// Options of a gateway to start.
#[derive(Clone)]
pub struct Setup {
    program: PathBuf,
    engine: Option<String>,
    listen: String,
    config: String,
    environment: Vec<(String, String)>,
    data_dir: Option<PathBuf>,
    trace: Option<PathBuf>,
    reads_log: bool,
    is_patient: bool,
}

/// A running gateway; killed on drop.
pub struct Gateway {
    child: Child,
    api: SocketAddr,
    admin: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    data_dir: PathBuf,
    folder: tempfile::TempDir,
}

impl Setup {
    /// Runs this binary on this engine, with the defaults for everything else. Without an engine, the configuration names the
    /// engines.
    pub fn new(program: impl Into<PathBuf>, engine: Option<String>) -> Self {
        let (program, listen) = (program.into(), "127.0.0.1:0".into());
        let (config, environment) = (String::new(), Vec::new());
        Self {
            program,
            engine,
            listen,
            config,
            environment,
            data_dir: None,
            trace: None,
            reads_log: true,
            is_patient: false,
        }
    }

    /// Sets the address of its API.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = address.into();
        self
    }

    /// Sets its data folder, which is kept after it.
    #[must_use]
    pub fn data_dir(mut self, folder: &Path) -> Self {
        self.data_dir = Some(folder.to_owned());
        self
    }

    /// Appends to its configuration file.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self
    }

    /// Sets a variable of its environment, such as `ONCEGATE_LIMITS__CONNECTIONS`.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.into(), value.to_string()));
        self
    }

    /// Lets its calls wait 20 seconds for the store, which may be slow on a busy machine. A deadline that the test sets itself comes
    /// first.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// Traces its system calls into this file; see `strace`.
    #[must_use]
    pub fn traced(mut self, file: &Path) -> Self {
        self.trace = Some(file.to_owned());
        self
    }

    /// Stops reading its log once it is in service. The pipe stays open.
    #[must_use]
    pub fn log_unread(mut self) -> Self {
        self.reads_log = false;
        self
    }

    /// Starts it and waits until it is in service.
    pub async fn start(&self) -> Gateway {
        self.try_start().await.unwrap_or_else(|(status, log)| panic!("the gateway ended with {status}:\n{log}"))
    }

    /// Starts it. Returns its exit status and its log if it exits.
    pub async fn try_start(&self) -> Result<Gateway, (ExitStatus, String)> {
        let folder = folder::temporary();
        let config = folder.path().join("oncegate.toml");
        std::fs::write(&config, &self.config).expect("the configuration is written");
        let mut command = match &self.trace {
            Some(file) => strace::command(file, &self.program),
            None => Command::new(&self.program),
        };
        command.args(["serve", "--listen", &self.listen, "--admin-listen", "127.0.0.1:0"]);
        if let Some(engine) = &self.engine {
            command.args(["--engine", engine]);
        }
        command.arg("--config").arg(&config);
        let data_dir = self.data_dir.clone().unwrap_or_else(|| folder.path().to_owned());
        command.arg("--data-dir").arg(&data_dir);
        command.env("ONCEGATE_LOG__FORMAT", "json");
        if self.is_patient && !self.config.contains("deadline") {
            command.env("ONCEGATE_DEFAULTS__DEADLINE", "20s");
        }
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).current_dir(folder.path());
        let mut child = command.spawn().expect("the gateway starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let in_service = follow(&mut child, log.clone(), self.reads_log);
        match tokio::time::timeout(Duration::from_secs(30), in_service).await.expect("the gateway starts in time") {
            Ok((api, admin)) => {
                let gateway = Gateway { child, api, admin, log, data_dir, folder };
                if self.reads_log && self.engine.iter().chain([&self.config]).any(|text| text.contains("postgres:")) {
                    gateway.store_was_tried().await;
                }
                Ok(gateway)
            }
            Err(_closed) => {
                let status = child.wait().expect("it has ended");
                let log = log.lock().expect("the log").join("\n");
                Err((status, log))
            }
        }
    }
}

type InService = tokio::sync::oneshot::Receiver<(SocketAddr, SocketAddr)>;

/// Reads the gateway's log, and sends its addresses once the log has them. Reads to the end, or up to that line.
fn follow(child: &mut Child, log: Arc<Mutex<Vec<String>>>, to_its_end: bool) -> InService {
    let (sender, in_service) = tokio::sync::oneshot::channel();
    let mut lines = BufReader::new(child.stderr.take().expect("its log is piped")).lines();
    std::thread::spawn(move || {
        let mut sender = Some(sender);
        for line in lines.by_ref().map_while(Result::ok) {
            let addresses = addresses(&line);
            log.lock().expect("the log").push(line);
            if let Some(addresses) = addresses
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(addresses);
                if !to_its_end {
                    break;
                }
            }
        }
        drop(log);
        if !to_its_end {
            // Keeps the pipe open for as long as the tests run.
            std::mem::forget(lines);
        }
    });
    in_service
}

fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let address = |key: &str| line.get(key)?.as_str()?.parse().ok();
    Some((address("listen")?, address("admin_listen")?))
}

impl Gateway {
    /// Returns the address of the API.
    pub fn api(&self) -> SocketAddr {
        self.api
    }

    /// Returns the address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns a client of the API.
    pub fn client(&self) -> Client {
        Client::new(self.api)
    }

    /// Returns a client of the admin API.
    pub fn admin_client(&self) -> Client {
        Client::new(self.admin)
    }

    /// Returns its data folder.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the path of its configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("oncegate.toml")
    }

    /// Waits until it has connected to its store, or could not. On a busy machine the migration of a new PostgreSQL database takes
    /// longer than a call may.
    async fn store_was_tried(&self) {
        let tries = ["Connected to the store", "No connection to the store"];
        let is_tried = async || tries.iter().any(|text| self.log().contains(text));
        until("the store was tried", LOG_TIMEOUT, is_tried).await;
    }

    /// Waits until its log has `text` this many times. Lines are written a moment after the event.
    pub async fn logged(&self, text: &str, times: usize) {
        let is_logged = async || self.log().matches(text).count() >= times;
        until(&format!("{text:?} is logged {times} times"), LOG_TIMEOUT, is_logged).await;
        assert_eq!(self.log().matches(text).count(), times, "{text:?} in the log:\n{}", self.log());
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").join("\n")
    }

    /// Replaces its configuration file, which it reads at SIGHUP.
    pub fn configure(&self, toml: &str) {
        std::fs::write(self.config_file(), toml).expect("the configuration is written");
    }

    /// Returns the ID of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a field of the kernel's account of the process, in KiB: `VmRSS` is its memory, `VmHWM` the most that it had.
    ///
    /// # Panics
    /// The process has ended, or has no such field.
    pub fn kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its account");
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("the field");
        value.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Sends a signal, such as `TERM`. After `STOP` it is frozen.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill runs").success());
        if name == "STOP" {
            wait_until_frozen(self.pid());
        }
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it has ended");
    }

    /// Waits until it has exited.
    pub async fn ended(&mut self) -> ExitStatus {
        for _ in 0..3000 {
            // The reader holds the log until its last line.
            if let Some(status) = self.child.try_wait().expect("its status")
                && Arc::strong_count(&self.log) == 1
            {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the gateway does not end; its log:\n{}", self.log());
    }
}

impl Drop for Gateway {
    /// Kills it. Prints the end of its log if the test fails, which may not happen again soon.
    #[expect(clippy::print_stderr, reason = "it belongs to the output of the failed test")]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Ok(log) = self.log.lock()
        {
            let shown = &log[log.len().saturating_sub(LOG_SHOWN)..];
            eprintln!("the log of the gateway at {}:\n{}", self.api, shown.join("\n"));
        }
    }
}
