//! Options of the middleware. A setter returns a changed copy: services that were wrapped before keep theirs.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Response};

use super::fields::{StoredFields, not_storable};
use super::fingerprint::FingerprintPart;
use super::status::{Meaning, Statuses, rules};
use crate::call::written;
use crate::client::{Client, OnUnavailable};
use crate::error::Error;
use crate::problem::Problem;
use crate::runs::Runs;
use crate::terms::Terms;

/// Methods without an effect: they are never protected.
const SAFE: [&str; 6] = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY"];

/// Longest wait of a repeat, the same in every language.
const WAIT_MAX: Duration = Duration::from_secs(3600);

pub(super) type Principal<Q> = Arc<dyn Fn(&Q) -> Option<String> + Send + Sync>;
pub(super) type When<Q> = Arc<dyn Fn(&Q) -> bool + Send + Sync>;
type Render = Arc<dyn Fn(&Problem) -> Response<Bytes> + Send + Sync>;
type IsHarmless = Arc<dyn Fn(&dyn Any) -> bool + Send + Sync>;

/// Protects the unsafe methods of the services that it wraps: a request with an `Idempotency-Key` runs once, and its repeats get the
/// stored response. `Q` is the request of the framework.
///
/// The handler runs in a task, so a caller that hangs up changes nothing. It finds its [`Grant`](crate::Grant) in the
/// extensions of the request. The response passes while it is sent; what completes it waits until its outcome is
/// recorded.
#[must_use]
pub struct Idempotent<Q> {
    pub(super) settings: Arc<Settings>,
    /// Nothing: all callers share their keys.
    pub(super) principal: Option<Principal<Q>>,
    pub(super) when: Option<When<Q>>,
    pub(super) runs: Runs,
}

#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is another option")]
pub(crate) struct Settings {
    pub(super) client: Client,
    pub(crate) operation: Arc<str>,
    pub(super) methods: Option<Vec<Method>>,
    pub(super) is_required: bool,
    pub(super) fingerprint: Vec<FingerprintPart>,
    pub(super) statuses: Statuses,
    nothing_happened: Vec<IsHarmless>,
    pub(super) terms: Terms,
    pub(super) wait: Duration,
    pub(crate) body_bytes: usize,
    pub(super) response_bytes: usize,
    pub(super) stored: StoredFields,
    pub(super) stores_private: bool,
    pub(super) exchange_max: Duration,
    pub(super) stops_when_gone: bool,
    pub(super) observes: bool,
    pub(super) is_enabled: bool,
    render: Option<Render>,
    /// The first option that is wrong.
    wrong: Option<String>,
}

impl<Q> Idempotent<Q> {
    /// Returns a middleware for one service: another one has another operation, such as `invoice.send`.
    ///
    /// `principal` distinguishes callers, so that no caller gets the response of another with the same key: the verified account of the
    /// request, never an address. A request without one is refused.
    pub fn new(
        client: Client,
        operation: impl Into<String>,
        principal: impl Fn(&Q) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { principal: Some(Arc::new(principal)), ..Self::shared_keys(client, operation) }
    }

    /// Returns a middleware whose callers share their keys: a caller can get the response of another.
    pub fn shared_keys(client: Client, operation: impl Into<String>) -> Self {
        let operation = operation.into();
        let wrong =
            operation.trim().is_empty().then(|| "operation is empty; write one like \"invoice.send\"".to_owned());
        let is_enabled = client.0.is_enabled;
        let settings = Settings {
            client,
            operation: operation.into(),
            methods: None,
            is_required: false,
            fingerprint: FingerprintPart::DEFAULT.to_vec(),
            statuses: Statuses::default(),
            nothing_happened: Vec::new(),
            // A killed run, or a run whose outcome no gateway accepts in time, may have had its effect.
            terms: Terms::new().unknown_on_lease_end(),
            wait: Duration::ZERO,
            body_bytes: 1 << 20,
            response_bytes: 45 << 10,
            stored: StoredFields::default(),
            stores_private: false,
            exchange_max: Duration::from_secs(300),
            stops_when_gone: false,
            observes: false,
            is_enabled,
            render: None,
            wrong,
        };
        Self { settings: Arc::new(settings), principal: None, when: None, runs: Runs::new() }
    }

    /// Returns the middleware, or the first option that is wrong. A layer whose options are wrong panics when it wraps a service.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`], with what to write instead.
    pub fn checked(self) -> Result<Self, Error> {
        let wrong = self.settings.wrong.clone().or_else(|| self.settings.statuses.problem());
        wrong.map_or_else(|| Ok(self), |wrong| Err(Error::Argument(wrong)))
    }

    /// Protects these methods only.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<_> = methods.into_iter().collect();
        if methods.is_empty() {
            return self
                .with(|settings| settings.refuse("methods is empty, so nothing is protected; name one".to_owned()));
        }
        let safe = methods.iter().find(|method| is_safe(method));
        let wrong = safe
            .map(|method| format!("methods has {method}, which has no effect and is never protected; leave it out"));
        self.with(|settings| (settings.methods, settings.wrong) = (Some(methods), settings.wrong.take().or(wrong)))
    }

    /// Protects only requests for which this returns true.
    pub fn when(self, when: impl Fn(&Q) -> bool + Send + Sync + 'static) -> Self {
        Self { when: Some(Arc::new(when)), ..self }
    }

    /// Answers 400 to requests without a key. Otherwise they are passed on without protection.
    pub fn required(self) -> Self {
        self.with(|settings| settings.is_required = true)
    }

    /// Sets the parts of a request that must be the same on a repeat. Default: method, path, query, `Content-Type`, `If-Match`, body.
    pub fn fingerprint(self, parts: impl IntoIterator<Item = FingerprintPart>) -> Self {
        self.with(|settings| {
            settings.fingerprint = parts.into_iter().collect();
            if settings.fingerprint.is_empty() {
                settings
                    .refuse("fingerprint is empty, so every request is a repeat; name what must be equal".to_owned());
            }
            let has = |part| settings.fingerprint.contains(&part);
            if has(FingerprintPart::Body) && has(FingerprintPart::BodyJson) {
                settings.refuse("fingerprint has Body and BodyJson; leave one out".to_owned());
            }
        })
    }

    /// Sets the statuses of responses that are stored, such as `404` or `2xx`. Default: 2xx, 301 to 303, 4xx.
    pub fn store<'a>(self, statuses: impl IntoIterator<Item = &'a str>) -> Self {
        let parsed = rules(statuses);
        self.with(|settings| match parsed {
            Ok(rules) => settings.statuses.store = Some(rules),
            Err(wrong) => settings.refuse(format!("store: {wrong}")),
        })
    }

    /// Sets the statuses of responses without an effect. Default: 307, 308, 401, 403, 405, 407, 408, 413, 421, 425,
    /// 429.
    pub fn release<'a>(self, statuses: impl IntoIterator<Item = &'a str>) -> Self {
        let parsed = rules(statuses);
        self.with(|settings| match parsed {
            Ok(rules) => settings.statuses.release = Some(rules),
            Err(wrong) => settings.refuse(format!("release: {wrong}")),
        })
    }

    /// Sets the meaning of a 5xx response. Default: unknown.
    pub fn on_5xx(self, meaning: Meaning) -> Self {
        self.with(|settings| settings.statuses.on_5xx = meaning)
    }

    /// Adds a rule about errors of handlers.
    pub(crate) fn harmless_if(self, is_harmless: impl Fn(&dyn Any) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.nothing_happened.push(Arc::new(is_harmless)))
    }

    /// Sets how long to hold the claim; it is renewed while the handler runs. Default: the gateway's.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| {
            settings.check("lease", lease);
            settings.terms = settings.terms.clone().lease(lease);
        })
    }

    /// Sets how long a key blocks repeats. Default: the gateway's.
    pub fn retention(self, retention: Duration) -> Self {
        self.with(|settings| {
            settings.check("retention", retention);
            settings.terms = settings.terms.clone().retention(retention);
        })
    }

    /// Sets how long a repeat waits for a request that is running, at most an hour. Default: not at all. A caller can ask for another
    /// time by `Prefer: wait=`, up to 20 s or this one.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| {
            if wait > WAIT_MAX {
                settings.refuse(format!("wait is {wait:?}; give at most an hour"));
            } else if !wait.is_zero() {
                settings.check("wait", wait);
            }
            settings.wait = wait;
        })
    }

    /// Sets the longest body of a request with a key. Default 1 MiB. A longer one is answered 413.
    pub fn body_bytes(self, bytes: usize) -> Self {
        self.with(|settings| {
            settings.check_bytes("body_bytes", bytes);
            settings.body_bytes = bytes;
        })
    }

    /// Sets the longest body of a response that is stored. Default 45 KiB, which fits a result of a gateway.
    pub fn response_bytes(self, bytes: usize) -> Self {
        self.with(|settings| {
            settings.check_bytes("response_bytes", bytes);
            settings.response_bytes = bytes;
        })
    }

    /// Also stores these fields, which belong to one caller, such as `Set-Cookie`.
    pub fn store_with(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| {
            settings.stored.with = names.into_iter().collect();
            if let Some(wrong) = settings.stored.with.iter().find_map(not_storable) {
                settings.refuse(wrong);
            }
        })
    }

    /// Does not store these fields.
    pub fn store_without(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.stored.without = names.into_iter().collect())
    }

    /// Stores responses with `Cache-Control: no-store`, too.
    pub fn store_private(self) -> Self {
        self.with(|settings| settings.stores_private = true)
    }

    /// Limits one run of a handler, its response included. Default 5 min. After it the outcome is unknown, and the run ends.
    pub fn exchange_max(self, limit: Duration) -> Self {
        self.with(|settings| {
            settings.check("exchange_max", limit);
            settings.exchange_max = limit;
        })
    }

    /// Limits all tries of one claim. Default: the client's.
    pub fn claim_within(self, limit: Duration) -> Self {
        self.with(|settings| {
            settings.check("claim_within", limit);
            settings.client = settings.client.with(|client| client.claim_within = limit);
        })
    }

    /// Limits how long the end of a response waits for the record of its outcome. Default: the client's.
    pub fn settle_within(self, limit: Duration) -> Self {
        self.with(|settings| {
            settings.check("settle_within", limit);
            settings.client = settings.client.with(|client| client.settle_within = limit);
        })
    }

    /// Sets what happens to a request with a key while no gateway answers. Default: the client's.
    pub fn on_unavailable(self, policy: OnUnavailable) -> Self {
        self.with(|settings| settings.client = settings.client.with(|client| client.on_unavailable = policy))
    }

    /// Ends a handler whose caller hangs up, as servers do without the middleware. Its outcome is unknown.
    pub fn stop_when_gone(self) -> Self {
        self.with(|settings| settings.stops_when_gone = true)
    }

    /// Makes the responses of refusals, for services with their own error format.
    pub fn render(self, render: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.render = Some(Arc::new(render)))
    }

    /// Refuses and replays nothing, but claims and counts. Use it to introduce the middleware.
    pub fn observe(self) -> Self {
        self.with(|settings| settings.observes = true)
    }

    /// Switches the middleware off if this is false: every request passes.
    pub fn enabled(self, enabled: bool) -> Self {
        self.with(|settings| settings.is_enabled = enabled && settings.client.0.is_enabled)
    }

    /// Waits until no handler runs, of this middleware and its copies: at the end of a server, after it has stopped to accept. Returns
    /// false if some still ran after this time; their outcome is unknown when their leases end.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.runs.end_within(limit).await
    }

    /// Changes a copy, unless nothing else has the settings.
    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// Panics if an option is wrong: servers find it at their start.
    pub(crate) fn expect_checked(&self) -> Self {
        match self.clone().checked() {
            Ok(checked) => checked,
            #[expect(clippy::panic, reason = "as routers do with wrong routes: a layer cannot return errors")]
            Err(error) => panic!("the idempotency layer of {:?}: {error}", &*self.settings.operation),
        }
    }
}

impl Settings {
    fn refuse(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    fn check(&mut self, name: &str, length: Duration) {
        if let Err(error) = written(length) {
            self.refuse(format!("{name}: {error}"));
        }
    }

    fn check_bytes(&mut self, name: &str, bytes: usize) {
        if bytes == 0 {
            self.refuse(format!("{name} is 0; give a number of bytes from 1"));
        }
    }

    /// Reports whether an error of the service means that nothing happened.
    pub(crate) fn is_harmless(&self, error: &dyn Any) -> bool {
        self.nothing_happened.iter().any(|is_harmless| is_harmless(error))
    }

    /// Reports whether requests of a method can be protected.
    pub(super) fn protects(&self, method: &Method) -> bool {
        self.methods.as_ref().is_none_or(|methods| methods.contains(method))
    }

    pub(super) fn rendered(&self, problem: &Problem) -> Response<Bytes> {
        self.render.as_ref().map_or_else(|| problem.response(), |render| render(problem))
    }
}

pub(super) fn is_safe(method: &Method) -> bool {
    SAFE.contains(&method.as_str())
}

impl<Q> Clone for Idempotent<Q> {
    fn clone(&self) -> Self {
        let (settings, runs) = (Arc::clone(&self.settings), self.runs.clone());
        Self { settings, principal: self.principal.clone(), when: self.when.clone(), runs }
    }
}

impl<Q> fmt::Debug for Idempotent<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("operation", &self.settings.operation).finish_non_exhaustive()
    }
}
