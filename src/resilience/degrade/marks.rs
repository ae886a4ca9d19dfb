//! Marks that degraded grants leave in the store, so that two of them are compared although neither left a record of its own:
//! both failed, or ended without a word. A mark is a claim like any other, of a key that no caller asks for, and ends by
//! itself. It holds when its grant was made and how long it lasted.

use std::time::Duration;

use super::super::journal::DELIVERY_DEADLINE;
use super::Core;
use crate::domain::canonical::Canonical;
use crate::domain::claim::{Claim, Claimed};
use crate::domain::clock::Timestamp;
use crate::domain::global_id::GlobalId;
use crate::domain::record::{Held, Key};
use crate::domain::tenant::Operation;
use crate::domain::terms::{ClaimOnOutage, LeaseEnd, Retention, Terms};
use crate::engine::EngineError;

/// The operation that marks are claims of. Every degraded grant of an operation is one of its contents.
const OPERATION: &str = "oncegate:degraded-grant";

/// How long a mark is kept: by then every gateway that is still there has told the store what it granted.
const KEPT: Duration = Duration::from_hours(24);

/// How many marks a key may have. More gateways that were cut off at once and granted the same are compared with these.
const MARKS_MAX: u32 = 16;

impl Core {
    /// Leaves the mark of a grant that lasted until then, and tells which other degraded grants it overlapped. Of any two
    /// grants the one that comes second finds the other.
    pub(super) async fn leave_mark(&self, ask: &Claim, until: Timestamp) -> Result<Vec<Held>, EngineError> {
        let from = ask.attempt.timestamp();
        let mut beside = Vec::new();
        for place in 0..MARKS_MAX {
            match self.engine.claim(&mark(ask, place, until.since(from))).await?.split().0 {
                Claimed::Duplicate(held) if held.record.attempt.nonce() != ask.attempt.nonce() => {
                    let (theirs_from, lasted) =
                        (held.record.attempt.timestamp(), held.record.terms.retention.duration());
                    let theirs_until = theirs_from.plus(lasted.unwrap_or(Duration::MAX));
                    if theirs_from < until && from < theirs_until {
                        beside.push(held);
                    }
                }
                // Its own: the first place that was free, or the one that it had found before.
                _ => break,
            }
        }
        Ok(beside)
    }
}

/// The claim that is the mark of a grant.
fn mark(ask: &Claim, place: u32, lasted: Duration) -> Claim {
    let contents = Canonical::trusted(&format!("\"{}/{place}\"", ask.key.global_id));
    let operation: Operation = OPERATION.parse().unwrap_or_default();
    let app = ask.key.app.clone();
    Claim {
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), app },
        attempt: ask.attempt.clone(),
        operation,
        contents_stored_bytes: contents.as_str().len(),
        contents,
        fingerprint: None,
        terms: Terms {
            lease: KEPT,
            retention: Retention::For(lasted.max(Duration::from_millis(1))),
            unknown_retention: Retention::For(KEPT),
            on_lease_end: LeaseEnd::Release,
        },
        take_over: false,
        deadline: DELIVERY_DEADLINE,
        on_outage: ClaimOnOutage::FailClosed,
    }
}
