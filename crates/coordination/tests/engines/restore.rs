//! A backup that is restored under a gateway that runs.

use std::time::Duration;

use oncegate_core::engine::conformance::DEADLINE;
use oncegate_core::engine::{RecordName, Records as _, Topology as _};

use super::{Cluster, again, granted, is_duplicate, leased, open, serves_again, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_is_a_loss_of_data_and_the_clock_goes_on_above_what_was_seen() {
    let Some(mut cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let (kept, lost) = (leased(Duration::from_mins(10)), leased(Duration::from_mins(10)));
    granted(&engine, &kept).await;
    let backup = cluster.back_up();
    let name = RecordName::Metadata("none".into());
    let now = async || engine.get_record(&name, DEADLINE).await.map(|view| view.now).unwrap_or_default();
    // A backup that is older than the last step of the clock. A younger one looks like the store itself.
    let backed_up_at = now().await;
    soon("the clock advances", async || now().await > backed_up_at.plus(Duration::from_millis(500))).await;
    granted(&engine, &lost).await;
    let before = now().await;
    cluster.restore(&backup);
    assert!(cluster.is_ready().await);
    soon("the loss is noticed", async || engine.data_lost() > 0).await;
    serves_again(&engine).await;
    assert_eq!(engine.data_lost(), 1);
    assert!(now().await >= before);
    assert!(is_duplicate(&engine, &again(&kept)).await, "what the backup has stays, and its lease has not ended");
    granted(&engine, &again(&lost)).await;
}
