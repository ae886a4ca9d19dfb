//! A client for Oncegate in one file, to copy. Beside tokio it needs hyper (`client`, `http1`), hyper-util
//! (`client-legacy`, `http1`, `tokio`), http-body-util, `serde_json`, `serde_json_canonicalizer`, md-5 and rand. What to do
//! with each answer: docs/integration.md of the gateway.
//!
//! It speaks plain HTTP. To reach `https` URLs, put the connector of your TLS stack into `Http`.

use std::{
    error, fmt, io,
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

/// A longer result is not sent: the default of the gateway's `limits.result_bytes`.
const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Idle connections kept for each gateway, and for how long: less than the gateway's own limit, 75 seconds by default.
const IDLE_CONNECTIONS_MAX: usize = 32;
const IDLE_MAX: Duration = Duration::from_secs(50);

/// One or more gateways in front of the same store; any of them may answer. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    urls: Vec<String>,
    options: Options,
    http: Http,
    /// The gateway that answered last is called first, so that one that is down costs one timeout, not one for each call.
    first: AtomicUsize,
}

/// How to call.
#[derive(Clone)]
pub(crate) struct Options {
    /// `<app>.<secret>`, where apps are configured.
    pub(crate) credential: Option<String>,
    /// The caller's own policy when no gateway answers.
    pub(crate) on_unavailable: OnUnavailable,
    /// Limit of one call; longer than the gateways' deadline.
    pub(crate) timeout: Duration,
    /// Limit of all tries of one claim.
    pub(crate) claim_within: Duration,
    /// Limit of all tries of one outcome.
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

/// What to do when no gateway answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnUnavailable {
    /// Return [`Error::Unavailable`].
    FailClosed,
    /// Run the work unprotected, and say so.
    Proceed,
}

/// Optional fields of a claim; `None` is the operator's choice.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// What else must be equal on a repeat, without being part of the identity.
    pub(crate) fingerprint: Option<Value>,
    /// Such as `30s`.
    pub(crate) lease: Option<String>,
    /// Such as `24h`, or `forever`.
    pub(crate) retention: Option<String>,
    /// Takes over an operation whose outcome is unknown.
    pub(crate) take_over: bool,
    /// Time to wait for another attempt, instead of [`Claim::Duplicate`] `in_progress` at once.
    pub(crate) wait: Option<Duration>,
}

/// The answer to a claim call. A duplicate is an answer, not an error.
pub(crate) enum Claim {
    /// Run the work, then settle the claim.
    Granted(Held),
    /// Another attempt is running or has completed the operation.
    Duplicate(Duplicate),
    /// The operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch { code: String },
}

/// The answer of [`Gateway::run_once`].
pub(crate) enum Answer {
    /// The work ran here, and its outcome was reported.
    Done(Done),
    /// Another attempt is running or has completed the operation.
    Duplicate(Duplicate),
    /// The operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch { code: String },
}

/// An operation that another attempt is running or has completed.
pub(crate) struct Duplicate {
    /// `in_progress`, `succeeded` or `unknown`.
    pub(crate) state: String,
    /// The result stored with the success.
    pub(crate) result: Value,
    /// Time until it is worth asking again, while it is in progress.
    pub(crate) retry_after: Duration,
}

/// Work that ran here.
pub(crate) struct Done {
    pub(crate) result: Value,
    /// The state of the claim: `succeeded`, `released`, `unknown`, `spooled` (kept by one gateway, to be delivered), or `None`
    /// if nothing was recorded.
    pub(crate) state: Option<String>,
    /// The outage policy that answered instead of the store, at the claim or at the outcome; duplicates may have been missed.
    /// `caller` is this client's own [`OnUnavailable::Proceed`].
    pub(crate) degraded: Option<String>,
    /// The claim had ended before the outcome arrived, so another attempt may have run. `None`: not known.
    pub(crate) late: Option<bool>,
    /// Why the result was not stored: it is too long, or was refused. The success itself was recorded; duplicates get `null`
    /// as their result. `None` if the result was stored.
    pub(crate) result_error: Option<String>,
}

/// The outcome of the work.
pub(crate) enum Outcome {
    /// It is finished and must never run again, whatever the answer was; duplicates get this result.
    Success(Value),
    /// It certainly did not happen. The operation can be claimed again at once.
    Failure,
    /// It is not known whether it happened. Repeats are stopped until an operator or a take-over settles it.
    Unknown,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Error {
    /// No gateway gave an answer in time. The work was not started. The last failure of each gateway that was tried.
    Unavailable { causes: Vec<Cause> },
    /// A gateway refused the call: a mistake of the caller, or (429) its quota is used up.
    Rejected { status: u16, code: String },
    /// The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm.
    OutcomeRefused { code: String },
    /// No gateway has taken the outcome. Keep the report, and pass it to [`Gateway::settle`] later.
    NotSettled { report: Report, why: Box<Self> },
    /// The contents would not mean the same to every reader.
    NotCanonical(&'static str),
}

/// Why a gateway gave no usable answer.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) url: String,
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

/// A kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Dns,
    Refused,
    Timeout,
    Tls,
    /// The connection was closed or broke.
    Connection,
    /// Something else answered: check the URL.
    NotAGateway,
    /// The gateway answered 5xx.
    Answer,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "dns",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Connection => "connection",
            Self::NotAGateway => "not_a_gateway",
            Self::Answer => "answer",
        })
    }
}

/// An outcome on its way.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) global_id: String,
    pub(crate) body: Value,
}

impl Gateway {
    /// Gateways by their URLs, the nearest first.
    pub(crate) fn new(urls: Vec<String>, options: Options) -> Self {
        let urls = urls.into_iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        Self(Arc::new(Inner { urls, options, http: Http::new(), first: AtomicUsize::new(0) }))
    }

    /// Runs the work unless the operation is a duplicate, renews the claim meanwhile, and reports the outcome.
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
            // The answer arrived after the lease had ended, so nothing was started.
            held.settle(Outcome::Failure).await?;
            return Err(Error::Unavailable { causes: Vec::new() });
        }
        let outcome = work(&held).await;
        held.settle(outcome).await.map(Answer::Done)
    }

    /// Claims the operation, before the work.
    pub(crate) async fn claim(&self, operation: &str, contents: Value, terms: &Terms) -> Result<Claim, Error> {
        canonical(&contents)?;
        // Fresh for each try at the operation, the same for all repeats of this call: a claim whose answer was lost is then
        // recognised as ours.
        let nonce = format!("{:032x}", rand::random::<u128>());
        let mut request = json!({ "operation": operation, "contents": contents, "attempt_nonce": nonce });
        let optional = [
            ("fingerprint", terms.fingerprint.clone()),
            ("lease", terms.lease.clone().map(Value::from)),
            ("retention", terms.retention.clone().map(Value::from)),
            ("take_over", terms.take_over.then_some(Value::Bool(true))),
            ("wait", terms.wait.map(|wait| format!("{}ms", wait.as_millis()).into())),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                request[name] = value;
            }
        }
        let wait = terms.wait.unwrap_or_default();
        match self.ask(&request, self.0.options.claim_within + wait, wait).await {
            Err(Error::Unavailable { .. }) if self.0.options.on_unavailable == OnUnavailable::Proceed => {
                Ok(Claim::Granted(Held::unasked(self.clone(), request)))
            }
            answer => answer,
        }
    }

    /// Repeats a report until it is taken or refused. Safe to repeat. Returns the state of the claim; a result that the gateway
    /// refuses is left out, and the reason is in `result_error`.
    pub(crate) async fn settle(&self, mut report: Report, within: Duration) -> Result<Value, Error> {
        let path = format!("/v1/claims/{}/outcome", report.global_id);
        let mut refused = None;
        loop {
            let mut response = match self.call(&path, &report.body, within).await {
                Ok(response) => response,
                Err(why @ Error::Unavailable { .. }) => return Err(Error::NotSettled { report, why: why.into() }),
                Err(Error::Rejected { status: status @ (400 | 413 | 422), code }) => {
                    let result = report.body.as_object_mut().and_then(|body| body.remove("result"));
                    if result.is_none() {
                        return Err(Error::Rejected { status, code });
                    }
                    // The operation has succeeded whether or not its result can be stored.
                    refused = Some(format!("{status} {code}"));
                    continue;
                }
                Err(error) => return Err(error),
            };
            return match response.status {
                409 => Err(Error::OutcomeRefused { code: response.text("code") }),
                422 => Err(response.rejected()),
                status => {
                    if status == 202 {
                        response.body["state"] = "spooled".into();
                    }
                    response.body["result_error"] = refused.into();
                    Ok(response.body)
                }
            };
        }
    }

    async fn ask(&self, request: &Value, within: Duration, wait: Duration) -> Result<Claim, Error> {
        let call_timeout = self.0.options.timeout + wait;
        let response = self.call_patiently("/v1/claims", request, within, call_timeout).await?;
        Ok(match response.status {
            201 => Claim::Granted(Held::granted(self.clone(), request.clone(), &response)),
            409 => Claim::Duplicate(Duplicate {
                state: response.text("state"),
                result: response.body["result"].clone(),
                retry_after: response.millis("retry_after_ms"),
            }),
            _ => Claim::Mismatch { code: response.text("code") },
        })
    }

    async fn call(&self, path: &str, body: &Value, within: Duration) -> Result<Response, Error> {
        self.call_patiently(path, body, within, self.0.options.timeout).await
    }

    /// Calls one gateway after the other until one has answered; each has this timeout.
    async fn call_patiently(
        &self,
        path: &str,
        body: &Value,
        within: Duration,
        call_timeout: Duration,
    ) -> Result<Response, Error> {
        let Inner { urls, options, http, first } = &*self.0;
        let ends = Instant::now() + within;
        let (mut causes, mut tries, mut resent) = (Vec::<Cause>::new(), 0, false);
        loop {
            let at = (first.load(Ordering::Relaxed) + tries) % urls.len();
            let url = &urls[at];
            // The lease counts from here, before the call: the answer may take long.
            let sent = Instant::now();
            let left = call_timeout.min(ends.saturating_duration_since(sent)).max(Duration::from_millis(1));
            let answer = http.post(&format!("{url}{path}"), body, options.credential.as_deref(), left).await;
            let response = answer.and_then(|(status, body)| Response { status, body, sent }.of_a_gateway());
            let (failed, over_quota) = match response {
                Ok(response) => match response.status {
                    200..=202 | 409 => {
                        first.store(at, Ordering::Relaxed);
                        return Ok(response);
                    }
                    422 if response.text("code").ends_with("_mismatch") => return Ok(response),
                    429 => (response.no_answer(), Some(response)),
                    400..=499 => return Err(response.rejected()),
                    // The gateway does not know, or is stopping.
                    _ => (response.no_answer(), None),
                },
                Err(failed) => (failed, None),
            };
            let (kind, cause) = (failed.kind, Cause { url: url.clone(), kind: failed.kind, detail: failed.detail });
            match causes.iter_mut().find(|known| known.url == cause.url) {
                // A try that was cut short by `within` says nothing new.
                Some(_) if kind == Kind::Timeout && left < call_timeout => {}
                Some(known) => *known = cause,
                None => causes.push(cause),
            }
            if kind == Kind::Connection && !resent {
                // Most likely a kept connection that the gateway had closed. The same call may be sent again: the nonce or the
                // attempt in it is recognised.
                resent = true;
                continue;
            }
            tries += 1;
            let mut pause = over_quota.as_ref().map_or(Duration::ZERO, |response| response.millis("retry_after_ms"));
            if tries.is_multiple_of(urls.len()) {
                // Full jitter: callers that failed together do not come back together.
                let most = 1000.min(50 << (tries / urls.len()).min(10));
                pause = pause.max(Duration::from_millis(rand::random_range(0..=most)));
            }
            if Instant::now() + pause >= ends {
                return Err(over_quota.map_or(Error::Unavailable { causes }, |response| response.rejected()));
            }
            sleep(pause).await;
        }
    }
}

/// An answer, and when its request was sent. Fields that are not known are ignored.
struct Response {
    status: u16,
    body: Value,
    sent: Instant,
}

impl Response {
    fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_default().to_owned()
    }

    fn millis(&self, field: &str) -> Duration {
        Duration::from_millis(self.body[field].as_u64().unwrap_or(1000))
    }

    /// The answer, if it is one of a gateway and not of something else that speaks JSON.
    fn of_a_gateway(self) -> Result<Self, NoAnswer> {
        let field = if self.status < 300 { "global_id" } else { "code" };
        if self.body[field].is_string() {
            return Ok(self);
        }
        Err(NoAnswer { kind: Kind::NotAGateway, detail: format!("answered {} without `{field}`", self.status) })
    }

    fn no_answer(&self) -> NoAnswer {
        let detail = format!("{} {}: {}", self.status, self.text("code"), self.text("detail"));
        NoAnswer { kind: Kind::Answer, detail }
    }

    fn rejected(&self) -> Error {
        Error::Rejected { status: self.status, code: self.text("code") }
    }
}

/// The right to run one operation, until the lease ends. Renewed in the background until it is settled or dropped.
pub(crate) struct Held {
    gateway: Gateway,
    request: Value,
    /// Global ID and attempt, to report with. `None` if no gateway answered.
    claim: Option<(String, String)>,
    lease: Arc<Lease>,
    renewal: Option<JoinHandle<()>>,
    fence: Option<u64>,
    degraded: Option<String>,
    repeated: bool,
}

/// The lease, as far as it is known here.
struct Lease {
    ends: Mutex<Instant>,
    lost: Mutex<Option<String>>,
}

impl Held {
    fn granted(gateway: Gateway, request: Value, response: &Response) -> Self {
        let mut held = Self::unasked(gateway, request);
        let claim = (response.text("global_id"), response.text("attempt"));
        // A claim that was waited for was granted at the end of the wait.
        let waited = Duration::from_millis(response.body["waited_ms"].as_u64().unwrap_or_default());
        *held.lease.ends() = response.sent + waited + response.millis("lease_ms");
        held.fence = response.body["fence"].as_u64();
        held.degraded = response.body["degraded"].as_str().map(str::to_owned);
        held.repeated = response.body["repeated"] == true;
        // A claim that is only observed has nothing to renew.
        if response.body.get("would_be").is_none() {
            let renewing = renew(held.gateway.clone(), claim.clone(), Arc::clone(&held.lease));
            held.renewal = Some(tokio::spawn(renewing));
        }
        held.claim = Some(claim);
        held
    }

    fn unasked(gateway: Gateway, request: Value) -> Self {
        let lease = Arc::new(Lease { ends: Mutex::new(Instant::now()), lost: Mutex::default() });
        let degraded = Some("caller".to_owned());
        Self { gateway, request, claim: None, lease, renewal: None, fence: None, degraded, repeated: false }
    }

    /// Whether the claim still stands, to check before an effect that cannot be undone. Only the fence closes the gap.
    pub(crate) fn is_still_ours(&self) -> bool {
        self.renewal.is_none() || (self.lost().is_none() && Instant::now() < *self.lease.ends())
    }

    /// Why the claim was lost, by the answer to a renewal: `lease_lost`, `superseded`, or `not_renewed` in time.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lease.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rises with every attempt at the operation; for the resource to compare. `None` where the store has none.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// The outage policy that granted the claim; `caller` if no gateway answered.
    pub(crate) fn degraded(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    /// Whether a repeat of the claim call found the claim that it had already been granted.
    pub(crate) fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Reports the outcome, after the work. If no gateway takes it, the lease ends, and the next attempt has to look whether the
    /// operation was done.
    pub(crate) async fn settle(mut self, outcome: Outcome) -> Result<Done, Error> {
        let (name, result) = match outcome {
            Outcome::Success(result) => ("success", result),
            Outcome::Failure => ("failure", Value::Null),
            Outcome::Unknown => ("unknown", Value::Null),
        };
        let (gateway, degraded) = (self.gateway.clone(), self.degraded.take());
        let claim = match self.claim.take() {
            Some(claim) => Ok(claim),
            // Granted by this client's own policy. If a gateway answers now, repeats are stopped from here on.
            None => match gateway.ask(&self.request, gateway.0.options.timeout, Duration::ZERO).await {
                Ok(Claim::Granted(mut late)) => late.claim.take().ok_or(false),
                Ok(Claim::Duplicate(_) | Claim::Mismatch { .. }) => Err(true),
                Err(_) => Err(false),
            },
        };
        let (global_id, attempt) = match claim {
            Ok(claim) => claim,
            Err(by_others) => {
                return Ok(Done { result, state: None, degraded, late: Some(by_others), result_error: None });
            }
        };
        // Operation and contents matter if the outcome is late: its record then has their terms, and contents to compare.
        let (operation, contents) = (&self.request["operation"], &self.request["contents"]);
        let mut body = json!({ "attempt": attempt, "outcome": name, "operation": operation, "contents": contents });
        let mut result_error = None;
        if !result.is_null() {
            let bytes = result.to_string().len();
            if bytes > RESULT_BYTES_MAX {
                result_error = Some(format!("the result has {bytes} bytes, more than {RESULT_BYTES_MAX}"));
            } else {
                body["result"] = result.clone();
            }
        }
        let report = Report { global_id, body };
        let stands = match gateway.settle(report.clone(), gateway.0.options.settle_within).await {
            Err(why @ Error::Rejected { .. }) => return Err(Error::NotSettled { report, why: why.into() }),
            settled => settled?,
        };
        let text = |field: &str| stands[field].as_str().map(str::to_owned);
        let (degraded, result_error) = (degraded.or(text("degraded")), result_error.or(text("result_error")));
        Ok(Done { result, state: text("state"), degraded, late: stands["late"].as_bool(), result_error })
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

/// Renews at a third of the lease, which leaves time to repeat a lost answer; stops when the lease has ended here.
async fn renew(gateway: Gateway, (global_id, attempt): (String, String), lease: Arc<Lease>) {
    let (path, body) = (format!("/v1/claims/{global_id}/renewal"), json!({ "attempt": attempt }));
    let left = || lease.ends().checked_duration_since(Instant::now());
    while let Some(before) = left() {
        sleep(before / 3).await;
        match gateway.call(&path, &body, left().unwrap_or_default()).await {
            Ok(response) if response.status == 200 => *lease.ends() = response.sent + response.millis("lease_ms"),
            Ok(response) => return lease.is_lost(response.text("code")),
            // Not known: repeated for as long as the lease lasts.
            Err(_) => {}
        }
    }
    lease.is_lost("not_renewed".into());
}

/// MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language.
pub(crate) fn global_id(app: &str, operation: &str, contents: &Value) -> Result<String, Error> {
    let named = format!("{app}\n{operation}\n{}", canonical(contents)?);
    Ok(format!("{:032x}", u128::from_be_bytes(Md5::digest(named).into())))
}

/// The one spelling of a value (RFC 8785), unless others would read something else. What a literal lost when it was read, or an
/// object of a key that occurred twice, cannot be seen here any more.
pub(crate) fn canonical(contents: &Value) -> Result<String, Error> {
    check(contents, 0)?;
    if !holds_value(contents) {
        return Err(Error::NotCanonical(
            "contents hold no value, only null, \"\", {} or []: give what tells this operation from others",
        ));
    }
    serde_json_canonicalizer::to_string(contents).map_err(|_| Error::NotCanonical("contents have no canonical form"))
}

/// Whether there is a number, a boolean or a string with a character in it: one unset ID must not name every order.
fn holds_value(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => items.iter().any(holds_value),
        Value::Object(members) => members.values().any(holds_value),
    }
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

/// A call without a usable answer: whether it was acted on is not known.
pub(crate) struct NoAnswer {
    pub(crate) kind: Kind,
    pub(crate) detail: String,
}

impl Http {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        // Otherwise small requests wait for each other's acknowledgements.
        connector.set_nodelay(true);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_max_idle_per_host(IDLE_CONNECTIONS_MAX).pool_idle_timeout(IDLE_MAX);
        Self(client.build(connector))
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
        self.send(request.body(body.to_string().into()), within).await
    }

    pub(crate) async fn get(&self, url: &str, within: Duration) -> Result<(u16, Value), NoAnswer> {
        self.send(Request::get(url).body(Full::default()), within).await
    }

    async fn send(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
        within: Duration,
    ) -> Result<(u16, Value), NoAnswer> {
        let request = request.map_err(|error| NoAnswer::of(&error))?;
        let answered = timeout(within, async {
            let response = self.0.request(request).await.map_err(|error| NoAnswer::of(&error))?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|error| NoAnswer::of(&error))?.to_bytes();
            let not_json = |_| NoAnswer { kind: Kind::NotAGateway, detail: format!("answered {status}, not JSON") };
            Ok((status, serde_json::from_slice(&body).map_err(not_json)?))
        });
        let late = |_| NoAnswer { kind: Kind::Timeout, detail: format!("no answer within {within:?}") };
        answered.await.map_err(late)?
    }
}

impl NoAnswer {
    /// By the chain of errors: the client library has no kinds of its own for these.
    fn of(error: &(dyn error::Error + 'static)) -> Self {
        let chain: Vec<_> = std::iter::successors(Some(error), |error| error.source()).collect();
        let detail = chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(": ");
        let io = chain.iter().find_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind);
        let kind = match io {
            _ if detail.contains("dns error") => Kind::Dns,
            Some(io::ErrorKind::ConnectionRefused) => Kind::Refused,
            Some(io::ErrorKind::TimedOut) => Kind::Timeout,
            // What TLS libraries have against a certificate or a protocol.
            Some(io::ErrorKind::InvalidData) => Kind::Tls,
            _ => Kind::Connection,
        };
        Self { kind, detail }
    }
}
