//! Starts the proxy, if the configuration has one.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::domain::attempt::Entropy;
use crate::gateway::Gateway;
use crate::proxy::{Proxy, ProxyService};
use crate::tenants::Registry;
use crate::transport::listener;
use crate::web;

/// Listens, and returns the exchanges, which outlive their connections.
pub(super) fn start(
    config: &Config,
    gateway: &Arc<Gateway>,
    registry: &Arc<Registry>,
    entropy: &Arc<dyn Entropy>,
    cores: &[Handle],
    stop: CancellationToken,
    connections: &TaskTracker,
) -> anyhow::Result<TaskTracker> {
    let Some(address) = config.proxy.listen else { return Ok(TaskTracker::new()) };
    let socket = super::bind(address, "proxy.listen")?;
    let proxy = Proxy::new(&config.proxy, gateway.clone(), registry.clone(), entropy.clone(), config.limits.clone());
    let proxy = proxy.context("[proxy] cannot be used; `oncegate config check` says why")?;
    let exchanges = proxy.exchanges();
    let limits = web::listener_limits(&config.limits);
    let (service, cores, connections) = (ProxyService::new(proxy), cores.to_vec(), connections.clone());
    tracing::info!(proxy_listen = %socket.local_addr()?, routes = config.proxy.routes.len(), "The proxy is listening");
    tokio::spawn(listener::accept(socket, None, service, limits, cores, stop, connections));
    Ok(exchanges)
}
