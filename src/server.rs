//! The composition root: opens the engines, wires all floors together, and lives through start, drain and stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hashbrown::HashMap;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::health::{Lifecycle, Stage};
use crate::admin::{self, Admin};
use crate::config::{Config, ResolvedTerms};
use crate::domain::attempt::{Entropy, Issuer, SystemEntropy};
use crate::domain::clock::{Clock, SystemClock};
use crate::domain::tenant::AppKey;
use crate::engine::url;
use crate::gateway::{Engines, Gateway};
use crate::http::{self, Api, listener};
use crate::resilience::measured::Measured;
use crate::resilience::patience::Patience;
use crate::resilience::retry::Retry;
use crate::telemetry::metrics::{HttpMetrics, Metrics};
use crate::tenants::{App, OperationTerms, Registry};

/// The app of a gateway that has none configured.
const OPEN_APP: &str = "default";

/// How often the engines are asked how they are, so that `engine_up` is right when nobody calls.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Runs a gateway until it is told to stop by SIGTERM or SIGINT, and has answered what was in flight.
///
/// # Errors
/// What kept it from starting, or that a second signal cut the drain short.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let api = bind(config.server.listen, "server.listen").await?;
    let admin = bind(config.server.admin_listen, "server.admin_listen").await?;
    let server = Server::start(&config, api, admin).await?;
    let name = signals.next().await;
    tracing::info!(signal = name, "draining");
    tokio::select! {
        () = server.stop(config.server.drain_delay, config.server.drain_timeout) => {
            tracing::info!("stopped");
            Ok(())
        }
        name = signals.next() => {
            tracing::warn!(signal = name, "stopped at once by a second signal");
            Err(anyhow::anyhow!("stopped by a second {name} before everything was answered"))
        }
    }
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; set {key} to another address"))
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A gateway in service.
pub struct Server {
    gateway: Arc<Gateway>,
    lifecycle: Arc<Lifecycle>,
    stop_api: CancellationToken,
    stop_admin: CancellationToken,
    api_connections: TaskTracker,
}

impl Server {
    /// Puts a gateway into service on these listeners.
    ///
    /// # Errors
    /// An engine that cannot be opened. A store that is out is no error.
    pub async fn start(config: &Config, api: TcpListener, admin: TcpListener) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        let metrics = Arc::new(Metrics::install());
        let lifecycle = Arc::new(Lifecycle::starting());
        let registry = registry(config)?;
        let engines = open_engines(config, &clock).await?;
        let issuer = Issuer::new(clock.clone(), entropy.clone());
        let gateway = Arc::new(Gateway::new(engines, registry.apps(), issuer, clock.clone()));

        let (api_address, admin_address) = (api.local_addr()?, admin.local_addr()?);
        let open = registry.is_open();
        let (stop_api, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let api_connections = TaskTracker::new();
        let admin_router = admin::router(Arc::new(Admin {
            gateway: gateway.clone(),
            metrics: metrics.clone(),
            lifecycle: lifecycle.clone(),
            entropy: entropy.clone(),
        }));
        let api_router = http::router(Arc::new(Api {
            gateway: gateway.clone(),
            registry,
            limits: config.limits.clone(),
            loopback_only: open && !config.server.allow_open,
            in_flight: Semaphore::new(config.limits.requests_in_flight),
            clock,
            entropy,
            metrics: HttpMetrics::new(),
        }));
        let accept = |listener, router, stop: &CancellationToken, connections: &TaskTracker| {
            let (limits, stop, connections) = (config.limits.clone(), stop.clone(), connections.clone());
            tokio::spawn(async move { listener::accept(listener, router, &limits, stop, connections).await });
        };
        accept(admin, admin_router, &stop_admin, &TaskTracker::new());
        accept(api, api_router, &stop_api, &api_connections);
        tokio::spawn(keep_up(gateway.clone(), metrics, stop_admin.clone()));
        lifecycle.enter(Stage::Ready);
        tracing::info!(listen = %api_address, admin_listen = %admin_address, open, "in service");
        Ok(Self { gateway, lifecycle, stop_api, stop_admin, api_connections })
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
        self.stop_admin.cancel();
    }
}

/// Every engine by its name, measured and with its uncertain calls resolved, and which one each chain uses.
async fn open_engines(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Engines> {
    // Two tries, and something left to answer with, within the deadline.
    let patience = config.terms_of(None, None).deadline * 2 / 5;
    let mut engines = Engines::default();
    for (name, address) in &config.engines {
        let (address, clock_of_engine) = (address.clone(), clock.clone());
        let opened = tokio::task::spawn_blocking(move || url::open(&address, clock_of_engine)).await?;
        let engine = opened.with_context(|| format!("engine `{name}` cannot be opened"))?;
        let bounded = Arc::new(Patience::new(engine, patience));
        let measured = Arc::new(Measured::new(bounded, name, clock.clone()));
        engines.by_name.insert(name.clone(), Arc::new(Retry::new(measured)));
    }
    for (chain, options) in &config.chains {
        let active = options.engines.first().with_context(|| format!("chain `{chain}` has no engine"))?;
        engines.active.insert(chain.clone(), active.clone());
    }
    Ok(engines)
}

/// Who may call, by the configuration.
fn registry(config: &Config) -> anyhow::Result<Registry> {
    if config.apps.is_empty() {
        let key: AppKey = OPEN_APP.parse()?;
        let terms = config.terms_of(None, None);
        return Ok(Registry::open(App {
            key,
            chain: terms.chain.clone(),
            disabled: false,
            secrets: Vec::new(),
            terms: operation_terms(&terms),
            operations: HashMap::new(),
        }));
    }
    let app = |(key, options): (&AppKey, &crate::config::AppOptions)| -> anyhow::Result<App> {
        let secrets = options.secrets.iter().map(|secret| secret.parse()).collect::<Result<_, _>>();
        let terms = config.terms_of(Some(key), None);
        let own = |operation| (Clone::clone(operation), operation_terms(&config.terms_of(Some(key), Some(operation))));
        Ok(App {
            key: key.clone(),
            chain: terms.chain.clone(),
            disabled: options.disabled,
            secrets: secrets.with_context(|| format!("apps.{key}.secrets"))?,
            terms: operation_terms(&terms),
            operations: options.operations.keys().map(own).collect(),
        })
    };
    Ok(Registry::of(config.apps.iter().map(app).collect::<anyhow::Result<Vec<_>>>()?))
}

fn operation_terms(resolved: &ResolvedTerms) -> OperationTerms {
    OperationTerms {
        terms: resolved.terms,
        mode: resolved.mode,
        contents_stored_bytes: resolved.contents_stored_bytes,
        deadline: resolved.deadline,
    }
}

/// What has to be done now and then while in service.
async fn keep_up(gateway: Arc<Gateway>, metrics: Arc<Metrics>, stop: CancellationToken) {
    let mut upkeep = tokio::time::interval(Duration::from_secs(1));
    let mut probe = tokio::time::interval(PROBE_EVERY);
    loop {
        tokio::select! {
            _ = upkeep.tick() => metrics.run_upkeep(),
            _ = probe.tick() => drop(gateway.engines_health().await),
            () = stop.cancelled() => return,
        }
    }
}
