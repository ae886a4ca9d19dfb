//! Faults under load, one round or many: acknowledged writes that were lost, double grants, and the waiting times of
//! callers. One row for each fault and URL; `docs/engines/redis.md` has the counts of many rounds.

mod counts;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use oncegate_testkit::output::print;
use tokio::time::sleep;

use self::counts::{Counts, HEAD};
use self::servers::Servers;
use super::load::{Load, lost};
use super::{now, open};

/// Callers: 8 for each shard.
const CALLERS: u16 = 24;
/// The shard that faults happen to.
const STRUCK: u16 = 0;
/// Time before a fault, and after it.
const BEFORE: Duration = Duration::from_millis(400);
const AFTER: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// SIGKILL to the primary. It comes back after the promotion, with its append-only file.
    Kill,
    /// SIGKILL to a replica.
    KillReplica,
    /// The primary and the other nodes do not reach one another. Clients reach all of them.
    CutOff,
    /// SIGSTOP to the primary, until a replica was promoted.
    Stop,
    /// 4,000 slots move to another shard, and back.
    Reshard,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lag {
    None,
    /// One of the replicas.
    One,
    All,
}

/// A fault, the servers that it happens to, and the URL.
struct Row {
    name: &'static str,
    fault: Fault,
    /// True if Sentinels name the primary. Otherwise it is a cluster of three.
    sentinels: bool,
    /// Replicas of each primary, and how many must acknowledge.
    replicas: usize,
    asked: usize,
    lag: Lag,
    /// True if no acknowledged write may be lost.
    safe: bool,
}

const fn on_cluster(name: &'static str, fault: Fault, replicas: usize, asked: usize) -> Row {
    Row { name, fault, sentinels: false, replicas, asked, lag: Lag::None, safe: asked == replicas }
}

const KILL: Row = on_cluster("kill-1-of-1", Fault::Kill, 1, 1);
const KILL_OF_TWO: Row = on_cluster("kill-2-of-2", Fault::Kill, 2, 2);
const KILL_LAGGING: Row = Row { lag: Lag::All, ..on_cluster("kill-lagging", Fault::Kill, 1, 0) };
const CUT_OFF: Row = on_cluster("cut-off", Fault::CutOff, 1, 1);
const STOP: Row = on_cluster("stop", Fault::Stop, 1, 1);

const ROWS: [Row; 16] = [
    KILL,
    KILL_OF_TWO,
    on_cluster("kill-1-of-2", Fault::Kill, 2, 1),
    Row { lag: Lag::One, ..on_cluster("kill-1-of-2-one-lags", Fault::Kill, 2, 1) },
    on_cluster("kill-async", Fault::Kill, 1, 0),
    KILL_LAGGING,
    on_cluster("kill-replica-1-of-1", Fault::KillReplica, 1, 1),
    Row { safe: true, ..on_cluster("kill-replica-1-of-2", Fault::KillReplica, 2, 1) },
    CUT_OFF,
    on_cluster("cut-off-async", Fault::CutOff, 1, 0),
    STOP,
    on_cluster("stop-async", Fault::Stop, 1, 0),
    on_cluster("reshard", Fault::Reshard, 1, 1),
    Row { sentinels: true, ..on_cluster("sentinel-kill-2-of-2", Fault::Kill, 2, 2) },
    Row { sentinels: true, ..on_cluster("sentinel-kill-async", Fault::Kill, 2, 0) },
    Row { sentinels: true, ..on_cluster("sentinel-stop-2-of-2", Fault::Stop, 2, 2) },
];

impl Row {
    /// Runs rounds one after the other, on the same servers.
    async fn run(&self, rounds: usize) -> Option<Counts> {
        let mut servers = Servers::start(self).await?;
        let query = if self.asked > 0 { format!("?replicas={}", self.asked) } else { String::new() };
        let redis = Arc::new(open(&format!("{}{query}", servers.url())));
        let mut counts = Counts::default();
        for _ in 0..rounds {
            let load = Load::start(&redis, CALLERS);
            load.answered_since(Duration::ZERO, STRUCK).await;
            sleep(BEFORE).await;
            servers.lag(self.lag);
            let struck = now();
            let ready = servers.strike(self).await;
            load.answered_since(ready, STRUCK).await;
            let healed = now();
            sleep(AFTER).await;
            let ledger = load.stop().await;
            servers.heal(self).await;
            counts.add(&ledger, struck..healed, ready);
            counts.lost(lost(&*redis, &ledger).await);
        }
        counts.stale_writes = servers.stale_writes;
        Some(counts)
    }

    /// Runs one round, and checks what it promises.
    async fn check(&self) {
        let Some(counts) = self.run(1).await else { return };
        print(HEAD);
        print(counts.row(self));
        counts.check(self);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_loses_nothing_that_all_its_replicas_acknowledged() {
    KILL.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_of_three_loses_nothing_that_both_replicas_acknowledged() {
    KILL_OF_TWO.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lagging_replica_loses_is_counted() {
    KILL_LAGGING.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_cut_off_but_answers_acknowledges_nothing_that_is_lost() {
    CUT_OFF.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_stopped_and_goes_on_acknowledges_nothing_that_is_lost() {
    STOP.check().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour: make faults-cluster"]
async fn faults_in_many_rounds() {
    #[expect(clippy::disallowed_methods, reason = "the settings of a run by hand")]
    let setting = |name: &str| std::env::var(name).ok();
    let rounds = setting("ROUNDS").map_or(20, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let only = setting("ROW");
    print(HEAD);
    let mut broken = Vec::new();
    for row in ROWS.iter().filter(|row| only.as_deref().is_none_or(|only| row.name == only)) {
        let Some(counts) = row.run(rounds).await else { return };
        print(counts.row(row));
        broken.extend(counts.broken(row));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
