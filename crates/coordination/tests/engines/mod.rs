//! Tests that both engines on coordination services pass, each on its own servers. `tests/it/main.rs` of an engine
//! includes this folder. It has `engine` (the crate), `Cluster`, and the actions of these tests on a cluster: `erase`,
//! `set_clock`, `delete_clock`, `delete_locks`, `has_key`.

mod cable;
mod clock;
mod conformance;
mod cut_off;
mod divided;
mod full;
mod garbage;
mod identity;
pub(super) mod inspected;
mod notifications;
mod races;
mod restore;
mod sweeping;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Determinate, Engine, EngineError, Node, NodeRole, Topology};
use oncegate_core::terms::Terms;
use oncegate_testkit::calls::{again, granted, is_duplicate, serves_again, settle, success};

use super::{Cluster, GRANTS_END, delete_clock, delete_locks, engine, erase, has_key, key, open, options, set_clock};

/// Waits until something holds.
pub(super) async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    oncegate_testkit::wait::until(what, Duration::from_secs(10), holds).await;
}

/// Waits until the engine says why it does not serve.
pub(super) async fn refusal(engine: &impl Engine) -> String {
    let mut why = String::new();
    soon("a refusal", async || {
        match engine.claim(&fresh_claim(), DEADLINE).await {
            Err(EngineError::Determinate(Determinate::Unavailable(text) | Determinate::Incompatible(text))) => {
                why = text;
            }
            other => assert!(other.is_err(), "{other:?}"),
        }
        !why.is_empty()
    })
    .await;
    assert!(!why.contains("hunter"), "{why}");
    why
}

/// Sets the store's clock to a time long ago.
fn set_clock_back(cluster: &Cluster) {
    set_clock(cluster, &1_u64.to_be_bytes());
}

/// Returns a claim with this lease.
pub(super) fn leased(lease: Duration) -> ClaimRequest {
    let request = fresh_claim();
    ClaimRequest { terms: Terms { lease, ..request.terms }, ..request }
}

/// Longest time until a look at the members has shown something.
pub(super) const SEEN: Duration = Duration::from_mins(1);

/// Waits until the engine shows its members like this.
pub(super) async fn shown(what: &str, engine: &impl Topology, is_so: impl Fn(&[Node]) -> bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    oncegate_testkit::wait::until(what, SEEN, async || {
        nodes = engine.nodes();
        is_so(&nodes)
    })
    .await;
    nodes
}

/// Returns the number of members with this role.
pub(super) fn count(nodes: &[Node], role: NodeRole) -> usize {
    nodes.iter().filter(|node| node.role == role).count()
}
