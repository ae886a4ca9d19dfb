//! What the two batch calls share: reading items one by one, and writing answers in order within one bound.

use std::sync::Arc;

use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Api;
use super::answer::Success;
use crate::domain::limits::Limits;
use crate::tenants::App;
use crate::tenants::quota::Purpose;
use crate::web::body::{self, JsonBytes};
use crate::web::problem::Problem;
use crate::web::request_id::RequestId;
use crate::web::response::written;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// The items of a batch, each still as its own JSON text.
///
/// # Errors
/// What is wrong with the batch as a whole. What is wrong with an item is that item's answer.
pub fn items<'a>(body: &'a JsonBytes, api: &Arc<Api>) -> Result<Vec<&'a RawValue>, Problem> {
    let items = body.parse::<BatchBody<'a>>()?.items;
    let most = api.limits.batch_items;
    if (1..=most).contains(&items.len()) {
        Ok(items)
    } else {
        Err(Problem::invalid(format!("`items`: send 1 to {most} of them; this batch has {}.", items.len())))
    }
}

/// The items that the app's quota has room for, made by `make`; the others are answered with what stands in their way. The
/// first was drawn with the request.
pub fn admitted<'a, Item>(
    items: Vec<&'a RawValue>,
    api: &Api,
    app: &App,
    purpose: Purpose,
    make: impl Fn(&'a RawValue) -> Result<Item, Problem>,
) -> Vec<Result<Item, Problem>> {
    let admit = |place| if place == 0 { Ok(()) } else { api.gateway.charge_request(app, purpose) };
    let admitted = |(place, raw)| {
        admit(place)?;
        make(raw)
    };
    items.into_iter().enumerate().map(admitted).collect()
}

/// One item as this type.
pub fn item<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, Problem> {
    body::object(raw.get())
}

/// Bytes that the results of duplicates may have, for the whole answer to be no longer than a body.
pub fn results_max(items: usize, limits: &Limits) -> usize {
    limits.body_bytes.saturating_sub(items.saturating_mul(ITEM_BYTES))
}

/// Writes the answers in order.
pub fn answer<Body: Success>(answers: &[Result<Body, Problem>], request_id: &RequestId) -> Response {
    written(|text| {
        // About what a grant takes.
        text.reserve(answers.len() * GRANT_BYTES);
        let mut separator = "{\"items\":[";
        for answer in answers {
            text.extend_from_slice(separator.as_bytes());
            separator = ",";
            match answer {
                Ok(body) => item_answer(body, text)?,
                // A problem holds its status already.
                Err(problem) => serde_json::to_writer(&mut *text, &problem.document(request_id.as_str()))?,
            }
        }
        text.extend_from_slice(b"]}");
        Ok(())
    })
}

/// The body of the single call, with its status before its own fields.
fn item_answer<Body: Success>(body: &Body, text: &mut Vec<u8>) -> serde_json::Result<()> {
    text.extend_from_slice(b"{\"status\":");
    text.extend_from_slice(body.status().as_str().as_bytes());
    let brace = text.len();
    body.write(text)?;
    text[brace] = b',';
    Ok(())
}

/// What a granted item takes, about.
const GRANT_BYTES: usize = 384;

/// What an item takes without its result, generously.
const ITEM_BYTES: usize = 768;
