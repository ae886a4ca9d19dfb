//! Tests of the etcd engine on real clusters. What happens to members of a cluster is tested with whole gateways, in `tests/it`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod auth;
mod clock;
mod conformance;
mod full;
mod layout;
mod measure;
mod notifications;
mod quorum;
mod races;
mod sweeping;
mod tls;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::Engine;
use oncegate_core::terms::Terms;
use oncegate_etcd::Options;

use oncegate_testkit::calls::{again, granted, is_duplicate, serves_again, settle, success};

/// Options for a machine that other tests share: nothing is slow until it is very slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        sweep_interval: Duration::from_millis(50),
        ..Options::default()
    }
}

fn open(url: &str) -> impl Engine + use<> {
    oncegate_etcd::open(url, options()).expect("a good URL")
}

/// Waits until something holds.
async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    oncegate_testkit::wait::until(what, Duration::from_secs(10), holds).await;
}

/// Returns a claim with this lease.
fn leased(lease: Duration) -> ClaimRequest {
    let request = oncegate_core::engine::conformance::fresh_claim();
    ClaimRequest { terms: Terms { lease, ..request.terms }, ..request }
}

/// Returns the key of a claim.
fn key(request: &ClaimRequest) -> String {
    format!("/oncegate/c/{}/{}", request.key.global_id, request.key.app)
}
