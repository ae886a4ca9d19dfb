//! A wrapper that makes any engine fail in the ways a network does, from a seed: calls that never arrive, and calls
//! that happen but whose reply is lost. For tests.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Capabilities, Engine, EngineError, Metadata};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};

/// An engine with two dice: did the call happen, and was its reply lost.
pub struct Faulty {
    inner: Arc<dyn Engine>,
    random: Mutex<SmallRng>,
    fault_probability: f64,
}

/// What the dice say of one call.
enum Fault {
    None,
    /// It does not happen, and the caller is told so.
    Refused,
    /// It does not happen, and the caller cannot tell.
    RequestLost,
    /// It happens, and the caller cannot tell.
    ReplyLost,
}

impl Faulty {
    /// Wraps an engine; each call meets a fault with this probability. The same seed rolls the same faults.
    pub fn new(inner: Arc<dyn Engine>, seed: u64, fault_probability: f64) -> Self {
        Self { inner, random: Mutex::new(SmallRng::seed_from_u64(seed)), fault_probability }
    }

    fn roll(&self) -> Fault {
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
        match self.roll() {
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
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.call(self.inner.claim(request)).await
    }

    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.call(self.inner.settle(request)).await
    }

    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.call(self.inner.renew(request)).await
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
