//! `/livez` and `/readyz`. Neither depends on a store: a gateway must stay in service while its store is unavailable, to
//! answer by the outage policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use oncegate_core::spool::SpoolStatus;
use oncegate_gateway::EngineHealth;
use oncegate_web::problem::{Code, Members, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;

/// The stage of the process. It never goes back.
pub struct Lifecycle(AtomicU8);

/// A stage of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stage {
    /// Not yet listening on the API.
    Starting = 0,
    /// In service.
    Ready = 1,
    /// Stopping.
    Draining = 2,
}

impl Stage {
    /// Returns its name in the admin API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
        }
    }
}

impl Lifecycle {
    /// Returns the lifecycle of a process that starts.
    pub fn starting() -> Self {
        Self(AtomicU8::new(Stage::Starting as u8))
    }

    /// Enters a stage, unless the process is past it.
    pub fn enter(&self, stage: Stage) {
        self.0.fetch_max(stage as u8, Ordering::SeqCst);
    }

    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        match self.0.load(Ordering::SeqCst) {
            0 => Stage::Starting,
            1 => Stage::Ready,
            _ => Stage::Draining,
        }
    }
}

#[derive(Serialize)]
struct Alive {
    status: &'static str,
}

#[derive(Serialize)]
struct Ready {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    engines: Option<BTreeMap<String, EngineHealth>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spool: Option<SpoolStatus>,
}

/// Answers 200 as long as the process can answer.
pub(super) async fn livez() -> Response {
    json(&Alive { status: "alive" })
}

/// Answers 200 while the gateway wants requests.
pub(super) async fn readyz(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    let verbose =
        query.is_some_and(|query| query.split('&').any(|key| key == "verbose" || key.starts_with("verbose=")));
    let engines = if verbose { Some(admin.gateway.engines_health().await) } else { None };
    let spool = verbose.then(|| admin.journal.status());
    let (title, detail) = match admin.lifecycle.stage() {
        Stage::Ready => return json(&Ready { status: "ready", engines, spool }),
        Stage::Starting => ("Starting", "The gateway is starting; ask again in a moment."),
        Stage::Draining => ("Draining", "The gateway is stopping; send requests to another one."),
    };
    let members = Members::NotReady { title, engines, spool: spool.map(Box::new) };
    Problem { members, ..Problem::new(Code::Draining, detail) }.retry_soon().into_response()
}
