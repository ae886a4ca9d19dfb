//! `GET /admin/v1/config`: the settings in effect, each with its origin, and the last reload. Secrets are shown by their ID.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::reloads::{Reload, Setting};

/// The settings in effect, and the last reload.
#[derive(Debug, Serialize)]
pub(super) struct Settings {
    pub(super) settings: Vec<Setting>,
    pub(super) last_reload: Option<Reload>,
}

/// Returns the settings in effect.
pub(super) fn settings(admin: &Admin) -> Settings {
    Settings { settings: admin.reloads.settings(), last_reload: admin.reloads.last() }
}

/// Answers with the settings in effect.
pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Response {
    json(&settings(&admin))
}
