//! The state of a chain as operators see it, and the results of a switch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::EngineError;

/// How a chain stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChainStatus {
    /// The names of its engines, in order.
    pub engines: Vec<String>,
    /// The engine in use.
    pub active: String,
    /// How often it was switched.
    pub epoch: u64,
    /// Whether it takes claims, or is being switched.
    pub phase: Phase,
    /// The engine that it is being switched to.
    pub switching_to: Option<String>,
    /// For how long it grants nothing yet because its store lost its data.
    #[serde(skip)]
    pub held_for: Option<Duration>,
}

/// Whether a chain takes claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No claims, while every gateway gets to know of the switch.
    Closing,
    /// Claims go to the active engine.
    Open,
}

/// A switch that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switched {
    /// The engine that was in use before.
    pub from: String,
    /// The engine in use now.
    pub to: String,
    /// How often the chain was switched, this time included.
    pub epoch: u64,
}

/// Why a chain was not switched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSwitched {
    /// The chain has no such engine.
    #[error("the chain has no engine `{to}`; it has: {}", engines.join(", "))]
    Unknown {
        /// What was asked for.
        to: String,
        /// What there is.
        engines: Vec<String>,
    },
    /// It is in use already.
    #[error("`{0}` is the active engine already")]
    AlreadyActive(String),
    /// Somebody else is switching the chain.
    #[error("the chain is being switched to `{0}`; wait until that is done")]
    UnderWay(String),
    /// The engine to switch to does not answer; nothing was changed.
    #[error("engine `{to}` does not answer, and has to ({why})")]
    Silent {
        /// The engine.
        to: String,
        /// What is wrong with it.
        why: EngineError,
    },
    /// Somebody else switched at the same time, and goes before.
    #[error("somebody else switched the chain at the same time, to `{0}`")]
    Overtaken(String),
    /// It was begun, or may have been, and the engine to switch to stopped answering. Gateways that saw it grant nothing.
    #[error(
        "engine `{to}` stopped answering under way ({why}); the chain grants nothing until it answers again, and the switch \
         is then finished by itself; or switch to another engine, in ten seconds at the earliest"
    )]
    Unfinished {
        /// The engine.
        to: String,
        /// What is wrong with it.
        why: EngineError,
    },
}
