//! Processes of a contender: started on free loopback ports with their data in a temporary directory, and killed when
//! dropped.

mod diom;
mod far;
mod gateways;
mod proxied;

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures_util::future::join_all;
use oncegate_testkit::fresh;
use oncegate_testkit::redis_cluster::RedisCluster;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{
    client::{Connection, Target},
    contender::{Contender, Installed},
    cores::Role,
    peers, postgres,
    proc::Watched,
    quorum::Quorum,
    way::Surroundings,
};

/// Longest wait for a process to get ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for processes to end, before they are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// App key of the callers.
pub(crate) const APP: &str = "load";

/// Addresses of a gateway.
pub(crate) struct Gateway {
    /// With the credential.
    pub(crate) api: Arc<Target>,
    pub(crate) admin: Arc<Target>,
}

/// Running contender.
pub(crate) struct Running {
    pub(crate) url: String,
    /// Credential of the only app. Servers without apps ignore it.
    pub(crate) credential: String,
    /// URL of the service behind a proxy.
    pub(crate) upstream: Option<String>,
    /// Port of the store, if it is a process.
    pub(crate) port: u16,
    pub(crate) watched: Vec<Watched>,
    pub(crate) gateways: Vec<Gateway>,
    // Dropped in this order: first the processes, then their data.
    children: Vec<Child>,
    cluster: Option<RedisCluster>,
    pub(crate) quorum: Option<Quorum>,
    surroundings: Surroundings,
    dir: TempDir,
}

impl Running {
    /// Starts a contender and waits until it answers.
    pub(crate) async fn start(
        contender: Contender,
        surroundings: Surroundings,
        installed: &Installed,
        parent: &Path,
    ) -> anyhow::Result<Self> {
        let (mut running, listen) = Self::empty(parent)?;
        let Surroundings { way, spare, .. } = surroundings;
        running.surroundings = surroundings;
        running.prepare_tls(way)?;
        let engine = match contender {
            Contender::Noop => {
                running.start_noop(listen).await?;
                return Ok(running);
            }
            Contender::Upstream
            | Contender::ProxyMemory
            | Contender::ProxyRedis
            | Contender::ProxyUnprotected
            | Contender::ProxyNginx => {
                running.start_proxied(contender, listen, installed).await?;
                return Ok(running);
            }
            Contender::Memory
            | Contender::Disk
            | Contender::Redis
            | Contender::Postgres
            | Contender::Etcd
            | Contender::ZooKeeper => running.start_store(contender, installed).await?,
            Contender::Cluster => running.start_cluster(spare).await?,
            Contender::Acknowledged => running.start_cluster(true).await? + "?replicas=1",
            Contender::Library => {
                let nodes = running.start_cluster(spare).await?;
                running.start_library(listen, &nodes).await?;
                return Ok(running);
            }
            Contender::Sets | Contender::PipelinedSets => {
                running.start_redis(installed).await?;
                return Ok(running);
            }
            Contender::Webdis => {
                running.start_webdis(installed, listen).await?;
                return Ok(running);
            }
            Contender::Nginx => {
                running.start_lua(installed, listen).await?;
                return Ok(running);
            }
            Contender::Diom => {
                running.start_diom(installed, listen).await?;
                return Ok(running);
            }
            Contender::Pgbench => {
                running.start_postgres(installed).await?;
                return Ok(running);
            }
            Contender::EtcdPuts => {
                running.start_store(Contender::Etcd, installed).await?;
                return Ok(running);
            }
            Contender::ZooKeeperCreates => {
                running.start_store(Contender::ZooKeeper, installed).await?;
                return Ok(running);
            }
        };
        let tls = running.listener_tls();
        running.start_gateway(installed, listen, &engine, &tls).await?;
        Ok(running)
    }

    /// Returns a directory and an address for processes that are not started yet.
    fn empty(parent: &Path) -> anyhow::Result<(Self, SocketAddr)> {
        let dir =
            tempfile::Builder::new().prefix("oncegate-load-").tempdir_in(parent).context("no temporary directory")?;
        let listen = free_address();
        let running = Self {
            url: format!("http://{listen}"),
            credential: format!("{APP}.{:032x}", rand::random::<u128>()),
            upstream: None,
            port: 0,
            watched: Vec::new(),
            gateways: Vec::new(),
            children: Vec::new(),
            cluster: None,
            quorum: None,
            surroundings: Surroundings::default(),
            dir,
        };
        Ok((running, listen))
    }

    /// Returns the server to load, with the credential.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        self.secured_target(&self.url)
    }

    /// Stops the processes by a signal, so that a program can write its counts at its end.
    pub(crate) async fn stop(mut self) {
        for pid in self.children.iter().filter_map(Child::id) {
            // Fails only if it has ended.
            let _ = Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status().await;
        }
        let ended = join_all(self.children.iter_mut().map(Child::wait));
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            for child in &mut self.children {
                let _ = child.kill().await;
            }
        }
        postgres::clean_up(self.dir());
    }

    async fn start_noop(&mut self, listen: SocketAddr) -> anyhow::Result<()> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["noop", "--listen", &listen.to_string()]);
        self.spawn("gateway", command)?;
        self.wait_until("gateway", async || TcpStream::connect(listen).await.is_ok()).await
    }

    /// Starts three primaries, without or with a replica of each, and returns the engine's URL.
    async fn start_cluster(&mut self, replicas: bool) -> anyhow::Result<String> {
        let limit = self.surroundings.cores.limit(Role::Store)?;
        let cluster = RedisCluster::start(3, usize::from(replicas)).await.context("redis-server is not installed")?;
        drop(limit);
        self.watched.extend(cluster.nodes.iter().map(|node| Watched::server("store", node.id())));
        let url = cluster.url();
        self.cluster = Some(cluster);
        Ok(url)
    }

    /// Kills a primary. A replica takes over.
    pub(crate) fn kill_a_primary(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.nodes[0].kill();
        }
    }

    async fn start_library(&mut self, listen: SocketAddr, engine: &str) -> anyhow::Result<()> {
        let nodes = engine.strip_prefix("redis+cluster://").context("no cluster")?;
        let mut command = Command::new(env::current_exe()?);
        command.args(["library", "--listen", &listen.to_string()]);
        command
            .args(["--nodes", &nodes.split(',').map(|node| format!("redis://{node}")).collect::<Vec<_>>().join(",")]);
        self.spawn("gateway", command)?;
        self.wait_until("gateway", async || TcpStream::connect(listen).await.is_ok()).await
    }

    async fn start_webdis(&mut self, installed: &Installed, listen: SocketAddr) -> anyhow::Result<()> {
        let program = installed.webdis.as_ref().context("webdis is not installed")?;
        let redis = self.start_redis(installed).await?;
        let mut command = Command::new(program);
        command.arg(peers::configure_webdis(self.dir(), listen.port(), redis.port())?);
        self.spawn("gateway", command)?;
        self.wait_until("gateway", async || TcpStream::connect(listen).await.is_ok()).await
    }

    async fn start_lua(&mut self, installed: &Installed, listen: SocketAddr) -> anyhow::Result<()> {
        let nginx = installed.nginx.as_ref().zip(installed.nginx_modules.as_ref());
        let (program, modules) = nginx.context("nginx with its Lua module is not installed")?;
        let redis = self.start_redis(installed).await?;
        let configure =
            |dir: &Path, name: &str| peers::configure_nginx(dir, name, modules, listen.port(), redis.port());
        self.start_nginx(program, configure).await
    }

    /// Starts workers, each with a configuration for its name.
    async fn start_nginx(
        &mut self,
        program: &Path,
        configure: impl Fn(&Path, &str) -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<()> {
        for worker in 0..peers::WORKERS {
            let name = format!("nginx-{worker}");
            let mut command = Command::new(program);
            command.arg("-c").arg(configure(self.dir(), &name)?);
            command.arg("-p").arg(self.dir());
            self.spawn("gateway", command)?;
            // Written once it listens. The port alone would be answered by the previous worker.
            let listens = self.dir().join(format!("{name}.pid"));
            self.wait_until("gateway", async || listens.is_file()).await?;
        }
        Ok(())
    }

    async fn start_redis(&mut self, installed: &Installed) -> anyhow::Result<SocketAddr> {
        let program = installed.redis_server.as_ref().context("redis-server is not installed")?;
        let listen = free_address();
        let mut command = Command::new(program);
        // No persistence: the comparison is about the path to the store, not its disk.
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        self.listen_redis(&mut command, listen.port());
        self.spawn("store", command)?;
        self.wait_until("store", async || TcpStream::connect(listen).await.is_ok()).await?;
        self.port = listen.port();
        Ok(listen)
    }

    /// Starts PostgreSQL with its defaults: every commit is on the disk.
    async fn start_postgres(&mut self, installed: &Installed) -> anyhow::Result<()> {
        let programs = installed.postgres.as_ref().context("PostgreSQL is not installed")?;
        let port = free_address().port();
        let server = programs.prepare(self.dir(), port).await?;
        self.spawn("store", server)?;
        self.wait_until("store", async || programs.answers(port).await).await?;
        self.port = port;
        Ok(())
    }

    /// Creates the tables of a gateway.
    pub(crate) async fn migrate(&self, installed: &Installed) -> anyhow::Result<()> {
        let gateway = installed.gateway.as_ref().context("the gateway is not built")?;
        let migrated = Command::new(gateway).args(["migrate", "--engine", &postgres_url(self.port)]).output().await;
        let migrated = migrated.context("the gateway cannot be started")?;
        if !migrated.status.success() {
            bail!("the tables cannot be created: {}", String::from_utf8_lossy(&migrated.stderr).trim());
        }
        Ok(())
    }

    async fn start_gateway(
        &mut self,
        installed: &Installed,
        listen: SocketAddr,
        engine: &str,
        settings: &str,
    ) -> anyhow::Result<()> {
        let program = installed.gateway.as_ref().context("the gateway is not built")?;
        let admin = free_address();
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(self.configure_gateway(settings)?).args(["--engine", engine]);
        command.args(["--listen", &listen.to_string(), "--admin-listen", &admin.to_string()]);
        // Settings of the environment must not affect the measurement.
        env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with("ONCEGATE_"))
            .for_each(|(name, _)| _ = command.env_remove(name));
        let name = match self.gateways.len() {
            0 => "gateway".to_owned(),
            others => format!("gateway-{}", others + 1),
        };
        command.env("ONCEGATE_SERVER__DATA_DIR", self.dir().join(format!("data-{name}")));
        self.spawn(&name, command)?;
        let admin = Arc::new(Target::parse(&format!("http://{admin}"), None, false)?);
        self.wait_until(&name, async || {
            Connection::new(Arc::clone(&admin)).get("/readyz").await.is_ok_and(|answer| answer.status == 200)
        })
        .await?;
        let scheme = if self.surroundings.way.secures_callers() { "https" } else { "http" };
        let api = Arc::new(self.secured_target(&format!("{scheme}://{listen}"))?);
        self.gateways.push(Gateway { api, admin });
        Ok(())
    }

    /// Writes a configuration with these settings, and defaults for all others. It has an app with a secret, so that
    /// the gateway does all its work.
    fn configure_gateway(&self, settings: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir().join("oncegate.toml");
        let (_, secret) = self.credential.rsplit_once('.').context("a credential has a dot")?;
        let hash = Sha256::digest(secret).iter().fold(String::new(), |hash, byte| hash + &format!("{byte:02x}"));
        fs::write(&path, format!("[apps.{APP}]\nsecrets = [\"sha256:{hash}\"]\n{settings}"))
            .context("cannot write to the temporary directory")?;
        Ok(path)
    }

    /// Starts a child in the directory, with its output in a file there.
    fn spawn(&mut self, name: &str, mut command: Command) -> anyhow::Result<()> {
        let log = fs::File::create(self.log(name)).context("cannot write to the temporary directory")?;
        let limit = self.surroundings.cores.limit(Role::of_child(name))?;
        let child = command
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        drop(limit);
        let pid = child.id().context("it ended at once")?;
        self.watched.push(Watched::server(name, pid));
        self.children.push(child);
        Ok(())
    }

    /// Waits until the child started last is ready.
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
                bail!("the {name} {what}; the end of its output:\n  {tail}");
            }
            sleep(Duration::from_millis(25)).await;
        }
    }

    /// Returns the process that receives the requests.
    pub(crate) fn gateway(&self) -> anyhow::Result<&Watched> {
        self.watched.iter().find(|it| it.name == "gateway").context("no gateway was started")
    }

    /// Returns the process of the store, if it is not the gateway itself.
    pub(crate) fn store(&self) -> anyhow::Result<&Watched> {
        self.watched.iter().find(|it| it.name == "store").context("no store was started")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir().join(format!("{name}.log"))
    }
}

/// Returns a free address that no outgoing connection takes before the child listens on it.
fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, fresh::port()).into()
}

fn postgres_url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}
