//! The fault matrix for one shard of a Redis Cluster: its keys fail like those of a single server, and callers of the
//! other shards are not affected.

use std::time::Duration;

use oncegate_testkit::client::global_id;
use oncegate_testkit::history::{Answer, Call, Event, Reply};
use oncegate_testkit::output::print;
use oncegate_testkit::redis_cluster::{RedisCluster, slot_of};
use oncegate_testkit::tcp_proxy::Mode;

use super::redis::{DURABLE, FAULTS, Fault};
use super::{SHORTEST_LEASE, Seen, Store, gateway, percentile, times_count, watch};

/// The node that is struck. It keeps the slots up to [`LAST_SLOT`].
const STRUCK: usize = 0;
const LAST_SLOT: u16 = 16384 / 3 - 1;

/// Longest wait for another shard that a busy machine explains. Who waits for the struck one waits for a deadline.
const BUSY: Duration = Duration::from_millis(100);

/// A cluster of three primaries, and the way to one of them.
struct Shard(RedisCluster);

impl Store for Shard {
    type Fault = Fault;

    fn url(&self) -> String {
        self.0.url()
    }

    fn direct_url(&self) -> String {
        self.0.url()
    }

    async fn strike(&mut self, fault: Fault) {
        let node = &mut self.0.nodes[STRUCK];
        match fault {
            Fault::Stopped => node.freeze(),
            Fault::Killed => self.0.kill(STRUCK),
            Fault::Silent => self.0.way_to(STRUCK).set(Mode::Blackhole),
            Fault::HalfOpen => self.0.way_to(STRUCK).set(Mode::HalfOpen),
            Fault::Refused => self.0.way_to(STRUCK).refuse().await,
            Fault::Full => drop(node.query::<String>("CONFIG SET maxmemory 1")),
            Fault::Loading => node.restart_with(&["key-load-delay 300"]),
            Fault::Demoted => panic!("a node of a cluster refuses REPLICAOF"),
        }
    }

    async fn mend(&mut self, fault: Fault) {
        let node = &mut self.0.nodes[STRUCK];
        match fault {
            Fault::Stopped => node.thaw(),
            Fault::Killed => node.restart().await,
            Fault::Silent | Fault::HalfOpen | Fault::Refused => self.0.way_to(STRUCK).heal().await,
            Fault::Full => drop(node.query::<String>("CONFIG SET maxmemory 0")),
            Fault::Loading => assert!(node.is_ready().await),
            Fault::Demoted => panic!("a node of a cluster refuses REPLICAOF"),
        }
        // A primary that was away serves its slots only after a while.
        self.0.settled().await;
    }

    fn is_struck(&self, key: &str) -> bool {
        is_struck(key)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_one_shard_is_seen_by_callers_of_the_others() {
    let Some(cluster) = RedisCluster::start_apart(3, 0, &DURABLE).await else { return };
    let mut shard = Shard(cluster);
    let gateway = gateway(&shard, "").await;
    for fault in FAULTS.into_iter().filter(|fault| *fault != Fault::Demoted) {
        let mut seen = watch(&mut shard, fault, &gateway).await;
        seen.expect_open_for(is_struck);
        // Calls of a full one are answered.
        seen.assert_promises(&fault, fault != Fault::Full);
        assert_others_unharmed(&seen, fault);
    }
}

fn is_struck(key: &str) -> bool {
    slot_of(&format!("og:{{{}}}", global_id("default", &format!("\"{key}\"")))) <= LAST_SLOT
}

/// Returns the lease that a call requests.
fn lease_of(call: &Call) -> Option<Duration> {
    match call {
        Call::Claim { terms, .. } => Some(terms.lease),
        Call::Renew { lease, .. } => Some(*lease),
        Call::Settle { .. } => None,
    }
}

fn assert_others_unharmed(seen: &Seen, fault: Fault) {
    let (struck, others): (Vec<_>, Vec<_>) = seen.history.keys().into_iter().partition(|(key, _)| is_struck(key));
    let others: Vec<Event> = others.into_iter().flat_map(|(_, events)| events).collect();
    // On a busy machine some calls are late, those with the shortest leases first. A fault that is felt costs nearly all calls while the
    // shard is away.
    let is_judged = |event: &&Event| {
        times_count() || seen.away.contains(&event.started) && lease_of(&event.call) != Some(SHORTEST_LEASE)
    };
    let judged: Vec<_> = others.iter().filter(is_judged).collect();
    let lost: Vec<_> = judged.iter().filter(|event| !matches!(event.reply, Reply::Answered(_))).collect();
    let lost_max = if times_count() { 0 } else { judged.len() / 2 };
    assert!(lost.len() <= lost_max, "{fault:?}: of {} calls of other shards failed: {lost:#?}", judged.len());

    let is_grant = |event: &Event| matches!(event.reply, Reply::Answered(Answer::Granted { .. }));
    let mut grants = struck.iter().flat_map(|(_, events)| events).filter(|event| is_grant(event));
    assert!(grants.any(|event| event.started > seen.away.end), "{fault:?}: the shard grants nothing once it is back");

    let p99 = |during: &dyn Fn(&Event) -> bool| {
        let mut took: Vec<Duration> = others.iter().filter(|event| during(event)).map(Event::took).collect();
        took.sort_unstable();
        percentile(&took, 99)
    };
    let before = p99(&|event| event.started < seen.away.start);
    let during = p99(&|event| seen.away.contains(&event.started));
    let limit = before * 2 + seen.noop_p99 * 4 + BUSY;
    print(format_args!("{fault:?}: p99 of other shards {before:?} before, {during:?} during"));
    assert!(
        !times_count() || during <= limit,
        "{fault:?}: p99 of other shards is {during:?} during the fault, {before:?} before"
    );
}
