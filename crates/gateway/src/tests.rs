//! The use cases over a store in memory: refusals before a call to the store, the contents of answers, charges and
//! metrics, and the calls of operators.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use oncegate_core::attempt::{Attempt, SystemEntropy};
use oncegate_core::call::Answered;
use oncegate_core::canonical::canonicalize;
use oncegate_core::claim::Outcome;
use oncegate_core::engine::Engine;
use oncegate_core::engine::capability::Capability;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::faulty::{Fault, Faulty};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::record::{ClaimId, ClaimState, Realm};
use oncegate_core::terms::{LeaseEnd, Mode, Terms};

use super::*;
use crate::chains::{COUNTED_MAX, ClaimCount, SwitchError};
use crate::claim::{ClaimAnswer, ClaimCall};
use crate::lock::{AcquireAnswer, AcquireCall};
use crate::operator::{Changed, Filter, READ_MAX};
use crate::outcome::{OutcomeCall, Reported};
use crate::resilience::call_guard::CallGuard;
use crate::resilience::chain::{Chain, ChainSwitchError, Setup};
use crate::resilience::requirement::Requirement;
use crate::resilience::tests::{PausedClock, Unlike, metric};
use crate::tenants::OperationTerms;
use crate::tenants::quota::{Purpose, Quota, QuotaName};
use oncegate_outage::OutagePolicies;

const SECOND: Duration = Duration::from_secs(1);

struct World {
    gateway: Gateway,
    app: App,
}

impl World {
    fn new(app: &str) -> Self {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let store: Arc<dyn Engine> = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        let entropy = Arc::new(SystemEntropy);
        let mut engines = Engines::of_one("default", store.clone(), &clock, entropy.clone());
        let guard = CallGuard::new(store, "only", SECOND, clock.clone(), entropy.clone());
        engines.by_name.insert("only".into(), NamedEngine { engine: Arc::new(guard), url: "memory:".into() });
        let gateway = Gateway::new(engines, Issuer::new(clock.clone(), entropy), clock, &Limits::default());
        let day = Retention::For(Duration::from_hours(24));
        let terms = Terms { lease: SECOND * 30, retention: day, unknown_retention: day, ..fresh_claim().terms };
        Self { gateway, app: App::for_tests(app, &[], terms, SECOND) }
    }

    /// Grants the claim of these contents, and returns its holder.
    async fn granted(&self, contents: &str) -> (GlobalId, Attempt) {
        match self.gateway.claim(&self.app, call(contents)).await {
            Ok(Answered { answer: ClaimAnswer::Granted(granted), .. }) => (granted.global_id, granted.attempt),
            other => panic!("a grant was expected: {other:?}"),
        }
    }

    async fn settled(&self, contents: &str, result: &str) -> (GlobalId, Attempt) {
        let (global_id, attempt) = self.granted(contents).await;
        let report = report(global_id, &attempt, success(Some(result)));
        let settled = self.gateway.settle(&self.app, report).await.map(|answered| answered.answer);
        assert!(matches!(settled, Ok(Reported::Settled { .. })));
        (global_id, attempt)
    }

    async fn list(&self, filter: Filter, limit: usize) -> Vec<GlobalId> {
        self.page(filter, limit).await.0
    }

    /// Returns a page of a list, and the ID to continue after.
    async fn page(&self, filter: Filter, limit: usize) -> (Vec<GlobalId>, Option<GlobalId>) {
        let (listed, next) = self.gateway.list(&self.app, filter, limit).await.ok().unwrap();
        (listed.into_iter().map(|view| view.global_id).collect(), next)
    }
}

fn contents(text: &str) -> Canonical {
    canonicalize(format!("\"{text}\"").as_bytes()).unwrap()
}

fn call(text: &str) -> ClaimCall {
    ClaimCall::plain(Operation::default(), contents(text))
}

fn success(result: Option<&str>) -> Outcome {
    Outcome::Success { result: result.map(Into::into), retention: None }
}

fn report(global_id: GlobalId, attempt: &Attempt, outcome: Outcome) -> OutcomeCall {
    OutcomeCall { id: ClaimId::of_api(global_id), attempt: attempt.clone(), outcome, operation: None, contents: None }
}

#[tokio::test(start_paused = true)]
async fn a_claim_has_the_terms_of_its_operation_unless_it_asks_for_others() {
    let mut world = World::new("shop");
    let own = Terms { lease: SECOND * 7, ..world.app.terms.terms };
    let redeem: Operation = "coupon.redeem".parse().unwrap();
    world.app.operations.insert(redeem.clone(), OperationTerms { terms: own, ..world.app.terms });
    let terms = |call| world.gateway.prepare(&world.app, call).unwrap().0.terms;
    assert_eq!(terms(call("a")), world.app.terms.terms);
    assert_eq!(terms(ClaimCall { operation: redeem.clone(), ..call("a") }), own);
    let (lease, retention) = (SECOND * 9, Retention::For(SECOND * 99));
    let asked = ClaimCall { operation: redeem, lease: Some(lease), retention: Some(retention), ..call("a") };
    assert_eq!(terms(asked), Terms { lease, retention, ..own });
    let cautious = ClaimCall { unknown_on_lease_end: true, ..call("a") };
    assert_eq!(terms(cautious), Terms { on_lease_end: LeaseEnd::Unknown, ..world.app.terms.terms });
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_claim_stays_uncertain_until_its_repeat_is_answered() {
    let world = World::new("shop");
    let clock: Arc<dyn Clock> = PausedClock::start();
    let store = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let faulty = Arc::new(Faulty::always(store, Fault::ReplyLost));
    let entropy = Arc::new(SystemEntropy);
    let engines = Engines::of_one("default", faulty.clone(), &clock, entropy.clone());
    let gateway = Gateway::new(engines, Issuer::new(clock.clone(), entropy), clock, &Limits::default());
    let first = gateway.claim(&world.app, call("a")).await;
    let Err(Failure::OutcomeUnknown(Some(nonce))) = first else { panic!("{first:?}") };
    for fault in [Fault::Refused, Fault::RequestLost] {
        faulty.set(fault);
        let again = gateway.claim_again(&world.app, call("a"), nonce.clone()).await;
        assert!(matches!(&again, Err(Failure::OutcomeUnknown(Some(same))) if *same == nonce), "{fault:?}: {again:?}");
    }
    faulty.set(Fault::None);
    let again = gateway.claim_again(&world.app, call("a"), nonce).await;
    let again = again.map(|answered| answered.answer);
    assert!(matches!(&again, Ok(ClaimAnswer::Granted(granted)) if granted.repeated), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_can_never_be_right_is_refused_before_the_store_is_asked() {
    let mut world = World::new("shop");
    world.app.retention_max = Retention::For(SECOND * 60);
    let nonce = |text: &str| Some(text.parse::<Nonce>().unwrap());
    let refused = |call| world.gateway.prepare(&world.app, call).err();
    let of_contents = "nonce-0123456789abcdef";
    let fingerprint = Some(canonicalize(format!("{{\"try\":\"{of_contents}\"}}").as_bytes()).unwrap());
    let in_contents = ClaimCall { nonce: nonce(of_contents), ..call(of_contents) };
    assert!(matches!(refused(in_contents), Some(Failure::NonceInContents)));
    let in_fingerprint = ClaimCall { nonce: nonce(of_contents), fingerprint, ..call("a") };
    assert!(matches!(refused(in_fingerprint), Some(Failure::NonceInContents)));
    let part = canonicalize(format!("\"a\\\"{of_contents}\"").as_bytes()).unwrap();
    let part = ClaimCall { nonce: nonce(of_contents), contents: part, ..call("a") };
    assert!(refused(part).is_none(), "part of a longer text");
    assert!(refused(ClaimCall { nonce: nonce(of_contents), ..call("a") }).is_none());
    let reserved = ClaimCall { nonce: nonce("observed-0123456789abcdef"), ..call("a") };
    assert!(matches!(refused(reserved), Some(Failure::NonceReserved)));
    let retention = |seconds| ClaimCall { retention: Some(Retention::For(SECOND * seconds)), ..call("a") };
    assert!(refused(retention(60)).is_none());
    assert!(matches!(refused(retention(61)), Some(Failure::RetentionTooLong(_))));
}

#[tokio::test(start_paused = true)]
async fn a_batch_leaves_out_results_beyond_its_room() {
    let world = World::new("shop");
    for contents in ["a", "b"] {
        world.settled(contents, "\"0123456789\"").await;
    }
    let calls = || ["a", "b"].map(|contents| Ok::<_, Failure>(call(contents))).into();
    for (room, omitted) in [(100, vec![false, false]), (15, vec![false, true]), (0, vec![true, true])] {
        let (answers, _kept) = world.gateway.claim_many(&world.app, calls(), room).await;
        let duplicates = answers.iter().filter_map(|answer| match answer {
            Ok(Answered { answer: ClaimAnswer::Duplicate(view), policy: None }) => Some(view),
            _ => None,
        });
        let left_out: Vec<_> = duplicates.clone().map(|view| view.result_omitted).collect();
        assert_eq!(left_out, omitted, "{room}");
        assert!(duplicates.clone().all(|view| view.claim.record.result.is_none() == view.result_omitted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_outcomes_is_answered_in_order() {
    let world = World::new("shop");
    let (first, second) = (world.granted("a").await, world.granted("b").await);
    let reports = vec![
        Ok(report(first.0, &first.1, success(None))),
        Err(Failure::NonceReserved),
        Ok(report(second.0, &second.1, Outcome::Failure)),
    ];
    let answers = world.gateway.settle_many(&world.app, reports).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.map(|answered| answered.answer)).collect();
    let [Ok(Reported::Settled { global_id, .. }), Err(Failure::NonceReserved), Ok(Reported::Settled { .. })] =
        &*answers
    else {
        panic!("{answers:?}")
    };
    assert_eq!(*global_id, first.0);
    assert!(world.gateway.inspect(&world.app, ClaimId::of_api(second.0)).await.unwrap().is_none());
    let state = |view: ClaimView| view.claim.record.state;
    let found = world.gateway.inspect(&world.app, ClaimId::of_api(first.0)).await.unwrap();
    assert_eq!(found.map(state), Some(ClaimState::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_recorded_late_until_its_attempt_is_older_than_its_retention() {
    let world = World::new("shop");
    let (global_id, attempt) = world.granted("a").await;
    let retention = Some(Retention::For(SECOND * 60));
    let late = || OutcomeCall {
        contents: Some(contents("a")),
        ..report(global_id, &attempt, Outcome::Success { result: None, retention })
    };
    let mut recorded = Vec::new();
    // A minute of retention, and a day of grace.
    for wait in [0, 24 * 3600 + 60, 1] {
        tokio::time::sleep(SECOND * wait).await;
        let _ = world.gateway.release(&world.app, ClaimId::of_api(global_id), attempt.clone(), true).await;
        let answer = world.gateway.settle(&world.app, late()).await;
        let Ok(Answered { answer: Reported::Settled { settled, .. }, .. }) = answer else { panic!("{answer:?}") };
        recorded.push(settled != oncegate_core::claim::OutcomeResponse::Expired);
    }
    let other = OutcomeCall { contents: Some(contents("b")), ..late() };
    assert!(matches!(world.gateway.settle(&world.app, other).await, Err(Failure::NotItsContents)));
    assert_eq!(recorded, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_suspected_double_execution_is_counted_once_for_an_attempt() {
    let world = World::new("suspected");
    let counted = || metric("oncegate_suspected_double_executions_total{app=\"suspected\"}");
    counted();
    world.gateway.measure_apps(&[Arc::new(world.app.clone())], 10);
    let (global_id, first) = world.granted("a").await;
    tokio::time::sleep(SECOND * 31).await;
    world.granted("a").await;
    for (outcome, count) in [(Outcome::Failure, None), (success(None), Some(1.0)), (success(None), Some(1.0))] {
        world.gateway.settle(&world.app, report(global_id, &first, outcome)).await.unwrap();
        assert_eq!(counted().filter(|count| *count > 0.0), count);
    }
    let result = |result: &str| {
        metric(&format!("oncegate_claims_total{{app=\"suspected\",operation=\"default\",result=\"{result}\"}}"))
    };
    assert_eq!((result("granted"), result("taken_over"), result("repeated")), (Some(2.0), None, None));
}

/// The gateway names it to operators from what it has answered, without a lookup.
#[tokio::test(start_paused = true)]
async fn an_unknown_claim_needs_attention_until_it_is_settled_or_taken_over() {
    let world = World::new("shop");
    let count = || world.gateway.met_unknowns().iter().map(|of| of.count).sum::<usize>();
    for way in ["settled", "taken over"] {
        let (global_id, attempt) = world.granted(way).await;
        world.gateway.settle(&world.app, report(global_id, &attempt, Outcome::Unknown)).await.unwrap();
        assert_eq!(count(), 1, "{way}");
        if way == "settled" {
            world.gateway.settle(&world.app, report(global_id, &attempt, success(None))).await.unwrap();
        } else {
            world.gateway.claim(&world.app, ClaimCall { take_over: true, ..call(way) }).await.unwrap();
        }
        assert_eq!(count(), 0, "{way}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_grant_is_counted_as_what_it_is() {
    let world = World::new("counted");
    let result = |result: &str| {
        metric(&format!("oncegate_claims_total{{app=\"counted\",operation=\"default\",result=\"{result}\"}}"))
    };
    result("");
    world.gateway.measure_apps(&[Arc::new(world.app.clone())], 10);
    let nonce = Some("nonce-0123456789abcdef".parse::<Nonce>().unwrap());
    for _ in 0..2 {
        world.gateway.claim(&world.app, ClaimCall { nonce: nonce.clone(), ..call("a") }).await.unwrap();
    }
    let (global_id, attempt) = world.granted("b").await;
    world.gateway.settle(&world.app, report(global_id, &attempt, Outcome::Unknown)).await.unwrap();
    world.gateway.claim(&world.app, ClaimCall { take_over: true, ..call("b") }).await.unwrap();
    world.gateway.claim(&world.app, call("b")).await.unwrap();
    let counted = ["granted", "repeated", "taken_over", "duplicate_in_progress"].map(result);
    assert_eq!(counted, [Some(2.0), Some(1.0), Some(1.0), Some(1.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_charged_for_what_it_may_store_and_refunded_for_what_it_does_not() {
    let mut world = World::new("charged");
    let (bytes, requests) = (NonZeroU32::new(1000), NonZeroU32::new(2));
    world.app.quota = Quota { claim_bytes_per_second: bytes, requests_per_second: requests, ..Quota::default() };
    let exceeded = || metric("oncegate_quota_exceeded_total{app=\"charged\",quota=\"requests_per_second\"}");
    exceeded();
    world.gateway.measure_apps(&[Arc::new(world.app.clone())], 10);
    let left = || world.app.left(QuotaName::ClaimBytesPerSecond, world.gateway.clock.monotonic()).unwrap().0;
    let text = "x".repeat(100);
    let (global_id, attempt) = world.granted(&text).await;
    assert_eq!(left(), 1000 - 102, "the contents as they are stored");
    let late = OutcomeCall { contents: Some(contents(&text)), ..report(global_id, &attempt, success(Some("12345"))) };
    world.gateway.settle(&world.app, late).await.unwrap();
    assert_eq!(left(), 1000 - 102 - 5, "its claim was charged for the contents");
    let other = GlobalId::of(&world.app.key, &Operation::default(), &contents("y"));
    let late = OutcomeCall { contents: Some(contents("y")), ..report(other, &attempt, success(None)) };
    world.gateway.settle(&world.app, late).await.unwrap();
    assert_eq!(left(), 1000 - 102 - 5 - 3, "a late outcome stores them");
    let failure = OutcomeCall { contents: Some(contents("z")), ..report(global_id, &attempt, Outcome::Failure) };
    let _ = world.gateway.settle(&world.app, OutcomeCall { contents: None, ..failure }).await;
    assert_eq!(left(), 1000 - 102 - 5 - 3, "a failure stores nothing");
    let charge = || world.gateway.charge_request(&world.app, Purpose::New).is_ok();
    assert_eq!((charge(), charge(), charge()), (true, true, false));
    assert_eq!(exceeded(), Some(1.0));
    let large = "y".repeat(950);
    let refused = world.gateway.claim(&world.app, call(&large)).await;
    assert!(matches!(refused, Err(Failure::QuotaExceeded(_))), "{refused:?}");
    let result = || report(global_id, &attempt, success(Some(&"1".repeat(20_000))));
    world.gateway.settle(&world.app, result()).await.unwrap();
    let refused = world.gateway.settle(&world.app, result()).await;
    assert!(matches!(refused, Err(Failure::QuotaExceeded(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn observing_grants_what_enforcing_would_stop() {
    let mut world = World::new("shop");
    world.granted("a").await;
    world.app.terms.mode = Mode::Observe;
    let (global_id, attempt) = world.granted("a").await;
    let reported = world.gateway.settle(&world.app, report(global_id, &attempt, success(None))).await;
    assert!(matches!(reported, Ok(Answered { answer: Reported::Observed { .. }, policy: None })), "{reported:?}");
    let reports = vec![Ok::<_, Failure>(report(global_id, &attempt, success(None)))];
    let reported = world.gateway.settle_many(&world.app, reports).await;
    let is_observed = matches!(&reported[..], [Ok(Answered { answer: Reported::Observed { .. }, policy: None })]);
    assert!(is_observed, "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn claims_are_listed_in_pages() {
    let world = World::new("shop");
    let mut ids = Vec::new();
    for contents in ["a", "b", "c", "d"] {
        ids.push(world.settled(contents, "1").await.0);
    }
    ids.sort();
    let all = Filter::all(Realm::Api);
    assert_eq!(world.list(all.clone(), 10).await, ids);
    for limit in 1..4 {
        assert_eq!(world.list(all.clone(), limit).await, ids[..limit]);
    }
    assert_eq!(world.list(Filter { after: Some(ids[1]), ..all.clone() }, 10).await, ids[2..]);
    let succeeded = Filter { state: Some(ClaimState::Succeeded), ..all };
    assert_eq!(world.list(succeeded, 10).await.len(), 4);
    let count = world.gateway.count_claims("default", vec![world.app.key.clone(), "bank".parse().unwrap()]).await;
    assert_eq!(count, ClaimCount::Counted(4));
    assert_eq!(world.gateway.count_claims("other", vec![]).await, ClaimCount::Unknown);
}

/// A list must not read a whole store, even if only a few of its claims pass.
#[tokio::test(start_paused = true)]
async fn a_page_of_claims_of_an_operation_or_a_time_reads_a_bounded_part_of_the_store() {
    let world = World::new("shop");
    for number in 0..READ_MAX {
        world.granted(&number.to_string()).await;
    }
    tokio::time::sleep(SECOND).await;
    let between = world.gateway.clock.wall();
    tokio::time::sleep(SECOND).await;
    let operation: Operation = "coupon.redeem".parse().unwrap();
    let mut rare = Vec::new();
    for contents in ["x", "y"] {
        let call = ClaimCall { operation: operation.clone(), ..call(contents) };
        let claimed = world.gateway.claim(&world.app, call).await.map(|answered| answered.answer);
        let Ok(ClaimAnswer::Granted(granted)) = claimed else { panic!() };
        rare.push(granted.global_id);
    }
    rare.sort();
    let all = Filter::all(Realm::Api);
    let by_operation = Filter { operation: Some(operation), ..all.clone() };
    let by_time = Filter { claimed_after: Some(between), ..all.clone() };
    for filter in [by_operation.clone(), by_time] {
        let (mut found, next) = world.page(filter.clone(), 5).await;
        assert!(next.is_some(), "it was not read to its end");
        let (rest, end) = world.page(Filter { after: next, ..filter.clone() }, 5).await;
        found.extend(rest);
        assert_eq!((found, end), (rare.clone(), None));
        // A page that is full ends with its last claim.
        let (mut one, mut next) = (Vec::new(), None);
        while one.is_empty() {
            (one, next) = world.page(Filter { after: next, ..filter.clone() }, 1).await;
        }
        assert_eq!((&one[..], next), (&rare[..1], Some(rare[0])));
    }
    let before = Filter { claimed_before: Some(between), ..by_operation };
    assert_eq!(world.page(before, 5).await.0, []);
}

#[tokio::test(start_paused = true)]
async fn claims_are_counted_up_to_a_bound_over_all_apps() {
    let mut world = World::new("shop");
    for app in ["bank", "shop"] {
        world.app.key = app.parse().unwrap();
        for number in 0..=COUNTED_MAX / 2 {
            world.granted(&format!("{app} {number}")).await;
        }
    }
    let keys = ["shop", "bank", "other"].map(|app| app.parse().unwrap());
    assert_eq!(world.gateway.count_claims("default", keys.to_vec()).await, ClaimCount::Counted(COUNTED_MAX));
    assert_eq!(
        world.gateway.count_claims("default", keys[1..].to_vec()).await,
        ClaimCount::Counted(COUNTED_MAX / 2 + 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_operator_releases_a_success_only_if_that_is_meant() {
    let world = World::new("shop");
    let (global_id, attempt) = world.settled("a", "1").await;
    let release = async |even_succeeded| {
        world
            .gateway
            .release(&world.app, ClaimId::of_api(global_id), attempt.clone(), even_succeeded)
            .await
            .ok()
            .unwrap()
    };
    assert!(matches!(release(false).await, Changed::AlreadySucceeded));
    assert!(matches!(release(true).await, Changed::Released));
    assert!(matches!(release(true).await, Changed::Absent));
}

#[tokio::test(start_paused = true)]
async fn operators_see_engines_and_chains() {
    let world = World::new("shop");
    assert_eq!(world.gateway.engine_name(&world.app), "only");
    let engines = serde_json::to_value(world.gateway.engines().await).unwrap();
    assert_eq!(
        (&engines[0]["name"], &engines[0]["up"], &engines[0]["chains"][0]),
        (&"only".into(), &true.into(), &"default".into())
    );
    let chains = serde_json::to_value(world.gateway.chains().await).unwrap();
    assert_eq!((&chains[0]["name"], &chains[0]["health"][0]["up"]), (&"default".into(), &true.into()));
    assert_eq!(world.gateway.chain_status("default").ok().unwrap().active, "only");
    world.gateway.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_not_switched_to_an_engine_that_lacks_what_it_requires() {
    let mut world = World::new("shop");
    let (clock, store) = (world.gateway.clock.clone(), world.gateway.engines.by_name["only"].engine.clone());
    let requirement = Some(Requirement::new("default", [Capability::Durable]));
    let setup = Setup { requirement, ..Setup::of_one("default", store, clock.clone(), Arc::new(SystemEntropy)) };
    let chain = Arc::new(Chain::start(setup));
    let policies = OutagePolicies::without_journal(chain.clone(), &clock);
    world.gateway.engines.chains.insert("default".into(), NamedChain { chain, policies });
    let unfit = world.gateway.switch("default", "only").await;
    assert!(matches!(unfit, Err(SwitchError::Rejected(ChainSwitchError::Unfit(_)))), "{unfit:?}");
    assert!(matches!(world.gateway.switch("default", "none").await, Err(SwitchError::Rejected(_))));
    assert!(matches!(world.gateway.switch("none", "only").await, Err(SwitchError::UnknownChain(_))));
    let refused = world.gateway.claim(&world.app, call("a")).await;
    assert!(matches!(refused, Err(Failure::Store(Determinate::Incompatible(_)))), "{refused:?}");
    let held = world.gateway.acquire_lock(&world.app, lock_call(SECOND)).await;
    assert!(matches!(held, Err(Failure::Store(Determinate::Incompatible(_)))), "{held:?}");
}

fn lock_call(lease: Duration) -> AcquireCall {
    AcquireCall {
        name: "a".parse().unwrap(),
        mode: oncegate_core::lock::LockMode::Exclusive,
        limit: None,
        owner: None,
        caller: None,
        nonce: Some("nonce-0123456789abcdef".parse().unwrap()),
        lease: Some(lease),
        wait: Duration::ZERO,
        fair: false,
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_hold_that_is_requested_again_is_that_of_the_first_request() {
    let world = World::new("shop");
    for (lease, repeated) in [(SECOND * 60, false), (SECOND * 5, true)] {
        let answer = world.gateway.acquire_lock(&world.app, lock_call(lease)).await;
        let Ok(AcquireAnswer::Granted(granted)) = answer else { panic!("{answer:?}") };
        assert!(granted.repeated == repeated && granted.lease_ms > 59_000, "{granted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_closed_closes_its_engines() {
    let mut world = World::new("closed");
    let engine = Arc::new(Unlike::default());
    let clock: Arc<dyn Clock> = PausedClock::start();
    let guard = CallGuard::new(engine.clone(), "spare", SECOND, clock, Arc::new(SystemEntropy));
    let named = NamedEngine { engine: Arc::new(guard), url: "memory:".into() };
    world.gateway.engines.by_name.insert("spare".into(), named);
    world.gateway.close().await;
    assert!(engine.is_closed.load(Ordering::Relaxed));
}
