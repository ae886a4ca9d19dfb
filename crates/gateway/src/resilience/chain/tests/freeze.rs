//! The grant freeze after data loss.

use oncegate_core::engine::sharded::Sharded;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_freeze_lasts_for_the_longest_lease() {
    let (stores, gateway) = Stores::kept().await;
    let mut long = fresh_claim();
    long.terms.lease = Duration::from_secs(45);
    gateway.claim(&long).await.unwrap();
    assert_eq!(gateway.chain.status().frozen_for, None);
    gateway.engines[0].lose_data();
    assert_eq!(gateway.chain.status().frozen_for, Some(Duration::from_secs(45)), "the longest that was asked for");
    sleep(Duration::from_secs(44)).await;
    let refused = gateway.claim(&fresh_claim()).await;
    assert!(is_paused(&refused), "{refused:?}");
    // An outcome is recorded, although the store has lost its claim.
    assert!(gateway.chain.settle(&settle(&long), DEADLINE).await.is_ok());
    sleep(Duration::from_secs(1)).await;
    gateway.granted().await;
    assert_eq!(gateway.chain.status().frozen_for, None);
    // A chain that resumes does not freeze.
    let resuming = stores.gateway();
    resuming.engines[0].lose_data();
    resuming.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_freeze_lasts_for_the_longest_renewed_lease() {
    let (_, gateway) = Stores::kept().await;
    let request = gateway.granted().await;
    let (minute, hour) = (Duration::from_mins(1), Duration::from_hours(1));
    let renewal = RenewalRequest { key: request.key, attempt: request.attempt, lease: Some(hour) };
    gateway.chain.renew(&renewal, DEADLINE).await.unwrap();
    gateway.engines[0].lose_data();
    assert_eq!(gateway.chain.status().frozen_for, Some(hour));
    sleep(minute * 59).await;
    assert!(is_paused(&gateway.claim(&fresh_claim()).await));
    sleep(minute).await;
    gateway.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_freeze_lasts_for_the_longest_lease_of_a_batch() {
    let (_, gateway) = Stores::kept().await;
    let (minute, hour) = (Duration::from_mins(1), Duration::from_hours(1));
    let requests = [minute, hour, minute].map(|lease| {
        let mut request = fresh_claim();
        request.terms.lease = lease;
        request
    });
    assert!(gateway.claim_batch(&requests).await.iter().all(Result::is_ok));
    gateway.engines[0].lose_data();
    assert_eq!(gateway.chain.status().frozen_for, Some(hour));
}

/// The rule of single claims, for a batch.
#[tokio::test(start_paused = true)]
async fn a_grant_of_a_batch_that_returns_after_a_switch_or_a_loss_is_not_delivered() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    there.engines[0].set(DELAYED);
    let requests = [fresh_claim(), fresh_claim()];
    let (late, switched) = tokio::join!(there.claim_batch(&requests), here.chain.switch("b"));
    switched.unwrap();
    assert!(late.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))), "{late:?}");

    let (_, gateway) = Stores::kept().await;
    gateway.engines[0].set(DELAYED);
    let lose = async {
        sleep(Duration::from_secs(1)).await;
        gateway.engines[0].lose_data();
    };
    let (late, ()) = tokio::join!(gateway.claim_batch(&requests), lose);
    assert!(late.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_freeze_still_answers_duplicates_that_the_store_knows() {
    let (_, gateway) = Stores::kept().await;
    let (running, done) = (gateway.granted().await, gateway.granted().await);
    gateway.chain.settle(&settle(&done), DEADLINE).await.unwrap();
    gateway.engines[0].lose_data();
    let again = |request: &ClaimRequest| ClaimRequest { attempt: fresh_claim().attempt, ..request.clone() };
    let other = ClaimRequest { fingerprint: Some([7; 32]), ..again(&done) };
    let requests = [again(&running), again(&done), other, fresh_claim(), running.clone()];
    for (position, in_batch) in gateway.claim_batch(&requests).await.into_iter().enumerate() {
        let alone = gateway.claim(&requests[position]).await;
        for answer in [in_batch, alone] {
            let is_known = match position {
                0 | 1 => matches!(answer, Ok(ClaimResponse::Duplicate(_))),
                2 => matches!(answer, Ok(ClaimResponse::Mismatch(_))),
                // No grant, also not a repeated one: the store may have lost another attempt's claim.
                _ => is_paused(&answer),
            };
            assert!(is_known, "{position}: {answer:?}");
        }
    }
}

/// A new store looks like a store that was emptied while all gateways were down, or before the first one started.
#[tokio::test(start_paused = true)]
async fn a_store_without_a_record_is_frozen_until_one_gateway_has_waited() {
    let stores = Stores::new(&["a"]);
    let first = stores.freezing_gateway();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first.chain.status().frozen_for, Some(Duration::from_secs(29)), "without a claim, too");
    let second = stores.freezing_gateway();
    assert!(is_paused(&second.claim(&fresh_claim()).await), "started later, and as careful");
    assert!(second.chain.settle(&settle(&fresh_claim()), DEADLINE).await.is_ok());
    sleep(Duration::from_secs(29)).await;
    first.granted().await;
    stores.freezing_gateway().granted().await;
    sleep(Duration::from_secs(1)).await;
    second.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_asks_policies_to_answer_where_the_store_cannot_say_whether_it_mark_as_kept() {
    let stores = Stores::new(&["a"]);
    let gateway = stores.gateway_with(OnDataLoss::Freeze, |engines| engines[0].set(Fault::Refused));
    let silent = gateway.claim(&fresh_claim()).await;
    assert!(matches!(silent, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{silent:?}");
    gateway.engines[0].set(Fault::None);
    assert!(is_paused(&gateway.claim(&fresh_claim()).await));
}

#[tokio::test(start_paused = true)]
async fn a_switch_causes_no_freeze_on_the_new_engine() {
    let stores = Stores::new(&["a", "b"]);
    mark_as_kept(&*stores.stores[0].1).await;
    let (here, there) = (stores.freezing_gateway(), stores.freezing_gateway());
    here.granted().await;
    here.chain.switch("b").await.unwrap();
    here.granted().await;
    there.wait_until_active("b").await;
    there.granted().await;
    stores.freezing_gateway().granted().await;
}

/// The store is reached again during a call: the loss is detected after the claim was sent.
#[tokio::test(start_paused = true)]
async fn a_grant_during_which_a_loss_is_detected_is_not_delivered() {
    let (_, gateway) = Stores::kept().await;
    gateway.engines[0].set(DELAYED);
    let lose = async {
        sleep(Duration::from_secs(1)).await;
        gateway.engines[0].lose_data();
    };
    let request = fresh_claim();
    let (answer, ()) = tokio::join!(gateway.claim(&request), lose);
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
}

/// A gateway over a store of three shards that have their data, and the shards.
fn gateway_over_shards() -> (Arc<Chain>, Arc<Sharded>, Vec<Arc<Faulty>>) {
    let clock: Arc<dyn Clock> = PausedClock::start();
    let memory = || Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let shards: Vec<_> = (0..3).map(|_| Arc::new(Faulty::always(memory(), Fault::None))).collect();
    let store = Arc::new(Sharded::new(shards.iter().map(|shard| shard.clone() as Arc<dyn Engine>).collect()));
    (chain_over(&store, clock), store, shards)
}

fn chain_over(store: &Arc<Sharded>, clock: Arc<dyn Clock>) -> Arc<Chain> {
    Arc::new(Chain::start(Setup {
        on_data_loss: OnDataLoss::Freeze,
        lease_max: Duration::from_secs(30),
        ..Setup::of_one("main", store.clone(), clock, Arc::new(SystemEntropy))
    }))
}

fn claims_of_each_shard(store: &Sharded) -> Vec<ClaimRequest> {
    let mut claims: Vec<_> = (0..3)
        .map(|shard| std::iter::repeat_with(fresh_claim).find(|claim| store.shard_of(&claim.key) == shard).unwrap())
        .collect();
    for claim in &mut claims {
        claim.terms.lease = Duration::from_secs(30);
    }
    claims
}

/// Makes one claim for each shard, in a batch and alone; returns the shards that grant none.
async fn frozen_shards(chain: &Chain, store: &Sharded) -> Vec<usize> {
    let (requests, alone) = (claims_of_each_shard(store), claims_of_each_shard(store));
    let answers = Mutex::new(vec![None; 3]);
    let sink = |position: usize, answer| answers.lock().unwrap()[position] = Some(answer);
    let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
    chain.claim_batch(&claims, &sink).await;
    let mut frozen = Vec::new();
    for (shard, in_batch) in answers.into_inner().unwrap().into_iter().enumerate() {
        let (in_batch, alone) = (in_batch.unwrap(), chain.claim(&alone[shard], DEADLINE).await);
        assert_eq!(is_paused(&in_batch), is_paused(&alone), "{in_batch:?} {alone:?}");
        assert_ne!(is_paused(&alone), alone.is_ok(), "{alone:?}");
        if is_paused(&alone) {
            frozen.push(shard);
        }
    }
    frozen
}

#[tokio::test(start_paused = true)]
async fn a_loss_of_one_shard_freezes_its_grants_only() {
    let (chain, store, shards) = gateway_over_shards();
    assert_eq!(frozen_shards(&chain, &store).await, [0, 1, 2], "they are new");
    sleep(Duration::from_secs(31)).await;
    assert_eq!(frozen_shards(&chain, &store).await, [0; 0]);
    shards[1].lose_data();
    assert_eq!(frozen_shards(&chain, &store).await, [1]);
    assert!(chain.status().frozen_for > Some(Duration::from_secs(29)));
    sleep(Duration::from_secs(15)).await;
    shards[2].lose_data();
    assert_eq!(frozen_shards(&chain, &store).await, [1, 2]);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(frozen_shards(&chain, &store).await, [2], "each for its own time");
    sleep(Duration::from_secs(15)).await;
    assert_eq!((frozen_shards(&chain, &store).await, chain.status().frozen_for), (vec![], None));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_starts_later_freezes_the_shard_that_lost_its_record_only() {
    let (chain, store, _) = gateway_over_shards();
    sleep(Duration::from_secs(32)).await;
    for shard in 0..3 {
        let store: &dyn Engine = &*store;
        let record = store.get_metadata(&store.metadata_name(shard, "kept.main")).await.unwrap();
        assert_eq!(record.unwrap().as_str(), "kept", "each shard has a record");
    }
    assert_eq!(frozen_shards(&chain, &store).await, [0; 0]);
    // The same store, except for a shard that came back empty while no gateway ran.
    let clock: Arc<dyn Clock> = PausedClock::start();
    let emptied: Arc<dyn Engine> = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let kept = || -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
    let store = Arc::new(Sharded::new(vec![kept(), emptied, kept()]));
    for shard in [0, 2] {
        let kept = Metadata::new("kept").unwrap();
        let store: &dyn Engine = &*store;
        store.compare_and_set_metadata(&store.metadata_name(shard, "kept.main"), None, &kept).await.unwrap();
    }
    let later = chain_over(&store, clock);
    assert_eq!(frozen_shards(&later, &store).await, [1]);
}
