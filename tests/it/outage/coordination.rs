//! A coordination service of three members, and faults of one member or of all, while two gateways use it.

use std::time::Duration;

#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::history::check::explained_within;
use oncegate_testkit::output::print;
use oncegate_testkit::wait::until;
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::{SHORTEST_LEASE, Seen, Store, gateway, watch_all, workload};

/// Time by which something may end later than by the clocks of callers: the clock of the store stops while no member
/// serves.
const LATE: Duration = Duration::from_secs(20);

/// A fault of members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The leader gets SIGKILL; started again with its data.
    LeaderKilled,
    /// The leader gets SIGSTOP, until the others have another one.
    LeaderStopped,
    /// A member that follows gets SIGKILL; started again with its data.
    FollowerKilled,
    /// A member that follows gets SIGSTOP.
    FollowerStopped,
    /// All but one get SIGSTOP: there is no quorum.
    QuorumStopped,
}

const FAULTS: [Fault; 5] =
    [Fault::LeaderKilled, Fault::LeaderStopped, Fault::FollowerKilled, Fault::FollowerStopped, Fault::QuorumStopped];

/// Members that a test can stop.
trait Members {
    fn url(&self) -> String;
    fn size(&self) -> usize;
    fn leader(&self) -> Option<usize>;
    fn kill(&mut self, member: usize);
    fn restart(&mut self, member: usize);
    fn freeze(&mut self, member: usize);
    fn thaw(&mut self, member: usize);
    async fn is_ready(&mut self) -> bool;
}

macro_rules! members {
    ($cluster:ident) => {
        impl Members for $cluster {
            fn url(&self) -> String {
                self.url()
            }

            fn size(&self) -> usize {
                self.size()
            }

            fn leader(&self) -> Option<usize> {
                self.leader()
            }

            fn kill(&mut self, member: usize) {
                self.kill(member);
            }

            fn restart(&mut self, member: usize) {
                self.restart(member);
            }

            fn freeze(&mut self, member: usize) {
                $cluster::freeze(self, member);
            }

            fn thaw(&mut self, member: usize) {
                $cluster::thaw(self, member);
            }

            async fn is_ready(&mut self) -> bool {
                self.is_ready().await
            }
        }
    };
}

#[cfg(feature = "etcd")]
members!(EtcdCluster);
#[cfg(feature = "zookeeper")]
members!(ZooKeeperCluster);

/// A cluster, and the members that a fault has struck.
struct Struck<C> {
    cluster: C,
    members: Vec<usize>,
}

impl<C: Members> Struck<C> {
    /// Returns the leader, once there is one.
    async fn leader(&self) -> usize {
        let mut leader = None;
        until("a leader", Duration::from_secs(20), async || {
            leader = self.cluster.leader();
            leader.is_some()
        })
        .await;
        leader.expect("a leader")
    }
}

impl<C: Members> Store for Struck<C> {
    type Fault = Fault;

    fn url(&self) -> String {
        self.cluster.url()
    }

    fn direct_url(&self) -> String {
        self.cluster.url()
    }

    async fn strike(&mut self, fault: Fault) {
        let leader = self.leader().await;
        let follower = (leader + 1) % self.cluster.size();
        self.members = match fault {
            Fault::LeaderKilled | Fault::LeaderStopped => vec![leader],
            Fault::FollowerKilled | Fault::FollowerStopped => vec![follower],
            Fault::QuorumStopped => vec![leader, follower],
        };
        for member in self.members.clone() {
            match fault {
                Fault::LeaderKilled | Fault::FollowerKilled => self.cluster.kill(member),
                Fault::LeaderStopped | Fault::FollowerStopped | Fault::QuorumStopped => self.cluster.freeze(member),
            }
        }
        if fault == Fault::LeaderStopped {
            // The stopped one comes back as a leader that does not know of it.
            until("another leader", Duration::from_secs(30), async || {
                self.cluster.leader().is_some_and(|other| other != leader)
            })
            .await;
        }
    }

    async fn mend(&mut self, fault: Fault) {
        for member in std::mem::take(&mut self.members) {
            match fault {
                Fault::LeaderKilled | Fault::FollowerKilled => self.cluster.restart(member),
                Fault::LeaderStopped | Fault::FollowerStopped | Fault::QuorumStopped => self.cluster.thaw(member),
            }
        }
        assert!(self.cluster.is_ready().await, "all members run again");
    }
}

/// Compares the observations with the promises. Grants show that no lease ends early, exactly by the clocks of callers.
fn assert_promises(seen: &Seen, fault: Fault) {
    print(format_args!("{fault:?}: {seen}"));
    assert_eq!(seen.double_grants(), [], "{fault:?}: granted twice");
    let echoes = explained_within(&seen.history, SHORTEST_LEASE / 4, LATE);
    print(format_args!("{fault:?}: {echoes} keys were held for a lease by a call that was sent twice"));
    seen.assert_in_time(&fault, false, Duration::ZERO);
}

async fn run(cluster: Option<impl Members>, rounds: usize) {
    let Some(cluster) = cluster else { return };
    let mut struck = Struck { cluster, members: Vec::new() };
    let gateways = [gateway(&struck, "").await, gateway(&struck, "").await];
    for fault in FAULTS.into_iter().flat_map(|fault| std::iter::repeat_n(fault, rounds)) {
        let seen = watch_all(&mut struck, fault, &[&gateways[0], &gateways[1]], workload()).await;
        assert_promises(&seen, fault);
    }
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_true_under_faults_of_an_etcd_cluster() {
    run(EtcdCluster::start().await, 1).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: make test-coordination"]
async fn every_answer_is_true_under_many_faults_of_an_etcd_cluster() {
    run(EtcdCluster::start().await, 20).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_true_under_faults_of_zookeeper() {
    run(ZooKeeperCluster::start().await, 1).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: make test-coordination"]
async fn every_answer_is_true_under_many_faults_of_zookeeper() {
    run(ZooKeeperCluster::start().await, 20).await;
}
