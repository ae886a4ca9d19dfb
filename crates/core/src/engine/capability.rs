//! Capabilities that a chain may require of its engines.

use serde::{Deserialize, Serialize};

use super::Capabilities;

/// A capability of an engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// [`Capabilities::durable`].
    Durable,
    /// [`Capabilities::strict_fence`].
    StrictFence,
    /// [`Capabilities::forever`].
    Forever,
    /// [`Capabilities::shared`].
    Shared,
}

impl Capability {
    /// Returns its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::StrictFence => "strict_fence",
            Self::Forever => "forever",
            Self::Shared => "shared",
        }
    }

    /// Returns whether these include it.
    pub fn is_in(self, capabilities: Capabilities) -> bool {
        match self {
            Self::Durable => capabilities.durable,
            Self::StrictFence => capabilities.strict_fence,
            Self::Forever => capabilities.forever,
            Self::Shared => capabilities.shared,
        }
    }
}
