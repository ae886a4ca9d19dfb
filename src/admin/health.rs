//! `/livez` and `/readyz`. Neither depends on a store: a gateway whose store is out must stay in service, to answer by
//! its policies and to be there when the store is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Admin;
use crate::domain::spool::Spooled;
use crate::gateway::EngineHealth;
use crate::web::problem::{Code, Members, Problem};
use crate::web::response::json;

/// Where the process is in its life.
pub struct Lifecycle(AtomicU8);

/// The stages of a process's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Not yet listening on the API.
    Starting = 0,
    /// In service.
    Ready = 1,
    /// Told to stop.
    Draining = 2,
}

impl Lifecycle {
    /// The life of a process that has just begun.
    pub fn starting() -> Self {
        Self(AtomicU8::new(Stage::Starting as u8))
    }

    /// Goes on to a stage; never back to an earlier one.
    pub fn enter(&self, stage: Stage) {
        self.0.fetch_max(stage as u8, Ordering::SeqCst);
    }

    /// The stage the process is in.
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
    spool: Option<Spooled>,
}

/// Answers as long as the process can answer anything.
pub async fn livez() -> Response {
    json(&Alive { status: "alive" })
}

/// 200 while the gateway wants requests.
pub async fn readyz(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    let verbose =
        query.is_some_and(|query| query.split('&').any(|key| key == "verbose" || key.starts_with("verbose=")));
    let engines = if verbose { Some(admin.gateway.engines_health().await) } else { None };
    let spool = verbose.then(|| admin.spool.spooled());
    let (title, detail) = match admin.lifecycle.stage() {
        Stage::Ready => return json(&Ready { status: "ready", engines, spool }),
        Stage::Starting => ("Starting", "The gateway is starting; ask again in a moment."),
        Stage::Draining => ("Draining", "The gateway is stopping; send requests to another one."),
    };
    let members = Members::NotReady { title, engines, spool: spool.map(Box::new) };
    let wait = std::time::Duration::from_secs(1);
    Problem { members, ..Problem::new(Code::Draining, detail) }.retry_after(wait).into_response()
}
