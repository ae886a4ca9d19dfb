//! Fields of requests and responses that the middleware reads, hides or does not store.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

pub(super) const OUTCOME: HeaderName = HeaderName::from_static("oncegate-outcome");
pub(super) const DEGRADED: HeaderName = HeaderName::from_static("oncegate-degraded");
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const PREFER: &str = "prefer";
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Fields that concern one connection. `Connection` can name more.
const HOP_BY_HOP: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// Fields that belong to one caller, or that are new in each response.
const NEVER_STORED: [&str; 5] = ["content-length", "date", "set-cookie", "set-cookie2", "www-authenticate"];

/// The fields of responses that are stored.
#[derive(Clone, Default, Debug)]
pub(super) struct StoredFields {
    /// Stored although they belong to one caller.
    pub(super) with: Vec<HeaderName>,
    /// Not stored, in addition to the fields that are never stored.
    pub(super) without: Vec<HeaderName>,
}

impl StoredFields {
    /// Returns the stored fields, which a replay has. Values from the store are checked like those of a handler.
    pub(super) fn of<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)> {
        let named = named_by_connection(headers);
        headers.iter().filter(move |(name, _)| {
            let is_default = !NEVER_STORED.contains(&name.as_str());
            !is_never(name)
                && !named.contains(name)
                && (is_default || self.with.contains(name))
                && !self.without.contains(name)
        })
    }
}

/// Returns why a field cannot be stored.
pub(super) fn not_storable(name: &HeaderName) -> Option<String> {
    (is_never(name) || matches!(name.as_str(), "content-length" | "date")).then(|| {
        format!("`store_with` has {name}, which is fresh in each response or concerns one connection; leave it out")
    })
}

fn is_never(name: &HeaderName) -> bool {
    let name_of = name.as_str();
    HOP_BY_HOP.contains(&name_of) || name_of.starts_with("proxy-") || is_own(name) || *name == REPLAYED
}

/// Reports whether only the middleware and handlers use a field.
fn is_own(name: &HeaderName) -> bool {
    name.as_str().strip_prefix("oncegate").is_some_and(|rest| rest.starts_with(['-', '_']))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    items(headers, header::CONNECTION.as_str()).filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// Returns the items of a field that is a list (RFC 9110, 5.6.1).
fn items<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Removes the fields of the middleware from the head of a handler, and returns the text of its outcome.
pub(super) fn take_outcome(headers: &mut HeaderMap) -> Option<String> {
    let lines: Vec<_> =
        headers.get_all(OUTCOME).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let said = (!lines.is_empty()).then(|| lines.join(",").trim().to_owned());
    headers.remove(OUTCOME);
    headers.remove(REPLAYED);
    said
}

/// Reports whether a response must not be stored.
pub(super) fn is_private(headers: &HeaderMap) -> bool {
    items(headers, header::CACHE_CONTROL.as_str()).any(|item| item.eq_ignore_ascii_case(b"no-store"))
}

/// Removes fields of a request that would adapt its response to one caller: a replay must fit all callers.
pub(crate) fn for_handler(headers: &mut HeaderMap) {
    for name in [header::ACCEPT_ENCODING, header::RANGE, header::IF_RANGE] {
        headers.remove(name);
    }
}

/// Reports whether the response to a request cannot be recorded: `WebSocket` and gRPC.
pub(super) fn is_not_supported(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let is_grpc =
        |value: &HeaderValue| value.as_bytes().get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC));
    items(headers, header::UPGRADE.as_str()).any(|item| item.eq_ignore_ascii_case(b"websocket"))
        || headers.get(header::CONTENT_TYPE).is_some_and(is_grpc)
}

/// Returns the time that a caller prefers to wait, in whole seconds (RFC 7240). A preference that cannot be read is none.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let preferences = lines.flat_map(|line| line.split(',')).filter_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse().ok())
    });
    // The first one counts.
    preferences.take(1).flatten().map(|seconds: u32| Duration::from_secs(seconds.into())).next()
}

/// Says the wait that was granted.
pub(super) fn apply_wait(headers: &mut HeaderMap, wait: Duration) {
    if let Ok(applied) = HeaderValue::try_from(format!("wait={}", wait.as_secs())) {
        headers.append(PREFERENCE_APPLIED, applied);
    }
}
