//! The callers of a world. They claim, work, renew and report by the contract. They also break it: they crash, resume
//! late, repeat and contradict themselves, and use the attempts of others.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::call::Answered;
use oncegate_core::canonical::canonicalize_any;
use oncegate_core::claim::{ClaimRequest, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use oncegate_core::operator::ReleaseRequest;
use oncegate_core::record::{ClaimId, ClaimState, Key};
use oncegate_core::terms::Retention;
use oncegate_gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use oncegate_gateway::outcome::{OutcomeCall, Reported};
use oncegate_gateway::{Failure, RenewalAnswer};
use oncegate_outage::deadline::DELIVERY_DEADLINE;
use tokio::time::sleep;

use crate::business::{Business, Target};
use crate::engine_call::{EngineCall, Timed, outcome_name};
use crate::oracle::Call;
use crate::reference::ensure;
use crate::stack::Host;
use crate::trace::Name;
use crate::world::{Habits, World};

/// Number of attempts that are kept for callers that use foreign ones.
const REMEMBERED: usize = 200;

/// Largest number of repeats of a call without an answer.
const TRIES_MAX: u32 = 8;

/// Attempts that were granted to callers.
pub(crate) type Memories = Arc<Mutex<VecDeque<(Target, Attempt)>>>;

/// One caller.
pub(crate) struct Caller {
    pub(crate) world: Arc<World>,
    pub(crate) number: u16,
    pub(crate) business: Arc<Business>,
    pub(crate) hosts: Arc<Vec<Host>>,
    pub(crate) memories: Memories,
}

impl Caller {
    /// Makes calls until the world ends.
    pub(crate) async fn live(self) {
        let rng = &self.world.rng;
        while !self.world.is_done() {
            sleep(if rng.percent(60) { rng.millis(0, 50) } else { rng.millis(50, 4_000) }).await;
            match rng.between(0, 99) {
                0..=80 => self.episode().await,
                81..=88 => self.batch().await,
                89..=92 => self.meddle().await,
                93..=96 => self.look().await,
                97 => self.operate().await,
                _ => self.wake_up_late().await,
            }
        }
    }

    /// Claims these keys again, after all faults and all leases have ended.
    pub(crate) async fn audit(self, targets: Vec<Target>) {
        for target in targets {
            let plan = ClaimPlan { nonce: self.nonce(), ..ClaimPlan::default() };
            let answer = self.claim(&target, &plan, self.gateway()).await;
            let of_the_dead = match &answer {
                Some(Ok(Answered { answer: ClaimAnswer::Duplicate(found), .. })) => {
                    found.claim.record.state == ClaimState::InProgress
                }
                _ => false,
            };
            self.world.check(target.number, ensure(!of_the_dead, "L1", || format!("{answer:?}, and nobody is left")));
        }
    }

    /// Claim call, work, outcome call.
    async fn episode(&self) {
        let rng = &self.world.rng;
        let target = self.business.choose();
        let plan = self.plan();
        let Some(granted) = self.claim_until_answered(&target, plan).await else { return };
        self.remember(&target, &granted.attempt);
        let lease = Duration::from_millis(granted.lease_ms);
        match rng.between(0, 99) {
            // It dies. Another caller may use its attempt.
            0..=11 => return,
            // It works for longer than its lease.
            12..=24 => sleep(lease + rng.millis(0, 4_000)).await,
            _ if self.world.habits == Habits::Crowding => self.work_long(&target, &granted.attempt, lease).await,
            25..=44 => self.work_long(&target, &granted.attempt, lease).await,
            _ => sleep(lease.mul_f64(f64::from(u32::try_from(rng.between(0, 90)).expect("small")) / 100.0)).await,
        }
        let outcome = self.outcome();
        let settled = self.report_until_answered(&target, &granted.attempt, &outcome).await;
        if settled.is_some() && rng.percent(6) {
            // It repeats the call, as if it had no answer.
            let _same = self.report_until_answered(&target, &granted.attempt, &outcome).await;
        }
        let succeeded = Some(ClaimState::Succeeded);
        let is_succeeded =
            |settled: &OutcomeResponse| matches!(settled, OutcomeResponse::Done { state, .. } if *state == succeeded);
        if let (Some(Reported::Settled { settled, .. }), true) = (settled, rng.percent(6))
            && is_succeeded(&settled)
        {
            let _refused = self.report_until_answered(&target, &granted.attempt, &Outcome::Failure).await;
        }
    }

    /// Works for a few leases, and renews them at times.
    async fn work_long(&self, target: &Target, attempt: &Attempt, mut lease: Duration) {
        let rng = &self.world.rng;
        for _ in 0..rng.between(1, 4) {
            sleep(lease / 2 + rng.millis(0, 100)).await;
            let longer = rng.percent(50).then(|| rng.millis(200, 9_000));
            match self.renew(target, attempt, longer).await.map(|answer| answer.map(|answered| answered.answer)) {
                // The last answer counts.
                Some(Ok(RenewalAnswer { renewed: RenewalResponse::Renewed { left, .. }, .. })) => lease = left,
                Some(Ok(_)) => return,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Makes many claim calls in a batch, some of them for the same key, and many outcome calls.
    async fn batch(&self) {
        let rng = &self.world.rng;
        let first = self.business.choose();
        let mut items = vec![(first.clone(), self.plan())];
        for _ in 0..rng.between(1, 6) {
            let target = if rng.percent(20) { first.clone() } else { self.business.choose() };
            // A batch belongs to one app.
            if target.app.key == first.app.key {
                items.push((target, self.plan()));
            }
        }
        let granted = self.claim_many(&items).await;
        sleep(rng.millis(0, 600)).await;
        for (target, granted) in granted {
            self.remember(&target, &granted.attempt);
            if rng.percent(80) {
                let _answered = self.report_until_answered(&target, &granted.attempt, &self.outcome()).await;
            }
        }
    }

    /// Reports or renews by an attempt that was never issued.
    async fn meddle(&self) {
        let rng = &self.world.rng;
        let Some((target, of_holder)) = self.recall() else { return };
        let attempt = Attempt::new(of_holder.timestamp(), self.nonce());
        if rng.percent(30) {
            let _refused = self.renew(&target, &attempt, None).await;
        } else {
            // Not a success, which would be recorded if there is no claim.
            let _refused = self.report_until_answered(&target, &attempt, &Outcome::Failure).await;
        }
    }

    /// A holder resumes late and reports.
    async fn wake_up_late(&self) {
        let Some((target, attempt)) = self.recall() else { return };
        let _answered = self.report_until_answered(&target, &attempt, &Outcome::Unknown).await;
    }

    /// Lookup.
    async fn look(&self) {
        let target = self.business.choose();
        let deadline = target.app.terms.deadline;
        let gateway = self.gateway();
        let name = Name::nonce(self.world.rng.next_u64());
        let call = self.begin(gateway, <Key as EngineCall>::NAME, "GET", name, &target, deadline);
        let Some((call, running)) = call else { return };
        let answer = running.answer(running.gateway.inspect(&target.app, ClaimId::of_api(target.global_id))).await;
        match answer {
            Some(answer) => self.world.replied(&call, &answer),
            None => self.world.abort(&call),
        }
    }

    /// An operator releases a claim, even one that succeeded.
    async fn operate(&self) {
        let Some((target, attempt)) = self.recall() else { return };
        let gateway = self.gateway();
        let deadline = target.app.terms.deadline;
        let name = Name::of(&attempt);
        let call = self.begin(gateway, <ReleaseRequest as EngineCall>::NAME, "release", name, &target, deadline);
        let Some((call, running)) = call else { return };
        let release = running.gateway.release(&target.app, ClaimId::of_api(target.global_id), attempt, true);
        match running.answer(release).await {
            Some(answer) => self.world.replied(&call, &answer),
            None => self.world.abort(&call),
        }
    }

    /// Repeats a claim call with one nonce until it is answered, at any gateway, and sometimes at two at once.
    async fn claim_until_answered(&self, target: &Target, mut plan: ClaimPlan) -> Option<Granted> {
        let rng = &self.world.rng;
        for _ in 0..TRIES_MAX {
            let first = self.gateway();
            let twice = if self.world.habits == Habits::Crowding { 50 } else { 6 };
            let answer = if rng.percent(twice) && self.hosts.len() > 1 {
                let second = (first + 1) % self.hosts.len();
                let (one, other) = join(self.claim(target, &plan, first), self.claim(target, &plan, second)).await;
                if matches!(one, Some(Ok(_))) { one } else { other }
            } else {
                self.claim(target, &plan, first).await
            };
            if self.world.is_done() {
                return None;
            }
            match answer.map(|answer| answer.map(|answered| answered.answer)) {
                Some(Ok(ClaimAnswer::Granted(granted))) => {
                    if rng.percent(5) {
                        let _repeated = self.claim(target, &plan, self.gateway()).await;
                    }
                    return Some(granted);
                }
                Some(Ok(ClaimAnswer::Duplicate(found))) => match found.claim.record.state {
                    // It claims again, as another attempt.
                    ClaimState::InProgress if rng.percent(30) => plan = self.plan(),
                    ClaimState::Unknown if rng.percent(50) => plan = ClaimPlan { take_over: true, ..self.plan() },
                    _ => return None,
                },
                Some(Ok(ClaimAnswer::Mismatch(..))) => return None,
                // Without an answer, or with one that asks for a repeat: the same call again.
                Some(Err(_)) | None => {}
            }
            if rng.percent(10) {
                return None;
            }
            sleep(rng.millis(10, 800)).await;
        }
        None
    }

    /// Repeats an outcome call until it is answered.
    async fn report_until_answered(&self, target: &Target, attempt: &Attempt, outcome: &Outcome) -> Option<Reported> {
        let rng = &self.world.rng;
        for _ in 0..TRIES_MAX {
            if let Some(Ok(reported)) = self.report(target, attempt, outcome).await {
                return Some(reported.answer);
            }
            if self.world.is_done() || rng.percent(10) {
                return None;
            }
            sleep(rng.millis(10, 800)).await;
        }
        None
    }

    async fn claim(
        &self,
        target: &Target,
        plan: &ClaimPlan,
        gateway: usize,
    ) -> Option<Result<Answered<ClaimAnswer>, Failure>> {
        let (lease, deadline) = plan.lease_and_deadline(target);
        let name = plan.name();
        let wait = plan.wait();
        // The blocking claim is read before the wait, and perhaps at its end.
        let deadline = wait.map_or(deadline, |wait| wait + deadline * 2);
        let (call, running) =
            self.begin(gateway, <Timed<ClaimRequest> as EngineCall>::NAME, plan.what(), name, target, deadline)?;
        let (app, request) = (&target.app, plan.request(target));
        let claim = async {
            match wait {
                Some(wait) => {
                    running.gateway.claim_or_wait(app, request, wait, pending()).await.map(|waited| waited.answer)
                }
                None => running.gateway.claim(app, request).await,
            }
        };
        let answer = running.answer(claim).await.map(|answer| running.plant(answer, target, plan, lease));
        match &answer {
            Some(answer) => self.world.claimed(&call, lease, answer),
            None => self.world.abort(&call),
        }
        answer
    }

    async fn claim_many(&self, items: &[(Target, ClaimPlan)]) -> Vec<(Target, Granted)> {
        let gateway = self.gateway();
        let deadline = items.iter().map(|(target, plan)| plan.lease_and_deadline(target).1).max().unwrap_or_default();
        let Some(running) = self.hosts[gateway].gateway() else { return Vec::new() };
        let begin = |(target, plan): &(Target, ClaimPlan)| {
            let name = plan.name();
            let (mut call, _) =
                self.begin(gateway, <Timed<ClaimRequest> as EngineCall>::NAME, plan.what(), name, target, deadline)?;
            call.in_batch = true;
            Some(call)
        };
        let calls: Vec<_> = items.iter().map_while(begin).collect();
        let requests = items.iter().map(|(target, plan)| Ok(plan.request(target))).take(calls.len()).collect();
        let many = running.gateway.claim_many::<Failure>(&items[0].0.app, requests, 1 << 20);
        let Some((answers, _kept)) = running.answer(many).await else {
            for call in &calls {
                self.world.abort(call);
            }
            return Vec::new();
        };
        let mut granted = Vec::new();
        for ((call, answer), (target, plan)) in calls.iter().zip(answers).zip(items) {
            let lease = plan.lease_and_deadline(target).0;
            let answer = running.plant(answer, target, plan, lease);
            self.world.claimed(call, lease, &answer);
            if let Ok(Answered { answer: ClaimAnswer::Granted(own), .. }) = answer {
                granted.push((target.clone(), own));
            }
        }
        granted
    }

    async fn report(
        &self,
        target: &Target,
        attempt: &Attempt,
        outcome: &Outcome,
    ) -> Option<Result<Answered<Reported>, Failure>> {
        let rng = &self.world.rng;
        let operation = rng.percent(70).then(|| target.operation.clone());
        let contents = operation.as_ref().and_then(|_| rng.percent(30).then(|| target.contents.clone()));
        let deadline = operation.as_ref().map_or(&target.app.terms, |own| target.app.terms_of(own)).deadline;
        let gateway = self.gateway();
        let (what, name) = (outcome_name(outcome), Name::of(attempt));
        let (call, running) =
            self.begin(gateway, <Timed<OutcomeRequest> as EngineCall>::NAME, what, name, target, deadline)?;
        let report = OutcomeCall {
            id: ClaimId::of_api(target.global_id),
            attempt: attempt.clone(),
            outcome: outcome.clone(),
            operation,
            contents,
        };
        let answer = running.answer(running.gateway.settle(&target.app, report)).await;
        match &answer {
            Some(answer) => self.world.settled(&call, outcome, answer),
            None => self.world.abort(&call),
        }
        answer
    }

    async fn renew(
        &self,
        target: &Target,
        attempt: &Attempt,
        lease: Option<Duration>,
    ) -> Option<Result<Answered<RenewalAnswer>, Failure>> {
        let gateway = self.gateway();
        let deadline = target.app.terms.deadline;
        let name = Name::of(attempt);
        let call = self.begin(gateway, <Timed<RenewalRequest> as EngineCall>::NAME, "renewal", name, target, deadline);
        let (call, running) = call?;
        let renewal = running.gateway.renew(&target.app, ClaimId::of_api(target.global_id), attempt.clone(), lease);
        let answer = running.answer(renewal).await;
        match &answer {
            Some(answer) => self.world.renewed(&call, answer),
            None => self.world.abort(&call),
        }
        answer
    }

    /// Calls a gateway. `None` if it is down, or the world has ended.
    fn begin(
        &self,
        gateway: usize,
        kind: &'static str,
        what: &'static str,
        name: Name,
        target: &Target,
        deadline: Duration,
    ) -> Option<(Call, crate::stack::Running)> {
        let running = self.hosts[gateway].gateway()?;
        let place = (self.number, u16::try_from(gateway).expect("few gateways"));
        let mut call = self.world.begin(place, kind, what, name, target.number, deadline)?;
        call.run = running.run;
        Some((call, running))
    }

    /// Returns any gateway, or mostly the same.
    fn gateway(&self) -> usize {
        let rng = &self.world.rng;
        if self.world.habits == Habits::Crowding && rng.percent(90) {
            return usize::from(self.number) % self.hosts.len();
        }
        rng.index(self.hosts.len())
    }

    fn nonce(&self) -> Nonce {
        // Zero is the sweeper's nonce.
        Nonce::from_bits(self.world.rng.next_u64() | 1)
    }

    fn plan(&self) -> ClaimPlan {
        let rng = &self.world.rng;
        ClaimPlan {
            nonce: self.nonce(),
            lease: rng.percent(20).then(|| unlike_a_gateways_own(rng.millis(500, 8_000))),
            retention: rng.percent(10).then(|| Retention::For(rng.millis(1_000, 20_000))),
            fingerprint: rng.percent(4),
            take_over: rng.percent(2),
        }
    }

    fn outcome(&self) -> Outcome {
        let rng = &self.world.rng;
        if self.world.habits == Habits::Crowding && rng.percent(80) {
            return Outcome::Failure;
        }
        match rng.between(0, 99) {
            0..=49 => Outcome::Success {
                result: rng.percent(50).then(|| format!("{}", rng.between(1, 1_000_000)).into()),
                retention: rng.percent(20).then(|| Retention::For(rng.millis(1_000, 20_000))),
            },
            50..=84 => Outcome::Failure,
            _ => Outcome::Unknown,
        }
    }

    fn remember(&self, target: &Target, attempt: &Attempt) {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if memories.len() == REMEMBERED {
            memories.pop_front();
        }
        memories.push_back((target.clone(), attempt.clone()));
    }

    fn recall(&self) -> Option<(Target, Attempt)> {
        let memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if memories.is_empty() { None } else { Some(memories[self.world.rng.index(memories.len())].clone()) }
    }
}

/// Request of a claim call.
pub(crate) struct ClaimPlan {
    pub(crate) nonce: Nonce,
    lease: Option<Duration>,
    retention: Option<Retention>,
    /// True if it has a fingerprint. All fingerprints are equal.
    fingerprint: bool,
    take_over: bool,
}

impl Default for ClaimPlan {
    fn default() -> Self {
        Self { nonce: Nonce::from_bits(1), lease: None, retention: None, fingerprint: false, take_over: false }
    }
}

/// Deliveries by gateways are recognised by their deadline. The deadline of a claim comes from its lease: half of it, and four
/// fifths of that for the store.
fn unlike_a_gateways_own(lease: Duration) -> Duration {
    let deadline = lease / 2;
    let is_like = deadline == DELIVERY_DEADLINE || deadline * 4 / 5 == DELIVERY_DEADLINE;
    if is_like { lease + Duration::from_millis(1) } else { lease }
}

impl ClaimPlan {
    fn name(&self) -> Name {
        Name::nonce(u64::from_str_radix(self.nonce.as_str(), 16).expect("a nonce of this world"))
    }

    /// Returns how long its caller is willing to wait: one in eight is.
    fn wait(&self) -> Option<Duration> {
        let bits = u64::from_str_radix(self.nonce.as_str(), 16).expect("a nonce of this world");
        bits.is_multiple_of(8).then(|| Duration::from_millis(bits / 8 % 4_000))
    }

    fn what(&self) -> &'static str {
        if self.take_over { "claim call that takes over" } else { "claim call" }
    }

    /// Returns the deadline by which a claim call is answered: half of its lease is left then.
    fn lease_and_deadline(&self, target: &Target) -> (Duration, Duration) {
        let lease = self.lease.unwrap_or(target.terms().terms.lease);
        (lease, target.terms().deadline.min(lease / 2))
    }

    fn request(&self, target: &Target) -> ClaimCall {
        ClaimCall {
            fingerprint: self.fingerprint.then(|| canonicalize_any(b"7", "fingerprint").expect("JSON")),
            nonce: Some(self.nonce.clone()),
            lease: self.lease,
            retention: self.retention,
            take_over: self.take_over,
            ..ClaimCall::plain(target.operation.clone(), target.contents.clone())
        }
    }
}
