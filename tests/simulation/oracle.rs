//! The oracle: checks every response that a caller gets against what the store said to the tries of that very call, against
//! the responses to other callers of the key, and against the clock.

use std::time::Duration;

use oncegate::domain::claim::{
    ClaimRequest, ClaimResponse, Grant, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate::domain::outage_policy::OutagePolicy;
use oncegate::domain::record::ClaimState;
use oncegate::domain::terms::ClaimOnOutage;
use oncegate::engine::EngineError;
use oncegate::gateway::claim::{ClaimAnswer, Granted};
use oncegate::gateway::outcome::Reported;
use oncegate::gateway::{Failure, RenewalAnswer};

use crate::clock::micros;
use crate::ledger::{Asked, Choice, Given, Instants, Process};
use crate::question::{Met, Question, Taken, Timed, Told, outcome_name};
use crate::reference::{Broken, hold};
use crate::trace::{Event, Name, Place};
use crate::world::{Kind, Known, World};

/// What a timer that counts whole milliseconds may be late.
const TIMER_GRAIN: Duration = Duration::from_millis(5);

/// Longer than a world lasts.
const FOR_EVER: Duration = Duration::from_hours(1_000_000);

/// How soon service is back once nothing is wrong any more.
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// A call that a caller waits for.
pub(crate) struct Call {
    pub(crate) caller: u16,
    pub(crate) gateway: u16,
    pub(crate) kind: &'static str,
    pub(crate) what: &'static str,
    /// What the caller knows of its attempt.
    pub(crate) name: Name,
    pub(crate) key: u32,
    /// By when an answer is due.
    pub(crate) deadline: Duration,
    /// The deadline is that of many items together, which may take the answer of one along.
    pub(crate) in_batch: bool,
    /// Which process of its gateway it asks.
    pub(crate) run: u32,
    begun: Duration,
    losses: u64,
}

impl Call {
    fn process(&self) -> Process {
        Process { gateway: self.gateway, run: self.run }
    }
}

/// What became of the tries of a call.
#[derive(Default)]
pub(crate) struct Open {
    begun: Duration,
    key: u32,
    tries: Vec<Try>,
}

impl Open {
    /// What the store said to each try that it answered, when by its clock, and when in the time that really passes.
    fn answers(&self) -> impl Iterator<Item = (&Told, u64, Duration)> {
        self.tries.iter().filter_map(|own| match own {
            Try::Answered { told, store_now, at, .. } => Some((&**told, *store_now, *at)),
            Try::Uncertain | Try::Refused => None,
        })
    }

    /// What the last try that was answered has met.
    fn met(&self) -> Option<Met> {
        let met = |own: &Try| if let Try::Answered { met, .. } = own { Some(*met) } else { None };
        self.tries.iter().rev().find_map(met)
    }

    /// Which store granted the attempt of this name, and when.
    fn granted_by(&self, name: Name) -> Option<(u16, Duration)> {
        let granted = |own: &Try| match own {
            Try::Answered { told, at, store, .. } => match &**told {
                Told::Claimed(ClaimResponse::Granted(grant)) if Name::of(&grant.attempt) == name => Some((*store, *at)),
                _ => None,
            },
            Try::Uncertain | Try::Refused => None,
        };
        self.tries.iter().rev().find_map(granted)
    }

    /// That what a caller is told is what one of the answers allows. Two tries may be under way at once.
    fn any(
        &self,
        told: &impl std::fmt::Debug,
        allows: impl FnMut((&Told, u64, Duration)) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut allowed = hold(false, "S9", || format!("the store has not answered, and the caller is told {told:?}"));
        for checked in self.answers().map(allows) {
            if checked.is_ok() {
                return Ok(());
            }
            allowed = checked;
        }
        allowed
    }
}

#[derive(PartialEq)]
enum Try {
    /// No answer came, or none yet.
    Uncertain,
    /// It certainly did not happen.
    Refused,
    /// The store took it, and its answer has come.
    Answered { told: Box<Told>, store_now: u64, at: Duration, store: u16, met: Met },
}

impl Try {
    /// Whether it certainly changed nothing. That another attempt stands is not the last word: it may be of the same try.
    fn is_in_vain(&self) -> bool {
        match self {
            Self::Refused => true,
            Self::Answered { told, .. } => {
                matches!(
                    **told,
                    Told::Found(_)
                        | Told::Settled(OutcomeResponse::Superseded { .. })
                        | Told::Renewed(RenewalResponse::Superseded { .. })
                )
            }
            Self::Uncertain => false,
        }
    }
}

/// One try of a call, for the link that makes it.
pub(crate) struct Trial {
    call: (u16, &'static str, Name),
    place: Option<usize>,
}

/// What callers of a key have been told, in the store's time.
#[derive(Default)]
pub(crate) struct Beliefs {
    /// Who may think that it holds the claim, and until when.
    holders: Vec<(Name, u64)>,
    /// Attempts that have reported, or that an operator has ended: what they are told from now on is old news.
    over: Vec<Name>,
    /// Attempts whose claims an operator has ended, or is about to: even a success blocks no more.
    released: Vec<Name>,
    /// A success that was acknowledged.
    success: Option<Success>,
}

#[derive(Clone, Copy, Debug)]
struct Success {
    name: Name,
    /// When it was recorded.
    at: Duration,
    /// Until when it blocks, by the store's clock.
    until: u64,
}

/// So many attempts of a key are remembered as over.
const OVER_MAX: usize = 128;

impl Beliefs {
    /// The store has lost its data: nobody can rely on anything, or only on what goes on.
    pub(crate) fn forget(&mut self, holds: bool) {
        if !holds {
            self.holders.clear();
        }
        self.success = None;
    }

    /// What has ended by now has ended for good, even if the clock is set back.
    pub(crate) fn end_until(&mut self, store_now: u64) {
        self.holders.retain(|(_, until)| *until > store_now);
        self.success = self.success.filter(|success| success.until > store_now);
    }

    /// Somebody reports this attempt, or releases it. One try may have been granted as two attempts, where a policy decides.
    fn end(&mut self, name: Name, released: bool) {
        self.holders.retain(|(holder, _)| holder.nonce != name.nonce);
        let mut lists = vec![&mut self.over];
        if released {
            self.success = self.success.filter(|success| success.name != name);
            lists.push(&mut self.released);
        }
        for list in lists {
            if list.len() == OVER_MAX {
                list.remove(0);
            }
            list.push(name);
        }
    }

    fn succeed(&mut self, name: Name, at: Duration, until: u64) {
        if !self.released.contains(&name) {
            self.success = Some(Success { name, at, until });
        }
    }

    /// That nobody else may think that it holds the claim, and no success blocks it.
    fn alone(&self, name: Name, granted_at: Duration, store_now: u64) -> Result<(), Broken> {
        self.alone_but_for(|holder| holder == name, name, granted_at, store_now)
    }

    /// The same, where the try may have been granted as two attempts.
    fn alone_as_a_try(&self, name: Name, granted_at: Duration, store_now: u64) -> Result<(), Broken> {
        self.alone_but_for(|holder| holder.nonce == name.nonce, name, granted_at, store_now)
    }

    fn alone_but_for(
        &self,
        is_own: impl Fn(Name) -> bool,
        name: Name,
        granted_at: Duration,
        store_now: u64,
    ) -> Result<(), Broken> {
        let other = self.holders.iter().find(|(holder, until)| !is_own(*holder) && *until > store_now);
        hold(other.is_none(), "S1", || format!("{name:?} holds the claim, and so does {other:?} (now {store_now})"))?;
        let success = self.success.filter(|success| success.at < granted_at && success.until > store_now);
        hold(success.is_none(), "S3", || {
            format!("granted to {name:?} at {granted_at:?}, after the success {success:?}")
        })
    }

    fn hold(&mut self, name: Name, until: u64) {
        match self.holders.iter_mut().find(|(holder, _)| *holder == name) {
            Some((_, known)) => *known = (*known).max(until),
            None => self.holders.push((name, until)),
        }
    }
}

/// Called by links.
impl World {
    /// A link makes a try; its answer is not known until something else is said.
    pub(crate) fn trial<Q: Question>(&self, gateway: u16, request: &Q) -> Trial {
        let mut call = (gateway, Q::NAME, request.asked_by());
        let known = &mut *self.known();
        let of_policies = self.kind.has_policies();
        if of_policies && !known.open.contains_key(&call) {
            // It may go out under the attempt that stands for the same try.
            let same = known
                .open
                .keys()
                .filter(|(to, kind, name)| (*to, *kind, name.nonce) == (gateway, Q::NAME, call.2.nonce));
            call = same.min_by_key(|(.., name)| name.timestamp).copied().unwrap_or(call);
        }
        let open = known.open.get_mut(&call).filter(|_| !of_policies || !request.is_delivery());
        let begun = open.as_ref().map(|open| open.begun);
        let place = open.map(|open| {
            open.tries.push(Try::Uncertain);
            open.tries.len() - 1
        });
        if of_policies {
            let number = known.number(request.key());
            let ledger = &known.of(number).ledger;
            let may = ledger.may_send(gateway, request, begun);
            let may =
                may.and_then(|()| if request.is_delivery() { ledger.may_deliver(gateway, request) } else { Ok(()) });
            self.check_known(known, number, may);
        }
        Trial { call, place }
    }

    /// A try failed.
    pub(crate) fn refused(&self, trial: &Trial, failure: &EngineError) {
        if let EngineError::Determinate(_) = failure {
            self.conclude(trial, Try::Refused);
        }
    }

    /// The store's answer to a try has come.
    pub(crate) fn answered<Q: Question>(&self, trial: &Trial, request: &Q, taken: &Taken<Q::Answer>) {
        let told = Box::new(taken.answer.clone().into());
        if self.kind.has_policies() && !request.is_delivery() {
            let known = &mut *self.known();
            let number = known.number(request.key());
            known.of(number).ledger.hear(trial.call.0, &told);
        }
        let Taken { store_now, at, store, met, .. } = *taken;
        if let (Kind::Holding, Some(held)) = (self.kind, Q::found(&taken.answer)) {
            let known = &mut *self.known();
            let number = known.number(request.key());
            let is_claim =
                |(to, kind, _): &(u16, &str, Name)| *to == trial.call.0 && *kind == Timed::<ClaimRequest>::NAME;
            for open in known.open.iter_mut().filter(|(call, open)| is_claim(call) && open.key == number) {
                let told = Box::new(Told::Found(held.clone()));
                open.1.tries.push(Try::Answered { told, store_now, at, store, met });
            }
        }
        self.conclude(trial, Try::Answered { told, store_now, at, store, met });
    }

    fn conclude(&self, trial: &Trial, became: Try) {
        let known = &mut *self.known();
        if let (Some(place), Some(open)) = (trial.place, known.open.get_mut(&trial.call)) {
            // A call that is over and begun anew under the same name has fewer tries.
            if let Some(own) = open.tries.get_mut(place) {
                *own = became;
            }
        }
    }
}

/// Called by callers.
impl World {
    /// A call begins; nothing if there have been enough of them, or if this very one is under way.
    pub(crate) fn begin(
        &self,
        (caller, gateway): (u16, u16),
        kind: &'static str,
        what: &'static str,
        name: Name,
        key: u32,
        deadline: Duration,
    ) -> Option<Call> {
        let begun = self.time.now();
        {
            let known = &mut *self.known();
            if known.open.contains_key(&(gateway, kind, name)) {
                return None;
            }
            known.open.insert((gateway, kind, name), Open { begun, key, ..Open::default() });
            let event = Event {
                place: Place::Caller(caller),
                key,
                what,
                whose: name,
                answer: "?",
                other: Name::default(),
                number: gateway.into(),
            };
            known.trace.add(begun, event);
            if let Some(asked) = asked((gateway, name.nonce), kind, what) {
                known.of(key).ledger.request(asked);
            }
            if kind == "settle" || kind == "release" {
                let of_key = known.of(key);
                of_key.beliefs.end(name, kind == "release");
                of_key.ledger.end(name, begun, kind == "release");
                if self.kind.has_policies() && kind == "settle" {
                    of_key.ledger.report(gateway, name, what, begun);
                }
                known.reported.insert(name);
                known.reported.insert(Name::nonce(name.nonce));
            }
        }
        let losses = self.known().losses;
        let (in_batch, run) = (false, 0);
        let call = Call { caller, gateway, kind, what, name, key, deadline, in_batch, run, begun, losses };
        if self.count() {
            return Some(call);
        }
        self.abort(&call);
        None
    }

    /// The gateway has died; no answer comes.
    pub(crate) fn abort(&self, call: &Call) {
        let known = &mut *self.known();
        known.open.remove(&(call.gateway, call.kind, call.name));
        if call.kind == <Timed<ClaimRequest> as Question>::NAME {
            known.of(call.key).ledger.leave_unanswered(call.gateway, call.name.nonce);
        }
    }

    /// What a claim call was answered, which asked for this lease.
    pub(crate) fn claimed(&self, call: &Call, lease: Duration, answer: &Result<ClaimAnswer, Failure>) {
        let (said, other) = match answer {
            Ok(ClaimAnswer::Granted(granted)) if granted.taken_over => ("taken over", Name::of(&granted.attempt)),
            Ok(ClaimAnswer::Granted(granted)) if granted.repeated => ("repeated", Name::of(&granted.attempt)),
            Ok(ClaimAnswer::Granted(granted)) => ("granted", Name::of(&granted.attempt)),
            Ok(ClaimAnswer::Duplicate(found)) => {
                let said = match found.claim.record.state {
                    ClaimState::InProgress => "duplicate in progress",
                    ClaimState::Succeeded => "duplicate succeeded",
                    ClaimState::Unknown => "duplicate unknown",
                };
                (said, Name::of(&found.claim.record.attempt))
            }
            Ok(ClaimAnswer::Mismatch(..)) => ("mismatch", Name::default()),
            Err(failure) => (failure_name(failure), Name::default()),
        };
        let lease_ms = if let Ok(ClaimAnswer::Granted(granted)) = answer { granted.lease_ms } else { 0 };
        self.finish(call, (said, other, lease_ms), answer.as_ref().err(), |now, known, open| match answer {
            Ok(answer) => {
                let policy = policy_of(answer);
                match policy {
                    Some(policy) => check_answer_of_policy(known, call, policy, answer)?,
                    None => check_claim((self.store_clock.now(), now), known, call, &open, lease, answer)?,
                }
                if let (ClaimAnswer::Granted(granted), None) = (answer, policy)
                    && let Some(granted_by) = open.granted_by(Name::of(&granted.attempt))
                {
                    self.check_store(&mut known.switches, call.gateway, granted_by)?;
                }
                if let (ClaimAnswer::Granted(granted), true) = (answer, self.kind.has_policies()) {
                    let now = self.instants(now);
                    let left = Duration::from_millis(granted.lease_ms);
                    let (name, until) = (Name::of(&granted.attempt), now.plus(left));
                    let given = Given::new(call.process(), name, policy, now.real, (lease, until));
                    let ledger = &mut known.of(call.key).ledger;
                    // The store's leases last longer if its clock is set back.
                    let of_store = policy.is_none() || granted.repeated || ledger.is_the_stores(&given);
                    let fits = of_store || now.real + left <= call.begun + lease;
                    hold(fits, "S10", || format!("{lease:?} is granted as {granted:?}"))?;
                    return ledger.grant(given, &granted.attempt, call.begun, now);
                }
                Ok(())
            }
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// What an outcome call was answered.
    pub(crate) fn settled(&self, call: &Call, outcome: &Outcome, answer: &Result<Reported, Failure>) {
        let said = match answer {
            Ok(Reported::Settled { settled, .. }) => <Timed<OutcomeRequest> as Question>::brief(settled).0,
            Ok(Reported::Spooled { .. }) => "spooled",
            Ok(Reported::Observed { .. }) => "observed",
            Err(failure) => failure_name(failure),
        };
        self.finish(call, (said, Name::default(), 0), answer.as_ref().err(), |now, known, open| match answer {
            Ok(Reported::Settled { settled, degraded, .. }) => {
                if degraded.is_none() {
                    check_settled(known, call, &open, outcome, settled)?;
                    let is_refused = matches!(settled, OutcomeResponse::Superseded { .. });
                    hold(!is_refused || open.met() != Some(Met::ItsMarkedTry), "nonce", || {
                        format!("{:?} meets its own try, and is told {settled:?}", call.name)
                    })?;
                }
                let instants = self.instants(now);
                let of_key = known.of(call.key);
                let name = call.name;
                if let OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, .. } = settled {
                    let until = instants.plus(left.unwrap_or(FOR_EVER));
                    of_key.ledger.succeed(call.process(), name, until, (now, degraded.is_some()));
                }
                let Some(policy) = degraded else { return Ok(()) };
                hold(allows(of_key.ledger.choice, *policy), "S12", || format!("nobody has chosen {policy:?}"))?;
                let is_taken = match settled {
                    // An unknown may be what the lease's end has made of it already.
                    OutcomeResponse::Done { late, state, .. }
                        if *late == Some(false) || *state == Some(ClaimState::Succeeded) =>
                    {
                        *outcome != Outcome::Unknown
                    }
                    _ => false,
                };
                if is_taken {
                    of_key.ledger.accept(call.gateway, name, outcome_name(outcome), call.begun, now);
                }
                Ok(())
            }
            Ok(Reported::Spooled { .. }) => {
                let of_key = known.of(call.key);
                let policy = OutagePolicy::Spool;
                hold(allows(of_key.ledger.choice, policy), "S12", || format!("nobody has chosen {policy:?}"))?;
                of_key.ledger.accept(call.gateway, call.name, outcome_name(outcome), call.begun, now);
                Ok(())
            }
            Ok(Reported::Observed { .. }) => hold(false, "S6", || "nobody observes".to_owned()),
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// What a renewal was answered.
    pub(crate) fn renewed(&self, call: &Call, answer: &Result<RenewalAnswer, Failure>) {
        let said = match answer {
            Ok(answer) => <Timed<RenewalRequest> as Question>::brief(&answer.renewed).0,
            Err(failure) => failure_name(failure),
        };
        self.finish(call, (said, Name::default(), 0), answer.as_ref().err(), |now, known, open| match answer {
            Ok(answer) => {
                let instants = self.instants(now);
                match answer.degraded {
                    Some(policy) => {
                        let choice = known.of(call.key).ledger.choice;
                        hold(allows(choice, policy), "S12", || format!("nobody has chosen {policy:?}"))?;
                    }
                    None => check_renewed((instants.store, now), known, call, &open, &answer.renewed)?,
                }
                if let RenewalResponse::Renewed { left } = answer.renewed {
                    known.of(call.key).ledger.extend(
                        call.process(),
                        call.name,
                        instants.plus(left),
                        answer.degraded.is_some(),
                    );
                }
                Ok(())
            }
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// What any other call was answered: only that it was, and by when.
    pub(crate) fn replied<Answer>(&self, call: &Call, answer: &Result<Answer, Failure>) {
        let said = answer.as_ref().map_or_else(failure_name, |_| "answered");
        self.finish(call, (said, Name::default(), 0), answer.as_ref().err(), |_, _, _| Ok(()));
    }

    fn check_failure(
        &self,
        known: &mut Known,
        call: &Call,
        open: &Open,
        failure: &Failure,
        now: Duration,
    ) -> Result<(), Broken> {
        if let (Failure::Store(_), Some(asked)) =
            (failure, asked((call.gateway, call.name.nonce), call.kind, call.what))
        {
            known.of(call.key).ledger.refuse(asked);
        }
        if let (Failure::OutcomeUnknown(_), <Timed<ClaimRequest> as Question>::NAME) = (failure, call.kind) {
            known.of(call.key).ledger.leave_unanswered(call.gateway, call.name.nonce);
        }
        let unsure_until = known.disks_unsure_until.get(&call.gateway);
        let is_unsure = unsure_until.is_some_and(|until| *until >= call.begun);
        let is_refused = !open.tries.is_empty() && open.tries.iter().all(|own| *own == Try::Refused);
        if is_unsure && is_refused && matches!(failure, Failure::OutcomeUnknown(_)) {
            *known.tally.entry(("journal", "unsure")).or_default() += 1;
        }
        let may_be_unknown = match self.kind {
            Kind::Plain => false,
            // The journal's disk may have taken too long, or nobody knows what it has taken.
            Kind::Policies => now + TIMER_GRAIN >= call.begun + call.deadline || is_unsure,
            // What was done on a store that was left, or that lost its data, is not told.
            Kind::Switched | Kind::PoliciesAndSwitches | Kind::Holding => true,
        };
        check_failure(call, open, failure, now, may_be_unknown)
    }

    /// Counts why a journal has not taken something.
    fn tally_journal(known: &mut Known, failure: &Failure) {
        let text = format!("{failure:?}");
        let kinds = [
            ("journal is full", "full"),
            ("part of the journal is full", "full for the app"),
            ("no room for the journal", "no room"),
            ("until this gateway is restarted", "broken"),
        ];
        for (_, kind) in kinds.iter().filter(|(said, _)| text.contains(said)) {
            *known.tally.entry(("journal", kind)).or_default() += 1;
        }
    }

    fn instants(&self, real: Duration) -> Instants {
        Instants { real, store: self.store_clock.now() }
    }

    fn finish(
        &self,
        call: &Call,
        (answer, other, number): (&'static str, Name, u64),
        failure: Option<&Failure>,
        check: impl FnOnce(Duration, &mut Known, Open) -> Result<(), Broken>,
    ) {
        let now = self.time.now();
        let checked = {
            let known = &mut *self.known();
            let open = known.open.remove(&(call.gateway, call.kind, call.name)).unwrap_or_default();
            let place = Place::Caller(call.caller);
            let event = Event { place, key: call.key, what: call.kind, whose: call.name, answer, other, number };
            known.trace.add(now, event);
            *known.tally.entry((call.kind, answer)).or_default() += 1;
            if let Some(failure) = failure {
                Self::tally_journal(known, failure);
            }
            let took = now.saturating_sub(call.begun);
            let at_peace = known.serves && known.trouble.calm_since(call.begun.saturating_sub(BACK_WITHIN));
            let unserved = failure.filter(|_| at_peace && !has_run_out(call, &open, now));
            hold(took <= call.deadline + TIMER_GRAIN, "L2", || format!("{} took {took:?}", call.kind))
                .and_then(|()| {
                    hold(unserved.is_none(), "L3", || format!("nothing is wrong, and the answer is {unserved:?}"))
                })
                .and_then(|()| check(now, known, open))
        };
        self.check(call.key, checked);
    }
}

fn check_claim(
    now: (u64, Duration),
    known: &mut Known,
    call: &Call,
    open: &Open,
    lease: Duration,
    answer: &ClaimAnswer,
) -> Result<(), Broken> {
    open.any(answer, |(told, taken_at, at)| {
        let told = match (answer, told) {
            (_, Told::Claimed(told)) => told,
            (ClaimAnswer::Duplicate(_), Told::Found(held)) => &ClaimResponse::Duplicate(held.clone()),
            // What differs, conformance tests say.
            (ClaimAnswer::Mismatch(..), Told::Found(_)) => return Ok(()),
            _ => return hold(false, "S13", || format!("a claim call is answered {told:?}")),
        };
        match (answer, told) {
            (ClaimAnswer::Granted(granted), ClaimResponse::Granted(grant)) => {
                let left = grant.lease_left.unwrap_or(lease);
                check_granted(now, known, call, granted, grant, (left, taken_at, at))
            }
            (ClaimAnswer::Duplicate(found), ClaimResponse::Duplicate(held)) => {
                let record = &found.claim.record;
                let own = Name::of(&record.attempt).nonce == call.name.nonce;
                hold(record == &held.record, "S4", || {
                    format!("{held:?} stands, and the caller is told of {record:?}")
                })?;
                hold(!own || record.state != ClaimState::InProgress, "S9", || "told to be its own duplicate".to_owned())
            }
            (ClaimAnswer::Mismatch(..), ClaimResponse::Mismatch(_)) => Ok(()),
            _ => hold(false, "S9", || format!("the store answered {told:?}, and the caller is told {answer:?}")),
        }
    })
}

/// A grant as it is told, and the store's: what was left of the lease, at an instant of the store's and the world's.
fn check_granted(
    (store_now, now): (u64, Duration),
    known: &mut Known,
    call: &Call,
    granted: &Granted,
    grant: &Grant,
    (left, taken_at, at): (Duration, u64, Duration),
) -> Result<(), Broken> {
    let Granted { attempt, fence, repeated, taken_over, lease_ms, degraded, .. } = granted;
    hold(degraded.is_none(), "S12", || format!("the store granted, and {degraded:?} is told"))?;
    let name = Name::of(attempt);
    hold(name.nonce == call.name.nonce, "S1", || format!("granted the attempt {name:?} of another"))?;
    let same = *attempt == grant.attempt && *repeated == grant.repeated && *taken_over == grant.taken_over;
    hold(same, "S5", || format!("the store granted {grant:?}, and the caller is told {granted:?}"))?;
    hold(*fence == grant.fence, "S11", || format!("the fence {:?} is told as {fence:?}", grant.fence))?;
    let told = Duration::from_millis(*lease_ms);
    hold(now + told <= at + left, "S10", || format!("{left:?} were left at {at:?}, and {told:?} are told at {now:?}"))?;
    let beliefs = &mut known.keys[call.key as usize].beliefs;
    if known.losses == call.losses && !beliefs.over.contains(&name) {
        beliefs.alone(name, at, store_now)?;
        beliefs.hold(name, (store_now + micros(told)).min(taken_at + micros(left)));
    }
    Ok(())
}

fn check_settled(
    known: &mut Known,
    call: &Call,
    open: &Open,
    outcome: &Outcome,
    settled: &OutcomeResponse,
) -> Result<(), Broken> {
    let released = known.of(call.key).released;
    let others = open.tries.iter().filter(|own| **own != Try::Refused).count() > 1;
    open.any(settled, |(told, store_now, at)| {
        let Told::Settled(told) = told else { return hold(false, "S13", || format!("a POST is answered {told:?}")) };
        // Another try, whose answer is not known or came as well, may be the one that released the claim. "Nothing stands"
        // and "another's stands" are then no answers to the caller; that it is gone, and nobody knows why, always is.
        let (gone, released_now) = match told {
            OutcomeResponse::Done { state: None, late, .. } => (true, *late == Some(false)),
            OutcomeResponse::Superseded { .. } => (true, false),
            _ => (false, false),
        };
        let is_plain = *settled == OutcomeResponse::Done { state: None, left: None, late: None };
        let by_another = released.is_some_and(|(name, at)| name == call.name && at >= call.begun) && !released_now;
        let allowed = if *outcome == Outcome::Failure && gone && others {
            is_plain || (settled == told && !by_another)
        } else {
            settled == told
        };
        hold(allowed, "S6", || format!("of {told:?} the caller is told {settled:?}"))?;
        if let OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, .. } = settled
            && known.losses == call.losses
        {
            let until = left.map_or(u64::MAX, |left| store_now + micros(left));
            known.of(call.key).beliefs.succeed(call.name, at, until);
        }
        Ok(())
    })
}

fn check_renewed(
    (store_now, now): (u64, Duration),
    known: &mut Known,
    call: &Call,
    open: &Open,
    renewed: &RenewalResponse,
) -> Result<(), Broken> {
    open.any(renewed, |(told, taken_at, at)| {
        let Told::Renewed(told) = told else { return hold(false, "S13", || format!("a renewal is answered {told:?}")) };
        let (RenewalResponse::Renewed { left }, RenewalResponse::Renewed { left: of_store }) = (renewed, told) else {
            return hold(renewed == told, "S2", || format!("to be {told:?}, and the caller is told {renewed:?}"));
        };
        hold(now + *left <= at + *of_store, "S10", || {
            format!("{of_store:?} were left at {at:?}, and {left:?} are told at {now:?}")
        })?;
        let beliefs = &mut known.keys[call.key as usize].beliefs;
        if known.losses == call.losses && !beliefs.over.contains(&call.name) {
            beliefs.alone_as_a_try(call.name, at, store_now)?;
            beliefs.hold(call.name, (store_now + micros(*left)).min(taken_at + micros(*of_store)));
        }
        Ok(())
    })
}

/// What a call asks that a gateway may do in the store's place and tell the store of later.
fn asked((gateway, nonce): (u16, u64), kind: &str, what: &'static str) -> Option<Asked> {
    match kind {
        "claim" => Some((gateway, nonce, "claim")),
        "settle" => Some((gateway, nonce, what)),
        _ => None,
    }
}

/// A claim that a policy has answered: it says so, and is one that the app has chosen.
fn check_answer_of_policy(
    known: &mut Known,
    call: &Call,
    policy: OutagePolicy,
    answer: &ClaimAnswer,
) -> Result<(), Broken> {
    let choice = known.of(call.key).ledger.choice;
    hold(allows(choice, policy), "S12", || format!("nobody has chosen {policy:?}, and it answers {answer:?}"))?;
    match answer {
        ClaimAnswer::Granted(granted) => {
            let name = Name::of(&granted.attempt);
            hold(name.nonce == call.name.nonce, "S1", || format!("granted the attempt {name:?} of another"))?;
            hold(granted.fence.is_none(), "S11", || format!("a policy knows of no fence, and tells {granted:?}"))
        }
        ClaimAnswer::Duplicate(found) => {
            let record = &found.claim.record;
            let own = Name::of(&record.attempt).nonce == call.name.nonce;
            hold(!own || record.state != ClaimState::InProgress, "S9", || "told to be its own duplicate".to_owned())
        }
        ClaimAnswer::Mismatch(..) => Ok(()),
    }
}

/// Whether an app has chosen that this policy answers. Outcomes of what `local` has granted go the same way.
fn allows(choice: Option<Choice>, policy: OutagePolicy) -> bool {
    let Some(choice) = choice else { return false };
    match policy {
        OutagePolicy::Local => choice.claims == ClaimOnOutage::Local,
        OutagePolicy::FailOpen => choice.claims == ClaimOnOutage::FailOpen,
        OutagePolicy::Spool => choice.spools,
    }
}

fn policy_of(answer: &ClaimAnswer) -> Option<OutagePolicy> {
    match answer {
        ClaimAnswer::Granted(granted) => granted.degraded,
        ClaimAnswer::Duplicate(found) => found.degraded,
        ClaimAnswer::Mismatch(_, policy) => *policy,
    }
}

/// That a failure says no more than is so.
fn check_failure(
    call: &Call,
    open: &Open,
    failure: &Failure,
    now: Duration,
    may_be_unknown: bool,
) -> Result<(), Broken> {
    match failure {
        Failure::Store(_) => hold(open.tries.iter().all(Try::is_in_vain), "S9", || {
            format!("the store may have taken the {} of {:?}, and the caller is told {failure:?}", call.kind, call.name)
        }),
        Failure::OutcomeUnknown(_) => {
            let uncertain = call.in_batch
                || may_be_unknown
                || open.tries.is_empty()
                || open.tries.contains(&Try::Uncertain)
                || open.tries.iter().any(|own| *own != Try::Refused && own.is_in_vain())
                || has_run_out(call, open, now);
            hold(uncertain, "S9", || "the store has answered, and the caller is told that it has not".to_owned())
        }
        _ => hold(false, "S6", || format!("nobody asks what is refused with {failure:?}")),
    }
}

/// Whether nothing was left of a lease when its grant or renewal came.
fn has_run_out(call: &Call, open: &Open, now: Duration) -> bool {
    open.answers().any(|(told, ..)| {
        let left = match told {
            Told::Claimed(ClaimResponse::Granted(grant)) => grant.lease_left,
            Told::Renewed(RenewalResponse::Renewed { left }) => Some(*left),
            _ => None,
        };
        // What the call has taken is taken off, all of it.
        left.is_some_and(|left| call.begun.saturating_add(left) < now + TIMER_GRAIN)
    })
}

fn failure_name(failure: &Failure) -> &'static str {
    match failure {
        Failure::Store(_) => "store unavailable",
        Failure::OutcomeUnknown(_) => "outcome unknown",
        _ => "refused",
    }
}
