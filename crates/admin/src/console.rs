//! The console: pages for operators, in a browser. It draws the answers of the admin API and keeps nothing but its sessions.
//! Each page is whole without JavaScript; a script keeps regions fresh.

mod actions;
mod apps;
mod assets;
mod attention;
mod audit;
mod calls;
mod chains;
mod chart;
mod check;
mod claims;
mod config;
mod context;
mod engines;
mod entry;
mod find;
mod forms;
mod gateways;
mod json;
mod layout;
mod live;
mod locks;
mod masks;
mod operations;
mod options;
mod overview;
mod parts;
mod prose;
mod proxy;
mod recent;
mod routes;
mod session;
mod sign_in;
mod sign_in_form;
mod site;
mod spool;
mod streams;
mod summary;
mod texts;
mod times;
mod traffic;
mod untrusted;
mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use oncegate_web::problem::Problem;

use self::actions::Actions;
use self::calls::Calls;
use self::context::Console;
use self::entry::Guard;
pub use self::options::ConsoleOptions;
use self::session::Sessions;
use self::site::Sites;
use self::streams::Streams;
use super::Admin;

/// Settings of the console.
pub struct ConsoleSettings {
    /// Its table of the configuration.
    pub options: ConsoleOptions,
    /// The admin listener has TLS.
    pub has_tls: bool,
    /// 8 hex digits that distinguish this gateway from others, for the name of its cookie.
    pub mark: String,
    /// The name of its host, by which other gateways show it.
    pub host: String,
}

/// Returns the routes of the console. Its pages make their calls of the admin API through `api`.
pub(super) fn router(admin: &Arc<Admin>, api: Router<Arc<Admin>>) -> Router<Arc<Admin>> {
    let settings = &admin.console;
    if !settings.options.enabled {
        return Router::new();
    }
    let console = Arc::new(Console {
        admin: admin.clone(),
        calls: Calls::new(api, admin.clone()),
        sessions: Sessions::new(admin.tokens.clone(), admin.clock.clone(), admin.entropy.clone()),
        actions: Actions::default(),
        streams: Streams::default(),
        sites: Sites::new(&settings.options, settings.has_tls, settings.mark.clone()),
    });
    routes::router()
        .route("/console", get(async || Redirect::permanent("/console/")))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/console/sign-out", post(sign_in::sign_out))
        .route("/console/live", get(live::open))
        .route(&assets::STYLE_PATH, get(assets::style))
        .route(&assets::SCRIPT_PATH, get(assets::script))
        .route("/", get(root))
        .layer(from_fn_with_state(Guard::new(console.clone()), entry::guard))
        .with_state(console)
}

/// Reports whether a path is one of the console, which checks hosts itself.
pub(super) fn has(path: &str) -> bool {
    path == "/console" || path.starts_with("/console/") || path == "/"
}

/// `GET /`: leads browsers to the console.
async fn root(request: Request) -> Result<Response, Problem> {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/html") {
        Ok(Redirect::to("/console/").into_response())
    } else {
        Err(super::nothing_here(request.uri().clone()).await)
    }
}
