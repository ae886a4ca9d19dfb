//! Starts the proxy, if the configuration has one.

use std::sync::Arc;

use anyhow::Context as _;
use oncegate_admin::{ProxyRoute, ShownProxy};
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::Registry;
use oncegate_proxy::options::{ProxyOptions, RouteOptions};
use oncegate_proxy::{Dependencies, Proxy, ProxyService};
use oncegate_transport::listener;
use oncegate_transport::tls::Tls;
use oncegate_web::recent::Recent;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;

/// Returns the parts of the program that the proxy uses.
pub(super) fn dependencies(
    config: &Config,
    gateway: &Arc<Gateway>,
    registry: &Arc<Registry>,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<dyn Entropy>,
    recent: &Arc<Recent>,
) -> Dependencies {
    Dependencies {
        gateway: gateway.clone(),
        registry: registry.clone(),
        entropy: entropy.clone(),
        clock: clock.clone(),
        limits: config.limits.clone(),
        problem_base: config.server.problem_base.clone(),
        recent: recent.clone(),
    }
}

/// Returns the proxy as operators see it.
pub(super) fn shown(options: &ProxyOptions) -> ShownProxy {
    let route = |route: &RouteOptions| ProxyRoute {
        name: route.name.clone(),
        app: route.app.clone(),
        hosts: route.hosts.clone(),
        path: route.path.clone(),
        methods: route.methods.clone(),
        upstream: route.upstream.clone(),
    };
    let routes = options.routes.iter().filter(|_| options.listen.is_some()).map(route).collect();
    ShownProxy { routes, read_key: oncegate_proxy::read_key, contents: oncegate_proxy::claim_contents }
}

/// Listens, and returns the exchanges, which outlive their connections.
pub(super) fn start(
    options: &ProxyOptions,
    dependencies: Dependencies,
    tls: Option<Arc<Tls>>,
    cores: &[Handle],
    stop: CancellationToken,
    connections: &TaskTracker,
) -> anyhow::Result<TaskTracker> {
    let Some(address) = options.listen else { return Ok(TaskTracker::new()) };
    let socket = super::bind(address, "proxy.listen")?;
    let limits = oncegate_web::listener_limits(&dependencies.limits);
    let proxy = Proxy::new(options, dependencies, tls.is_some());
    let proxy = proxy.context("[proxy] cannot be used; `oncegate config check` says why")?;
    let exchanges = proxy.exchanges();
    tokio::spawn(stop.clone().run_until_cancelled_owned(proxy.follow_keys()));
    tokio::spawn(stop.clone().run_until_cancelled_owned(proxy.follow_names()));
    let (service, cores, connections) = (ProxyService::new(proxy), cores.to_vec(), connections.clone());
    tracing::info!(proxy_listen = %socket.local_addr()?, routes = options.routes.len(), "The proxy is listening");
    tokio::spawn(listener::accept(socket, tls, service, limits, cores, stop, connections));
    Ok(exchanges)
}
