//! The state of a chain as operators see it, and the results of a switch.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use serde::{Deserialize, Serialize};

pub use super::failover::hold::Hold;

/// State of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChainStatus {
    /// Names of its engines, in order.
    pub engines: Vec<String>,
    /// The active engine.
    pub active: String,
    /// Number of switches so far.
    pub epoch: u64,
    /// Phase: the chain grants claims, or is being switched.
    pub phase: Phase,
    /// The engine that the chain is being switched to.
    pub switching_to: Option<String>,
    /// Time that is left of a grant freeze.
    #[serde(skip)]
    pub frozen_for: Option<Duration>,
    /// Its witness, and the obstacle to an automatic switch; `None` for a chain without a witness.
    pub failover: Option<FailoverStatus>,
}

/// State of a chain's failover, as one gateway knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FailoverStatus {
    /// Manual or automatic switching.
    pub mode: FailoverMode,
    /// Time that the active engine must be out, in milliseconds.
    pub after_ms: u64,
    /// Random name of this gateway in views and switches.
    pub gateway: String,
    /// The witness.
    pub witness: WitnessStatus,
    /// `possible`, or the reason why the chain would not be switched automatically now.
    pub next_switch: String,
    /// The hold of automatic switches; `None` if there is none, or it has ended.
    pub hold: Option<Hold>,
    /// Views of the gateways that run, this one first.
    pub views: Vec<ViewStatus>,
    /// The last switch; `None` if there was none, or it was made without the witness.
    pub last_switch: Option<LastSwitch>,
}

/// Manual or automatic switching of a chain that has a witness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailoverMode {
    /// The gateways, once most of them see the active engine out.
    Automatic,
    /// People only.
    Manual,
}

/// The witness of a chain, as one gateway knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WitnessStatus {
    /// Name of its engine.
    pub engine: String,
    /// True if it answers, and has the record of the chain.
    pub up: bool,
    /// The reason if not.
    pub detail: String,
}

/// The engines that a gateway sees out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ViewStatus {
    /// Random name of the gateway.
    pub gateway: String,
    /// Time since this gateway saw the view change, in milliseconds.
    pub age_ms: u64,
    /// Names of the engines that it sees out.
    pub out: Vec<String>,
}

/// The last switch of a chain with a witness.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LastSwitch {
    /// The active engine before.
    pub from: String,
    /// The active engine since.
    pub to: String,
    /// Cause of the switch: an operator, or the gateways.
    pub cause: SwitchCause,
    /// Random name of the gateway that made it.
    pub gateway: String,
    /// Start of the switch, by that gateway's clock.
    pub at: Timestamp,
    /// Reason of the switch: one line.
    pub reason: String,
}

/// Cause of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchCause {
    /// The gateways.
    Automatic,
    /// An operator.
    Operator,
}

impl SwitchCause {
    /// Returns its name in metrics and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Automatic => "automatic",
            Self::Operator => "operator",
        }
    }
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
    /// The engine to switch to lacks a capability that the chain requires; nothing was changed.
    #[error("{0}")]
    Unfit(EngineError),
    /// Another switch was made at the same time, and won.
    #[error("another switch of the chain, to `{0}`, was made at the same time")]
    Conflict(String),
    /// The witness does not answer, and only it can decide between concurrent switches. Nothing was changed.
    #[error(
        "the witness `{witness}` does not answer ({why}); a chain with a witness is switched only while that answers"
    )]
    WitnessOut {
        /// The engine of the witness.
        witness: String,
        /// Its failure.
        why: EngineError,
    },
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
