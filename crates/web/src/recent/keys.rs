//! Recent requests of the proxy by their key. A key is never kept: only its first characters, and its digest to find it.

use std::fmt;

use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_gateway::tenants::secret::SecretDigest;
use serde::Serialize;

use super::kept::Entry;
use crate::request_id::RequestId;

/// Answers that a request with a key may have got, as in metrics.
pub const ANSWERS: [&str; 8] =
    ["forwarded", "replayed", "in_progress", "unknown", "not_stored", "mismatch", "refused", "unavailable"];

/// Characters of a key that are shown, and no more than half of it.
const SHOWN_MAX: usize = 8;

/// A request on a protected route that has named its key and its caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KeyedRequest {
    /// Its number in this process, which rises.
    pub id: u64,
    /// Time at which it was answered.
    pub at: Timestamp,
    /// The operation of its claims: `proxy:` and the name of its route.
    #[serde(rename = "route", serialize_with = "name_of_route")]
    pub operation: Operation,
    /// The app of its route.
    pub app: AppKey,
    /// Its key.
    #[serde(rename = "key_start")]
    pub key: HiddenKey,
    /// The answer: one of [`ANSWERS`].
    pub answer: &'static str,
    /// The status of a forwarded or replayed response.
    pub status: Option<u16>,
    /// The claim of key and caller.
    pub global_id: GlobalId,
    /// The ID of the request.
    pub request_id: String,
}

/// A key that can be compared and not be read.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenKey {
    start: Box<str>,
    digest: SecretDigest,
}

/// Filter of an operator.
#[derive(Clone, Debug, Default)]
pub struct WantedKeys {
    /// On the route whose claims have this operation.
    pub operation: Option<Operation>,
    /// Of this app.
    pub app: Option<AppKey>,
    /// With this answer.
    pub answer: Option<&'static str>,
    /// With this key.
    pub key: Option<HiddenKey>,
    /// Of this claim.
    pub global_id: Option<GlobalId>,
    /// Older than the one with this number.
    pub before: Option<u64>,
}

impl KeyedRequest {
    /// Returns a request that has no answer yet.
    pub fn new(
        operation: Operation,
        app: AppKey,
        key: &str,
        global_id: GlobalId,
        request_id: Option<&RequestId>,
    ) -> Self {
        Self {
            id: 0,
            at: Timestamp::from_micros(0),
            operation,
            app,
            key: HiddenKey::of(key),
            answer: "unavailable",
            status: None,
            global_id,
            request_id: request_id.map_or("", RequestId::as_str).to_owned(),
        }
    }
}

impl Entry for KeyedRequest {
    fn app(&self) -> &AppKey {
        &self.app
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn numbered(self, id: u64) -> Self {
        Self { id, ..self }
    }
}

impl HiddenKey {
    /// Hides a key.
    pub fn of(key: &str) -> Self {
        let count = key.chars().count();
        let start = key.chars().take(SHOWN_MAX.min(count / 2)).collect::<String>();
        Self { start: start.into(), digest: SecretDigest::of(key) }
    }
}

fn name_of_route<S: serde::Serializer>(operation: &Operation, serializer: S) -> Result<S::Ok, S::Error> {
    let name = operation.as_ref();
    serializer.serialize_str(name.strip_prefix(Operation::PROXY_PREFIX).unwrap_or(name))
}

impl Serialize for HiddenKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.start)
    }
}

impl fmt::Debug for HiddenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.start)
    }
}

impl WantedKeys {
    pub(super) fn has(&self, request: &KeyedRequest) -> bool {
        self.operation.as_ref().is_none_or(|operation| *operation == request.operation)
            && self.app.as_ref().is_none_or(|app| *app == request.app)
            && self.answer.is_none_or(|answer| answer == request.answer)
            && self.key.as_ref().is_none_or(|key| *key == request.key)
            && self.global_id.is_none_or(|id| id == request.global_id)
            && self.before.is_none_or(|before| request.id < before)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oncegate_core::clock::ManualClock;

    use super::*;
    use crate::recent::Recent;
    use crate::recent::kept::KEPT_MAX;

    fn request(app: &str, route: &str, key: &str) -> KeyedRequest {
        let (operation, app) = (format!("proxy:{route}").parse().unwrap(), app.parse().unwrap());
        KeyedRequest::new(operation, app, key, GlobalId::from_bytes([1; 16]), None)
    }

    fn recent() -> Recent {
        Recent::new(Arc::new(ManualClock::at(Timestamp::from_micros(7))))
    }

    #[test]
    fn a_key_is_found_and_never_shown_whole() {
        let recent = recent();
        for key in ["8e03978e-40d5-43e8", "8e03978e-40d5-ffff", "k-1", "x"] {
            recent.note_request(request("shop", "orders.create", key));
        }
        let wanted = |route: &str, key: &str| WantedKeys {
            operation: format!("proxy:{route}").parse().ok(),
            key: Some(HiddenKey::of(key)),
            ..WantedKeys::default()
        };
        let found = recent.find_requests(&wanted("orders.create", "8e03978e-40d5-43e8"), 9);
        assert_eq!(
            found.iter().map(|found| (found.id, found.at)).collect::<Vec<_>>(),
            [(1, Timestamp::from_micros(7))]
        );
        assert!(recent.find_requests(&wanted("orders.cancel", "8e03978e-40d5-43e8"), 9).is_empty());
        assert!(recent.find_requests(&wanted("orders.create", "8e03978e"), 9).is_empty(), "the start is not enough");
        let all = recent.find_requests(&WantedKeys::default(), 9);
        let starts: Vec<_> = all.iter().map(|request| &*request.key.start).collect();
        assert_eq!(starts, ["", "k", "8e03978e", "8e03978e"], "at most 8 characters, and half of a key");
        let shown = format!("{all:?}{}", serde_json::to_string(&all).unwrap());
        assert!(!shown.contains("40d5") && !shown.contains("k-1"), "{shown}");
        assert!(shown.contains("\"route\":\"orders.create\",\"app\":\"shop\",\"key_start\":\"8e03978e\""), "{shown}");
    }

    #[test]
    fn the_app_that_has_the_most_gives_way() {
        let recent = recent();
        recent.note_request(request("quiet", "pay", "key-of-quiet"));
        for _ in 0..=KEPT_MAX / 1000 {
            for _ in 0..1000 {
                recent.note_request(request("loud", "orders.create", "key-of-loud"));
            }
            recent.keep();
        }
        assert_eq!((recent.requests.count(), recent.lost_requests()), (KEPT_MAX, 0));
        let quiet = WantedKeys { key: Some(HiddenKey::of("key-of-quiet")), ..WantedKeys::default() };
        assert_eq!(recent.find_requests(&quiet, 9).len(), 1, "it is the oldest, and stays");
    }
}
