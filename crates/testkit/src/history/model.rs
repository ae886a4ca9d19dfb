//! Model of one key for checking a history: the record that may be stored, and the earliest and latest time of its end.
//! Effects and answers come from the contract's tables in `oncegate_core::claim`; the model adds the uncertainty.

use std::sync::LazyLock;
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, LateTerms, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{Contents, Key, LiveClaim, Realm, Record};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use super::record::{Answer, Call, Event, Reply};

/// An event prepared for the model.
pub(crate) struct Step {
    /// Time of the call; it took effect no sooner.
    pub(crate) started: Duration,
    /// Time of the answer; the call took effect no later. [`Duration::MAX`] if that is open.
    pub(crate) ended: Duration,
    /// The store's answer, if there was one.
    pub(crate) answer: Option<Answer>,
    request: Request,
    /// Answered by a policy: the store may receive it with a shorter lease.
    degraded: bool,
    /// Granted by a policy, which delivers the rest of the lease. The store may already have a claim of this nonce:
    /// granted by another gateway, or by a call of this one without an answer. The delivery applies to that claim, too.
    delivers_lease: bool,
    /// The store may know this attempt by another timestamp, and the answer does not exclude it.
    may_be_renamed: bool,
}

enum Request {
    Claim(Box<ClaimRequest>),
    Settle(Box<OutcomeRequest>),
    Renew(RenewalRequest),
}

/// Answer of the model.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ModelAnswer {
    Claimed(Box<ClaimResponse>),
    Settled(OutcomeResponse),
    Renewed(RenewalResponse),
}

/// One state that a key may be in after some of its events.
#[derive(Clone, PartialEq)]
pub(crate) struct ModelState {
    /// Earliest possible time.
    pub(crate) now: Duration,
    /// The stored record, expired or not.
    pub(crate) stored: Option<Stored>,
    /// Newest fence that is known.
    fence: Option<u64>,
}

/// A record, and when it ends.
#[derive(Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    fence: Option<u64>,
    /// `None` if it has no end.
    pub(crate) ends: Option<EndRange>,
}

/// Earliest and latest end of a record, and how long it lasts at most after its last change.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct EndRange {
    pub(crate) earliest: Duration,
    pub(crate) latest: Duration,
    lasts: Duration,
}

/// An attempt whose timestamp no answer has shown gets a placeholder that no gateway issues: the index of its event.
const PLACEHOLDERS_BELOW: u64 = 1_000_000;

impl Step {
    /// Returns `None` for a call that certainly took no effect. `index` distinguishes the events of a history.
    ///
    /// A grant by a policy may have two attempts: the store accepts outcomes and renewals by either.
    pub(crate) fn of(event: &Event, index: usize, template: &ClaimRequest, by_policy: &[Nonce]) -> Option<Self> {
        let (answer, degraded) = match &event.reply {
            Reply::Answered(answer) => (Some(answer), None),
            Reply::Degraded(_, answer) => (None, Some(answer)),
            Reply::Unknown | Reply::Echo(_) => (None, None),
            Reply::Refused => return None,
        };
        let request = match &event.call {
            Call::Claim { nonce, terms, take_over } => {
                let placeholder = Timestamp::from_micros(u64::try_from(index).expect("few events") + 1);
                let attempt = match (answer.or(degraded), &event.reply) {
                    (Some(Answer::Granted { attempt, repeated: false, .. }), _) | (None, Reply::Echo(attempt)) => {
                        attempt.clone()
                    }
                    _ => Attempt::new(placeholder, nonce.clone()),
                };
                let claim = ClaimRequest { attempt, terms: *terms, take_over: *take_over, ..template.clone() };
                Request::Claim(Box::new(claim))
            }
            Call::Settle { attempt, outcome, terms } => {
                let late = LateTerms { operation: None, contents: Contents::Unverified, terms: *terms };
                Request::Settle(Box::new(settle(template, attempt, outcome, late)))
            }
            Call::Renew { attempt, lease } => Request::Renew(renew(template, attempt, *lease)),
        };
        let may_be_renamed = match (&event.call, answer) {
            (Call::Claim { .. }, _) | (_, Some(Answer::Superseded { .. })) => false,
            (Call::Settle { attempt, .. } | Call::Renew { attempt, .. }, _) => by_policy.contains(attempt.nonce()),
        };
        let ended = if answer.is_some() { event.answered } else { Duration::MAX };
        let delivers_lease = matches!(degraded, Some(Answer::Granted { repeated: false, .. }));
        let (started, answer, degraded) = (event.started, answer.cloned(), degraded.is_some());
        Some(Self { started, ended, answer, request, degraded, delivers_lease, may_be_renamed })
    }
}

/// Returns the request that all others are made from: they differ in attempt and terms only.
pub(crate) fn template() -> &'static ClaimRequest {
    static TEMPLATE: LazyLock<ClaimRequest> = LazyLock::new(any_claim);
    &TEMPLATE
}

fn any_claim() -> ClaimRequest {
    let app: AppKey = "history".parse().expect("an app key");
    let (operation, contents) = (Operation::default(), Canonical::trusted("1"));
    let lease = Duration::from_hours(1);
    let retention = Retention::For(lease);
    ClaimRequest {
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), realm: Realm::Api, app },
        attempt: Attempt::new(Timestamp::from_micros(0), Nonce::from_bits(0)),
        operation,
        contents,
        contents_stored_bytes: 1024,
        fingerprint: None,
        terms: Terms { lease, retention, unknown_retention: retention, on_lease_end: LeaseEnd::Release },
        caller: None,
        take_over: false,
        waits: false,
    }
}

/// Returns the outcome call of a claim.
pub(crate) fn settle(claim: &ClaimRequest, attempt: &Attempt, outcome: &Outcome, late: LateTerms) -> OutcomeRequest {
    OutcomeRequest { key: claim.key.clone(), attempt: attempt.clone(), outcome: outcome.clone(), late: Some(late) }
}

/// Returns the renewal of a claim.
pub(crate) fn renew(claim: &ClaimRequest, attempt: &Attempt, lease: Duration) -> RenewalRequest {
    RenewalRequest { key: claim.key.clone(), attempt: attempt.clone(), lease: Some(lease) }
}

impl ModelState {
    /// State before any event.
    pub(crate) fn start() -> Self {
        Self { now: Duration::ZERO, stored: None, fence: None }
    }

    /// Returns the state after this step, with the stored record ended before it or not. `None` if the answer contradicts
    /// it, or if the step changes nothing and has no answer.
    pub(crate) fn after(&self, step: &Step, ended: bool, skew: Duration) -> Option<Self> {
        let (from, until) = self.span(step, ended, skew)?;
        let mut stored = self.stored.clone();
        if ended {
            stored = stored.and_then(Stored::after_its_end);
        } else if let Some(EndRange { latest, lasts, .. }) = stored.as_mut().and_then(|stored| stored.ends.as_mut()) {
            // Its last change was before this step.
            *latest = (*latest).min(until.saturating_add(*lasts));
        }
        let (effect, expected) = answer(stored.as_ref(), step);
        let Some(answered) = &step.answer else {
            let changes = effect != Effect::Keep;
            let stored = apply(stored, effect, None, (from, until), step.degraded);
            return changes.then_some(Self { now: from, stored, fence: self.fence });
        };
        if let Some(stored) = &mut stored {
            stored.learn_timestamp(&expected, answered);
        }
        // Evaluated again, because the timestamp may be known now.
        let (effect, expected) = answer(stored.as_ref(), step);
        if !agrees(&expected, answered, step) {
            return None;
        }
        let mut fence = self.fence;
        let stored = match answered {
            Answer::Granted { fence: own, repeated, .. } => {
                let stored = apply(stored, effect, *own, (from, until), false);
                let known = stored.as_ref().and_then(|stored| stored.fence);
                let as_known = !*repeated || own.is_none() || known.is_none() || known == *own;
                let rises = *repeated || own.is_none() || *own > fence;
                if !as_known || !rises {
                    return None;
                }
                fence = fence.max(*own);
                stored
            }
            _ => apply(stored, effect, None, (from, until), false),
        };
        // No answer promises more lease than there is, counted from the call.
        if let Answer::Granted { lease, .. } | Answer::Renewed { lease } = answered {
            let ends = stored.as_ref().and_then(|stored| stored.ends);
            let latest = ends.map_or(Duration::MAX, |ends| ends.latest.saturating_add(skew));
            if step.started.saturating_add(*lease) > latest {
                return None;
            }
        }
        Some(Self { now: from, stored, fence })
    }

    /// Returns the earliest and the latest time of the step.
    fn span(&self, step: &Step, ended: bool, skew: Duration) -> Option<(Duration, Duration)> {
        let (mut from, mut until) = (self.now.max(step.started), step.ended);
        match (&self.stored, ended) {
            (Some(Stored { ends: Some(ends), .. }), true) => from = from.max(ends.earliest.saturating_sub(skew)),
            (Some(Stored { ends: Some(ends), .. }), false) => until = until.min(ends.latest.saturating_add(skew)),
            (_, true) => return None,
            (_, false) => {}
        }
        (from <= until).then_some((from, until))
    }

    /// Returns the answer of the store to this step, for a report.
    pub(crate) fn expected_answer(&self, step: &Step, ended: bool) -> ModelAnswer {
        let stored = self.stored.clone();
        let stored = if ended { stored.and_then(Stored::after_its_end) } else { stored };
        answer(stored.as_ref(), step).1
    }
}

impl Stored {
    /// Returns the record after its end.
    fn after_its_end(self) -> Option<Self> {
        let LiveClaim { record, fence, .. } =
            LiveClaim::of_stored(self.record, Some(Duration::ZERO), None, self.fence)?;
        Some(Self { record, fence, ends: None })
    }

    fn has_placeholder(&self) -> bool {
        self.record.attempt.timestamp().as_micros() < PLACEHOLDERS_BELOW
    }

    /// Replaces the placeholder by the timestamp in an answer.
    fn learn_timestamp(&mut self, expected: &ModelAnswer, answered: &Answer) {
        if !self.has_placeholder() {
            return;
        }
        match (expected, answered) {
            (ModelAnswer::Claimed(claimed), Answer::Granted { attempt, repeated: true, .. })
                if matches!(**claimed, ClaimResponse::Granted(_)) && attempt.nonce() == self.record.attempt.nonce() =>
            {
                self.record.attempt = attempt.clone();
            }
            (ModelAnswer::Claimed(claimed), Answer::Duplicate { timestamp, .. })
                if matches!(**claimed, ClaimResponse::Duplicate(_)) =>
            {
                let timestamp = Timestamp::from_micros(*timestamp);
                self.record.attempt = Attempt::new(timestamp, self.record.attempt.nonce().clone());
            }
            _ => {}
        }
    }
}

/// Returns the effect and the answer by the contract's tables.
fn answer(stored: Option<&Stored>, step: &Step) -> (Effect, ModelAnswer) {
    // The end was decided before. The rest must only be positive, so that a renewal extends it.
    let left = |stored: &Stored| stored.ends.map(|_| Duration::from_nanos(1));
    let claim = stored.map(|stored| LiveClaim {
        record: stored.record.clone(),
        left: left(stored),
        ends_at: None,
        fence: stored.fence,
    });
    // A gateway that answered instead of the store learns later which attempt the store has: a grant to the same nonce
    // by another gateway is the same try.
    let own = |attempt: &Attempt| {
        let stored = claim.as_ref().map(|claim| &claim.record.attempt);
        let may_be_renamed = step.degraded || step.may_be_renamed;
        stored.filter(|stored| may_be_renamed && stored.nonce() == attempt.nonce()).unwrap_or(attempt).clone()
    };
    match &step.request {
        Request::Claim(request) => {
            let (effect, expected) = claim::claim(claim.as_ref(), request, None);
            let effect = match (&expected, effect) {
                (ClaimResponse::Granted(_), Effect::Keep) if step.delivers_lease => Effect::Extend(request.terms.lease),
                (_, effect) => effect,
            };
            (effect, ModelAnswer::Claimed(Box::new(expected)))
        }
        Request::Settle(request) => {
            let request = OutcomeRequest { attempt: own(&request.attempt), ..OutcomeRequest::clone(request) };
            let (effect, expected) = claim::settle(claim.as_ref(), &request);
            (effect, ModelAnswer::Settled(expected))
        }
        Request::Renew(request) => {
            let request = RenewalRequest { attempt: own(&request.attempt), ..request.clone() };
            let (effect, expected) = claim::renew(claim.as_ref(), &request);
            (effect, ModelAnswer::Renewed(expected))
        }
    }
}

/// Returns the stored record after a step that took effect between these two times.
fn apply(
    stored: Option<Stored>,
    effect: Effect,
    fence: Option<u64>,
    (from, until): (Duration, Duration),
    shortened: bool,
) -> Option<Stored> {
    match effect {
        Effect::Keep => stored,
        Effect::Delete => None,
        Effect::Put(record, lasts) => {
            let own = stored.filter(|stored| stored.record.attempt == record.attempt);
            let fence = own.map_or(fence, |own| own.fence);
            let earliest = |lasts| if shortened { from } else { from.saturating_add(lasts) };
            let ends =
                lasts.map(|lasts| EndRange { earliest: earliest(lasts), latest: until.saturating_add(lasts), lasts });
            Some(Stored { record, fence, ends })
        }
        Effect::Replace(record) => stored.map(|stored| Stored { record, ..stored }),
        Effect::Extend(lasts) => stored.map(|stored| {
            let ends = stored.ends.map(|ends| EndRange {
                earliest: if shortened { ends.earliest } else { ends.earliest.max(from.saturating_add(lasts)) },
                latest: ends.latest.max(until.saturating_add(lasts)),
                lasts: ends.lasts.max(lasts),
            });
            Stored { ends, ..stored }
        }),
    }
}

/// Returns true if the model's answer is the recorded one. Leases and fences are checked elsewhere.
fn agrees(expected: &ModelAnswer, answered: &Answer, step: &Step) -> bool {
    match (expected, answered) {
        (ModelAnswer::Claimed(claimed), Answer::Granted { attempt, repeated, taken_over, lease, .. }) => {
            let (Request::Claim(request), ClaimResponse::Granted(grant)) = (&step.request, &**claimed) else {
                return false;
            };
            let whole = *repeated || *lease <= request.terms.lease;
            whole && grant.attempt == *attempt && grant.repeated == *repeated && grant.taken_over == *taken_over
        }
        (ModelAnswer::Claimed(claimed), Answer::Duplicate { timestamp, state, result }) => {
            let ClaimResponse::Duplicate(claim) = &**claimed else { return false };
            let own = claim.record.attempt.timestamp().as_micros();
            own == *timestamp && claim.record.state == *state && claim.record.result == *result
        }
        // A failure, after the reply to its first try was lost: the caller's claim has ended, whether or not there is a
        // new record.
        (ModelAnswer::Settled(settled), Answer::Done { state: None, late: None }) => {
            let Request::Settle(request) = &step.request else { return false };
            let gone =
                matches!(settled, OutcomeResponse::Done { state: None, .. } | OutcomeResponse::Superseded { .. });
            request.outcome == Outcome::Failure && gone
        }
        (
            ModelAnswer::Settled(OutcomeResponse::Done { state: own, late: own_late, .. }),
            Answer::Done { state, late },
        ) => own == state && own_late == late,
        (
            ModelAnswer::Settled(OutcomeResponse::Superseded { state: own, .. })
            | ModelAnswer::Renewed(RenewalResponse::Superseded { state: own, .. }),
            Answer::Superseded { state },
        ) => own == state,
        (ModelAnswer::Renewed(RenewalResponse::Renewed { .. }), Answer::Renewed { .. })
        | (ModelAnswer::Renewed(RenewalResponse::LeaseLost), Answer::LeaseLost)
        | (ModelAnswer::Settled(OutcomeResponse::Expired), Answer::Expired)
        | (
            ModelAnswer::Settled(OutcomeResponse::AlreadySucceeded)
            | ModelAnswer::Renewed(RenewalResponse::AlreadySucceeded),
            Answer::AlreadySucceeded,
        ) => true,
        _ => false,
    }
}
