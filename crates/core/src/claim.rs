//! The life of a claim: what is asked, what is answered, and the table of transitions as pure functions.
//!
//! A transition takes what the store holds (already judged by the store's clock) and a request, and returns what is to
//! change and what to answer. Engines make the two atomic per key; none of them decides anything by itself.

use std::time::Duration;

use super::attempt::Attempt;
use super::canonical::Canonical;
use super::record::{ClaimState, Contents, DIGEST_BYTES, Key, LiveClaim, Record, Sha256Digest};
use super::tenant::Operation;
use super::terms::{LeaseEnd, Retention, Terms};

/// A claim call: "may I do this?"
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What is claimed.
    pub key: Key,
    /// The attempt that will hold it.
    pub attempt: Attempt,
    /// The operation within the app.
    pub operation: Operation,
    /// The canonical contents.
    pub contents: Canonical,
    /// Contents longer than this are kept as their digest; 0 means always.
    pub contents_stored_bytes: usize,
    /// The SHA-256 of what else must be the same on a repeat.
    pub fingerprint: Option<Sha256Digest>,
    /// The terms, the lease among them.
    pub terms: Terms,
    /// Claims even if another try's claim stands as `unknown`. Of the very same attempt only an ended lease is restored.
    pub take_over: bool,
}

impl ClaimRequest {
    /// How much of the contents and the fingerprint a grant puts into the store, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        let contents = self.contents.as_str().len();
        let contents = if contents <= self.contents_stored_bytes { contents as u64 } else { DIGEST_BYTES };
        contents + self.fingerprint.map_or(0, |_| DIGEST_BYTES)
    }

    /// The record that a grant puts into the store.
    pub fn record(&self) -> Record {
        Record {
            attempt: self.attempt.clone(),
            state: ClaimState::InProgress,
            operation: Some(self.operation.clone()),
            contents: Contents::keep(&self.contents, self.contents_stored_bytes),
            fingerprint: self.fingerprint,
            terms: self.terms,
            result: None,
            late: false,
        }
    }
}

/// An outcome call: "this is what became of it."
#[derive(Clone, Debug)]
pub struct OutcomeRequest {
    /// Which claim.
    pub key: Key,
    /// The attempt that reports.
    pub attempt: Attempt,
    /// What became of the operation.
    pub outcome: Outcome,
    /// What to record if no claim stands; nothing if the attempt is too old to be recorded.
    pub late: Option<LateTerms>,
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Finished; must never run again.
    Success {
        /// JSON text to replay to duplicates.
        result: Option<Box<str>>,
        /// Instead of the retention resolved at the claim call.
        retention: Option<Retention>,
    },
    /// Certainly did not happen.
    Failure,
    /// Nobody knows.
    Unknown,
}

/// The terms of an outcome that finds no claim.
#[derive(Clone, Debug)]
pub struct LateTerms {
    /// The operation, where the outcome named it.
    pub operation: Option<Operation>,
    /// The contents, where the outcome carried them and they gave the global ID.
    pub contents: Contents,
    /// How long it is kept.
    pub terms: Terms,
}

impl LateTerms {
    /// Those of an outcome of which nothing is known but that it has to be recorded.
    pub fn for_a_day() -> Self {
        let day = Duration::from_hours(24);
        let (retention, on_lease_end) = (Retention::For(day), LeaseEnd::Release);
        let terms = Terms { lease: day, retention, unknown_retention: retention, on_lease_end };
        Self { operation: None, contents: Contents::Unverified, terms }
    }

    /// Those of a claim that stood when its outcome came.
    pub fn of(claim: Record) -> Self {
        Self { operation: claim.operation, contents: claim.contents, terms: claim.terms }
    }
}

/// A renewal: "I am still at it."
#[derive(Clone, Debug)]
pub struct RenewalRequest {
    /// Which claim.
    pub key: Key,
    /// The attempt that asks.
    pub attempt: Attempt,
    /// From now on for this long; the lease of the claim's terms if left out.
    pub lease: Option<Duration>,
}

/// What is to change in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    Keep,
    /// This record, from now on for this long (or until somebody's deed).
    Put(Record, Option<Duration>),
    /// The record that stands, from now on for this long.
    Extend(Duration),
    /// The record goes.
    Delete,
}

/// The answer to a claim call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimResponse {
    /// Do it.
    Granted(Grant),
    /// Somebody is doing it, has done it, or nobody knows.
    Duplicate(LiveClaim),
    /// The same ID with something else in it.
    Mismatch(Mismatch),
}

/// A granted claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The attempt that holds the claim.
    pub attempt: Attempt,
    /// Rises strictly over the attempts of a key; nothing where the engine cannot promise it.
    pub fence: Option<u64>,
    /// An earlier claim call with the same nonce got this claim.
    pub repeated: bool,
    /// The claim that stood was `unknown`, and was taken over.
    pub taken_over: bool,
    /// What the store leaves of the lease; nothing if the whole of it was granted just now.
    pub lease_left: Option<Duration>,
}

/// What differs on a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The contents: an MD5 collision, or a store that was tampered with.
    Contents,
    /// The fingerprint.
    Fingerprint,
}

/// The answer to an outcome call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutcomeResponse {
    /// Taken.
    Done {
        /// Where the claim stands now; nothing if it is gone.
        state: Option<ClaimState>,
        /// How long it stays so; nothing if gone or for ever.
        left: Option<Duration>,
        /// The outcome found no claim. Nothing if that cannot be told, because an earlier try's reply was lost.
        late: Option<bool>,
    },
    /// A success stands; it is never undone.
    AlreadySucceeded,
    /// Another attempt's claim stands; it was not touched.
    Superseded {
        /// Where that claim stands.
        state: ClaimState,
        /// How long it stays so.
        left: Option<Duration>,
    },
    /// No claim stands, and the attempt is too old for its outcome to be recorded.
    Expired,
}

/// The answer to a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RenewalResponse {
    /// The claim is held for this long from now.
    Renewed {
        /// What is left of the lease.
        left: Duration,
    },
    /// The attempt holds no claim that could be renewed.
    LeaseLost,
    /// The operation has been reported done.
    AlreadySucceeded,
    /// Another attempt's claim stands.
    Superseded {
        /// Where that claim stands.
        state: ClaimState,
        /// How long it stays so.
        left: Option<Duration>,
    },
}

/// Claim call: what the store holds, the request, and the fence that a new attempt would get.
pub fn claim(held: Option<&LiveClaim>, request: &ClaimRequest, fence: Option<u64>) -> (Effect, ClaimResponse) {
    let grant =
        |taken_over| (Effect::Put(request.record(), Some(request.terms.lease)), granted(request, fence, taken_over));
    let Some(held) = held else { return grant(false) };
    if let Some(mismatch) = mismatch(&held.record, request) {
        return (Effect::Keep, ClaimResponse::Mismatch(mismatch));
    }
    let is_own = || held.record.attempt.nonce() == request.attempt.nonce();
    match held.record.state {
        ClaimState::InProgress if is_own() => {
            let grant = Grant {
                attempt: held.record.attempt.clone(),
                fence: held.fence,
                // The very same attempt is this request's own earlier try, whose reply was lost on the way.
                repeated: held.record.attempt != request.attempt,
                taken_over: false,
                lease_left: held.left,
            };
            (Effect::Keep, ClaimResponse::Granted(grant))
        }
        // A repeat of the try that has come to this takes nothing over: it would undo its own report.
        ClaimState::Unknown if request.take_over && !is_own() => grant(true),
        // A lease that ended without a report is restored to the very attempt: its gateway had extended it meanwhile.
        ClaimState::Unknown if request.take_over && request.attempt == held.record.attempt && held.is_ended_lease() => {
            grant(false)
        }
        ClaimState::InProgress | ClaimState::Succeeded | ClaimState::Unknown => {
            (Effect::Keep, ClaimResponse::Duplicate(held.clone()))
        }
    }
}

/// The answer to a claim call that has put its record.
pub fn granted(request: &ClaimRequest, fence: Option<u64>, taken_over: bool) -> ClaimResponse {
    let attempt = request.attempt.clone();
    ClaimResponse::Granted(Grant { attempt, fence, repeated: false, taken_over, lease_left: None })
}

/// What is compared first on a repeat. The operation too: other operations have other IDs, unless MD5 was made to
/// collide.
fn mismatch(record: &Record, request: &ClaimRequest) -> Option<Mismatch> {
    let same_operation = record.operation.as_ref().is_none_or(|operation| *operation == request.operation);
    if !same_operation || !record.contents.matches(&request.contents) {
        Some(Mismatch::Contents)
    } else if !record.late && record.fingerprint != request.fingerprint {
        Some(Mismatch::Fingerprint)
    } else {
        None
    }
}

/// Outcome call: what the store holds and the report.
pub fn settle(held: Option<&LiveClaim>, request: &OutcomeRequest) -> (Effect, OutcomeResponse) {
    let Some(held) = held else { return settle_absent(request) };
    let (record, left) = (&held.record, held.left);
    if record.attempt != request.attempt {
        return (Effect::Keep, OutcomeResponse::Superseded { state: record.state, left });
    }
    let late = Some(record.late);
    let settled = |state, left| OutcomeResponse::Done { state: Some(state), left, late };
    match (&request.outcome, record.state) {
        (Outcome::Success { .. }, ClaimState::Succeeded) => (Effect::Keep, settled(ClaimState::Succeeded, left)),
        (Outcome::Failure | Outcome::Unknown, ClaimState::Succeeded) => {
            (Effect::Keep, OutcomeResponse::AlreadySucceeded)
        }
        (Outcome::Success { result, retention }, ClaimState::InProgress | ClaimState::Unknown) => {
            let retention = retention.unwrap_or(record.terms.retention);
            let terms = Terms { retention, ..record.terms };
            let record = Record { state: ClaimState::Succeeded, result: result.clone(), terms, ..record.clone() };
            (Effect::Put(record, retention.duration()), settled(ClaimState::Succeeded, retention.duration()))
        }
        (Outcome::Failure, ClaimState::InProgress | ClaimState::Unknown) => {
            (Effect::Delete, OutcomeResponse::Done { state: None, left: None, late: Some(false) })
        }
        (Outcome::Unknown, ClaimState::InProgress) => {
            let left = record.terms.unknown_retention.duration();
            let record = Record { state: ClaimState::Unknown, ..record.clone() };
            (Effect::Put(record, left), settled(ClaimState::Unknown, left))
        }
        (Outcome::Unknown, ClaimState::Unknown) => (Effect::Keep, settled(ClaimState::Unknown, left)),
    }
}

/// The row "nothing" of the outcome call's table.
fn settle_absent(request: &OutcomeRequest) -> (Effect, OutcomeResponse) {
    let record = match request.late_record() {
        None if request.outcome == Outcome::Failure => {
            return (Effect::Keep, OutcomeResponse::Done { state: None, left: None, late: Some(true) });
        }
        None => return (Effect::Keep, OutcomeResponse::Expired),
        Some(record) => record,
    };
    let left = record.settled_retention().duration();
    let answer = OutcomeResponse::Done { state: Some(record.state), left, late: Some(true) };
    (Effect::Put(record, left), answer)
}

impl OutcomeRequest {
    /// How long the result is that a success puts into the store, in bytes.
    pub fn result_bytes(&self) -> u64 {
        match &self.outcome {
            Outcome::Success { result: Some(result), .. } => result.len() as u64,
            Outcome::Success { result: None, .. } | Outcome::Failure | Outcome::Unknown => 0,
        }
    }

    /// What is recorded if no claim stands: nothing for a failure, or for an attempt that is too old.
    pub fn late_record(&self) -> Option<Record> {
        let late = self.late.as_ref()?;
        let (state, result, retention) = match &self.outcome {
            Outcome::Success { result, retention } => (ClaimState::Succeeded, result.clone(), *retention),
            Outcome::Unknown => (ClaimState::Unknown, None, None),
            Outcome::Failure => return None,
        };
        Some(Record {
            attempt: self.attempt.clone(),
            state,
            operation: late.operation.clone(),
            contents: late.contents.clone(),
            fingerprint: None,
            terms: Terms { retention: retention.unwrap_or(late.terms.retention), ..late.terms },
            result,
            late: true,
        })
    }
}

/// Renewal: what the store holds and the request. Never shortens a lease.
pub fn renew(held: Option<&LiveClaim>, request: &RenewalRequest) -> (Effect, RenewalResponse) {
    let Some(LiveClaim { record, left, .. }) = held else { return (Effect::Keep, RenewalResponse::LeaseLost) };
    if record.attempt != request.attempt {
        return (Effect::Keep, RenewalResponse::Superseded { state: record.state, left: *left });
    }
    match record.state {
        ClaimState::InProgress => {
            let lease = request.lease.unwrap_or(record.terms.lease);
            match *left {
                Some(left) if left < lease => (Effect::Extend(lease), RenewalResponse::Renewed { left: lease }),
                left => (Effect::Keep, RenewalResponse::Renewed { left: left.unwrap_or(lease) }),
            }
        }
        ClaimState::Unknown => (Effect::Keep, RenewalResponse::LeaseLost),
        ClaimState::Succeeded => (Effect::Keep, RenewalResponse::AlreadySucceeded),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::fingerprint_digest;
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn terms() -> Terms {
        Terms {
            lease: Duration::from_secs(30),
            retention: Retention::For(HOUR * 24),
            unknown_retention: Retention::For(HOUR * 24 * 7),
            on_lease_end: LeaseEnd::Release,
        }
    }

    fn attempt(name: char) -> Attempt {
        format!("1700000000000000-{}", name.to_string().repeat(16)).parse().unwrap()
    }

    fn request(name: char) -> ClaimRequest {
        let contents = Canonical::trusted("\"order-1\"");
        let (app, operation) = ("shop".parse().unwrap(), Operation::default());
        ClaimRequest {
            key: Key { global_id: super::super::global_id::GlobalId::of(&app, &operation, &contents), app },
            attempt: attempt(name),
            operation,
            contents,
            contents_stored_bytes: 1024,
            fingerprint: None,
            terms: terms(),
            take_over: false,
        }
    }

    fn held(state: ClaimState) -> LiveClaim {
        let record = Record { state, result: Some("1".into()), ..request('A').record() };
        LiveClaim { record, left: Some(HOUR), fence: Some(7) }
    }

    fn report(name: char, outcome: Outcome) -> OutcomeRequest {
        let late = LateTerms { operation: None, contents: Contents::Unverified, terms: terms() };
        OutcomeRequest { key: request('A').key, attempt: attempt(name), outcome, late: Some(late) }
    }

    fn success() -> Outcome {
        Outcome::Success { result: Some("2".into()), retention: None }
    }

    /// What an answer and its effect come to, in the words of the contract's tables.
    fn told(effect: &Effect, answer: &impl std::fmt::Debug) -> String {
        let effect = match effect {
            Effect::Keep => "keep".to_owned(),
            Effect::Put(record, left) => format!("{:?} for {left:?} late={}", record.state, record.late),
            Effect::Extend(left) => format!("extend to {left:?}"),
            Effect::Delete => "delete".to_owned(),
        };
        let answer = format!("{answer:?}");
        format!("{effect}: {}", answer.split([' ', '(']).next().unwrap())
    }

    #[test]
    fn the_table_of_pre() {
        use ClaimState::{InProgress, Succeeded, Unknown};
        let cell = |held: Option<ClaimState>, request: &ClaimRequest| {
            let (effect, answer) = claim(held.map(self::held).as_ref(), request, Some(8));
            told(&effect, &answer)
        };
        let taker = ClaimRequest { take_over: true, ..request('B') };
        let put = "InProgress for Some(30s) late=false: Granted";
        let rows = [
            (None, put, put, put),
            (Some(InProgress), "keep: Granted", "keep: Duplicate", "keep: Duplicate"),
            (Some(Succeeded), "keep: Duplicate", "keep: Duplicate", "keep: Duplicate"),
            (Some(Unknown), "keep: Duplicate", "keep: Duplicate", put),
        ];
        for (state, same_nonce, other_nonce, take_over) in rows {
            assert_eq!(cell(state, &request('A')), same_nonce, "{state:?}, same nonce");
            assert_eq!(
                cell(state, &ClaimRequest { take_over: true, ..request('A') }),
                same_nonce,
                "{state:?}, taking over its own"
            );
            assert_eq!(cell(state, &request('B')), other_nonce, "{state:?}, other nonce");
            assert_eq!(cell(state, &taker), take_over, "{state:?}, take-over");
            if state.is_some() {
                for name in ['A', 'B'] {
                    let contents = ClaimRequest { contents: Canonical::trusted("2"), take_over: true, ..request(name) };
                    assert_eq!(cell(state, &contents), "keep: Mismatch");
                    let fingerprint = Some(fingerprint_digest(&Canonical::trusted("1")));
                    assert_eq!(
                        cell(state, &ClaimRequest { fingerprint, take_over: true, ..request(name) }),
                        "keep: Mismatch"
                    );
                }
            }
        }
    }

    #[test]
    fn an_ended_lease_is_restored_to_its_very_attempt_only() {
        let mut ended = LiveClaim { left: None, ..held(ClaimState::Unknown) };
        ended.record.terms.on_lease_end = LeaseEnd::Unknown;
        let cell = |request: &ClaimRequest| {
            let (effect, answer) = claim(Some(&ended), request, None);
            told(&effect, &answer)
        };
        let own = ClaimRequest { take_over: true, ..request('A') };
        assert_eq!(cell(&own), "InProgress for Some(30s) late=false: Granted");
        assert_eq!(cell(&request('A')), "keep: Duplicate", "without a take-over");
        let later = Attempt::new(own.attempt.timestamp().plus(Duration::from_secs(1)), own.attempt.nonce().clone());
        assert_eq!(cell(&ClaimRequest { attempt: later, ..own }), "keep: Duplicate", "a repeat of the call");
    }

    #[test]
    fn the_table_of_post_and_renewal() {
        use ClaimState::{InProgress, Succeeded, Unknown};
        let day = "Succeeded for Some(86400s) late=false: Done";
        let week = "Unknown for Some(604800s) late=false: Done";
        let late_day = "Succeeded for Some(86400s) late=true: Done";
        let late_week = "Unknown for Some(604800s) late=true: Done";
        let gone = "keep: Superseded";
        // The rows and columns of the contract: success, failure, unknown, renewal (by 30 s, with an hour left).
        let rows = [
            (Some(InProgress), 'A', [day, "delete: Done", week, "keep: Renewed"]),
            (Some(Unknown), 'A', [day, "delete: Done", "keep: Done", "keep: LeaseLost"]),
            (
                Some(Succeeded),
                'A',
                ["keep: Done", "keep: AlreadySucceeded", "keep: AlreadySucceeded", "keep: AlreadySucceeded"],
            ),
            (None, 'A', [late_day, "keep: Done", late_week, "keep: LeaseLost"]),
            (Some(InProgress), 'B', [gone; 4]),
            (Some(Unknown), 'B', [gone; 4]),
            (Some(Succeeded), 'B', [gone; 4]),
        ];
        for (state, name, expected) in rows {
            let held = state.map(held);
            let renewal = RenewalRequest { key: request('A').key, attempt: attempt(name), lease: None };
            let (effect, renewed) = renew(held.as_ref(), &renewal);
            let mut found: Vec<_> = [success(), Outcome::Failure, Outcome::Unknown]
                .map(|outcome| settle(held.as_ref(), &report(name, outcome)))
                .iter()
                .map(|(effect, answer)| told(effect, answer))
                .collect();
            found.push(told(&effect, &renewed));
            assert_eq!(found, expected, "{state:?} by {name}");
        }
    }

    #[test]
    fn a_repeat_gets_the_attempt_the_fence_and_what_is_left_of_the_holder() {
        let held = held(ClaimState::InProgress);
        let later: Attempt = "1700000000000001-AAAAAAAAAAAAAAAA".parse().unwrap();
        for (attempt, repeated) in [(attempt('A'), false), (later, true)] {
            let request = ClaimRequest { attempt, ..request('A') };
            let grant = Grant {
                attempt: held.record.attempt.clone(),
                fence: Some(7),
                repeated,
                taken_over: false,
                lease_left: Some(HOUR),
            };
            assert_eq!(claim(Some(&held), &request, Some(8)), (Effect::Keep, ClaimResponse::Granted(grant)));
        }
    }

    #[test]
    fn a_success_keeps_the_claim_and_brings_its_result_and_its_retention() {
        let own = Retention::For(HOUR);
        for (retention, expected) in [(None, terms().retention), (Some(own), own)] {
            let success = Outcome::Success { result: Some("2".into()), retention };
            for state in [ClaimState::InProgress, ClaimState::Unknown] {
                let held = held(state);
                let (effect, _) = settle(Some(&held), &report('A', success.clone()));
                let settled = Record {
                    state: ClaimState::Succeeded,
                    result: Some("2".into()),
                    terms: Terms { retention: expected, ..terms() },
                    ..held.record
                };
                assert_eq!(effect, Effect::Put(settled, expected.duration()));
            }
            let late = report('B', success).late_record().unwrap();
            assert_eq!((late.terms.retention, late.result.as_deref()), (expected, Some("2")));
            assert_eq!((late.attempt, late.state, late.late), (attempt('B'), ClaimState::Succeeded, true));
        }
    }

    #[test]
    fn a_late_outcome_that_is_too_old_is_refused_unless_it_is_a_failure() {
        let too_old = |outcome| settle(None, &OutcomeRequest { late: None, ..report('A', outcome) });
        for outcome in [success(), Outcome::Unknown] {
            assert_eq!(too_old(outcome), (Effect::Keep, OutcomeResponse::Expired));
        }
        let done = OutcomeResponse::Done { state: None, left: None, late: Some(true) };
        assert_eq!(too_old(Outcome::Failure), (Effect::Keep, done));
    }

    /// What the quotas of an app count.
    #[test]
    fn a_request_brings_the_bytes_that_it_puts_into_the_store() {
        let plain = request('A');
        let bytes = plain.contents.as_str().len();
        assert_eq!(plain.stored_bytes(), bytes as u64);
        let exact = ClaimRequest { contents_stored_bytes: bytes, ..plain.clone() };
        assert_eq!(exact.stored_bytes(), bytes as u64);
        let digest = ClaimRequest { contents_stored_bytes: bytes - 1, ..plain.clone() };
        assert_eq!(digest.stored_bytes(), DIGEST_BYTES);
        let fingerprint = Some(fingerprint_digest(&Canonical::trusted("1")));
        assert_eq!(ClaimRequest { fingerprint, ..plain }.stored_bytes(), bytes as u64 + DIGEST_BYTES);
        let result = |result: Option<&str>| Outcome::Success { result: result.map(Into::into), retention: None };
        for (outcome, bytes) in [(result(Some("[1,2]")), 5), (result(None), 0), (Outcome::Failure, 0)] {
            assert_eq!(report('A', outcome).result_bytes(), bytes);
        }
    }

    #[test]
    fn a_lease_is_extended_only_forwards() {
        let short = LiveClaim { left: Some(Duration::from_secs(1)), ..held(ClaimState::InProgress) };
        let renewal = |lease| RenewalRequest { key: request('A').key, attempt: attempt('A'), lease };
        assert_eq!(renew(Some(&short), &renewal(None)).0, Effect::Extend(Duration::from_secs(30)));
        assert_eq!(renew(Some(&short), &renewal(Some(HOUR))).0, Effect::Extend(HOUR));
        for as_long_or_less in [None, Some(HOUR)] {
            let (effect, renewed) = renew(Some(&held(ClaimState::InProgress)), &renewal(as_long_or_less));
            assert_eq!((effect, renewed), (Effect::Keep, RenewalResponse::Renewed { left: HOUR }));
        }
    }

    #[test]
    fn an_ended_record_is_absent_unless_its_lease_may_not_be_guessed() {
        let unknown = Terms { on_lease_end: LeaseEnd::Unknown, ..terms() };
        for (state, terms, expected) in [
            (ClaimState::InProgress, terms(), None),
            (ClaimState::InProgress, unknown, Some(ClaimState::Unknown)),
            (ClaimState::Succeeded, unknown, None),
            (ClaimState::Unknown, unknown, None),
        ] {
            let record = Record { state, terms, ..request('A').record() };
            let judged = LiveClaim::judge(record, Some(Duration::ZERO), None);
            assert_eq!(judged.as_ref().map(|held| held.record.state), expected);
            assert_eq!(judged.and_then(|held| held.left), None);
        }
    }

    /// One call of a random history.
    #[derive(Clone, Debug)]
    enum Call {
        Claim { name: char, take_over: bool },
        Settle { name: char, outcome: u8 },
        Renew { name: char },
        TimePasses,
    }

    fn call() -> impl Strategy<Value = Call> {
        let name = prop::sample::select(vec!['A', 'B', 'C']);
        prop_oneof![
            4 => (name.clone(), any::<bool>()).prop_map(|(name, take_over)| Call::Claim { name, take_over }),
            4 => (name.clone(), 0..3_u8).prop_map(|(name, outcome)| Call::Settle { name, outcome }),
            1 => name.prop_map(|name| Call::Renew { name }),
            1 => Just(Call::TimePasses),
        ]
    }

    /// Applies an effect as any engine must.
    fn apply(held: Option<LiveClaim>, effect: Effect) -> Option<LiveClaim> {
        match effect {
            Effect::Keep => held,
            Effect::Put(record, left) => Some(LiveClaim { record, left, fence: None }),
            Effect::Extend(left) => held.map(|held| LiveClaim { left: Some(left), ..held }),
            Effect::Delete => None,
        }
    }

    proptest! {
        /// Whatever is called in whatever order: only a claim's holder changes it, a success stays until its time ends,
        /// and a call repeated at once changes nothing more.
        #[test]
        fn no_history_breaks_the_promises(calls in prop::collection::vec(call(), 1..60), guess in any::<bool>()) {
            let on_lease_end = if guess { LeaseEnd::Release } else { LeaseEnd::Unknown };
            let mut held: Option<LiveClaim> = None;
            for call in calls {
                let before = held.clone();
                let run = |held: &Option<LiveClaim>| match &call {
                    Call::Claim { name, take_over } => {
                        let terms = Terms { on_lease_end, ..terms() };
                        let request = ClaimRequest { take_over: *take_over, terms, ..request(*name) };
                        let (effect, answer) = claim(held.as_ref(), &request, None);
                        (*name, effect, matches!(answer, ClaimResponse::Granted(_)))
                    }
                    Call::Settle { name, outcome } => {
                        let outcome = [success(), Outcome::Failure, Outcome::Unknown][usize::from(*outcome)].clone();
                        (*name, settle(held.as_ref(), &report(*name, outcome)).0, false)
                    }
                    Call::Renew { name } => {
                        let renewal = RenewalRequest { key: request('A').key, attempt: attempt(*name), lease: None };
                        (*name, renew(held.as_ref(), &renewal).0, false)
                    }
                    Call::TimePasses => ('-', Effect::Keep, false),
                };
                if matches!(call, Call::TimePasses) {
                    let ended = before.map(|held| LiveClaim::judge(held.record, held.left.map(|_| Duration::ZERO), None));
                    held = ended.flatten();
                    continue;
                }
                let (name, effect, granted) = run(&held);
                held = apply(held, effect);
                if let Some(before) = &before {
                    let others = before.record.attempt != attempt(name);
                    let takes_over = granted && before.record.state == ClaimState::Unknown;
                    prop_assert!(!others || takes_over || held.as_ref() == Some(before), "S2: {call:?}");
                    if before.record.state == ClaimState::Succeeded {
                        prop_assert_eq!(held.as_ref(), Some(before), "S3: {:?}", call);
                    }
                }
                if granted {
                    prop_assert_eq!(held.as_ref().map(|held| held.record.attempt.clone()), Some(attempt(name)), "S1");
                }
                let (_, again, _) = run(&held);
                prop_assert_eq!(apply(held.clone(), again), held.clone(), "S5: {:?}", call);
            }
        }
    }
}
