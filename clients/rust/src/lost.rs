//! Grants whose answer was lost: looked for in the background, and given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

use crate::call::jitter;
use crate::claim::left_until;
use crate::claim_call::ClaimCall;
use crate::client::Client;
use crate::error::Error;
use crate::identity::hex;
use crate::lookup::Record;

/// The longest time to look for such a grant and to report it; less if `settle_within` is.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(30);
/// How many one client looks for at once. Those above it wait for the end of their leases: a gateway that comes back
/// has enough to do.
pub(crate) const GIVE_BACKS_MAX: usize = 64;

impl Client {
    /// Gives back the grant of a claim call that ended without an answer, if there is one. Its lease ends in any case.
    pub(crate) fn give_back(&self, runtime: &Handle, claim: &Arc<ClaimCall>) {
        if !claim.is_uncertain.load(Ordering::Relaxed) {
            return;
        }
        let Ok(place) = Arc::clone(&self.0.given_back).try_acquire_owned() else { return };
        let (client, claim) = (self.clone(), Arc::clone(claim));
        self.spawn(runtime, async move {
            let _place = place;
            let within = client.0.settle_within.min(GIVE_BACK_WITHIN);
            // Each try has its event.
            drop(tokio::time::timeout(within, client.look_and_report(&claim, within)).await);
        });
    }

    async fn look_and_report(&self, claim: &ClaimCall, within: Duration) -> Result<(), Error> {
        if let Some(attempt) = self.find_grant(claim, self.end_after(within)).await? {
            self.fail_attempt(claim, attempt).await?;
        }
        Ok(())
    }

    /// Returns the attempt with the nonce of the call if it holds the claim. It makes no further claim: that one would take
    /// the key if it was free.
    async fn find_grant(&self, claim: &ClaimCall, ends: Option<Instant>) -> Result<Option<String>, Error> {
        tokio::time::sleep(jitter(0)).await;
        let mut record = self.look_again(claim, ends).await?;
        if record.is_none() {
            // The call may still be on its way.
            tokio::time::sleep(self.0.timeout).await;
            record = self.look_again(claim, ends).await?;
        }
        let held = record.filter(|record| matches!(record.state.as_str(), "in_progress" | "unknown"));
        Ok(held.and_then(|record| {
            let attempt = format!("{}-{}", record.timestamp, claim.nonce);
            let hash = hex(&Sha256::digest(attempt.as_bytes())[..4]);
            (hash == record.attempt_hash).then_some(attempt)
        }))
    }

    async fn look_again(&self, claim: &ClaimCall, ends: Option<Instant>) -> Result<Option<Record>, Error> {
        self.look(&claim.global_id, &claim.about, left_until(ends, self.now())).await
    }
}
