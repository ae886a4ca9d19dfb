//! The parts of a chain, and its intervals.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::engine::Engine;
use oncegate_core::engine::capability::Capability;
use oncegate_core::terms::OnDataLoss;

use super::status::{ChainSwitchError, FailoverMode, Switched};
use crate::resilience::requirement::Requirement;

/// Parts of a chain.
pub struct Setup {
    /// Name in the configuration.
    pub name: String,
    /// Engines with their names, in order; the first is active until the chain is switched. At least one.
    pub engines: Vec<(String, Arc<dyn Engine>)>,
    /// Treatment of claims after the active store came back without its data.
    pub on_data_loss: OnDataLoss,
    /// Longest lease that the apps of the chain get without requesting one.
    pub lease_max: Duration,
    /// Measures the age of reads.
    pub clock: Arc<dyn Clock>,
    /// Names switches, and spreads reads.
    pub entropy: Arc<dyn Entropy>,
    /// Intervals.
    pub times: Times,
    /// Capabilities that its engine must have while it grants anything.
    pub requirement: Option<Requirement>,
    /// Its witness, and when it switches automatically.
    pub failover: Option<FailoverSetup>,
}

/// Failover of a chain of two engines.
pub struct FailoverSetup {
    /// Engine that decides between switches, and keeps the views of the gateways, with its name. In no chain.
    pub witness: (String, Arc<dyn Engine>),
    /// Capability without which the witness counts as out: a store that loses an acknowledged switch takes another one.
    pub witness_requires: Option<Capability>,
    /// Manual or automatic switching.
    pub mode: FailoverMode,
    /// Time that the active engine must be out.
    pub after: Duration,
    /// Records automatic switches.
    pub recorder: Arc<dyn SwitchRecorder>,
}

/// A switch that a gateway makes, or the reason why it was not made.
pub type SwitchAction = BoxFuture<'static, Result<Switched, ChainSwitchError>>;

/// The audit trail, as a chain uses it.
pub trait SwitchRecorder: Send + Sync {
    /// Records an automatic switch, then makes it, then records its result. If it cannot be recorded, it is not made,
    /// and the reason is returned.
    fn record(&self, detail: String, reason: String, switch: SwitchAction) -> BoxFuture<'static, Result<(), String>>;
}

impl Setup {
    /// Returns a chain of one engine, for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_one(name: &str, engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self::plain(name, vec![("only".into(), engine)], clock, entropy)
    }

    /// Returns a chain that requires nothing, grants on after a loss of data, and is switched by operators alone.
    pub fn plain(
        name: &str,
        engines: Vec<(String, Arc<dyn Engine>)>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            name: name.into(),
            engines,
            on_data_loss: OnDataLoss::Resume,
            lease_max: Duration::ZERO,
            clock,
            entropy,
            times: Times::default(),
            requirement: None,
            failover: None,
        }
    }
}

/// Intervals of a chain of several engines. `fresh` is longer than a read takes. It is shorter than `closing` by more
/// than clocks differ. A gateway that has not read the state for `fresh` grants nothing, so after `closing` no gateway
/// grants on the old engine.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two reads of an engine's chain state.
    pub poll: Duration,
    /// Longest age of a read that allows a grant.
    pub fresh: Duration,
    /// Shortest time between closing and opening a chain that is switched.
    pub closing: Duration,
    /// Time after which another gateway completes a switch.
    pub abandoned: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(500),
            fresh: Duration::from_millis(1500),
            closing: Duration::from_secs(2),
            abandoned: Duration::from_secs(10),
        }
    }
}
