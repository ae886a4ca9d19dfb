//! The wall clocks of servers, which do not count.

use std::time::Duration;

use oncegate_core::engine::{Claims as _, Topology as _};

use super::{Cluster, again, granted, is_duplicate, leased, open, serves_again, soon};

/// The time of a node is the wall clock of the server that leads, and jumps with it. The engine does not look at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_wall_clock_ends_no_lease() {
    let Some(library) = oncegate_testkit::missing::faketime() else { return };
    let Some(mut cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = leased(Duration::from_mins(10));
    granted(&engine, &request).await;
    for offset in ["+1h", "-1h"] {
        let env = [("LD_PRELOAD", &*library.to_string_lossy()), ("FAKETIME", offset), ("DONT_FAKE_MONOTONIC", "1")];
        cluster.restart_with(0, &env);
        assert!(cluster.is_ready().await);
        serves_again(&engine).await;
        assert!(is_duplicate(&engine, &again(&request)).await, "{offset}");
        let short = leased(Duration::from_millis(200));
        granted(&engine, &short).await;
        soon("its lease ends", async || engine.read(&short.key).await == Ok(None)).await;
    }
    assert_eq!(engine.data_lost(), 0);
}
