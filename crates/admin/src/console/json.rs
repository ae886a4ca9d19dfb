//! `/console/json/…`: answers of the admin API, for browsers, which have no bearer token. Values that no page shows are masked here too.

use std::sync::Arc;

use oncegate_core::record::Realm;
use oncegate_core::tenant::Operation;
use oncegate_web::problem::Problem;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::context::{Answer, Context};
use super::masks::mask_claims;
use super::parts::address;
use crate::audit::Change;
use crate::role::Role;

/// Calls that look something up by a body. Here the query names it.
const LOOK_UPS: [&str; 2] = ["claims/show", "locks/show"];

/// Calls whose answers have contents, and results.
const WITH_CONTENTS: [&str; 3] = ["claims", "claims/show", "unknowns"];

/// Answers with the answer of a call that changes nothing.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let call = context.path.strip_prefix("/console/json/").unwrap_or_default();
    let path = format!("/admin/v1/{call}");
    let answer: Box<RawValue> = if LOOK_UPS.contains(&call) {
        let names = context.query.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        context.post(&path, &Value::Object(names.collect::<Map<_, _>>())).await?
    } else {
        let query: Vec<_> = context.query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        context.get(&address(&path, &query)).await?
    };
    if !WITH_CONTENTS.contains(&call) || context.operator.role < Role::Read {
        return Ok(Answer::Json(answer));
    }
    note(&context, call);
    Ok(Answer::Json(masked(&context, answer)))
}

fn note(context: &Context, call: &str) {
    let is_of_proxy = context.query("realm") == Some("proxy");
    let change = Change {
        app: context.query("app").and_then(|app| app.parse().ok()),
        global_id: context.query("global_id").and_then(|id| id.parse().ok()),
        detail: Some(format!("JSON of {call}")),
        ..Change::without_reason("claim.view").of_realm(if is_of_proxy { Realm::Proxy } else { Realm::Api })
    };
    context.console.admin.audit.note(&context.operator, &change);
}

fn masked(context: &Context, answer: Box<RawValue>) -> Box<RawValue> {
    let apps = context.console.admin.registry.apps();
    let is_of_proxy = answer.get().contains(Operation::PROXY_PREFIX);
    if !is_of_proxy && apps.iter().all(|app| app.console_mask.is_empty()) {
        return answer;
    }
    mask_claims(&answer, context.query("app"), &|app| {
        let known = apps.iter().find(|known| known.key.to_string() == app);
        known.map(|known| known.console_mask.clone()).unwrap_or_default()
    })
}
