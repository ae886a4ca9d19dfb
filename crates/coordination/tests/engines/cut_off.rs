//! A member that has lost the others, while clients reach all of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_testkit::tcp_proxy::Mode;
use oncegate_testkit::wait;

use super::{Cluster, again, engine, granted, is_duplicate, serves_again};

/// The member that is cut off.
const ALONE: usize = 2;

/// Twice the time in which members notice that they have lost one another.
const CUT: Duration = Duration::from_secs(10);

/// The first gateway knows only the member that is cut off; the second one knows all. After each grant of the second one, the
/// answers of the first one must be true, even while its member still acts as the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_cut_off_grants_nothing_and_shows_nothing_old() {
    let Some(mut cluster) = Cluster::start_with_cable(ALONE).await else { return };
    // The one that is cut off leads: it has most reason to believe in its data.
    while let Some(other) = cluster.leader().filter(|leader| *leader != ALONE) {
        cluster.restart(other);
        assert!(cluster.is_ready().await);
    }
    let open = |url: &str| engine::open(url, engine::Options::default()).expect("a good URL");
    let scheme = cluster.url().split_once("://").expect("a URL").0.to_owned();
    let there = open(&format!("{scheme}://{}?members=fixed", cluster.addresses()[ALONE]));
    let here = open(&cluster.url());
    for mode in [Mode::Blackhole, Mode::HalfOpen] {
        for engine in [&there, &here] {
            serves_again(engine).await;
        }
        cluster.set_cable(mode);
        let clock = SystemClock::new();
        let was_refused = AtomicBool::new(false);
        while clock.monotonic() < CUT {
            let request = fresh_claim();
            // A lost call is repeated with the same attempt.
            wait::until("a grant", Duration::from_secs(20), async || {
                matches!(here.claim(&request, DEADLINE).await, Ok(ClaimResponse::Granted(_)))
            })
            .await;
            let read = there.read(&request.key).await;
            assert!(!matches!(read, Ok(None)), "{mode:?}: it shows the time before the grant");
            let second = there.claim(&again(&request), DEADLINE).await;
            assert!(!matches!(second, Ok(ClaimResponse::Granted(_))), "{mode:?}: granted twice");
            was_refused.fetch_or(second.is_err(), Ordering::Relaxed);
        }
        assert!(was_refused.into_inner(), "{mode:?}: it was cut off");
        cluster.set_cable(Mode::Pass);
        serves_again(&there).await;
        let request = fresh_claim();
        granted(&here, &request).await;
        assert!(is_duplicate(&there, &again(&request)).await, "{mode:?}: it follows again");
    }
}
