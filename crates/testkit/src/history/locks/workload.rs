//! Many callers of a few locks: they acquire, wait, queue, share, re-enter, repeat calls without an answer, renew, come late, hang
//! up, give up, or crash, as decided by a seed. Their calls become a history.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::lock::LockMode;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Acquire, LockAnswer, LockCall, LockHistory, LockReply};

/// Answers calls for locks: a gateway, or a model of one.
#[async_trait]
pub trait LockService: Send + Sync {
    /// Makes one call for a lock and returns its result.
    async fn call(&self, lock: &str, call: &LockCall) -> LockReply;
}

/// Number of callers and locks, and the behaviour of the callers.
#[derive(Clone)]
pub struct LockWorkload {
    /// Source of all decisions of the callers.
    pub seed: u64,
    /// Number of concurrent callers.
    pub callers: usize,
    /// Number of locks.
    pub locks: usize,
    /// Leases that callers request.
    pub leases: Vec<Duration>,
    /// Waits that callers request.
    pub waits: Vec<Duration>,
    /// Average pause between two operations, and the longest work.
    pub pace: Duration,
    /// Percentage of callers that crash, hang up, or are late.
    pub careless: u32,
}

/// One caller.
struct Caller {
    number: usize,
    workload: Arc<LockWorkload>,
    services: Vec<Arc<dyn LockService>>,
    history: LockHistory,
    stop: CancellationToken,
    random: SmallRng,
}

/// Repeats of a request until the caller gives up.
const TRIES_MAX: usize = 12;

impl LockWorkload {
    /// Runs the callers until `stop`, each call at one of these services.
    pub async fn run(self, services: Vec<Arc<dyn LockService>>, history: LockHistory, stop: CancellationToken) {
        let workload = Arc::new(self);
        let mut callers = JoinSet::new();
        for number in 0..workload.callers {
            let seed = workload.seed.wrapping_add(u64::try_from(number).expect("few callers") << 32);
            let (workload, services) = (workload.clone(), services.clone());
            let (history, stop, random) = (history.clone(), stop.clone(), SmallRng::seed_from_u64(seed));
            let mut caller = Caller { number, workload, services, history, stop, random };
            callers.spawn(async move {
                while !caller.stop.is_cancelled() {
                    caller.rest().await;
                    caller.run_operation().await;
                }
            });
        }
        callers.join_all().await;
    }

    /// Requests every lock again, until it is granted. The lease of a crashed caller and its place in the queue must
    /// end first, so this takes some time.
    pub async fn request_every_lock(&self, service: &Arc<dyn LockService>, history: &LockHistory) {
        let mut random = SmallRng::seed_from_u64(self.seed ^ 1);
        for lock in history.locks().into_keys() {
            let nonce = fresh_nonce(&mut random);
            let (mode, lease) = (LockMode::Exclusive, self.leases[0]);
            let request = Acquire { nonce, owner: None, mode, lease, wait: Duration::ZERO, fair: false };
            let call = LockCall::Acquire(request);
            for _ in 0..10_000 {
                let reply = history.record((self.callers, 0), &lock, call.clone(), service.call(&lock, &call)).await;
                if matches!(reply, LockReply::Answered(LockAnswer::Granted { .. })) {
                    break;
                }
                sleep(self.pace).await;
            }
        }
    }
}

impl Caller {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn is_careless(&mut self) -> bool {
        let careless = self.workload.careless;
        self.chance(careless)
    }

    async fn rest(&mut self) {
        let pause = self.random.random_range(Duration::ZERO..self.workload.pace * 2);
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

    /// Makes a call. Hangs up after this time, if there is one.
    async fn call(&mut self, lock: &str, call: &LockCall, hangs_up: Option<Duration>) -> LockReply {
        let number = self.random.random_range(0..self.services.len());
        let service = self.services[number].clone();
        let reply = async {
            match hangs_up {
                None => service.call(lock, call).await,
                Some(after) => tokio::select! {
                    biased;
                    reply = service.call(lock, call) => reply,
                    () = sleep(after) => LockReply::Unknown,
                },
            }
        };
        self.history.record((self.number, number), lock, call.clone(), reply).await
    }

    /// Repeats a call until it is answered.
    async fn call_until_answered(&mut self, lock: &str, call: &LockCall) -> LockReply {
        let mut reply = self.call(lock, call, None).await;
        for _ in 1..TRIES_MAX {
            if matches!(reply, LockReply::Answered(_)) || self.stop.is_cancelled() {
                break;
            }
            self.rest().await;
            reply = self.call(lock, call, None).await;
        }
        reply
    }

    /// Runs one operation, from its request to its release, if it gets that far.
    async fn run_operation(&mut self) {
        let lock = format!("lock-{}", self.random.random_range(0..self.workload.locks));
        let owner = self.chance(50).then(|| fresh_nonce(&mut self.random));
        let mode = if self.chance(60) { LockMode::Exclusive } else { LockMode::Shared };
        let request = self.request(owner.clone(), mode);
        let Some(attempt) = self.acquire(&lock, &request).await else { return };
        if self.chance(10) {
            // As if the answer had been lost before the caller got it.
            self.call(&lock, &LockCall::Acquire(request.clone()), None).await;
        }
        let mut inner = None;
        if owner.is_some() && self.chance(40) {
            let mode = if self.chance(70) { mode } else { LockMode::Exclusive };
            let request = Acquire { wait: Duration::ZERO, ..self.request(owner, mode) };
            inner = self.acquire_once(&lock, &request).await;
        }
        self.work(&lock, &attempt, request.lease).await;
        for held in [inner, Some(attempt)].into_iter().flatten() {
            if self.is_careless() {
                // Crashed: its lease ends.
                return;
            }
            let release = LockCall::Release(held);
            self.call_until_answered(&lock, &release).await;
            if self.chance(10) {
                self.call(&lock, &release, None).await;
            }
        }
    }

    fn request(&mut self, owner: Option<Nonce>, mode: LockMode) -> Acquire {
        let lease = *self.workload.leases.choose(&mut self.random).expect("a lease");
        let wait = *self.workload.waits.choose(&mut self.random).expect("a wait");
        Acquire { nonce: fresh_nonce(&mut self.random), owner, mode, lease, wait, fair: self.chance(50) }
    }

    /// Requests a hold until it is granted, or the caller gives up, with or without a withdrawal.
    async fn acquire(&mut self, lock: &str, request: &Acquire) -> Option<Attempt> {
        let call = LockCall::Acquire(request.clone());
        for _ in 0..self.random.random_range(1..TRIES_MAX) {
            let hangs_up = self.is_careless().then(|| self.random.random_range(Duration::ZERO..self.workload.pace * 4));
            let reply = self.call(lock, &call, hangs_up).await;
            match reply {
                LockReply::Answered(LockAnswer::Granted { attempt, .. }) => return Some(attempt),
                LockReply::Answered(LockAnswer::Held { .. }) | LockReply::Unknown | LockReply::Refused => {}
                LockReply::Answered(_) => return None,
            }
            if self.stop.is_cancelled() {
                break;
            }
            self.rest().await;
        }
        if !self.is_careless() {
            self.call_until_answered(lock, &LockCall::Withdraw(request.nonce.clone())).await;
        }
        None
    }

    async fn acquire_once(&mut self, lock: &str, request: &Acquire) -> Option<Attempt> {
        let reply = self.call(lock, &LockCall::Acquire(request.clone()), None).await;
        if let LockReply::Answered(LockAnswer::Granted { attempt, .. }) = reply { Some(attempt) } else { None }
    }

    async fn work(&mut self, lock: &str, attempt: &Attempt, lease: Duration) {
        self.rest().await;
        if self.chance(20) {
            let lease = *self.workload.leases.choose(&mut self.random).expect("a lease");
            self.call(lock, &LockCall::Renew(attempt.clone(), lease), None).await;
            self.rest().await;
        }
        if self.is_careless() {
            // Paused, longer than its lease.
            self.pause(lease + self.workload.pace).await;
        }
    }
}

fn fresh_nonce(random: &mut SmallRng) -> Nonce {
    Nonce::from_bits(random.random())
}
