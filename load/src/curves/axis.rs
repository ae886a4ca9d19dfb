//! What varies along a curve, and its values.

use std::{fmt, fmt::Write as _};

use serde::Serialize;

use crate::{
    contender::Contender::{self, Memory, Postgres, Redis},
    scenario::Scenario,
    sizes::Sizes,
};

/// What varies along a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// Live claims in the store
    Live,
    /// Apps of the configuration
    Apps,
    /// Operations among which the claims are divided
    Operations,
    /// Connections without a request
    Idle,
    /// Callers that wait, each for another claim
    Waiting,
    /// Held locks
    Locks,
    /// Bytes of the result of a success
    Results,
    /// Claims in one request
    Batch,
}

impl Axis {
    pub(crate) const ALL: [Self; 8] =
        [Self::Live, Self::Apps, Self::Operations, Self::Idle, Self::Waiting, Self::Locks, Self::Results, Self::Batch];

    /// Returns the engines that are measured.
    pub(super) fn engines(self) -> &'static [Contender] {
        match self {
            Self::Live | Self::Results | Self::Batch => &Contender::ENGINES,
            Self::Locks => &[Memory, Redis, Postgres],
            // The store has no part in these.
            Self::Apps | Self::Operations | Self::Idle | Self::Waiting => &[Memory],
        }
    }

    pub(super) fn values(self) -> &'static [u64] {
        match self {
            Self::Live => &[1000, 10_000, 100_000, 1_000_000, 10_000_000],
            Self::Apps | Self::Operations => &[1, 10, 100, 1000, 10_000],
            Self::Idle => &[10, 100, 1000, 5000, 15_000],
            Self::Waiting | Self::Locks => &[10, 100, 1000, 10_000],
            Self::Results => &[0, 1024, 4096, 16_384, 65_000],
            Self::Batch => &[1, 10, 100, 1000],
        }
    }

    /// Returns the settings of the gateway.
    pub(super) fn settings(self, value: u64) -> String {
        match self {
            Self::Apps => (1..value).fold(String::new(), |mut apps, app| {
                // Writing to a String cannot fail.
                let _ = write!(apps, "\n[apps.other-{app}]\nsecrets = [\"sha256:{app:064x}\"]\n");
                apps
            }),
            // One app gets half of the waiting calls.
            Self::Waiting => format!("[limits]\nconnections = {}\nwaiting = {}\n", value + 200, 2 * value + 200),
            Self::Idle => format!("[limits]\nconnections = {}\n", value + 200),
            Self::Live | Self::Operations | Self::Locks | Self::Results | Self::Batch => String::new(),
        }
    }

    /// Returns what the callers do, and the claims of each request.
    pub(super) fn scenario(self, value: u64) -> (Scenario, u64) {
        match self {
            Self::Batch if value > 1 => (Scenario::Batch, value),
            Self::Results => (Scenario::Settle, 1),
            _ => (Scenario::Unique, 1),
        }
    }

    pub(super) fn sizes(self, value: u64) -> Sizes {
        let usual = Sizes::of(self.scenario(value).0);
        match self {
            Self::Results => Sizes { result_bytes: usize::try_from(value).unwrap_or(0), ..usual },
            Self::Batch => Sizes { batch: value, ..usual },
            Self::Operations => Sizes { operations: value, ..usual },
            _ => usual,
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Live => "live claims",
            Self::Apps => "apps",
            Self::Operations => "operations",
            Self::Idle => "idle connections",
            Self::Waiting => "waiting callers",
            Self::Locks => "held locks",
            Self::Results => "bytes of a result",
            Self::Batch => "claims in a request",
        })
    }
}
