//! While the store answers, the wrapper is an engine like any other: with each policy, and while something waits on other keys.

use super::super::*;
use super::support::*;
use crate::domain::attempt::SystemEntropy;
use crate::domain::clock::ManualClock;
use crate::engine::conformance::Subject;
use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};

/// Gives every call the policies `local` and `spool`.
struct Lenient(Degrading);

#[async_trait]
impl Engine for Lenient {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.0.claim(&ClaimRequest { on_outage: ClaimOnOutage::Local, ..request.clone() }).await
    }
    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.0.settle(&OutcomeRequest { on_outage: OutcomeOnOutage::Spool, ..request.clone() }).await
    }
    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.0.renew(request).await
    }
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.0.read(key).await
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.0.release(request).await
    }
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.0.list(request).await
    }
    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.0.get_metadata(name).await
    }
    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.0.compare_and_set_metadata(name, expected, new).await
    }
    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// An engine that never answers for one app.
struct DeafFor(Arc<dyn Engine>, &'static str);

impl DeafFor {
    fn hears(&self, key: &Key) -> Result<(), EngineError> {
        if key.app.as_ref() == self.1 { Err(EngineError::unavailable("deaf")) } else { Ok(()) }
    }
}

#[async_trait]
impl Engine for DeafFor {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.hears(&request.key)?;
        self.0.claim(request).await
    }
    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.hears(&request.key)?;
        self.0.settle(request).await
    }
    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.0.renew(request).await
    }
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.0.read(key).await
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.0.release(request).await
    }
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.0.list(request).await
    }
    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.0.get_metadata(name).await
    }
    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.0.compare_and_set_metadata(name, expected, new).await
    }
    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

fn over(clock: &Arc<ManualClock>, folder: &tempfile::TempDir) -> Degrading {
    let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let keeper = Arc::new(Keeper::new(folder.path(), ROOMY, clock.clone()));
    let engine = Arc::new(DeafFor(memory, "deaf"));
    Degrading::start("default", engine, keeper, clock.clone(), Arc::new(SystemEntropy))
}

fn subject(open: impl FnOnce(&Arc<ManualClock>, &tempfile::TempDir) -> Arc<dyn Engine>) -> Subject {
    let folder = tempfile::tempdir().unwrap();
    let subject = Subject::by_hand(|clock| open(&clock, &folder));
    Subject { keep: Box::new(folder), ..subject }
}

mod with_no_policy {
    use super::*;
    crate::conformance!(async { Some(subject(|clock, folder| Arc::new(over(clock, folder)))) });
}

mod with_local_and_spool {
    use super::*;
    crate::conformance!(async { Some(subject(|clock, folder| Arc::new(Lenient(over(clock, folder))))) });
}

mod while_something_waits {
    use super::*;
    crate::conformance!(async {
        let mut stuck = crate::engine::conformance::fresh_claim();
        stuck.key.app = "deaf".parse().unwrap();
        let mut degrading = None;
        let subject = subject(|clock, folder| {
            let opened = Arc::new(over(clock, folder));
            degrading = Some(opened.clone());
            opened
        });
        let stuck = ClaimRequest { on_outage: ClaimOnOutage::FailOpen, ..stuck };
        assert_eq!(told(&degrading.unwrap().claim(&stuck).await.unwrap()), (FAIL_OPEN, "granted"));
        Some(subject)
    });
}
