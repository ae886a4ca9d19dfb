//! A wrapper that makes an engine fail as a network does, from a seed: requests that do not arrive, and replies that are lost.
//! For tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Capabilities, Engine, EngineError, Metadata};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};

/// An engine whose requests and replies are lost at random.
pub struct Faulty {
    inner: Arc<dyn Engine>,
    random: Mutex<SmallRng>,
    fault_probability: f64,
}

/// Fault of one call.
enum Fault {
    None,
    /// It does not happen, and the caller knows.
    Refused,
    /// It does not happen, and the caller does not know.
    RequestLost,
    /// It happens, and the caller does not know.
    ReplyLost,
}

impl Faulty {
    /// Wraps an engine; each call fails with this probability. The same seed gives the same faults.
    pub fn new(inner: Arc<dyn Engine>, seed: u64, fault_probability: f64) -> Self {
        Self { inner, random: Mutex::new(SmallRng::seed_from_u64(seed)), fault_probability }
    }

    fn draw(&self) -> Fault {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if !random.random_bool(self.fault_probability) {
            return Fault::None;
        }
        match random.random_range(0..3) {
            0 => Fault::Refused,
            1 => Fault::RequestLost,
            _ => Fault::ReplyLost,
        }
    }

    async fn call<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        match self.draw() {
            Fault::None => call.await,
            Fault::Refused => Err(EngineError::unavailable("refused by the fault wrapper")),
            Fault::RequestLost => Err(EngineError::indeterminate("request lost by the fault wrapper")),
            Fault::ReplyLost => {
                // The call's own failure is lost as well.
                let _ = call.await;
                Err(EngineError::indeterminate("reply lost by the fault wrapper"))
            }
        }
    }
}

#[async_trait]
impl Engine for Faulty {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(self.inner.claim(request, deadline)).await
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(self.inner.settle(request, deadline)).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(self.inner.renew(request, deadline)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(self.inner.read(key)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(self.inner.release(request)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.call(self.inner.list(request)).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.call(self.inner.get_metadata(name)).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.call(self.inner.compare_and_set_metadata(name, expected, new)).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.call(self.inner.probe()).await
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
