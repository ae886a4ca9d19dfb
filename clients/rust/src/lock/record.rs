//! The stored state of a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;

use super::{Locker, Mode};
use crate::call::Call;
use crate::error::Error;

/// Stored state of a lock, for people and reports: the lock may change right after the lookup.
#[derive(Deserialize, Clone, Debug)]
#[non_exhaustive]
pub struct LockRecord {
    /// Name of the lock.
    pub name: String,
    /// Nothing if the lock is free and requests queue for it.
    pub mode: Option<Mode>,
    /// Maximum number of holds at once; nothing if the holders have named none.
    pub limit: Option<u32>,
    /// Nothing if the lock is free.
    pub fence: Option<i64>,
    /// The holds, without their attempts.
    pub holders: Vec<LockHolder>,
    /// Number of requests in the queue.
    pub waiting: u64,
}

/// One hold of a lock.
#[derive(Deserialize, Clone, Debug)]
#[non_exhaustive]
pub struct LockHolder {
    /// The first 8 hex digits of the SHA-256 of the hold's nonce.
    pub hash: String,
    /// Its mode.
    pub mode: Mode,
    /// Time of the grant, RFC 3339.
    pub claimed_at: String,
    /// Milliseconds that are left of its lease.
    pub lease_ms: u64,
}

impl LockRecord {
    /// Returns true if the lock was held.
    pub fn held(&self) -> bool {
        self.mode.is_some()
    }
}

impl Locker {
    /// Returns the holders of the lock and the length of its queue, or nothing if it is free and no request queues. It acquires nothing.
    ///
    /// # Errors
    ///
    /// No gateway answered, or a mistake of the caller.
    pub async fn lookup(&self) -> Result<Option<LockRecord>, Error> {
        self.check()?;
        let about = self.client.about(&self.name, None);
        let call = Call {
            endpoint: "lookup",
            method: Method::GET,
            path: &format!("/v1/locks/{}", self.name),
            body: Bytes::new(),
            within: self.client.0.claim_within,
            wait: Duration::ZERO,
            first: self.client.0.first.load(Ordering::Relaxed),
            stop: None,
            genuine: |body| body.waiting.is_some(),
            about: &about,
        };
        let answer = self.client.call(call, &mut false).await?;
        if answer.status == 404 && answer.code() == "not_found" {
            return Ok(None);
        }
        if !answer.is_success() {
            return Err(answer.rejection());
        }
        let read = serde_json::from_slice(&answer.text);
        read.map(Some).map_err(|error| Error::Argument(format!("a lock of another form: {error}")))
    }
}
