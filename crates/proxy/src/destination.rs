//! An upstream as one app uses it: with the app's part of its exchanges and `WebSockets`, and of the memory for the bodies of
//! requests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use oncegate_core::clock::Clock;
use oncegate_telemetry::metrics::proxy::{Bound, BoundMetrics};
use oncegate_web::problem::{Code, Problem};

use super::options::ProxyOptions;
use super::shares::{Account, Payer, Share, divide};
use super::upstream::Upstream;

/// An upstream as one app uses it.
#[derive(Clone)]
pub(super) struct Destination {
    upstream: Arc<Upstream>,
    exchanges: Arc<Account>,
    websockets: Arc<Account>,
    /// Memory for bodies.
    pub(super) bytes: Arc<Account>,
}

impl Destination {
    /// Returns the destinations of a proxy, by the name of the upstream and the app. `None` if the options are not valid.
    pub(super) fn all<'a>(
        options: &'a ProxyOptions,
        clock: &Arc<dyn Clock>,
    ) -> Option<BTreeMap<(&'a str, Payer), Arc<Self>>> {
        let routes = options.routes.iter().map(|route| (route.upstream.as_str(), Some(route.app.clone())));
        let uses: BTreeSet<(&str, Payer)> = match options.unmatched() {
            Some(upstream) => routes.chain([(upstream, None)]).collect(),
            None => routes.collect(),
        };
        let bytes = divide(options.request_bytes_total.0, options.payers(), BoundMetrics::new(Bound::RequestBytes));
        let mut all = BTreeMap::new();
        for (name, options) in &options.upstreams {
            let upstream = Arc::new(Upstream::new(options, clock.clone())?);
            let payers: BTreeSet<Payer> =
                uses.iter().filter(|(used, _)| used == name).map(|(_, payer)| payer.clone()).collect();
            let exchanges = divide(options.exchanges, payers.clone(), BoundMetrics::new(Bound::Exchanges));
            let websockets = divide(options.websockets, payers, BoundMetrics::new(Bound::WebSockets));
            for (payer, exchanges) in exchanges {
                let (bytes, websockets) = (bytes.get(&payer)?.clone(), websockets.get(&payer)?.clone());
                let destination = Self { upstream: upstream.clone(), exchanges, websockets, bytes };
                all.insert((name.as_str(), payer), Arc::new(destination));
            }
        }
        Some(all)
    }

    /// Returns the upstream.
    pub(super) fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Begins an exchange, which lasts until the share is dropped.
    ///
    /// # Errors
    /// The app has too many.
    pub(super) fn begin_exchange(&self) -> Result<Share, Problem> {
        self.exchanges.take(1).ok_or_else(|| {
            let detail = "All exchanges with the upstream are in use (proxy.upstreams.<name>.exchanges): it answers too \
                          slowly. Nothing was done: send the request again.";
            Problem::new(Code::Overloaded, detail).retry_soon()
        })
    }

    /// Opens a `WebSocket`, which lasts until the share is dropped.
    ///
    /// # Errors
    /// The app has too many.
    pub(super) fn open_websocket(&self) -> Result<Share, Problem> {
        self.websockets.take(1).ok_or_else(|| {
            let detail = "The gateway has as many WebSockets open as it may have (proxy.upstreams.<name>.websockets).";
            Problem::new(Code::Overloaded, detail).retry_soon()
        })
    }
}

impl Deref for Destination {
    type Target = Upstream;

    fn deref(&self) -> &Upstream {
        &self.upstream
    }
}
