//! A store of shards: while one is dead, all entries of the others are delivered.

use oncegate_core::clock::{ManualClock, Timestamp};
use oncegate_core::engine::Topology as _;
use oncegate_core::engine::faulty::{Fault, Faulty};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::sharded::Sharded;
use tokio::time::timeout;

use super::super::*;
use super::support::*;

#[tokio::test]
async fn while_one_shard_is_dead_all_entries_of_the_others_are_delivered() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    let memory = |_| Arc::new(Faulty::always(Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)), Fault::None));
    let shards: Vec<_> = (0..3).map(memory).collect();
    let store = Arc::new(Sharded::new(shards.iter().map(|shard| shard.clone() as Arc<dyn Engine>).collect()));
    let world = World::over(clock, store.clone(), ROOMY).await;
    for shard in &shards {
        shard.set(Fault::Refused);
    }
    // Many of the dead shard come first.
    let (mut of_dead, mut of_others) = (0, Vec::new());
    while of_dead < 300 || of_others.len() < 40 {
        let claim = request(&world, ClaimOnOutage::FailOpen);
        if store.shard_of(&claim.key) == 1 {
            of_dead += 1;
        } else if of_dead >= 300 {
            of_others.push(claim.clone());
        } else {
            continue;
        }
        assert_eq!(summary(&world.claim(&claim).await), (FAIL_OPEN, "granted"));
    }

    shards[0].set(Fault::None);
    shards[2].set(Fault::None);
    let delivered = async {
        while world.journal.status().entries > of_dead {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(15), delivered).await.expect("they wait for nothing");
    for claim in of_others {
        assert_eq!(world.held(&claim).await.unwrap().record.attempt, claim.attempt);
        let grants = world.gateway.0.read_grants(&claim.key).await.unwrap();
        assert!(grants.iter().map(|grant| &grant.attempt).eq([&claim.attempt]), "{grants:?}");
    }
    shards[1].set(Fault::None);
    world.back().await;
}
