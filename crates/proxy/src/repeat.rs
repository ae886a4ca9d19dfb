//! Answers to repeats: the stored response, or the reason why there is none.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Request};
use axum::response::Response;
use bytes::Bytes;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::Span;
use oncegate_gateway::ClaimView;
use oncegate_gateway::claim::{ClaimAnswer, Granted};
use oncegate_web::prefer;
use oncegate_web::problem::Problem;
use oncegate_web::response::DEGRADED;
use tokio::time::timeout;

use super::Proxy;
use super::body::{STREAM_BYTES, no_memory};
use super::dialect::Refusal;
use super::encryption::Owner;
use super::fields::{self, Client};
use super::route::Route;
use super::stored_response::StoredResponse;
use super::upload::Upload;

impl Proxy {
    /// Returns the answer to a repeat.
    ///
    /// # Errors
    /// The claim is granted: the request is no repeat.
    pub(super) fn repeated(&self, route: &Route, answer: ClaimAnswer) -> Result<Result<Response, Refusal>, Granted> {
        match answer {
            ClaimAnswer::Granted(granted) => Err(granted),
            ClaimAnswer::Duplicate(found) => Ok(self.replay(route, &found)),
            ClaimAnswer::Mismatch(_) => Ok(Err(Refusal::Mismatch)),
        }
    }

    /// Returns the stored response.
    fn replay(&self, route: &Route, found: &ClaimView) -> Result<Response, Refusal> {
        let record = &found.claim.record;
        match record.state {
            ClaimState::InProgress => return Err(Refusal::InProgress),
            ClaimState::Unknown => return Err(Refusal::Unknown),
            ClaimState::Succeeded => {}
        }
        let owner = Owner { global_id: found.global_id, attempt: &record.attempt };
        let read = |result| StoredResponse::read(result, &self.encryption, owner);
        let Some(stored) = record.result.as_deref().and_then(read) else {
            return Err(Refusal::NotStored { status: None, headers: HeaderMap::new() });
        };
        let now = self.clock.wall().as_micros() / 1_000_000;
        let age_max = route.options.response_retention.map(|Span(time)| time.as_secs());
        let replay = stored.replay(now, age_max, &route.stored_fields);
        replay.ok_or_else(|| Refusal::NotStored {
            status: Some(stored.status()),
            headers: stored.tombstone_headers(&route.stored_fields),
        })
    }

    /// Reads the body of a repeat: only the real sender has it. Then asks whether its caller may get what the answer
    /// `reveals`. The stored response waits for both, and takes memory: `bytes`, or if they are not known, those that the route may store.
    pub(super) async fn check_repeat(
        &self,
        route: &Route,
        request: &Request<Bytes>,
        upload: Option<Upload>,
        reveals: bool,
        bytes: Option<u64>,
        client: Client,
    ) -> Result<(), Refusal> {
        let authorizer = route.authorizer.as_ref().filter(|_| reveals);
        if upload.is_none() && authorizer.is_none() {
            return Ok(());
        }
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(route.options.response_bytes.0);
        // An upload has taken memory for its buffers.
        let taken = if upload.is_some() { STREAM_BYTES } else { 0 };
        let _memory =
            route.upstream.bytes.take(bytes.saturating_sub(taken)).ok_or_else(|| Refusal::Problem(no_memory()))?;
        if let Some(upload) = upload {
            let verifying =
                timeout(route.upstream.options.exchange_max.0, upload.verify(self.limits.body_read_timeout.0));
            let late = |_| Problem::invalid("The body did not arrive in time; send it in one go.");
            verifying.await.map_err(late).flatten().map_err(Refusal::Problem)?;
        }
        let Some(authorizer) = authorizer else { return Ok(()) };
        let mut headers = request.headers().clone();
        fields::to_upstream(&mut headers, client, &self.via);
        authorizer.authorize(request.method(), request.uri(), headers).await.map_err(Refusal::AfterClaim)
    }
}

/// Adds to the answer to a repeat the policy that answered instead of the store, and the wait that its caller preferred and got.
pub(super) fn with_fields(
    answer: Result<Response, Refusal>,
    policy: Option<OutagePolicy>,
    applied: Option<Duration>,
) -> Result<Response, Refusal> {
    let mut fields = HeaderMap::new();
    fields.extend(policy.map(|policy| (DEGRADED, HeaderValue::from_static(policy.name()))));
    if let Some(wait) = applied {
        prefer::apply_wait(&mut fields, wait);
    }
    match answer {
        Ok(mut response) => {
            for (name, value) in &fields {
                response.headers_mut().append(name, value.clone());
            }
            Ok(response)
        }
        Err(refusal) if fields.is_empty() => Err(refusal),
        Err(refusal) => Err(Refusal::With(Box::new(fields), Box::new(refusal))),
    }
}
