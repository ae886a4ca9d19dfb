//! Answers of gateways instead of the store for one key, and the duties that follow. The same gateway makes no other
//! grant during that time, every accepted outcome reaches the store in order, and two grants at once are reported.

use std::time::Duration;

use hashbrown::HashSet;
use oncegate_core::attempt::{Attempt, AttemptHash};
use oncegate_core::claim::ClaimResponse;
use oncegate_core::outage::grants::GRANTS_MAX;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::ClaimState;
use oncegate_core::suspect::{MaskedAttempt, Suspect};
use oncegate_core::terms::ClaimOnOutage;

use crate::clock::micros;
use crate::engine_call::{EngineCall, StoreAnswer};
use crate::reference::{Broken, ensure};
use crate::trace::Name;

/// Two grants overlap if they do so for longer than an answer takes.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Name of a failure in traces.
const FAILURE: &str = "outcome call: failure";

/// Policies of a key's app.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) claims: ClaimOnOutage,
    /// True if some outcome of the app is spooled.
    pub(crate) spools: bool,
}

/// Process of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) gateway: u16,
    pub(crate) run: u32,
}

/// One time, by the real clock and by the store's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instants {
    pub(crate) real: Duration,
    pub(crate) store: u64,
}

impl Instants {
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self { real: self.real + span, store: self.store + micros(span) }
    }
}

#[derive(Default)]
pub(crate) struct Ledger {
    /// `None` if no caller has named the key.
    pub(crate) choice: Option<Choice>,
    given: Vec<Given>,
    accepted: Vec<Accepted>,
    /// Outcomes that the store has executed, and when.
    executed: Vec<(u64, &'static str, Duration)>,
    /// The same for outcomes that found their nonce under another attempt: the gateway reads that attempt, and reports
    /// again.
    met_same_nonce: Vec<(u64, &'static str, Duration)>,
    /// Deliveries of grants: the attempt, whether another one held the claim, and when.
    delivered: Vec<(Name, bool, Duration)>,
    /// First reports of outcomes: the gateway, the nonce, the outcome and the time.
    reported: Vec<(u16, u64, &'static str, Duration)>,
    /// Requests to gateways, and how many of these calls may have taken effect.
    requests: Vec<(Request, u32)>,
    /// Claim calls without an answer: the gateway and the nonce. A policy may have granted them.
    unanswered: Vec<(u16, u64)>,
    /// Attempts that hold the claim by an answer of the store to a gateway.
    known_holders: Vec<(u16, Name)>,
    /// Nonces of attempt hashes.
    hashes: Vec<(AttemptHash, u64)>,
}

/// A request of a caller: the gateway, the nonce, and "claim" or an outcome.
pub(crate) type Request = (u16, u64, &'static str);

/// A grant in an answer to a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) by: Process,
    pub(crate) name: Name,
    /// `None` if the store granted it.
    pub(crate) policy: Option<OutagePolicy>,
    pub(crate) at: Duration,
    /// End of the claim by the answers to its holder.
    pub(crate) until: Instants,
    /// End that no repeat may exceed.
    lease_ends: Duration,
    /// Time of its first report or release.
    over: Option<Duration>,
    /// End of its success, if the same process has answered it.
    done_until: Option<Instants>,
    /// Time until which it blocked others as far as the journal knows: a call that the store executed itself leaves no
    /// entry.
    kept_until: Duration,
    /// The store has received it.
    delivered: bool,
    /// The store has answered that another attempt holds the claim.
    superseded: bool,
    /// The store has lost its data since.
    lost: bool,
}

/// An outcome that was accepted in the store's place.
#[derive(Debug)]
struct Accepted {
    gateway: u16,
    nonce: u64,
    outcome: &'static str,
    started: Duration,
    at: Duration,
}

impl Given {
    /// Creates the record of a grant of this lease.
    pub(crate) fn new(
        by: Process,
        name: Name,
        policy: Option<OutagePolicy>,
        at: Duration,
        (lease, until): (Duration, Instants),
    ) -> Self {
        // The lease counts from the journal entry, so the first answer has less than the whole.
        let (over, done_until, kept_until) = (None, None, until.real);
        let (delivered, superseded, lost) = (false, false, false);
        Self {
            by,
            name,
            policy,
            at,
            until,
            lease_ends: at + lease,
            over,
            done_until,
            kept_until,
            delivered,
            superseded,
            lost,
        }
    }

    /// Returns true if a process that decides alone must know that this claim is live.
    fn is_live(&self, process: Process, now: Instants) -> bool {
        let by_store = self.policy.is_none() || self.delivered;
        let known = self.by.gateway == process.gateway && (self.by.run == process.run || !by_store);
        let is_before = |until: Instants| until.real > now.real && (!by_store || until.store > now.store);
        let lasts = if self.over.is_none() { is_before(self.until) } else { self.done_until.is_some_and(is_before) };
        known && lasts && !self.superseded && !(self.lost && by_store)
    }

    /// Returns the end of the time in which it, or its success, blocked others.
    fn blocked_until(&self) -> Duration {
        if self.done_until.is_some() {
            self.kept_until
        } else {
            self.kept_until.min(self.over.unwrap_or(Duration::MAX))
        }
    }
}

impl Ledger {
    /// Records a grant in the answer to a call that began at `started`.
    pub(crate) fn grant(
        &mut self,
        given: Given,
        attempt: &Attempt,
        started: Duration,
        now: Instants,
    ) -> Result<(), Broken> {
        self.saw(attempt);
        let process = given.by;
        // A gateway delivers its own grants to the store before it makes other claim calls there.
        let is_undelivered = |other: &&Given| {
            let by_policy_here = other.policy.is_some() && other.by.gateway == process.gateway;
            let lasts = other.until.real > now.real && other.until.store > now.store;
            let ends = other.over.is_some() || other.superseded || other.lost;
            by_policy_here && other.at < started && lasts && !ends && other.name.nonce != given.name.nonce
        };
        let undelivered = self.given.iter().find(is_undelivered).filter(|_| given.policy.is_none());
        ensure(undelivered.is_none(), "S1", || format!("the store grants {given:?} beside {undelivered:?}"))?;
        let alone = |other: &&Given| match given.policy {
            Some(OutagePolicy::Local) => other.is_live(process, now),
            // It knows its own journal, and nothing else.
            Some(_) => other.policy.is_some() && !other.delivered && other.is_live(process, now),
            None => false,
        };
        let is_known = |known: &Given| known.name == given.name && known.by.gateway == process.gateway;
        // It may have been delivered long before its holder was answered, in a batch. Then later grants do not contradict it.
        let early = self.delivered.iter().find(|(name, ..)| *name == given.name && !self.given.iter().any(is_known));
        let granted_by = early.map_or(given.at, |(.., at)| *at);
        let others = self.given.iter().filter(|other| other.name.nonce != given.name.nonce);
        let other = others.filter(|other| other.at <= granted_by).find(alone);
        ensure(other.is_none(), "local", || format!("{given:?} is granted by the gateway that has granted {other:?}"))?;
        if let Some(known) = self.given.iter_mut().find(|known| is_known(known)) {
            if given.policy.is_some() && known.policy.is_some() {
                ensure(given.until.real <= known.lease_ends, "S10", || {
                    format!("{known:?} is answered again as {given:?}")
                })?;
            }
            known.until = given.until;
            return Ok(());
        }
        let delivered = self.delivered.iter().filter(|(name, ..)| name.nonce == given.name.nonce);
        let (delivered, superseded) =
            delivered.fold((false, false), |(_, superseded), (_, own, _)| (true, superseded || *own));
        // A grant that it answers from the store's answer is in no journal, and the store does not know it as a degraded one.
        let policy = given.policy.filter(|_| !self.is_the_stores(&given));
        self.given.push(Given { policy, delivered, superseded, ..given });
        Ok(())
    }

    /// Returns true if a gateway without a store has repeated a grant that it knows from the store.
    pub(crate) fn is_the_stores(&self, given: &Given) -> bool {
        given.policy == Some(OutagePolicy::Local) && self.known_holders.contains(&(given.by.gateway, given.name))
    }

    /// Records the holder in the store's answer to a caller's claim call.
    pub(crate) fn record_holder(&mut self, gateway: u16, answer: &StoreAnswer) {
        let holder = match answer {
            StoreAnswer::Claimed(ClaimResponse::Granted(grant)) => &grant.attempt,
            StoreAnswer::Claimed(ClaimResponse::Duplicate(claim)) if claim.record.state == ClaimState::InProgress => {
                &claim.record.attempt
            }
            _ => return,
        };
        let known = (gateway, Name::of(holder));
        if !self.known_holders.contains(&known) {
            self.known_holders.push(known);
        }
    }

    /// Records a renewal in the answer of a process.
    pub(crate) fn extend(&mut self, process: Process, name: Name, until: Instants, by_policy: bool) {
        for given in self.given.iter_mut().filter(|given| given.name == name) {
            given.lease_ends = given.lease_ends.max(until.real);
            // A process that decides alone knows the renewals it has answered, and those in its journal.
            if given.by == process || (by_policy && given.by.gateway == process.gateway) {
                given.until = until;
                given.kept_until = if by_policy { until.real } else { given.kept_until };
            }
        }
    }

    /// Records the start of a report or release of an attempt.
    pub(crate) fn end(&mut self, name: Name, now: Duration, released: bool) {
        for given in self.given.iter_mut().filter(|given| given.name.nonce == name.nonce) {
            given.over.get_or_insert(now);
            if released {
                given.done_until = None;
            }
        }
    }

    /// Records a request to a gateway.
    pub(crate) fn request(&mut self, request: Request) {
        match self.requests.iter_mut().find(|(known, _)| *known == request) {
            Some((_, calls)) => *calls += 1,
            None => self.requests.push((request, 1)),
        }
    }

    /// Records a claim call without an answer, or with an unknown outcome.
    pub(crate) fn leave_unanswered(&mut self, gateway: u16, nonce: u64) {
        self.unanswered.push((gateway, nonce));
    }

    /// Records the answer that a request certainly took no effect.
    pub(crate) fn refuse(&mut self, request: Request) {
        if let Some((_, calls)) = self.requests.iter_mut().find(|(known, _)| *known == request) {
            *calls = calls.saturating_sub(1);
        }
    }

    /// Checks that a gateway delivers no outcome that it has certainly refused to all callers.
    pub(crate) fn may_deliver<Q: EngineCall>(&self, gateway: u16, request: &Q) -> Result<(), Broken> {
        let requested = (
            gateway,
            request.attempt_name().nonce,
            if Q::CLAIMS { "claim" } else { request.reports().unwrap_or_default() },
        );
        let refused = self.requests.iter().any(|(known, calls)| *known == requested && *calls == 0);
        ensure(!refused, "S9", || format!("{requested:?} was certainly refused, and the store receives it"))
    }

    /// Records the start of an outcome call.
    pub(crate) fn report(&mut self, gateway: u16, name: Name, outcome: &'static str, now: Duration) {
        let same =
            |(to, nonce, known, _): &(u16, u64, &str, _)| (*to, *nonce, *known) == (gateway, name.nonce, outcome);
        if !self.reported.iter().any(same) {
            self.reported.push((gateway, name.nonce, outcome, now));
        }
    }

    /// Records a success in the answer of a process.
    pub(crate) fn succeed(
        &mut self,
        process: Process,
        name: Name,
        until: Instants,
        (now, by_policy): (Duration, bool),
    ) {
        for given in self.given.iter_mut().filter(|given| given.name == name && given.by == process) {
            given.done_until = Some(until);
            // The store receives a degraded grant before its outcome.
            given.delivered |= !by_policy;
            let over = given.over.unwrap_or(now).min(given.kept_until);
            given.kept_until = if by_policy { until.real } else { over };
        }
    }

    /// Records an outcome that a policy accepted instead of the store, by a call that began at `started`.
    pub(crate) fn accept(&mut self, gateway: u16, name: Name, outcome: &'static str, started: Duration, at: Duration) {
        self.accepted.push(Accepted { gateway, nonce: name.nonce, outcome, started, at });
    }

    /// Records a call that the store has executed.
    pub(crate) fn executed<Q: EngineCall>(&mut self, request: &Q, answer: &Q::Answer, at: Duration) {
        let nonce = request.attempt_name().nonce;
        if request.is_delivery() {
            let superseded = Q::is_of_another(answer);
            self.delivered.push((request.attempt_name(), superseded, at));
            for given in self.given.iter_mut().filter(|given| given.name.nonce == nonce) {
                given.delivered = true;
                given.superseded |= superseded;
            }
        }
        if let Some(attempt) = request.attempt() {
            self.saw(attempt);
        }
        if let Some(outcome) = request.reports() {
            // Also outcomes that no gateway has accepted yet: the store may receive them before the caller is answered.
            self.executed.push((nonce, outcome, at));
        }
    }

    /// Records an outcome that met the same nonce under another attempt.
    pub(crate) fn meet_same_nonce<Q: EngineCall>(&mut self, request: &Q, at: Duration) {
        self.met_same_nonce.extend(request.reports().map(|outcome| (request.attempt_name().nonce, outcome, at)));
    }

    /// Records the nonce that a lookup found. Outcomes of others with the same nonce came too late for it: nothing more
    /// is reported.
    pub(crate) fn look_up(&mut self, found: Option<u64>) {
        self.executed.extend(self.met_same_nonce.extract_if(.., |(nonce, ..)| Some(*nonce) != found));
    }

    /// Checks the order of calls: outcomes that a gateway has accepted reach the store before its later calls.
    pub(crate) fn may_send<Q: EngineCall>(
        &self,
        gateway: u16,
        request: &Q,
        started: Option<Duration>,
    ) -> Result<(), Broken> {
        if Q::READS || self.accepted.is_empty() {
            return Ok(());
        }
        let nonce = request.attempt_name().nonce;
        let before = if request.is_delivery() {
            // A degraded grant is delivered with its outcome, before reports of others.
            let with_its_grant = |given: &Given| given.name.nonce == nonce && given.policy.is_some();
            let may_have_granted = self.unanswered.contains(&(gateway, nonce));
            let own = self
                .accepted
                .iter()
                .find(|own| own.gateway == gateway && own.nonce == nonce && Some(own.outcome) == request.reports());
            // An earlier report of the same outcome may have been accepted, without an answer.
            let first = |own: &Accepted| {
                let same = |(gateway, nonce, outcome, _): &&(u16, u64, &str, _)| {
                    (*gateway, *nonce, *outcome) == (own.gateway, own.nonce, own.outcome)
                };
                self.reported.iter().find(same).map_or(own.started, |(.., started)| *started)
            };
            own.filter(|_| !may_have_granted && !self.given.iter().any(with_its_grant)).map(first)
        } else {
            started
        };
        let Some(before) = before else { return Ok(()) };
        let mut earlier = self.accepted.iter().filter(|own| own.gateway == gateway && own.at < before);
        let passed = earlier.find(|own| !self.has_reached_store(own));
        ensure(passed.is_none(), "spool", || format!("a {} goes to the store before {passed:?}", Q::NAME))
    }

    fn has_reached_store(&self, own: &Accepted) -> bool {
        self.executed
            .iter()
            .any(|(nonce, outcome, at)| *nonce == own.nonce && *outcome == own.outcome && *at >= own.started)
    }

    /// Removes ended claims, by the store's clock.
    pub(crate) fn end_until(&mut self, store_now: u64) {
        for given in &mut self.given {
            if given.until.store <= store_now {
                given.until.store = 0;
            }
            given.done_until = given.done_until.filter(|until| until.store > store_now);
        }
    }

    /// Records that the store has lost its data.
    pub(crate) fn lose(&mut self) {
        for given in &mut self.given {
            given.lost = true;
        }
    }

    /// Checks that the store has received everything, and that exactly the overlapping grants were reported.
    pub(crate) fn audit(&self, overlaps: &[(u16, Suspect)]) -> Result<(), Broken> {
        let lost = self.accepted.iter().find(|own| !self.has_reached_store(own));
        ensure(lost.is_none(), "spool", || format!("the store has never received {lost:?}"))?;
        let degraded: Vec<_> = self.given.iter().filter(|given| given.policy.is_some()).collect();
        let nonce = |hash| self.hashes.iter().find(|(own, _)| *own == hash).map(|(_, nonce)| *nonce);
        let pair = |overlap: &Suspect| Some([nonce(overlap.ours.hash)?, nonce(overlap.theirs?.hash)?]);
        let name = |attempt: MaskedAttempt| {
            nonce(attempt.hash).map(|nonce| Name { timestamp: attempt.timestamp.as_micros(), nonce })
        };
        for (gateway, overlap) in overlaps {
            let grants = [Some(overlap.ours), overlap.theirs].map(|attempt| {
                // The same nonce may be granted under other attempts, elsewhere or by the store.
                let name = attempt.and_then(name)?;
                let mut own = degraded.iter().filter(|given| given.name == name);
                own.next().filter(|first| first.by.gateway == *gateway && own.next().is_none())
            });
            // After a failure in its journal a gateway may grant the key again.
            let [Some(one), Some(other)] = grants else { continue };
            let (first, second) = if one.at <= other.at { (one, other) } else { (other, one) };
            let deliveries = self.delivered.iter().filter(|(name, ..)| name.nonce == first.name.nonce);
            let was_delivered = deliveries.map(|(.., at)| *at).min().is_some_and(|at| at <= second.at);
            let reports = |(_, nonce, ..): &&(u16, u64, &str, Duration)| *nonce == first.name.nonce;
            let only_failed = self.reported.iter().filter(reports).all(|(_, _, outcome, _)| *outcome == FAILURE);
            let ended = self.accepted.iter().any(|own| {
                let is_its_own = own.gateway == *gateway && own.nonce == first.name.nonce;
                is_its_own && own.outcome == FAILURE && own.at <= second.at
            });
            ensure(was_delivered || !only_failed || !ended, "overlap", || {
                format!("{first:?} ended before {second:?}, and {overlap:?} is reported")
            })?;
        }
        if degraded.len() > GRANTS_MAX {
            return Ok(());
        }
        let noticed: HashSet<_> = overlaps.iter().filter_map(|(_, overlap)| pair(overlap)).collect();
        for (place, one) in degraded.iter().enumerate() {
            for other in &degraded[place + 1..] {
                let (first, second) = if one.at <= other.at { (one, other) } else { (other, one) };
                let overlap_in_time =
                    first.blocked_until() > second.at + AT_ONCE && second.blocked_until() > second.at + AT_ONCE;
                let (a, b) = (first.name.nonce, second.name.nonce);
                let is_noticed = noticed.contains(&[a, b]) || noticed.contains(&[b, a]);
                let excused = a == b || first.lost || second.lost;
                ensure(!overlap_in_time || excused || is_noticed, "overlap", || {
                    format!("no gateway has reported that {first:?} and {second:?} were granted at once")
                })?;
            }
        }
        Ok(())
    }

    fn saw(&mut self, attempt: &Attempt) {
        let (hash, nonce) = (attempt.hash(), Name::of(attempt).nonce);
        if !self.hashes.contains(&(hash, nonce)) {
            self.hashes.push((hash, nonce));
        }
    }
}
