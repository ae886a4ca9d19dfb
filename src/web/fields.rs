//! Fields of requests that the public API and the admin API have in common, read within their bounds.

use serde_json::value::RawValue;

use super::body;
use super::problem::{Code, Problem};
use crate::domain::canonical::{Canonical, NotCanonical, canonicalize};
use crate::domain::limits::Limits;
use crate::domain::tenant::Operation;
use crate::domain::terms::Retention;

/// The canonical form of contents that must be there.
pub fn required_contents(contents: Option<&RawValue>, limits: &Limits) -> Result<Canonical, Problem> {
    let contents = contents.ok_or_else(|| {
        Problem::invalid(
            "`contents` is missing: send what makes two operations the same, such as {\"order_id\": \"A-1001\"}.",
        )
    })?;
    bounded(canonicalize(contents.get().as_bytes()), "`contents`", limits)
}

/// Returns an operation that callers may use.
///
/// # Errors
/// That its prefix is reserved.
pub fn check_operation(operation: Option<Operation>) -> Result<Option<Operation>, Problem> {
    match operation {
        Some(operation) if operation.is_internal() => Err(Problem::invalid(format!(
            "`operation`: the prefix `{}` is reserved for the gateway; choose another name.",
            Operation::INTERNAL_PREFIX
        ))),
        operation => Ok(operation),
    }
}

/// A retention within its bounds.
pub fn check_retention(retention: Option<Retention>, limits: &Limits) -> Result<(), Problem> {
    let checked = retention.map_or(Ok(()), |retention| limits.check_retention(retention));
    checked.map_err(|wrong| Problem::invalid(format!("`retention`: {wrong}.")))
}

/// A canonical form, if there is one and it is no longer than contents may be.
pub fn bounded(json: Result<Canonical, NotCanonical>, what: &str, limits: &Limits) -> Result<Canonical, Problem> {
    match json {
        Ok(json) if json.as_str().len() > limits.contents_bytes => Err(body::too_large(what, limits.contents_bytes)),
        Ok(json) => Ok(json),
        Err(why) => {
            let code = if why == NotCanonical::Empty { Code::ContentsEmpty } else { Code::ContentsNotCanonical };
            Err(Problem::new(code, format!("{why}.")))
        }
    }
}
