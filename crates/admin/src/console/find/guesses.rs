//! The claims that a search may mean: those of a global ID in each app, of contents in each operation that this gateway knows, and of
//! contents that a template makes of a text.

use futures_util::future::join_all;
use oncegate_core::tenant::Operation;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::templates::contents;
use crate::console::apps::KnownApps;
use crate::console::context::Context;
use crate::console::parts::claim_page;
use crate::console::untrusted::Untrusted;

/// Claims that one search looks up at most.
pub(super) const LOOK_UPS_MAX: usize = 16;

/// The part of `POST /admin/v1/claims/show` that leads to its page.
#[derive(Deserialize)]
struct Found {
    app: Untrusted,
    global_id: Untrusted,
}

/// `GET /admin/v1/operations`.
#[derive(Deserialize)]
struct Known {
    operations: Vec<KnownOperation>,
}

/// An operation that this gateway has answered.
#[derive(Deserialize)]
struct KnownOperation {
    app: Untrusted,
    operation: Untrusted,
}

/// A claim that a search may mean.
pub(super) struct Guess {
    /// The body of the call that shows it.
    body: String,
    realm: &'static str,
    /// App and operation.
    pub(super) name: String,
}

impl Guess {
    fn of_id(app: &str, id: &str, realm: &'static str) -> Self {
        let body = json!({ "app": app, "global_id": id, "realm": realm }).to_string();
        Self { body, realm, name: app.to_owned() }
    }

    /// The contents are sent as they were typed: parsing them would change numbers.
    fn of_contents(app: &str, operation: &str, contents: &str) -> Self {
        let named = json!({ "app": app, "operation": operation }).to_string();
        let body = format!("{},\"contents\":{contents}}}", named.trim_end_matches('}'));
        let realm = if operation.starts_with(Operation::PROXY_PREFIX) { "proxy" } else { "api" };
        Self { body, realm, name: format!("{app} / {operation}") }
    }
}

/// Returns the guesses for a global ID in these apps.
pub(super) fn of_id(context: &Context, app: &str, id: &str) -> Vec<Guess> {
    apps(context, app).iter().flat_map(|app| ["api", "proxy"].map(|realm| Guess::of_id(app, id, realm))).collect()
}

/// Returns the guesses for a text: it is contents, or a template makes contents with it. An empty app or operation means all.
pub(super) async fn of_text(context: &Context, app: &str, operation: &str, text: &str) -> Vec<Guess> {
    let mut guesses = of_templates(context, app, operation, text);
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return guesses;
    }
    let known = if operation.is_empty() { known(context).await } else { Vec::new() };
    for app in apps(context, app) {
        let of_app = known.iter().filter(|known| known.app.raw() == app).map(|known| known.operation.raw());
        let mut operations: Vec<&str> = of_app.filter(|name| !name.starts_with(Operation::PROXY_PREFIX)).collect();
        if !operation.is_empty() {
            operations.push(operation);
        } else if !operations.contains(&"default") {
            operations.push("default");
        }
        guesses.extend(operations.into_iter().map(|operation| Guess::of_contents(&app, operation, text)));
    }
    guesses
}

fn of_templates(context: &Context, app: &str, operation: &str, text: &str) -> Vec<Guess> {
    let is_wanted = |wanted: &str, name: &str| wanted.is_empty() || wanted == name;
    let mut guesses = Vec::new();
    for known in context.console.admin.registry.apps() {
        let key = known.key.to_string();
        for (name, template) in &known.console_find {
            if is_wanted(app, &key) && is_wanted(operation, name.as_ref()) {
                guesses.extend(
                    contents(template, text).map(|contents| Guess::of_contents(&key, name.as_ref(), &contents)),
                );
            }
        }
    }
    guesses
}

/// Returns this app, or all of them.
fn apps(context: &Context, app: &str) -> Vec<String> {
    if !app.is_empty() {
        return vec![app.to_owned()];
    }
    KnownApps::of(context).keys.iter().map(|key| key.raw().to_owned()).collect()
}

/// Returns the operations that this gateway has answered, the busiest first.
async fn known(context: &Context) -> Vec<KnownOperation> {
    context.get::<Known>("/admin/v1/operations").await.map(|known| known.operations).unwrap_or_default()
}

/// Returns the pages of the claims that there are. If there is none, a store that did not answer is a problem, and so is the absence of
/// the only guess.
pub(super) async fn look_up(context: &Context, guesses: &[Guess]) -> Result<Vec<String>, Problem> {
    let calls = guesses.iter().map(|guess| {
        context.console.calls.look_up::<Found>(&context.operator, "/admin/v1/claims/show", guess.body.clone())
    });
    let (mut pages, mut problems) = (Vec::new(), Vec::new());
    for (found, guess) in join_all(calls).await.into_iter().zip(guesses) {
        match found {
            Ok(Found { app, global_id }) => pages.push(claim_page(&app, &global_id, guess.realm)),
            Err(problem) => problems.push(problem),
        }
    }
    pages.sort_unstable();
    pages.dedup();
    let is_only = guesses.len() == 1;
    match problems.into_iter().find(|problem| is_only || problem.code != Code::NotFound) {
        Some(problem) if pages.is_empty() => Err(problem),
        _ => Ok(pages),
    }
}
