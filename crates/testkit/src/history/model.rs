//! The model that a history is held against: one key, what may stand in it, and between which instants it may end. What a
//! call changes and is told comes from `oncegate_core::claim`, the contract's tables; what is added here is doubt.

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
use oncegate_core::record::{Contents, Key, LiveClaim, Record};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use super::record::{Answer, Call, Event, Reply};

/// An event made ready for the model.
pub(crate) struct Deed {
    /// When the call was made; it took effect no sooner.
    pub(crate) begun: Duration,
    /// When it was answered; it took effect no later. [`Duration::MAX`] where that is open.
    pub(crate) ended: Duration,
    /// The store's word, if there was one.
    pub(crate) told: Option<Answer>,
    ask: Ask,
    /// Answered by a policy: the store may get it with less of the lease.
    degraded: bool,
    /// The store may know its try under another attempt, and the answer is not that it does not.
    may_be_renamed: bool,
}

enum Ask {
    Claim(Box<ClaimRequest>),
    Settle(Box<OutcomeRequest>),
    Renew(RenewalRequest),
}

/// What the model would answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Word {
    Claimed(Box<ClaimResponse>),
    Settled(OutcomeResponse),
    Renewed(RenewalResponse),
}

/// One way in which things may have gone for a key, up to some instant.
#[derive(Clone, PartialEq)]
pub(crate) struct Course {
    /// The earliest instant it can be by now.
    pub(crate) now: Duration,
    /// What stands, expired or not.
    pub(crate) standing: Option<Standing>,
    /// The fence of the newest grant of which one is known.
    fence: Option<u64>,
}

/// What stands, and when it ends.
#[derive(Clone, PartialEq)]
pub(crate) struct Standing {
    pub(crate) record: Record,
    fence: Option<u64>,
    /// Nothing if it does not end by itself.
    pub(crate) ends: Option<Ends>,
}

/// Between which instants something ends, and how long it lasts at most from when it was last taken.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Ends {
    pub(crate) earliest: Duration,
    pub(crate) latest: Duration,
    lasts: Duration,
}

/// Attempts whose timestamp nobody was told stand with one that no gateway issues: the place of their event.
const NAMELESS_BELOW: u64 = 1_000_000;

impl Deed {
    /// Nothing for what certainly did not happen. `place` tells events of a history apart.
    ///
    /// A try that a policy granted may have two attempts: the store settles and renews it by either.
    pub(crate) fn of(event: &Event, place: usize, template: &ClaimRequest, by_policy: &[Nonce]) -> Option<Self> {
        let (told, degraded) = match &event.reply {
            Reply::Told(answer) => (Some(answer), None),
            Reply::Degraded(_, answer) => (None, Some(answer)),
            Reply::Unknown => (None, None),
            Reply::Refused => return None,
        };
        let ask = match &event.call {
            Call::Claim { nonce, terms, take_over } => {
                let nameless = Timestamp::from_micros(u64::try_from(place).expect("few events") + 1);
                let attempt = match told.or(degraded) {
                    Some(Answer::Granted { attempt, repeated: false, .. }) => attempt.clone(),
                    _ => Attempt::new(nameless, nonce.clone()),
                };
                let claim = ClaimRequest { attempt, terms: *terms, take_over: *take_over, ..template.clone() };
                Ask::Claim(Box::new(claim))
            }
            Call::Settle { attempt, outcome, terms } => {
                let late = LateTerms { operation: None, contents: Contents::Unverified, terms: *terms };
                Ask::Settle(Box::new(settle(template, attempt, outcome, late)))
            }
            Call::Renew { attempt, lease } => Ask::Renew(renew(template, attempt, *lease)),
        };
        let may_be_renamed = match (&event.call, told) {
            (Call::Claim { .. }, _) | (_, Some(Answer::Superseded { .. })) => false,
            (Call::Settle { attempt, .. } | Call::Renew { attempt, .. }, _) => by_policy.contains(attempt.nonce()),
        };
        let ended = if told.is_some() { event.answered } else { Duration::MAX };
        let degraded = degraded.is_some();
        Some(Self { begun: event.begun, ended, told: told.cloned(), ask, degraded, may_be_renamed })
    }
}

/// The claim that all others are made from: they differ in attempt and terms only.
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
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), app },
        attempt: Attempt::new(Timestamp::from_micros(0), Nonce::from_bits(0)),
        operation,
        contents,
        contents_stored_bytes: 1024,
        fingerprint: None,
        terms: Terms { lease, retention, unknown_retention: retention, on_lease_end: LeaseEnd::Release },
        take_over: false,
    }
}

/// A POST of a claim.
pub(crate) fn settle(claim: &ClaimRequest, attempt: &Attempt, outcome: &Outcome, late: LateTerms) -> OutcomeRequest {
    OutcomeRequest { key: claim.key.clone(), attempt: attempt.clone(), outcome: outcome.clone(), late: Some(late) }
}

/// A renewal of a claim.
pub(crate) fn renew(claim: &ClaimRequest, attempt: &Attempt, lease: Duration) -> RenewalRequest {
    RenewalRequest { key: claim.key.clone(), attempt: attempt.clone(), lease: Some(lease) }
}

impl Course {
    /// Nothing has happened.
    pub(crate) fn start() -> Self {
        Self { now: Duration::ZERO, standing: None, fence: None }
    }

    /// What follows if this deed is next, and what stands has or has not ended by then. Nothing if that cannot be, or if
    /// it would change nothing and nobody was told.
    pub(crate) fn after(&self, deed: &Deed, ended: bool, skew: Duration) -> Option<Self> {
        let (from, until) = self.span(deed, ended, skew)?;
        let mut standing = self.standing.clone();
        if ended {
            standing = standing.and_then(Standing::after_its_end);
        } else if let Some(Ends { latest, lasts, .. }) = standing.as_mut().and_then(|standing| standing.ends.as_mut()) {
            // It was taken before this deed happened.
            *latest = (*latest).min(until.saturating_add(*lasts));
        }
        let (effect, word) = answer(standing.as_ref(), deed);
        let Some(told) = &deed.told else {
            let changes = effect != Effect::Keep;
            let standing = put(standing, effect, None, (from, until), deed.degraded);
            return changes.then_some(Self { now: from, standing, fence: self.fence });
        };
        if let Some(standing) = &mut standing {
            standing.learn(&word, told);
        }
        // Asked again: what was learnt may have given what stands its name.
        let (effect, word) = answer(standing.as_ref(), deed);
        if !says(&word, told, deed) {
            return None;
        }
        let mut fence = self.fence;
        let standing = match told {
            Answer::Granted { fence: own, repeated, .. } => {
                let standing = put(standing, effect, *own, (from, until), false);
                let known = standing.as_ref().and_then(|standing| standing.fence);
                let as_known = !*repeated || own.is_none() || known.is_none() || known == *own;
                let rises = *repeated || own.is_none() || *own > fence;
                if !as_known || !rises {
                    return None;
                }
                fence = fence.max(*own);
                standing
            }
            _ => put(standing, effect, None, (from, until), false),
        };
        // Nobody is told more lease than there is, counted from when they asked.
        if let Answer::Granted { lease, .. } | Answer::Renewed { lease } = told {
            let ends = standing.as_ref().and_then(|standing| standing.ends);
            let latest = ends.map_or(Duration::MAX, |ends| ends.latest.saturating_add(skew));
            if deed.begun.saturating_add(*lease) > latest {
                return None;
            }
        }
        Some(Self { now: from, standing, fence })
    }

    /// Between which instants the deed can have happened.
    fn span(&self, deed: &Deed, ended: bool, skew: Duration) -> Option<(Duration, Duration)> {
        let (mut from, mut until) = (self.now.max(deed.begun), deed.ended);
        match (&self.standing, ended) {
            (Some(Standing { ends: Some(ends), .. }), true) => from = from.max(ends.earliest.saturating_sub(skew)),
            (Some(Standing { ends: Some(ends), .. }), false) => until = until.min(ends.latest.saturating_add(skew)),
            (_, true) => return None,
            (_, false) => {}
        }
        (from <= until).then_some((from, until))
    }

    /// What the store would have answered next, for a reader.
    pub(crate) fn would_say(&self, deed: &Deed, ended: bool) -> Word {
        let standing = self.standing.clone();
        let standing = if ended { standing.and_then(Standing::after_its_end) } else { standing };
        answer(standing.as_ref(), deed).1
    }
}

impl Standing {
    /// What is left when its time is over.
    fn after_its_end(self) -> Option<Self> {
        let LiveClaim { record, fence, .. } = LiveClaim::judge(self.record, Some(Duration::ZERO), self.fence)?;
        Some(Self { record, fence, ends: None })
    }

    fn is_nameless(&self) -> bool {
        self.record.attempt.timestamp().as_micros() < NAMELESS_BELOW
    }

    /// Takes the name of what stands from an answer that tells it.
    fn learn(&mut self, word: &Word, told: &Answer) {
        if !self.is_nameless() {
            return;
        }
        match (word, told) {
            (Word::Claimed(claimed), Answer::Granted { attempt, repeated: true, .. })
                if matches!(**claimed, ClaimResponse::Granted(_)) && attempt.nonce() == self.record.attempt.nonce() =>
            {
                self.record.attempt = attempt.clone();
            }
            (Word::Claimed(claimed), Answer::Duplicate { timestamp, .. })
                if matches!(**claimed, ClaimResponse::Duplicate(_)) =>
            {
                let timestamp = Timestamp::from_micros(*timestamp);
                self.record.attempt = Attempt::new(timestamp, self.record.attempt.nonce().clone());
            }
            _ => {}
        }
    }
}

/// What the tables say.
fn answer(standing: Option<&Standing>, deed: &Deed) -> (Effect, Word) {
    // Whether it has ended was decided before; how much is left only has to be something, so that a renewal extends.
    let left = |standing: &Standing| standing.ends.map(|_| Duration::from_nanos(1));
    let held = standing.map(|standing| LiveClaim {
        record: standing.record.clone(),
        left: left(standing),
        fence: standing.fence,
    });
    // A gateway that told its caller something of its own learns later by which name the store knows that try: what was
    // granted to the same nonce at another gateway is the same try.
    let own = |attempt: &Attempt| {
        let held = held.as_ref().map(|held| &held.record.attempt);
        let may_be_renamed = deed.degraded || deed.may_be_renamed;
        held.filter(|held| may_be_renamed && held.nonce() == attempt.nonce()).unwrap_or(attempt).clone()
    };
    match &deed.ask {
        Ask::Claim(ask) => {
            let (effect, word) = claim::claim(held.as_ref(), ask, None);
            (effect, Word::Claimed(Box::new(word)))
        }
        Ask::Settle(ask) => {
            let ask = OutcomeRequest { attempt: own(&ask.attempt), ..OutcomeRequest::clone(ask) };
            let (effect, word) = claim::settle(held.as_ref(), &ask);
            (effect, Word::Settled(word))
        }
        Ask::Renew(ask) => {
            let ask = RenewalRequest { attempt: own(&ask.attempt), ..ask.clone() };
            let (effect, word) = claim::renew(held.as_ref(), &ask);
            (effect, Word::Renewed(word))
        }
    }
}

/// What stands after a deed that happened between these two instants.
fn put(
    standing: Option<Standing>,
    effect: Effect,
    fence: Option<u64>,
    (from, until): (Duration, Duration),
    shortened: bool,
) -> Option<Standing> {
    match effect {
        Effect::Keep => standing,
        Effect::Delete => None,
        Effect::Put(record, lasts) => {
            let own = standing.filter(|standing| standing.record.attempt == record.attempt);
            let fence = own.map_or(fence, |own| own.fence);
            let earliest = |lasts| if shortened { from } else { from.saturating_add(lasts) };
            let ends =
                lasts.map(|lasts| Ends { earliest: earliest(lasts), latest: until.saturating_add(lasts), lasts });
            Some(Standing { record, fence, ends })
        }
        Effect::Extend(lasts) => standing.map(|standing| {
            let ends = standing.ends.map(|ends| Ends {
                earliest: if shortened { ends.earliest } else { ends.earliest.max(from.saturating_add(lasts)) },
                latest: ends.latest.max(until.saturating_add(lasts)),
                lasts: ends.lasts.max(lasts),
            });
            Standing { ends, ..standing }
        }),
    }
}

/// Whether what the model says is what was told. How much is left, and fences, are looked at elsewhere.
fn says(word: &Word, told: &Answer, deed: &Deed) -> bool {
    match (word, told) {
        (Word::Claimed(claimed), Answer::Granted { attempt, repeated, taken_over, lease, .. }) => {
            let (Ask::Claim(ask), ClaimResponse::Granted(grant)) = (&deed.ask, &**claimed) else { return false };
            let whole = *repeated || *lease <= ask.terms.lease;
            whole && grant.attempt == *attempt && grant.repeated == *repeated && grant.taken_over == *taken_over
        }
        (Word::Claimed(claimed), Answer::Duplicate { timestamp, state, result }) => {
            let ClaimResponse::Duplicate(held) = &**claimed else { return false };
            let own = held.record.attempt.timestamp().as_micros();
            own == *timestamp && held.record.state == *state && held.record.result == *result
        }
        // A failure whose first try's reply was lost: whoever stands now, the caller's claim is gone.
        (Word::Settled(settled), Answer::Done { state: None, late: None }) => {
            let Ask::Settle(ask) = &deed.ask else { return false };
            let gone =
                matches!(settled, OutcomeResponse::Done { state: None, .. } | OutcomeResponse::Superseded { .. });
            ask.outcome == Outcome::Failure && gone
        }
        (Word::Settled(OutcomeResponse::Done { state: own, late: own_late, .. }), Answer::Done { state, late }) => {
            own == state && own_late == late
        }
        (
            Word::Settled(OutcomeResponse::Superseded { state: own, .. })
            | Word::Renewed(RenewalResponse::Superseded { state: own, .. }),
            Answer::Superseded { state },
        ) => own == state,
        (Word::Renewed(RenewalResponse::Renewed { .. }), Answer::Renewed { .. })
        | (Word::Renewed(RenewalResponse::LeaseLost), Answer::LeaseLost)
        | (Word::Settled(OutcomeResponse::Expired), Answer::Expired)
        | (
            Word::Settled(OutcomeResponse::AlreadySucceeded) | Word::Renewed(RenewalResponse::AlreadySucceeded),
            Answer::AlreadySucceeded,
        ) => true,
        _ => false,
    }
}
