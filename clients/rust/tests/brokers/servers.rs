//! Processes of the tests, on free ports.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

/// Longer than anything takes on a busy machine, and than a run goes without a delivery.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A process and its child processes, killed when it is dropped.
pub(crate) struct Server {
    command: Command,
    port: u16,
    log: PathBuf,
    process: Child,
}

impl Server {
    /// Starts a program, and waits until its port answers.
    pub(crate) fn start(mut command: Command, port: u16, log: &Path) -> Self {
        let out = fs::File::options().append(true).create(true).open(log).expect("a log");
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("a log")).stderr(out).process_group(0);
        let process = spawn(&mut command);
        let mut server = Self { command, port, log: log.to_owned(), process };
        server.wait_until_it_listens();
        server
    }

    /// Kills it with -9, and starts it again with the same port and files.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = spawn(&mut self.command);
        self.wait_until_it_listens();
    }

    fn kill(&mut self) {
        drop(Command::new("kill").args(["-9", "--", &format!("-{}", self.process.id())]).status());
        drop(self.process.wait());
    }

    fn wait_until_it_listens(&mut self) {
        let ends = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                Instant::now() < ends && self.process.try_wait().expect("a status").is_none(),
                "{:?} does not listen: {}",
                self.command,
                fs::read_to_string(&self.log).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// App and secret of the gateway.
pub(crate) const CREDENTIAL: &str = "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz";
/// SHA-256 of that secret.
const DIGEST: &str = "5ced3937b8fc26fe9c03e1ffaebf450e3ae109e5dedd8a55ed9e0e33a8141c0d";

/// An empty folder, removed when it is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("oncegate-rust-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Starts a gateway whose claims survive a kill, and returns its URL. `on_lease_end` is `unknown` or `release`.
pub(crate) fn gateway(folder: &Path, on_lease_end: &str) -> (Server, String) {
    let program = env::var("ONCEGATE_BIN").expect("ONCEGATE_BIN: run it with clients/rust/brokers");
    let config = folder.join("oncegate.toml");
    let operation = format!("[apps.shop.operations.\"order.submit\"]\non_lease_end = \"{on_lease_end}\"");
    fs::write(&config, format!("[apps.shop]\nsecrets = [\"sha256:{DIGEST}\"]\n{operation}\n")).expect("a file");
    let port = free_port();
    let mut command = Command::new(program);
    let claims = format!("disk:{}", folder.join("claims").display());
    command.args(["serve", "--engine", &claims, "--config"]).arg(config).arg("--data-dir").arg(folder);
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--admin-listen", &format!("127.0.0.1:{}", free_port())]);
    (Server::start(command, port, &folder.join("gateway.log")), format!("http://127.0.0.1:{port}"))
}
