//! Answers to a claim that is not granted: a duplicate, and a mismatch.

use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::state::State;

/// An operation that another attempt is running or has completed. Its result is JSON after [`crate::Client::claim`], and of the type of the work
/// after [`crate::Client::once`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Duplicate<T = Box<RawValue>> {
    /// Global ID of the operation.
    pub global_id: String,
    /// `in_progress`, `succeeded` or `unknown`.
    pub state: State,
    /// The result stored with the success. `()`, and nothing, are none.
    pub result: Option<T>,
    /// Reason why the result of the success was not stored: `too_large`, `not_serialisable` or `refused`.
    pub result_omitted: Option<String>,
    /// Time after which a repeat is useful, while it is in progress.
    pub retry_after: Duration,
    /// Time at which the claim was granted.
    pub claimed_at: Option<SystemTime>,
    /// End of the record.
    pub expires_at: Option<SystemTime>,
    /// False for a record of a late outcome that came without its contents.
    pub contents_verified: bool,
    /// The outage policy that answered.
    pub degraded: Option<String>,
    /// In observe mode, what enforcing would have answered.
    pub would_be: Option<String>,
    /// True if the call has waited for the other attempt.
    pub(crate) has_waited: bool,
}

impl Duplicate {
    /// Reads the result.
    ///
    /// # Errors
    ///
    /// [`Error::ResultNotRead`]: the result is of another type.
    pub fn decode<T: DeserializeOwned>(self) -> Result<Duplicate<T>, Error> {
        let read = |text: Box<RawValue>| {
            serde_json::from_str(text.get()).map_err(|error| Error::ResultNotRead(error.to_string()))
        };
        Ok(Duplicate {
            result: self.result.map(read).transpose()?,
            result_omitted: self.result_omitted,
            global_id: self.global_id,
            state: self.state,
            retry_after: self.retry_after,
            claimed_at: self.claimed_at,
            expires_at: self.expires_at,
            contents_verified: self.contents_verified,
            degraded: self.degraded,
            would_be: self.would_be,
            has_waited: self.has_waited,
        })
    }
}

/// An operation that was claimed with another fingerprint, or with other contents of the same ID.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// Global ID of the operation.
    pub global_id: String,
    /// `contents_mismatch` or `fingerprint_mismatch`.
    pub code: String,
}
