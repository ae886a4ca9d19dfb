//! While the store answers, the wrapper is an engine like any other: with each policy, and while something waits on other keys.

use async_trait::async_trait;
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::clock::ManualClock;
use oncegate_core::engine::conformance::{DEADLINE, Subject};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{BatchClaim, ClaimSink, Claims, claim_each};
use oncegate_core::operator::{
    ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};

use super::super::*;
use super::support::*;

/// The policies as an engine: each call has these two.
struct WithPolicies(Arc<OutagePolicies>, ClaimOnOutage, OutcomeOnOutage);

impl WithPolicies {
    fn claim_context(&self, deadline: Duration) -> CallContext<ClaimOnOutage> {
        CallContext { deadline, on_outage: self.1 }
    }
}

#[async_trait]
impl Claims for WithPolicies {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.0.claim(request, self.claim_context(deadline)).await.map(|answered| answered.answer)
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let claim = |claim: &BatchClaim<'_>| self.claim_context(claim.deadline);
        let claims: Vec<_> =
            claims.iter().map(|own| PolicyClaim { request: own.request, context: claim(own) }).collect();
        let answered = |at: usize, answer: Result<Answered<_>, _>| sink(at, answer.map(|answered| answered.answer));
        self.0.claim_batch(&claims, &answered).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let context = CallContext { deadline, on_outage: self.2 };
        self.0.settle(request, context).await.map(|answered| answered.split().0)
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.0.renew(request, deadline).await.map(|answered| answered.answer)
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.0.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.0.release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.0.engine().list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.0.engine().unknowns(request).await
    }
}

oncegate_core::forward!(Records for WithPolicies => 0.engine());

oncegate_core::forward!(Topology for WithPolicies => 0.engine());

/// An engine that never answers for one app.
struct DeafFor(Arc<dyn Engine>, &'static str);

impl DeafFor {
    fn check_app(&self, key: &Key) -> Result<(), EngineError> {
        if key.app.as_ref() == self.1 { Err(EngineError::unavailable("deaf")) } else { Ok(()) }
    }
}

#[async_trait]
impl Claims for DeafFor {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.check_app(&request.key)?;
        self.0.claim(request, deadline).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.check_app(&request.key)?;
        self.0.settle(request, deadline).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.0.renew(request, deadline).await
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

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.0.unknowns(request).await
    }
}

oncegate_core::forward!(Records for DeafFor => 0);

oncegate_core::forward!(Topology for DeafFor => 0);

fn over(clock: &Arc<ManualClock>, folder: &tempfile::TempDir) -> Arc<OutagePolicies> {
    let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let journal = Arc::new(OutageJournal::new(folder.path(), ROOMY, clock.clone()));
    let engine = Arc::new(DeafFor(memory, "deaf"));
    Arc::new(OutagePolicies::start("default", engine, journal, clock.clone(), Arc::new(SystemEntropy)))
}

fn without(policies: Arc<OutagePolicies>) -> WithPolicies {
    WithPolicies(policies, ClaimOnOutage::FailClosed, OutcomeOnOutage::FailClosed)
}

fn subject(open: impl FnOnce(&Arc<ManualClock>, &tempfile::TempDir) -> Arc<dyn Engine>) -> Subject {
    let folder = tempfile::tempdir().unwrap();
    let subject = Subject::on_manual_clock(|clock| open(&clock, &folder));
    Subject { keep: Box::new(folder), ..subject }
}

mod with_no_policy {
    use super::*;
    oncegate_core::conformance!(async { Some(subject(|clock, folder| Arc::new(without(over(clock, folder))))) });
}

mod with_local_and_spool {
    use super::*;
    oncegate_core::conformance!(async {
        Some(subject(|clock, folder| {
            Arc::new(WithPolicies(over(clock, folder), ClaimOnOutage::Local, OutcomeOnOutage::Spool))
        }))
    });
}

mod while_something_waits {
    use super::*;
    oncegate_core::conformance!(async {
        let mut stuck = oncegate_core::engine::conformance::fresh_claim();
        stuck.key.app = "deaf".parse().unwrap();
        let mut policies = None;
        let subject = subject(|clock, folder| {
            let opened = over(clock, folder);
            policies = Some(opened.clone());
            Arc::new(without(opened))
        });
        let context = CallContext { deadline: DEADLINE, on_outage: ClaimOnOutage::FailOpen };
        assert_eq!(summary(&policies.unwrap().claim(&stuck, context).await.unwrap()), (FAIL_OPEN, "granted"));
        Some(subject)
    });
}
