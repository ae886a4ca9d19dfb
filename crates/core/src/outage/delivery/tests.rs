//! Tables of deliveries: the entries that wait, the answers of the store, and the steps and the report that follow from them.

use std::time::Duration;

use super::*;
use crate::claim::{Grant, LateTerms};
use crate::engine::conformance::fresh_claim;
use crate::record::Contents;
use crate::terms::{LeaseEnd, Terms};

const LEASE: Duration = Duration::from_secs(30);
const SEC: Duration = Duration::from_secs(1);
const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Instant of the table, in seconds after noon.
fn at(secs: u64) -> Timestamp {
    NOON.plus(SEC * u32::try_from(secs).unwrap())
}

/// Attempt of a number: another number is another try.
fn attempt(number: u64) -> Attempt {
    format!("{}-000000000000000{number}", NOON.as_micros()).parse().unwrap()
}

/// The same try at another gateway.
fn repeated(number: u64) -> Attempt {
    format!("{}-000000000000000{number}", NOON.as_micros() + 20_000).parse().unwrap()
}

/// A key, and what is said about it.
struct Table {
    claim: ClaimRequest,
    queue: Vec<(Seq, Arc<Entry>)>,
    local: Option<LiveClaim>,
    now: Timestamp,
}

impl Table {
    fn new() -> Self {
        let claim = fresh_claim();
        let claim = ClaimRequest { terms: Terms { lease: LEASE, ..claim.terms }, ..claim };
        Self { claim, queue: Vec::new(), local: None, now: at(20) }
    }

    fn entry(mut self, secs: u64, policy: OutagePolicy, journaled: JournaledOperation) -> Self {
        let seq = self.queue.last().map_or(1, |(seq, _)| seq + 1);
        let entry = Entry { chain: "default".into(), policy, at: at(secs), journaled };
        self.queue.push((seq, Arc::new(entry)));
        self
    }

    fn granted(self, secs: u64, number: u64) -> Self {
        let request = ClaimRequest { attempt: attempt(number), ..self.claim.clone() };
        self.entry(secs, OutagePolicy::FailOpen, JournaledOperation::Granted(request))
    }

    fn took_over(self, secs: u64, number: u64) -> Self {
        let request = ClaimRequest { attempt: attempt(number), take_over: true, ..self.claim.clone() };
        self.entry(secs, OutagePolicy::FailOpen, JournaledOperation::Granted(request))
    }

    fn renewed(self, secs: u64, number: u64, lease: Duration) -> Self {
        let request = RenewalRequest { key: self.claim.key.clone(), attempt: attempt(number), lease: Some(lease) };
        self.entry(secs, OutagePolicy::FailOpen, JournaledOperation::Renewed(request))
    }

    fn reported(self, secs: u64, number: u64, outcome: Outcome) -> Self {
        let late = LateTerms { operation: None, contents: Contents::Unverified, terms: self.claim.terms };
        let (key, attempt) = (self.claim.key.clone(), attempt(number));
        let request = OutcomeRequest { key, attempt, outcome, late: Some(late) };
        self.entry(secs, OutagePolicy::Spool, JournaledOperation::Reported(request))
    }

    /// The local claims have this claim.
    fn with_local(mut self, state: ClaimState, number: u64, left: Option<Duration>) -> Self {
        self.local = Some(LiveClaim { left, ..self.held(state, attempt(number)) });
        self
    }

    fn held(&self, state: ClaimState, attempt: Attempt) -> LiveClaim {
        let record = Record { state, ..ClaimRequest { attempt, ..self.claim.clone() }.record() };
        LiveClaim { record, left: Some(LEASE), ends_at: None, fence: None }
    }

    fn run(&self, answers: &[StoreAnswer]) -> (String, Option<Report>) {
        let delivery = Delivery { queue: &self.queue, local: self.local.as_ref() };
        let mut names = Vec::new();
        for count in 0..=answers.len() {
            match next_step(delivery, &answers[..count], self.now) {
                Step::Done(report) => {
                    assert_eq!(count, answers.len(), "{names:?}: more answers than steps");
                    return (names.join(", "), Some(report));
                }
                Step::Postpone(_) => names.push("postpone".to_owned()),
                step => names.push(name(&step)),
            }
        }
        (names.join(", "), None)
    }

    #[track_caller]
    fn expect(&self, answers: &[StoreAnswer], steps: &str, delivered: &[Seq], suspects: &[(Cause, u64, ClaimState)]) {
        let (names, report) = self.run(answers);
        assert_eq!(names, steps);
        let report = report.expect("it is done");
        assert_eq!(report.delivered, delivered);
        let hash = |number: u64| Some(MaskedAttempt::from(&attempt(number)));
        let expected: Vec<_> =
            suspects.iter().map(|(cause, theirs, state)| (*cause, hash(*theirs), Some(*state))).collect();
        let found: Vec<_> =
            report.suspects.iter().map(|suspect| (suspect.cause, suspect.theirs, suspect.state)).collect();
        assert_eq!(found, expected);
    }
}

/// Returns the name of a step, with what matters of it.
fn name(step: &Step) -> String {
    let number = |attempt: &Attempt| {
        let number = attempt.nonce().as_str().trim_start_matches('0').to_owned();
        if attempt.timestamp() == NOON { number } else { format!("{number}'") }
    };
    match step {
        Step::Claim(request) => {
            let taker = if request.take_over { " over" } else { "" };
            format!("claim {} for {:?}{taker}", number(&request.attempt), request.terms.lease)
        }
        Step::Renew(request) => format!("renew {} for {:?}", number(&request.attempt), request.lease.unwrap()),
        Step::Settle(request, proof) => {
            let outcome = match request.outcome {
                Outcome::Success { .. } => "success",
                Outcome::Failure => "failure",
                Outcome::Unknown => "unknown",
            };
            format!("settle {} {outcome} by {proof:?}", number(&request.attempt))
        }
        Step::WriteGrants(grant) => {
            let secs = |instant: Timestamp| instant.since(NOON).as_secs();
            format!("write {} {:?} {}-{}", number(&grant.attempt), grant.end, secs(grant.from), secs(grant.until))
        }
        Step::ReadGrants => "read grants".to_owned(),
        Step::Read => "read".to_owned(),
        Step::Postpone(_) | Step::Done(_) => unreachable!("they need no answer"),
    }
}

fn success() -> Outcome {
    Outcome::Success { result: None, retention: None }
}

fn claimed(number: u64) -> StoreAnswer {
    claimed_with(attempt(number), None)
}

fn claimed_with(attempt: Attempt, lease_left: Option<Duration>) -> StoreAnswer {
    let repeated = lease_left.is_some();
    let grant = Grant { attempt, fence: None, repeated, taken_over: false, lease_left, lease_ends_at: None };
    StoreAnswer::Claimed(ClaimResponse::Granted(grant))
}

fn duplicate(held: LiveClaim) -> StoreAnswer {
    StoreAnswer::Claimed(ClaimResponse::Duplicate(held))
}

fn settled() -> StoreAnswer {
    StoreAnswer::Settled(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) })
}

fn superseded() -> StoreAnswer {
    StoreAnswer::Settled(OutcomeResponse::Superseded { state: ClaimState::InProgress, left: None })
}

fn no_grants() -> StoreAnswer {
    StoreAnswer::Grants(Grants::default())
}

fn grants(number: u64, from: u64, until: u64, end: GrantEnd) -> StoreAnswer {
    StoreAnswer::Grants(Grants::default().with(&degraded(number, from, until, end), NOON).unwrap())
}

fn degraded(number: u64, from: u64, until: u64, end: GrantEnd) -> DegradedGrant {
    let (from, until) = (at(from), at(until));
    DegradedGrant { attempt: attempt(number), from, until, until_take_over: until, takes_over: false, end }
}

const IN_PROGRESS: ClaimState = ClaimState::InProgress;
const OVERLAP: Cause = Cause::Overlap(OutagePolicy::FailOpen);
const SPOOLED: Cause = Cause::Overlap(OutagePolicy::Spool);
const DOUBLE: Cause = Cause::Double(Superseded::SupersededSuccess);
const DAY: u64 = 24 * 3600;

#[test]
fn nothing_waits() {
    Table::new().expect(&[], "", &[], &[]);
}

#[test]
fn a_grant_in_progress_is_claimed_for_the_rest_of_its_lease_and_written_after_that() {
    let table = Table::new().granted(0, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    table.expect(&[claimed(1), no_grants()], "claim 1 for 10s, write 1 Lease 0-30", &[1], &[]);
    // The store executed an earlier call late.
    let renewed = StoreAnswer::Renewed(RenewalResponse::Renewed { left: SEC * 10, ends_at: None });
    table.expect(
        &[claimed_with(attempt(1), Some(SEC * 3)), renewed, no_grants()],
        "claim 1 for 10s, renew 1 for 10s, write 1 Lease 0-30",
        &[1],
        &[],
    );
    // Another gateway granted the same nonce: its attempt is renewed.
    table.expect(
        &[claimed_with(repeated(1), Some(SEC * 20)), no_grants()],
        "claim 1 for 10s, write 1 Lease 0-30",
        &[1],
        &[],
    );
}

#[test]
fn a_claim_whose_lease_ends_before_each_renewal_is_postponed() {
    let table = Table::new().granted(0, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    let lost = || [claimed_with(attempt(1), Some(SEC)), StoreAnswer::Renewed(RenewalResponse::LeaseLost)];
    let answers = [lost(), lost(), lost()].concat();
    let each = "claim 1 for 10s, renew 1 for 10s";
    assert_eq!(table.run(&answers).0, [each, each, each, "postpone"].join(", "));
}

#[test]
fn renewals_are_delivered_with_their_grant_also_after_outcomes_of_others() {
    let table = Table::new().granted(0, 1).reported(1, 2, Outcome::Failure).renewed(10, 1, SEC * 60);
    let table = table.with_local(IN_PROGRESS, 1, Some(SEC * 50));
    table.expect(&[claimed(1), no_grants()], "claim 1 for 50s, write 1 Lease 0-70", &[1, 3], &[]);
    let another = Table::new().granted(0, 1).granted(40, 2).renewed(50, 1, SEC * 60);
    let another = Table { now: at(60), ..another };
    another.expect(&[no_grants(), StoreAnswer::Found(None)], "write 1 Lease 0-30, read", &[1], &[]);
}

#[test]
fn an_outcome_is_settled_under_the_attempt_that_the_store_holds() {
    let table = Table::new().granted(0, 1).reported(5, 1, success());
    let written = format!("write 1 Success 0-{}", DAY + 5);
    table.expect(
        &[claimed(1), settled(), no_grants()],
        &format!("claim 1 for 30s, settle 1 success by Journal, {written}"),
        &[1, 2],
        &[],
    );
    let held = table.held(IN_PROGRESS, repeated(1));
    table.expect(
        &[duplicate(held), settled(), no_grants()],
        &format!("claim 1 for 30s, settle 1' success by Journal, {written}"),
        &[1, 2],
        &[],
    );
    let short = Table::new().granted(0, 1).reported(5, 1, Outcome::Unknown);
    let short =
        Table { claim: ClaimRequest { terms: Terms { lease: SEC, ..short.claim.terms }, ..short.claim }, ..short };
    let JournaledOperation::Granted(mut request) = short.queue[0].1.journaled.clone() else { panic!("a grant") };
    request.terms.lease = SEC;
    let entry = Entry { journaled: JournaledOperation::Granted(request), ..(*short.queue[0].1).clone() };
    let queue = vec![(1, Arc::new(entry)), short.queue[1].clone()];
    let short = Table { queue, ..short };
    short.expect(
        &[claimed(1), settled(), no_grants()],
        &format!("claim 1 for 5s, settle 1 unknown by Journal, write 1 Unknown 0-{}", 7 * DAY + 5),
        &[1, 2],
        &[],
    );
}

#[test]
fn a_refused_outcome_is_an_overlap_and_a_double_execution() {
    let table = Table::new().granted(0, 1).reported(5, 1, success());
    let written = format!("write 1 Success 0-{}", DAY + 5);
    let theirs = table.held(IN_PROGRESS, attempt(2));
    let suspects = [(OVERLAP, 2, IN_PROGRESS), (DOUBLE, 2, IN_PROGRESS)];
    table.expect(
        &[duplicate(theirs.clone()), superseded(), no_grants()],
        &format!("claim 1 for 30s, settle 1 success by Journal, {written}"),
        &[1, 2],
        &suspects,
    );
    // Its claim ended, and another attempt was granted before the outcome arrived.
    table.expect(
        &[claimed(1), superseded(), StoreAnswer::Found(Some(theirs)), no_grants()],
        &format!("claim 1 for 30s, settle 1 success by Journal, read, {written}"),
        &[1, 2],
        &suspects,
    );
    // That attempt failed before the read. Neither is in the store, and the success may not be lost.
    assert_eq!(
        table.run(&[claimed(1), superseded(), StoreAnswer::Found(None)]).0,
        "claim 1 for 30s, settle 1 success by Journal, read, postpone"
    );
}

#[test]
fn a_failure_is_written_before_the_store_is_called_and_needs_no_claim() {
    let table = Table::new().granted(0, 1).reported(5, 1, Outcome::Failure);
    let steps = "write 1 Failure 0-5, settle 1 failure by Journal";
    table.expect(&[no_grants(), settled()], steps, &[1, 2], &[]);
    // Another attempt, which was issued before that failure.
    let theirs = table.held(ClaimState::Succeeded, attempt(2));
    table.expect(
        &[no_grants(), superseded(), StoreAnswer::Found(Some(theirs))],
        &format!("{steps}, read"),
        &[1, 2],
        &[(OVERLAP, 2, ClaimState::Succeeded)],
    );
    let taker = Table::new().took_over(0, 1).reported(5, 1, Outcome::Failure);
    taker.expect(
        &[no_grants(), claimed(1), settled()],
        "write 1 Failure 0-5, claim 1 for 30s over, settle 1 failure by Journal",
        &[1, 2],
        &[],
    );
    // It ended when it began.
    let at_once = Table::new().granted(5, 1).reported(5, 1, Outcome::Failure);
    at_once.expect(&[no_grants(), settled()], "read grants, settle 1 failure by Journal", &[1, 2], &[]);
}

#[test]
fn a_grant_that_ended_without_an_outcome_is_written_and_leaves_no_claim() {
    let table = Table { now: at(40), ..Table::new().granted(0, 1) };
    let steps = "write 1 Lease 0-30, read";
    table.expect(&[no_grants(), StoreAnswer::Found(None)], steps, &[1], &[]);
    let done = table.held(ClaimState::Succeeded, attempt(2));
    table.expect(&[no_grants(), StoreAnswer::Found(Some(done))], steps, &[1], &[(OVERLAP, 2, ClaimState::Succeeded)]);
    let later = table.held(IN_PROGRESS, format!("{}-0000000000000002", at(31).as_micros()).parse().unwrap());
    table.expect(&[no_grants(), StoreAnswer::Found(Some(later))], steps, &[1], &[]);
    // Its end means unknown, which the store has to learn.
    let unknown = table.with_local(ClaimState::Unknown, 1, None);
    unknown.expect(
        &[claimed(1), no_grants(), StoreAnswer::Found(None)],
        "claim 1 for 1ms, write 1 Lease 0-30, read",
        &[1],
        &[],
    );
}

#[test]
fn a_lease_that_another_gateway_let_end_is_restored_by_the_one_that_extended_it() {
    let table = Table::new().granted(0, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    let mut held = LiveClaim { left: None, ..table.held(ClaimState::Unknown, repeated(1)) };
    held.record.terms.on_lease_end = LeaseEnd::Unknown;
    table.expect(
        &[duplicate(held.clone()), claimed_with(repeated(1), None), no_grants()],
        "claim 1 for 10s, claim 1' for 10s over, write 1 Lease 0-30",
        &[1],
        &[],
    );
    let reported = LiveClaim { left: Some(SEC), ..held };
    table.expect(&[duplicate(reported), no_grants()], "claim 1 for 10s, write 1 Lease 0-30", &[1], &[]);
}

#[test]
fn grants_that_overlap_are_reported_with_the_state_that_is_known_of_them() {
    let table = Table::new().granted(10, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    for (theirs, found) in [
        (grants(2, 0, 11, GrantEnd::Failure), Some(IN_PROGRESS)),
        (grants(2, 0, 10, GrantEnd::Failure), None),
        (grants(2, 39, 60, GrantEnd::Lease), Some(IN_PROGRESS)),
        (grants(2, 40, 60, GrantEnd::Lease), None),
        (grants(2, 0, DAY, GrantEnd::Success), Some(ClaimState::Succeeded)),
        (grants(2, 0, DAY, GrantEnd::Unknown), Some(ClaimState::Unknown)),
        // The same try.
        (grants(1, 0, 60, GrantEnd::Lease), None),
    ] {
        let suspects: Vec<_> = found.map(|state| (OVERLAP, 2, state)).into_iter().collect();
        table.expect(&[claimed(1), theirs], "claim 1 for 10s, write 1 Lease 10-40", &[1], &suspects);
    }
}

/// Another gateway has only the outcome of the later one, and writes that it was granted when it was called.
#[test]
fn a_grant_by_this_gateway_after_the_end_of_another_is_no_overlap_however_early_it_is_written() {
    let theirs = grants(2, 35, DAY, GrantEnd::Success);
    let failed = Table::new().granted(10, 1).reported(41, 1, Outcome::Failure);
    let answers = [theirs, superseded(), StoreAnswer::Found(None)];
    let steps = "write 1 Lease 10-40, settle 1 failure by Journal, read";
    failed.expect(&answers, steps, &[1, 2], &[(OVERLAP, 2, ClaimState::Succeeded)]);
    let failed = failed.granted(42, 2);
    failed.expect(&answers, steps, &[1, 2], &[]);
    // Another gateway granted the same try.
    let elsewhere = DegradedGrant { attempt: repeated(2), ..degraded(2, 35, DAY, GrantEnd::Success) };
    let elsewhere = StoreAnswer::Grants(Grants::default().with(&elsewhere, NOON).unwrap());
    let answers_elsewhere = [elsewhere, superseded(), StoreAnswer::Found(None)];
    let (_, report) = failed.run(&answers_elsewhere);
    assert_eq!(report.unwrap().suspects.len(), 1);
}

#[test]
fn a_claim_beside_a_grant_is_an_overlap_unless_it_had_failed_or_this_gateway_granted_it_later() {
    let table = Table::new().granted(10, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    let theirs = table.held(IN_PROGRESS, attempt(2));
    let steps = "claim 1 for 10s, write 1 Lease 10-40, read grants";
    for (known, is_overlap) in [
        (no_grants(), true),
        (grants(2, 0, 5, GrantEnd::Failure), false),
        (grants(2, 0, 5, GrantEnd::Lease), true),
        (grants(2, 0, 11, GrantEnd::Failure), true),
    ] {
        let suspects = if is_overlap { &[(OVERLAP, 2, IN_PROGRESS)][..] } else { &[] };
        table.expect(&[duplicate(theirs.clone()), no_grants(), known], steps, &[1], suspects);
    }
    let waits =
        Table::new().granted(10, 1).reported(11, 2, Outcome::Failure).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    for (until, is_overlap) in [(10, false), (11, true)] {
        // Its failure waits. It had ended here before this grant, or not.
        let suspects = if is_overlap { &[(OVERLAP, 2, IN_PROGRESS)][..] } else { &[] };
        let known = grants(2, 0, until, GrantEnd::Lease);
        waits.expect(&[duplicate(theirs.clone()), no_grants(), known], steps, &[1], suspects);
    }
    let table = table.granted(50, 2);
    table.expect(&[duplicate(theirs), no_grants()], "claim 1 for 10s, write 1 Lease 10-40", &[1], &[]);
}

#[test]
fn a_success_beside_a_grant_whose_lease_ended_meanwhile_is_read_again() {
    let table = Table::new().granted(0, 1).with_local(IN_PROGRESS, 1, Some(SEC * 10));
    let table = Table { now: at(30), ..table };
    let theirs = table.held(ClaimState::Succeeded, attempt(2));
    table.expect(
        &[claimed(1), no_grants(), StoreAnswer::Found(Some(theirs))],
        "claim 1 for 10s, write 1 Lease 0-30, read",
        &[1],
        &[(OVERLAP, 2, ClaimState::Succeeded)],
    );
}

#[test]
fn a_spooled_outcome_is_compared_with_degraded_grants_unless_it_is_a_failure() {
    let failure = Table::new().reported(5, 1, Outcome::Failure);
    failure.expect(&[settled()], "settle 1 failure by Grants", &[1], &[]);
    failure.expect(&[superseded()], "settle 1 failure by Grants", &[1], &[]);
    let done = Table::new().reported(5, 1, success());
    let steps = "settle 1 success by Grants, read grants";
    done.expect(&[settled(), no_grants()], steps, &[1], &[]);
    let theirs = grants(2, 7, 9, GrantEnd::Lease);
    done.expect(&[settled(), theirs], steps, &[1], &[(SPOOLED, 2, IN_PROGRESS)]);
}

#[test]
fn a_refused_outcome_that_was_spooled_is_written_for_later_grants() {
    let table = Table::new().reported(5, 1, success());
    let theirs = table.held(IN_PROGRESS, attempt(2));
    let steps = "settle 1 success by Grants, read";
    table.expect(
        &[superseded(), StoreAnswer::Found(Some(theirs)), no_grants()],
        &format!("{steps}, write 1 Success 0-{}", DAY + 5),
        &[1],
        &[(SPOOLED, 2, IN_PROGRESS), (DOUBLE, 2, IN_PROGRESS)],
    );
    assert_eq!(table.run(&[superseded(), StoreAnswer::Found(None)]).0, format!("{steps}, postpone"));
}

#[test]
fn a_renewal_without_its_grant_is_dropped() {
    Table::new().renewed(5, 1, LEASE).expect(&[], "", &[1], &[]);
}
