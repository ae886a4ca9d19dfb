//! The processes that are compared: started on free loopback ports with their data in a directory of their own, and killed
//! when dropped.

use std::{
    env, fmt, fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::sleep,
};

use crate::{
    client::{Connection, Target},
    postgres::Programs,
    proc::Watched,
};

/// A process that is not ready by then never will be.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    Noop,
    Memory,
    Disk,
    Redis,
    Postgres,
    /// No gateway at all: single-row inserts by as many clients, the same durability.
    Pgbench,
}

impl Contender {
    pub(crate) const ALL: [Self; 6] =
        [Self::Noop, Self::Memory, Self::Disk, Self::Redis, Self::Postgres, Self::Pgbench];
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Noop => "no-op handler",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Pgbench => "pgbench",
        })
    }
}

/// The executables, as far as they are installed.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) redis_server: Option<PathBuf>,
    pub(crate) postgres: Option<Programs>,
}

impl Installed {
    /// Without a path, the gateway is looked for beside this executable, where a build puts both.
    pub(crate) fn find(gateway: Option<&Path>) -> anyhow::Result<Self> {
        let gateway = match gateway {
            Some(path) => {
                Some(path.canonicalize().with_context(|| format!("there is no gateway at {}", path.display()))?)
            }
            None => Some(env::current_exe()?.with_file_name("oncegate")).filter(|path| path.is_file()),
        };
        let redis_server = ["redis-server", "valkey-server"].into_iter().find_map(find_program);
        Ok(Self { gateway, redis_server, postgres: Programs::find() })
    }
}

/// A contender that answers.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) url: String,
    /// Where the store listens, if it is the contender.
    pub(crate) port: u16,
    pub(crate) watched: Vec<Watched>,
    // Dropped in this order: first the processes, then what they wrote to.
    children: Vec<Child>,
    dir: TempDir,
}

impl Running {
    /// Starts it and waits until it answers.
    pub(crate) async fn start(contender: Contender, installed: &Installed, parent: &Path) -> anyhow::Result<Self> {
        let dir =
            tempfile::Builder::new().prefix("oncegate-load-").tempdir_in(parent).context("no temporary directory")?;
        let listen = free_address()?;
        let url = format!("http://{listen}");
        let mut running = Self { url, port: 0, watched: Vec::new(), children: Vec::new(), dir };
        let engine = match contender {
            Contender::Noop => {
                running.start_noop(listen).await?;
                return Ok(running);
            }
            Contender::Memory => "memory:".to_owned(),
            Contender::Disk => format!("disk:{}", running.dir().join("claims").display()),
            Contender::Redis => running.start_redis(installed).await?,
            Contender::Postgres => {
                running.start_postgres(installed).await?;
                running.postgres_url()
            }
            Contender::Pgbench => {
                running.start_postgres(installed).await?;
                return Ok(running);
            }
        };
        running.start_gateway(installed, listen, &engine).await?;
        Ok(running)
    }

    pub(crate) async fn stop(mut self) {
        for child in &mut self.children {
            // Fails only if it has ended already.
            let _ = child.kill().await;
        }
    }

    async fn start_noop(&mut self, listen: SocketAddr) -> anyhow::Result<()> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["noop", "--listen", &listen.to_string()]);
        self.spawn("gateway", command)?;
        self.wait_until("gateway", async || TcpStream::connect(listen).await.is_ok()).await
    }

    async fn start_redis(&mut self, installed: &Installed) -> anyhow::Result<String> {
        let program = installed.redis_server.as_ref().context("redis-server is not installed")?;
        let listen = free_address()?;
        let mut command = Command::new(program);
        // Nothing is persisted: what is compared here is the way to the store and back, not the store's disk.
        command.args(["--bind", "127.0.0.1", "--port", &listen.port().to_string(), "--save", "", "--appendonly", "no"]);
        self.spawn("store", command)?;
        self.wait_until("store", async || TcpStream::connect(listen).await.is_ok()).await?;
        Ok(format!("redis://{listen}"))
    }

    /// As it comes: everything that is acknowledged is on the disk.
    async fn start_postgres(&mut self, installed: &Installed) -> anyhow::Result<()> {
        let programs = installed.postgres.as_ref().context("PostgreSQL is not installed")?;
        let port = free_address()?.port();
        let server = programs.prepare(self.dir(), port).await?;
        self.spawn("store", server)?;
        // It is a family of processes, whose CPU time cannot be read from the first of them.
        self.watched.pop();
        self.wait_until("store", async || programs.answers(port).await).await?;
        self.port = port;
        Ok(())
    }

    fn postgres_url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Makes the tables that a gateway would use.
    pub(crate) async fn migrate(&self, installed: &Installed) -> anyhow::Result<()> {
        let gateway = installed.gateway.as_ref().context("the gateway is not built")?;
        let migrated = Command::new(gateway).args(["migrate", "--engine", &self.postgres_url()]).output().await;
        let migrated = migrated.context("the gateway cannot be started")?;
        if !migrated.status.success() {
            bail!("the tables cannot be made: {}", String::from_utf8_lossy(&migrated.stderr).trim());
        }
        Ok(())
    }

    async fn start_gateway(&mut self, installed: &Installed, listen: SocketAddr, engine: &str) -> anyhow::Result<()> {
        let program = installed.gateway.as_ref().context("the gateway is not built")?;
        let admin = free_address()?;
        let mut command = Command::new(program);
        command.args(["serve", "--engine", engine]);
        command.args(["--listen", &listen.to_string(), "--admin-listen", &admin.to_string()]);
        // Settings meant for another gateway must not change what is measured here.
        env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with("ONCEGATE_"))
            .for_each(|(name, _)| _ = command.env_remove(name));
        command.env("ONCEGATE_SERVER__DATA_DIR", self.dir().join("data"));
        self.spawn("gateway", command)?;
        let target = Arc::new(Target::parse(&format!("http://{admin}"), None, false)?);
        self.wait_until("gateway", async || {
            Connection::new(Arc::clone(&target)).get("/readyz").await.is_ok_and(|answer| answer.status == 200)
        })
        .await
    }

    /// Starts a child in the directory; what it says goes to a file there.
    fn spawn(&mut self, name: &str, mut command: Command) -> anyhow::Result<()> {
        let log = fs::File::create(self.log(name)).context("cannot write to the temporary directory")?;
        let child = command
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let pid = child.id().context("it ended at once")?;
        self.watched.push(Watched { name: name.to_owned(), pid });
        self.children.push(child);
        Ok(())
    }

    /// Waits for the child started last.
    async fn wait_until(&mut self, name: &str, ready: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let ended = self.children.last_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_none() && ready().await {
                return Ok(());
            }
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log(name)).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(10)..].join("\n  ");
                let what = ended.map_or("is not ready".to_owned(), |status| format!("ended with {status}"));
                bail!("the {name} {what}; the end of what it said:\n  {tail}");
            }
            sleep(Duration::from_millis(25)).await;
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir().join(format!("{name}.log"))
    }
}

/// Free now. Somebody else may take it before the child does; then the child says so and the comparison ends.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no free port")?.local_addr()?)
}

fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}
