//! Failover of a chain with a witness. This gateway writes its view of the stores at the witness, and reads the views
//! of the others (`views`). It switches the chain once most gateways see the active engine out (`rounds`). `decision` decides, by
//! the `situation`. Operators may `hold` switches.

mod decision;
pub(super) mod hold;
pub(super) mod rounds;
mod situation;
mod views;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Engine, EngineError, Metadata};
use oncegate_core::hex;
use oncegate_telemetry::metrics::chain::FailoverMetrics;
use sha2::{Digest as _, Sha256};

use self::hold::Hold;
use self::views::Views;
use super::member::Member;
use super::setup::{FailoverSetup, SwitchRecorder};
use super::status::FailoverMode;

/// The failover of one chain at this gateway.
pub(super) struct Failover {
    /// Random name of this process.
    pub(super) gateway: String,
    pub(super) witness: Member,
    pub(super) metrics: FailoverMetrics,
    mode: FailoverMode,
    after: Duration,
    recorder: Arc<dyn SwitchRecorder>,
    /// Name of the record of views.
    record: String,
    /// Digest of the chain in this gateway's configuration.
    digest: String,
    /// Epoch of the record at the witness.
    epoch_at_witness: AtomicU64,
    /// Number of the last written view.
    number: AtomicU64,
    views: Mutex<Views>,
    /// Name of the record of a hold.
    hold_record: String,
    /// The hold that was read last.
    hold: ArcSwapOption<Hold>,
}

impl Failover {
    pub(super) fn new(
        chain: &str,
        engines: &[(String, Arc<dyn Engine>)],
        setup: FailoverSetup,
        entropy: &dyn Entropy,
    ) -> Self {
        let FailoverSetup { witness, witness_requires, mode, after, recorder } = setup;
        let names: Vec<_> = engines.iter().map(|(name, _)| name.as_str()).collect();
        let digest = hex::encode(&Sha256::digest(format!("{} {}", names.join(" "), after.as_millis())));
        let gateway = format!("{:016x}", entropy.bits());
        Self {
            gateway: gateway[..8].to_owned(),
            witness: Member::witness(witness, format!("failover.{chain}"), witness_requires),
            metrics: FailoverMetrics::new(chain),
            mode,
            after,
            recorder,
            record: format!("views.{chain}"),
            digest: digest[..8].to_owned(),
            epoch_at_witness: AtomicU64::new(0),
            number: AtomicU64::new(0),
            views: Mutex::default(),
            hold_record: format!("hold.{chain}"),
            hold: ArcSwapOption::empty(),
        }
    }

    /// Returns whether gateways switch the chain automatically.
    pub(super) fn is_automatic(&self) -> bool {
        self.mode == FailoverMode::Automatic
    }

    /// Remembers the epoch of the witness's record.
    pub(super) fn witness_has(&self, epoch: u64) {
        self.epoch_at_witness.store(epoch, Ordering::Release);
    }

    /// Reads the hold at the witness.
    pub(super) async fn read_hold(&self) -> Result<(), EngineError> {
        let found = self.witness.read(&self.hold_record).await?;
        self.hold.store(Hold::of(found.as_ref())?.map(Arc::new));
        Ok(())
    }

    /// Replaces the hold at the witness, or ends it.
    pub(super) async fn set_hold(&self, hold: Option<Hold>) -> Result<(), EngineError> {
        let new = Hold::to_record(hold.as_ref())?;
        let change = |stored: Option<&Metadata>| Ok((stored != Some(&new)).then(|| new.clone()));
        self.witness.replace(&self.hold_record, change).await?;
        self.hold.store(hold.map(Arc::new));
        Ok(())
    }

    /// Returns the hold at this time, by the record that was read last.
    fn hold_at(&self, now: Timestamp) -> Option<Arc<Hold>> {
        self.hold.load_full().filter(|hold| hold.is_in_force(now))
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
