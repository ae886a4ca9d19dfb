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

    /// Resolves when the caller of a request that waits has left, or its app may not call any more or has moved to another chain,
    /// where the claim that it waits for is not.
    pub(super) async fn wait_ended(&self, route: &Route, app: &App, reply: &mut Reply) {
        tokio::select! {
            () = reply.closed() => {}
            () = self.registry.until(|| self.check_again(route, app).is_err()) => {}
        }
    }

    /// Checks after a wait whether a request may go on: its app may have been disabled in the meantime, or moved.
    pub(super) fn check_again(&self, route: &Route, app: &App) -> Result<(), Refusal> {
        if self.app_of(route)?.chain == app.chain {
            return Ok(());
        }
        let detail =
            "The app of this route has moved to another chain of engines while this request waited. Send it again.";
        Err(Refusal::Problem(Problem::new(Code::StoreUnavailable, detail).retry_soon()))
    }
}
