//! The state of a chain as operators see it, and the results of a switch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use oncegate_core::engine::EngineError;

/// State of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChainStatus {
    /// Names of its engines, in order.
    pub engines: Vec<String>,
    /// The active engine.
    pub active: String,
    /// Number of switches so far.
    pub epoch: u64,
    /// Whether the chain grants claims, or is being switched.
    pub phase: Phase,
    /// The engine that the chain is being switched to.
    pub switching_to: Option<String>,
    /// Time that is left of a grant freeze.
    #[serde(skip)]
    pub frozen_for: Option<Duration>,
}

/// Phase of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No claims are granted while every gateway learns of the switch.
    Closing,
    /// Claims go to the active engine.
    Open,
}

/// A completed switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switched {
    /// The active engine before.
    pub from: String,
    /// The active engine now.
    pub to: String,
    /// Number of switches, this one included.
    pub epoch: u64,
}

/// Reason why a chain was not switched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChainSwitchError {
    /// The chain has no such engine.
    #[error("the chain has no engine `{to}`; it has: {}", engines.join(", "))]
    UnknownEngine {
        /// The requested engine.
        to: String,
        /// The engines of the chain.
        engines: Vec<String>,
    },
    /// The engine is active already.
    #[error("`{0}` is the active engine already")]
    AlreadyActive(String),
    /// Another switch is in progress.
    #[error("the chain is being switched to `{0}`; wait until that is done")]
    InProgress(String),
    /// The engine to switch to does not answer; nothing was changed.
    #[error("engine `{to}` does not answer ({why}); a chain can be switched only to an engine that answers")]
    Unavailable {
        /// The engine.
        to: String,
        /// Its failure.
        why: EngineError,
    },
    /// Another operator switched the chain at the same time, and won.
    #[error("another operator switched the chain to `{0}` at the same time")]
    Conflict(String),
    /// The switch has started, or may have, and the engine to switch to stopped answering. Gateways that know of it grant nothing.
    #[error(
        "engine `{to}` stopped answering during the switch ({why}); the chain grants nothing until it answers again, and the \
         switch then completes by itself; or, after ten seconds, switch to another engine"
    )]
    Incomplete {
        /// The engine.
        to: String,
        /// Its failure.
        why: EngineError,
    },
}
