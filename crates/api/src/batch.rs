//! Common part of the batch calls: items that are charged one by one, and a response with the results in order.

use std::cell::OnceCell;

use axum::response::Response;
use oncegate_core::limits::Limits;
use oncegate_gateway::tenants::App;
use oncegate_gateway::tenants::quota::Purpose;
use oncegate_web::body::{self, JsonBytes};
use oncegate_web::problem::Problem;
use oncegate_web::recent::Noted;
use oncegate_web::response::written;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Api;
use super::answer::{Named, Success};
use super::call::ApiCall;
use super::events::note_call;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// The items of a batch, not read yet. The first one was charged with its request; reading them charges the others.
pub(super) struct Items<'a> {
    body: &'a JsonBytes,
    api: &'a Api,
    app: &'a App,
    purpose: Purpose,
}

impl<'a> Items<'a> {
    /// Returns the items of a body. `purpose` is that of their request.
    pub(super) fn new(body: &'a JsonBytes, api: &'a Api, app: &'a App, purpose: Purpose) -> Self {
        Self { body, api, app, purpose }
    }

    /// Charges each item to the app, and reads it with `convert`. The result has the items in order, each with its own error.
    ///
    /// # Errors
    /// The body is not a batch, or has no item or too many.
    pub(super) fn read<T: Deserialize<'a>, Item>(
        self,
        mut convert: impl FnMut(T) -> Result<Item, Problem>,
    ) -> Result<Vec<Result<Item, Problem>>, Problem> {
        let items = self.body.parse::<BatchBody<'a>>()?.items;
        let most = self.api.limits.batch_items;
        if !(1..=most).contains(&items.len()) {
            return Err(Problem::invalid(format!(
                "`items`: send 1 to {most} of them; this batch has {}.",
                items.len()
            )));
        }
        let charge = |index| if index == 0 { Ok(()) } else { self.api.gateway.charge_request(self.app, self.purpose) };
        let read = |(index, item): (usize, &'a RawValue)| {
            charge(index)?;
            convert(body::object(item.get())?)
        };
        Ok(items.into_iter().enumerate().map(read).collect())
    }
}

/// Returns the number of bytes that the results of duplicates may have. It keeps the response within the limit of a
/// body.
pub(super) fn results_max(items: usize, limits: &Limits) -> usize {
    limits.body_bytes.saturating_sub(items.saturating_mul(ITEM_BYTES))
}

/// Returns the response with the results in order. `name` reads an item again, for operators who look for its claim.
pub(super) fn response<Body: Success>(
    results: &[Result<Body, Problem>],
    call: &ApiCall<'_>,
    name: impl Fn(&RawValue) -> Option<Named>,
) -> Response {
    let base = &call.api.problem_base;
    let items = OnceCell::new();
    for (index, noted) in results.iter().enumerate().filter_map(|(index, result)| Some((index, noted(result)?))) {
        let named = || {
            let items = items.get_or_init(|| call.parse::<BatchBody<'_>>().map(|body| body.items).unwrap_or_default());
            items.get(index).and_then(|item| name(item)).unwrap_or_default()
        };
        let is_whole = noted.operation.is_some() && noted.global_id.is_some();
        let (operation, global_id) = if is_whole { (None, None) } else { named() };
        note_call(call.api, call.app, call.request_id, noted.of_call(operation, global_id));
    }
    written(|text| {
        text.reserve(results.len() * GRANT_BYTES);
        let mut separator = "{\"items\":[";
        for result in results {
            text.extend_from_slice(separator.as_bytes());
            separator = ",";
            match result {
                Ok(body) => item_result(body, text)?,
                // A problem document has the status already.
                Err(problem) => serde_json::to_writer(&mut *text, &problem.document(call.request_id.as_str(), base))?,
            }
        }
        text.extend_from_slice(b"]}");
        Ok(())
    })
}

fn noted<Body: Success>(result: &Result<Body, Problem>) -> Option<Noted> {
    match result {
        Ok(body) => body.noted(),
        Err(problem) => Noted::of_problem(problem),
    }
}

/// Writes the body of the single call, with its status before its own fields.
fn item_result<Body: Success>(body: &Body, text: &mut Vec<u8>) -> serde_json::Result<()> {
    text.extend_from_slice(b"{\"status\":");
    text.extend_from_slice(body.status().as_str().as_bytes());
    let brace = text.len();
    body.write(text)?;
    text[brace] = b',';
    Ok(())
}

/// Typical size of a granted item.
const GRANT_BYTES: usize = 384;

/// Generous size of an item without its result.
const ITEM_BYTES: usize = 768;
