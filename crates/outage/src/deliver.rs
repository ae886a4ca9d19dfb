//! Delivery of journal entries to the store: does each step of the plan in `core`, and gives its answer back to the plan. The caller
//! holds the key's exclusive lock.

use std::sync::Arc;

use oncegate_core::engine::{ChangeResponse, EngineError, RecordName};
use oncegate_core::outage::delivery::{Delivery, Report, Step, StoreAnswer, next_step};
use oncegate_core::outage::grants::{DegradedGrant, Grants};
use oncegate_core::record::Key;

use crate::Core;
use crate::crash::{self, Point};
use crate::deadline::DELIVERY_DEADLINE;

/// Maximum number of tries to change the record of degraded grants. A try fails if another gateway has changed it since the last one.
const CHANGES_MAX: usize = 8;

impl Core {
    /// Delivers the entries that wait on a key.
    ///
    /// # Errors
    /// The store did not take an entry; it and later ones still wait.
    pub(super) async fn deliver(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        loop {
            let queue = self.local_claims.waiting_on(key);
            if queue.is_empty() {
                return Ok(());
            }
            let local = self.local_claims.live_claim(key, self.clock.monotonic());
            let delivery = Delivery { queue: &queue, local: local.as_ref() };
            let mut answers = Vec::new();
            let Report { delivered, suspects, theirs } = loop {
                let answer = match next_step(delivery, &answers, self.clock.wall()) {
                    Step::Done(report) => break report,
                    Step::Postpone(why) => return Err(EngineError::unavailable(why)),
                    Step::Claim(request) => {
                        let claimed = self.engine.claim(&request, DELIVERY_DEADLINE).await?;
                        crash::here(Point::Reconciling);
                        StoreAnswer::Claimed(claimed)
                    }
                    Step::Renew(request) => StoreAnswer::Renewed(self.engine.renew(&request, DELIVERY_DEADLINE).await?),
                    Step::Settle(request, proof) => {
                        StoreAnswer::Settled(self.settle_in_store(&request, DELIVERY_DEADLINE, proof).await?)
                    }
                    Step::WriteGrants(grant) => StoreAnswer::Grants(self.write_grant(key, &grant).await?),
                    Step::ReadGrants => StoreAnswer::Grants(self.read_grants(key).await?),
                    Step::Read => StoreAnswer::Found(self.engine.read(key).await?),
                };
                answers.push(answer);
            };
            let (core, key) = (self.clone(), key.clone());
            self.uncancelled(async move {
                core.journal.remove_delivered(delivered.clone(), suspects).await;
                core.local_claims.remove_delivered(&key, &delivered, theirs.as_ref(), core.clock.monotonic());
                Ok(())
            })
            .await?;
        }
    }

    /// Returns the degraded grants of a key in the store.
    pub(super) async fn read_grants(&self, key: &Key) -> Result<Grants, EngineError> {
        let view = self.engine.get_record(&RecordName::Grants(key.clone()), DELIVERY_DEADLINE).await?;
        Grants::of_record(view.record.as_ref())
    }

    /// Adds a degraded grant to those of its key in the store, and returns all of them.
    pub(super) async fn write_grant(&self, key: &Key, grant: &DegradedGrant) -> Result<Grants, EngineError> {
        // Nearly always there is no record: a refusal returns the one that there is.
        let mut stands = None;
        for _ in 0..CHANGES_MAX {
            let grants = Grants::of_record(stands.as_ref())?;
            let Some(new) = grants.with(grant, self.clock.wall()) else { return Ok(grants) };
            let change = new.change(key, stands.as_ref(), self.entropy.bits())?;
            match self.engine.change_record(&change, DELIVERY_DEADLINE).await? {
                ChangeResponse::Stored(_) => return Ok(new),
                ChangeResponse::Refused { view, .. } => stands = view.record,
            }
        }
        Err(EngineError::unavailable("other gateways changed the degraded grants of this key each time; try again"))
    }
}
