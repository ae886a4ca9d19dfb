//! Requests of operators to a store: release a claim, list live claims.

use super::attempt::Attempt;
use super::claim::{Effect, NamesEnd};
use super::clock::Timestamp;
use super::engine::SharedRecord;
use super::global_id::GlobalId;
use super::lock::LockName;
use super::record::{ClaimState, Key, LiveClaim, Realm, Record};
use super::tenant::AppKey;

/// Ends a claim in any state, also a succeeded one, which no outcome undoes; or replaces the result of a succeeded one.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// The claim.
    pub key: Key,
    /// The holder that the operator was shown. A claim of another attempt is not released.
    pub attempt: Attempt,
    /// JSON text that replaces the result of a succeeded claim. The claim keeps its end. Absent: the claim ends.
    pub result: Option<Box<str>>,
}

/// The answer to a [`ReleaseRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseResponse {
    /// The claim has ended, and can be claimed again; or its result is replaced.
    Done,
    /// There is no live claim.
    Absent,
    /// Another attempt holds the claim, or it has no result to replace; nothing was changed.
    Superseded,
}

/// It names no end: a claim that it keeps ends as before.
impl NamesEnd for ReleaseResponse {
    fn set_end(&mut self, _: Timestamp) {}
}

/// Applies a [`ReleaseRequest`] to the live claim of the key.
pub fn release(live: Option<&LiveClaim>, request: &ReleaseRequest) -> (Effect, ReleaseResponse) {
    match live {
        None => (Effect::Keep, ReleaseResponse::Absent),
        Some(LiveClaim { record, .. }) if record.attempt == request.attempt => match &request.result {
            None => (Effect::Delete, ReleaseResponse::Done),
            Some(result) if record.state == ClaimState::Succeeded => {
                let record = Record { result: Some(result.clone()), ..record.clone() };
                (Effect::Replace(record), ReleaseResponse::Done)
            }
            Some(_) => (Effect::Keep, ReleaseResponse::Superseded),
        },
        Some(_) => (Effect::Keep, ReleaseResponse::Superseded),
    }
}

/// Lists claims of an app and realm, in the order of their global IDs.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// The app.
    pub app: AppKey,
    /// The realm.
    pub realm: Realm,
    /// Only claims in this state.
    pub state: Option<ClaimState>,
    /// Only claims after this one, the last of the previous page.
    pub after: Option<GlobalId>,
    /// Maximum number of claims.
    pub limit: usize,
}

/// Lists unknown claims of an app, the oldest first.
#[derive(Clone, Debug)]
pub struct UnknownsRequest {
    /// The app.
    pub app: AppKey,
    /// Maximum number of claims.
    pub limit: usize,
}

/// Unknown claims of an app.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownsPage {
    /// The claims, the oldest first.
    pub found: Vec<UnknownClaim>,
    /// There may be more.
    pub more: bool,
}

/// An unknown claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownClaim {
    /// Its realm.
    pub realm: Realm,
    /// Its ID.
    pub global_id: GlobalId,
    /// The claim.
    pub claim: LiveClaim,
    /// Time at which it became unknown, by the clock of a gateway.
    pub since: Timestamp,
}

/// Lists records of an app's locks, in the order of their names.
#[derive(Clone, Debug)]
pub struct LockListRequest {
    /// The app.
    pub app: AppKey,
    /// Only locks after this one, the last of the previous page.
    pub after: Option<LockName>,
    /// Maximum number of records.
    pub limit: usize,
}

/// A page of the records of locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockPage {
    /// The records, by name.
    pub records: Vec<(LockName, SharedRecord)>,
    /// The store's now.
    pub now: Timestamp,
}

/// A claim in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedClaim {
    /// Its ID.
    pub global_id: GlobalId,
    /// The claim.
    pub claim: LiveClaim,
}
