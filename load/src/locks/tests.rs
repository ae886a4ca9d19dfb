//! Statistics of the figures, and a short run of both subjects on the memory engine.

use std::time::Duration;

use super::{Extent, Subject, caller::sum, hand_overs::HandOvers, run, taken::Times, turns::figures};
use crate::{contender::Contender, goals::Goals, report, tests::built_gateway};

#[test]
fn half_of_the_calls_took_at_most_the_median() {
    let mut times = Times::new().expect("a histogram");
    for ms in (1..=100).rev() {
        times.add(Duration::from_millis(ms));
    }
    let is_about = |share, wanted: f64| (times.ms(share) - wanted).abs() < wanted / 500.0;
    assert!(is_about(0.5, 50.0) && is_about(0.99, 99.0) && is_about(1.0, 100.0), "p50 {} ms", times.ms(0.5));
}

#[test]
fn a_grant_to_the_same_caller_is_no_hand_over() {
    let hand_overs = HandOvers::start(Duration::from_secs(2));
    for caller in [7, 7, 3, 7, 7] {
        hand_overs.held_by(caller);
    }
    assert_eq!((hand_overs.count(), hand_overs.grants()), (3, 5));
    assert!((hand_overs.each_second() - 1.5).abs() < 1e-9);
}

#[test]
fn only_series_of_this_name_and_label_are_summed() {
    let page = "# HELP calls of the store\ncalls{call=\"claim\"} 3\ncalls{call=\"probe\"} 4\ncalls_total{call=\"probe\"} 90\n\
        calls 1\n";
    assert_eq!((sum(page, "calls", ""), sum(page, "calls", "call=\"probe\""), sum(page, "other", "")), (8, 4, 0));
}

#[test]
fn hand_overs_are_compared_to_each_lock_that_was_measured() {
    let table = |engine, waiters, peers| {
        let taken = figures(engine, waiters, Some(100.0), [Some(4.1), Some(3.9)], peers);
        Goals(&taken.targets).to_string()
    };
    let both = table(Contender::Redis, 2, vec![("redis-py", 10.0), ("a single etcd", 51.0)]);
    assert!(both.contains("redis-py's lock | 10.00 | ≥ 10.00 | reached"), "{both}");
    assert!(both.contains("a single etcd's lock | 1.96 | ≥ 2.00 | MISSED"), "{both}");
    assert!(both.contains("2 callers, redis | 4.10 | ≤ 4.00 | MISSED"), "{both}");
    assert!(both.contains("2 fair callers, redis | 3.90 | ≤ 4.00 | reached"), "{both}");
    let one = table(Contender::Redis, 64, vec![("redis-py", 51.0)]);
    assert!(one.contains("redis-py's lock | 1.96 | ≥ 2.00 | MISSED") && !one.contains("etcd"), "{one}");
    let wanted = |engine, name, waiters| table(engine, waiters, vec![(name, 25.0)]);
    assert!(wanted(Contender::Etcd, "etcd", 2).contains("| 4.00 | ≥ 5.00 | MISSED"));
    assert!(wanted(Contender::Etcd, "etcd", 64).contains("| 4.00 | ≥ 2.00 | reached"));
    assert!(wanted(Contender::ZooKeeper, "Curator", 2).contains("| 4.00 | ≥ 2.00 | reached"));
}

/// Everything but the figures, which a busy machine makes meaningless.
#[tokio::test]
async fn figures_of_locks_and_waiting_are_measured_on_memory() {
    let Some(gateway) = built_gateway() else {
        return report::say("SKIPPED: the gateway is not built; run `cargo build`");
    };
    let extent = |subject| Extent {
        subject,
        only: vec![Contender::Memory],
        measured: Duration::from_secs(1),
        rounds: 1,
        callers: 50,
        wait: Duration::from_secs(6),
        gateway: Some(gateway.clone()),
        dir: None,
    };
    let (locks, waiting) = tokio::join!(run(extent(Subject::Locks)), run(extent(Subject::Waiting)));
    for (measured, targets) in [(locks, 3), (waiting, 2)] {
        let (figures, is_sound) = measured.expect("it was not measured");
        assert!(is_sound && figures.skipped.is_empty() && figures.targets.len() == targets, "{figures}");
        assert!(!figures.to_string().contains("not measured"), "{figures}");
    }
}
