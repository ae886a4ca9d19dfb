//! Many callers of a few keys: each claims, works, reports, renews, repeats calls without an answer, comes late, or crashes, as
//! decided by a seed. Their calls become a history.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::claim::Outcome;
use oncegate_core::terms::{Retention, Terms};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::record::{Answer, Call, History, Reply};

/// Answers calls: a gateway, or a model of one.
#[async_trait]
pub trait Service: Send + Sync {
    /// Makes one call for a key and returns its result.
    async fn call(&self, key: &str, call: &Call) -> Reply;
}

/// Number of callers and keys, and the behaviour of the callers.
#[derive(Clone)]
pub struct Workload {
    /// Source of all decisions of the callers.
    pub seed: u64,
    /// Number of concurrent callers.
    pub callers: usize,
    /// Number of keys at a time. A key is replaced by a new one after `events_per_key`.
    pub keys: usize,
    /// Events of a key before new operations use another, so that histories stay short.
    pub events_per_key: usize,
    /// Default terms of the service.
    pub terms: Terms,
    /// Leases that callers request.
    pub leases: Vec<Duration>,
    /// Retentions that callers request.
    pub retentions: Vec<Retention>,
    /// Average pause between two operations, and the longest work.
    pub pace: Duration,
}

/// The keys in use.
struct Keys {
    name: String,
    events_max: usize,
    /// For each: the number of keys before it, and the events of this one.
    slots: Vec<Mutex<(usize, usize)>>,
}

impl Keys {
    /// Returns a key for a new operation.
    fn pick(&self, random: &mut SmallRng) -> (usize, String) {
        let slot = random.random_range(0..self.slots.len());
        let (generation, events) = &mut *self.slots[slot].lock().expect("no panic");
        if *events >= self.events_max {
            (*generation, *events) = (*generation + 1, 0);
        }
        (slot, format!("{}-{slot}-{generation}", self.name))
    }

    fn count(&self, slot: usize) {
        self.slots[slot].lock().expect("no panic").1 += 1;
    }
}

/// One caller.
struct Caller {
    number: usize,
    workload: Arc<Workload>,
    keys: Arc<Keys>,
    services: Vec<Arc<dyn Service>>,
    history: History,
    stop: CancellationToken,
    random: SmallRng,
}

impl Workload {
    /// Runs the callers until `stop`, each call at one of these services. The same seed over the same service makes the same
    /// calls, if the times are the same.
    pub async fn run(self, services: Vec<Arc<dyn Service>>, history: History, stop: CancellationToken) {
        let slots = (0..self.keys).map(|_| Mutex::default()).collect();
        let keys = Arc::new(Keys { name: format!("{:x}", self.seed), events_max: self.events_per_key, slots });
        let workload = Arc::new(self);
        let mut callers = JoinSet::new();
        for number in 0..workload.callers {
            let seed = workload.seed.wrapping_add(u64::try_from(number).expect("few callers") << 32);
            let mut caller = Caller {
                number,
                workload: workload.clone(),
                keys: keys.clone(),
                services: services.clone(),
                history: history.clone(),
                stop: stop.clone(),
                random: SmallRng::seed_from_u64(seed),
            };
            callers.spawn(async move {
                while !caller.stop.is_cancelled() {
                    caller.rest().await;
                    caller.run_operation().await;
                }
            });
        }
        callers.join_all().await;
        Self::claim_every_key(&workload, &services, &history).await;
    }

    /// Claims every key again, so that the last answers are checked as well.
    async fn claim_every_key(workload: &Workload, services: &[Arc<dyn Service>], history: &History) {
        let mut random = SmallRng::seed_from_u64(workload.seed ^ 1);
        let keys = history.keys();
        let terms = Terms { lease: workload.leases[0], ..workload.terms };
        let mut claim = || Call::Claim { nonce: fresh_nonce(&mut random), terms, take_over: false };
        let calls: Vec<(&String, Call)> = keys.keys().map(|key| (key, claim())).collect();
        for together in calls.chunks(workload.callers) {
            let replies = together.iter().map(|(key, call)| {
                history.record((workload.callers, 0), key, call.clone(), services[0].call(key, call))
            });
            futures_util::future::join_all(replies).await;
        }
    }
}

impl Caller {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    async fn rest(&mut self) {
        let pace = self.workload.pace;
        let pause = self.random.random_range(Duration::ZERO..pace * 2);
        self.pause(pause).await;
    }

    /// Waits this long, or until `stop`.
    async fn pause(&self, length: Duration) {
        tokio::select! {
            biased;
            () = sleep(length) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn call(&mut self, (slot, key): &(usize, String), call: &Call) -> Reply {
        let number = self.random.random_range(0..self.services.len());
        let service = self.services[number].clone();
        let reply = self.history.record((self.number, number), key, call.clone(), service.call(key, call)).await;
        if reply != Reply::Refused {
            self.keys.count(*slot);
        }
        reply
    }

    /// Repeats a call until it is answered, at most this many times.
    async fn call_until_answered(&mut self, key: &(usize, String), call: &Call, times: usize) -> Reply {
        let mut reply = self.call(key, call).await;
        for _ in 1..times {
            if !matches!(reply, Reply::Unknown | Reply::Refused) || self.stop.is_cancelled() {
                break;
            }
            self.rest().await;
            reply = self.call(key, call).await;
        }
        reply
    }

    /// Runs one operation, from its claim to its report, if it gets that far.
    async fn run_operation(&mut self) {
        let key = self.keys.pick(&mut self.random);
        let lease = *self.workload.leases.choose(&mut self.random).expect("a lease");
        let retention = *self.workload.retentions.choose(&mut self.random).expect("a retention");
        let terms = Terms { lease, retention, ..self.workload.terms };
        let call = Call::Claim { nonce: fresh_nonce(&mut self.random), terms, take_over: self.chance(30) };
        let times = self.random.random_range(1..4);
        let mut reply = self.call_until_answered(&key, &call, times).await;
        if self.chance(10) {
            // As if the answer had been lost before the caller got it.
            reply = self.call(&key, &call).await;
        }
        let (Reply::Answered(Answer::Granted { attempt, .. }) | Reply::Degraded(_, Answer::Granted { attempt, .. })) =
            reply
        else {
            return;
        };
        self.work(&key, &attempt, lease).await;
    }

    async fn work(&mut self, key: &(usize, String), attempt: &Attempt, lease: Duration) {
        if self.chance(8) {
            // Crashed.
            return;
        }
        if self.chance(20) {
            let lease = *self.workload.leases.choose(&mut self.random).expect("a lease");
            self.call(key, &Call::Renew { attempt: attempt.clone(), lease }).await;
            if self.chance(20) {
                // Crashed, with a part of its lease left.
                return;
            }
        }
        self.rest().await;
        if self.chance(8) {
            // Paused, longer than a short lease.
            self.pause(lease.min(self.workload.pace * 20)).await;
            if self.chance(30) {
                self.call(key, &Call::Renew { attempt: attempt.clone(), lease }).await;
            }
        }
        let reports = if self.chance(12) { 2 } else { 1 };
        for _ in 0..reports {
            let outcome = self.outcome();
            let call = Call::Settle { attempt: attempt.clone(), outcome, terms: self.workload.terms };
            self.call_until_answered(key, &call, 4).await;
        }
    }

    fn outcome(&mut self) -> Outcome {
        match self.random.random_range(0..100) {
            0..25 => {
                let result = self.chance(50).then(|| self.random.random_range(0..1000).to_string().into());
                let own = self.chance(30);
                let retention = own.then(|| *self.workload.retentions.choose(&mut self.random).expect("one"));
                Outcome::Success { result, retention }
            }
            25..85 => Outcome::Failure,
            _ => Outcome::Unknown,
        }
    }
}

fn fresh_nonce(random: &mut SmallRng) -> Nonce {
    Nonce::from_bits(random.random())
}
