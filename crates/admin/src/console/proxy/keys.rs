//! Recent requests of the proxy by the first characters of their key, as this gateway has answered them.

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use crate::console::context::Context;
use crate::console::options::Link;
use crate::console::parts::{claim_page, logs, path, refusal, table};
use crate::console::texts::Text;
use crate::console::times;
use crate::console::untrusted::Untrusted;

/// `GET /admin/v1/proxy/recent` and `POST /admin/v1/proxy/find`.
#[derive(Deserialize)]
pub(in crate::console) struct Keys {
    pub(in crate::console) requests: Vec<Keyed>,
    #[serde(default)]
    pub(in crate::console) next: Option<u64>,
    lost: u64,
}

/// A request with a key.
#[derive(Deserialize)]
pub(in crate::console) struct Keyed {
    at: String,
    route: Untrusted,
    pub(in crate::console) app: Untrusted,
    key_start: Untrusted,
    answer: String,
    status: Option<u16>,
    pub(in crate::console) global_id: Untrusted,
    pub(in crate::console) request_id: Untrusted,
}

impl Keys {
    /// Reports whether there is a request.
    pub(in crate::console) fn has_any(&self) -> bool {
        !self.requests.is_empty()
    }
}

/// Draws the requests, or the reason why there are none.
pub(in crate::console) fn region(context: &Context, keys: &Result<Keys, Problem>) -> Markup {
    html! {
        @match keys {
            Ok(keys) => (list(context, keys)),
            Err(problem) => p.notice { (refusal(context.texts(), problem)) },
        }
    }
}

/// Returns the table of requests, the newest first.
pub(in crate::console) fn list(context: &Context, keys: &Keys) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for request in &keys.requests {
            tr {
                td { (times::instant(&request.at)) }
                td { a href=(path(&["proxy", request.route.raw()])) { (request.app) " / " (request.route) } }
                td { a href=(claim_page(&request.app, &request.global_id, "proxy")) { code { (request.key_start) "…" } } }
                td { (t.of(words(&request.answer))) @if let Some(status) = request.status { " · " (status) } }
                td { code { (request.request_id) } (logs(t, context.links(), Link::Request, request.request_id.raw())) }
            }
        }
    };
    html! {
        @if keys.requests.is_empty() { p { (t.of(Text::NoRequestsWithKey)) } }
        @else { (table(t, Text::RecentRequests, &[Text::When, Text::Route, Text::Key, Text::AnswerOf, Text::Request], &rows)) }
        @if keys.lost > 0 { p { (t.of(Text::EventsLost(keys.lost))) } }
    }
}

/// Returns the words for an answer of the proxy.
pub(super) fn words(answer: &str) -> Text<'static> {
    match answer {
        "forwarded" => Text::Forwarded,
        "replayed" => Text::Replayed,
        "in_progress" => Text::StillRunning,
        "unknown" => Text::AnsweredUnknown,
        "not_stored" => Text::ResponseNotStored,
        "mismatch" => Text::OtherRequest,
        "refused" => Text::RefusedRequest,
        _ => Text::AnsweredUnavailable,
    }
}
