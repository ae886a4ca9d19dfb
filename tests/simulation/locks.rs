//! The callers of a world's locks at its gateways, and the check of their observations. Owners share, re-enter, queue,
//! renew, hang up and crash, while calls and replies are lost and gateways die.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{RecordChange, SharedRecord};
use oncegate_core::lock::{LockName, LockRecord};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_gateway::lock::{AcquireAnswer, AcquireCall, UnlockAnswer};
use oncegate_gateway::tenants::App;
use oncegate_gateway::{Failure, Gateway};
use oncegate_testkit::history::locks::workload::{LockService, LockWorkload};
use oncegate_testkit::history::locks::{Acquire, LockAnswer, LockCall, LockHistory, LockReply, Oracle, Rule};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::bugs::Bug;
use crate::clock::MachineClock;
use crate::reference::ensure;
use crate::stack::Host;
use crate::trace::{NO_KEY, Place};
use crate::world::World;

/// Unanswered calls arrive up to eight seconds later, after a deadline.
const ORACLE: Oracle =
    Oracle { skew: Duration::from_millis(2), late: Duration::from_secs(12), slack: Duration::from_millis(500) };

/// Callers of locks, and their observations.
pub(crate) struct LockCallers {
    world: Arc<World>,
    workload: LockWorkload,
    services: Vec<Arc<dyn LockService>>,
    history: LockHistory,
    stop: CancellationToken,
}

/// A gateway as the service of locks.
struct AtGateway {
    world: Arc<World>,
    hosts: Arc<Vec<Host>>,
    place: usize,
    app: Arc<App>,
    bug: Option<Bug>,
    planted: Arc<Mutex<Planted>>,
    stop: CancellationToken,
}

/// Memory of the planted bugs.
#[derive(Default)]
struct Planted {
    /// Attempts that were granted, by nonce.
    granted: HashMap<String, Attempt>,
    /// Fences that were counted, by lock, and how many processes the machines had started by then.
    fences: HashMap<String, u64>,
    runs: u32,
}

impl LockCallers {
    pub(crate) fn new(world: &Arc<World>, hosts: &Arc<Vec<Host>>, callers: u16, bug: Option<Bug>) -> Self {
        let (stop, planted) = (CancellationToken::new(), Arc::<Mutex<Planted>>::default());
        let retention = Retention::For(Duration::from_hours(1));
        let lease = Duration::from_secs(2);
        let terms = Terms { lease, retention, unknown_retention: retention, on_lease_end: LeaseEnd::Release };
        let app = Arc::new(App::for_tests("shop", &[], terms, Duration::from_secs(1)));
        let service = |place| {
            let (world, hosts, app, planted) = (world.clone(), hosts.clone(), app.clone(), planted.clone());
            Arc::new(AtGateway { world, hosts, place, app, bug, planted, stop: stop.clone() }) as Arc<dyn LockService>
        };
        let workload = LockWorkload {
            seed: world.rng.next_u64(),
            callers: callers.into(),
            locks: 6,
            leases: [300, 2_000, 8_000].map(Duration::from_millis).to_vec(),
            waits: [0, 300, 2_500].map(Duration::from_millis).to_vec(),
            pace: Duration::from_millis(60),
            careless: 6,
        };
        let history = LockHistory::new(Arc::new(MachineClock::new(world.time, Duration::ZERO)));
        Self { world: world.clone(), workload, services: (0..hosts.len()).map(service).collect(), history, stop }
    }

    /// Makes calls until the world has made its operations.
    pub(crate) async fn live(&self) {
        self.workload.clone().run(self.services.clone(), self.history.clone(), self.stop.clone()).await;
    }

    /// Requests every lock again, after all faults have ended, and checks the history.
    pub(crate) async fn audit(&self) {
        self.workload.request_every_lock(&self.services[0], &self.history).await;
        let checked = self.history.check(&ORACLE);
        let rule = checked.as_ref().err().map_or("", |(_, violation)| match violation.rule {
            Rule::Exclusion => "exclusion",
            Rule::Fence => "fence",
            Rule::Order => "order",
            Rule::Holds => "holds",
            Rule::Progress => "progress",
        });
        self.world.check(NO_KEY, ensure(checked.is_ok(), rule, || format!("{checked:?}")));
    }
}

#[async_trait]
impl LockService for AtGateway {
    async fn call(&self, lock: &str, call: &LockCall) -> LockReply {
        if !self.world.count() {
            self.stop.cancel();
        }
        let rng = &self.world.rng;
        sleep(rng.millis(0, 3)).await;
        let Some(running) = self.hosts[self.place].gateway() else { return LockReply::Refused };
        let planted = self.planted_call(lock, call);
        let answer = running.answer(ask(&running.gateway, &self.app, lock, &planted)).await;
        let mut reply = answer.unwrap_or(LockReply::Unknown);
        self.plant_answer(lock, call, &mut reply);
        if rng.percent(3) {
            // Lost before the caller got it.
            reply = LockReply::Unknown;
        }
        self.note(&reply);
        reply
    }
}

impl AtGateway {
    fn note(&self, reply: &LockReply) {
        let (what, number) = match reply {
            LockReply::Unknown => ("unknown", 0),
            LockReply::Refused => ("refused", 0),
            LockReply::Answered(answer) => match answer {
                LockAnswer::Granted { fence, repeated: false, .. } => ("granted", *fence),
                LockAnswer::Granted { fence, .. } => ("repeated", *fence),
                LockAnswer::Held { position, .. } => ("held", position.unwrap_or_default() as u64),
                LockAnswer::UpgradeRefused => ("upgrade refused", 0),
                LockAnswer::Withdrawn => ("withdrawn", 0),
                LockAnswer::Released { holds, .. } => ("released", *holds as u64),
                LockAnswer::NotHeld => ("not held", 0),
                LockAnswer::Renewed { .. } => ("renewed", 0),
            },
        };
        *self.world.known().tally.entry(("lock", what)).or_default() += 1;
        self.world.announce(Place::Network(u16::try_from(self.place).expect("few gateways")), what, number);
    }

    /// Returns the call as a gateway with [`Bug::LockCounter`] understands it: each one counts, also a repeated one.
    fn planted_call(&self, lock: &str, call: &LockCall) -> LockCall {
        let LockCall::Acquire(request) = call else { return call.clone() };
        let is_repeated = self.planted().granted.contains_key(&format!("{lock} {}", request.nonce.as_str()));
        if self.bug != Some(Bug::LockCounter) || request.owner.is_none() || !is_repeated {
            return call.clone();
        }
        LockCall::Acquire(Acquire { nonce: Nonce::from_bits(self.world.rng.next_u64()), ..request.clone() })
    }

    fn plant_answer(&self, lock: &str, call: &LockCall, reply: &mut LockReply) {
        let LockCall::Acquire(request) = call else { return };
        let LockReply::Answered(LockAnswer::Granted { attempt, fence, repeated, .. }) = reply else { return };
        let mut planted = self.planted();
        match self.bug {
            Some(Bug::LockCounter) => {
                let nonce = format!("{lock} {}", request.nonce.as_str());
                *repeated |= planted.granted.contains_key(&nonce);
                *attempt = planted.granted.entry(nonce).or_insert_with(|| attempt.clone()).clone();
            }
            Some(Bug::LockFenceRestarts) => {
                let runs = self.hosts.iter().filter_map(Host::gateway).map(|running| running.run).sum();
                if runs != planted.runs {
                    planted.runs = runs;
                    planted.fences.clear();
                }
                let counted = planted.fences.entry(lock.to_owned()).or_default();
                *counted += 1;
                *fence = *counted;
            }
            _ => {}
        }
    }

    fn planted(&self) -> std::sync::MutexGuard<'_, Planted> {
        self.planted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(gateway: &Gateway, app: &App, lock: &str, call: &LockCall) -> LockReply {
    let name: LockName = lock.parse().unwrap();
    let answer = match call {
        LockCall::Acquire(Acquire { nonce, owner, mode, lease, wait, fair }) => {
            let (owner, nonce, lease) = (owner.clone(), Some(nonce.clone()), Some(*lease));
            let call = AcquireCall {
                name,
                mode: *mode,
                limit: None,
                owner,
                caller: None,
                nonce,
                lease,
                wait: *wait,
                fair: *fair,
            };
            gateway.acquire_lock(app, call).await.map(|answer| match answer {
                AcquireAnswer::Granted(granted) => LockReply::Answered(LockAnswer::Granted {
                    attempt: granted.attempt,
                    fence: granted.fence,
                    holds: granted.holds,
                    lease: Duration::from_millis(granted.lease_ms),
                    repeated: granted.repeated,
                    waited: granted.waited,
                }),
                AcquireAnswer::Held(held) => {
                    LockReply::Answered(LockAnswer::Held { position: held.position, waited: held.waited })
                }
                AcquireAnswer::UpgradeRefused => LockReply::Answered(LockAnswer::UpgradeRefused),
                AcquireAnswer::Withdrawn => LockReply::Answered(LockAnswer::Withdrawn),
                AcquireAnswer::Full(_) => LockReply::Refused,
                AcquireAnswer::LimitDiffers(used) => panic!("no request has a limit, and the lock has {used:?}"),
                AcquireAnswer::NonceReused => panic!("each nonce has one owner and one mode"),
            })
        }
        LockCall::Release(attempt) => {
            gateway.release_lock(app, &name, attempt.clone()).await.map(|answer| unlocked(&answer))
        }
        LockCall::Withdraw(nonce) => gateway.withdraw_lock(app, &name, nonce).await.map(|answer| unlocked(&answer)),
        LockCall::Renew(attempt, lease) => {
            let renewed = gateway.renew_lock(app, &name, attempt.clone(), Some(*lease)).await;
            renewed.map(|renewed| {
                LockReply::Answered(renewed.map_or(LockAnswer::NotHeld, |(lease, _)| LockAnswer::Renewed { lease }))
            })
        }
    };
    answer.unwrap_or_else(|why| if matches!(why, Failure::Store(_)) { LockReply::Refused } else { LockReply::Unknown })
}

fn unlocked(answer: &UnlockAnswer) -> LockReply {
    match answer {
        UnlockAnswer::Done { holds, late, .. } => {
            LockReply::Answered(LockAnswer::Released { holds: *holds, late: *late })
        }
        UnlockAnswer::NotHeld => LockReply::Answered(LockAnswer::NotHeld),
        UnlockAnswer::Full => LockReply::Refused,
    }
}

/// Returns a record as a store with [`Bug::LockQueueIgnored`] shows it: without its queue.
pub(crate) fn without_queue(stored: &SharedRecord) -> SharedRecord {
    rewritten(stored, |record| record.tickets.clear())
}

/// Returns a change as a store with [`Bug::LockTicketOutlivesOwner`] makes it: only a grant takes a ticket out of the queue.
pub(crate) fn with_old_tickets(change: &RecordChange, stands: Option<&SharedRecord>) -> RecordChange {
    let Some(before) = stands.map(|stored| LockRecord::decode(stored.value()).expect("a lock")) else {
        return change.clone();
    };
    let new = rewritten(&change.new, |record| {
        let kept = before.tickets.iter().filter(|old| {
            let is_granted = record.holds.iter().any(|hold| hold.nonce == old.nonce);
            !is_granted && !record.tickets.iter().any(|ticket| ticket.nonce == old.nonce)
        });
        let kept: Vec<_> = kept.cloned().collect();
        record.tickets.splice(0..0, kept);
        let far = Timestamp::from_micros(u64::MAX / 2);
        for ticket in &mut record.tickets {
            ticket.ends_at = far;
        }
        record.turn_at = far;
    });
    RecordChange { new, ..change.clone() }
}

/// Changes a lock and keeps the version of its record.
fn rewritten(stored: &SharedRecord, change: impl FnOnce(&mut LockRecord)) -> SharedRecord {
    let mut record = LockRecord::decode(stored.value()).expect("a lock");
    change(&mut record);
    let version = stored.version()[1..].try_into().expect("8 bytes");
    SharedRecord::versioned(u64::from_be_bytes(version), &record.encode()).expect("a short record")
}
