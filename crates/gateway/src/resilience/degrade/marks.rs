//! Marks of grants by policies. Each such grant leaves one in the store. So two grants can be compared even if neither
//! left a record: both failed, ended without an outcome, or were refused there. A mark is a claim of a key that no
//! caller uses, and it has an end. It stores the time of its grant, and for how long the grant kept others out.

use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Grant, Outcome, OutcomeRequest};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{Key, LiveClaim, Record};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use super::super::deadline_budget::DELIVERY_DEADLINE;
use super::Core;

/// Operation of the claims that are marks. Their contents name the marked claim.
const OPERATION: &str = "oncegate:degraded-grant";

/// Retention of marks: by then every gateway that still exists has delivered its grants.
const MARK_KEPT_FOR: Duration = Duration::from_hours(24);

/// Most marks of a key. Grants beyond that are compared with these.
const MARKS_MAX: u32 = 16;

/// The units of durations in a mark, and the largest number of each: records write at most nine digits.
const UNITS: [Duration; 3] = [Duration::from_millis(1), Duration::from_secs(1), Duration::from_mins(1)];
const COUNT_MAX: u128 = 999_999_999;

/// Most that a mark is shorter than its grant: less than the smallest unit at each end.
const ROUNDED_MAX: Duration = Duration::from_millis(2);

/// The time in which an attempt excluded other grants of the same claim, by the wall clocks of gateways.
#[derive(Clone, Copy)]
pub(super) struct ExclusiveTime {
    /// Earliest possible start; before `from` if that was rounded.
    from_at_least: Timestamp,
    from: Timestamp,
    until: Timestamp,
    /// End for take-overs, which need not wait until an unknown outcome ends.
    until_take_over: Timestamp,
    /// True if its claim took over an unknown outcome.
    takes_over: bool,
}

impl ExclusiveTime {
    /// Returns the time of a claim that was granted at one instant and ended at the other.
    pub(super) fn of_claim(request: &ClaimRequest, granted_at: Timestamp, ended_at: Timestamp) -> Self {
        Self {
            from_at_least: granted_at,
            from: granted_at,
            until: ended_at,
            until_take_over: ended_at,
            takes_over: request.take_over,
        }
    }

    /// Returns the time of a claim whose grant is not known here, and whose outcome was reported at this instant.
    pub(super) fn of_outcome(report: &OutcomeRequest, at: Timestamp) -> Self {
        let from = report.attempt.timestamp();
        let mut time = Self { from_at_least: from, from, until: at, until_take_over: at, takes_over: false };
        time.settle(report, at);
        time
    }

    /// Ends the claim with an outcome, which was reported at this instant and blocks the claim for its retention.
    pub(super) fn settle(&mut self, report: &OutcomeRequest, at: Timestamp) {
        let terms = report.late.as_ref().map(|late| late.terms);
        let until = |kept: Option<Retention>| at.plus(kept.and_then(Retention::duration).unwrap_or(Duration::MAX));
        (self.until, self.until_take_over) = match report.outcome {
            Outcome::Success { retention, .. } => {
                let until = until(retention.or(terms.map(|terms| terms.retention)));
                (until, until)
            }
            Outcome::Unknown => (until(terms.map(|terms| terms.unknown_retention)), at),
            // Its lease may have ended before: that ended the claim, or left it to take-overs.
            Outcome::Failure => (self.until.min(at), self.until_take_over.min(at)),
        };
    }

    /// Reads a mark.
    fn of_mark(mark: &LiveClaim) -> Self {
        let (issued_at, terms) = (mark.record.attempt.timestamp(), &mark.record.terms);
        let at = |kept: Retention| issued_at.plus(kept.duration().unwrap_or(Duration::MAX));
        let until = at(terms.retention);
        // Records have no retention of zero, so the shortest one is read as none: a mark should cover less time rather
        // than more.
        let is_shortest = terms.unknown_retention == Retention::For(UNITS[0]);
        let until_take_over = if is_shortest { issued_at } else { at(terms.unknown_retention) };
        let from = issued_at.plus(terms.lease.saturating_sub(MARK_KEPT_FOR));
        Self {
            // The time before the grant was rounded up by less than a millisecond.
            from_at_least: from.minus(UNITS[0]).max(issued_at),
            from,
            until,
            until_take_over: until.min(until_take_over),
            // A mark does not record it. The later of two grants is delivered later, unless their gateways differ.
            takes_over: false,
        }
    }

    /// Returns the terms of its mark, or nothing if it lasted for less than a mark can say. Records count milliseconds: a mark
    /// begins late and ends early rather than report an overlap that was none.
    fn terms(&self, issued_at: Timestamp) -> Option<Terms> {
        let waited_ms = self.from.since(issued_at).as_micros().div_ceil(1_000);
        let waited = Duration::from_millis(u64::try_from(waited_ms).unwrap_or(0));
        let kept = |until: Timestamp| rounded_down(until.since(issued_at)).map_or(Retention::Forever, Retention::For);
        let (retention, until_take_over) = (kept(self.until), kept(self.until_take_over));
        let terms = Terms {
            lease: MARK_KEPT_FOR + waited,
            retention,
            unknown_retention: until_take_over.max(Retention::For(UNITS[0])),
            on_lease_end: LeaseEnd::Release,
        };
        (retention > Retention::For(waited)).then_some(terms)
    }

    /// Reports whether two attempts overlap: the earlier one should have kept the other one out. If rounding hides
    /// which one is earlier, they overlap only if they do in both orders.
    fn overlaps(&self, other: &Self) -> bool {
        let may_precede = |earlier: &Self, later: &Self| earlier.from_at_least <= later.from;
        let keeps_out = |earlier: &Self, later: &Self| {
            later.from < if later.takes_over { earlier.until_take_over } else { earlier.until }
        };
        [(self, other), (other, self)]
            .into_iter()
            .filter(|(earlier, later)| may_precede(earlier, later))
            .all(|(earlier, later)| keeps_out(earlier, later))
    }
}

/// Rounds a duration down to one that a record can hold; `None` if it is too long for that.
fn rounded_down(duration: Duration) -> Option<Duration> {
    let fits = |unit: &&Duration| duration.as_millis() / unit.as_millis() <= COUNT_MAX;
    let unit = UNITS.iter().find(fits)?.as_millis();
    u64::try_from(duration.as_millis() / unit * unit).ok().map(Duration::from_millis)
}

impl Core {
    /// Leaves the mark of a grant by a policy, and returns the marks of other such grants that it overlaps. The second
    /// delivered grant of any two finds the first.
    pub(super) async fn leave_mark(
        &self,
        key: &Key,
        attempt: &Attempt,
        time: &ExclusiveTime,
    ) -> Result<Vec<LiveClaim>, EngineError> {
        let Some(terms) = time.terms(attempt.timestamp()) else {
            return self.overlapping_marks(0, key, attempt, time).await;
        };
        let mut overlapping = Vec::new();
        for slot in 0..MARKS_MAX {
            match self.engine.claim(&mark(key, attempt, slot, terms), DELIVERY_DEADLINE).await? {
                ClaimResponse::Duplicate(other) => {
                    if time.overlaps(&ExclusiveTime::of_mark(&other)) {
                        overlapping.push(other);
                    }
                }
                // Another gateway granted the same nonce: its mark has another time.
                ClaimResponse::Granted(grant) if grant.attempt != *attempt => {}
                // The mark is of an earlier delivery. If the grant lasted longer than was known then, later marks were
                // compared with a shorter time, and the grant needs another mark.
                ClaimResponse::Granted(Grant { lease_left: Some(_), .. }) => {
                    let own = self.engine.read(&mark_name(key, slot).0).await?;
                    if own.is_some_and(|own| own.record.terms.retention >= terms.retention) {
                        overlapping.extend(self.overlapping_marks(slot + 1, key, attempt, time).await?);
                        break;
                    }
                }
                // The first free slot.
                _ => break,
            }
        }
        Ok(overlapping)
    }

    /// Reports whether a policy's grant of a nonce has left a mark, under any attempt.
    pub(super) async fn is_marked(&self, key: &Key, nonce: &Nonce) -> Result<bool, EngineError> {
        Ok(self.marks(0, key).await?.iter().any(|mark| mark.record.attempt.nonce() == nonce))
    }

    /// Reports whether a claim in progress was granted by a policy, left a mark, and had ended by an instant. If its mark ends
    /// with its lease, the store has extended the lease since.
    pub(super) async fn had_ended(&self, key: &Key, claim: &Record, by: Timestamp) -> Result<bool, EngineError> {
        let marks = self.marks(0, key).await?;
        let own = marks.iter().filter(|mark| mark.record.attempt == claim.attempt).map(ExclusiveTime::of_mark);
        let last = own.max_by_key(|time| time.until);
        Ok(last.is_some_and(|time| time.until <= by && time.until.since(time.from) + ROUNDED_MAX < claim.terms.lease))
    }

    /// Returns the marks of other nonces that an attempt overlaps, from this slot on.
    pub(super) async fn overlapping_marks(
        &self,
        slot: u32,
        key: &Key,
        attempt: &Attempt,
        time: &ExclusiveTime,
    ) -> Result<Vec<LiveClaim>, EngineError> {
        let mut marks = self.marks(slot, key).await?;
        marks.retain(|mark| {
            mark.record.attempt.nonce() != attempt.nonce() && time.overlaps(&ExclusiveTime::of_mark(mark))
        });
        Ok(marks)
    }

    /// Returns the marks of a key, from this slot on.
    async fn marks(&self, slot: u32, key: &Key) -> Result<Vec<LiveClaim>, EngineError> {
        let mut marks = Vec::new();
        for slot in slot..MARKS_MAX {
            let Some(mark) = self.engine.read(&mark_name(key, slot).0).await? else { break };
            marks.push(mark);
        }
        Ok(marks)
    }
}

/// Reports whether this is the operation of marks. Callers do not use it.
pub(super) fn is_of_marks(operation: &Operation) -> bool {
    operation.as_ref() == OPERATION
}

/// Returns the key of the first mark of a key.
pub(super) fn mark_key(of: &Key) -> Key {
    mark_name(of, 0).0
}

/// Returns the name of the mark in this slot of a key.
fn mark_name(key: &Key, slot: u32) -> (Key, Operation, Canonical) {
    let contents = Canonical::trusted(&format!("\"{}/{slot}\"", key.global_id));
    let operation: Operation = OPERATION.parse().unwrap_or_default();
    let global_id = GlobalId::of(&key.app, &operation, &contents);
    (Key { app: key.app.clone(), realm: key.realm, global_id }, operation, contents)
}

/// Returns the claim that is the mark of a grant.
fn mark(of: &Key, attempt: &Attempt, slot: u32, terms: Terms) -> ClaimRequest {
    let (key, operation, contents) = mark_name(of, slot);
    ClaimRequest {
        key,
        attempt: attempt.clone(),
        operation,
        contents_stored_bytes: contents.as_str().len(),
        contents,
        fingerprint: None,
        terms,
        caller: None,
        take_over: false,
        waits: false,
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_mark_has_the_time_of_its_grant_in_whole_milliseconds() {
        let mut claim = fresh_claim();
        let issued_at = Timestamp::from_micros(1_700_000_000_000_000);
        claim.attempt = Attempt::new(issued_at, claim.attempt.nonce().clone());
        let granted_at = issued_at.plus(Duration::from_micros(2_000_001));
        let time = ExclusiveTime::of_claim(&claim, granted_at, issued_at.plus(SECOND * 30));
        let terms = time.terms(issued_at).unwrap();
        assert_eq!(terms.lease, MARK_KEPT_FOR + Duration::from_millis(2001), "rounded up");
        assert_eq!(terms.retention, Retention::For(SECOND * 30));
        let record = Record { terms, ..mark(&claim.key, &claim.attempt, 0, terms).record() };
        let read = ExclusiveTime::of_mark(&LiveClaim { record, left: None, ends_at: None, fence: None });
        assert_eq!((read.from, read.until), (issued_at.plus(Duration::from_millis(2001)), time.until));
        assert_eq!(read.from_at_least, issued_at.plus(SECOND * 2));
    }

    #[test]
    fn a_grant_of_less_than_a_millisecond_has_no_mark() {
        let (claim, issued_at) = (fresh_claim(), Timestamp::from_micros(1_700_000_000_000_000));
        for (micros, is_marked) in [(0, false), (1_000, false), (1_999, false), (2_000, true)] {
            let granted_at = issued_at.plus(Duration::from_micros(1));
            let ended_at = issued_at.plus(Duration::from_micros(micros));
            let time = ExclusiveTime::of_claim(&claim, granted_at, ended_at);
            assert_eq!(time.terms(issued_at).is_some(), is_marked, "{micros} µs");
        }
    }

    #[test]
    fn durations_are_rounded_down_to_nine_digits_of_a_unit() {
        let (millis, minutes) = (Duration::from_millis, Duration::from_mins);
        for (duration, rounded) in [
            (Duration::from_micros(1_999), Some(millis(1))),
            (millis(999_999_999), Some(millis(999_999_999))),
            (millis(1_000_000_999), Some(millis(1_000_000_000))),
            (millis(999_999_999_999), Some(millis(999_999_999_000))),
            (millis(1_000_000_019_999), Some(millis(999_999_960_000))),
            (minutes(999_999_999) + Duration::from_secs(59), Some(minutes(999_999_999))),
            (minutes(1_000_000_000), None),
        ] {
            assert_eq!(rounded_down(duration), rounded, "{duration:?}");
        }
    }

    #[test]
    fn only_marks_have_the_operation_of_marks() {
        assert!(is_of_marks(&OPERATION.parse().unwrap()));
        assert!(!is_of_marks(&Operation::default()));
    }
}
