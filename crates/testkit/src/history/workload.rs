//! Many callers at a few keys: each asks, works, reports, renews, asks again when it was told nothing, comes late, or is
//! never heard of again, as a seed says. What they see becomes a story.

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

use super::record::{Answer, Call, Reply, Story};

/// Who answers calls: a gateway, or what a test puts in its place.
#[async_trait]
pub trait Service: Send + Sync {
    /// Makes one call about one key, and says what its caller was told.
    async fn call(&self, key: &str, call: &Call) -> Reply;
}

/// How many call for what, and how.
#[derive(Clone)]
pub struct Workload {
    /// Everything that the callers decide comes from it.
    pub seed: u64,
    /// How many callers there are at once.
    pub callers: usize,
    /// How many keys are called for at once; each is given up for a new one when enough has happened to it.
    pub keys: usize,
    /// How much may happen to a key before new tries go to another: histories are to be short.
    pub events_per_key: usize,
    /// The terms that the service has for what callers do not say.
    pub terms: Terms,
    /// The leases that callers ask for.
    pub leases: Vec<Duration>,
    /// The retentions that callers ask for.
    pub retentions: Vec<Retention>,
    /// How long callers wait between two tries, and work at most.
    pub pace: Duration,
}

/// The keys that are called for now.
struct Keys {
    name: String,
    events_max: usize,
    /// Of each: how many there were before it, and how much has happened to this one.
    slots: Vec<Mutex<(usize, usize)>>,
}

impl Keys {
    /// A key for a new try.
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
    story: Story,
    stop: CancellationToken,
    random: SmallRng,
}

impl Workload {
    /// Lets the callers call until they are told to stop, each time at any of these services. The same seed over the same
    /// service makes the same calls, as far as time does not come between.
    pub async fn run(self, services: Vec<Arc<dyn Service>>, story: Story, stop: CancellationToken) {
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
                story: story.clone(),
                stop: stop.clone(),
                random: SmallRng::seed_from_u64(seed),
            };
            callers.spawn(async move {
                while !caller.stop.is_cancelled() {
                    caller.rest().await;
                    caller.try_one().await;
                }
            });
        }
        callers.join_all().await;
        Self::ask_once_more(&workload, &services, &story).await;
    }

    /// Asks for every key what has become of it, so that what was told last is held to as well.
    async fn ask_once_more(workload: &Workload, services: &[Arc<dyn Service>], story: &Story) {
        let mut random = SmallRng::seed_from_u64(workload.seed ^ 1);
        let keys = story.keys();
        let terms = Terms { lease: workload.leases[0], ..workload.terms };
        let mut claim = || Call::Claim { nonce: fresh_nonce(&mut random), terms, take_over: false };
        let calls: Vec<(&String, Call)> = keys.keys().map(|key| (key, claim())).collect();
        for together in calls.chunks(workload.callers) {
            let asked = together
                .iter()
                .map(|(key, call)| story.tell((workload.callers, 0), key, call.clone(), services[0].call(key, call)));
            futures_util::future::join_all(asked).await;
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

    /// Does nothing for so long, or until it is told to stop.
    async fn pause(&self, length: Duration) {
        tokio::select! {
            () = sleep(length) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn ask(&mut self, (slot, key): &(usize, String), call: &Call) -> Reply {
        let number = self.random.random_range(0..self.services.len());
        let service = self.services[number].clone();
        let reply = self.story.tell((self.number, number), key, call.clone(), service.call(key, call)).await;
        if reply != Reply::Refused {
            self.keys.count(*slot);
        }
        reply
    }

    /// Asks until told something, at most so often.
    async fn insist(&mut self, key: &(usize, String), call: &Call, times: usize) -> Reply {
        let mut reply = self.ask(key, call).await;
        for _ in 1..times {
            if !matches!(reply, Reply::Unknown | Reply::Refused) || self.stop.is_cancelled() {
                break;
            }
            self.rest().await;
            reply = self.ask(key, call).await;
        }
        reply
    }

    /// One operation, from asking to reporting, or what comes of it.
    async fn try_one(&mut self) {
        let key = self.keys.pick(&mut self.random);
        let lease = *self.workload.leases.choose(&mut self.random).expect("a lease");
        let retention = *self.workload.retentions.choose(&mut self.random).expect("a retention");
        let terms = Terms { lease, retention, ..self.workload.terms };
        let call = Call::Claim { nonce: fresh_nonce(&mut self.random), terms, take_over: self.chance(30) };
        let times = self.random.random_range(1..4);
        let mut reply = self.insist(&key, &call, times).await;
        if self.chance(10) {
            // Its answer was lost on its way to us, say.
            reply = self.ask(&key, &call).await;
        }
        let (Reply::Told(Answer::Granted { attempt, .. }) | Reply::Degraded(_, Answer::Granted { attempt, .. })) =
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
            self.ask(key, &Call::Renew { attempt: attempt.clone(), lease }).await;
            if self.chance(20) {
                // Crashed, with what is left of its lease.
                return;
            }
        }
        self.rest().await;
        if self.chance(8) {
            // Paused, for longer than it has if that is not long.
            self.pause(lease.min(self.workload.pace * 20)).await;
            if self.chance(30) {
                self.ask(key, &Call::Renew { attempt: attempt.clone(), lease }).await;
            }
        }
        let reports = if self.chance(12) { 2 } else { 1 };
        for _ in 0..reports {
            let outcome = self.outcome();
            let call = Call::Settle { attempt: attempt.clone(), outcome, terms: self.workload.terms };
            self.insist(key, &call, 4).await;
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
