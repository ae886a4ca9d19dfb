//! What goes over the wire: the bodies a caller sends and the answers it reads. Written by hand from the contract, sharing no
//! code with the gateway, so that a slip there shows here.

use md5::{Digest as _, Md5};
use serde::Deserialize;
use serde_json::Value;

/// Every code a refusal may carry.
const CODES: [&str; 24] = [
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
    "quota_exceeded",
    "store_unavailable",
    "store_full",
    "store_incompatible",
    "outcome_unknown",
    "overloaded",
    "draining",
    "internal",
];

/// How a server is asked to claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// As the contract says.
    #[default]
    Gateway,
    /// By a Redis command over HTTP: the caller computes the key and makes the value, the attempt included.
    Webdis,
}

/// What claims of one run have in common.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The app key they are counted under.
    pub(crate) app: String,
    pub(crate) operation: String,
    /// In every key, so that two runs never meet.
    pub(crate) run: String,
    /// Both lease and retention: longer than the run, so that nothing ends meanwhile, and soon over after it.
    /// Without it they are the gateway's own.
    pub(crate) kept: Option<String>,
}

impl Terms {
    pub(crate) fn new(app: &str, operation: &str, kept: Option<&str>) -> Self {
        let run = format!("{:08x}", rand::random::<u32>());
        Self { app: app.to_owned(), operation: operation.to_owned(), run, kept: kept.map(str::to_owned) }
    }

    /// In canonical form: one key, no spaces.
    pub(crate) fn contents(&self, order: u64) -> String {
        format!(r#"{{"order":"{}-{order}"}}"#, self.run)
    }

    pub(crate) fn claim(&self, order: u64) -> String {
        let (operation, contents) = (&self.operation, self.contents(order));
        match &self.kept {
            Some(kept) => {
                format!(r#"{{"operation":"{operation}","contents":{contents},"lease":"{kept}","retention":"{kept}"}}"#)
            }
            None => format!(r#"{{"operation":"{operation}","contents":{contents}}}"#),
        }
    }

    /// The same claim as a command: what the gateway would store under the key it would use. And the attempt in it.
    pub(crate) fn command(&self, order: u64) -> (String, String) {
        let attempt = Self::attempt();
        // A dot or a slash has a meaning of its own there.
        let value = self.value(order, &attempt).replace('.', "%2e");
        (format!("SET/{}/{value}/NX/GET/PX/300000", self.key(&self.global_id(order))), attempt)
    }

    /// Where the gateway's Redis engine keeps a claim.
    pub(crate) fn key(&self, global_id: &str) -> String {
        format!("og:{{{global_id}}}:{}", self.app)
    }

    /// What it keeps there.
    pub(crate) fn value(&self, order: u64, attempt: &str) -> String {
        let Self { kept, operation, .. } = self;
        let kept = kept.as_ref().map_or(String::new(), |kept| format!(" l={kept} r={kept}"));
        format!("{attempt} 1p{kept} o={operation} c={}", self.contents(order))
    }

    /// A new one.
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
            body.push_str(&self.claim(*order));
        }
        body.push_str("]}");
        body
    }

    /// Computed here, from the contract's formula.
    pub(crate) fn global_id(&self, order: u64) -> String {
        let digest = Md5::digest(format!("{}\n{}\n{}", self.app, self.operation, self.contents(order)));
        format!("{:032x}", u128::from_be_bytes(digest.into()))
    }
}

pub(crate) fn success(attempt: &str, order: u64) -> String {
    format!(r#"{{"attempt":"{attempt}","outcome":"success","result":{{"order":{order}}}}}"#)
}

pub(crate) fn failure(attempt: &str) -> String {
    format!(r#"{{"attempt":"{attempt}","outcome":"failure"}}"#)
}

/// The fields of all answers that a check looks at; each is absent where the answer has none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    /// In a batch: what this item would have been answered with alone.
    pub(crate) status: u16,
    pub(crate) global_id: Option<String>,
    pub(crate) attempt: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) repeated: bool,
    pub(crate) late: Option<bool>,
    pub(crate) code: Option<String>,
    pub(crate) result: Option<Value>,
}

impl Reply {
    pub(crate) fn is_state(&self, state: &str) -> bool {
        self.state.as_deref() == Some(state)
    }

    /// The code, if it is one of the contract.
    pub(crate) fn known_code(&self) -> Option<&'static str> {
        CODES.into_iter().find(|code| self.code.as_deref() == Some(*code))
    }
}

/// What was found under the key: nothing is a grant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandReply {
    #[serde(rename = "SET", deserialize_with = "Option::deserialize")]
    found: Option<String>,
}

impl CommandReply {
    /// As a gateway would have put it.
    pub(crate) fn as_claim(&self, global_id: String, attempt: String) -> (u16, Reply) {
        let (status, state) = (if self.found.is_some() { 409 } else { 201 }, Some("in_progress".to_owned()));
        let reply = Reply { global_id: Some(global_id), state, ..Reply::default() };
        match &self.found {
            None => (status, Reply { attempt: Some(attempt), ..reply }),
            Some(_) => (status, Reply { code: Some("duplicate".to_owned()), ..reply }),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct BatchReply {
    pub(crate) items: Vec<Reply>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_global_id_is_the_contracts() {
        // printf 'default\nload\n{"order":"r-7"}' | md5sum
        let terms = Terms { app: "default".into(), operation: "load".into(), run: "r".into(), kept: Some("1m".into()) };
        assert_eq!(terms.global_id(7), "68f3f8b82dbebd5c8a979e59f3bc10c6");
    }

    #[test]
    fn what_a_command_found_is_a_duplicate_and_nothing_is_a_grant() {
        let reply = |said: &str| {
            let found = serde_json::from_str::<CommandReply>(said).ok()?;
            Some(found.as_claim("id".to_owned(), "1-1".to_owned()))
        };
        let granted = reply(r#"{"SET":null}"#).expect("an answer");
        assert_eq!((granted.0, granted.1.attempt.as_deref()), (201, Some("1-1")));
        let duplicate = reply(r#"{"SET":"1-1 1p c={}"}"#).expect("an answer");
        assert_eq!((duplicate.0, duplicate.1.known_code()), (409, Some("duplicate")));
        assert!(duplicate.1.attempt.is_none());
        assert!(reply(r#"{"SET":[false,"OOM"]}"#).is_none());
        assert!(reply("{}").is_none());
    }

    #[test]
    fn a_batch_is_json() {
        let terms = Terms { app: "default".into(), operation: "load".into(), run: "r".into(), kept: Some("1m".into()) };
        let body: Value = serde_json::from_str(&terms.batch(&[1, 2])).expect("not JSON");
        assert_eq!(body["items"][1]["contents"]["order"], "r-2");
    }
}
