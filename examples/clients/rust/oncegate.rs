//! A client of Oncegate in one file, to be copied. Beside tokio it needs hyper (`client`, `http1`), hyper-util
//! (`client-legacy`, `http1`, `tokio`), http-body-util, `serde_json`, `serde_json_canonicalizer`, md-5 and rand. What to do
//! with each answer: docs/callers.md of the gateway.
//!
//! It speaks plain HTTP, and reaches no `https` URL, until `Http` holds your TLS stack's connector in place of its own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request,
    body::Bytes,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use md5::{Digest as _, Md5};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Gateways in front of one store: it does not matter which of them is asked. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    urls: Vec<String>,
    options: Options,
    http: Http,
    /// The gateway that answered last is asked first, so that one that is gone costs one timeout, not one a call.
    first: AtomicUsize,
}

/// How to call.
#[derive(Clone)]
pub(crate) struct Options {
    /// `<app>.<secret>`, where apps are configured.
    pub(crate) credential: Option<String>,
    /// The caller's own policy when no gateway can tell.
    pub(crate) on_unavailable: OnUnavailable,
    /// Of one call; longer than the gateways' deadline.
    pub(crate) timeout: Duration,
    /// Of all tries of one claim.
    pub(crate) claim_within: Duration,
    /// Of all tries of one outcome.
    pub(crate) settle_within: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credential: None,
            on_unavailable: OnUnavailable::FailClosed,
            timeout: Duration::from_secs(2),
            claim_within: Duration::from_secs(5),
            settle_within: Duration::from_secs(30),
        }
    }
}

/// What to do when no gateway can tell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnavailable {
    /// Nothing: [`Error::Unavailable`].
    FailClosed,
    /// The work, unprotected, and say so.
    Proceed,
}

/// What is asked for beside operation and contents; `None` is the operator's choice.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// What else must be equal on a repeat, without being part of the identity.
    pub(crate) fingerprint: Option<Value>,
    /// Such as `30s`.
    pub(crate) lease: Option<String>,
    /// Such as `24h`, or `forever`.
    pub(crate) retention: Option<String>,
    /// Whether to take an operation over of which nobody knows whether it was done.
    pub(crate) take_over: bool,
}

/// What the gateway says to "may I do this?". That somebody else did it is an answer, not an error.
pub(crate) enum Claim {
    /// Do it, and then settle the claim.
    Granted(Held),
    /// Somebody else does it or did it.
    Duplicate(Duplicate),
    /// The same operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch { code: String },
}

/// What came of asking and doing.
pub(crate) enum Answer {
    /// The work ran here, and its end is recorded.
    Done(Done),
    /// Somebody else does it or did it.
    Duplicate(Duplicate),
    /// The same operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch { code: String },
}

/// The operation is not ours to do.
pub(crate) struct Duplicate {
    /// `in_progress`, `succeeded` or `unknown`.
    pub(crate) state: String,
    /// What a success left, for whoever asks again.
    pub(crate) result: Value,
    /// After how long to ask again, while it is in progress.
    pub(crate) retry_after: Duration,
}

/// How the work ended that ran here.
pub(crate) struct Done {
    pub(crate) result: Value,
    /// What stands now: `succeeded`, `released`, `unknown`, `spooled` (kept by one gateway, to be delivered), or nothing if
    /// nothing could be recorded.
    pub(crate) state: Option<String>,
    /// The policy that answered in the store's place, at the claim or at the outcome: repeats may not have been noticed.
    /// `caller` is this client's own [`OnUnavailable::Proceed`].
    pub(crate) degraded: Option<String>,
    /// The claim was gone when the outcome came, so somebody else may have done it as well. Nothing: cannot be told.
    pub(crate) late: Option<bool>,
}

/// How it went.
pub(crate) enum Outcome {
    /// It is finished and must never run again, whatever the answer was; everybody who asks again is given this.
    Success(Value),
    /// It certainly did not happen: somebody else may try at once.
    Failure,
    /// Nobody knows whether it happened. Repeats are stopped until somebody has looked.
    Unknown,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Error {
    /// No gateway could tell in time. The work was not begun.
    Unavailable,
    /// A gateway refuses this call as it is: a mistake of the caller, or (429) more than its quota.
    Rejected { status: u16, code: String },
    /// The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm.
    OutcomeRefused { code: String },
    /// No gateway took the outcome in time. Keep the report, and give it to [`Gateway::settle`] later.
    NotSettled { report: Report },
    /// These contents would not mean the same to every reader.
    NotCanonical(&'static str),
}

/// An outcome on its way.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) global_id: String,
    pub(crate) body: Value,
}

impl Gateway {
    /// The nearest first.
    pub(crate) fn new(urls: Vec<String>, options: Options) -> Self {
        Self(Arc::new(Inner { urls, options, http: Http::new(), first: AtomicUsize::new(0) }))
    }

    /// Does the work if nobody else has, holds the claim meanwhile, and reports how it went.
    pub(crate) async fn run_once(
        &self,
        operation: &str,
        contents: Value,
        terms: &Terms,
        work: impl AsyncFnOnce(&Held) -> Outcome,
    ) -> Result<Answer, Error> {
        let held = match self.claim(operation, contents, terms).await? {
            Claim::Granted(held) => held,
            Claim::Duplicate(duplicate) => return Ok(Answer::Duplicate(duplicate)),
            Claim::Mismatch { code } => return Ok(Answer::Mismatch { code }),
        };
        if !held.is_still_ours() {
            // The answer came when the lease was over: nothing was begun.
            held.settle(Outcome::Failure).await?;
            return Err(Error::Unavailable);
        }
        let outcome = work(&held).await;
        held.settle(outcome).await.map(Answer::Done)
    }

    /// Before the work. The same contents are the same operation, whoever asks, at whichever gateway.
    pub(crate) async fn claim(&self, operation: &str, contents: Value, terms: &Terms) -> Result<Claim, Error> {
        canonical(&contents)?;
        // The nonce is new for each claim and the same for all tries of it. So if an answer is lost, the next try is
        // recognised and given the claim it already has, instead of being turned away as its own duplicate.
        let nonce = format!("{:032x}", rand::random::<u128>());
        let mut question = json!({ "operation": operation, "contents": contents, "attempt_nonce": nonce });
        let optional = [
            ("fingerprint", terms.fingerprint.clone()),
            ("lease", terms.lease.clone().map(Value::from)),
            ("retention", terms.retention.clone().map(Value::from)),
            ("take_over", terms.take_over.then_some(Value::Bool(true))),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                question[name] = value;
            }
        }
        match self.ask(&question, self.0.options.claim_within).await {
            Err(Error::Unavailable) if self.0.options.on_unavailable == OnUnavailable::Proceed => {
                Ok(Claim::Granted(Held::unasked(self.clone(), question)))
            }
            answer => answer,
        }
    }

    /// Repeats a report until it is taken or refused. Repeating it does no harm. What stands then.
    pub(crate) async fn settle(&self, report: Report, within: Duration) -> Result<Value, Error> {
        let path = format!("/v1/claims/{}/outcome", report.global_id);
        match self.call(&path, &report.body, within).await {
            Err(Error::Unavailable) => Err(Error::NotSettled { report }),
            Err(error) => Err(error),
            Ok(told) if told.status == 409 => Err(Error::OutcomeRefused { code: told.text("code") }),
            Ok(mut told) => {
                if told.status == 202 {
                    told.body["state"] = "spooled".into();
                }
                Ok(told.body)
            }
        }
    }

    async fn ask(&self, question: &Value, within: Duration) -> Result<Claim, Error> {
        let told = self.call("/v1/claims", question, within).await?;
        Ok(match told.status {
            201 => Claim::Granted(Held::granted(self.clone(), question.clone(), &told)),
            409 => Claim::Duplicate(Duplicate {
                state: told.text("state"),
                result: told.body["result"].clone(),
                retry_after: told.millis("retry_after_ms"),
            }),
            _ => Claim::Mismatch { code: told.text("code") },
        })
    }

    /// Asks one gateway after the other until one of them has answered.
    async fn call(&self, path: &str, body: &Value, within: Duration) -> Result<Told, Error> {
        let Inner { urls, options, http, first } = &*self.0;
        let ends = Instant::now() + within;
        for tries in 1.. {
            let at = (first.load(Ordering::Relaxed) + tries - 1) % urls.len();
            // The lease counts from here, before the call: the answer may be long on its way.
            let sent = Instant::now();
            let left = options.timeout.min(ends.saturating_duration_since(sent)).max(Duration::from_millis(1));
            let answer = http.post(&format!("{}{path}", urls[at]), body, options.credential.as_deref(), left).await;
            let (status, body) = answer.unwrap_or((0, Value::Null));
            let told = Told { status, body, sent };
            match told.status {
                200..=202 | 409 => {
                    first.store(at, Ordering::Relaxed);
                    return Ok(told);
                }
                422 if told.text("code").ends_with("_mismatch") => return Ok(told),
                429 => {}
                400..=499 => return Err(told.rejected()),
                // It could not tell, or is shutting down, or there was no answer. The same question again.
                _ => {}
            }
            let mut pause = if told.status == 429 { told.millis("retry_after_ms") } else { Duration::ZERO };
            if tries.is_multiple_of(urls.len()) {
                // Full jitter: those who failed together do not come back together.
                let most = 1000.min(50 << (tries / urls.len()).min(10));
                pause = pause.max(Duration::from_millis(rand::random_range(0..=most)));
            }
            if Instant::now() + pause >= ends {
                return Err(if told.status == 429 { told.rejected() } else { Error::Unavailable });
            }
            sleep(pause).await;
        }
        Err(Error::Unavailable)
    }
}

/// What a gateway said, and when it was asked. Fields that are not known are ignored.
struct Told {
    /// 0 if there was no answer, or not one of a gateway: then nobody knows whether the call was taken.
    status: u16,
    body: Value,
    sent: Instant,
}

impl Told {
    fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_default().to_owned()
    }

    fn millis(&self, field: &str) -> Duration {
        Duration::from_millis(self.body[field].as_u64().unwrap_or(1000))
    }

    fn rejected(&self) -> Error {
        Error::Rejected { status: self.status, code: self.text("code") }
    }
}

/// The right to do one operation, until the lease ends. It is renewed in the background until it is settled or dropped.
pub(crate) struct Held {
    gateway: Gateway,
    question: Value,
    /// What was granted: where and as whom to report. Nothing if nobody was asked.
    claim: Option<(String, String)>,
    lease: Arc<Lease>,
    renewal: Option<JoinHandle<()>>,
    fence: Option<u64>,
    degraded: Option<String>,
    repeated: bool,
}

/// How long it is held, as far as we know.
struct Lease {
    ends: Mutex<Instant>,
    lost: Mutex<Option<String>>,
}

impl Held {
    fn granted(gateway: Gateway, question: Value, told: &Told) -> Self {
        let mut held = Self::unasked(gateway, question);
        let claim = (told.text("global_id"), told.text("attempt"));
        *held.lease.ends() = told.sent + told.millis("lease_ms");
        held.fence = told.body["fence"].as_u64();
        held.degraded = told.body["degraded"].as_str().map(str::to_owned);
        held.repeated = told.body["repeated"] == true;
        // One that is observed only holds nothing that could be renewed.
        if told.body.get("would_be").is_none() {
            let renewing = renew(held.gateway.clone(), claim.clone(), Arc::clone(&held.lease));
            held.renewal = Some(tokio::spawn(renewing));
        }
        held.claim = Some(claim);
        held
    }

    fn unasked(gateway: Gateway, question: Value) -> Self {
        let lease = Arc::new(Lease { ends: Mutex::new(Instant::now()), lost: Mutex::default() });
        let degraded = Some("caller".to_owned());
        Self { gateway, question, claim: None, lease, renewal: None, fence: None, degraded, repeated: false }
    }

    /// Whether to go ahead with something that cannot be undone. It narrows the gap after a pause; only the fence closes it.
    pub(crate) fn is_still_ours(&self) -> bool {
        self.renewal.is_none() || (self.lost().is_none() && Instant::now() < *self.lease.ends())
    }

    /// Why the claim was lost, once a renewal was told so: `lease_lost`, `superseded`, or `not_renewed` in time.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lease.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rises with every attempt at the operation; for the resource to compare. Nothing where the store has none.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// The policy that granted in the store's place; `caller` if none was asked.
    pub(crate) fn degraded(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    /// Whether a repeat of the question found the claim that it had already been given.
    pub(crate) fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// After the work. Repeating it does no harm, so it is repeated until it is answered. If it never is, the lease ends, and
    /// whoever claims the operation next must look whether it was done.
    pub(crate) async fn settle(mut self, outcome: Outcome) -> Result<Done, Error> {
        let (name, result) = match outcome {
            Outcome::Success(result) => ("success", result),
            Outcome::Failure => ("failure", Value::Null),
            Outcome::Unknown => ("unknown", Value::Null),
        };
        let (gateway, degraded) = (self.gateway.clone(), self.degraded.take());
        let claim = match self.claim.take() {
            Some(claim) => Ok(claim),
            // Nobody was asked before. Perhaps somebody answers now: then repeats are stopped at least from here on.
            None => match gateway.ask(&self.question, gateway.0.options.timeout).await {
                Ok(Claim::Granted(mut late)) => late.claim.take().ok_or(false),
                Ok(Claim::Duplicate(_) | Claim::Mismatch { .. }) => Err(true),
                Err(_) => Err(false),
            },
        };
        let (global_id, attempt) = match claim {
            Ok(claim) => claim,
            Err(by_others) => return Ok(Done { result, state: None, degraded, late: Some(by_others) }),
        };
        // Operation and contents matter if it comes late: they tell its terms, and let its contents be compared.
        let (operation, contents) = (&self.question["operation"], &self.question["contents"]);
        let mut body = json!({ "attempt": attempt, "outcome": name, "operation": operation, "contents": contents });
        if !result.is_null() {
            body["result"] = result.clone();
        }
        let stands = gateway.settle(Report { global_id, body }, gateway.0.options.settle_within).await?;
        let text = |field: &str| stands[field].as_str().map(str::to_owned);
        let degraded = degraded.or(text("degraded"));
        Ok(Done { result, state: text("state"), degraded, late: stands["late"].as_bool() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }
}

impl Lease {
    fn ends(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_lost(&self, code: String) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(code);
    }
}

/// At a third of the lease, so that a lost answer leaves time to ask again; until the lease is over by our own count.
async fn renew(gateway: Gateway, (global_id, attempt): (String, String), lease: Arc<Lease>) {
    let (path, body) = (format!("/v1/claims/{global_id}/renewal"), json!({ "attempt": attempt }));
    let left = || lease.ends().checked_duration_since(Instant::now());
    while let Some(before) = left() {
        sleep(before / 3).await;
        match gateway.call(&path, &body, left().unwrap_or_default()).await {
            Ok(told) if told.status == 200 => *lease.ends() = told.sent + told.millis("lease_ms"),
            Ok(told) => return lease.is_lost(told.text("code")),
            // Not known: asked again, as long as there is something to renew.
            Err(_) => {}
        }
    }
    lease.is_lost("not_renewed".into());
}

/// MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, whoever computes it.
pub(crate) fn global_id(app: &str, operation: &str, contents: &Value) -> Result<String, Error> {
    let named = format!("{app}\n{operation}\n{}", canonical(contents)?);
    Ok(format!("{:032x}", u128::from_be_bytes(Md5::digest(named).into())))
}

/// The one spelling of a value (RFC 8785), unless others would read something else. What a literal lost when it was read, or an
/// object of a key that occurred twice, cannot be seen here any more.
pub(crate) fn canonical(contents: &Value) -> Result<String, Error> {
    if contents.is_null() || contents == "" {
        return Err(Error::NotCanonical(
            "contents must not be null or \"\": give what tells this operation from others",
        ));
    }
    check(contents, 0)?;
    serde_json_canonicalizer::to_string(contents).map_err(|_| Error::NotCanonical("contents have no canonical form"))
}

const DEPTH_MAX: usize = 32;
const TWO_TO_53: f64 = 9_007_199_254_740_992.0;

fn check(value: &Value, depth: usize) -> Result<(), Error> {
    match value {
        Value::Number(number) => match number.as_f64().map(f64::abs) {
            Some(size) if size < TWO_TO_53 || (size >= 1e21 && size.is_finite()) => Ok(()),
            _ => Err(Error::NotCanonical("a number is beyond 2^53 - 1, where digits get lost: send it as text")),
        },
        Value::Array(_) | Value::Object(_) if depth == DEPTH_MAX => {
            Err(Error::NotCanonical("nested deeper than 32 levels: send it as text"))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check(item, depth + 1)),
        Value::Object(members) => members.values().try_for_each(|member| check(member, depth + 1)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// JSON over HTTP. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

/// The other side did not answer in time, or not at all.
pub(crate) struct NoAnswer;

impl Http {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        // Otherwise small requests wait for each other's acknowledgements.
        connector.set_nodelay(true);
        Self(Client::builder(TokioExecutor::new()).build(connector))
    }

    pub(crate) async fn post(
        &self,
        url: &str,
        body: &Value,
        credential: Option<&str>,
        within: Duration,
    ) -> Result<(u16, Value), NoAnswer> {
        let mut request = Request::post(url).header(CONTENT_TYPE, "application/json");
        if let Some(credential) = credential {
            request = request.header(AUTHORIZATION, format!("Bearer {credential}"));
        }
        self.send(request.body(body.to_string().into()).map_err(|_| NoAnswer)?, within).await
    }

    pub(crate) async fn get(&self, url: &str, within: Duration) -> Result<(u16, Value), NoAnswer> {
        let request = Request::get(url).body(Full::default());
        self.send(request.map_err(|_| NoAnswer)?, within).await
    }

    async fn send(&self, request: Request<Full<Bytes>>, within: Duration) -> Result<(u16, Value), NoAnswer> {
        timeout(within, async {
            let response = self.0.request(request).await.map_err(|_| NoAnswer)?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|_| NoAnswer)?.to_bytes();
            serde_json::from_slice(&body).map(|body| (status, body)).map_err(|_| NoAnswer)
        })
        .await
        .unwrap_or(Err(NoAnswer))
    }
}
