//! Composition root: opens the engines, wires all modules together, and runs a gateway from start through drain to
//! stop.

mod apps;
mod catalog;
mod clock_watch;
mod cores;
mod data_dir;
mod descriptors;
mod engines;
mod history;
mod live;
mod maintenance;
mod operators;
mod proxy;
#[cfg(feature = "postgres")]
mod registry;
pub mod signals;
mod systemd;
mod tls;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oncegate_admin::{Admin, AdminService, Audit, Lifecycle, Stage, Started, keep_gateways};
use oncegate_api::{Api, ApiService, ConcurrencyLimit};
use oncegate_core::attempt::{Entropy, Issuer, SystemEntropy};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::auth_throttle::AuthThrottle;
use oncegate_telemetry::Telemetry;
use oncegate_telemetry::history::History;
use oncegate_telemetry::metrics::Metrics;
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;
use oncegate_telemetry::traces::Traces;
use oncegate_transport::listener;
use oncegate_web::recent::Recent;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::catalog::Dependencies;
use self::clock_watch::ClockWatch;
use self::cores::Cores;
use self::data_dir::DataDir;
use self::live::Live;
use self::signals::{Signal, Signals};
use self::tls::Certificates;
use self::watch::Watch;
use crate::config::{Config, Fingerprint, Loaded, Origins, Problems};

/// Source of the configuration, for reloads.
pub struct Source {
    /// Fingerprint from before the first load.
    pub known: Fingerprint,
    /// Places where the values of the first load were set.
    pub origins: Origins,
    /// Returns the current fingerprint of the files.
    pub read: Box<dyn Fn() -> Fingerprint + Send + Sync>,
    /// Loads the configuration.
    pub load: Box<dyn Fn() -> Result<Loaded, Problems> + Send + Sync>,
}

/// Longest time for the history to be written at the end.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a gateway until SIGTERM or SIGINT, and drains it. The configuration is reloaded at every SIGHUP and whenever
/// its files have changed.
///
/// # Errors
/// The gateway cannot start, or a second signal, more than a second after the first, cut the drain short.
pub async fn run(config: Config, source: Source, telemetry: Telemetry) -> anyhow::Result<()> {
    let mut signals = Signals::new(&[Signal::TERM, Signal::INT, Signal::HUP])?;
    let mut watch = Watch::new(source.known, source.read);
    let api = bind(config.server.listen, "server.listen")?;
    let admin = bind(config.server.admin_listen, "server.admin_listen")?;
    let server = Server::start(&config, source.origins, api, admin, telemetry).await?;
    let name = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::HUP => watch.catch_up().await,
                signal => break name_of(signal),
            },
            () = watch.changed() => {}
        }
        server.reload((source.load)()).await;
    };
    tracing::info!(signal = name, "Draining");
    tokio::select! {
        () = server.stop(config.server.drain_delay, config.server.drain_timeout) => {
            tracing::info!("Stopped");
            Ok(())
        }
        signal = signals.next_new_except(&[Signal::HUP]) => {
            let name = name_of(signal);
            tracing::warn!(signal = name, "Stopped by a second signal before the drain ended");
            Err(anyhow::anyhow!("stopped by a second {name} before all requests had ended"))
        }
    }
}

fn name_of(signal: Signal) -> &'static str {
    if signal == Signal::INT { "SIGINT" } else { "SIGTERM" }
}

fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    listener::bind(address).with_context(|| format!("cannot listen on {address}; set {key} to another address"))
}

/// Running gateway.
pub struct Server {
    gateway: Arc<Gateway>,
    data_dir: DataDir,
    live: Live,
    certificates: Certificates,
    lifecycle: Arc<Lifecycle>,
    stop_api: CancellationToken,
    stop_admin: CancellationToken,
    /// Ends when the history is written, after `stop_admin`.
    history: JoinHandle<()>,
    api_connections: TaskTracker,
    /// Exchanges of the proxy. Some have no connection any more.
    exchanges: TaskTracker,
    traces: Traces,
    /// Dropped last: the other fields still use its runtimes.
    _cores: Cores,
}

impl Server {
    /// Starts a gateway on these listeners.
    ///
    /// # Errors
    /// An engine cannot be opened. An unavailable store is no error.
    pub async fn start(
        config: &Config,
        origins: Origins,
        api: TcpListener,
        admin: TcpListener,
        telemetry: Telemetry,
    ) -> anyhow::Result<Self> {
        let Telemetry { log, traces } = telemetry;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let (metrics, lifecycle) = (Arc::new(Metrics::install()), Arc::new(Lifecycle::starting()));
        let (stop_api, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let certificates = Certificates::open(config, &clock, stop_admin.clone())?;
        let registry = Arc::new(apps::registry(config)?);
        let data_dir = DataDir::open(config, &clock).await?;
        let journal = data_dir.journal.clone();
        let cores = Cores::start()?;
        let audit = Arc::new(Audit::new(&config.server.data_dir, clock.clone(), entropy.clone()));
        let engines = engines::open(config, &clock, &entropy, &journal, &audit, &cores.handles).await?;
        data_dir.warn_of_unknown_chains();
        let gateway = Arc::new(Gateway::new(engines, issuer(&clock, &entropy), clock.clone(), &config.limits));
        gateway.measure_apps(&registry.apps(), config.limits.metric_operations);
        let tokens = operators::tokens(config)?;
        let live = Live::new(config, registry.clone(), gateway.clone(), tokens.clone(), log.clone(), clock.clone());
        live.set_origins(origins);
        let apps = catalog::start(Dependencies {
            config: live.config.clone(),
            config_changed: live.config_changed.clone(),
            registry: registry.clone(),
            gateway: gateway.clone(),
            lifecycle: lifecycle.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            stop: stop_admin.clone(),
        })?;
        let (api_address, admin_address) = (api.local_addr()?, admin.local_addr()?);
        let (open, api_connections) = (registry.is_open(), TaskTracker::new());
        let file = history::file(&config.server.data_dir);
        let history = Arc::new(History::load(&file));
        let recent = keep_recent(&clock);
        let admin_api = Admin {
            recent: recent.clone(),
            history: history.clone(),
            erase: Box::new(oncegate_proxy::eraser(&config.proxy)),
            gateway: gateway.clone(),
            registry: registry.clone(),
            metrics: metrics.clone(),
            lifecycle: lifecycle.clone(),
            started: Started::now(&*clock),
            reloads: live.reloads.clone(),
            entropy: entropy.clone(),
            clock: clock.clone(),
            loopback_only: admin_address.ip().is_loopback(),
            limits: config.limits.clone(),
            problem_base: config.server.problem_base.clone(),
            tokens: tokens.clone(),
            apps,
            journal: journal.clone(),
            audit,
            console: operators::console(config),
            proxy: proxy::shown(&config.proxy),
        };
        let admin_service = admin_service(admin_api, &stop_admin);
        let of_proxy = proxy::dependencies(config, &gateway, &registry, &clock, &entropy, &recent);
        let (tls, stop) = (certificates.of_proxy(), stop_api.clone());
        let exchanges = proxy::start(&config.proxy, of_proxy, tls, &cores.handles, stop, &api_connections)?;
        let api_service = ApiService::new(Api {
            gateway: gateway.clone(),
            registry: registry.clone(),
            throttle: AuthThrottle::new(clock.clone(), "Requests without a valid credential"),
            limits: config.limits.clone(),
            problem_base: config.server.problem_base.clone(),
            loopback_only: open && !config.server.allow_open,
            concurrency: ConcurrencyLimit::new(config.limits.requests_in_flight),
            clock: clock.clone(),
            entropy,
            authentication: AuthenticationMetrics::default(),
            access: log.access(),
            traces: traces.clone(),
            recent,
        });
        traces.start();
        serve_admin(admin, admin_service, config, &certificates, stop_admin.clone());
        serve_api(api, api_service, config, &certificates, &cores, stop_api.clone(), &api_connections);
        let history = tokio::spawn(history::run(history, metrics.clone(), clock.clone(), file, stop_admin.clone()));
        let (telemetry, watch) = (Telemetry { log, traces: traces.clone() }, ClockWatch::new(clock));
        let (folder, stop) = (config.server.data_dir.clone(), stop_admin.clone());
        tokio::spawn(maintenance::run(gateway.clone(), journal.clone(), metrics, telemetry, folder, watch, stop));
        descriptors::check(config);
        log_start(enter_service(&lifecycle, registry.is_loading()), config, api_address, admin_address, open);
        systemd::notify(&[systemd::State::Ready]);
        Ok(Self {
            gateway,
            data_dir,
            live,
            certificates,
            lifecycle,
            stop_api,
            stop_admin,
            history,
            api_connections,
            exchanges,
            traces,
            _cores: cores,
        })
    }

    /// Applies a reloaded configuration: certificates, and everything that needs no restart. Each part is applied if it
    /// is valid.
    async fn reload(&self, read: Result<Loaded, Problems>) {
        systemd::notify(&systemd::reloading());
        if let Ok(Loaded { config, .. }) = &read {
            self.certificates.reload(config);
        }
        self.live.reload(read, &self.data_dir).await;
        systemd::notify(&[systemd::State::Ready]);
    }

    /// Stops the gateway: reports not ready, waits for load balancers to notice, stops accepting, waits up to
    /// `drain_timeout` for requests in flight, and closes the engines.
    pub async fn stop(self, drain_delay: Duration, drain_timeout: Duration) {
        self.lifecycle.enter(Stage::Draining);
        systemd::notify(&[systemd::State::Stopping]);
        tokio::time::sleep(drain_delay).await;
        self.stop_api.cancel();
        // Their responses close the connections.
        self.gateway.drain_waiters();
        self.api_connections.close();
        let drained = async {
            self.api_connections.wait().await;
            self.exchanges.close();
            self.exchanges.wait().await;
        };
        if tokio::time::timeout(drain_timeout, drained).await.is_err() {
            let (connections, exchanges) = (self.api_connections.len(), self.exchanges.len());
            tracing::warn!(connections, exchanges, "Drain timeout: some connections were closed before their response");
        }
        self.gateway.close().await;
        self.data_dir.journal.close().await;
        self.traces.close().await;
        self.stop_admin.cancel();
        if tokio::time::timeout(HISTORY_TIMEOUT, self.history).await.is_err() {
            tracing::debug!("The history was not written in time; a restart begins with an earlier one");
        }
    }
}

/// Serves the API until `stop`, on all cores.
fn serve_api(
    listener: TcpListener,
    service: ApiService,
    config: &Config,
    certificates: &Certificates,
    cores: &Cores,
    stop: CancellationToken,
    connections: &TaskTracker,
) {
    let (limits, tls) = (oncegate_web::listener_limits(&config.limits), certificates.api.clone());
    tokio::spawn(listener::accept(listener, tls, service, limits, cores.handles.clone(), stop, connections.clone()));
}

/// Returns the service of the admin listener, and keeps its list of gateways fresh until `stop`.
fn admin_service(admin: Admin, stop: &CancellationToken) -> AdminService {
    let admin = Arc::new(admin);
    tokio::spawn(stop.clone().run_until_cancelled_owned(keep_gateways(admin.clone())));
    AdminService::new(admin)
}

/// Serves the admin listener until `stop`, on the runtime of the caller.
fn serve_admin(
    listener: TcpListener,
    service: AdminService,
    config: &Config,
    certificates: &Certificates,
    stop: CancellationToken,
) {
    let (limits, tls) = (oncegate_web::listener_limits(&config.limits), certificates.admin.clone());
    let (main_runtime, untracked) = (vec![Handle::current()], TaskTracker::new());
    tokio::spawn(listener::accept(listener, tls, service, limits, main_runtime, stop, untracked));
}

/// Enters service, unless the registry of apps is still loading. Returns the state for the log.
fn enter_service(lifecycle: &Lifecycle, is_loading: bool) -> &'static str {
    if is_loading {
        return "Listening; in service once the registry of apps has answered";
    }
    lifecycle.enter(Stage::Ready);
    "In service"
}

fn issuer(clock: &Arc<dyn Clock>, entropy: &Arc<dyn Entropy>) -> Issuer {
    Issuer::new(clock.clone(), entropy.clone())
}

/// Starts to keep what happens to calls, for operators.
fn keep_recent(clock: &Arc<dyn Clock>) -> Arc<Recent> {
    let recent = Arc::new(Recent::new(clock.clone()));
    let keeping = recent.clone();
    tokio::spawn(async move { keeping.run().await });
    recent
}

/// Logs the start: listeners, engines and data folder.
fn log_start(state: &str, config: &Config, api: SocketAddr, admin: SocketAddr, open: bool) {
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
