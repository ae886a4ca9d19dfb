//! Gateways with wrong wall clocks over one store: such a clock names attempts and shows times, but decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate_core::canonical::canonicalize;
use oncegate_core::claim::{Outcome, OutcomeResponse, RenewalResponse};
use oncegate_core::clock::{Clock, ManualClock, SystemClock, Timestamp};
use oncegate_core::engine::Engine;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::limits::Limits;
use oncegate_core::record::{ClaimId, ClaimState};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use oncegate_gateway::outcome::{OutcomeCall, Reported};
use oncegate_gateway::tenants::App;
use oncegate_gateway::{Engines, Gateway};
use oncegate_redis::{Options, Redis};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;

const HOUR: Duration = Duration::from_hours(1);
/// Long enough that a busy machine answers within it.
const LEASE: Duration = Duration::from_secs(3);

/// A clock whose wall time is off by so many microseconds.
struct Skewed {
    clock: Arc<dyn Clock>,
    off_by: AtomicI64,
}

impl Clock for Skewed {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.wall().as_micros().saturating_add_signed(self.off_by.load(Ordering::SeqCst)))
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

/// Two gateways over one engine, an hour ahead and an hour behind, and a way to let a lease end.
struct Stage {
    app: Arc<App>,
    ahead: Gateway,
    behind: Gateway,
    ahead_clock: Arc<Skewed>,
    manual: Option<Arc<ManualClock>>,
    strict_fence: bool,
    _redis: Option<RedisServer>,
}

impl Stage {
    fn on_memory() -> Self {
        let manual = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let memory: Arc<dyn Engine> = Arc::new(Memory::new(manual.clone(), BYTES_MAX_DEFAULT));
        let clock: Arc<dyn Clock> = manual.clone();
        Self { manual: Some(manual), ..Self::on(&memory, &clock) }
    }

    async fn on_redis() -> Option<Self> {
        let server = RedisServer::start().await?;
        let redis: Arc<dyn Engine> = Arc::new(Redis::open(&server.url(), Options::default()).unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Some(Self { _redis: Some(server), ..Self::on(&redis, &clock) })
    }

    fn on(engine: &Arc<dyn Engine>, clock: &Arc<dyn Clock>) -> Self {
        let terms = Terms {
            lease: LEASE,
            retention: Retention::For(HOUR),
            unknown_retention: Retention::For(HOUR),
            on_lease_end: LeaseEnd::Release,
        };
        let app = Arc::new(App::for_tests("shop", &[], terms, Duration::from_secs(5)));
        let hour = i64::try_from(HOUR.as_micros()).unwrap();
        let skewed = |off_by: i64| Arc::new(Skewed { clock: clock.clone(), off_by: off_by.into() });
        let gateway = |clock: Arc<Skewed>| {
            let clock: Arc<dyn Clock> = clock;
            let engines = Engines::of_one("default", engine.clone(), &clock, Arc::new(SystemEntropy));
            Gateway::new(engines, Issuer::new(clock.clone(), Arc::new(SystemEntropy)), clock, &Limits::default())
        };
        let ahead_clock = skewed(hour);
        let (ahead, behind) = (gateway(ahead_clock.clone()), gateway(skewed(-hour)));
        let strict_fence = engine.capabilities().strict_fence;
        Self { app: app.clone(), ahead, behind, ahead_clock, manual: None, strict_fence, _redis: None }
    }

    async fn claim(&self, gateway: &Gateway, contents: &str) -> ClaimAnswer {
        let contents = canonicalize(format!("{contents:?}").as_bytes()).unwrap();
        let request = ClaimCall::plain("order.submit".parse().unwrap(), contents);
        gateway.claim(&self.app, request).await.unwrap().answer
    }

    async fn granted(&self, gateway: &Gateway, contents: &str) -> Granted {
        match self.claim(gateway, contents).await {
            ClaimAnswer::Granted(granted) => granted,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Returns the attempt that holds it, as a duplicate shows it.
    async fn holder(&self, gateway: &Gateway, contents: &str) -> Attempt {
        match self.claim(gateway, contents).await {
            ClaimAnswer::Duplicate(found) => {
                assert!(found.claim.left.unwrap() <= LEASE, "no longer than its lease");
                found.claim.record.attempt
            }
            other => panic!("no duplicate: {other:?}"),
        }
    }

    async fn settle(&self, gateway: &Gateway, granted: &Granted, outcome: Outcome) -> OutcomeResponse {
        let (id, attempt) = (ClaimId::of_api(granted.global_id), granted.attempt.clone());
        let report = OutcomeCall { id, attempt, outcome, operation: None, contents: None };
        match gateway.settle(&self.app, report).await.unwrap().answer {
            Reported::Settled { settled, .. } => settled,
            other => panic!("{other:?}"),
        }
    }

    /// Lets a lease end that has just started: by setting the clock where the test has it, otherwise by waiting.
    async fn lease_ends(&self, granted: &Granted) {
        if let Some(manual) = &self.manual {
            manual.advance(LEASE);
        }
        until("the lease ends", LEASE * 10, async || {
            self.behind.inspect(&self.app, ClaimId::of_api(granted.global_id)).await.unwrap().is_none()
        })
        .await;
    }
}

macro_rules! on_memory_and_redis {
    ($($test:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::Stage::on_memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test]
            async fn $test() {
                let Some(stage) = super::Stage::on_redis().await else { return };
                super::$test(&stage).await;
            })*
        }
    };
}

on_memory_and_redis! {
    an_old_attempt_never_touches_a_newer_claim_whatever_their_timestamps_say
    leases_are_counted_by_the_store_alone
    attempts_never_repeat_and_rise_over_a_clock_that_is_set_back
    a_late_outcome_is_taken_from_a_gateway_that_lives_in_another_hour
}

/// Both ways round: the old attempt's timestamp is two hours later than the newer one's, or two hours earlier.
async fn an_old_attempt_never_touches_a_newer_claim_whatever_their_timestamps_say(stage: &Stage) {
    for (contents, older, newer) in
        [("older by name", &stage.behind, &stage.ahead), ("newer by name", &stage.ahead, &stage.behind)]
    {
        let old = stage.granted(older, contents).await;
        stage.lease_ends(&old).await;
        let new = stage.granted(newer, contents).await;
        assert_eq!(old.attempt.timestamp() < new.attempt.timestamp(), contents == "older by name");
        assert_eq!(stage.strict_fence, old.fence.is_some());
        assert!(!stage.strict_fence || old.fence < new.fence, "fences rise although the clocks differ");
        for gateway in [older, newer] {
            for outcome in [Outcome::Failure, Outcome::Unknown, Outcome::Success { result: None, retention: None }] {
                let response = stage.settle(gateway, &old, outcome.clone()).await;
                assert!(
                    matches!(response, OutcomeResponse::Superseded { state: ClaimState::InProgress, .. }),
                    "{outcome:?}: {response:?}"
                );
            }
            let renewed = gateway
                .renew(&stage.app, ClaimId::of_api(old.global_id), old.attempt.clone(), Some(HOUR))
                .await
                .unwrap();
            assert!(matches!(renewed.answer.renewed, RenewalResponse::Superseded { .. }), "{renewed:?}");
        }
        assert_eq!(stage.holder(older, contents).await, new.attempt);
        let done = stage.settle(older, &new, Outcome::Success { result: None, retention: None }).await;
        assert!(
            matches!(done, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. }),
            "{done:?}"
        );
        let response = stage.settle(newer, &old, Outcome::Failure).await;
        assert!(matches!(response, OutcomeResponse::Superseded { state: ClaimState::Succeeded, .. }), "{response:?}");
    }
}

async fn leases_are_counted_by_the_store_alone(stage: &Stage) {
    for (contents, holder, other) in
        [("held ahead", &stage.ahead, &stage.behind), ("held behind", &stage.behind, &stage.ahead)]
    {
        let granted = stage.granted(holder, contents).await;
        assert!(u128::from(granted.lease_ms) <= LEASE.as_millis());
        assert!(u128::from(granted.lease_ms) >= LEASE.as_millis() / 2, "{}", granted.lease_ms);
        assert_eq!(stage.holder(other, contents).await, granted.attempt);
        if let Some(manual) = &stage.manual {
            manual.advance(LEASE.checked_sub(Duration::from_micros(1)).unwrap());
            assert_eq!(stage.holder(other, contents).await, granted.attempt, "to its last microsecond");
            manual.advance(Duration::from_micros(1));
        } else {
            stage.lease_ends(&granted).await;
        }
        let next = stage.granted(other, contents).await;
        // A step of a gateway's clock does not change a live claim either.
        stage.ahead_clock.off_by.fetch_add(i64::try_from(24 * HOUR.as_micros()).unwrap(), Ordering::SeqCst);
        assert_eq!(stage.holder(holder, contents).await, next.attempt);
        stage.ahead_clock.off_by.fetch_sub(i64::try_from(24 * HOUR.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

async fn attempts_never_repeat_and_rise_over_a_clock_that_is_set_back(stage: &Stage) {
    let mut attempts = BTreeSet::new();
    let (mut last_ahead, mut last_behind) = (None, None);
    for number in 0..300 {
        if number == 100 {
            // Onto the very time of the other gateway.
            stage.ahead_clock.off_by.store(-i64::try_from(HOUR.as_micros()).unwrap(), Ordering::SeqCst);
        }
        for (gateway, last) in [(&stage.ahead, &mut last_ahead), (&stage.behind, &mut last_behind)] {
            let contents = format!("{number} {}", last.is_some());
            let granted = match stage.claim(gateway, &contents).await {
                ClaimAnswer::Granted(granted) => granted,
                // The other gateway's.
                ClaimAnswer::Duplicate(_) => stage.granted(gateway, &format!("{contents} too")).await,
                ClaimAnswer::Mismatch(mismatch) => panic!("{mismatch:?}"),
            };
            assert!(attempts.insert(granted.attempt.to_string()), "{:?} came twice", granted.attempt);
            let timestamp = Some(granted.attempt.timestamp());
            assert!(timestamp > *last, "{:?}", granted.attempt);
            *last = timestamp;
        }
    }
    assert_eq!(attempts.len(), 600);
}

async fn a_late_outcome_is_taken_from_a_gateway_that_lives_in_another_hour(stage: &Stage) {
    for (contents, holder, other) in
        [("late behind", &stage.ahead, &stage.behind), ("late ahead", &stage.behind, &stage.ahead)]
    {
        let granted = stage.granted(holder, contents).await;
        stage.lease_ends(&granted).await;
        let response = stage.settle(other, &granted, Outcome::Success { result: None, retention: None }).await;
        assert!(
            matches!(response, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(true), .. }),
            "{response:?}"
        );
        match stage.claim(holder, contents).await {
            ClaimAnswer::Duplicate(found) => assert_eq!(found.claim.record.attempt, granted.attempt),
            wrong => panic!("{wrong:?}"),
        }
    }
}
