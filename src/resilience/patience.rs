//! Bounds how long one try at a store may take. What takes longer may still happen: its answer is not known.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use crate::domain::claim::{Claim, Claimed, Renew, Renewed, Settle, Settled};
use crate::domain::operator::{List, Listed, Release, Released};
use crate::domain::record::{Held, Key};
use crate::engine::{Capabilities, Engine, EngineError, Note};

/// For a list, which looks at many claims for somebody who can wait.
const FOR_LISTS: Duration = Duration::from_secs(5);

/// An engine that is not waited for beyond a bound.
pub struct Patience {
    inner: Arc<dyn Engine>,
    patience: Duration,
}

impl Patience {
    /// Wraps an engine. Two tries should fit into the caller's deadline.
    pub fn new(inner: Arc<dyn Engine>, patience: Duration) -> Self {
        Self { inner, patience }
    }

    /// A claim must be known to be granted while there is lease left to use it, so short leases have little patience.
    fn for_claim(&self, ask: &Claim) -> Duration {
        self.patience.min(ask.terms.lease / 5)
    }
}

async fn within<Answer>(
    patience: Duration,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    let late = |_| Err(EngineError::indeterminate(format!("no answer within {} ms", patience.as_millis())));
    timeout(patience, call).await.unwrap_or_else(late)
}

#[async_trait]
impl Engine for Patience {
    async fn claim(&self, ask: &Claim) -> Result<Claimed, EngineError> {
        within(self.for_claim(ask), self.inner.claim(ask)).await
    }

    async fn settle(&self, ask: &Settle) -> Result<Settled, EngineError> {
        within(self.patience, self.inner.settle(ask)).await
    }

    async fn renew(&self, ask: &Renew) -> Result<Renewed, EngineError> {
        within(self.patience, self.inner.renew(ask)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Held>, EngineError> {
        within(self.patience, self.inner.read(key)).await
    }

    async fn release(&self, ask: &Release) -> Result<Released, EngineError> {
        within(self.patience, self.inner.release(ask)).await
    }

    async fn list(&self, ask: &List) -> Result<Vec<Listed>, EngineError> {
        within(FOR_LISTS, self.inner.list(ask)).await
    }

    async fn note(&self, name: &str) -> Result<Option<Note>, EngineError> {
        within(self.patience, self.inner.note(name)).await
    }

    async fn swap_note(&self, name: &str, expected: Option<&Note>, new: &Note) -> Result<bool, EngineError> {
        within(self.patience, self.inner.swap_note(name, expected, new)).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        within(self.patience, self.inner.probe()).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
