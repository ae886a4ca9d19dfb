//! One request: admitted by its head, and claimed with its body.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header};
use serde_json::value::RawValue;

use super::body::ResponseBody;
use super::fields;
use super::fingerprint::{self, Parts};
use super::key;
use super::options::{Idempotent, Settings, is_safe};
use super::refusal::Refusal;
use super::stored::Stored;
use crate::claim::{Claimed as Answer, WAIT_MAX};
use crate::contents;
use crate::duplicate::Duplicate;
use crate::error::Error;
use crate::event::Level;
use crate::grant::Grant;
use crate::problem::Problem;
use crate::runs::{Running, Runs};
use crate::state::State;

/// Decision about a request, by its head.
pub(crate) enum Admission {
    /// Not protected.
    Passed,
    /// To be claimed, once its body is read.
    Admitted(Admitted),
    Refused(Response<ResponseBody>),
}

/// A request that is protected.
pub(crate) struct Admitted {
    pub(crate) settings: Arc<Settings>,
    runs: Runs,
    key: String,
    principal: String,
}

/// Answer to the claim of a request.
pub(crate) enum Claimed {
    /// The handler runs, and its outcome is recorded.
    Granted(Grant, Running),
    /// The handler runs without a record: the middleware observes.
    Passed,
    Answered(Response<ResponseBody>),
}

/// A request that has passed a middleware already: inner ones pass it.
#[derive(Clone)]
pub(crate) struct Seen;

impl<Q> Idempotent<Q> {
    /// Decides by the head of a request.
    pub(crate) fn admit(&self, request: &Q, method: &Method, headers: &HeaderMap, is_seen: bool) -> Admission {
        let settings = &self.settings;
        if !settings.is_enabled || is_seen {
            return Admission::Passed;
        }
        let key = key::of(headers);
        if is_safe(method) {
            let is_doubtful = !matches!(key, Ok(None)) && fingerprint::overrides_method(headers);
            let is_passed = !is_doubtful || self.when.as_ref().is_some_and(|when| !when(request));
            let refused = if is_passed { None } else { settings.refuse_or_pass(&Refusal::ambiguous()) };
            return refused.map_or(Admission::Passed, Admission::Refused);
        }
        if !settings.protects(method) || self.when.as_ref().is_some_and(|when| !when(request)) {
            if !matches!(key, Ok(None)) {
                settings.answered("unprotected");
            }
            return Admission::Passed;
        }
        let refusal = match key {
            Ok(Some(_)) if fields::is_not_supported(headers) => Refusal::not_supported(),
            Ok(Some(key)) => match self.principal.as_ref().map(|principal| principal(request)) {
                Some(principal) if principal.as_ref().is_none_or(String::is_empty) => Refusal::principal(),
                principal => {
                    let principal = fingerprint::digest(principal.flatten().unwrap_or_default().as_bytes());
                    let (settings, runs) = (Arc::clone(settings), self.runs.clone());
                    return Admission::Admitted(Admitted { settings, runs, key, principal });
                }
            },
            Ok(None) if settings.is_required => Refusal::no_key(key::missing()),
            Ok(None) => {
                settings.answered("unprotected");
                return Admission::Passed;
            }
            Err(detail) => Refusal::key(detail),
        };
        settings.refuse_or_pass(&refusal).map_or(Admission::Passed, Admission::Refused)
    }
}

impl Admitted {
    /// Claims the request with this body. It has the path of the request line.
    pub(crate) async fn claim(
        &self,
        method: &Method,
        (path, query): (&str, Option<&str>),
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Claimed {
        let settings = &self.settings;
        let parts = Parts { method, path, query, headers, body };
        let contents = contents! { "key" => &*self.key, "principal" => &*self.principal };
        // A caller may ask for the longest wait of one call to the gateway, or for that of the service itself.
        let preferred = fields::preferred_wait(headers).map(|wait| wait.min(WAIT_MAX.max(settings.wait)));
        let terms = settings.terms.clone().fingerprint(fingerprint::of(&settings.fingerprint, &parts));
        let terms = terms.wait(if settings.observes { Duration::ZERO } else { preferred.unwrap_or(settings.wait) });
        let answered = match settings.client.claim_with(&settings.operation, contents, terms).await {
            Ok(Answer::Grant(grant)) => {
                settings.answered("forwarded");
                return Claimed::Granted(grant, self.runs.begin());
            }
            Ok(Answer::Duplicate(duplicate)) if settings.observes => {
                settings.answered(settings.would_be(&duplicate));
                return Claimed::Passed;
            }
            Ok(Answer::Duplicate(duplicate)) => {
                let mut answered = settings.repeated(&duplicate);
                if let Some(wait) = preferred.filter(|_| duplicate.has_waited) {
                    fields::apply_wait(answered.headers_mut(), wait);
                }
                Some(answered)
            }
            Ok(Answer::Mismatch(_)) => {
                let detail = "This key was used with another request; send a fresh key for each operation.";
                settings.refuse_or_pass(&Refusal::of(Problem::new(422, "fingerprint_mismatch", detail)))
            }
            Err(error) => {
                settings.log(&error);
                settings.refuse_or_pass(&Refusal::of(Problem::from(&error)))
            }
        };
        answered.map_or(Claimed::Passed, Claimed::Answered)
    }

    pub(crate) fn refuse(&self, refusal: &Refusal) -> Option<Response<ResponseBody>> {
        self.settings.refuse_or_pass(refusal)
    }
}

impl Settings {
    /// Counts a request that was answered.
    pub(super) fn answered(&self, result: &'static str) {
        if let Some(metrics) = &self.client.0.metrics {
            metrics.answered(&self.operation, result);
        }
    }

    /// Returns the result that enforcing would count for a repeat.
    fn would_be(&self, duplicate: &Duplicate<Box<RawValue>>) -> &'static str {
        let stored = || duplicate.result.as_deref().and_then(Stored::read);
        match duplicate.state {
            State::Succeeded if stored().and_then(|stored| stored.replay(&self.stored)).is_some() => "replayed",
            State::Succeeded => "not_stored",
            State::InProgress => "in_progress",
            _ => "unknown",
        }
    }

    /// Writes an event about a request.
    pub(super) fn event(&self, name: &'static str, level: Level, why: &str) {
        let about = self.client.about(&self.operation, None);
        self.client.event(&about, name, level, || vec![("why", why.into())]);
    }

    /// Counts a refusal, and returns its response; nothing where the middleware only observes.
    fn refuse_or_pass(&self, refusal: &Refusal) -> Option<Response<ResponseBody>> {
        self.answered(refusal.result);
        (!self.observes).then(|| {
            let mut response = self.rendered(&refusal.problem).map(|body| ResponseBody::whole(body, None));
            if refusal.closes {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        })
    }

    pub(super) fn timed_out(&self) -> Response<ResponseBody> {
        self.rendered(&Refusal::timed_out().problem).map(|body| ResponseBody::whole(body, None))
    }

    /// Logs what an operator of this service must correct.
    fn log(&self, error: &Error) {
        if let Error::Rejected(rejected) = error
            && rejected.status != 429
        {
            self.event("refused", Level::Error, &rejected.to_string());
        }
    }

    fn repeated(&self, duplicate: &Duplicate<Box<RawValue>>) -> Response<ResponseBody> {
        let refusal = if duplicate.state == State::Succeeded {
            let stored = duplicate.result.as_deref().and_then(Stored::read);
            if let Some(mut replay) = stored.as_ref().and_then(|stored| stored.replay(&self.stored)) {
                self.answered("replayed");
                degrade(replay.headers_mut(), duplicate.degraded.as_deref());
                return replay;
            }
            Refusal::not_stored(stored.as_ref(), &self.stored)
        } else {
            Refusal::of(Problem::from(duplicate))
        };
        self.answered(refusal.result);
        let mut response = self.rendered(&refusal.problem).map(|body| ResponseBody::whole(body, None));
        degrade(response.headers_mut(), duplicate.degraded.as_deref());
        response
    }
}

/// Says the outage policy that answered instead of the store.
pub(super) fn degrade(headers: &mut HeaderMap, degraded: Option<&str>) {
    if let Some(policy) = degraded.and_then(|policy| HeaderValue::from_str(policy).ok()) {
        headers.insert(fields::DEGRADED, policy);
    }
}
