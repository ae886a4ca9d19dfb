//! What gateways have answered in the store's place on one key, and what that obliges them to: nobody is granted by the same
//! gateway meanwhile, every outcome that was taken reaches the store, in order, and two grants at once are reported.

use std::time::Duration;

use hashbrown::HashSet;
use oncegate::domain::attempt::{Attempt, AttemptHash};
use oncegate::domain::claim::ClaimResponse;
use oncegate::domain::outage_policy::OutagePolicy;
use oncegate::domain::overlap::Overlap;
use oncegate::domain::record::ClaimState;
use oncegate::domain::terms::ClaimOnOutage;

use crate::clock::micros;
use crate::question::{Question, Told};
use crate::reference::{Broken, hold};
use crate::trace::Name;

/// Two grants overlap if they do so for longer than it takes to tell somebody of them.
const AT_ONCE: Duration = Duration::from_millis(50);

/// What a failure is called in traces.
const FAILURE: &str = "outcome call: failure";

/// More degraded grants of a key than marks are kept of them.
const MARKED_MAX: usize = 16;

/// What an app has chosen for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) claims: ClaimOnOutage,
    /// Whether some outcome of the app is spooled.
    pub(crate) spools: bool,
}

/// Which process of which gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) gateway: u16,
    pub(crate) run: u32,
}

/// An instant of the time that really passes, and the same by the store's clock.
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
    /// Nothing if no caller has named the key.
    pub(crate) choice: Option<Choice>,
    given: Vec<Given>,
    accepted: Vec<Accepted>,
    /// What the store was told, and when.
    told: Vec<(u64, &'static str, Duration)>,
    /// The same for outcomes that met their own try under another attempt: the gateway looks that up, and reports again.
    met_own_try: Vec<(u64, &'static str, Duration)>,
    /// Whose grants gateways have told the store of, whether it held another then, and when that was.
    delivered: Vec<(Name, bool, Duration)>,
    /// Whose outcomes were first reported to which gateway, and when.
    reported: Vec<(u16, u64, &'static str, Duration)>,
    /// What gateways were asked to do, and how many of those calls may have been done.
    asked: Vec<(Asked, u32)>,
    /// Which gateways did not answer a claim call, and its nonce: a policy may have granted it.
    unanswered: Vec<(u16, u64)>,
    /// Which gateways the store has told that this attempt holds the claim.
    heard: Vec<(u16, Name)>,
    /// Whose attempt a hash is, by its nonce.
    hashes: Vec<(AttemptHash, u64)>,
}

/// What callers ask: which gateway, by whose attempt, and what; "claim", or an outcome.
pub(crate) type Asked = (u16, u64, &'static str);

/// A grant that a caller was told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) by: Process,
    pub(crate) name: Name,
    /// Nothing if the store granted it.
    pub(crate) policy: Option<OutagePolicy>,
    pub(crate) at: Duration,
    /// Until when its holder may think that it has it.
    pub(crate) until: Instants,
    /// Beyond which no repeat of it may go.
    lease_ends: Duration,
    /// When somebody first began to report it, or to release it.
    over: Option<Duration>,
    /// Its success, which was told by the same process.
    done_until: Option<Instants>,
    /// Until when the journal knows that it kept others out: what the store itself was told leaves nothing to compare with.
    kept_until: Duration,
    /// The store has been told.
    pushed: bool,
    /// The store has told that another holds the claim: what it says goes.
    beaten: bool,
    /// The store's data was lost since.
    lost: bool,
}

/// An outcome that was taken in the store's place.
#[derive(Debug)]
struct Accepted {
    gateway: u16,
    nonce: u64,
    outcome: &'static str,
    begun: Duration,
    at: Duration,
}

impl Given {
    /// Of a lease that was asked for, what is left by then.
    pub(crate) fn new(
        by: Process,
        name: Name,
        policy: Option<OutagePolicy>,
        at: Duration,
        (lease, until): (Duration, Instants),
    ) -> Self {
        // It counts from when it was kept, of which its first holder is told less than there is.
        let (over, done_until, kept_until) = (None, None, until.real);
        let (pushed, beaten, lost) = (false, false, false);
        Self { by, name, policy, at, until, lease_ends: at + lease, over, done_until, kept_until, pushed, beaten, lost }
    }

    /// Whether a process that decides alone must know that this stands.
    fn stands(&self, process: Process, now: Instants) -> bool {
        let by_store = self.policy.is_none() || self.pushed;
        let known = self.by.gateway == process.gateway && (self.by.run == process.run || !by_store);
        let stands = |until: Instants| until.real > now.real && (!by_store || until.store > now.store);
        let lasts = if self.over.is_none() { stands(self.until) } else { self.done_until.is_some_and(stands) };
        known && lasts && !self.beaten && !(self.lost && by_store)
    }

    /// Until when it, or its success, kept others out.
    fn blocked_until(&self) -> Duration {
        if self.done_until.is_some() {
            self.kept_until
        } else {
            self.kept_until.min(self.over.unwrap_or(Duration::MAX))
        }
    }
}

impl Ledger {
    /// A grant is told, by a call that was begun then.
    pub(crate) fn grant(
        &mut self,
        given: Given,
        attempt: &Attempt,
        begun: Duration,
        now: Instants,
    ) -> Result<(), Broken> {
        self.saw(attempt);
        let process = given.by;
        // What a gateway has granted in the store's place it tells the store before it asks the store for others.
        let is_forgotten = |other: &&Given| {
            let by_policy_here = other.policy.is_some() && other.by.gateway == process.gateway;
            let lasts = other.until.real > now.real && other.until.store > now.store;
            let ends = other.over.is_some() || other.beaten || other.lost;
            by_policy_here && other.at <= begun && lasts && !ends && other.name.nonce != given.name.nonce
        };
        let forgotten = self.given.iter().find(is_forgotten).filter(|_| given.policy.is_none());
        hold(forgotten.is_none(), "S1", || format!("the store grants {given:?} beside {forgotten:?}"))?;
        let alone = |other: &&Given| match given.policy {
            Some(OutagePolicy::Local) => other.stands(process, now),
            // It knows what its own journal says, and asks nothing else.
            Some(_) => other.policy.is_some() && !other.pushed && other.stands(process, now),
            None => false,
        };
        let is_known = |known: &Given| known.name == given.name && known.by.gateway == process.gateway;
        // It may have been told to the store before its holder heard of it, in a batch long before: then what was granted
        // since says nothing of it.
        let early = self.delivered.iter().find(|(name, ..)| *name == given.name && !self.given.iter().any(is_known));
        let granted_by = early.map_or(given.at, |(.., at)| *at);
        let others = self.given.iter().filter(|other| other.name.nonce != given.name.nonce);
        let other = others.filter(|other| other.at <= granted_by).find(alone);
        hold(other.is_none(), "local", || format!("{given:?} is granted by the gateway that has granted {other:?}"))?;
        if let Some(known) = self.given.iter_mut().find(|known| is_known(known)) {
            if given.policy.is_some() && known.policy.is_some() {
                hold(given.until.real <= known.lease_ends, "S10", || format!("{known:?} is told again as {given:?}"))?;
            }
            known.until = given.until;
            return Ok(());
        }
        let delivered = self.delivered.iter().filter(|(name, ..)| name.nonce == given.name.nonce);
        let (pushed, beaten) = delivered.fold((false, false), |(_, beaten), (_, own, _)| (true, beaten || *own));
        // What it tells on the store's word the store has granted: it is in no journal, and leaves no mark.
        let policy = given.policy.filter(|_| !self.is_the_stores(&given));
        self.given.push(Given { policy, pushed, beaten, ..given });
        Ok(())
    }

    /// Whether a gateway that decides alone has told of a grant because it has heard of it from the store.
    pub(crate) fn is_the_stores(&self, given: &Given) -> bool {
        given.policy == Some(OutagePolicy::Local) && self.heard.contains(&(given.by.gateway, given.name))
    }

    /// The store's answer to a claim has come to a gateway, which has not asked for itself.
    pub(crate) fn hear(&mut self, gateway: u16, told: &Told) {
        let holder = match told {
            Told::Claimed(ClaimResponse::Granted(grant)) => &grant.attempt,
            Told::Claimed(ClaimResponse::Duplicate(held)) if held.record.state == ClaimState::InProgress => {
                &held.record.attempt
            }
            _ => return,
        };
        let heard = (gateway, Name::of(holder));
        if !self.heard.contains(&heard) {
            self.heard.push(heard);
        }
    }

    /// A renewal is told by a process.
    pub(crate) fn extend(&mut self, process: Process, name: Name, until: Instants, by_policy: bool) {
        for given in self.given.iter_mut().filter(|given| given.name == name) {
            given.lease_ends = given.lease_ends.max(until.real);
            // Who decides alone knows of the renewals that it was asked for, and of those in its journal.
            if given.by == process || (by_policy && given.by.gateway == process.gateway) {
                given.until = until;
                given.kept_until = if by_policy { until.real } else { given.kept_until };
            }
        }
    }

    /// Somebody begins to report an attempt, or to release it.
    pub(crate) fn end(&mut self, name: Name, now: Duration, released: bool) {
        for given in self.given.iter_mut().filter(|given| given.name.nonce == name.nonce) {
            given.over.get_or_insert(now);
            if released {
                given.done_until = None;
            }
        }
    }

    /// A gateway is asked something.
    pub(crate) fn request(&mut self, asked: Asked) {
        match self.asked.iter_mut().find(|(known, _)| *known == asked) {
            Some((_, calls)) => *calls += 1,
            None => self.asked.push((asked, 1)),
        }
    }

    /// A claim call got no answer, or one that says that the outcome is not known.
    pub(crate) fn leave_unanswered(&mut self, gateway: u16, nonce: u64) {
        self.unanswered.push((gateway, nonce));
    }

    /// A caller was told that its call has certainly not been done.
    pub(crate) fn refuse(&mut self, asked: Asked) {
        if let Some((_, calls)) = self.asked.iter_mut().find(|(known, _)| *known == asked) {
            *calls = calls.saturating_sub(1);
        }
    }

    /// That a gateway tells the store of nothing that everybody who asked for it was told is certainly not done.
    pub(crate) fn may_deliver<Q: Question>(&self, gateway: u16, request: &Q) -> Result<(), Broken> {
        let asked =
            (gateway, request.whose().nonce, if Q::CLAIMS { "claim" } else { request.reports().unwrap_or_default() });
        let refused = self.asked.iter().any(|(known, calls)| *known == asked && *calls == 0);
        hold(!refused, "S9", || format!("{asked:?} was refused for certain, and the store is told of it"))
    }

    /// Somebody begins to report an outcome.
    pub(crate) fn report(&mut self, gateway: u16, name: Name, outcome: &'static str, now: Duration) {
        let same =
            |(to, nonce, known, _): &(u16, u64, &str, _)| (*to, *nonce, *known) == (gateway, name.nonce, outcome);
        if !self.reported.iter().any(same) {
            self.reported.push((gateway, name.nonce, outcome, now));
        }
    }

    /// A success is told by a process.
    pub(crate) fn succeed(
        &mut self,
        process: Process,
        name: Name,
        until: Instants,
        (now, by_policy): (Duration, bool),
    ) {
        for given in self.given.iter_mut().filter(|given| given.name == name && given.by == process) {
            given.done_until = Some(until);
            // Before the store tells of an outcome it has been told of what was granted in its place.
            given.pushed |= !by_policy;
            let over = given.over.unwrap_or(now).min(given.kept_until);
            given.kept_until = if by_policy { until.real } else { over };
        }
    }

    /// An outcome is taken in the store's place, by a call that was begun then.
    pub(crate) fn accept(&mut self, gateway: u16, name: Name, outcome: &'static str, begun: Duration, at: Duration) {
        self.accepted.push(Accepted { gateway, nonce: name.nonce, outcome, begun, at });
    }

    /// The store takes a call, and tells whether another holds the claim.
    pub(crate) fn told<Q: Question>(&mut self, request: &Q, answer: &Q::Answer, at: Duration) {
        let nonce = request.whose().nonce;
        if request.is_delivery() {
            let beaten = Q::is_of_another(answer);
            self.delivered.push((request.whose(), beaten, at));
            for given in self.given.iter_mut().filter(|given| given.name.nonce == nonce) {
                given.pushed = true;
                given.beaten |= beaten;
            }
        }
        if let Some(attempt) = request.attempt() {
            self.saw(attempt);
        }
        if let Some(outcome) = request.reports() {
            // Also what no gateway has taken in its place so far: the store may be told before the caller is.
            self.told.push((nonce, outcome, at));
        }
    }

    /// An outcome meets its own try under another attempt.
    pub(crate) fn meet_own_try<Q: Question>(&mut self, request: &Q, at: Duration) {
        self.met_own_try.extend(request.reports().map(|outcome| (request.whose().nonce, outcome, at)));
    }

    /// A lookup finds this try. Outcomes of others that met their own try came too late for it: nothing more is reported.
    pub(crate) fn look_up(&mut self, found: Option<u64>) {
        self.told.extend(self.met_own_try.extract_if(.., |(nonce, ..)| Some(*nonce) != found));
    }

    /// That a gateway may ask the store this now: what it has taken in its place goes before, in order.
    pub(crate) fn may_send<Q: Question>(
        &self,
        gateway: u16,
        request: &Q,
        begun: Option<Duration>,
    ) -> Result<(), Broken> {
        if Q::READS || self.accepted.is_empty() {
            return Ok(());
        }
        let nonce = request.whose().nonce;
        let before = if request.is_delivery() {
            // A grant takes its outcome along, past what others have reported meanwhile.
            let with_its_grant = |given: &Given| given.name.nonce == nonce && given.policy.is_some();
            let may_have_granted = self.unanswered.contains(&(gateway, nonce));
            let own = self
                .accepted
                .iter()
                .find(|own| own.gateway == gateway && own.nonce == nonce && Some(own.outcome) == request.reports());
            // An earlier report of the same may have been taken, and nobody told so.
            let first = |own: &Accepted| {
                let same = |(gateway, nonce, outcome, _): &&(u16, u64, &str, _)| {
                    (*gateway, *nonce, *outcome) == (own.gateway, own.nonce, own.outcome)
                };
                self.reported.iter().find(same).map_or(own.begun, |(.., begun)| *begun)
            };
            own.filter(|_| !may_have_granted && !self.given.iter().any(with_its_grant)).map(first)
        } else {
            begun
        };
        let Some(before) = before else { return Ok(()) };
        let mut earlier = self.accepted.iter().filter(|own| own.gateway == gateway && own.at < before);
        let passed = earlier.find(|own| !self.is_told(own));
        hold(passed.is_none(), "spool", || format!("a {} goes to the store before {passed:?}", Q::NAME))
    }

    fn is_told(&self, own: &Accepted) -> bool {
        self.told.iter().any(|(nonce, outcome, at)| *nonce == own.nonce && *outcome == own.outcome && *at >= own.begun)
    }

    /// What has ended by now, by the store's clock, has ended for good.
    pub(crate) fn end_until(&mut self, store_now: u64) {
        for given in &mut self.given {
            if given.until.store <= store_now {
                given.until.store = 0;
            }
            given.done_until = given.done_until.filter(|until| until.store > store_now);
        }
    }

    /// The store has lost its data.
    pub(crate) fn lose(&mut self) {
        for given in &mut self.given {
            given.lost = true;
        }
    }

    /// That the store was told of everything, and two grants at once were noticed, and no others.
    pub(crate) fn audit(&self, overlaps: &[(u16, Overlap)]) -> Result<(), Broken> {
        let lost = self.accepted.iter().find(|own| !self.is_told(own));
        hold(lost.is_none(), "spool", || format!("the store was never told of {lost:?}"))?;
        let degraded: Vec<_> = self.given.iter().filter(|given| given.policy.is_some()).collect();
        let nonce = |hash| self.hashes.iter().find(|(own, _)| *own == hash).map(|(_, nonce)| *nonce);
        let pair = |overlap: &Overlap| Some([nonce(overlap.ours.hash)?, nonce(overlap.theirs.hash)?]);
        for (gateway, overlap) in overlaps {
            let Some(both) = pair(overlap) else { continue };
            let grants = both.map(|nonce| {
                let mut own = degraded.iter().filter(|given| given.name.nonce == nonce);
                own.next().filter(|first| first.by.gateway == *gateway && own.next().is_none())
            });
            // What has failed where its journal has it, a gateway follows with the next one.
            let [Some(one), Some(other)] = grants else { continue };
            let (first, second) = if one.at <= other.at { (one, other) } else { (other, one) };
            let told = self.delivered.iter().filter(|(name, ..)| name.nonce == first.name.nonce);
            let was_told = told.map(|(.., at)| *at).min().is_some_and(|at| at <= second.at);
            let reports = |(_, nonce, ..): &&(u16, u64, &str, Duration)| *nonce == first.name.nonce;
            let only_failed = self.reported.iter().filter(reports).all(|(_, _, outcome, _)| *outcome == FAILURE);
            let ended = self.accepted.iter().any(|own| {
                let is_its_own = own.gateway == *gateway && own.nonce == first.name.nonce;
                is_its_own && own.outcome == FAILURE && own.at <= second.at
            });
            hold(was_told || !only_failed || !ended, "overlap", || {
                format!("{first:?} ended before {second:?}, and {overlap:?} is reported")
            })?;
        }
        if degraded.len() > MARKED_MAX {
            return Ok(());
        }
        let noticed: HashSet<_> = overlaps.iter().filter_map(|(_, overlap)| pair(overlap)).collect();
        for (place, one) in degraded.iter().enumerate() {
            for other in &degraded[place + 1..] {
                let (first, second) = if one.at <= other.at { (one, other) } else { (other, one) };
                let at_once =
                    first.blocked_until() > second.at + AT_ONCE && second.blocked_until() > second.at + AT_ONCE;
                let (a, b) = (first.name.nonce, second.name.nonce);
                let is_noticed = noticed.contains(&[a, b]) || noticed.contains(&[b, a]);
                let excused = a == b || first.lost || second.lost;
                hold(!at_once || excused || is_noticed, "overlap", || {
                    format!("nobody has noticed that {first:?} and {second:?} were granted at once")
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
