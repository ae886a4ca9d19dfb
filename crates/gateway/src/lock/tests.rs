//! Locks of two gateways over one store, which may lose requests and replies. The history of each run is judged: exclusion, fences
//! that rise, and the order of fair requests.

use std::sync::Mutex;

use oncegate_core::attempt::{Issuer, SystemEntropy};
use oncegate_core::clock::Clock;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::faulty::{Fault, Faulty};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{Determinate, Engine};
use oncegate_core::limits::Limits;
use oncegate_core::terms::OnDataLoss;
use tokio::time::sleep;

use super::*;
use crate::Engines;
use crate::resilience::call_guard::CallGuard;
use crate::resilience::chain::{Chain, Setup};
use crate::resilience::tests::{PausedClock, Steady, metric};

const MS: Duration = Duration::from_millis(1);

struct World {
    clock: Arc<dyn Clock>,
    store: Arc<dyn Engine>,
    app: App,
}

impl World {
    fn new() -> Self {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let store = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        let app = App::for_tests("shop", &[], fresh_claim().terms, Duration::from_secs(1));
        Self { clock, store, app }
    }

    fn gateway(&self, store: Arc<dyn Engine>) -> Arc<Gateway> {
        let engines = Engines::of_one("default", store, &self.clock, Arc::new(SystemEntropy));
        let issuer = Issuer::new(self.clock.clone(), Arc::new(SystemEntropy));
        Arc::new(Gateway::new(engines, issuer, self.clock.clone(), &Limits::default()))
    }

    /// Acquires the free lock.
    async fn hold(&self, gateway: &Gateway) -> GrantedLock {
        granted(gateway.acquire_lock(&self.app, call(None, Duration::ZERO, false)).await)
    }

    /// Returns a store that may lose its data, a chain that freezes grants then, and a gateway on it.
    async fn freezing(&self) -> (Arc<Faulty>, Arc<Chain>, Gateway) {
        let store = Arc::new(Faulty::always(self.store.clone(), Fault::None));
        let setup = Setup {
            on_data_loss: OnDataLoss::Freeze,
            lease_max: Duration::from_secs(30),
            ..Setup::of_one("default", store.clone(), self.clock.clone(), Arc::new(SystemEntropy))
        };
        let chain = Arc::new(Chain::start(setup));
        let mut engines = Engines::of_one("default", store.clone(), &self.clock, Arc::new(SystemEntropy));
        engines.chains.get_mut("default").unwrap().chain = chain.clone();
        let issuer = Issuer::new(self.clock.clone(), Arc::new(SystemEntropy));
        let gateway = Gateway::new(engines, issuer, self.clock.clone(), &Limits::default());
        // The store is new to the chain, which begins with a freeze.
        sleep(Duration::from_secs(31)).await;
        (store, chain, gateway)
    }

    /// Returns a gateway that repeats a call after 30 ms, and the control of its store.
    fn guarded(&self) -> (Arc<Faulty>, Arc<Gateway>) {
        let faulty = Arc::new(Faulty::always(self.store.clone(), Fault::None));
        let (second, entropy) = (Duration::from_secs(1), Arc::new(Steady(30_000)));
        let guard = CallGuard::new(faulty.clone(), "only", second, self.clock.clone(), entropy);
        (faulty, self.gateway(Arc::new(guard)))
    }
}

fn name() -> LockName {
    "a".parse().unwrap()
}

fn call(nonce: Option<&str>, wait: Duration, fair: bool) -> AcquireCall {
    AcquireCall {
        name: name(),
        mode: LockMode::Exclusive,
        limit: None,
        owner: None,
        caller: None,
        nonce: nonce.map(|nonce| nonce.parse().unwrap()),
        lease: Some(Duration::from_secs(20)),
        wait,
        fair,
    }
}

fn granted(answer: Result<AcquireAnswer, Failure>) -> GrantedLock {
    match answer {
        Ok(AcquireAnswer::Granted(granted)) => granted,
        other => panic!("expected a grant, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_by_one_and_a_release_elsewhere_reaches_the_caller_that_waits() {
    let world = World::new();
    let (here, there) = (world.gateway(world.store.clone()), world.gateway(world.store.clone()));
    let first = world.hold(&here).await;
    let refused = there.acquire_lock(&world.app, call(None, Duration::ZERO, false)).await;
    assert!(matches!(refused, Ok(AcquireAnswer::Held(HeldLock { holders: 1, .. }))), "{refused:?}");
    let waits = there.acquire_lock(&world.app, call(None, Duration::from_secs(10), false));
    let release = async {
        sleep(500 * MS).await;
        here.release_lock(&world.app, &name(), first.attempt.clone()).await
    };
    let (second, released) = tokio::join!(waits, release);
    assert!(matches!(released, Ok(UnlockAnswer::Done { holds: 0, late: Some(false), .. })), "{released:?}");
    let second = granted(second);
    assert!(second.fence > first.fence);
    assert!((500..520).contains(&second.waited.as_millis()), "notified at once: {:?}", second.waited);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time_and_the_queue_keeps_its_place() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    let first = world.hold(&gateway).await;
    let fair = || call(Some("aaaaaaaaaaaaaaaa"), 2000 * MS, true);
    let held = gateway.acquire_lock(&world.app, fair()).await;
    assert!(matches!(held, Ok(AcquireAnswer::Held(HeldLock { position: Some(1), .. }))), "{held:?}");
    gateway.release_lock(&world.app, &name(), first.attempt).await.unwrap();
    let barging = gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)).await;
    assert!(matches!(barging, Ok(AcquireAnswer::Held(HeldLock { mode: None, waiting: 0, .. }))), "{barging:?}");
    granted(gateway.acquire_lock(&world.app, fair()).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_while_half_of_its_lease_is_left() {
    let world = World::new();
    let gateway = world.gateway(Arc::new(Faulty::always(world.store.clone(), Fault::Silent)));
    for (lease, answered_in) in [(400 * MS, 200 * MS), (4000 * MS, 1000 * MS)] {
        let started = world.clock.monotonic();
        let request = AcquireCall { lease: Some(lease), ..call(None, Duration::ZERO, false) };
        let answer = gateway.acquire_lock(&world.app, request).await;
        let took = world.clock.monotonic().saturating_sub(started);
        assert!(answer.is_err() && took <= answered_in, "lease {lease:?}: {answer:?} after {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_gone_is_not_granted_and_leaves_the_queue() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    let first = world.hold(&gateway).await;
    let gone = gateway.acquire_lock(&world.app, call(Some("gggggggggggggggg"), Duration::from_secs(10), true));
    assert!(tokio::time::timeout(300 * MS, gone).await.is_err());
    sleep(MS).await;
    gateway.release_lock(&world.app, &name(), first.attempt).await.unwrap();
    let next = world.hold(&gateway).await;
    assert_eq!(next.holds, 1, "it does not wait for the caller that has left");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_left_is_not_listed_as_waiting() {
    for fair in [false, true] {
        let world = World::new();
        let gateway = world.gateway(world.store.clone());
        world.hold(&gateway).await;
        let leaves = gateway.acquire_lock(&world.app, call(None, Duration::from_secs(10), fair));
        let looks = async {
            sleep(200 * MS).await;
            gateway.locks.waited_for().len()
        };
        let (left, waiting) = tokio::join!(tokio::time::timeout(300 * MS, leaves), looks);
        assert!(left.is_err() && waiting == 1, "fair = {fair}: {waiting} waits");
        sleep(MS).await;
        assert_eq!(gateway.locks.waited_for(), [], "fair = {fair}");
    }
}

/// Its ticket expires, so nothing is repeated while the store is out.
#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_the_store_is_out_is_not_followed_up() {
    let world = World::new();
    let faulty = Arc::new(Faulty::always(world.store.clone(), Fault::None));
    let gateway = world.gateway(faulty.clone());
    let first = world.hold(&gateway).await;
    let waits = gateway.acquire_lock(&world.app, call(Some("aaaaaaaaaaaaaaaa"), Duration::from_secs(10), true));
    assert!(tokio::time::timeout(100 * MS, waits).await.is_err(), "it waits until it goes");
    faulty.set(Fault::Refused);
    sleep(Duration::from_mins(1)).await;
    faulty.set(Fault::None);
    let released = gateway.release_lock(&world.app, &name(), first.attempt).await;
    assert!(matches!(released, Ok(UnlockAnswer::Done { holds: 0, .. } | UnlockAnswer::NotHeld)), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn draining_ends_all_waits() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    world.hold(&gateway).await;
    let waits = gateway.acquire_lock(&world.app, call(None, Duration::from_secs(10), false));
    let drains = async {
        sleep(200 * MS).await;
        gateway.locks.drain();
    };
    let (held, ()) = tokio::join!(waits, drains);
    let Ok(AcquireAnswer::Held(held)) = held else { panic!("{held:?}") };
    assert!(held.waited < 300 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_out_grants_nothing_and_says_so() {
    let world = World::new();
    let faulty = Arc::new(Faulty::always(world.store.clone(), Fault::Refused));
    let gateway = world.gateway(faulty.clone());
    let refused = gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)).await;
    assert!(matches!(refused, Err(Failure::Store(Determinate::Unavailable(_)))), "{refused:?}");
    faulty.set(Fault::None);
    let first = granted(gateway.acquire_lock(&world.app, call(Some("nnnnnnnnnnnnnnnn"), Duration::ZERO, false)).await);
    faulty.set(Fault::ReplyLost);
    let unknown = gateway.release_lock(&world.app, &name(), first.attempt.clone()).await;
    assert!(matches!(unknown, Err(Failure::OutcomeUnknown(None))), "{unknown:?}");
    let unknown = gateway.acquire_lock(&world.app, call(Some("mmmmmmmmmmmmmmmm"), Duration::ZERO, false)).await;
    assert!(unknown.is_err(), "{unknown:?}");
    faulty.set(Fault::None);
    let again = gateway.release_lock(&world.app, &name(), first.attempt).await;
    assert!(matches!(again, Ok(UnlockAnswer::NotHeld)), "the first one has released it: {again:?}");
}

/// The guard repeats the release. Another caller holds the lock by then, so it is not known whether the first try has ended the
/// hold, or its lease.
#[tokio::test(start_paused = true)]
async fn a_release_whose_first_reply_was_lost_is_done_and_perhaps_late() {
    let world = World::new();
    let (faulty, gateway) = world.guarded();
    let held = world.hold(&gateway).await;
    faulty.set(Fault::ReplyLost);
    let other_gateway = world.gateway(world.store.clone());
    let take = async {
        sleep(10 * MS).await;
        faulty.set(Fault::None);
        world.hold(&other_gateway).await
    };
    let lock_name = name();
    let (released, _) = tokio::join!(gateway.release_lock(&world.app, &lock_name, held.attempt.clone()), take);
    let is_done = matches!(released, Ok(UnlockAnswer::Done { holds: 0, fence: None, late: None }));
    assert!(is_done, "{released:?}");
    let again = gateway.release_lock(&world.app, &lock_name, held.attempt).await;
    assert!(matches!(again, Ok(UnlockAnswer::NotHeld)), "{again:?}");
}

/// The first try was stored, and an operator has ended its hold. Then the store refuses the second try of the round.
#[tokio::test(start_paused = true)]
async fn an_acquisition_that_may_have_been_stored_is_uncertain_although_a_later_change_certainly_fails() {
    let world = World::new();
    let ((faulty, gateway), other) = (world.guarded(), world.gateway(world.store.clone()));
    let held = world.hold(&gateway).await;
    gateway.release_lock(&world.app, &name(), held.attempt).await.unwrap();
    faulty.set(Fault::ReplyLost);
    let meanwhile = async {
        sleep(10 * MS).await;
        assert_eq!(other.evict_lock(&world.app, &name(), None).await.unwrap(), 1);
        faulty.set(Fault::Delayed(20 * MS));
        sleep(30 * MS).await;
        faulty.set(Fault::Refused);
    };
    let (acquired, ()) = tokio::join!(gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)), meanwhile);
    assert!(matches!(acquired, Err(Failure::OutcomeUnknown(Some(_)))), "{acquired:?}");
}

/// The first try may have been stored, the second one was not, and the third is refused.
#[tokio::test(start_paused = true)]
async fn an_acquisition_stays_uncertain_after_a_try_that_certainly_was_not_stored() {
    let world = World::new();
    let ((faulty, gateway), other) = (world.guarded(), world.gateway(world.store.clone()));
    let held = world.hold(&gateway).await;
    gateway.release_lock(&world.app, &name(), held.attempt).await.unwrap();
    faulty.set(Fault::ReplyLost);
    let lock_name = name();
    let meanwhile = async {
        sleep(10 * MS).await;
        assert_eq!(other.evict_lock(&world.app, &lock_name, None).await.unwrap(), 1);
        faulty.set(Fault::Delayed(20 * MS));
        // The retry has found that, and its answer is in flight. The answer is outdated when it arrives.
        sleep(30 * MS).await;
        let held = world.hold(&other).await;
        other.release_lock(&world.app, &lock_name, held.attempt).await.unwrap();
        sleep(20 * MS).await;
        faulty.set(Fault::Refused);
    };
    let (acquired, ()) = tokio::join!(gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)), meanwhile);
    assert!(matches!(acquired, Err(Failure::OutcomeUnknown(Some(_)))), "{acquired:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_counted_from_before_the_store_is_called() {
    let world = World::new();
    let faulty = Arc::new(Faulty::always(world.store.clone(), Fault::None));
    let gateway = world.gateway(faulty.clone());
    let held = world.hold(&gateway).await;
    assert_eq!(held.lease_ms, 20_000);
    faulty.set(Fault::Delayed(100 * MS));
    let lease = Some(Duration::from_secs(20));
    let renewed = gateway.renew_lock(&world.app, &name(), held.attempt.clone(), lease).await.unwrap();
    assert_eq!(renewed.map(|(left, _)| left), Some(Duration::from_millis(19_900)));
    gateway.release_lock(&world.app, &name(), held.attempt).await.unwrap();
    let again = world.hold(&gateway).await;
    assert!(again.lease_ms <= 19_900, "its answer was 100 ms on its way: {}", again.lease_ms);
}

/// A second try is useless: there was no grant that it could leave out.
#[tokio::test(start_paused = true)]
async fn a_release_that_the_store_refuses_fails_at_once() {
    let world = World::new();
    let faulty = Arc::new(Faulty::always(world.store.clone(), Fault::None));
    let gateway = world.gateway(faulty.clone());
    let held = world.hold(&gateway).await;
    faulty.set(Fault::Refused);
    let before = world.clock.monotonic();
    let refused = gateway.release_lock(&world.app, &name(), held.attempt).await;
    assert!(matches!(refused, Err(Failure::Store(Determinate::Unavailable(_)))), "{refused:?}");
    assert_eq!(world.clock.monotonic(), before);
}

/// Grants and releases that the callers of a run saw, in the order of their answers.
#[derive(Default)]
struct History {
    /// The nonce that is known to hold the lock.
    holder: Option<String>,
    fence: u64,
    grants: usize,
}

impl History {
    fn granted(&mut self, caller: &str, fence: u64) {
        assert_eq!(self.holder, None, "{caller} was granted what another one holds");
        assert!(fence > self.fence, "fences rise");
        (self.holder, self.fence) = (Some(caller.to_owned()), fence);
        self.grants += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn with_lost_requests_and_replies_a_lock_is_held_by_one_and_fences_rise() {
    for seed in 0..40 {
        let world = World::new();
        let history = Mutex::new(History::default());
        let gateways: Vec<_> =
            (0..2).map(|at| world.gateway(Arc::new(Faulty::new(world.store.clone(), seed * 2 + at, 0.2)))).collect();
        let callers = (0..8_usize).map(|caller| {
            let (gateway, world, history) = (&gateways[caller % 2], &world, &history);
            async move {
                for round in 0..4 {
                    let nonce = format!("nonce-{caller}-{round}-00000000");
                    // With the same nonce until there is an answer: the lease is longer than the run.
                    let granted = loop {
                        let fair = caller % 3 == 0;
                        match gateway.acquire_lock(&world.app, call(Some(&nonce), 500 * MS, fair)).await {
                            Ok(AcquireAnswer::Granted(granted)) => break granted,
                            Ok(AcquireAnswer::Held(_)) | Err(_) => sleep(10 * MS).await,
                            other => panic!("seed {seed}: {other:?}"),
                        }
                    };
                    history.lock().unwrap().granted(&nonce, granted.fence);
                    sleep(5 * MS).await;
                    // Before the release is sent: it may take effect although its reply is lost.
                    history.lock().unwrap().holder = None;
                    while gateway.release_lock(&world.app, &name(), granted.attempt.clone()).await.is_err() {
                        sleep(10 * MS).await;
                    }
                }
            }
        });
        futures_util::future::join_all(callers).await;
        assert_eq!(history.into_inner().unwrap().grants, 32, "seed {seed}");
    }
}

/// Even where each change comes too late, because the other gateway knows the state and changes it in each round trip.
#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_is_not_refused_for_contention() {
    let world = World::new();
    let callers = (0..2).map(|_| {
        let store = Faulty::always(world.store.clone(), Fault::Delayed(MS));
        let (gateway, world) = (world.gateway(Arc::new(store)), &world);
        async move {
            while world.clock.monotonic() < Duration::from_secs(30) {
                match gateway.acquire_lock(&world.app, call(None, Duration::from_secs(5), false)).await {
                    Ok(AcquireAnswer::Granted(granted)) => {
                        gateway.release_lock(&world.app, &name(), granted.attempt).await.unwrap();
                    }
                    Ok(AcquireAnswer::Held(held)) => assert!(held.waited >= 4900 * MS, "{held:?}"),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    futures_util::future::join_all(callers).await;
}

#[tokio::test(start_paused = true)]
async fn fair_callers_of_two_gateways_are_granted_in_the_order_in_which_they_first_asked() {
    let world = World::new();
    let gateways = [world.gateway(world.store.clone()), world.gateway(world.store.clone())];
    let first = world.hold(&gateways[0]).await;
    let order = Mutex::new(Vec::new());
    let waits = (0..10_usize).map(|caller| {
        let (gateway, world, order) = (&gateways[caller % 2], &world, &order);
        async move {
            sleep(20 * MS * u32::try_from(caller).unwrap()).await;
            let granted = granted(gateway.acquire_lock(&world.app, call(None, Duration::from_secs(25), true)).await);
            order.lock().unwrap().push(caller);
            sleep(30 * MS).await;
            gateway.release_lock(&world.app, &name(), granted.attempt).await.unwrap();
        }
    });
    let releases = async {
        sleep(500 * MS).await;
        gateways[1].release_lock(&world.app, &name(), first.attempt).await.unwrap();
    };
    tokio::join!(futures_util::future::join_all(waits), releases);
    assert_eq!(order.into_inner().unwrap(), (0..10).collect::<Vec<_>>());
}

/// A caller that requests a lock again as soon as it has released it needs no notification, and one call to the store less.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_uses_a_lock_all_the_time_leaves_it_to_others_now_and_then() {
    for fair in [false, true] {
        let world = World::new();
        let slow = || Arc::new(Faulty::always(world.store.clone(), Fault::Delayed(2 * MS)));
        let gateways = [world.gateway(slow()), world.gateway(slow())];
        let holders = Mutex::new(Vec::new());
        let callers = (0..2).map(|caller: usize| {
            let (gateway, world, holders) = (&gateways[caller], &world, &holders);
            async move {
                sleep(200 * MS * u32::try_from(caller).unwrap()).await;
                while world.clock.monotonic() < Duration::from_secs(5) {
                    let call = call(None, Duration::from_secs(25), fair);
                    let granted = granted(gateway.acquire_lock(&world.app, call).await);
                    holders.lock().unwrap().push(caller);
                    gateway.release_lock(&world.app, &name(), granted.attempt).await.unwrap();
                }
            }
        });
        futures_util::future::join_all(callers).await;
        let holders = holders.into_inner().unwrap();
        let longest = holders.chunk_by(|one, next| one == next).map(<[_]>::len).max();
        let hand_overs = holders.chunk_by(|one, next| one == next).count();
        assert!(hand_overs * 2 > holders.len(), "{hand_overs} of {} grants, fair: {fair}, {longest:?}", holders.len());
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_gave_up_cost_the_next_one_a_second_together_and_do_not_count_as_waiting() {
    for (gave_up, gateways) in [(1, 1), (12, 1), (12, 2)] {
        let world = World::new();
        let gateways: Vec<_> = (0..gateways).map(|_| world.gateway(world.store.clone())).collect();
        let at = |number: usize| &gateways[number % gateways.len()];
        let first = granted(at(0).acquire_lock(&world.app, call(None, Duration::ZERO, false)).await);
        let calls = (0..gave_up).map(|number| at(number).acquire_lock(&world.app, call(None, 400 * MS, true)));
        for answer in futures_util::future::join_all(calls).await {
            assert!(matches!(answer, Ok(AcquireAnswer::Held(_))), "{answer:?}");
        }
        let seen = at(0).view_lock(&world.app, &name()).await.unwrap().unwrap();
        assert_eq!((seen.waiting(), seen.record.tickets.len()), (0, gave_up));
        let waits = at(1).acquire_lock(&world.app, call(None, Duration::from_secs(10), true));
        let release = async {
            sleep(500 * MS).await;
            let seen = at(0).view_lock(&world.app, &name()).await.unwrap().unwrap();
            assert_eq!((seen.waiting(), seen.record.tickets.len()), (1, gave_up + 1));
            at(0).release_lock(&world.app, &name(), first.attempt).await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, release);
        let waited = granted(next).waited.as_millis();
        assert!((1500..1600).contains(&waited), "{gave_up} gave up: {waited} ms");
    }
}

/// Requests that come together are one change of the lock.
#[tokio::test(start_paused = true)]
async fn what_ends_a_hold_comes_before_a_request_that_came_first() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    let first = world.hold(&gateway).await;
    let lock_name = name();
    let (second, released) = tokio::join!(
        gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)),
        gateway.release_lock(&world.app, &lock_name, first.attempt),
    );
    released.unwrap();
    granted(second);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_released_while_nothing_may_be_granted() {
    let world = World::new();
    let (store, _chain, gateway) = world.freezing().await;
    let first = world.hold(&gateway).await;
    store.lose_data();
    let lock_name = name();
    let (second, released) = tokio::join!(
        gateway.acquire_lock(&world.app, call(None, Duration::ZERO, false)),
        gateway.release_lock(&world.app, &lock_name, first.attempt),
    );
    assert!(matches!(second, Err(Failure::Store(Determinate::Paused(_)))), "{second:?}");
    assert!(matches!(released, Ok(UnlockAnswer::Done { holds: 0, .. })), "{released:?}");
}

/// The store may have lost the hold of another attempt. What it still holds can be ended.
#[tokio::test(start_paused = true)]
async fn a_hold_is_not_granted_again_during_a_grant_freeze() {
    let world = World::new();
    let (store, _chain, gateway) = world.freezing().await;
    let repeat = || gateway.acquire_lock(&world.app, call(Some("aaaaaaaaaaaaaaaa"), Duration::ZERO, false));
    let first = granted(repeat().await);
    let again = granted(repeat().await);
    assert_eq!((again.attempt.clone(), again.repeated), (first.attempt.clone(), true));
    store.lose_data();
    let lock_name = name();
    let (refused, renewed) =
        tokio::join!(repeat(), gateway.renew_lock(&world.app, &lock_name, first.attempt.clone(), None));
    assert!(matches!(refused, Err(Failure::Store(Determinate::Paused(_)))), "{refused:?}");
    renewed.unwrap().expect("it is held");
    assert!(matches!(repeat().await, Err(Failure::Store(Determinate::Paused(_)))), "alone, too");
}

#[tokio::test(start_paused = true)]
async fn a_freeze_lasts_for_the_longest_lease_of_a_lock() {
    let world = World::new();
    let (store, chain, gateway) = world.freezing().await;
    let (hour, day) = (Duration::from_hours(1), Duration::from_hours(24));
    let long = AcquireCall { lease: Some(hour), ..call(None, Duration::ZERO, false) };
    let held = granted(gateway.acquire_lock(&world.app, long).await);
    store.lose_data();
    assert_eq!(chain.status().frozen_for, Some(hour), "the holder may still run");
    sleep(hour).await;
    let held_again = world.hold(&gateway).await;
    gateway.renew_lock(&world.app, &name(), held_again.attempt, Some(day)).await.unwrap().expect("it is held");
    assert_ne!(held.fence, held_again.fence);
    store.lose_data();
    assert_eq!(chain.status().frozen_for, Some(day));
}

/// Until then it is in flight, as a call that does not wait.
#[tokio::test(start_paused = true)]
async fn a_call_begins_to_wait_when_its_lock_was_found_held() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    let acquire = |wait: Duration| {
        let (begins, begun) = oneshot::channel();
        (gateway.acquire_lock_or_wait(&world.app, call(None, wait, false), begins), begun)
    };
    let (acquired, begun) = acquire(Duration::from_secs(10));
    let first = granted(acquired.await);
    assert!(begun.await.is_err(), "it was free");
    let (held, begun) = acquire(Duration::ZERO);
    assert!(matches!(held.await, Ok(AcquireAnswer::Held(_))));
    assert!(begun.await.is_err(), "the call does not wait");
    let (waits, begun) = acquire(Duration::from_secs(10));
    let lock_name = name();
    let release = async {
        begun.await.unwrap();
        gateway.release_lock(&world.app, &lock_name, first.attempt).await
    };
    let (next, released) = tokio::join!(waits, release);
    released.unwrap();
    granted(next);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_begins_no_record_beyond_the_bound_and_ends_a_hold_there() {
    let world = World::new();
    let (here, there) = (world.gateway(world.store.clone()), world.gateway(world.store.clone()));
    for number in 0..NAMES_MAX {
        granted(here.acquire_lock(&world.app, named(&format!("n{number}"))).await);
    }
    let (lock_name, nonce) = (name(), "aaaaaaaaaaaaaaaa".parse().unwrap());
    let withdraw = || here.withdraw_lock(&world.app, &lock_name, &nonce);
    let record = record_name(&world.app.key, &lock_name);
    let is_kept = async || world.store.get_record(&record, Duration::from_secs(1)).await.unwrap().record.is_some();
    assert!(matches!(withdraw().await, Ok(UnlockAnswer::NotHeld)));
    assert!(!is_kept().await);
    granted(there.acquire_lock(&world.app, call(Some("aaaaaaaaaaaaaaaa"), Duration::ZERO, false)).await);
    let withdrawn = withdraw().await;
    assert!(matches!(withdrawn, Ok(UnlockAnswer::Done { holds: 0, .. })), "{withdrawn:?}");
    assert!(is_kept().await);
}

fn named(name: &str) -> AcquireCall {
    AcquireCall { name: name.parse().unwrap(), ..call(None, Duration::ZERO, false) }
}

#[tokio::test(start_paused = true)]
async fn a_list_has_the_locks_that_are_held_or_waited_for_in_pages() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    for name in ["a", "b", "c", "d", "e"] {
        let held = granted(gateway.acquire_lock(&world.app, named(name)).await);
        if ["b", "e"].contains(&name) {
            gateway.release_lock(&world.app, &held.name, held.attempt).await.unwrap();
        }
    }
    // A free lock with waiting callers.
    let held = granted(gateway.acquire_lock(&world.app, named("f")).await);
    let fair = AcquireCall { fair: true, nonce: Some("aaaaaaaaaaaaaaaa".parse().unwrap()), ..named("f") };
    assert!(matches!(gateway.acquire_lock(&world.app, fair).await, Ok(AcquireAnswer::Held(_))));
    gateway.release_lock(&world.app, &held.name, held.attempt).await.unwrap();
    let list = async |after: Option<&str>, limit| {
        let after = after.map(|name| name.parse().unwrap());
        let listed = gateway.list_locks(&world.app, after, limit).await.unwrap();
        listed.iter().map(|lock| lock.name.to_string()).collect::<String>()
    };
    assert_eq!(list(None, 10).await, "acdf");
    assert_eq!(list(None, 2).await, "ac");
    assert_eq!(list(None, 0).await, "");
    assert_eq!(list(Some("c"), 1).await, "d");
    assert_eq!(list(Some("d"), 4).await, "f");
}

#[tokio::test(start_paused = true)]
async fn a_release_says_how_many_holds_are_left_and_too_many_withdrawn_nonces_are_refused() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    let owned =
        || AcquireCall { owner: Some("owner-0123456789".parse().unwrap()), ..call(None, Duration::ZERO, false) };
    let [first, second] = [owned(), owned()].map(|call| gateway.acquire_lock(&world.app, call));
    let (first, second) = (granted(first.await), granted(second.await));
    assert_eq!((first.holds, second.holds), (1, 2));
    let released = gateway.release_lock(&world.app, &name(), first.attempt).await;
    assert!(matches!(released, Ok(UnlockAnswer::Done { holds: 1, fence: Some(_), .. })), "{released:?}");
    let released = gateway.release_lock(&world.app, &name(), second.attempt).await;
    assert!(matches!(released, Ok(UnlockAnswer::Done { holds: 0, fence: None, .. })), "{released:?}");
    let mut withdrawn = 0;
    let full = loop {
        let nonce = format!("nonce-{withdrawn:010}").parse().unwrap();
        match gateway.withdraw_lock(&world.app, &name(), &nonce).await {
            Ok(UnlockAnswer::Full) => break withdrawn,
            answer => drop(answer.unwrap()),
        }
        withdrawn += 1;
        assert!(withdrawn < 2000);
    };
    assert_eq!(full, 1000);
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_queue_is_told_to_come_back_sooner() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    world.hold(&gateway).await;
    let mut retry_after = Vec::new();
    for nonce in ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"] {
        match gateway.acquire_lock(&world.app, call(Some(nonce), Duration::ZERO, true)).await {
            Ok(AcquireAnswer::Held(held)) => retry_after.push(held.retry_after),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(retry_after, [HEAD_POLL, POLL]);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_and_a_list_show_holders_and_an_operator_ends_holds() {
    let world = World::new();
    let gateway = world.gateway(world.store.clone());
    assert!(gateway.view_lock(&world.app, &name()).await.unwrap().is_none());
    let first = world.hold(&gateway).await;
    let seen = gateway.view_lock(&world.app, &name()).await.unwrap().unwrap();
    assert_eq!((seen.record.holds.len(), seen.record.fence), (1, first.fence));
    let listed = gateway.list_locks(&world.app, None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|lock| lock.name.clone()).collect::<Vec<_>>(), [name()]);
    let shown = seen.record.holds[0].nonce.shown();
    assert_eq!(gateway.evict_lock(&world.app, &name(), Some("00000000".into())).await.unwrap(), 0);
    assert_eq!(gateway.evict_lock(&world.app, &name(), Some(shown)).await.unwrap(), 1);
    let renewed = gateway.renew_lock(&world.app, &name(), first.attempt, None).await;
    assert!(matches!(renewed, Ok(None)), "{renewed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_name_beyond_the_bound_is_counted_as_refused() {
    let refused = || metric("oncegate_locks_total{app=\"many-locks\",result=\"quota_exceeded\"}");
    refused();
    let mut world = World::new();
    world.app.key = "many-locks".parse().unwrap();
    let gateway = world.gateway(world.store.clone());
    gateway.measure_apps(&[Arc::new(world.app.clone())], 10);
    let request = |number: usize| AcquireCall {
        name: format!("n{number}").parse().unwrap(),
        ..call(None, Duration::ZERO, false)
    };
    for number in 0..NAMES_MAX {
        granted(gateway.acquire_lock(&world.app, request(number)).await);
    }
    let beyond = gateway.acquire_lock(&world.app, request(NAMES_MAX)).await;
    assert!(matches!(beyond, Err(Failure::TooManyLocks(NAMES_MAX))), "{beyond:?}");
    assert_eq!(refused(), Some(1.0));
}
