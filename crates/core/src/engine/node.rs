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
    /// The shard that it is part of: its number is the same for as long as the gateway runs.
    pub shard: u16,
    /// True if the gateway is connected to it; for a replica, if the store itself reaches it.
    pub up: bool,
    /// State of the breaker in front of the shard; of a primary, and only where there is a breaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
    /// Differences from the promises of the engine's URL.
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
}

impl NodeRole {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_the_names_of_the_admin_api() {
        for role in [NodeRole::Primary, NodeRole::Replica] {
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
    }
}
