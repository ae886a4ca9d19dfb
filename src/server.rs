//! The composition root: opens the engines, wires all floors together, and lives through start, drain and stop.

mod apps;
mod catalog;
mod cores;
mod data_dir;
mod engines;
mod live;
mod operators;
#[cfg(feature = "postgres")]
mod registry;
mod signals;
mod tls;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::catalog::Around;
use self::cores::Cores;
use self::data_dir::DataDir;
use self::live::Live;
use self::signals::{Asked, Signals};
use self::tls::Certificates;
use self::watch::Watch;
use crate::admin::audit::Audit;
use crate::admin::auth::Tokens;
use crate::admin::health::{Lifecycle, Stage};
use crate::admin::{self, Admin};
use crate::config::{Config, Fingerprint, Problems};
use crate::domain::attempt::{Entropy, Issuer, SystemEntropy};
use crate::domain::clock::{Clock, SystemClock};
use crate::gateway::Gateway;
use crate::http::places::Places;
use crate::http::{Api, Front, listener};
use crate::resilience::degrade::Keeper;
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::log::LogMetrics;
use crate::telemetry::metrics::tenants::AuthenticationMetrics;
use crate::telemetry::metrics::traces::TraceMetrics;
use crate::telemetry::metrics::{HttpMetrics, Metrics};
use crate::telemetry::traces::Traces;
use crate::tenants::auth_throttle::AuthThrottle;

/// How often the engines are asked how they are, so that `engine_up` is right when nobody calls.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Interval between two summaries of lines that the log left out. Its limits start anew then.
const LOG_SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// Where a configuration comes from, to be read again.
pub struct Source {
    /// What was seen before it was first read.
    pub known: Fingerprint,
    /// What its files hold now.
    pub look: Box<dyn Fn() -> Fingerprint + Send + Sync>,
    /// Reads it.
    pub load: Box<dyn Fn() -> Result<Config, Problems> + Send + Sync>,
}

/// Runs a gateway until it is told to stop by SIGTERM or SIGINT, and has answered what was in flight. The configuration
/// is read again at every SIGHUP, and whenever its files have changed.
///
/// # Errors
/// What kept it from starting, or that a second signal cut the drain short.
pub async fn run(config: Config, source: Source, telemetry: Telemetry) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut watch = Watch::new(source.known, source.look);
    let api = bind(config.server.listen, "server.listen")?;
    let admin = bind(config.server.admin_listen, "server.admin_listen")?;
    let server = Server::start(&config, api, admin, telemetry).await?;
    let name = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Reload => watch.catch_up().await,
                Asked::Stop(name) => break name,
            },
            () = watch.changed() => {}
        }
        server.reload((source.load)()).await;
    };
    tracing::info!(signal = name, "draining");
    tokio::select! {
        () = server.stop(config.server.drain_delay, config.server.drain_timeout) => {
            tracing::info!("stopped");
            Ok(())
        }
        name = signals.stop() => {
            tracing::warn!(signal = name, "stopped at once by a second signal");
            Err(anyhow::anyhow!("stopped by a second {name} before everything was answered"))
        }
    }
}

fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    listener::bind(address).with_context(|| format!("cannot listen on {address}; set {key} to another address"))
}

/// A gateway in service.
pub struct Server {
    gateway: Arc<Gateway>,
    data_dir: DataDir,
    live: Live,
    certificates: Certificates,
    lifecycle: Arc<Lifecycle>,
    stop_api: CancellationToken,
    stop_admin: CancellationToken,
    api_connections: TaskTracker,
    traces: Traces,
    /// Last: what the others still do is done there.
    _cores: Cores,
}

impl Server {
    /// Puts a gateway into service on these listeners.
    ///
    /// # Errors
    /// An engine that cannot be opened. A store that is out is no error.
    pub async fn start(
        config: &Config,
        api: TcpListener,
        admin: TcpListener,
        telemetry: Telemetry,
    ) -> anyhow::Result<Self> {
        let Telemetry { log, traces } = telemetry;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let metrics = Arc::new(Metrics::install());
        let lifecycle = Arc::new(Lifecycle::starting());
        let (stop_api, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let certificates = Certificates::open(&config.server, &clock, stop_admin.clone())?;
        let registry = Arc::new(apps::registry(config)?);
        let data_dir = DataDir::open(config, &clock).await?;
        let keeper = data_dir.journal.clone();
        let cores = Cores::start()?;
        let engines = engines::open(config, &clock, &entropy, &keeper, cores.handles()).await?;
        data_dir.tell_of_chains_left();
        let issuer = Issuer::new(clock.clone(), entropy.clone());
        let gateway = Arc::new(Gateway::new(engines, issuer, clock.clone(), &config.limits));
        gateway.know(&registry.apps(), config.limits.metric_operations);
        let tokens = Arc::new(Tokens::default());
        tokens.replace(operators::of_config(config)?);
        let live = Live::new(config, registry.clone(), gateway.clone(), tokens.clone(), log.clone());
        let apps = catalog::start(Around {
            config: live.config(),
            reread: live.reread(),
            registry: registry.clone(),
            gateway: gateway.clone(),
            lifecycle: lifecycle.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            stop: stop_admin.clone(),
        })?;

        let (api_address, admin_address) = (api.local_addr()?, admin.local_addr()?);
        let open = registry.is_open();
        let api_connections = TaskTracker::new();
        let admin_router = admin::router(Arc::new(Admin {
            gateway: gateway.clone(),
            registry: registry.clone(),
            metrics: metrics.clone(),
            lifecycle: lifecycle.clone(),
            entropy: entropy.clone(),
            clock: clock.clone(),
            loopback_only: admin_address.ip().is_loopback(),
            limits: config.limits.clone(),
            tokens: tokens.clone(),
            apps,
            overlaps: keeper.clone(),
            spool: keeper.clone(),
            audit: Arc::new(Audit::new(&config.server.data_dir, clock.clone(), entropy.clone())),
        }));
        let front = Front::new(Arc::new(Api {
            gateway: gateway.clone(),
            registry: registry.clone(),
            throttle: AuthThrottle::new(clock.clone(), "callers sent no valid credential"),
            limits: config.limits.clone(),
            loopback_only: open && !config.server.allow_open,
            places: Places::new(config.limits.requests_in_flight),
            clock,
            entropy,
            metrics: HttpMetrics::new(),
            authentication: AuthenticationMetrics::new(),
            access: log.access(),
            traces: traces.clone(),
        }));
        traces.start();
        let (limits, tls, stop) = (config.limits.clone(), certificates.admin(), stop_admin.clone());
        let (here, nobody_waits) = (vec![Handle::current()], TaskTracker::new());
        tokio::spawn(listener::accept(admin, tls, admin_router, limits, here, stop, nobody_waits));
        let (limits, tls, stop) = (config.limits.clone(), certificates.api(), stop_api.clone());
        let (everywhere, connections) = (cores.handles().to_vec(), api_connections.clone());
        tokio::spawn(listener::accept(api, tls, front, limits, everywhere, stop, connections));
        tokio::spawn(keep_up(
            gateway.clone(),
            keeper.clone(),
            metrics,
            Telemetry { log, traces: traces.clone() },
            stop_admin.clone(),
        ));
        let state = if registry.is_loading() {
            "listening; in service once the registry of apps has answered"
        } else {
            lifecycle.enter(Stage::Ready);
            "in service"
        };
        announce(state, config, api_address, admin_address, open);
        Ok(Self {
            gateway,
            data_dir,
            live,
            certificates,
            lifecycle,
            stop_api,
            stop_admin,
            api_connections,
            traces,
            _cores: cores,
        })
    }

    /// Takes over what may change while in service, each part where it can be used: certificates, and all that is live.
    async fn reload(&self, read: Result<Config, Problems>) {
        if let Ok(config) = &read {
            self.certificates.reload(&config.server);
        }
        self.live.reload(read, &self.data_dir).await;
    }

    /// Takes the gateway out of service: says so, waits for the balancers to hear it, stops accepting, lets what is in
    /// flight be answered for at most `patience`, and lets go of the engines.
    pub async fn stop(self, drain_delay: Duration, patience: Duration) {
        self.lifecycle.enter(Stage::Draining);
        tokio::time::sleep(drain_delay).await;
        self.stop_api.cancel();
        self.api_connections.close();
        if tokio::time::timeout(patience, self.api_connections.wait()).await.is_err() {
            let connections = self.api_connections.len();
            tracing::warn!(connections, "some connections were not answered in time");
        }
        self.gateway.close().await;
        self.data_dir.journal.close().await;
        self.traces.close().await;
        self.stop_admin.cancel();
    }
}

/// Logs the line of the start: where the gateway listens, and where it keeps what.
fn announce(state: &str, config: &Config, api: SocketAddr, admin: SocketAddr, open: bool) {
    let engines: Vec<_> = config.redacted_engines().iter().map(|(name, url)| format!("{name}={url}")).collect();
    let folder = &config.server.data_dir;
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %api,
        admin_listen = %admin,
        open,
        engines = engines.join(" "),
        data_dir = %folder.display(),
        "{state}"
    );
}

/// Repeated work while in service.
async fn keep_up(
    gateway: Arc<Gateway>,
    keeper: Arc<Keeper>,
    metrics: Arc<Metrics>,
    telemetry: Telemetry,
    stop: CancellationToken,
) {
    let mut upkeep = tokio::time::interval(Duration::from_secs(1));
    let mut summary = tokio::time::interval(LOG_SUMMARY_EVERY);
    let mut probe = tokio::time::interval(PROBE_EVERY);
    let Telemetry { log, traces } = telemetry;
    let log_metrics = LogMetrics::new();
    let trace_metrics = traces.counts().map(|_| TraceMetrics::new());
    loop {
        tokio::select! {
            _ = upkeep.tick() => {
                keeper.measure();
                log_metrics.set_dropped(log.dropped());
                if let (Some(metrics), Some(counts)) = (&trace_metrics, traces.counts()) {
                    metrics.set(counts);
                }
                metrics.run_upkeep();
            }
            _ = summary.tick() => log.summarize(),
            _ = probe.tick() => drop(gateway.engines_health().await),
            () = stop.cancelled() => return,
        }
    }
}
