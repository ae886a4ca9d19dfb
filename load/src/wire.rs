//! Requests and responses. Written from the contract and independent of the gateway's code, so that errors there are
//! found here.

use std::{borrow::Cow, fmt::Write as _};

use md5::{Digest as _, Md5};
use serde::Deserialize;
use serde_json::Value;

/// All problem codes of the contract.
const CODES: [&str; 25] = [
    "malformed_json",
    "invalid_request",
    "unauthenticated",
    "app_disabled",
    "not_found",
    "method_not_allowed",
    "duplicate",
    "superseded",
    "already_succeeded",
    "lease_lost",
    "expired",
    "body_too_large",
    "unsupported_media_type",
    "contents_mismatch",
    "fingerprint_mismatch",
    "contents_not_canonical",
    "contents_empty",
    "quota_exceeded",
    "store_unavailable",
    "store_full",
    "store_incompatible",
    "outcome_unknown",
    "overloaded",
    "draining",
    "internal",
];

/// Length of a request to a service behind a proxy.
const ORDER_BYTES: usize = 1024;

/// Longer than the rest of such a request.
const NOTE: &str = match std::str::from_utf8(&[b'x'; ORDER_BYTES]) {
    Ok(note) => note,
    Err(_) => "",
};

/// Protocol of claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// HTTP API of the contract.
    #[default]
    Gateway,
    /// Redis command over HTTP: the caller computes key and value, including the attempt.
    Webdis,
    /// HTTP API of Diom: the caller computes the key, and there is no attempt.
    Diom,
    /// Requests are forwarded as they are, and repeats too.
    Forwarding,
}

/// Common parameters of a run's claims.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// App key.
    pub(crate) app: String,
    pub(crate) operation: String,
    /// Number of operations among which the orders are divided. Of several, each has a number after its name.
    pub(crate) operations: u64,
    /// Part of every key, so that two runs never share one.
    pub(crate) run: String,
    /// Lease and retention: longer than the run, and over soon after it. Without it, the gateway's terms apply.
    pub(crate) kept: Option<String>,
}

impl Terms {
    pub(crate) fn new(app: &str, operation: &str, kept: Option<&str>) -> Self {
        let run = format!("{:08x}", rand::random::<u32>());
        Self { app: app.to_owned(), operation: operation.to_owned(), operations: 1, run, kept: kept.map(str::to_owned) }
    }

    fn operation(&self, order: u64) -> Cow<'_, str> {
        match self.operations {
            1 => Cow::Borrowed(&self.operation),
            several => Cow::Owned(format!("{}.{}", self.operation, order % several)),
        }
    }

    /// In canonical form: one key, no spaces.
    pub(crate) fn contents(&self, order: u64) -> String {
        format!(r#"{{"order":"{}-{order}"}}"#, self.run)
    }

    /// Returns the idempotency key of a request to a service behind a proxy.
    pub(crate) fn idempotency_key(&self, order: u64) -> String {
        format!("{}-{order}", self.run)
    }

    /// Returns the body of such a request: 1 KiB of JSON.
    pub(crate) fn order(&self, order: u64) -> String {
        let mut body = String::with_capacity(ORDER_BYTES);
        let _ = write!(body, r#"{{"order":"{}-{order}","note":"{NOTE}"#, self.run);
        body.truncate(ORDER_BYTES - 2);
        body.push_str("\"}");
        body
    }

    pub(crate) fn claim(&self, order: u64) -> String {
        let mut body = String::with_capacity(160);
        self.write_claim(&mut body, order);
        body
    }

    // Writing to a String cannot fail. A batch is written into one, to save the generator's CPU time.
    fn write_claim(&self, body: &mut String, order: u64) {
        let Self { run, kept, .. } = self;
        let operation = self.operation(order);
        let _ = write!(body, r#"{{"operation":"{operation}","contents":{{"order":"{run}-{order}"}}"#);
        if let Some(kept) = kept {
            let _ = write!(body, r#","lease":"{kept}","retention":"{kept}""#);
        }
        body.push('}');
    }

    /// Returns the same claim as a Redis command, with the key and value that the gateway would use, and its attempt.
    pub(crate) fn command(&self, order: u64) -> (String, String) {
        let attempt = Self::attempt();
        // A dot or a slash has a special meaning there.
        let value = self.value(order, &attempt).replace('.', "%2e");
        (format!("SET/{}/{value}/NX/GET/PX/300000", self.key(&self.global_id(order))), attempt)
    }

    /// Returns the same claim as a request to Diom.
    pub(crate) fn start(&self, order: u64) -> String {
        format!(r#"{{"key":"{}","lock_period_ms":300000}}"#, self.global_id(order))
    }

    /// Returns the key of a claim in the gateway's Redis engine.
    pub(crate) fn key(&self, global_id: &str) -> String {
        format!("og:{{{global_id}}}:{}", self.app)
    }

    /// Returns the value of a claim in the gateway's Redis engine.
    pub(crate) fn value(&self, order: u64, attempt: &str) -> String {
        let (kept, operation) = (&self.kept, self.operation(order));
        let kept = kept.as_ref().map_or(String::new(), |kept| format!(" l={kept} r={kept}"));
        format!("{attempt} 1p{kept} o={operation} c={}", self.contents(order))
    }

    /// Returns a new attempt.
    pub(crate) fn attempt() -> String {
        format!("1767225600000000-{:016x}", rand::random::<u64>())
    }

    pub(crate) fn batch(&self, orders: &[u64]) -> String {
        let mut body = String::with_capacity(orders.len() * 128);
        body.push_str(r#"{"items":["#);
        for (index, order) in orders.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            self.write_claim(&mut body, *order);
        }
        body.push_str("]}");
        body
    }

    /// Returns the global ID, from the contract's formula.
    pub(crate) fn global_id(&self, order: u64) -> String {
        format!("{:032x}", self.digest(order))
    }

    /// Reports whether this is the global ID of the order.
    pub(crate) fn is_global_id(&self, order: u64, text: &str) -> bool {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex && u128::from_str_radix(text, 16) == Ok(self.digest(order))
    }

    fn digest(&self, order: u64) -> u128 {
        let mut md5 = Md5::new();
        let contents = self.contents(order);
        for part in [&self.app, "\n", &*self.operation(order), "\n", &contents] {
            md5.update(part);
        }
        u128::from_be_bytes(md5.finalize().into())
    }
}

/// Returns the report of a success, with so many bytes of text in its result.
pub(crate) fn success(attempt: &str, order: u64, bytes: usize) -> String {
    let note = "x".repeat(bytes);
    format!(r#"{{"attempt":"{attempt}","outcome":"success","result":{{"order":{order},"note":"{note}"}}}}"#)
}

pub(crate) fn failure(attempt: &str) -> String {
    format!(r#"{{"attempt":"{attempt}","outcome":"failure"}}"#)
}

/// Fields of all responses that a check reads. Texts are borrowed from the response: none contains an escape.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reply<'a> {
    /// Status of a batch item.
    pub(crate) status: u16,
    pub(crate) global_id: Option<&'a str>,
    pub(crate) attempt: Option<&'a str>,
    pub(crate) state: Option<&'a str>,
    pub(crate) repeated: bool,
    pub(crate) late: Option<bool>,
    pub(crate) code: Option<&'a str>,
    pub(crate) result: Option<Value>,
}

impl Reply<'_> {
    pub(crate) fn is_state(&self, state: &str) -> bool {
        self.state == Some(state)
    }

    /// Returns the code, if it is one of the contract.
    pub(crate) fn known_code(&self) -> Option<&'static str> {
        CODES.into_iter().find(|code| self.code == Some(*code))
    }
}

/// Previous value of the key: nothing means a grant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandReply {
    #[serde(rename = "SET", deserialize_with = "Option::deserialize")]
    found: Option<String>,
}

impl CommandReply {
    pub(crate) fn is_grant(&self) -> bool {
        self.found.is_none()
    }
}

/// State of the key in Diom, before the request.
#[derive(Debug, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum StartReply {
    Started,
    Locked,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BatchReply<'a> {
    #[serde(borrow)]
    pub(crate) items: Vec<Reply<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms_of_run_r() -> Terms {
        Terms { run: "r".into(), ..Terms::new("default", "load", Some("1m")) }
    }

    #[test]
    fn the_global_id_matches_the_contract() {
        // printf 'default\nload\n{"order":"r-7"}' | md5sum
        let terms = terms_of_run_r();
        assert_eq!(terms.global_id(7), "68f3f8b82dbebd5c8a979e59f3bc10c6");
        assert!(terms.is_global_id(7, "68f3f8b82dbebd5c8a979e59f3bc10c6"));
        assert!(!terms.is_global_id(8, "68f3f8b82dbebd5c8a979e59f3bc10c6"));
        assert!(!terms.is_global_id(7, "68F3F8B82DBEBD5C8A979E59F3BC10C6"), "it is in lower case");
    }

    #[test]
    fn a_value_in_the_store_is_a_duplicate_and_none_is_a_grant() {
        let is_grant = |said: &str| serde_json::from_str::<CommandReply>(said).ok().map(|reply| reply.is_grant());
        assert_eq!(is_grant(r#"{"SET":null}"#), Some(true));
        assert_eq!(is_grant(r#"{"SET":"1-1 1p c={}"}"#), Some(false));
        assert_eq!(is_grant(r#"{"SET":[false,"OOM"]}"#), None);
        assert_eq!(is_grant("{}"), None);
    }

    #[test]
    fn diom_grants_what_it_has_started() {
        let started = |said: &str| matches!(serde_json::from_str(said), Ok(StartReply::Started));
        assert!(started(r#"{"status":"started"}"#));
        assert!(!started(r#"{"status":"locked"}"#));
        assert!(serde_json::from_str::<StartReply>(r#"{"status":"completed","data":{"response":[]}}"#).is_err());
        let request: Value = serde_json::from_str(&terms_of_run_r().start(7)).expect("not JSON");
        assert_eq!(request["key"], terms_of_run_r().global_id(7));
    }

    #[test]
    fn an_order_is_json_of_one_kibibyte() {
        let terms = Terms::new("default", "load", None);
        for order in [0, u64::MAX] {
            let body = terms.order(order);
            assert_eq!(body.len(), ORDER_BYTES);
            let body: Value = serde_json::from_str(&body).expect("not JSON");
            assert_eq!(body["order"], terms.idempotency_key(order));
        }
    }

    #[test]
    fn a_batch_is_json() {
        let terms = terms_of_run_r();
        let body: Value = serde_json::from_str(&terms.batch(&[1, 2])).expect("not JSON");
        assert_eq!(body["items"][1]["contents"]["order"], "r-2");
    }
}
