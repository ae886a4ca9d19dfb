//! Lookups of claims.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::about::About;
use crate::call::{Call, has_global_id};
use crate::client::Client;
use crate::error::Error;
use crate::report::is_global_id;

/// Stored state of a claim, for people and reports: another attempt may claim right after the lookup.
#[derive(Deserialize, Clone, Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields of the HTTP API: openapi.yaml explains them")]
pub struct Record {
    pub global_id: String,
    pub operation: String,
    pub state: String,
    pub timestamp: i64,
    pub attempt_hash: String,
    pub claimed_at: String,
    #[serde(default)]
    pub expires_at: Option<String>,
    #[serde(default)]
    pub fence: Option<i64>,
    #[serde(default)]
    pub late: bool,
    #[serde(default)]
    pub contents: Option<Box<RawValue>>,
    #[serde(default)]
    pub contents_sha256: Option<String>,
    #[serde(default)]
    pub contents_bytes: Option<i64>,
    #[serde(default)]
    pub contents_verified: Option<bool>,
    #[serde(default)]
    pub has_fingerprint: bool,
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    #[serde(default)]
    pub retention: Option<String>,
    #[serde(default)]
    pub on_lease_end: Option<String>,
    #[serde(default)]
    pub degraded: Option<String>,
}

impl Client {
    /// Returns the record of a claim, or nothing if there is none.
    ///
    /// # Errors
    ///
    /// No gateway answered, or a mistake of the caller.
    pub async fn lookup(&self, global_id: &str) -> Result<Option<Record>, Error> {
        if !is_global_id(global_id) {
            return Err(Error::Argument(format!("not a global ID: {global_id:.40?}; expected 32 hex digits")));
        }
        self.look(global_id, &self.about("", Some(global_id)), self.0.claim_within).await
    }

    pub(crate) async fn look(&self, global_id: &str, about: &About, within: Duration) -> Result<Option<Record>, Error> {
        let call = Call {
            endpoint: "lookup",
            method: Method::GET,
            path: &format!("/v1/claims/{global_id}"),
            body: Bytes::new(),
            within,
            wait: Duration::ZERO,
            first: self.0.first.load(Ordering::Relaxed),
            stop: None,
            genuine: has_global_id,
            about,
        };
        let answer = self.call(call, &mut false).await?;
        if answer.status == 404 && answer.code() == "not_found" {
            return Ok(None);
        }
        if !answer.is_success() {
            return Err(answer.rejection());
        }
        let read = serde_json::from_slice(&answer.text);
        read.map(Some).map_err(|error| Error::Argument(format!("a record of another form: {error}")))
    }
}
