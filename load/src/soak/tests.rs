//! Verdicts about growth, and a short run on the memory engine.

use std::time::Duration;

use super::growth::{Usage, judge};
use super::{ROUNDS_MIN, Soak, run};
use crate::{contender::Contender, report, tests::built_gateway};

const MIB: u64 = 1 << 20;

type Leak = fn(u64) -> Usage;

/// Returns what is said to grow if each round uses this.
fn grown(use_of: impl Fn(u64) -> Usage) -> Vec<String> {
    let uses: Vec<_> = (0..12).map(use_of).collect();
    judge(&uses).iter().filter(|growth| growth.is_too_much()).map(ToString::to_string).collect()
}

fn steady() -> Usage {
    Usage { memory_bytes: 60 * MIB, descriptors: 40, threads: 8, store_bytes: 100 * MIB }
}

#[test]
fn what_grows_with_every_round_is_named() {
    let leaks: [(&str, Leak); 4] = [
        ("memory", |round| Usage { memory_bytes: (60 + 4 * round) * MIB, ..steady() }),
        ("descriptors", |round| Usage { descriptors: 40 + 4 * round, ..steady() }),
        ("threads", |round| Usage { threads: 8 + 2 * round, ..steady() }),
        ("store", |round| Usage { store_bytes: (100 + 20 * round) * MIB, ..steady() }),
    ];
    for (name, leak) in leaks {
        let grown = grown(leak);
        assert!(grown.len() == 1 && grown[0].starts_with(name), "{name}: {grown:?}");
    }
}

#[test]
fn what_fills_up_at_first_or_varies_a_little_is_steady() {
    let filling = |round: u64| Usage {
        store_bytes: round.min(4) * 25 * MIB,
        memory_bytes: (40 + round.min(3) * 10) * MIB,
        ..steady()
    };
    let varying =
        |round: u64| Usage { store_bytes: (90 + round % 4 * 5) * MIB, descriptors: 40 + round % 3, ..steady() };
    assert_eq!((grown(filling), grown(varying)), (Vec::new(), Vec::new()));
}

/// Everything but the growth, which so few seconds do not show.
#[tokio::test]
async fn a_short_run_on_memory_keeps_its_promises() {
    let Some(gateway) = built_gateway() else {
        return report::say("SKIPPED: the gateway is not built; run `cargo build`");
    };
    let soak = Soak {
        only: vec![Contender::Memory],
        rounds: ROUNDS_MIN,
        measured: Duration::from_secs(1),
        per_second: 50,
        gateway: Some(gateway),
        dir: None,
    };
    let (soaked, _) = run(soak).await.expect("not soaked");
    let engine = &soaked.engines[0];
    assert!(engine.broken == 0 && engine.held > 100 && engine.growth.len() == 4, "{soaked}");
}
