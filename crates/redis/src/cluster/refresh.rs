//! Keeps the slot map up to date: now and then, and when a call or a connection finds that it is not. One refresh at a time; no
//! call waits for one but the first.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::engine::Determinate;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::layout::{self, Layout};
use super::map::{Promotion, SlotMap};
use super::views::Views;
use crate::address::Address;
use crate::library::{failure, with_files, without_timeouts};
use crate::primary::Primary;
use crate::url::Layout as Servers;

/// Time between two regular refreshes, and the maximum of a random addition.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(9), Duration::from_secs(2));
/// Between two refreshes at least.
const PAUSE: Duration = Duration::from_millis(100);
/// Limit of connecting to a node, and of its answer.
const LIMIT: Duration = Duration::from_millis(500);
/// For this long nodes that have not answered are waited for after one has.
const REST: Duration = Duration::from_millis(50);
/// Nodes that are asked at once. More views make it less likely that all are old.
const NODES: usize = 5;

/// Refreshes the map until the engine is closed.
pub(super) async fn run(shared: Arc<Shared>, closing: CancellationToken) {
    let forever = async {
        loop {
            match refresh(&shared).await {
                Ok(view) => apply(&shared, &view),
                Err(why) => {
                    let is_first = shared.map.load().shards().is_empty();
                    if is_first && shared.why_not.send_replace(Some(why.clone())) != Some(why.clone()) {
                        tracing::warn!(engine = "redis", reason = %why, "No node of the cluster can be asked; trying again");
                    }
                    shared.stale.notify_one();
                }
            }
            sleep(PAUSE).await;
            tokio::select! {
                () = shared.stale.notified() => {}
                () = sleep(jittered(INTERVAL.0, INTERVAL.1, SystemEntropy.bits())) => {}
            }
        }
    };
    closing.run_until_cancelled(forever).await;
}

/// Waits for the first map, or for the first failure to get one.
pub(super) async fn first_map(shared: &Shared) -> Result<Arc<SlotMap<Primary>>, Determinate> {
    let mut why_not = shared.why_not.subscribe();
    let initial = why_not.borrow_and_update().clone();
    let is_initial = matches!(&initial, Some(Determinate::Unavailable(why)) if why.ends_with("answered yet"));
    if is_initial {
        let _ = timeout(LIMIT + REST, why_not.changed()).await;
    }
    let why = why_not.borrow().clone();
    why.map_or_else(|| Ok(shared.map.load_full()), Err)
}

/// Asks nodes that are known, a few at a time, until some have answered. Returns the newest view.
async fn refresh(shared: &Shared) -> Result<Layout, Determinate> {
    let mut known = known(shared);
    let mut views = Views::new(shared.map.load().epoch(), known.len());
    let mut why = None;
    while !known.is_empty() && !views.have_best() {
        let few: Vec<_> = known.drain(..known.len().min(NODES)).collect();
        let mut asked: FuturesUnordered<_> = few.iter().map(|node| ask(shared, node)).collect();
        loop {
            let next =
                if views.are_enough() { timeout(REST, asked.next()).await.unwrap_or(None) } else { asked.next().await };
            match next {
                Some(Ok(view)) => views.add(view),
                // A node's own error explains more than another node's missing answer.
                Some(Err(failed)) => match why {
                    Some(Determinate::Incompatible(_)) => {}
                    _ => why = Some(failed),
                },
                None => break,
            }
        }
    }
    let unknown = || Determinate::Unavailable("no node of the cluster is known".into());
    views.believed().ok_or_else(|| why.unwrap_or_else(unknown))
}

/// Returns the nodes that may be asked, in random order: those of the map, then the seeds.
fn known(shared: &Shared) -> Vec<Address> {
    let map = shared.map.load();
    let mut known: Vec<_> =
        map.shards().iter().flat_map(|shard| shard.replicas.iter().chain([&shard.address])).cloned().collect();
    let turn = |known: &mut Vec<Address>| {
        for last in (1..known.len()).rev() {
            let other = SystemEntropy.bits() % (last as u64 + 1);
            known.swap(last, usize::try_from(other).unwrap_or(0));
        }
    };
    turn(&mut known);
    if let Servers::Cluster { seeds } = &shared.url.layout {
        let mut seeds: Vec<_> = seeds.iter().filter(|seed| !known.contains(seed)).cloned().collect();
        turn(&mut seeds);
        known.extend(seeds);
    }
    known
}

/// Asks a node over a separate connection: those of calls may be the ones that do not answer.
async fn ask(shared: &Shared, node: &Address) -> Result<Layout, Determinate> {
    let asked = async {
        let address = node.clone();
        let client = with_files(&shared.url, move |url| url.client(Some(&address))).await?;
        let config = without_timeouts();
        let failed = |error| Determinate::Unavailable(format!("{node}: {}", failure(&error)));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        let mut pipeline = redis::Pipeline::with_capacity(3);
        for command in layout::commands() {
            pipeline.add_command(command);
        }
        let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).await;
        Layout::read(replies.map_err(failed)?, node)
    };
    let late = |_| Err(Determinate::Unavailable(format!("{node} did not answer within {LIMIT:?}")));
    timeout(LIMIT, asked).await.unwrap_or_else(late)
}

/// Takes over a view.
pub(super) fn apply(shared: &Shared, view: &Layout) {
    let before = shared.map.load_full();
    let (map, promotions) = before.follow(view, |address| shared.node(address));
    for shard in map.shards() {
        let place = shard.marker_slot().map(|slot| (slot, shard.number));
        let health = shard.primary.health();
        // Finding the tag of a slot takes a while.
        if health.marker().and_then(|marker| marker.place) != place {
            health.set_marker(place.map(|(slot, shard)| shared.keys.marker_in(slot, shard)));
        }
    }
    let (uncovered, was_uncovered) = (map.uncovered(), before.uncovered());
    if uncovered > 0 && (uncovered != was_uncovered || before.shards().is_empty()) {
        tracing::warn!(
            engine = "redis",
            slots = uncovered,
            "Slots are not covered: no node of the cluster answers for them; run redis-cli --cluster check"
        );
    }
    shared.map.store(Arc::new(map));
    shared.why_not.send_replace(None);
    for Promotion { shard, from, to, replicas } in promotions {
        tracing::warn!(engine = "redis", shard, %from, %to, "A replica has become the primary of its shard");
        let attached = before.by_number(shard).map_or(0, |shard| shard.primary.health().replicas_max());
        let acknowledged = shared.url.acknowledgement.map_or(0, |asked| asked.replicas);
        // A replica that was away for a while may be promoted, too.
        if usize::try_from(acknowledged).unwrap_or(0) < replicas.max(attached).max(1) {
            shared.markers.lost(shard);
        }
    }
    forget_strangers(shared, &before);
}

/// Drops connections to nodes that answer for no slot. Those to former primaries are dropped at once, since such a node
/// must get nothing when it comes back. Those to other nodes stay while a call uses them: slots may be moving to these
/// nodes.
fn forget_strangers(shared: &Shared, before: &SlotMap<Primary>) {
    let map = shared.map.load();
    shared.nodes().retain(|address, primary| {
        let is_used = Arc::strong_count(primary) > 1 && !before.has_primary(address);
        is_used || map.shards().iter().any(|shard| shard.address == *address)
    });
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::address;
    use super::super::tests::{NODES, URL, cluster, view};
    use super::*;

    #[tokio::test]
    async fn each_primary_gets_the_marker_of_its_slots() {
        let cluster = cluster(URL, NODES);
        let places = || {
            let place = |primary: &Arc<Primary>| primary.health().marker().and_then(|marker| marker.place);
            cluster.primaries().iter().map(place).collect::<Vec<_>>()
        };
        assert_eq!(places(), [Some((5460, 0)), Some((10922, 1)), Some((16383, 2))]);
        let before = cluster.primaries()[0].health().marker().unwrap();
        apply(&cluster.shared, &view(NODES));
        assert!(Arc::ptr_eq(&before, &cluster.primaries()[0].health().marker().unwrap()), "it stays");
        let mut less = view(NODES);
        less.ranges[0].slots = 0..=5000;
        apply(&cluster.shared, &less);
        assert_eq!(places()[0], Some((5000, 0)));
    }

    #[tokio::test]
    async fn a_promotion_may_lose_data_unless_every_replica_had_acknowledged_it() {
        let (one, two): (&[&str], &[&str]) =
            (&["127.0.0.1:3", "127.0.0.1:5"], &["127.0.0.1:3", "127.0.0.1:5", "127.0.0.1:6"]);
        for (asked, nodes, losses) in [(0, one, 1), (1, one, 0), (1, two, 1), (2, two, 0), (0, NODES[1], 1)] {
            let url = if asked == 0 { URL.to_owned() } else { format!("{URL}?replicas={asked}") };
            let cluster = cluster(&url, [NODES[0], nodes, NODES[2]]);
            let mut after = view([NODES[0], &["127.0.0.1:5"], NODES[2]]);
            // It was a replica, and perhaps away.
            after.ranges[1].replica_ids.push(nodes[0].into());
            if nodes.len() == 1 {
                after.ranges[1].primary.id = nodes[0].into();
            }
            apply(&cluster.shared, &after);
            assert_eq!([0, 1, 2].map(|shard| cluster.losses(shard)), [0, losses, 0], "replicas={asked} of {nodes:?}");
            assert_eq!(cluster.data_losses(), 0);
        }
    }

    #[tokio::test]
    async fn a_promotion_may_lose_what_a_replica_has_not_acknowledged_that_no_view_has_shown() {
        for (attached, losses) in [(1, 0), (2, 1)] {
            let cluster = cluster(&format!("{URL}?replicas=1"), [NODES[0], &["127.0.0.1:3", "127.0.0.1:5"], NODES[2]]);
            cluster.primaries()[1].health().attach(attached);
            let mut after = view([NODES[0], &["127.0.0.1:5"], NODES[2]]);
            after.ranges[1].replica_ids.push("127.0.0.1:3".into());
            apply(&cluster.shared, &after);
            assert_eq!(cluster.losses(1), losses, "{attached} were attached");
        }
    }

    #[tokio::test]
    async fn connections_to_former_primaries_are_dropped_at_once_and_others_once_they_are_not_used() {
        let cluster = cluster(URL, [NODES[0], &["127.0.0.1:3", "127.0.0.1:5"], NODES[2]]);
        let has = |text: &str| cluster.shared.nodes().contains_key(&address(text));
        let former = cluster.shared.node(&address("127.0.0.1:3"));
        let asked = cluster.shared.node(&address("127.0.0.1:9"));
        cluster.shared.node(&address("127.0.0.1:8"));
        apply(&cluster.shared, &view([NODES[0], &["127.0.0.1:5"], NODES[2]]));
        assert_eq!(["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:5"].map(has), [true, false, true]);
        assert_eq!(["127.0.0.1:8", "127.0.0.1:9"].map(has), [false, true]);
        drop((former, asked));
        apply(&cluster.shared, &view([NODES[0], &["127.0.0.1:5"], NODES[2]]));
        assert!(!has("127.0.0.1:9"));
    }

    #[tokio::test]
    async fn all_nodes_may_be_asked_and_seeds_last() {
        let cluster =
            cluster("redis+cluster://127.0.0.1:1,127.0.0.1:2", [NODES[0], &["127.0.0.1:3", "127.0.0.1:5"], NODES[2]]);
        for _ in 0..20 {
            let mut asked: Vec<_> = known(&cluster.shared).iter().map(|node| node.port).collect();
            assert_eq!(asked.pop(), Some(1), "a seed that is no node of the map");
            asked.sort_unstable();
            assert_eq!(asked, [2, 3, 4, 5]);
        }
    }

    #[tokio::test]
    async fn the_first_map_ends_the_wait_for_it() {
        let cluster = cluster(URL, NODES);
        let map = first_map(&cluster.shared).await.unwrap();
        assert_eq!(map.shards().len(), 3);
        cluster.shared.why_not.send_replace(Some(Determinate::Unavailable("it is down".into())));
        assert!(first_map(&cluster.shared).await.is_err_and(|why| why.to_string().contains("it is down")));
    }
}
