//! Fields that requests of the public API and of the admin API have in common, with their limits.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use oncegate_core::canonical::{Canonical, NotCanonical, canonicalize};
use oncegate_core::limits::Limits;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{Retention, Span};
use serde_json::value::RawValue;

use super::body;
use super::problem::{Code, Problem};

/// Returns the canonical form of required contents.
pub fn required_contents(contents: Option<&RawValue>, limits: &Limits) -> Result<Canonical, Problem> {
    let contents = contents.ok_or_else(|| {
        Problem::invalid(
            "`contents` is missing: send what makes two operations the same, such as {\"order_id\": \"A-1001\"}.",
        )
    })?;
    bounded(canonicalize(contents.get().as_bytes()), "`contents`", limits)
}

/// Returns an operation, unless its prefix is reserved.
pub fn check_operation(operation: Option<Operation>) -> Result<Option<Operation>, Problem> {
    match operation {
        Some(operation) if let Some(prefix) = operation.reserved_prefix() => Err(Problem::invalid(format!(
            "`operation`: the prefix `{prefix}` is reserved for the gateway; choose another name."
        ))),
        operation => Ok(operation),
    }
}

/// Returns the value of a field that is written as text.
pub fn parsed<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|wrong| Problem::invalid(format!("`{field}`: {wrong}.")))
}

/// Returns a lease within its bounds.
pub fn checked_lease(lease: Option<Span>, limits: &Limits) -> Result<Option<Duration>, Problem> {
    let lease = lease.map(|Span(lease)| lease);
    let checked = lease.map_or(Ok(()), |lease| limits.check_lease(lease));
    checked.map(|()| lease).map_err(|wrong| Problem::invalid(format!("`lease`: {wrong}.")))
}

/// Checks the bounds of a retention.
pub fn check_retention(retention: Option<Retention>, limits: &Limits) -> Result<(), Problem> {
    let checked = retention.map_or(Ok(()), |retention| limits.check_retention(retention));
    checked.map_err(|wrong| Problem::invalid(format!("`retention`: {wrong}.")))
}

/// Returns a canonical form within the limit of contents.
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
