//! The claim of an exchange: renewed while the exchange runs, and settled with its outcome.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::PoisonError;
use std::time::Duration;

use axum::http::response::Parts;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use oncegate_core::backoff::Backoff;
use oncegate_core::claim::{Outcome, RenewalResponse};
use oncegate_core::record::ClaimId;
use oncegate_core::terms::{Mode, Retention};
use oncegate_gateway::Failure;
use oncegate_gateway::outcome::OutcomeCall;
use oncegate_gateway::tenants::quota::ResponseKind;
use tokio::time::{sleep, timeout};

use super::{Exchange, Reply};
use crate::dialect::Refusal;
use crate::encryption::Owner;
use crate::status::Meaning;
use crate::stored_response::StoredResponse;
use crate::upstream::Permission;

/// Delays between reports of an outcome that no store has taken yet. Short, so that repeats get the response soon after the
/// store is back.
const REPORT: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };

impl Permission for Exchange {
    /// Returns whether the lease outlasts a connect. Another attempt may run a request that is sent after its end a
    /// second time.
    fn may_be_sent(&self) -> bool {
        let lease_end = *self.lease_end.lock().unwrap_or_else(PoisonError::into_inner);
        self.proxy.clock.monotonic() + self.route.upstream.options.connect_timeout.0 < lease_end || self.is_observed()
    }

    /// Asks the store: an operator may have released the claim since.
    async fn may_still_be_sent(&self) -> bool {
        self.is_observed() || Box::pin(self.renew_once(self.route.options.lease.0)).await && self.may_be_sent()
    }
}

impl Exchange {
    /// Reports whether the route is observed: then no request is refused.
    fn is_observed(&self) -> bool {
        self.app.terms_of(&self.route.operation).mode == Mode::Observe
    }

    /// Returns the outcome of a complete response. Without a body that may be stored, it leaves a tombstone.
    pub(super) fn outcome(&self, meaning: Meaning, head: &Parts, body: Option<Bytes>, trailers: &HeaderMap) -> Outcome {
        match meaning {
            Meaning::NothingHappened => Outcome::Failure,
            Meaning::Unknown => Outcome::Unknown,
            // A duplicate that observe mode lets pass: the response of the first request is stored.
            Meaning::Done if self.attempt.nonce().is_observed() => Outcome::Success { result: None, retention: None },
            Meaning::Done => {
                let stored_fields = &self.route.stored_fields;
                let stored = match body {
                    Some(body) => StoredResponse::new(head.status, &head.headers, stored_fields, body, self.now())
                        .with_trailers(trailers, stored_fields),
                    None => StoredResponse::tombstone(head.status, &head.headers, stored_fields, self.now()),
                };
                let owner = Owner { global_id: self.global_id, attempt: &self.attempt };
                let keys = &*self.proxy.encryption;
                let retention = self.app.terms_of(&self.route.operation).terms.retention;
                let (mut has_body, mut encoded) = (stored.has_body(), stored.write(keys, owner));
                if has_body && !self.has_room(head.status, encoded.len(), retention) {
                    let tombstone = StoredResponse::tombstone(head.status, &head.headers, stored_fields, self.now());
                    (has_body, encoded) = (false, tombstone.write(keys, owner));
                }
                self.route.metrics.stored(has_body, encoded.len());
                Outcome::Success { result: Some(encoded), retention: Some(retention) }
            }
        }
    }

    /// Reports whether the app may store a response of this length, and counts it.
    fn has_room(&self, status: StatusCode, bytes: usize, retention: Retention) -> bool {
        let kind = if status.is_client_error() { ResponseKind::ClientError } else { ResponseKind::Other };
        self.app.count_response(kind, bytes as u64, retention.duration(), self.proxy.clock.monotonic())
    }

    /// Returns the time of the wall clock in seconds.
    fn now(&self) -> u64 {
        self.proxy.clock.wall().as_micros() / 1_000_000
    }

    /// Extends the lease while the exchange runs. Once the request was sent, a failed renewal changes nothing.
    pub(super) async fn renew(&self) -> Infallible {
        let lease = self.route.options.lease.0;
        loop {
            sleep(lease / 3).await;
            // Boxed: most exchanges end before.
            Box::pin(self.renew_once(lease)).await;
        }
    }

    /// Extends the lease. Returns false if the store has not done so.
    async fn renew_once(&self, lease: Duration) -> bool {
        match self
            .proxy
            .gateway
            .renew(&self.app, ClaimId::of_proxy(self.global_id), self.attempt.clone(), Some(lease))
            .await
        {
            Ok(renewal) => {
                let renewed = renewal.answer.renewed;
                let left = if let RenewalResponse::Renewed { left, .. } = renewed { left } else { Duration::ZERO };
                let lease_end = self.proxy.clock.monotonic() + left;
                *self.lease_end.lock().unwrap_or_else(PoisonError::into_inner) = lease_end;
                !left.is_zero()
            }
            Err(failure) => {
                tracing::debug!(reason = %failure, "A lease was not renewed");
                false
            }
        }
    }

    /// Frees the key of a request that was granted after a wait: its body was not kept.
    pub(crate) async fn give_back(self: Box<Self>, reply: Reply) {
        let mut reporting = pin!(self.report(Outcome::Failure));
        let deadline = self.app.terms_of(&self.route.operation).deadline;
        let is_reported = timeout(deadline, &mut reporting).await.is_ok();
        let refusal = self.proxy.app_of(&self.route).err().unwrap_or(Refusal::InProgress);
        reply.send(Err(refusal));
        if !is_reported {
            reporting.await;
        }
    }

    /// Reports the outcome until it is taken, however long the store is out: the permit of the exchange bounds how many do.
    pub(super) async fn report(&self, outcome: Outcome) {
        let mut failures = 0;
        // That a repeat had no effect says nothing about the request before: it may have had one.
        let outcome = if self.is_repeat && outcome == Outcome::Failure { Outcome::Unknown } else { outcome };
        loop {
            let call = OutcomeCall {
                id: ClaimId::of_proxy(self.global_id),
                attempt: self.attempt.clone(),
                outcome: outcome.clone(),
                operation: Some(self.route.operation.clone()),
                contents: Some(self.contents.clone()),
            };
            match self.proxy.gateway.settle(&self.app, call).await {
                Ok(_) => return,
                Err(failure @ (Failure::Store(_) | Failure::OutcomeUnknown(_) | Failure::QuotaExceeded(_))) => {
                    failures += 1;
                    tracing::debug!(reason = %failure, "An outcome was not taken yet");
                    sleep(REPORT.delay(failures, self.proxy.entropy.bits())).await;
                }
                Err(failure) => {
                    tracing::error!(reason = %failure, "An outcome was refused; its key stays blocked until its lease has ended");
                    return;
                }
            }
        }
    }
}
