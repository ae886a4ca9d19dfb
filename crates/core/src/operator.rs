//! What an operator may ask of a store beyond its callers: to end a claim, and to list what stands.

use super::attempt::Attempt;
use super::claim::Effect;
use super::global_id::GlobalId;
use super::record::{ClaimState, Key, LiveClaim};
use super::tenant::AppKey;

/// Ends a claim on an operator's word, whatever its state: also a success, which no failure report ever undoes.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// Which claim.
    pub key: Key,
    /// The attempt that the operator was shown as its holder. Nothing else is released.
    pub attempt: Attempt,
}

/// The answer to a [`ReleaseRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseResponse {
    /// The claim is gone, and can be claimed again.
    Done,
    /// Nothing stood there.
    Absent,
    /// Another attempt's claim stands by now; it was not touched.
    Superseded,
}

/// A [`ReleaseRequest`]: what the store holds and the operator's word.
pub fn release(held: Option<&LiveClaim>, request: &ReleaseRequest) -> (Effect, ReleaseResponse) {
    match held {
        None => (Effect::Keep, ReleaseResponse::Absent),
        Some(held) if held.record.attempt == request.attempt => (Effect::Delete, ReleaseResponse::Done),
        Some(_) => (Effect::Keep, ReleaseResponse::Superseded),
    }
}

/// Asks for the claims of an app, in the order of their global IDs.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// Whose claims.
    pub app: AppKey,
    /// Only those in this state.
    pub state: Option<ClaimState>,
    /// Only those that come after this one: the last one of the page before.
    pub after: Option<GlobalId>,
    /// At most so many.
    pub limit: usize,
}

/// A claim in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedClaim {
    /// Its ID.
    pub global_id: GlobalId,
    /// What the store holds.
    pub claim: LiveClaim,
}
