//! The app of a route, which may be disabled or removed while a request waits.

use std::sync::Arc;

use oncegate_gateway::tenants::App;
use oncegate_web::problem::{Code, Problem};

use super::Proxy;
use super::dialect::Refusal;
use super::reply::Reply;
use super::route::Route;

impl Proxy {
    /// Returns the app of a route, if it may call.
    pub(super) fn app_of(&self, route: &Route) -> Result<Arc<App>, Refusal> {
        self.registry.app(route.options.app.as_ref()).filter(|app| !app.disabled).ok_or_else(|| {
            let detail = "The app of this route is not known to the gateway, or disabled.";
            Refusal::Problem(Problem::new(Code::StoreUnavailable, detail).retry_soon())
        })
    }

    /// Resolves when the caller of a request that waits has left, or its app may not call any more.
    pub(super) async fn wait_ended(&self, route: &Route, reply: &mut Reply) {
        tokio::select! {
            () = reply.closed() => {}
            () = self.registry.until(|| self.app_of(route).is_err()) => {}
        }
    }
}
