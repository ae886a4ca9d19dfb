//! Records a response while it passes, decides its outcome, and reports it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, StatusCode, header};
use serde_json::value::RawValue;

use super::fields;
use super::options::Settings;
use super::protect::degrade;
use super::status::Meaning;
use super::stored::Stored;
use crate::error::Error;
use crate::event::Level;
use crate::grant::Grant;
use crate::once::Unfinished;
use crate::outcome::Outcome;
use crate::result::RESULT_BYTES_MAX;

/// Longest wait of a response for its report where the client has no limit.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// A response that passes.
pub(super) struct Recorder<'a> {
    settings: &'a Settings,
    run: Run,
    status: StatusCode,
    /// Those of the handler, when its head was sent. Outer layers change theirs.
    headers: HeaderMap,
    trailers: HeaderMap,
    /// The outcome that the head named.
    said: Option<Outcome>,
    is_harmless: bool,
    /// Nothing if it is not stored.
    body: Option<BytesMut>,
    declared: Option<u64>,
    seen: u64,
}

/// Extension of a response that a framework made from an error that is declared harmless.
#[derive(Clone)]
pub(crate) struct Harmless;

/// A handler that runs under a grant. If it is dropped, its outcome is unknown.
pub(super) struct Run {
    pub(super) grant: Grant,
    unfinished: Unfinished,
}

impl Run {
    pub(super) fn new(grant: Grant) -> Self {
        Self { unfinished: Unfinished::of(&grant), grant }
    }

    /// Reports a run without a response: the outcome that its handler has marked, otherwise this one.
    pub(super) async fn end(self, settings: &Settings, otherwise: Outcome) {
        let outcome = self.grant.marked().unwrap_or(otherwise);
        self.report(settings, outcome, None).await;
    }

    /// Reports, and waits for the record within bounds: the response is real, also if the report fails.
    async fn report(self, settings: &Settings, outcome: Outcome, results: Option<Results>) {
        self.unfinished.disarm();
        let grant = self.grant;
        let reporting = async {
            let reported = match (outcome, results) {
                (Outcome::Success, Some(results)) => grant.succeed_with(results.stored, results.fallback).await,
                (Outcome::Success, None) => grant.succeed_with(None, None).await,
                (Outcome::Failure, _) => grant.fail().await,
                (Outcome::Unknown, _) => grant.give_up().await,
            };
            // The client has logged the others.
            if let Err(Error::Argument(why)) = reported {
                settings.event("not_settled", Level::Error, &why);
            }
        };
        let limit = settings.client.0.settle_within.min(SETTLE_MAX) + settings.client.0.timeout;
        if tokio::time::timeout(limit, reporting).await.is_err() {
            settings.event("not_settled", Level::Error, "the response was completed before its outcome was recorded");
        }
    }
}

/// The result for the gateway, and its substitute if the gateway refuses it.
struct Results {
    stored: Option<Box<RawValue>>,
    fallback: Option<Box<RawValue>>,
}

impl<'a> Recorder<'a> {
    /// Begins with the head of a response, and removes the fields that are not for the caller.
    pub(super) fn new(settings: &'a Settings, run: Run, head: &mut Parts) -> Self {
        let said = fields::take_outcome(&mut head.headers);
        let said = match said.as_deref() {
            Some("success") => Some(Outcome::Success),
            Some("failure") => Some(Outcome::Failure),
            Some("unknown") => Some(Outcome::Unknown),
            Some(other) => {
                settings.event("outcome_invalid", Level::Warn, &format!("Oncegate-Outcome is {other:.100?}"));
                Some(Outcome::Unknown)
            }
            None => head.extensions.get::<Outcome>().copied(),
        };
        let is_harmless = head.extensions.get::<Harmless>().is_some();
        let headers = head.headers.clone();
        let is_stored = settings.stores_private || !fields::is_private(&headers);
        degrade(&mut head.headers, run.grant.degraded());
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self {
            settings,
            run,
            status: head.status,
            headers,
            trailers: HeaderMap::new(),
            said,
            is_harmless,
            body: is_stored.then(BytesMut::new),
            declared,
            seen: 0,
        }
    }

    /// Sets the length that the body itself knows, unless its head declares one.
    pub(super) fn expect_length(&mut self, length: Option<u64>) {
        self.declared = self.declared.or(length);
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.run.grant
    }

    /// Records a piece.
    pub(super) fn data(&mut self, piece: &Bytes) {
        self.seen += piece.len() as u64;
        if let Some(body) = &mut self.body {
            if body.len() + piece.len() > self.settings.response_bytes {
                self.body = None;
            } else {
                body.extend_from_slice(piece);
            }
        }
    }

    /// Records the trailers, and removes those that are not for the caller. An outcome comes too late there, as in the
    /// proxy.
    pub(super) fn trailers(&mut self, trailers: &mut HeaderMap) {
        if let Some(late) = fields::take_outcome(trailers) {
            let why = format!(
                "Oncegate-Outcome is {late:.100?} in trailers, where it does not count; send it in the head, or mark the grant"
            );
            self.settings.event("outcome_invalid", Level::Warn, &why);
        }
        self.trailers = trailers.clone();
    }

    /// Reports whether the declared length is filled.
    pub(super) fn is_full(&self) -> bool {
        self.declared.is_some_and(|length| self.seen >= length)
    }

    /// Reports whether the body has the declared length. A server breaks off what is shorter or longer.
    pub(super) fn has_length(&self) -> bool {
        self.declared.is_none_or(|length| self.seen == length)
    }

    /// Reports the outcome of a complete response.
    pub(super) async fn complete(self) {
        let by_status = match self.settings.statuses.meaning(self.status.as_u16()) {
            Meaning::Store => Outcome::Success,
            Meaning::Release => Outcome::Failure,
            Meaning::Unknown => Outcome::Unknown,
        };
        self.end(by_status).await;
    }

    /// Reports that the response broke off. The part that arrived is not stored. A success in its head would be one of
    /// the whole response.
    pub(super) async fn broke(mut self) {
        self.body = None;
        if self.said == Some(Outcome::Success) {
            self.said = Some(Outcome::Unknown);
        }
        self.end(Outcome::Unknown).await;
    }

    /// Reports the outcome that the handler has set, even during its body; otherwise this one.
    async fn end(self, otherwise: Outcome) {
        let settings = self.settings;
        let said = self.said.or_else(|| self.run.grant.marked());
        let outcome = said.unwrap_or(if self.is_harmless { Outcome::Failure } else { otherwise });
        let results = (outcome == Outcome::Success).then(|| self.results());
        self.run.report(settings, outcome, results).await;
    }

    fn results(&self) -> Results {
        let stored = &self.settings.stored;
        let tombstone = Stored::tombstone(self.status, &self.headers, stored).write();
        let whole = self
            .body
            .as_ref()
            .and_then(|body| Stored::new(self.status, &self.headers, &self.trailers, stored, body)?.write());
        let whole = whole.filter(|text| text.get().len() <= RESULT_BYTES_MAX);
        Results { stored: whole.or_else(|| tombstone.clone()), fallback: tombstone }
    }
}
