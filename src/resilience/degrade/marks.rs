//! Marks that degraded grants leave in the store, so that two of them are compared although neither left a record of its own:
//! both failed, ended without a word, or were refused there. A mark is a claim like any other, of a key that no caller asks
//! for, and ends by itself. It holds when its grant was made and how long it lasted.

use std::time::Duration;

use super::super::journal::DELIVERY_DEADLINE;
use super::Core;
use crate::domain::attempt::Attempt;
use crate::domain::canonical::Canonical;
use crate::domain::claim::{Claim, Claimed, Grant, Settle};
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

/// The shortest that a grant is said to have lasted, and the longest before it is for ever.
const GRAIN: Duration = Duration::from_millis(1);
const LASTED_MAX: Duration = Duration::from_hours(24 * 365 * 1000);

/// How many marks a key may have. More gateways that were cut off at once and granted the same are compared with these.
const MARKS_MAX: u32 = 16;

/// When something was held that others may have been granted too, by the wall clocks of gateways.
struct Span {
    from: Timestamp,
    until: Timestamp,
}

impl Span {
    /// What a mark tells of its grant.
    fn of(mark: &Held) -> Self {
        let from = mark.record.attempt.timestamp();
        Self { from, until: from.plus(mark.record.terms.retention.duration().unwrap_or(Duration::MAX)) }
    }

    fn meets(&self, other: &Self) -> bool {
        self.from < other.until && other.from < self.until
    }
}

impl Core {
    /// Leaves the mark of a grant that lasted until then, and tells which other degraded grants it overlapped. Of any two
    /// grants the one that comes second finds the other.
    pub(super) async fn leave_mark(
        &self,
        key: &Key,
        attempt: &Attempt,
        until: Timestamp,
    ) -> Result<Vec<Held>, EngineError> {
        let span = Span { from: attempt.timestamp(), until };
        let mut beside = Vec::new();
        for place in 0..MARKS_MAX {
            match self.engine.claim(&mark(key, attempt, place, until.since(span.from))).await?.split().0 {
                Claimed::Duplicate(held) => {
                    if span.meets(&Span::of(&held)) {
                        beside.push(held);
                    }
                }
                // The same try, as another gateway granted it: what it was compared with then, it was for a time of its own.
                Claimed::Granted(grant) if grant.attempt != *attempt => {}
                // It had found a place before, and may have lasted longer than was known then: those that have come since were
                // compared with that, and those that come from now on need another mark.
                Claimed::Granted(Grant { lease_left: Some(_), .. }) => {
                    let own = self.engine.read(&named(key, place).0).await?;
                    if own.is_some_and(|own| Span::of(&own).until >= until) {
                        beside.extend(self.marks_from(place + 1, key, attempt, &span).await?);
                        break;
                    }
                }
                // The first place that was free.
                _ => break,
            }
        }
        Ok(beside)
    }

    /// Which degraded grants another attempt overlapped, whose outcome blocks others until then. It leaves no mark where the
    /// store has taken its outcome: whoever comes after it finds that.
    pub(super) async fn marks_beside(&self, ask: &Settle, until: Timestamp) -> Result<Vec<Held>, EngineError> {
        self.marks_from(0, &ask.key, &ask.attempt, &Span { from: ask.attempt.timestamp(), until }).await
    }

    /// The marks of other tries from this place on that meet a span.
    async fn marks_from(
        &self,
        place: u32,
        key: &Key,
        attempt: &Attempt,
        span: &Span,
    ) -> Result<Vec<Held>, EngineError> {
        let mut met = Vec::new();
        for place in place..MARKS_MAX {
            let Some(held) = self.engine.read(&named(key, place).0).await? else { break };
            if held.record.attempt.nonce() != attempt.nonce() && span.meets(&Span::of(&held)) {
                met.push(held);
            }
        }
        Ok(met)
    }
}

/// What the mark at this place of a key is called.
fn named(key: &Key, place: u32) -> (Key, Operation, Canonical) {
    let contents = Canonical::trusted(&format!("\"{}/{place}\"", key.global_id));
    let operation: Operation = OPERATION.parse().unwrap_or_default();
    let global_id = GlobalId::of(&key.app, &operation, &contents);
    (Key { app: key.app.clone(), global_id }, operation, contents)
}

/// The claim that is the mark of a grant.
fn mark(of: &Key, attempt: &Attempt, place: u32, lasted: Duration) -> Claim {
    let (key, operation, contents) = named(of, place);
    Claim {
        key,
        attempt: attempt.clone(),
        operation,
        contents_stored_bytes: contents.as_str().len(),
        contents,
        fingerprint: None,
        terms: Terms {
            lease: KEPT,
            // What lasts longer than anybody can write down lasts for ever.
            retention: if lasted > LASTED_MAX { Retention::Forever } else { Retention::For(lasted.max(GRAIN)) },
            unknown_retention: Retention::For(KEPT),
            on_lease_end: LeaseEnd::Release,
        },
        take_over: false,
        deadline: DELIVERY_DEADLINE,
        on_outage: ClaimOnOutage::FailClosed,
    }
}
