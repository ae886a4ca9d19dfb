//! The oracle: compares every response to a caller with the answers of the store to the tries of that call, with the
//! responses to other callers of the key, and with the clock.

use std::time::Duration;

use oncegate_core::call::Answered;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Grant, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::EngineError;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Key};
use oncegate_core::terms::ClaimOnOutage;
use oncegate_gateway::claim::{ClaimAnswer, Granted};
use oncegate_gateway::outcome::Reported;
use oncegate_gateway::{Failure, RenewalAnswer};

use crate::clock::micros;
use crate::engine_call::{EngineCall, Executed, Holder, StoreAnswer, Timed, outcome_name};
use crate::ledger::{Choice, Given, Instants, Process, Request};
use crate::reference::{Broken, ensure};
use crate::switches::Switches;
use crate::trace::{Event, Name, Place};
use crate::world::{Kind, Known, World};

/// Tolerance for a timer with a resolution of milliseconds.
const TIMER_GRAIN: Duration = Duration::from_millis(10);

/// Longer than a world lasts.
const FOREVER: Duration = Duration::from_hours(1_000_000);

/// Time in which service is back after the last fault.
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// A call that a caller waits for.
pub(crate) struct Call {
    pub(crate) caller: u16,
    pub(crate) gateway: u16,
    pub(crate) kind: &'static str,
    pub(crate) what: &'static str,
    /// Name of the attempt, as far as the caller knows it.
    pub(crate) name: Name,
    pub(crate) key: u32,
    /// Deadline of the answer.
    pub(crate) deadline: Duration,
    /// True if the deadline is that of a whole batch, which may also end the call of an item.
    pub(crate) in_batch: bool,
    /// Number of the gateway's process.
    pub(crate) run: u32,
    started: Duration,
    losses: u64,
    /// The last release of a claim of its key, when it began.
    released: Option<(Name, Duration)>,
}

impl Call {
    fn process(&self) -> Process {
        Process { gateway: self.gateway, run: self.run }
    }
}

/// Tries of a call, and their results.
#[derive(Default)]
pub(crate) struct Open {
    started: Duration,
    key: u32,
    /// The same call was made before, and its result was unknown: the gateway may still be busy with it.
    repeats_unknown: bool,
    tries: Vec<Try>,
}

impl Open {
    /// Returns the store's answers, with their times by its clock and by the real time.
    fn answers(&self) -> impl Iterator<Item = (&StoreAnswer, u64, Duration)> {
        self.tries.iter().filter_map(|own| match own {
            Try::Answered { answer, store_now, at, .. } => Some((&**answer, *store_now, *at)),
            Try::Uncertain | Try::Refused => None,
        })
    }

    /// Returns the holder of the claim at the last answered try.
    fn holder(&self) -> Option<Holder> {
        let holder = |own: &Try| if let Try::Answered { holder, .. } = own { Some(*holder) } else { None };
        self.tries.iter().rev().find_map(holder)
    }

    /// Returns whether the store that answered at this time is the one that the chain uses. A gateway that cannot know of a switch
    /// continues with the other one, whose claims exclude nothing.
    fn is_of_store_in_use(&self, answered_at: Duration, switches: &Switches) -> bool {
        self.store(answered_at).is_none_or(|store| switches.is_in_use(store))
    }

    /// Returns the store that answered at this time.
    fn store(&self, answered_at: Duration) -> Option<u16> {
        self.tries.iter().find_map(|own| match own {
            Try::Answered { at, store, .. } => (*at == answered_at).then_some(*store),
            Try::Uncertain | Try::Refused => None,
        })
    }

    /// Returns the store that granted the attempt of this name, and the time.
    fn granted_by(&self, name: Name) -> Option<(u16, Duration)> {
        let granted = |own: &Try| match own {
            Try::Answered { answer, at, store, .. } => match &**answer {
                StoreAnswer::Claimed(ClaimResponse::Granted(grant)) if Name::of(&grant.attempt) == name => {
                    Some((*store, *at))
                }
                _ => None,
            },
            Try::Uncertain | Try::Refused => None,
        };
        self.tries.iter().rev().find_map(granted)
    }

    /// Checks that one of the store's answers allows the answer to the caller. Two tries may be open at once.
    fn any(
        &self,
        answered: &impl std::fmt::Debug,
        allows: impl FnMut((&StoreAnswer, u64, Duration)) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut allowed =
            ensure(false, "S9", || format!("the store has not answered, and the caller got {answered:?}"));
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
    /// No answer has come.
    Uncertain,
    /// Certainly took no effect.
    Refused,
    /// The store executed it, and its answer has come.
    Answered { answer: Box<StoreAnswer>, store_now: u64, at: Duration, store: u16, holder: Holder },
}

impl Try {
    /// Returns true if it certainly changed nothing. "Another attempt" is not certain: it may be the same try.
    fn is_in_vain(&self) -> bool {
        match self {
            Self::Refused => true,
            Self::Answered { answer, .. } => {
                matches!(
                    **answer,
                    StoreAnswer::Found(_)
                        | StoreAnswer::Settled(OutcomeResponse::Superseded { .. })
                        | StoreAnswer::Renewed(RenewalResponse::Superseded { .. })
                )
            }
            Self::Uncertain => false,
        }
    }
}

/// One try of a call, for the network that makes it.
pub(crate) struct Trial {
    call: (u16, &'static str, Name),
    /// Start of that call: a caller may make the same call again while a try of the first is still under way.
    started: Option<Duration>,
    place: Option<usize>,
}

/// Answers to the callers of a key, by the store's clock.
#[derive(Default)]
pub(crate) struct Beliefs {
    /// Attempts that hold the claim by their answers, and until when.
    holders: Vec<(Name, u64)>,
    /// Attempts that have reported, or whose claim an operator has released: later answers to them grant nothing.
    over: Vec<Name>,
    /// Attempts whose claims an operator has released, or is about to: even their success blocks no more.
    released: Vec<Name>,
    /// A success that was acknowledged.
    success: Option<Success>,
}

#[derive(Clone, Copy, Debug)]
struct Success {
    name: Name,
    /// Time at which it was recorded.
    at: Duration,
    /// End of its retention, by the store's clock.
    until: u64,
}

/// Number of ended attempts of a key that are kept.
const OVER_MAX: usize = 128;

impl Beliefs {
    /// Records that the store has lost its data. Grants remain valid if `holds`.
    pub(crate) fn forget(&mut self, holds: bool) {
        if !holds {
            self.holders.clear();
        }
        self.success = None;
    }

    /// Removes ended claims, so that a backward step of the clock does not restore them.
    pub(crate) fn end_until(&mut self, store_now: u64) {
        self.holders.retain(|(_, until)| *until > store_now);
        self.success = self.success.filter(|success| success.until > store_now);
    }

    /// Records a report or release of this attempt. With policies one try may have been granted as two attempts.
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

    /// Checks that no other attempt holds the claim, and no success blocks it.
    fn alone(&self, name: Name, granted_at: Duration, store_now: u64) -> Result<(), Broken> {
        self.alone_but_for(|holder| holder == name, name, granted_at, store_now)
    }

    /// The same for a try that may have been granted as two attempts.
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
        ensure(other.is_none(), "S1", || format!("{name:?} holds the claim, and so does {other:?} (now {store_now})"))?;
        let success = self.success.filter(|success| success.at < granted_at && success.until > store_now);
        ensure(success.is_none(), "S3", || {
            format!("granted to {name:?} at {granted_at:?}, after the success {success:?}")
        })
    }

    fn add_holder(&mut self, name: Name, until: u64) {
        match self.holders.iter_mut().find(|(holder, _)| *holder == name) {
            Some((_, known)) => *known = (*known).max(until),
            None => self.holders.push((name, until)),
        }
    }
}

/// Called by networks.
impl World {
    /// Records a try. Its result is uncertain until `refused` or `answered` is called.
    pub(crate) fn trial<Q: EngineCall>(&self, gateway: u16, request: &Q) -> Trial {
        let mut call = (gateway, Q::NAME, request.caller_name());
        let known = &mut *self.known();
        let of_policies = self.kind.has_policies();
        if of_policies && !known.open.contains_key(&call) {
            // It may use the attempt that was granted to the same nonce.
            let same = known
                .open
                .keys()
                .filter(|(to, kind, name)| (*to, *kind, name.nonce) == (gateway, Q::NAME, call.2.nonce));
            call = same.min_by_key(|(.., name)| name.timestamp).copied().unwrap_or(call);
        }
        let open = known.open.get_mut(&call).filter(|_| !of_policies || !request.is_delivery());
        let started = open.as_ref().map(|open| open.started);
        let place = open.map(|open| {
            open.tries.push(Try::Uncertain);
            open.tries.len() - 1
        });
        if of_policies {
            let number = known.number(request.key());
            let ledger = &known.of(number).ledger;
            let may = ledger.may_send(gateway, request, started);
            let may =
                may.and_then(|()| if request.is_delivery() { ledger.may_deliver(gateway, request) } else { Ok(()) });
            self.check_known(known, number, may);
        }
        Trial { call, started, place }
    }

    /// Records a failed try.
    pub(crate) fn refused(&self, trial: &Trial, failure: &EngineError) {
        if let EngineError::Determinate(_) = failure {
            self.conclude(trial, Try::Refused);
        }
    }

    /// Records the store's answer to a try.
    pub(crate) fn answered<Q: EngineCall>(&self, trial: &Trial, request: &Q, executed: &Executed<Q::Answer>) {
        let answer = Box::new(executed.answer.clone().into());
        if self.kind.has_policies() && !request.is_delivery() {
            let known = &mut *self.known();
            let number = known.number(request.key());
            known.of(number).ledger.record_holder(trial.call.0, &answer);
        }
        let Executed { store_now, at, store, holder, .. } = *executed;
        let found = Q::found(&executed.answer);
        if let Some(found) = &found {
            self.look_up(trial.call.0, request.key(), Name::of(&found.record.attempt));
        }
        if let (Kind::GrantFreeze | Kind::Failover, Some(found)) = (self.kind, found) {
            let known = &mut *self.known();
            let number = known.number(request.key());
            let is_claim =
                |(to, kind, _): &(u16, &str, Name)| *to == trial.call.0 && *kind == Timed::<ClaimRequest>::NAME;
            for open in known.open.iter_mut().filter(|(call, open)| is_claim(call) && open.key == number) {
                let answer = Box::new(StoreAnswer::Found(found.clone()));
                open.1.tries.push(Try::Answered { answer, store_now, at, store, holder });
            }
        }
        self.conclude(trial, Try::Answered { answer, store_now, at, store, holder });
    }

    /// Records the attempt that a gateway has found at a key. It may hold the claim since the gateway's other calls met their own try,
    /// which they then need not recognise.
    fn look_up(&self, gateway: u16, key: &Key, found: Name) {
        let known = &mut *self.known();
        let number = known.number(key);
        let calls = known
            .open
            .iter_mut()
            .filter(|((to, _, name), open)| *to == gateway && open.key == number && name.nonce != found.nonce);
        for own in calls.flat_map(|(_, open)| &mut open.tries) {
            if let Try::Answered { holder: holder @ Holder::DegradedSameNonce, .. } = own {
                *holder = Holder::Another;
            }
        }
    }

    fn conclude(&self, trial: &Trial, became: Try) {
        let known = &mut *self.known();
        let open = known.open.get_mut(&trial.call).filter(|open| Some(open.started) == trial.started);
        if let Some(own) = trial.place.zip(open).and_then(|(place, open)| open.tries.get_mut(place)) {
            *own = became;
        }
    }
}

/// Called by callers.
impl World {
    /// Begins a call. `None` after the last operation, or if the same call is open.
    pub(crate) fn begin(
        &self,
        (caller, gateway): (u16, u16),
        kind: &'static str,
        what: &'static str,
        name: Name,
        key: u32,
        deadline: Duration,
    ) -> Option<Call> {
        let started = self.time.now();
        {
            let known = &mut *self.known();
            if known.open.contains_key(&(gateway, kind, name)) {
                return None;
            }
            let call = (gateway, kind, name);
            let repeats_unknown = known.left_unknown.contains(&call);
            known.open.insert(call, Open { started, key, repeats_unknown, ..Open::default() });
            let event = Event {
                place: Place::Caller(caller),
                key,
                what,
                attempt_name: name,
                answer: "?",
                other: Name::default(),
                number: gateway.into(),
            };
            known.trace.add(started, event);
            if let Some(request) = policy_request((gateway, name.nonce), kind, what) {
                known.of(key).ledger.request(request);
            }
            if kind == "settle" || kind == "release" {
                let of_key = known.of(key);
                of_key.beliefs.end(name, kind == "release");
                of_key.ledger.end(name, started, kind == "release");
                if self.kind.has_policies() && kind == "settle" {
                    of_key.ledger.report(gateway, name, what, started);
                }
                known.reported.insert(name);
                known.reported.insert(Name::nonce(name.nonce));
            }
        }
        let (in_batch, run) = (false, 0);
        let (losses, released) = {
            let known = &mut *self.known();
            let of_key = known.of(key);
            (of_key.losses, of_key.released)
        };
        let call = Call { caller, gateway, kind, what, name, key, deadline, in_batch, run, started, losses, released };
        if self.count() {
            return Some(call);
        }
        self.abort(&call);
        None
    }

    /// Ends a call without an answer, because its gateway has died.
    pub(crate) fn abort(&self, call: &Call) {
        let known = &mut *self.known();
        known.open.remove(&(call.gateway, call.kind, call.name));
        if call.kind == <Timed<ClaimRequest> as EngineCall>::NAME {
            known.of(call.key).ledger.leave_unanswered(call.gateway, call.name.nonce);
        }
    }

    /// Checks the answer to a claim call with this lease.
    pub(crate) fn claimed(&self, call: &Call, lease: Duration, answered: &Result<Answered<ClaimAnswer>, Failure>) {
        let answer = answered.as_ref().map(|answered| &answered.answer);
        let policy = answered.as_ref().ok().and_then(|answered| answered.policy);
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
        self.finish(call, (said, other, lease_ms), answer.err(), |now, known, open| match answer {
            Ok(answer) => {
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
                    // Leases of the store last longer if its clock is stepped back.
                    let of_store = policy.is_none() || granted.repeated || ledger.is_the_stores(&given);
                    let fits = of_store || now.real + left <= call.started + lease;
                    ensure(fits, "S10", || format!("{lease:?} is granted as {granted:?}"))?;
                    return ledger.grant(given, &granted.attempt, call.started, now);
                }
                Ok(())
            }
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// Checks the answer to an outcome call.
    pub(crate) fn settled(&self, call: &Call, outcome: &Outcome, answered: &Result<Answered<Reported>, Failure>) {
        let answer = answered.as_ref().map(|answered| &answered.answer);
        let degraded = answered.as_ref().ok().and_then(|answered| answered.policy);
        let said = match answer {
            Ok(Reported::Settled { settled, .. }) => <Timed<OutcomeRequest> as EngineCall>::summary(settled).0,
            Ok(Reported::Spooled { .. }) => "spooled",
            Ok(Reported::Observed { .. }) => "observed",
            Err(failure) => failure_name(failure),
        };
        self.finish(call, (said, Name::default(), 0), answer.err(), |now, known, open| match answer {
            Ok(Reported::Settled { settled, .. }) => {
                if degraded.is_none() {
                    check_settled(known, call, &open, outcome, settled)?;
                    let is_refused = matches!(settled, OutcomeResponse::Superseded { .. });
                    // With its data the store loses the record by which a gateway recognises the try.
                    let is_refused = is_refused && known.of(call.key).losses == call.losses;
                    ensure(!is_refused || open.holder() != Some(Holder::DegradedSameNonce), "nonce", || {
                        format!("{:?} finds its own try, and is answered {settled:?}", call.name)
                    })?;
                }
                let instants = self.instants(now);
                let of_key = known.of(call.key);
                let name = call.name;
                if let OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, .. } = settled {
                    let until = instants.plus(left.unwrap_or(FOREVER));
                    of_key.ledger.succeed(call.process(), name, until, (now, degraded.is_some()));
                }
                let Some(policy) = degraded else { return Ok(()) };
                ensure(allows(of_key.ledger.choice, policy), "S12", || format!("no app has chosen {policy:?}"))?;
                let is_accepted = match settled {
                    // The end of the lease may have set the state to unknown already.
                    OutcomeResponse::Done { late, state, .. }
                        if *late == Some(false) || *state == Some(ClaimState::Succeeded) =>
                    {
                        *outcome != Outcome::Unknown
                    }
                    _ => false,
                };
                if is_accepted {
                    of_key.ledger.accept(call.gateway, name, outcome_name(outcome), call.started, now);
                }
                Ok(())
            }
            Ok(Reported::Spooled { .. }) => {
                let of_key = known.of(call.key);
                let policy = OutagePolicy::Spool;
                ensure(allows(of_key.ledger.choice, policy), "S12", || format!("no app has chosen {policy:?}"))?;
                of_key.ledger.accept(call.gateway, call.name, outcome_name(outcome), call.started, now);
                Ok(())
            }
            Ok(Reported::Observed { .. }) => ensure(false, "S6", || "no app is in observe mode".to_owned()),
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// Checks the answer to a renewal.
    pub(crate) fn renewed(&self, call: &Call, answered: &Result<Answered<RenewalAnswer>, Failure>) {
        let answer = answered.as_ref().map(|answered| &answered.answer);
        let degraded = answered.as_ref().ok().and_then(|answered| answered.policy);
        let said = match answer {
            Ok(answer) => <Timed<RenewalRequest> as EngineCall>::summary(&answer.renewed).0,
            Err(failure) => failure_name(failure),
        };
        self.finish(call, (said, Name::default(), 0), answer.err(), |now, known, open| match answer {
            Ok(answer) => {
                let instants = self.instants(now);
                match degraded {
                    Some(policy) => {
                        let choice = known.of(call.key).ledger.choice;
                        ensure(allows(choice, policy), "S12", || format!("no app has chosen {policy:?}"))?;
                    }
                    None => check_renewed((instants.store, now), known, call, &open, &answer.renewed)?,
                }
                if let RenewalResponse::Renewed { left, .. } = answer.renewed {
                    known.of(call.key).ledger.extend(
                        call.process(),
                        call.name,
                        instants.plus(left),
                        degraded.is_some(),
                    );
                }
                Ok(())
            }
            Err(failure) => self.check_failure(known, call, &open, failure, now),
        });
    }

    /// Checks the time of the answer to any other call.
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
        if let (Failure::Store(_), Some(request)) =
            (failure, policy_request((call.gateway, call.name.nonce), call.kind, call.what))
        {
            known.of(call.key).ledger.refuse(request);
        }
        if let (Failure::OutcomeUnknown(_), <Timed<ClaimRequest> as EngineCall>::NAME) = (failure, call.kind) {
            known.of(call.key).ledger.leave_unanswered(call.gateway, call.name.nonce);
        }
        let unsure_until = known.disks_unsure_until.get(&call.gateway);
        let is_unsure = unsure_until.is_some_and(|until| *until >= call.started);
        let is_refused = !open.tries.is_empty() && open.tries.iter().all(|own| *own == Try::Refused);
        if is_unsure && is_refused && matches!(failure, Failure::OutcomeUnknown(_)) {
            *known.tally.entry(("journal", "unsure")).or_default() += 1;
        }
        let may_be_unknown = match self.kind {
            Kind::Plain | Kind::Sharded | Kind::Locks => false,
            // The journal's disk may have been too slow, or its content may be uncertain.
            Kind::Policies => now + TIMER_GRAIN >= call.started + call.deadline || is_unsure,
            // The result of a call on a former store, or on a store that lost its data, is not reported.
            Kind::Switched | Kind::PoliciesAndSwitches | Kind::Failover | Kind::GrantFreeze => true,
        };
        check_failure(call, open, failure, now, may_be_unknown)
    }

    /// Counts why a journal has rejected an entry.
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
            let event = Event { place, key: call.key, what: call.kind, attempt_name: call.name, answer, other, number };
            known.trace.add(now, event);
            *known.tally.entry((call.kind, answer)).or_default() += 1;
            if let Some(failure) = failure {
                Self::tally_journal(known, failure);
                if self.kind.has_policies() && matches!(failure, Failure::OutcomeUnknown(_)) {
                    known.left_unknown.insert((call.gateway, call.kind, call.name));
                }
            }
            let took = now.saturating_sub(call.started);
            let is_calm = known.serves && known.trouble.calm_since(call.started.saturating_sub(BACK_WITHIN));
            let unserved = failure.filter(|_| is_calm && !has_run_out(call, &open, now));
            ensure(took <= call.deadline + TIMER_GRAIN, "L2", || format!("{} took {took:?}", call.kind))
                .and_then(|()| {
                    ensure(unserved.is_none(), "L3", || format!("there is no fault, and the answer is {unserved:?}"))
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
    open.any(answer, |(from_store, executed_at, at)| {
        let from_store = match (answer, from_store) {
            (_, StoreAnswer::Claimed(claimed)) => claimed,
            (ClaimAnswer::Duplicate(_), StoreAnswer::Found(claim)) => &ClaimResponse::Duplicate(claim.clone()),
            // The conformance suite tests what differs.
            (ClaimAnswer::Mismatch(..), StoreAnswer::Found(_)) => return Ok(()),
            _ => return ensure(false, "S13", || format!("a claim call is answered {from_store:?}")),
        };
        match (answer, from_store) {
            (ClaimAnswer::Granted(granted), ClaimResponse::Granted(grant)) => {
                let left = grant.lease_left.unwrap_or(lease);
                let in_use = open.is_of_store_in_use(at, &known.switches);
                check_granted(now, known, call, granted, grant, (left, executed_at, at), in_use)
            }
            (ClaimAnswer::Duplicate(found), ClaimResponse::Duplicate(claim)) => {
                let record = &found.claim.record;
                let own = Name::of(&record.attempt).nonce == call.name.nonce;
                ensure(record == &claim.record, "S4", || {
                    format!("the store has {claim:?}, and the caller got {record:?}")
                })?;
                ensure(!own || record.state != ClaimState::InProgress, "S9", || {
                    "answered as its own duplicate".to_owned()
                })
            }
            (ClaimAnswer::Mismatch(..), ClaimResponse::Mismatch(_)) => Ok(()),
            _ => ensure(false, "S9", || format!("the store answered {from_store:?}, and the caller got {answer:?}")),
        }
    })
}

/// Compares a grant in an answer with the store's: the rest of the lease, at a time of the store and of the world.
fn check_granted(
    (store_now, now): (u64, Duration),
    known: &mut Known,
    call: &Call,
    granted: &Granted,
    grant: &Grant,
    (left, executed_at, at): (Duration, u64, Duration),
    in_use: bool,
) -> Result<(), Broken> {
    let Granted { attempt, fence, repeated, taken_over, lease_ms, .. } = granted;
    let name = Name::of(attempt);
    ensure(name.nonce == call.name.nonce, "S1", || format!("granted as another's attempt {name:?}"))?;
    let same = *attempt == grant.attempt && *repeated == grant.repeated && *taken_over == grant.taken_over;
    ensure(same, "S5", || format!("the store granted {grant:?}, and the caller got {granted:?}"))?;
    ensure(*fence == grant.fence, "S11", || format!("the fence {:?} is answered as {fence:?}", grant.fence))?;
    let lease = Duration::from_millis(*lease_ms);
    ensure(now + lease <= at + left, "S10", || {
        format!("{left:?} were left at {at:?}, and {lease:?} answered at {now:?}")
    })?;
    let of_key = known.of(call.key);
    let beliefs = &mut of_key.beliefs;
    if in_use && of_key.losses == call.losses && !beliefs.over.contains(&name) {
        beliefs.alone(name, at, store_now)?;
        beliefs.add_holder(name, (store_now + micros(lease)).min(executed_at + micros(left)));
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
    open.any(settled, |(from_store, store_now, at)| {
        let StoreAnswer::Settled(from_store) = from_store else {
            return ensure(false, "S13", || format!("an outcome call is answered {from_store:?}"));
        };
        // Another try may have released the claim. Then "no claim" and "claim of another attempt" are wrong answers to
        // the caller; "ended for an unknown reason" is always correct.
        let (gone, released_now) = match from_store {
            OutcomeResponse::Done { state: None, late, .. } => (true, *late == Some(false)),
            OutcomeResponse::Superseded { .. } => (true, false),
            _ => (false, false),
        };
        let is_unexplained = *settled == OutcomeResponse::Done { state: None, left: None, ends_at: None, late: None };
        let by_another =
            released != call.released && released.is_some_and(|(name, _)| name == call.name) && !released_now;
        let allowed = if *outcome == Outcome::Failure && gone && others {
            is_unexplained || (settled == from_store && !by_another)
        } else {
            settled == from_store
        };
        ensure(allowed, "S6", || format!("the store answered {from_store:?}, and the caller got {settled:?}"))?;
        if let OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, .. } = settled
            && known.of(call.key).losses == call.losses
            && open.is_of_store_in_use(at, &known.switches)
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
    open.any(renewed, |(from_store, executed_at, at)| {
        let StoreAnswer::Renewed(from_store) = from_store else {
            return ensure(false, "S13", || format!("a renewal is answered {from_store:?}"));
        };
        let (RenewalResponse::Renewed { left, .. }, RenewalResponse::Renewed { left: of_store, .. }) =
            (renewed, from_store)
        else {
            return ensure(renewed == from_store, "S2", || {
                format!("the store answered {from_store:?}, and the caller got {renewed:?}")
            });
        };
        ensure(now + *left <= at + *of_store, "S10", || {
            format!("{of_store:?} were left at {at:?}, and {left:?} answered at {now:?}")
        })?;
        let counts = open.store(at).is_none_or(|store| known.switches.should_be_in_use(call.gateway, store, at));
        let of_key = known.of(call.key);
        let beliefs = &mut of_key.beliefs;
        if counts && of_key.losses == call.losses && !beliefs.over.contains(&call.name) {
            beliefs.alone_as_a_try(call.name, at, store_now)?;
            beliefs.add_holder(call.name, (store_now + micros(*left)).min(executed_at + micros(*of_store)));
        }
        Ok(())
    })
}

/// Returns the request of a call that a gateway may answer in the store's place and deliver later.
fn policy_request((gateway, nonce): (u16, u64), kind: &str, what: &'static str) -> Option<Request> {
    match kind {
        "claim" => Some((gateway, nonce, "claim")),
        "settle" => Some((gateway, nonce, what)),
        _ => None,
    }
}

/// Checks an answer by a policy to a claim call: the app has chosen the policy.
fn check_answer_of_policy(
    known: &mut Known,
    call: &Call,
    policy: OutagePolicy,
    answer: &ClaimAnswer,
) -> Result<(), Broken> {
    let choice = known.of(call.key).ledger.choice;
    ensure(allows(choice, policy), "S12", || format!("no app has chosen {policy:?}, and it answers {answer:?}"))?;
    match answer {
        ClaimAnswer::Granted(granted) => {
            let name = Name::of(&granted.attempt);
            ensure(name.nonce == call.name.nonce, "S1", || format!("granted as another's attempt {name:?}"))?;
            ensure(granted.fence.is_none(), "S11", || format!("a policy has no fence, and answers {granted:?}"))
        }
        ClaimAnswer::Duplicate(found) => {
            let record = &found.claim.record;
            let own = Name::of(&record.attempt).nonce == call.name.nonce;
            ensure(!own || record.state != ClaimState::InProgress, "S9", || "answered as its own duplicate".to_owned())
        }
        ClaimAnswer::Mismatch(..) => Ok(()),
    }
}

/// Returns true if the app has chosen this policy. It applies to outcomes of its grants, too.
fn allows(choice: Option<Choice>, policy: OutagePolicy) -> bool {
    let Some(choice) = choice else { return false };
    match policy {
        OutagePolicy::Local => choice.claims == ClaimOnOutage::Local,
        OutagePolicy::FailOpen => choice.claims == ClaimOnOutage::FailOpen,
        OutagePolicy::Spool => choice.spools,
    }
}

/// Checks that a failure claims no more than is certain.
fn check_failure(
    call: &Call,
    open: &Open,
    failure: &Failure,
    now: Duration,
    may_be_unknown: bool,
) -> Result<(), Broken> {
    match failure {
        // The tries of such a call may be those of the earlier one, whose result was unknown.
        Failure::Store(_) if open.repeats_unknown => Ok(()),
        Failure::Store(_) => ensure(open.tries.iter().all(Try::is_in_vain), "S9", || {
            format!("the store may have executed the {} of {:?}, and the caller got {failure:?}", call.kind, call.name)
        }),
        Failure::OutcomeUnknown(_) => {
            let uncertain = call.in_batch
                || may_be_unknown
                || open.tries.is_empty()
                || open.tries.contains(&Try::Uncertain)
                || open.tries.iter().any(|own| *own != Try::Refused && own.is_in_vain())
                || has_run_out(call, open, now);
            ensure(uncertain, "S9", || "the store has answered, and the caller got an unknown outcome".to_owned())
        }
        _ => ensure(false, "S6", || format!("no caller makes a call that fails with {failure:?}")),
    }
}

/// Returns true if the lease of a grant or renewal had ended when the answer came.
fn has_run_out(call: &Call, open: &Open, now: Duration) -> bool {
    open.answers().any(|(from_store, ..)| {
        let left = match from_store {
            StoreAnswer::Claimed(ClaimResponse::Granted(grant)) => grant.lease_left,
            StoreAnswer::Renewed(RenewalResponse::Renewed { left, .. }) => Some(*left),
            _ => None,
        };
        // The whole time of the call is subtracted.
        left.is_some_and(|left| call.started.saturating_add(left) < now + TIMER_GRAIN)
    })
}

fn failure_name(failure: &Failure) -> &'static str {
    match failure {
        Failure::Store(_) => "store unavailable",
        Failure::OutcomeUnknown(_) => "outcome unknown",
        _ => "refused",
    }
}
