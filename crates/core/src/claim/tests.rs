//! Tests of the transitions: the contract's tables, their details, and random histories.

use crate::terms::LeaseEnd;
use proptest::prelude::*;

use super::*;
use crate::global_id::GlobalId;
use crate::record::{Realm, fingerprint_digest};

const HOUR: Duration = Duration::from_hours(1);
const END: Timestamp = Timestamp::from_micros(1_700_000_003_600_000);

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
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), realm: Realm::Api, app },
        attempt: attempt(name),
        operation,
        contents,
        contents_stored_bytes: 1024,
        fingerprint: None,
        terms: terms(),
        caller: None,
        take_over: false,
        waits: false,
    }
}

fn live_claim(state: ClaimState) -> LiveClaim {
    let record = Record { state, result: Some("1".into()), ..request('A').record() };
    LiveClaim { record, left: Some(HOUR), ends_at: Some(END), fence: Some(7) }
}

fn report(name: char, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: terms() };
    OutcomeRequest { key: request('A').key, attempt: attempt(name), outcome, late: Some(late) }
}

fn success() -> Outcome {
    Outcome::Success { result: Some("2".into()), retention: None }
}

/// Returns effect and answer in the words of the contract's tables.
fn cell_text(effect: &Effect, answer: &impl std::fmt::Debug) -> String {
    let effect = match effect {
        Effect::Keep => "keep".to_owned(),
        Effect::Put(record, left) => format!("{:?} for {left:?} late={}", record.state, record.late),
        Effect::Extend(left) => format!("extend to {left:?}"),
        Effect::Replace(record) => format!("{:?} until its end", record.state),
        Effect::Delete => "delete".to_owned(),
    };
    let answer = format!("{answer:?}");
    format!("{effect}: {}", answer.split([' ', '(']).next().unwrap())
}

#[test]
fn claim_calls_follow_their_table() {
    use ClaimState::{InProgress, Succeeded, Unknown};
    let cell = |live: Option<ClaimState>, request: &ClaimRequest| {
        let (effect, answer) = claim(live.map(live_claim).as_ref(), request, Some(8));
        cell_text(&effect, &answer)
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
            "{state:?}, taking over its own claim"
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
fn an_ended_lease_is_restored_only_to_the_same_attempt() {
    let mut ended = LiveClaim { left: None, ..live_claim(ClaimState::Unknown) };
    ended.record.terms.on_lease_end = LeaseEnd::Unknown;
    let cell = |request: &ClaimRequest| {
        let (effect, answer) = claim(Some(&ended), request, None);
        cell_text(&effect, &answer)
    };
    let own = ClaimRequest { take_over: true, ..request('A') };
    assert_eq!(cell(&own), "InProgress for Some(30s) late=false: Granted");
    assert_eq!(cell(&request('A')), "keep: Duplicate", "without a take-over");
    let later = Attempt::new(own.attempt.timestamp().plus(Duration::from_secs(1)), own.attempt.nonce().clone());
    assert_eq!(cell(&ClaimRequest { attempt: later, ..own }), "keep: Duplicate", "a repeat of the call");
}

#[test]
fn outcome_calls_and_renewals_follow_their_table() {
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
        let live = state.map(live_claim);
        let renewal = RenewalRequest { key: request('A').key, attempt: attempt(name), lease: None };
        let (effect, renewed) = renew(live.as_ref(), &renewal);
        let mut found: Vec<_> = [success(), Outcome::Failure, Outcome::Unknown]
            .map(|outcome| settle(live.as_ref(), &report(name, outcome)))
            .iter()
            .map(|(effect, answer)| cell_text(effect, answer))
            .collect();
        found.push(cell_text(&effect, &renewed));
        assert_eq!(found, expected, "{state:?} by {name}");
    }
}

#[test]
fn a_repeat_gets_the_attempt_the_fence_and_the_remaining_lease_of_the_holder() {
    let live = live_claim(ClaimState::InProgress);
    let later: Attempt = "1700000000000001-AAAAAAAAAAAAAAAA".parse().unwrap();
    for (attempt, repeated) in [(attempt('A'), false), (later, true)] {
        let request = ClaimRequest { attempt, ..request('A') };
        let grant = Grant {
            attempt: live.record.attempt.clone(),
            fence: Some(7),
            repeated,
            taken_over: false,
            lease_left: Some(HOUR),
            lease_ends_at: Some(END),
        };
        assert_eq!(claim(Some(&live), &request, Some(8)), (Effect::Keep, ClaimResponse::Granted(grant)));
    }
}

#[test]
fn a_success_keeps_the_record_and_sets_its_result_and_retention() {
    let own = Retention::For(HOUR);
    for (retention, expected) in [(None, terms().retention), (Some(own), own)] {
        let success = Outcome::Success { result: Some("2".into()), retention };
        for state in [ClaimState::InProgress, ClaimState::Unknown] {
            let live = live_claim(state);
            let (effect, _) = settle(Some(&live), &report('A', success.clone()));
            let settled = Record {
                state: ClaimState::Succeeded,
                result: Some("2".into()),
                terms: Terms { retention: expected, ..terms() },
                ..live.record
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
    let done = OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(true) };
    assert_eq!(too_old(Outcome::Failure), (Effect::Keep, done));
}

/// Quotas count these bytes.
#[test]
fn requests_know_how_many_bytes_they_store() {
    let claim = request('A');
    let bytes = claim.contents.as_str().len();
    assert_eq!(claim.stored_bytes(), bytes as u64);
    let exact = ClaimRequest { contents_stored_bytes: bytes, ..claim.clone() };
    assert_eq!(exact.stored_bytes(), bytes as u64);
    let digest = ClaimRequest { contents_stored_bytes: bytes - 1, ..claim.clone() };
    assert_eq!(digest.stored_bytes(), DIGEST_BYTES);
    let fingerprint = Some(fingerprint_digest(&Canonical::trusted("1")));
    assert_eq!(ClaimRequest { fingerprint, ..claim }.stored_bytes(), bytes as u64 + DIGEST_BYTES);
    let result = |result: Option<&str>| Outcome::Success { result: result.map(Into::into), retention: None };
    for (outcome, bytes) in [(result(Some("[1,2]")), 5), (result(None), 0), (Outcome::Failure, 0)] {
        assert_eq!(report('A', outcome).result_bytes(), bytes);
    }
}

#[test]
fn a_lease_is_never_shortened() {
    let short = LiveClaim { left: Some(Duration::from_secs(1)), ..live_claim(ClaimState::InProgress) };
    let renewal = |lease| RenewalRequest { key: request('A').key, attempt: attempt('A'), lease };
    assert_eq!(renew(Some(&short), &renewal(None)).0, Effect::Extend(Duration::from_secs(30)));
    assert_eq!(renew(Some(&short), &renewal(Some(HOUR))).0, Effect::Extend(HOUR));
    for as_long_or_less in [None, Some(HOUR)] {
        let (effect, renewed) = renew(Some(&live_claim(ClaimState::InProgress)), &renewal(as_long_or_less));
        assert_eq!((effect, renewed), (Effect::Keep, RenewalResponse::Renewed { left: HOUR, ends_at: Some(END) }));
    }
}

#[test]
fn an_ended_record_is_absent_unless_the_end_of_its_lease_means_unknown() {
    let unknown = Terms { on_lease_end: LeaseEnd::Unknown, ..terms() };
    for (state, terms, expected) in [
        (ClaimState::InProgress, terms(), None),
        (ClaimState::InProgress, unknown, Some(ClaimState::Unknown)),
        (ClaimState::Succeeded, unknown, None),
        (ClaimState::Unknown, unknown, None),
    ] {
        let record = Record { state, terms, ..request('A').record() };
        let judged = LiveClaim::of_stored(record, Some(Duration::ZERO), Some(END), None);
        assert_eq!(judged.as_ref().map(|live| live.record.state), expected);
        assert_eq!(judged.and_then(|live| live.left.map(drop).or(live.ends_at.map(drop))), None);
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

/// Applies an effect like an engine.
fn apply(live: Option<LiveClaim>, effect: Effect) -> Option<LiveClaim> {
    match effect {
        Effect::Keep => live,
        Effect::Put(record, left) => Some(LiveClaim { record, left, ends_at: None, fence: None }),
        Effect::Extend(left) => live.map(|live| LiveClaim { left: Some(left), ..live }),
        Effect::Replace(record) => live.map(|live| LiveClaim { record, ..live }),
        Effect::Delete => None,
    }
}

proptest! {
    /// In any order of calls: only its holder changes a claim, a success stays until the end of its retention, and a
    /// call that is repeated at once changes nothing.
    #[test]
    fn any_history_keeps_the_promises(calls in prop::collection::vec(call(), 1..60), release in any::<bool>()) {
        let on_lease_end = if release { LeaseEnd::Release } else { LeaseEnd::Unknown };
        let mut live: Option<LiveClaim> = None;
        for call in calls {
            let before = live.clone();
            let run = |live: &Option<LiveClaim>| match &call {
                Call::Claim { name, take_over } => {
                    let terms = Terms { on_lease_end, ..terms() };
                    let request = ClaimRequest { take_over: *take_over, terms, ..request(*name) };
                    let (effect, answer) = claim(live.as_ref(), &request, None);
                    (*name, effect, matches!(answer, ClaimResponse::Granted(_)))
                }
                Call::Settle { name, outcome } => {
                    let outcome = [success(), Outcome::Failure, Outcome::Unknown][usize::from(*outcome)].clone();
                    (*name, settle(live.as_ref(), &report(*name, outcome)).0, false)
                }
                Call::Renew { name } => {
                    let renewal = RenewalRequest { key: request('A').key, attempt: attempt(*name), lease: None };
                    (*name, renew(live.as_ref(), &renewal).0, false)
                }
                Call::TimePasses => ('-', Effect::Keep, false),
            };
            if matches!(call, Call::TimePasses) {
                let end = |live: LiveClaim| {
                    LiveClaim::of_stored(live.record, live.left.map(|_| Duration::ZERO), live.ends_at, None)
                };
                let ended = before.map(end);
                live = ended.flatten();
                continue;
            }
            let (name, effect, granted) = run(&live);
            live = apply(live, effect);
            if let Some(before) = &before {
                let is_other = before.record.attempt != attempt(name);
                let takes_over = granted && before.record.state == ClaimState::Unknown;
                prop_assert!(!is_other || takes_over || live.as_ref() == Some(before), "S2: {call:?}");
                if before.record.state == ClaimState::Succeeded {
                    prop_assert_eq!(live.as_ref(), Some(before), "S3: {:?}", call);
                }
            }
            if granted {
                prop_assert_eq!(live.as_ref().map(|live| live.record.attempt.clone()), Some(attempt(name)), "S1");
            }
            let (_, again, _) = run(&live);
            prop_assert_eq!(apply(live.clone(), again), live.clone(), "S5: {:?}", call);
        }
    }
}

#[test]
fn only_an_unknown_claim_without_an_end_whose_lease_means_that_has_an_ended_lease() {
    let claim = |state, on_lease_end, left| {
        let live = live_claim(state);
        let record = Record { terms: Terms { on_lease_end, ..terms() }, ..live.record };
        LiveClaim { record, left, ..live }
    };
    assert!(claim(ClaimState::Unknown, LeaseEnd::Unknown, None).is_ended_lease());
    assert!(!claim(ClaimState::Succeeded, LeaseEnd::Unknown, None).is_ended_lease());
    assert!(!claim(ClaimState::Unknown, LeaseEnd::Release, None).is_ended_lease(), "kept without end");
    assert!(!claim(ClaimState::Unknown, LeaseEnd::Unknown, Some(HOUR)).is_ended_lease(), "reported");
}

#[test]
fn the_digest_of_a_fingerprint_is_its_sha_256() {
    let digest = fingerprint_digest(&Canonical::trusted("\"a\""));
    assert_eq!(digest[..4], [0xac, 0x8d, 0x83, 0x42]);
}
