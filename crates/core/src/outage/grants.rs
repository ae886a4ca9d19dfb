//! Degraded grants: what outage policies granted for a key, as the store keeps it once it is delivered. So two of them can be compared
//! even if neither left a claim: both failed, ended without an outcome, or were refused by the store.
//!
//! The record of a key is a text: the version `1`, then a line for each grant:
//! `<attempt> <end> from=<µs> until=<µs> take_over=<µs> kept=<µs>[ taker]`, where `<µs>` is an instant, or `forever`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::attempt::{Attempt, Nonce};
use crate::claim::{ClaimRequest, Outcome, OutcomeRequest};
use crate::clock::Timestamp;
use crate::engine::{ChangePurpose, EngineError, RecordChange, RecordName, SharedRecord};
use crate::record::{ClaimState, Key};
use crate::terms::Retention;

/// Time for which a grant is kept: by then every gateway that still exists has delivered its grants.
pub const KEPT_FOR: Duration = Duration::from_hours(24);

/// Most grants in a record. Further ones are compared with these.
pub const GRANTS_MAX: usize = 16;

/// The version that this release writes. A reader ignores unknown words, so a new word needs no new version.
const VERSION: &str = "1";

/// Instant of an end that never comes.
const FOREVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// A grant by a policy, and the time in which it kept other attempts out, by the wall clocks of gateways.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DegradedGrant {
    /// The attempt that was granted.
    pub attempt: Attempt,
    /// Instant of the grant.
    pub from: Timestamp,
    /// End for other claims.
    pub until: Timestamp,
    /// End for take-overs, which need not wait until an unknown outcome ends.
    pub until_take_over: Timestamp,
    /// True if it took over an unknown outcome.
    pub takes_over: bool,
    /// How it ended, as far as its gateway knew.
    pub end: GrantEnd,
}

/// End of a degraded grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantEnd {
    /// Its lease ended, or will.
    Lease,
    /// It failed before the end of its lease.
    Failure,
    /// It succeeded.
    Success,
    /// Its outcome is unknown.
    Unknown,
}

/// The degraded grants of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grants(Vec<Kept>);

/// A grant, and the end of the time for which it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    grant: DegradedGrant,
    until: Timestamp,
}

impl DegradedGrant {
    /// Creates a grant of a claim that was granted at one instant and whose lease ended at the other.
    pub fn of_claim(request: &ClaimRequest, granted_at: Timestamp, lease_ended_at: Timestamp) -> Self {
        Self {
            attempt: request.attempt.clone(),
            from: granted_at,
            until: lease_ended_at,
            until_take_over: lease_ended_at,
            takes_over: request.take_over,
            end: GrantEnd::Lease,
        }
    }

    /// Creates a grant that is not known here, whose outcome was reported at this instant.
    pub fn of_outcome(report: &OutcomeRequest, at: Timestamp) -> Self {
        let from = report.attempt.timestamp();
        let mut grant = Self {
            attempt: report.attempt.clone(),
            from,
            until: at,
            until_take_over: at,
            takes_over: false,
            end: GrantEnd::Lease,
        };
        grant.settle(report, at);
        grant
    }

    /// Ends the grant with an outcome, which was reported at this instant and blocks the claim for its retention.
    pub fn settle(&mut self, report: &OutcomeRequest, at: Timestamp) {
        let terms = report.late.as_ref().map(|late| late.terms);
        let until = |kept: Option<Retention>| kept.and_then(Retention::duration).map_or(FOREVER, |kept| at.plus(kept));
        (self.until, self.until_take_over, self.end) = match report.outcome {
            Outcome::Success { retention, .. } => {
                let until = until(retention.or(terms.map(|terms| terms.retention)));
                (until, until, GrantEnd::Success)
            }
            Outcome::Unknown => (until(terms.map(|terms| terms.unknown_retention)), at, GrantEnd::Unknown),
            // Its lease may have ended before: that ended the claim, or left it to take-overs.
            Outcome::Failure if at < self.until => (at, self.until_take_over.min(at), GrantEnd::Failure),
            Outcome::Failure => return,
        };
    }

    /// Returns whether it ended when it began.
    pub fn is_empty(&self) -> bool {
        self.until <= self.from
    }

    /// Returns whether two attempts overlap: the earlier one should have kept the other one out. Two that began at one instant
    /// overlap only if they do in both orders.
    pub fn overlaps(&self, other: &Self) -> bool {
        let keeps_out = |earlier: &Self, later: &Self| {
            later.from < if later.takes_over { earlier.until_take_over } else { earlier.until }
        };
        let in_order = |earlier: &Self, later: &Self| earlier.from > later.from || keeps_out(earlier, later);
        in_order(self, other) && in_order(other, self)
    }

    /// Adds the time of the same attempt from another delivery.
    fn extend(&mut self, other: &Self) {
        if other.until > self.until {
            self.end = other.end;
        }
        // An outcome without its grant begins when it was called: nothing more is known there.
        let called_at = self.attempt.timestamp();
        self.from = match (self.from == called_at, other.from == called_at) {
            (true, _) => other.from,
            (false, true) => self.from,
            (false, false) => self.from.min(other.from),
        };
        self.until = self.until.max(other.until);
        self.until_take_over = self.until_take_over.max(other.until_take_over);
        self.takes_over |= other.takes_over;
    }
}

impl Grants {
    /// Reads the record of a key.
    ///
    /// # Errors
    /// It is incompatible: no release wrote it in this form.
    pub fn of_record(record: Option<&SharedRecord>) -> Result<Self, EngineError> {
        let Some(record) = record else { return Ok(Self::default()) };
        let text = std::str::from_utf8(record.value()).ok();
        let grants = text.and_then(|text| {
            let mut lines = text.lines();
            lines.next().filter(|version| *version == VERSION)?;
            lines.map(Kept::parse).collect::<Option<_>>()
        });
        grants.map(Self).ok_or_else(|| EngineError::incompatible("a record of degraded grants cannot be read"))
    }

    /// Returns the change that stores these over the record that is stored now, under a version of random bits.
    ///
    /// # Errors
    /// They are too long for a record.
    pub fn change(
        &self,
        key: &Key,
        expected: Option<&SharedRecord>,
        version: u64,
    ) -> Result<RecordChange, EngineError> {
        let new = SharedRecord::versioned(version, self.text().as_bytes());
        Ok(RecordChange {
            name: RecordName::Grants(key.clone()),
            expected: expected.cloned(),
            new: new.map_err(|error| EngineError::incompatible(error.to_string()))?,
            lasts: Some(KEPT_FOR),
            from: Timestamp::default(),
            before: FOREVER,
            // It grants nothing: it was granted before.
            purpose: ChangePurpose::Keep,
            lease_max: Duration::ZERO,
            notifies: false,
        })
    }

    /// Returns these with one more grant; `None` if they have it already, or have no room for it. Leaves out those that have been
    /// kept long enough.
    #[must_use]
    pub fn with(&self, grant: &DegradedGrant, now: Timestamp) -> Option<Self> {
        let mut kept = self.0.clone();
        if let Some(own) = kept.iter_mut().find(|kept| kept.grant.attempt == grant.attempt) {
            own.grant.extend(grant);
            own.until = now.plus(KEPT_FOR);
            let is_new = self.0.iter().all(|known| known.grant != own.grant);
            return is_new.then_some(Self(kept));
        }
        kept.retain(|kept| now < kept.until);
        kept.push(Kept { grant: grant.clone(), until: now.plus(KEPT_FOR) });
        (kept.len() <= GRANTS_MAX).then_some(Self(kept))
    }

    /// Returns the grants of other nonces that overlap with an attempt. If it is known when it was granted, that counts.
    pub fn overlapping(&self, own: &DegradedGrant) -> Vec<&DegradedGrant> {
        let from = self.of(&own.attempt).map_or(own.from, |known| known.from.max(own.from));
        let own = &DegradedGrant { from, ..own.clone() };
        self.iter().filter(|other| other.attempt.nonce() != own.attempt.nonce() && own.overlaps(other)).collect()
    }

    /// Returns whether a nonce was granted, under any attempt.
    pub fn has_nonce(&self, nonce: &Nonce) -> bool {
        self.iter().any(|grant| grant.attempt.nonce() == nonce)
    }

    /// Returns the grant of an attempt.
    pub fn of(&self, attempt: &Attempt) -> Option<&DegradedGrant> {
        self.iter().find(|grant| grant.attempt == *attempt)
    }

    /// Returns the grants, the one that was written last at the end.
    pub fn iter(&self) -> impl Iterator<Item = &DegradedGrant> {
        self.0.iter().map(|kept| &kept.grant)
    }

    fn text(&self) -> String {
        let mut text = VERSION.to_owned();
        for kept in &self.0 {
            text.push('\n');
            kept.write(&mut text);
        }
        text
    }
}

impl Kept {
    fn write(&self, text: &mut String) {
        let DegradedGrant { attempt, from, until, until_take_over, takes_over, end } = &self.grant;
        // Writing to a String cannot fail.
        let _ = attempt.write_to(text);
        text.push(' ');
        text.push_str(end.name());
        for (word, instant) in [("from", from), ("until", until), ("take_over", until_take_over), ("kept", &self.until)]
        {
            let _ = match *instant {
                FOREVER => write!(text, " {word}=forever"),
                instant => write!(text, " {word}={}", instant.as_micros()),
            };
        }
        if *takes_over {
            text.push_str(" taker");
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (attempt, end) = (words.next()?.parse().ok()?, GrantEnd::of_name(words.next()?)?);
        let instant = |name: &str| {
            let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
            if value == "forever" { Some(FOREVER) } else { value.parse().ok().map(Timestamp::from_micros) }
        };
        let grant = DegradedGrant {
            attempt,
            from: instant("from")?,
            until: instant("until")?,
            until_take_over: instant("take_over")?,
            takes_over: words.any(|word| word == "taker"),
            end,
        };
        Some(Self { grant, until: instant("kept")? })
    }
}

impl GrantEnd {
    /// Returns the state of the claim, as far as its gateway knew.
    pub fn state(self) -> ClaimState {
        match self {
            Self::Lease | Self::Failure => ClaimState::InProgress,
            Self::Success => ClaimState::Succeeded,
            Self::Unknown => ClaimState::Unknown,
        }
    }

    const ALL: [Self; 4] = [Self::Lease, Self::Failure, Self::Success, Self::Unknown];

    fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Failure => "failure",
            Self::Success => "success",
            Self::Unknown => "unknown",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::LateTerms;
    use crate::engine::conformance::fresh_claim;
    use crate::record::Contents;

    const NOON: u64 = 1_700_000_000_000_000;
    const DAY: u64 = 24 * 3_600_000_000;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(NOON + micros)
    }

    fn grant(number: u8, from: u64, until: u64) -> DegradedGrant {
        DegradedGrant {
            attempt: format!("{NOON}-000000000000000{number:x}").parse().unwrap(),
            from: at(from),
            until: at(until),
            until_take_over: at(until),
            takes_over: false,
            end: GrantEnd::Lease,
        }
    }

    fn of(grants: &[DegradedGrant]) -> Grants {
        grants.iter().fold(Grants::default(), |known, grant| known.with(grant, at(0)).unwrap())
    }

    fn read(text: &str) -> Result<Grants, EngineError> {
        Grants::of_record(Some(&SharedRecord::versioned(7, text.as_bytes()).unwrap()))
    }

    /// Every later release must read this text, so it is never changed.
    #[test]
    fn a_record_has_a_line_for_each_grant_and_reads_back() {
        let unknown = DegradedGrant { until_take_over: at(7), end: GrantEnd::Unknown, ..grant(1, 3, 9) };
        let taker = DegradedGrant {
            until: FOREVER,
            until_take_over: FOREVER,
            takes_over: true,
            end: GrantEnd::Success,
            ..grant(2, 5, 0)
        };
        let grants = of(&[unknown, taker, DegradedGrant { end: GrantEnd::Failure, ..grant(3, 1, 2) }, grant(4, 1, 2)]);
        let text = "1\n\
            1700000000000000-0000000000000001 unknown from=1700000000000003 until=1700000000000009 \
            take_over=1700000000000007 kept=1700086400000000\n\
            1700000000000000-0000000000000002 success from=1700000000000005 until=forever take_over=forever \
            kept=1700086400000000 taker\n\
            1700000000000000-0000000000000003 failure from=1700000000000001 until=1700000000000002 \
            take_over=1700000000000002 kept=1700086400000000\n\
            1700000000000000-0000000000000004 lease from=1700000000000001 until=1700000000000002 \
            take_over=1700000000000002 kept=1700086400000000";
        assert_eq!(grants.text(), text);
        assert_eq!(read(text), Ok(grants.clone()));
        assert_eq!(read(&text.replace(" kept=", " word=of-a-release-to-come kept=")), Ok(grants));
        assert_eq!(Grants::of_record(None), Ok(Grants::default()));
        for bad in ["", "2\n", "1\nx", &text[..60], &text.replace("from", "since"), &text.replace("lease", "other")] {
            assert!(matches!(read(bad), Err(EngineError::Determinate(_))), "{bad}");
        }
    }

    #[test]
    fn a_change_lasts_for_a_day_and_grants_nothing() {
        let (key, grants) = (fresh_claim().key, of(&[grant(1, 0, 5)]));
        let change = grants.change(&key, None, 9).unwrap();
        assert_eq!((change.name, change.lasts), (RecordName::Grants(key.clone()), Some(Duration::from_micros(DAY))));
        // It is written also while the store is full, and lengthens no freeze of grants.
        assert_eq!((change.purpose, change.lease_max), (ChangePurpose::Keep, Duration::ZERO));
        assert_eq!(Grants::of_record(Some(&change.new)), Ok(grants.clone()));
        let next = grants.change(&key, Some(&change.new), 10).unwrap();
        assert_eq!(next.expected.as_ref(), Some(&change.new));
        assert_ne!(next.new.version(), change.new.version());
    }

    #[test]
    fn two_grants_overlap_if_the_earlier_one_should_have_kept_the_other_out() {
        let taker = |grant| DegradedGrant { takes_over: true, ..grant };
        let unknown = |grant, reported| DegradedGrant { until_take_over: at(reported), ..grant };
        let forever = |grant| DegradedGrant { until: FOREVER, until_take_over: FOREVER, ..grant };
        for (one, other, overlap) in [
            (grant(1, 0, 10), grant(2, 9, 20), true),
            (grant(1, 0, 10), grant(2, 10, 20), false),
            (grant(1, 0, 10), grant(2, 3, 5), true),
            (grant(1, 0, 10), grant(2, 0, 10), true),
            (grant(1, 5, 5), grant(2, 5, 10), false),
            (grant(1, 0, 10), grant(2, 5, 5), true),
            (forever(grant(1, 0, 0)), grant(2, 1 << 40, 1 << 41), true),
            (unknown(grant(1, 0, 10), 4), grant(2, 5, 20), true),
            (unknown(grant(1, 0, 10), 4), taker(grant(2, 5, 20)), false),
            (unknown(grant(1, 0, 10), 4), taker(grant(2, 3, 20)), true),
            // Who comes first is not kept out.
            (taker(grant(1, 0, 10)), unknown(grant(2, 5, 20), 6), true),
        ] {
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (overlap, overlap), "{one:?} {other:?}");
        }
    }

    #[test]
    fn an_outcome_ends_a_grant_or_lengthens_it() {
        let claim = fresh_claim();
        let late = Some(LateTerms { operation: None, contents: Contents::Unverified, terms: claim.terms });
        let success = |retention| Outcome::Success { result: None, retention };
        for (outcome, reported, until, until_take_over, end) in [
            (Outcome::Failure, 4, at(4), at(4), GrantEnd::Failure),
            (Outcome::Failure, 12, at(10), at(10), GrantEnd::Lease),
            (Outcome::Unknown, 4, at(4 + 7 * DAY), at(4), GrantEnd::Unknown),
            (success(None), 4, at(4 + DAY), at(4 + DAY), GrantEnd::Success),
            (
                success(Some(Retention::For(Duration::from_micros(2 * DAY)))),
                4,
                at(4 + 2 * DAY),
                at(4 + 2 * DAY),
                GrantEnd::Success,
            ),
            (success(Some(Retention::Forever)), 4, FOREVER, FOREVER, GrantEnd::Success),
        ] {
            let (key, attempt) = (claim.key.clone(), claim.attempt.clone());
            let report = OutcomeRequest { key, attempt, outcome, late: late.clone() };
            let mut grant = DegradedGrant::of_claim(&claim, at(1), at(10));
            grant.settle(&report, at(reported));
            assert_eq!((grant.until, grant.until_take_over, grant.end), (until, until_take_over, end), "{report:?}");
            if report.outcome != Outcome::Failure {
                let unseen = DegradedGrant::of_outcome(&report, at(reported));
                assert_eq!((unseen.from, unseen.until), (claim.attempt.timestamp(), until), "{report:?}");
            }
        }
        assert!(DegradedGrant::of_claim(&claim, at(5), at(5)).is_empty());
        assert!(!DegradedGrant::of_claim(&claim, at(5), at(6)).is_empty());
    }

    #[test]
    fn a_grant_is_written_once_and_only_lengthened() {
        let grants = of(&[grant(1, 3, 9)]);
        for known in [grant(1, 3, 9), grant(1, 3, 5), grant(1, 4, 9)] {
            assert_eq!(grants.with(&known, at(1)), None, "{known:?}");
        }
        for (own, time) in [(grant(1, 2, 9), (2, 9)), (grant(1, 3, 11), (3, 11)), (grant(1, 5, 10), (3, 10))] {
            let with = grants.with(&own, at(1)).unwrap();
            assert!(with.iter().map(|grant| (grant.from, grant.until)).eq([(at(time.0), at(time.1))]), "{with:?}");
        }
        // An outcome alone is taken to be granted when it was called, until its grant says when that was.
        for (known, own) in [(grant(1, 0, 9), grant(1, 3, 5)), (grant(1, 3, 9), grant(1, 0, 11))] {
            let with = of(&[known]).with(&own, at(1)).unwrap();
            assert_eq!(with.iter().next().unwrap().from, at(3), "{own:?}");
            assert!(with.overlapping(&grant(1, 0, 9)).is_empty());
            let both = with.with(&grant(2, 1, 3), at(1)).unwrap();
            assert!(both.overlapping(&grant(1, 0, 9)).is_empty(), "it ended before");
        }
        let failed = DegradedGrant { end: GrantEnd::Failure, ..grant(1, 3, 20) };
        assert_eq!(grants.with(&failed, at(1)).unwrap().iter().next().unwrap().end, GrantEnd::Failure);
        // The same nonce under another attempt is another grant, of the same try.
        let again: Attempt = format!("{}-0000000000000001", NOON + 1).parse().unwrap();
        let again = DegradedGrant { attempt: again, ..grant(1, 3, 9) };
        let both = grants.with(&again, at(1)).unwrap();
        assert_eq!((both.iter().count(), both.overlapping(&again).len()), (2, 0));
        assert!(both.has_nonce(again.attempt.nonce()) && !both.has_nonce(grant(2, 0, 0).attempt.nonce()));
        assert_eq!(both.overlapping(&grant(2, 4, 5)).len(), 2);
    }

    #[test]
    fn sixteen_grants_are_kept_for_a_day_each() {
        let all: Vec<_> = (0..16).map(|number| grant(number, 0, 9)).collect();
        let full = of(&all);
        let other = DegradedGrant { attempt: format!("{NOON}-1000000000000000").parse().unwrap(), ..grant(0, 0, 9) };
        assert_eq!(full.with(&other, at(DAY - 1)), None);
        assert_eq!(full.overlapping(&other).len(), 16, "it is compared with them");
        let later = full.with(&other, at(DAY)).unwrap();
        assert!(later.iter().eq([&other]));
        let longest = format!("{NOON}-{}", "n".repeat(64)).parse().unwrap();
        let longest = DegradedGrant { attempt: longest, ..grant(0, 0, 9) };
        assert!(of(&[longest]).change(&fresh_claim().key, None, 1).is_ok());
    }
}
