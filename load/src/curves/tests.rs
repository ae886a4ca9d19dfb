//! The table, and the shortest curves on the memory engine.

use std::time::Duration;

use super::{Axis, Curve, Curves, Extent, Point, run};
use crate::{contender::Contender, report, tests::built_gateway};

#[test]
fn a_curve_has_a_column_for_each_value_and_its_slope() {
    let point = |value, gateway_us, store_us| Point { value, gateway_us, store_us: Some(store_us), memory_mib: 40.0 };
    let points = vec![point(10, 20.0, 5.0), point(1000, 30.0, 5.0)];
    let curves = vec![
        Curve { axis: Axis::Locks, engine: Contender::Redis, points },
        Curve { axis: Axis::Locks, engine: Contender::Postgres, points: vec![point(10, 20.0, 5.0)] },
    ];
    let table =
        Curves { seconds: 1.0, rounds: 1, all: curves, skipped: Vec::new(), setting: "this".into() }.to_string();
    for row in [
        "| held locks | 10 | 1000 | last to first |",
        "| redis: gateway, µs | 20.0 | 30.0 | 1.50 |",
        "| redis: store, µs | 5.0 | 5.0 | 1.00 |",
        "| redis: gateway, MiB | 40.0 | 40.0 | 1.00 |",
        "| postgres: store, µs | 5.0 | – | 1.00 |",
    ] {
        assert!(table.contains(row), "{row}: {table}");
    }
}

/// Everything but the figures, which a busy machine makes meaningless.
#[tokio::test]
async fn every_curve_is_measured_on_memory() {
    let Some(gateway) = built_gateway() else {
        return report::say("SKIPPED: the gateway is not built; run `cargo build`");
    };
    let extent = Extent {
        axes: Vec::new(),
        only: vec![Contender::Memory],
        measured: Duration::from_secs(1),
        rounds: 1,
        most: 100,
        gateway: Some(gateway),
        dir: None,
    };
    let (curves, held) = run(extent).await.expect("not measured");
    assert!(held && curves.all.len() == Axis::ALL.len(), "{curves}");
    let last = |axis| curves.all.iter().find(|it| it.axis == axis).and_then(|it| it.points.last()).expect("a point");
    assert!(last(Axis::Batch).value == 100 && last(Axis::Results).value == 0, "{curves}");
}
