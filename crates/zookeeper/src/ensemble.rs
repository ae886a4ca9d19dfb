//! The servers of the ensemble: looks at all of them for operators, apart from calls.

use std::sync::Arc;

use futures_util::future::join_all;
use oncegate_coordination::members::{self, LOOK_TIMEOUT};
use oncegate_coordination::url::Address;
use oncegate_core::engine::{Node, NodeRole};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::store::Store;
use super::words;

/// Warning about a server without others.
pub(super) const ONLY_SERVER: &str = "it is the only server: claims survive what its disk survives; run three servers";

/// Warning about a server whose version and mode cannot be seen.
pub(super) const WITHOUT_WORDS: &str =
    "it does not allow srvr, so its version and mode cannot be seen: set 4lw.commands.whitelist=srvr,mntr";

/// Looks at the servers until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    while let Some(nodes) = closing.run_until_cancelled(look(&store)).await {
        if let Some(is_durable) = is_durable(&nodes) {
            store.state.server.set_durable(is_durable);
        }
        store.state.members.record(nodes);
        if !members::is_due(&closing).await {
            return;
        }
    }
}

/// Asks every server with the word `srvr`.
async fn look(store: &Store) -> Vec<Node> {
    let ask = |address: Address| async move {
        let asked = timeout(LOOK_TIMEOUT, words::send(&store.url.common, &address, "srvr")).await;
        node(&address, asked.ok().flatten().as_deref())
    };
    join_all(store.members().into_iter().map(ask)).await
}

/// Returns whether acknowledged writes are durable: on all servers that answer, since any of them may lead, and lose what another
/// one has acknowledged. `None`: no server answers.
pub(super) fn is_durable(nodes: &[Node]) -> Option<bool> {
    let mut up = nodes.iter().filter(|node| node.up).peekable();
    up.peek()?;
    Some(up.all(|node| node.version.as_deref().is_some_and(words::is_durable)))
}

/// Returns a server with this answer to `srvr`.
fn node(address: &Address, answer: Option<&str>) -> Node {
    let silent = members::silent(address);
    match answer {
        Some(answer) if !words::is_allowed(answer) => {
            Node { up: true, warnings: vec![WITHOUT_WORDS.to_owned()], ..silent }
        }
        Some(answer) => match words::mode(answer) {
            Some(mode) => Node {
                role: role(mode),
                version: words::version(answer).map(members::text),
                up: true,
                warnings: (mode == "standalone").then(|| ONLY_SERVER.to_owned()).into_iter().collect(),
                ..silent
            },
            // It has no quorum, and serves nothing.
            None => silent,
        },
        None => silent,
    }
}

/// Returns the role of a server in this mode.
pub(super) fn role(mode: &str) -> NodeRole {
    match mode {
        "leader" | "standalone" => NodeRole::Leader,
        "follower" => NodeRole::Follower,
        "observer" => NodeRole::Learner,
        _ => NodeRole::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_what_srvr_says() {
        let address = Address { host: "z1".into(), port: 2181 };
        let node = |answer: Option<&str>| node(&address, answer);
        for (mode, expected) in [
            ("leader", NodeRole::Leader),
            ("follower", NodeRole::Follower),
            ("observer", NodeRole::Learner),
            ("standalone", NodeRole::Leader),
            ("read-only", NodeRole::Unknown),
        ] {
            let answer = format!("Zookeeper version: 3.9.4-7246, built on 2025\nMode: {mode}\nNode count: 5\n");
            let node = node(Some(&answer));
            assert_eq!((node.role, node.version.as_deref(), node.up), (expected, Some("3.9.4"), true), "{mode}");
            assert_eq!(!node.warnings.is_empty(), mode == "standalone", "{mode}");
        }
        assert_eq!(node(None), members::silent(&address));
        assert_eq!(
            node(Some("This ZooKeeper instance is not currently serving requests\n")),
            members::silent(&address)
        );
        let hidden = node(Some("srvr is not executed because it is not in the whitelist.\n"));
        assert!(hidden.up && hidden.warnings == [WITHOUT_WORDS], "{hidden:?}");
    }

    #[test]
    fn a_server_that_may_lose_writes_makes_all_of_them_not_durable() {
        let node = |up, version: Option<&str>| {
            let silent = members::silent(&Address { host: "z1".into(), port: 2181 });
            Node { up, version: version.map(str::to_owned), ..silent }
        };
        let [new, old, hidden, down] =
            [node(true, Some("3.9.4")), node(true, Some("3.8.4")), node(true, None), node(false, None)];
        for (nodes, expected) in [
            (vec![new.clone(), new.clone(), down.clone()], Some(true)),
            (vec![new.clone(), old, new.clone()], Some(false)),
            (vec![new, hidden], Some(false)),
            (vec![down], None),
            (vec![], None),
        ] {
            assert_eq!(is_durable(&nodes), expected, "{nodes:?}");
        }
    }
}
