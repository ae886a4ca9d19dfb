//! The servers of a store, as operators see them.

use serde::Serialize;

use super::breaker::BreakerState;

/// A server of a store that has several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Node {
    /// Host and port.
    pub address: String,
    /// Role of the node.
    pub role: NodeRole,
    /// The version that it reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The shard that it is part of: its number is the same for as long as the gateway runs.
    pub shard: u16,
    /// True if the gateway is connected to it; for a replica, if the store itself reaches it; for a member of a cluster with a quorum, if
    /// it answered when the gateway last asked it.
    pub up: bool,
    /// State of the breaker in front of the shard; of a primary, and only where there is a breaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
    /// Differences from the promises of the engine's URL, and other reasons to look at the server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Role of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// Accepts writes.
    Primary,
    /// Follows a primary.
    Replica,
    /// Leads a cluster with a quorum.
    Leader,
    /// Follows a leader, and counts for the quorum.
    Follower,
    /// Follows a leader, and does not count for the quorum.
    Learner,
    /// The server does not say, or does not answer.
    Unknown,
}

impl NodeRole {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_the_names_of_the_admin_api() {
        use NodeRole::{Follower, Leader, Learner, Primary, Replica, Unknown};
        for role in [Primary, Replica, Leader, Follower, Learner, Unknown] {
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
    }
}
