//! A primary that was killed while its writes waited for a replica, and started again from its append-only file. It has
//! data that no replica has. No call may be answered from this data, since a promotion of the replica would lose it.

use futures_util::future::{LocalBoxFuture, join_all};
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{
    ChangePurpose, Claims as _, EngineError, RecordChange, RecordName, Records as _, SharedRecord,
};
use oncegate_core::operator::ReleaseRequest;
use oncegate_core::record::ClaimState;
use oncegate_redis::Redis;

use super::acknowledged::pair;
use super::{
    DEADLINE, Duration, RedisCluster, RedisServer, again, batch, claim_on, fresh_claim, granted, is_duplicate, name,
    open, renew, settle, soon, success,
};

const AOF: [&str; 2] = ["appendonly yes", "appendfsync always"];

/// A primary and its replica, alone or in a cluster.
enum Servers {
    Alone(Box<(RedisServer, RedisServer)>),
    Cluster(RedisCluster),
}

impl Servers {
    fn url(&self) -> String {
        match self {
            Self::Alone(pair) => pair.0.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn primary(&mut self) -> &mut RedisServer {
        match self {
            Self::Alone(pair) => &mut pair.0,
            Self::Cluster(cluster) => &mut cluster.nodes[0],
        }
    }

    fn replica(&mut self) -> &mut RedisServer {
        match self {
            Self::Alone(pair) => &mut pair.1,
            // The replicas of the three primaries follow them, in their order.
            Self::Cluster(cluster) => &mut cluster.nodes[3],
        }
    }

    /// Returns a claim whose key is at the primary.
    fn claim(&self) -> ClaimRequest {
        match self {
            Self::Alone(_) => fresh_claim(),
            Self::Cluster(cluster) => claim_on(cluster, 0),
        }
    }

    /// Returns the record of a lock at the primary.
    fn lock(&self) -> RecordName {
        let here = |number: &usize| match self {
            Self::Alone(_) => true,
            Self::Cluster(cluster) => cluster.primary_of(&format!("og:lock:{{shop/lock-{number}}}")) == 0,
        };
        let number = (0..1000).find(here).expect("a lock of each shard");
        RecordName::Lock("shop".parse().unwrap(), format!("lock-{number}").parse().unwrap())
    }

    /// Kills the primary and promotes the replica. Returns the URL that leads there.
    async fn fail_over(&mut self) -> String {
        self.primary().kill();
        self.replica().restart().await;
        match self {
            Self::Alone(pair) => {
                pair.1.query::<()>("REPLICAOF NO ONE");
                pair.1.url()
            }
            Self::Cluster(cluster) => {
                cluster.nodes[3].query::<()>("CLUSTER FAILOVER TAKEOVER");
                cluster.url()
            }
        }
    }
}

/// Calls whose writes wait for the replica, and their subjects.
struct Unacknowledged {
    claimed: ClaimRequest,
    settled: ClaimRequest,
    released: ClaimRequest,
    lock: RecordName,
}

impl Unacknowledged {
    /// Makes calls that are answered, kills the replica, and makes calls that get no answer.
    async fn make(redis: &Redis, servers: &mut Servers) -> Self {
        let [claimed, settled, released] = [servers.claim(), servers.claim(), servers.claim()];
        let made = Self { claimed, settled, released, lock: servers.lock() };
        soon("the replica acknowledges", async || redis.claim(&made.settled, DEADLINE).await.is_ok()).await;
        granted(redis, &made.released).await;
        // After the first synchronisation a replica writes its file again, and a crash loses the writes that it
        // acknowledges during that time.
        soon("the replica has written its file", async || {
            let state: String = servers.replica().query("INFO persistence");
            ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"].iter().all(|is_over| state.contains(is_over))
        })
        .await;
        servers.replica().kill();
        let reports = [settle(&made.settled, success("1")), settle(&made.released, Outcome::Failure)];
        let locks = change(&made.lock);
        let (claim, outcome, release, change) = tokio::join!(
            redis.claim(&made.claimed, DEADLINE),
            redis.settle(&reports[0], DEADLINE),
            redis.settle(&reports[1], DEADLINE),
            redis.change_record(&locks, DEADLINE),
        );
        for failure in [claim.map(drop), outcome.map(drop), release.map(drop), change.map(drop)] {
            assert!(failure.as_ref().is_err_and(EngineError::is_shortfall), "no replica has it: {failure:?}");
        }
        made
    }

    /// Makes every kind of call at once, and returns those that were answered from data that no replica has.
    async fn answers(&self, redis: &Redis) -> Vec<String> {
        let Self { claimed, settled, released, lock } = self;
        let others = [again(claimed), again(settled), again(released)];
        let outcomes = [settle(claimed, Outcome::Unknown), settle(settled, success("1"))];
        let renewal = renew(claimed, None);
        let by_operator = ReleaseRequest { key: settled.key.clone(), attempt: others[1].attempt.clone(), result: None };
        let change = change(lock);
        let waiting = ClaimRequest { waits: true, ..again(settled) };
        let waiting_again = ClaimRequest { waits: true, ..claimed.clone() };
        let calls: Vec<(&str, LocalBoxFuture<'_, Result<String, EngineError>>)> = vec![
            ("a repeat", Box::pin(claim(redis, claimed))),
            ("a repeat that waits", Box::pin(claim(redis, &waiting_again))),
            ("a duplicate", Box::pin(claim(redis, &others[0]))),
            ("a duplicate of a success", Box::pin(claim(redis, &others[1]))),
            ("a claim that waits, of a success", Box::pin(claim(redis, &waiting))),
            ("a claim after a release", Box::pin(claim(redis, &others[2]))),
            ("a lookup", Box::pin(async { shown(redis.read(&claimed.key).await) })),
            ("a lookup of a success", Box::pin(async { shown(redis.read(&settled.key).await) })),
            ("a lookup of a release", Box::pin(async { shown(redis.read(&released.key).await) })),
            ("an outcome", Box::pin(async { shown(redis.settle(&outcomes[0], DEADLINE).await) })),
            ("a repeated outcome", Box::pin(async { shown(redis.settle(&outcomes[1], DEADLINE).await) })),
            ("a renewal", Box::pin(async { shown(redis.renew(&renewal, DEADLINE).await) })),
            ("a release", Box::pin(async { shown(redis.release(&by_operator).await) })),
            ("a lock", Box::pin(async { shown(redis.get_record(lock, DEADLINE).await) })),
            ("a change of a lock", Box::pin(async { shown(redis.change_record(&change, DEADLINE).await) })),
        ];
        let (names, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let answered = join_all(calls).await;
        let answered = names.into_iter().zip(answered).filter_map(|(name, answer)| Some((name, answer.ok()?)));
        let mut answers: Vec<_> = answered.map(|(name, answer)| format!("{name}: {answer}")).collect();
        let of_batch = batch(redis, &[claimed.clone(), again(settled)]).await;
        answers.extend(of_batch.into_iter().flatten().map(|answer| format!("a batch: {answer:?}")));
        answers
    }
}

/// Makes a claim. "In progress" is answered at once: this answer grants nothing, and its caller repeats the call.
async fn claim(redis: &Redis, request: &ClaimRequest) -> Result<String, EngineError> {
    match redis.claim(request, DEADLINE).await {
        Ok(ClaimResponse::Duplicate(found)) if found.record.state == ClaimState::InProgress => {
            Err(EngineError::unavailable("in progress"))
        }
        answer => shown(answer),
    }
}

fn shown<Answer: std::fmt::Debug>(answer: Result<Answer, EngineError>) -> Result<String, EngineError> {
    answer.map(|answer| format!("{answer:?}"))
}

fn change(name: &RecordName) -> RecordChange {
    RecordChange {
        name: name.clone(),
        expected: None,
        new: SharedRecord::versioned(7, b"value").unwrap(),
        lasts: Some(Duration::from_hours(1)),
        from: Timestamp::default(),
        before: Timestamp::from_micros(1 << 52),
        purpose: ChangePurpose::Grant,
        lease_max: Duration::ZERO,
        notifies: false,
    }
}

async fn nothing_is_answered_that_no_replica_has(mut servers: Servers) {
    let url = format!("{}?replicas=1", servers.url());
    let redis = open(&url);
    let made = Unacknowledged::make(&redis, &mut servers).await;
    servers.primary().kill();
    servers.primary().restart().await;
    let (primary, key) = (servers.primary().url(), name(&made.claimed));
    soon("the primary has kept it", async || RedisServer::try_query(&primary, &["EXISTS", &key]) == Ok(1)).await;
    // The same gateway, which opens its connections again, and a new one.
    let other = open(&url);
    for redis in [&redis, &other] {
        let probe = servers.claim();
        soon("it reaches the server, and waits for a replica", async || {
            redis.claim(&probe, DEADLINE).await.is_err_and(|failure| failure.is_shortfall())
        })
        .await;
        for _ in 0..2 {
            let answers = made.answers(redis).await;
            assert!(answers.is_empty(), "no replica has what this rests on:\n{}", answers.join("\n"));
        }
    }

    let promoted = open(&servers.fail_over().await);
    let other = again(&made.claimed);
    soon("the key is free at the replica", async || {
        matches!(promoted.claim(&other, DEADLINE).await, Ok(ClaimResponse::Granted(_)))
    })
    .await;
    assert!(is_duplicate(&promoted, &made.claimed).await, "the one holder is another one");
    for unfinished in [&made.settled, &made.released] {
        let found = promoted.read(&unfinished.key).await.unwrap().expect("it is claimed");
        assert_eq!((found.record.state, &found.record.attempt), (ClaimState::InProgress, &unfinished.attempt));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_one_primary_nothing_is_answered_that_no_replica_has() {
    let Some((primary, replica)) = pair().await else { return };
    nothing_is_answered_that_no_replica_has(Servers::Alone(Box::new((primary, replica)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_a_primary_of_a_cluster_nothing_is_answered_that_no_replica_has() {
    let Some(cluster) = RedisCluster::start_with(3, 1, &AOF).await else { return };
    nothing_is_answered_that_no_replica_has(Servers::Cluster(cluster)).await;
}
