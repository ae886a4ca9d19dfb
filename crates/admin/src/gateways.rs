//! `GET /admin/v1/gateways`: the gateways that share a chain, from the lines that they write into the chain's store. The call itself reads
//! no store: a task keeps the records.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use oncegate_gateway::fleet::{ChainFleet, GatewayLine};
use oncegate_gateway::tenants::secret::SecretDigest;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::reloads::Setting;
use super::summary::summary;

/// The setting of another table that differs between the gateways of a fleet.
const OWN_SETTING: &str = "proxy.listen";

/// Tables of settings that differ between them.
const OWN_TABLES: [&str; 5] = ["server", "admin", "console", "log", "traces"];

#[derive(Serialize)]
struct GatewaysBody {
    chains: Vec<ChainFleet>,
}

/// Answers with the gateways of each chain.
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    json(&GatewaysBody { chains: admin.gateway.fleet(&own(&admin)) })
}

/// Keeps the line of this gateway in the records of its chains, until it is dropped.
pub async fn keep(admin: Arc<Admin>) {
    admin.gateway.keep_fleet(|| own(&admin)).await;
}

fn own(admin: &Admin) -> GatewayLine {
    GatewayLine {
        id: admin.console.mark.clone(),
        host: admin.console.host.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_us: admin.started.at().as_micros(),
        stage: admin.lifecycle.stage().name().to_owned(),
        settings: digest(admin),
        attention: summary(admin).attention.len(),
        origin: admin.console.options.origin.clone(),
    }
}

/// Returns the digest of the settings that the gateways of a fleet have in common. Secrets are in it by their IDs only.
fn digest(admin: &Admin) -> String {
    let is_common = |setting: &Setting| {
        let table = setting.key.split('.').next().unwrap_or_default();
        setting.key != OWN_SETTING && !OWN_TABLES.contains(&table)
    };
    let settings = admin.reloads.settings();
    let lines = settings.iter().filter(|setting| is_common(setting));
    let text = lines.fold(String::new(), |mut text, setting| {
        // A string accepts everything that is written to it.
        let _ = writeln!(text, "{}={}", setting.key, setting.value);
        text
    });
    SecretDigest::of(&text).id()
}
