//! The members of a cluster, for operators. A task of each engine looks at all of them from time to time, apart from
//! calls.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::engine::{Node, NodeRole};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::url::Address;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(4500);

/// Limit of a look at a member. All members are looked at together.
pub const LOOK_TIMEOUT: Duration = Duration::from_millis(800);

/// Longest text of a server that is shown.
const TEXT_CHARS_MAX: usize = 120;

/// Members as the last look has shown them.
pub struct Members {
    /// Name of the server, for the log.
    engine: &'static str,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    nodes: Vec<Node>,
    /// Warnings that were logged, by address.
    logged: BTreeSet<(String, String)>,
}

impl Members {
    /// Creates the record of members that were not looked at yet.
    pub fn new(engine: &'static str) -> Self {
        Self { engine, seen: Mutex::default() }
    }

    /// Returns the members; none before the first look.
    pub fn nodes(&self) -> Vec<Node> {
        self.seen().nodes.clone()
    }

    /// Records a look at all members, and logs each new warning.
    pub fn record(&self, nodes: Vec<Node>) {
        for (member, warning) in self.seen().replace(nodes) {
            tracing::warn!(engine = self.engine, member, warning, "A member of the cluster needs attention");
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Replaces the members. Returns the warnings that are new. A member that does not answer keeps its warnings, so
    /// that they are not new when it answers again.
    fn replace(&mut self, nodes: Vec<Node>) -> Vec<(String, String)> {
        let of =
            |node: &Node| node.warnings.iter().map(|text| (node.address.clone(), text.clone())).collect::<Vec<_>>();
        let present: BTreeSet<_> = nodes.iter().flat_map(of).collect();
        let is_silent = |address: &String| nodes.iter().any(|node| node.address == *address && !node.up);
        let new = present.difference(&self.logged).cloned().collect();
        self.logged.retain(|logged| present.contains(logged) || is_silent(&logged.0));
        self.logged.extend(present);
        self.nodes = nodes;
        new
    }
}

/// Most members that are known at once.
pub const MEMBERS_MAX: usize = 31;

/// Returns the members of the URL, and those that a cluster lists.
pub fn with_listed(own: &[Address], listed: impl IntoIterator<Item = Address>) -> Vec<Address> {
    let mut members = own.to_vec();
    for address in listed {
        if members.len() >= MEMBERS_MAX {
            break;
        }
        if !members.contains(&address) {
            members.push(address);
        }
    }
    members
}

/// Returns a member that does not answer.
pub fn silent(address: &Address) -> Node {
    Node {
        address: address.to_string(),
        role: NodeRole::Unknown,
        version: None,
        shard: 0,
        up: false,
        breaker: None,
        warnings: Vec::new(),
    }
}

/// Returns a text of a server, short and without control characters.
pub fn text(reported: &str) -> String {
    reported.chars().filter(|char| !char.is_control()).take(TEXT_CHARS_MAX).collect()
}

/// Waits until the next look is due. Returns false if `closing` is cancelled before.
pub async fn is_due(closing: &CancellationToken) -> bool {
    let pause = jittered(INTERVAL, INTERVAL / 5, SystemEntropy.bits());
    closing.run_until_cancelled(sleep(pause)).await.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(up: bool, warnings: &[&str]) -> Node {
        let address = Address { host: "e1".into(), port: 2379 };
        Node { up, warnings: warnings.iter().map(ToString::to_string).collect(), ..silent(&address) }
    }

    #[test]
    fn a_warning_is_new_until_it_was_logged_and_again_after_it_was_gone() {
        let mut seen = Seen::default();
        for (nodes, new) in [
            (node(true, &["a learner"]), 1),
            (node(true, &["a learner"]), 0),
            (node(true, &["a learner", "no leader"]), 1),
            (node(false, &[]), 0),
            (node(true, &["a learner"]), 0),
            (node(true, &[]), 0),
            (node(true, &["a learner"]), 1),
        ] {
            assert_eq!(seen.replace(vec![nodes.clone()]).len(), new, "{nodes:?}");
            assert_eq!(seen.nodes, [nodes]);
        }
    }

    #[test]
    fn members_are_known_once_and_not_without_end() {
        let address = |number: u16| Address { host: format!("e{number}"), port: 2379 };
        let own = [address(0), address(1)];
        assert_eq!(with_listed(&own, [address(1), address(2), address(2)]), [0, 1, 2].map(address));
        assert_eq!(with_listed(&own, (0..1000).map(address)).len(), MEMBERS_MAX);
    }

    #[test]
    fn a_text_of_a_server_is_short_and_has_no_control_characters() {
        assert_eq!(text("3.9.4\n\u{1b}[31m"), "3.9.4[31m");
        assert_eq!(text(&"x".repeat(1000)).len(), TEXT_CHARS_MAX);
    }
}
