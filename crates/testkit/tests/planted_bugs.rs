//! Proof of the history checker: it finds each planted bug, and reports nothing without one. On virtual time, so that a seed
//! replays.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_testkit::fresh;
use oncegate_testkit::history::check::check;
use oncegate_testkit::history::planted::{Bug, BuggyService, VirtualClock};
use oncegate_testkit::history::workload::{Service, Workload};
use oncegate_testkit::history::{History, SKEW};
use oncegate_testkit::output::print;
use tokio_util::sync::CancellationToken;

/// Length of each run, in virtual time.
const LENGTH: Duration = Duration::from_secs(5);

/// Number of runs in which a bug must be found.
const RUNS: u64 = 10;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn workload(seed: u64, on_lease_end: LeaseEnd) -> Workload {
    let retentions = vec![Retention::For(ms(300)), Retention::Forever];
    let terms = Terms { lease: ms(100), retention: Retention::Forever, unknown_retention: retentions[0], on_lease_end };
    let leases = [40, 100, 250].map(ms).to_vec();
    Workload { seed, callers: 24, keys: 8, events_per_key: 14, terms, leases, retentions, pace: ms(10) }
}

/// Runs the workload on a store with this bug. Returns the histories without an explanation, and the number of keys.
async fn unexplained(bug: Bug, seed: u64) -> (Vec<String>, usize) {
    let clock = Arc::new(VirtualClock::start());
    let history = History::new(clock.clone());
    let service: Arc<dyn Service> = Arc::new(BuggyService::new(bug, seed, clock));
    let stop = CancellationToken::new();
    let on_lease_end = if seed.is_multiple_of(2) { LeaseEnd::Release } else { LeaseEnd::Unknown };
    let running = workload(seed, on_lease_end).run(vec![service], history.clone(), stop.clone());
    tokio::join!(running, async {
        tokio::time::sleep(LENGTH).await;
        stop.cancel();
    });
    let keys = history.keys();
    let found = keys.values().filter_map(|events| Some(check(events, SKEW).err()?.to_string())).collect();
    (found, keys.len())
}

async fn assert_caught(bug: Bug) {
    let first = fresh::number() >> 8;
    print(format_args!("seed {first}"));
    for seed in first..first + RUNS {
        let (found, keys) = unexplained(bug, seed).await;
        if !found.is_empty() {
            print(format_args!("{bug:?}: caught at {} of {keys} keys, the first:\n{}", found.len(), found[0]));
            return;
        }
    }
    panic!("{bug:?} was not caught in {RUNS} runs from seed {first}");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_bugs_is_always_explained() {
    let first = fresh::number() >> 8;
    print(format_args!("seed {first}"));
    for seed in first..first + RUNS {
        let (found, keys) = unexplained(Bug::None, seed).await;
        assert!(keys > 100, "only {keys} keys");
        assert!(found.is_empty(), "seed {seed}: {} of {keys}, the first:\n{}", found.len(), found[0]);
    }
}

macro_rules! caught {
    ($($name:ident: $bug:ident)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            assert_caught(Bug::$bug).await;
        }
    )*};
}

caught! {
    a_delete_without_compare_is_caught: DeleteWithoutCompare
    a_timeout_reported_as_a_grant_is_caught: TimeoutTakenAsClaimed
    a_timeout_reported_as_a_duplicate_is_caught: TimeoutTakenAsDuplicate
    an_ignored_nonce_is_caught: NonceIgnored
    an_undo_of_an_unknown_claim_is_caught: UndoOfUnknownClaim
    a_late_renewal_that_shortens_is_caught: LateRenewalShortens
    a_sweeper_that_deletes_a_renewed_claim_is_caught: SweeperDeletesRenewed
    a_retry_with_another_attempt_is_caught: RetryWithAnotherAttempt
    a_failure_that_undoes_a_success_is_caught: FailureUndoesSuccess
    a_late_outcome_that_is_dropped_is_caught: LateOutcomeDropped
    a_lease_reported_too_long_is_caught: LeaseReportedTooLong
    a_lease_that_never_ends_is_caught: LeaseNeverEnds
    a_check_and_set_in_two_steps_is_caught: CheckThenSet
    a_fence_issued_too_early_is_caught: FenceIssuedEarly
}
