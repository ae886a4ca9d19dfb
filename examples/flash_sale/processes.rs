//! Servers of the demo: one Redis with durable writes, and gateways. Each runs on a free port of this machine with its
//! own directory, and is killed when dropped.

use std::{
    env, fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::http::Http;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Paths of the executables.
pub(crate) struct Programs {
    gateway: PathBuf,
    redis: PathBuf,
}

impl Programs {
    pub(crate) fn find() -> anyhow::Result<Self> {
        // target/<profile>/examples/flash_sale: the gateway is one directory up.
        let example = env::current_exe()?;
        let profile = example.parent().and_then(Path::parent).context("this example runs from a build directory")?;
        let gateway = profile.join("oncegate");
        if !gateway.is_file() {
            let release = if profile.ends_with("release") { " --release" } else { "" };
            bail!("The gateway is not built: `cargo build{release}`, then again.");
        }
        let search = env::var_os("PATH").unwrap_or_default();
        let redis = ["redis-server", "valkey-server"]
            .iter()
            .find_map(|name| env::split_paths(&search).map(|dir| dir.join(name)).find(|path| path.is_file()));
        let redis = redis.context(
            "The demo needs redis-server 7 or valkey-server: install one of them (apt-get install redis-server).",
        )?;
        Ok(Self { gateway, redis })
    }
}

pub(crate) struct RedisServer {
    address: SocketAddr,
    _process: Process,
}

impl RedisServer {
    pub(crate) async fn start(programs: &Programs) -> anyhow::Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(&programs.redis);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
        // A claim is confirmed only after it is on the disk.
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        let mut process = Process::start("redis", command)?;
        process.wait_until(async || TcpStream::connect(address).is_ok()).await?;
        Ok(Self { address, _process: process })
    }
}

pub(crate) struct GatewayServer {
    pub(crate) url: String,
    api: SocketAddr,
    process: Process,
}

impl GatewayServer {
    pub(crate) async fn start(programs: &Programs, redis: &RedisServer) -> anyhow::Result<Self> {
        let api = free_address()?;
        Ok(Self { url: format!("http://{api}"), api, process: serve(programs, redis, api).await? })
    }

    /// Kills the process without a shutdown.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same address.
    pub(crate) async fn start_again(&mut self, programs: &Programs, redis: &RedisServer) -> anyhow::Result<()> {
        self.process = serve(programs, redis, self.api).await?;
        Ok(())
    }
}

async fn serve(programs: &Programs, redis: &RedisServer, api: SocketAddr) -> anyhow::Result<Process> {
    let admin = free_address()?;
    let mut command = Command::new(&programs.gateway);
    command.args(["serve", "--listen", &api.to_string(), "--admin-listen", &admin.to_string()]);
    command.args(["--engine", &format!("redis://{}", redis.address)]);
    command.env("ONCEGATE_SERVER__DATA_DIR", "data");
    let mut process = Process::start("gateway", command)?;
    let (http, ready) = (Http::new(), format!("http://{admin}/readyz"));
    process.wait_until(async || matches!(http.get(&ready, Duration::from_secs(1)).await, Ok((200, _)))).await?;
    Ok(process)
}

/// Child process in its own directory, with its output in a file there.
struct Process {
    name: &'static str,
    child: Child,
    dir: TempDir,
}

impl Process {
    fn start(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let dir = TempDir::with_prefix("flash-sale-")?;
        let log = fs::File::create(dir.path().join("log"))?;
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start the {name}"))?;
        Ok(Self { name, child, dir })
    }

    async fn wait_until(&mut self, ready: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_none() && ready().await {
                return Ok(());
            }
            if ended.is_some() || began.elapsed() > START_TIMEOUT {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                bail!("the {} did not start:\n{log}", self.name);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn kill(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a free port. If another program takes it first, the child fails and the demo ends.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no free port")?.local_addr()?)
}
