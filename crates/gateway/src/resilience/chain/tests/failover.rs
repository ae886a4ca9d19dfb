//! Chains with a witness: three gateways, two stores and the witness in memory, each way between them with its own fault.

use std::pin::Pin;

use futures_util::future::BoxFuture;
use oncegate_core::engine::capability::Capability;

use super::super::switch::Order;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Time that the store must be out in these tests.
const AFTER: Duration = Duration::from_secs(3);

/// Longest lease of the chain.
const LEASE: Duration = Duration::from_secs(30);

/// The audit trail: the recorded switches with their results.
#[derive(Default)]
struct Trail(Arc<Mutex<Vec<String>>>);

impl SwitchRecorder for Trail {
    fn record(&self, detail: String, reason: String, switch: SwitchAction) -> BoxFuture<'static, Result<(), String>> {
        let trail = self.0.clone();
        Box::pin(async move {
            let done = switch.await;
            let result = done.as_ref().map_or_else(ToString::to_string, |_| "switched".into());
            trail.lock().unwrap().push(format!("{detail}; {reason}: {result}"));
            done.map(drop).map_err(|why| why.to_string())
        })
    }
}

/// The failover of a chain, with an audit trail that no test reads.
pub(super) fn with_witness(witness: Arc<dyn Engine>) -> FailoverSetup {
    let recorder = Arc::new(Trail::default());
    FailoverSetup {
        witness: ("w".into(), witness),
        witness_requires: None,
        mode: FailoverMode::Automatic,
        after: AFTER,
        recorder,
    }
}

/// Two stores and a witness.
struct Three {
    stores: Stores,
    witness: Arc<dyn Engine>,
    trail: Arc<Mutex<Vec<String>>>,
}

/// A gateway, and its ways to the stores and to the witness.
struct Watching {
    gateway: Gateway,
    witness: Arc<Faulty>,
}

impl Three {
    fn new() -> Self {
        let stores = Stores::new(&["a", "b"]);
        let witness = Arc::new(Memory::new(stores.clock.clone(), BYTES_MAX_DEFAULT));
        Self { stores, witness, trail: Arc::default() }
    }

    fn gateway(&self) -> Watching {
        self.gateway_with(|_, _| {})
    }

    /// Starts a gateway with the faults that `prepare` sets on its connections to the stores and to the witness.
    fn gateway_with(&self, prepare: impl FnOnce(&[Arc<Faulty>], &Faulty)) -> Watching {
        self.gateway_that_requires(None, prepare)
    }

    fn gateway_that_requires(
        &self,
        requirement: Option<Requirement>,
        prepare: impl FnOnce(&[Arc<Faulty>], &Faulty),
    ) -> Watching {
        let (mut setup, engines) = self.stores.setup(OnDataLoss::Resume);
        setup.requirement = requirement;
        let witness = Arc::new(Faulty::always(self.witness.clone(), Fault::None));
        prepare(&engines, &witness);
        let recorder = Arc::new(Trail(self.trail.clone()));
        setup.failover = Some(FailoverSetup { recorder, ..with_witness(witness.clone()) });
        Watching { gateway: Gateway { chain: Arc::new(Chain::start(setup)), engines }, witness }
    }

    /// Starts three gateways, and waits until each has granted a claim and knows the others.
    async fn three_gateways(&self) -> [Watching; 3] {
        let gateways = [self.gateway(), self.gateway(), self.gateway()];
        for gateway in &gateways {
            gateway.becomes("it grants", async || gateway.claim(&a_claim()).await.is_ok()).await;
        }
        for gateway in &gateways {
            gateway.becomes("it knows the others", async || gateway.failover().views.len() == 3).await;
        }
        gateways
    }

    async fn epoch_at_witness(&self) -> u64 {
        let record = self.witness.get_metadata("failover.main").await.unwrap();
        record.map_or(0, |record| ChainState::read(&record).unwrap().epoch)
    }

    fn trail(&self) -> Vec<String> {
        self.trail.lock().unwrap().clone()
    }
}

impl std::ops::Deref for Watching {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl Watching {
    /// Claims something new. Returns the names of the stores that have it then.
    async fn granted_on(&self, three: &Three) -> String {
        let request = a_claim();
        let answer = self.claim(&request).await;
        assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
        three.stores.holders(&request.key).await
    }

    fn cut(&self, store: usize) {
        self.engines[store].set(Fault::Refused);
    }

    fn failover(&self) -> FailoverStatus {
        self.chain.status().failover.unwrap()
    }

    async fn becomes(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        for _ in 0..6000 {
            if is_so().await {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("not in a minute: {what}; {:?}", self.failover());
    }
}

/// A claim of the longest lease.
fn a_claim() -> ClaimRequest {
    let mut claim = fresh_claim();
    claim.terms.lease = LEASE;
    claim
}

/// Returns the time of the first grant at this gateway.
async fn first_grant(three: &Three, gateway: &Watching) -> Duration {
    gateway.becomes("it grants again", async || gateway.claim(&a_claim()).await.is_ok()).await;
    three.stores.clock.monotonic()
}

#[tokio::test(start_paused = true)]
async fn two_of_three_gateways_that_lost_the_store_move_all_once_and_grants_are_frozen_for_the_longest_lease() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    let [one, two, third] = &gateways;
    let known = a_claim();
    three.stores.stores[1].1.claim(&known, DEADLINE).await.unwrap();
    one.cut(0);
    two.cut(0);
    let cut_at = three.stores.clock.monotonic();
    for gateway in &gateways {
        let took = gateway.wait_until_active("b").await;
        assert!(took <= AFTER + 5 * SECOND, "{took:?}");
        assert_eq!(gateway.chain.status().epoch, 1);
    }
    let switched_at = three.stores.clock.monotonic();
    assert!(switched_at.saturating_sub(cut_at) >= AFTER);
    for gateway in &gateways {
        let frozen = gateway.claim(&a_claim()).await;
        assert!(is_paused(&frozen), "{frozen:?}");
        assert!(frozen.unwrap_err().to_string().contains("was switched automatically"));
        let again = ClaimRequest { attempt: a_claim().attempt, ..known.clone() };
        assert!(matches!(gateway.claim(&again).await, Ok(ClaimResponse::Duplicate(_))), "the new engine knows it");
    }
    let granted_at = first_grant(&three, third).await;
    assert!(granted_at >= switched_at + LEASE * 29 / 30, "after the longest lease");
    // Each gateway counts from when it saw the switch.
    one.becomes("it grants too", async || one.claim(&a_claim()).await.is_ok()).await;
    assert_eq!(one.granted_on(&three).await, "b");
    let last = two.failover().last_switch.unwrap();
    assert_eq!((last.cause, last.from.as_str(), last.to.as_str()), (SwitchCause::Automatic, "a", "b"));
    assert!(last.reason.contains("`a` is out for") && last.reason.contains("2 of 3 gateways"), "{}", last.reason);
    let done: Vec<_> = three.trail().into_iter().filter(|entry| entry.ends_with(": switched")).collect();
    assert_eq!(done.len(), 1, "{done:?}");
    assert!(done[0].starts_with("chain: main, from: a, to: b, epoch: 1, automatic; `a` is out"), "{done:?}");
    // A gateway that starts now need not wait.
    let late = three.gateway();
    late.becomes("it grants", async || late.claim(&a_claim()).await.is_ok()).await;
    assert!(three.stores.clock.monotonic() <= granted_at + 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_in_use_before_is_frozen_after_each_automatic_switch() {
    let three = Three::new();
    three.stores.mark_as_kept().await;
    let gateways = three.three_gateways().await;
    for epoch in [1, 3] {
        for gateway in &gateways {
            gateway.cut(0);
        }
        for gateway in &gateways {
            gateway.wait_until_active("b").await;
            assert_eq!(gateway.chain.status().epoch, epoch);
            let frozen = gateway.claim(&a_claim()).await;
            assert!(is_paused(&frozen), "switch {epoch}: {frozen:?}");
        }
        first_grant(&three, &gateways[0]).await;
        for gateway in &gateways {
            gateway.engines[0].set(Fault::None);
        }
        gateways[1].becomes("the first engine answers", async || gateways[1].failover().views[0].out.is_empty()).await;
        gateways[1].chain.switch("a").await.unwrap();
        for gateway in &gateways {
            gateway.wait_until_active("a").await;
        }
        // An automatic switch comes a minute after the last one at the earliest.
        sleep(62 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_starts_during_the_freeze_waits_for_all_of_it() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    for gateway in &gateways {
        gateway.cut(0);
    }
    gateways[0].wait_until_active("b").await;
    let late = three.gateway_with(|engines, _| engines[0].set(Fault::Refused));
    late.becomes("it knows", async || late.active() == "b").await;
    let started = three.stores.clock.monotonic();
    let granted_at = first_grant(&three, &late).await;
    assert!(granted_at >= started + LEASE * 29 / 30, "it cannot know how much of it is over");
}

#[tokio::test(start_paused = true)]
async fn the_freeze_lasts_as_long_as_the_longest_lease_that_any_gateway_was_asked_for() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    let mut long = a_claim();
    long.terms.lease = 3 * LEASE;
    gateways[2].claim(&long).await.unwrap();
    // Its next view has the lease.
    sleep(11 * SECOND).await;
    // The others switch.
    for gateway in &gateways[..2] {
        gateway.cut(0);
    }
    gateways[0].wait_until_active("b").await;
    let left = gateways[0].chain.status().frozen_for;
    sleep(SECOND).await;
    assert!(gateways[0].chain.status().frozen_for > Some(2 * LEASE), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_with_a_broken_cable_moves_nobody() {
    for is in [Fault::Refused, Fault::Silent] {
        let three = Three::new();
        let [cut, two, third] = three.three_gateways().await;
        cut.engines[0].set(is);
        for _ in 0..120 {
            sleep(SECOND).await;
            assert_eq!((cut.active().as_str(), three.epoch_at_witness().await), ("a", 0));
        }
        assert_eq!(
            cut.failover().next_switch,
            "only 1 of 3 gateways see the active engine out and the other one answering"
        );
        for gateway in [&two, &third] {
            assert_eq!(gateway.granted_on(&three).await, "a");
            let seen = gateway.failover().views.into_iter().filter(|view| view.out == ["a"]).count();
            assert_eq!((seen, gateway.failover().next_switch.as_str()), (1, "possible"));
        }
        assert_eq!(three.trail(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_view_of_a_gateway_that_no_longer_writes_it_is_no_vote() {
    let three = Three::new();
    let [one, two, _third] = three.three_gateways().await;
    two.cut(0);
    sleep(2 * AFTER).await;
    two.witness.set(Fault::Refused);
    sleep(5 * SECOND).await;
    one.cut(0);
    // Its last view is still one of a running gateway.
    sleep(3 * AFTER).await;
    let failover = one.failover();
    assert!(failover.views.iter().filter(|view| view.out == ["a"]).count() == 2, "{failover:?}");
    assert!(failover.next_switch.starts_with("only 1 of 3 gateways"), "{failover:?}");
    sleep(60 * SECOND).await;
    assert_eq!((one.active().as_str(), three.trail()), ("a", Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn nobody_moves_to_an_engine_that_is_out() {
    let three = Three::new();
    let alone = three.gateway();
    alone.becomes("it grants", async || alone.claim(&a_claim()).await.is_ok()).await;
    alone.cut(0);
    alone.cut(1);
    sleep(60 * SECOND).await;
    assert!(alone.failover().next_switch.contains("the other engine does not answer"), "{:?}", alone.failover());
    assert_eq!((alone.active().as_str(), three.trail()), ("a", Vec::new()));

    // Two of three do not reach it.
    let three = Three::new();
    let [one, two, third] = three.three_gateways().await;
    for gateway in [&two, &third] {
        gateway.cut(1);
    }
    for gateway in [&one, &two, &third] {
        gateway.cut(0);
    }
    sleep(60 * SECOND).await;
    assert!(one.failover().next_switch.starts_with("only 1 of 3 gateways"), "{:?}", one.failover());
    assert_eq!((one.active().as_str(), three.trail()), ("a", Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn nobody_moves_to_an_engine_that_lacks_what_the_chain_requires() {
    for (required, is_met) in [(Capability::StrictFence, true), (Capability::Durable, false)] {
        let three = Three::new();
        let gateway = three.gateway_that_requires(Some(Requirement::new("main", [required])), |_, _| {});
        let before = if is_met { "possible" } else { "would grant nothing: chain `main` requires `durable`" };
        gateway
            .becomes("the status names the obstacle", async || gateway.failover().next_switch.contains(before))
            .await;
        if !is_met {
            let refused = gateway.chain.switch("b").await;
            assert!(matches!(refused, Err(ChainSwitchError::Unfit(_))), "{refused:?}");
            let order = Order::Automatic { epoch: 0, reason: "out".into(), freeze_ms: 0 };
            let refused = gateway.chain.core.switch("b", order).await;
            assert!(matches!(refused, Err(ChainSwitchError::Unfit(_))), "also if it was decided before: {refused:?}");
        }
        gateway.cut(0);
        sleep(60 * SECOND).await;
        let (active, switches) = if is_met { ("b", 1) } else { ("a", 0) };
        assert_eq!((gateway.active().as_str(), three.trail().len()), (active, switches), "{:?}", gateway.failover());
    }
}

/// Each try would fail, and be in the audit trail.
#[tokio::test(start_paused = true)]
async fn nobody_tries_to_move_to_an_engine_whose_state_of_the_chain_cannot_be_read() {
    let three = Three::new();
    let gateway = three.gateway();
    gateway.becomes("it grants", async || gateway.claim(&a_claim()).await.is_ok()).await;
    let unreadable = Metadata::new("of another program").unwrap();
    let store = &three.stores.stores[1].1;
    assert_eq!(store.compare_and_set_metadata("chain.main", None, &unreadable).await, Ok(true));
    gateway.becomes("it says so", async || gateway.failover().next_switch.contains("would grant nothing")).await;
    gateway.cut(0);
    sleep(60 * SECOND).await;
    assert_eq!((gateway.active().as_str(), three.trail()), ("a", Vec::new()), "{:?}", gateway.failover());
}

#[tokio::test(start_paused = true)]
async fn gateways_move_at_the_earliest_a_minute_after_the_last_change() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    for engine in ["b", "a"] {
        gateways[0].chain.switch(engine).await.unwrap();
        for gateway in &gateways {
            gateway.wait_until_active(engine).await;
        }
    }
    let changed_at = three.stores.clock.monotonic();
    for gateway in &gateways {
        gateway.cut(0);
    }
    sleep(30 * SECOND).await;
    assert!(gateways[0].failover().next_switch.contains("less than a minute ago"), "{:?}", gateways[0].failover());
    gateways[0].becomes("it moves", async || gateways[0].active() == "b").await;
    let waited = three.stores.clock.monotonic().saturating_sub(changed_at);
    assert!(waited >= 55 * SECOND, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_an_earlier_epoch_is_not_carried_out() {
    let three = Three::new();
    let [one, _two, _third] = three.three_gateways().await;
    for engine in ["b", "a"] {
        one.chain.switch(engine).await.unwrap();
    }
    let order = |epoch| Order::Automatic { epoch, reason: "it was out".into(), freeze_ms: 0 };
    let refused = one.chain.core.switch("b", order(0)).await.unwrap_err();
    assert!(matches!(refused, ChainSwitchError::Conflict(_)), "{refused}");
    assert_eq!((one.active().as_str(), three.epoch_at_witness().await), ("a", 2));
    assert_eq!(one.chain.core.switch("b", order(2)).await.unwrap().epoch, 3);
}

#[tokio::test(start_paused = true)]
async fn without_the_witness_nobody_moves_and_each_gateway_says_so() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    for gateway in &gateways {
        gateway.witness.set(Fault::Refused);
    }
    sleep(5 * SECOND).await;
    for gateway in &gateways {
        assert_eq!(gateway.granted_on(&three).await, "a", "both engines answer");
        let failover = gateway.failover();
        assert!(!failover.witness.up && failover.next_switch.starts_with("the witness is out: "), "{failover:?}");
    }
    for gateway in &gateways {
        gateway.cut(0);
    }
    sleep(60 * SECOND).await;
    for gateway in &gateways {
        assert_eq!((gateway.active().as_str(), gateway.chain.status().epoch), ("a", 0));
        let refused = gateway.claim(&a_claim()).await.unwrap_err();
        assert!(refused.is_unavailable(), "one engine alone is not enough: {refused}");
        let refused = gateway.chain.switch("b").await.unwrap_err();
        assert!(matches!(refused, ChainSwitchError::WitnessOut { .. }), "{refused}");
    }
    for gateway in &gateways {
        gateway.witness.set(Fault::None);
    }
    gateways[0].wait_until_active("b").await;
    assert_eq!(three.epoch_at_witness().await, 1, "and once it is back, they do");
}

#[tokio::test(start_paused = true)]
async fn the_chain_never_goes_back_by_itself_and_an_operator_switches_under_the_same_epoch() {
    let three = Three::new();
    let gateways = three.three_gateways().await;
    for gateway in &gateways {
        gateway.cut(0);
    }
    for gateway in &gateways {
        gateway.wait_until_active("b").await;
    }
    for gateway in &gateways {
        gateway.engines[0].set(Fault::None);
    }
    sleep(LEASE + 60 * SECOND).await;
    assert_eq!(gateways[1].active(), "b", "the first engine is back");
    for gateway in &gateways {
        gateway.cut(1);
    }
    sleep(120 * SECOND).await;
    assert_eq!((gateways[1].active().as_str(), three.epoch_at_witness().await), ("b", 1));
    assert!(gateways[1].failover().next_switch.contains("only an operator returns"));
    let switched = gateways[1].chain.switch("a").await.unwrap();
    assert_eq!((switched.epoch, three.epoch_at_witness().await), (2, 2));
    for gateway in &gateways {
        gateway.wait_until_active("a").await;
        assert_eq!(gateway.failover().last_switch.unwrap().cause, SwitchCause::Operator);
        assert_eq!(gateway.granted_on(&three).await, "a", "without a freeze");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_can_leave_a_dead_engine_at_once() {
    let three = Three::new();
    let [one, two, _third] = three.three_gateways().await;
    one.cut(0);
    let switched = one.chain.switch("b").await.unwrap();
    assert_eq!((switched.epoch, three.epoch_at_witness().await, three.stores.epoch_at(1).await), (1, 1, 1));
    two.wait_until_active("b").await;
    assert_eq!(two.granted_on(&three).await, "b");
}

/// Without a witness such a gateway would continue with the old engine.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_reaches_the_old_engine_alone_grants_nothing() {
    let three = Three::new();
    let [one, two, alone] = three.three_gateways().await;
    alone.cut(1);
    alone.witness.set(Fault::Refused);
    sleep(3 * SECOND).await;
    let refused = alone.claim(&a_claim()).await.unwrap_err();
    assert!(refused.is_unavailable() && refused.to_string().contains("have to answer"), "{refused}");
    for gateway in [&one, &two] {
        gateway.cut(0);
    }
    one.wait_until_active("b").await;
    for _ in 0..600 {
        assert!(alone.claim(&a_claim()).await.is_err());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_switches_at_the_same_time_are_one() {
    for round in 0..20 {
        let three = Three::new();
        let gateways = three.three_gateways().await;
        for gateway in &gateways {
            gateway.cut(0);
        }
        sleep(Duration::from_millis(100 * round)).await;
        let by_hand = gateways[1].chain.switch("b").await;
        for gateway in &gateways {
            gateway.wait_until_active("b").await;
        }
        sleep(5 * SECOND).await;
        let done = three.trail().iter().filter(|entry| entry.ends_with(": switched")).count();
        assert_eq!(done + usize::from(by_hand.is_ok()), 1, "round {round}: {by_hand:?}, {:?}", three.trail());
        assert_eq!((three.epoch_at_witness().await, three.stores.epoch_at(1).await), (1, 1));
    }
}

/// A gateway that reaches the old and the new engine reads the switch later, from the engine to which it was copied.
#[tokio::test(start_paused = true)]
async fn a_switch_that_only_the_witness_has_is_completed_after_each_gateway_could_read_it() {
    let three = Three::new();
    let [one, two, third] = three.three_gateways().await;
    for gateway in [&one, &two] {
        gateway.cut(0);
        gateway.cut(1);
    }
    third.witness.set(Fault::Refused);
    let record = three.witness.get_metadata("failover.main").await.unwrap();
    let closing = ChainState::closing(&one.chain.core.view().state, "b", 7);
    let closing = closing.to_metadata().unwrap();
    let begun = three.witness.compare_and_set_metadata("failover.main", record.as_ref(), &closing);
    assert_eq!(begun.await, Ok(true));
    sleep(15 * SECOND).await;
    assert_eq!(one.chain.status().phase, Phase::Closing);
    assert_eq!(third.granted_on(&three).await, "a", "it cannot know, and need not yet");
    one.engines[1].set(Fault::None);
    let grants = Arc::new(Mutex::new((Duration::ZERO, None)));
    one.becomes("it is completed", async || {
        let now = three.stores.clock.monotonic();
        if third.claim(&a_claim()).await.is_ok() && third.active() == "a" {
            grants.lock().unwrap().0 = now;
        }
        if one.claim(&a_claim()).await.is_ok() {
            grants.lock().unwrap().1.get_or_insert(now);
        }
        grants.lock().unwrap().1.is_some() && three.epoch_at_witness().await == 1
    })
    .await;
    let (last_on_a, first_on_b) = *grants.lock().unwrap();
    assert!(first_on_b.unwrap() > last_on_a, "{first_on_b:?} {last_on_a:?}");
}

#[tokio::test(start_paused = true)]
async fn a_witness_that_lost_its_record_gets_it_again_only_while_both_engines_answer() {
    let mut three = Three::new();
    let gateways = three.three_gateways().await;
    for gateway in &gateways {
        gateway.cut(0);
    }
    gateways[0].wait_until_active("b").await;
    drop(gateways);
    three.witness = Arc::new(Memory::new(three.stores.clock.clone(), BYTES_MAX_DEFAULT));
    // It reaches the old engine, which was out during the switch.
    let misled = three.gateway_with(|engines, _| engines[1].set(Fault::Refused));
    sleep(10 * SECOND).await;
    assert!(misled.claim(&a_claim()).await.is_err(), "neither knows of the switch");
    let failover = misled.failover();
    assert!(failover.witness.detail.contains("has no record of the chain"), "{failover:?}");
    misled.engines[1].set(Fault::None);
    misled.wait_until_active("b").await;
    misled.becomes("the record is back", async || three.epoch_at_witness().await == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_people_switch_and_one_of_another_configuration_stay() {
    let three = Three::new();
    let start = |change: fn(&mut FailoverSetup)| {
        let (mut setup, engines) = three.stores.setup(OnDataLoss::Resume);
        let mut failover = with_witness(three.witness.clone());
        change(&mut failover);
        setup.failover = Some(failover);
        (Chain::start(setup), engines)
    };
    let (manual, of_manual) = start(|setup| setup.mode = FailoverMode::Manual);
    let (usual, of_usual) = start(|_| {});
    sleep(12 * SECOND).await;
    for engine in of_manual.iter().chain(&of_usual).step_by(2) {
        engine.set(Fault::Refused);
    }
    usual_moves(&usual).await;
    assert!(manual.status().failover.unwrap().next_switch.contains("manual"));

    let three = Three::new();
    let [one, two, _third] = three.three_gateways().await;
    let (mut setup, engines) = three.stores.setup(OnDataLoss::Resume);
    setup.failover = Some(FailoverSetup { after: 9 * SECOND, ..with_witness(three.witness.clone()) });
    let _other = Chain::start(setup);
    sleep(12 * SECOND).await;
    one.cut(0);
    two.cut(0);
    engines[0].set(Fault::Refused);
    sleep(60 * SECOND).await;
    assert_eq!(one.active(), "a");
    assert!(one.failover().next_switch.contains("other engines in this chain"), "{:?}", one.failover());
}

/// Both gateways see the store out, and one of them may switch.
fn usual_moves(chain: &Chain) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    Box::pin(async {
        for _ in 0..60 {
            if chain.status().active == "b" {
                return;
            }
            sleep(SECOND).await;
        }
        panic!("not in a minute: {:?}", chain.status());
    })
}

/// The others have not read it when their store goes out.
#[tokio::test(start_paused = true)]
async fn a_hold_stops_automatic_switches_at_every_gateway_until_it_ends() {
    let hold = |until| Some(Hold { until, who: "alice".into(), reason: "INC-1: restart".into() });
    for ends_by_itself in [true, false] {
        let three = Three::new();
        let gateways = three.three_gateways().await;
        let end = three.stores.clock.wall().plus(120 * SECOND);
        let stopped = gateways[0].chain.set_hold(hold(ends_by_itself.then_some(end))).await.unwrap().unwrap();
        assert!(
            stopped.hold.is_some() && stopped.next_switch.starts_with("`alice` holds automatic switches"),
            "{stopped:?}"
        );
        for gateway in &gateways {
            gateway.cut(0);
        }
        sleep(60 * SECOND).await;
        for gateway in &gateways {
            assert_eq!((gateway.active().as_str(), gateway.failover().hold), ("a", stopped.hold.clone()));
        }
        assert_eq!(three.trail(), Vec::<String>::new());
        if ends_by_itself {
            sleep(61 * SECOND).await;
        } else {
            let ended = gateways[1].chain.set_hold(None).await.unwrap().unwrap();
            assert_eq!(ended.hold, None);
        }
        for gateway in &gateways {
            gateway.wait_until_active("b").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_by_hand_is_for_chains_that_gateways_switch_and_needs_the_witness() {
    let three = Three::new();
    let [one, ..] = three.three_gateways().await;
    let hold = Hold { until: None, who: "alice".into(), reason: "INC-1".into() };
    one.witness.set(Fault::Refused);
    assert!(one.chain.set_hold(Some(hold.clone())).await.is_err());
    assert_eq!(one.failover().hold, None);
    let (mut setup, _engines) = three.stores.setup(OnDataLoss::Resume);
    setup.failover = Some(FailoverSetup { mode: FailoverMode::Manual, ..with_witness(three.witness.clone()) });
    assert_eq!(Chain::start(setup).set_hold(Some(hold)).await, Ok(None));
}
