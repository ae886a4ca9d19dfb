//! Shared records: the calls that every store answers for metadata, locks and degraded grants.

use std::time::Duration;

use async_trait::async_trait;

use super::error::EngineError;
use super::notification::{Channel, Subscription};
use super::shared_record::{ChangeResponse, RecordChange, RecordName, RecordView};
use crate::operator::{LockListRequest, LockPage};

/// Calls of shared records. Part of the contract of [`Engine`](super::Engine).
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Returns the record of this name, if there is a live one, and the present time of the store.
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError>;

    /// Replaces a record by compare-and-set, in one atomic step. The new record is stored if the stored version is the
    /// expected one (`None`: no record), and if the present time of the store is within the bounds of the change.
    /// Versions are compared, never values. If the new version is stored already, the answer is the same as for a
    /// store, so that a call can be repeated after a lost reply. The store's now never goes back while a record lasts,
    /// as far as its clock does not. As durable as a claim.
    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError>;

    /// Lists the records of an app's locks that have not ended, if [`Capabilities::lists`](super::Capabilities::lists) is set;
    /// otherwise fails as unavailable, with the reason. The page is shorter than `limit` only if there are no more records.
    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError>;

    /// Subscribes to the notifications of a record. Returns soon, also if the store is unavailable; a store without
    /// notifications returns an empty subscription.
    async fn subscribe(&self, channel: &Channel) -> Subscription;
}
