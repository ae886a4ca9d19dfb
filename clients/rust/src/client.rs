//! The client, and what all its calls share.

mod options;

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use self::options::{Ahead, OnEvent, Traceparent};
pub use self::options::{OnUnavailable, Options};
use crate::contents::Contents;
use crate::error::{Error, Harmless, NotCanonical};
use crate::identity::{global_id, hex};
use crate::lost::GIVE_BACKS_MAX;
use crate::runs::Runs;
use crate::transport::Server;
#[cfg(feature = "tls")]
use crate::transport::system_tls;

/// No limit of a time.
pub const FOREVER: Duration = Duration::MAX;

/// The gateway on the same machine, if nothing else is configured.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Calls one or more gateways in front of the same store. Make one and keep it: clones share its connections.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) servers: Arc<[Server]>,
    pub(crate) app: String,
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Duration,
    pub(crate) claim_within: Duration,
    pub(crate) settle_within: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) on_event: Option<OnEvent>,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
    pub(crate) traceparent: Option<Traceparent>,
    /// The gateway that answered the last claim. So a gateway that is down costs one timeout, not one for each call.
    pub(crate) first: Arc<AtomicUsize>,
    /// False: everything runs, and nothing is claimed.
    pub(crate) is_enabled: bool,
    pub(crate) harmless: Harmless,
    ahead: Option<Ahead>,
    background: Runs,
    /// Places for grants that are looked for.
    pub(crate) given_back: Arc<Semaphore>,
}

/// Receives measurements, to be passed on to a metrics library. Its methods must not block.
pub trait Metrics: Send + Sync {
    /// Is called after each HTTP call. The endpoint is claim, outcome, renewal, lookup, batch or lock; the result is the HTTP
    /// status, or the kind of the cause if no gateway answered.
    fn request(&self, endpoint: &'static str, result: &str, elapsed: Duration);

    /// Is called for each request that a middleware has answered, with its operation and the result: `forwarded`, `replayed`,
    /// `in_progress`, `unknown`, `mismatch`, `not_stored`, `no_key`, `refused`, `unavailable`, `unprotected`.
    fn answered(&self, operation: &str, result: &'static str) {
        let _ = (operation, result);
    }

    /// Is called with the name of each event and its operation, or the name of the lock.
    fn event(&self, name: &'static str, operation: &str);
}

impl Client {
    /// Returns a client of the gateways with these URLs, the nearest first. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a wrong URL or option.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, options: Options) -> Result<Self, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate-rust/", env!("CARGO_PKG_VERSION"))));
        let mut app = "default".to_owned();
        if let Some(credential) = &options.credential {
            app_of(credential)?.clone_into(&mut app);
            let mut value = HeaderValue::try_from(format!("Bearer {credential}"))
                .map_err(|_| Error::Argument("the credential has a character that no header can carry".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if [options.timeout, options.claim_within, options.settle_within].iter().any(Duration::is_zero) {
            let detail = "timeout, claim_within and settle_within must be longer than 0";
            return Err(Error::Argument(detail.to_owned()));
        }
        let is_enabled = !is_switched_off(env::var_os("ONCEGATE_DISABLED").as_deref())? && options.is_enabled;
        if !is_enabled {
            tracing::warn!("the client is switched off: operations run without a claim");
        }
        let urls: Vec<U> = urls.into_iter().collect();
        #[cfg(feature = "tls")]
        let tls = match options.tls {
            Some(config) => Some(config),
            None if urls.iter().any(|url| url.as_ref().starts_with("https:")) => Some(system_tls()?),
            None => None,
        };
        let server = |url: &U| {
            Server::new(
                url.as_ref(),
                #[cfg(feature = "tls")]
                tls.as_ref(),
            )
        };
        let servers = urls.iter().map(server).collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "testing")]
        let servers: Vec<_> =
            servers.into_iter().map(|server| server.in_memory(options.memory.clone(), &app)).collect();
        if servers.is_empty() {
            let detail = "no gateway: give at least one URL, such as http://10.0.0.5:8080";
            return Err(Error::Argument(detail.to_owned()));
        }
        Ok(Self(Arc::new(Inner {
            servers: servers.into(),
            app,
            headers,
            timeout: options.timeout,
            claim_within: options.claim_within,
            settle_within: options.settle_within,
            on_unavailable: options.on_unavailable,
            on_event: options.on_event,
            metrics: options.metrics,
            traceparent: options.traceparent,
            first: Arc::default(),
            is_enabled,
            harmless: options.harmless,
            ahead: options.ahead,
            background: Runs::new(),
            given_back: Arc::new(Semaphore::new(GIVE_BACKS_MAX)),
        })))
    }

    /// Returns a client of the gateway that the environment names: `ONCEGATE_URL` (several with commas), by default
    /// `http://127.0.0.1:8080`, with the credential `ONCEGATE_CREDENTIAL`, unless the options have one.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a wrong URL or option.
    pub fn from_env(options: Options) -> Result<Self, Error> {
        let value = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let urls = value("ONCEGATE_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        let credential = options.credential.clone().or_else(|| value("ONCEGATE_CREDENTIAL"));
        Self::new(urls.split(',').map(str::trim), options.credential(credential.unwrap_or_default()))
    }

    /// Returns a client with other settings that shares the connections of this one.
    #[cfg(feature = "middleware")]
    pub(crate) fn with(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = (*self.0).clone();
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Returns the global ID of an operation of this client's app, computed without a gateway.
    ///
    /// # Errors
    ///
    /// Contents that are not canonical.
    pub fn global_id(&self, operation: &str, contents: impl Into<Contents>) -> Result<String, NotCanonical> {
        global_id(&self.0.app, operation, &contents.into())
    }

    /// Returns false if the client is switched off: see [`Options::enabled`].
    pub fn is_enabled(&self) -> bool {
        self.0.is_enabled
    }

    /// Waits for what continues in the background after its future was dropped: calls in flight, reports, releases and withdrawals.
    /// Returns true once all have ended, or false if some have not after this time. Call it before the runtime stops.
    pub async fn drain(&self, within: Duration) -> bool {
        self.0.background.end_within(within).await
    }

    /// Runs what must be finished also if its caller goes away.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        runtime: &Handle,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let running = self.0.background.begin();
        runtime.spawn(async move {
            let _running = running;
            task.await
        })
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.0.ahead.as_ref().map_or(Duration::ZERO, |ahead| ahead())
    }

    /// Returns the end of a time that begins now, or nothing if the time has no end.
    pub(crate) fn end_after(&self, length: Duration) -> Option<Instant> {
        if length == FOREVER { None } else { self.now().checked_add(length) }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.0.servers.iter().map(|server| server.url.as_str()).collect();
        f.debug_struct("Client").field("urls", &urls).field("app", &self.0.app).finish_non_exhaustive()
    }
}

/// Returns 32 random hex digits: fresh for each try at an operation, and kept for all repeats of its call.
pub(crate) fn nonce() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Argument(format!("the system has no random numbers: {error}")))?;
    Ok(hex(&bytes))
}

/// Returns the app key of a credential.
fn app_of(credential: &str) -> Result<&str, Error> {
    let wrong = || Error::Argument("the credential is not <app_key>.<secret>, such as shop.3nC0…".to_owned());
    let (app, secret) = credential.rsplit_once('.').ok_or_else(wrong)?;
    let is_key = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let begins_well = app.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_secret = !secret.is_empty() && secret.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    if app.len() <= 64 && begins_well && app.bytes().all(is_key) && is_secret { Ok(app) } else { Err(wrong()) }
}

/// Returns true if `ONCEGATE_DISABLED` has this text and switches clients off.
fn is_switched_off(text: Option<&OsStr>) -> Result<bool, Error> {
    let text = text.unwrap_or_default().to_string_lossy();
    match &*text.to_ascii_lowercase() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => {
            let choice = "write 1, true, yes or on to switch clients off, or 0, false, no or off";
            Err(Error::Argument(format!("ONCEGATE_DISABLED is {text:.40?}: {choice}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_environment_switches_clients_off_as_in_every_language() {
        let vectors: Value = serde_json::from_str(include_str!("../../vectors/shared.json")).expect("JSON");
        for vector in vectors["disabled"].as_array().expect("a list") {
            let text = vector["text"].as_str().expect("a text");
            match (is_switched_off(Some(OsStr::new(text))), vector["disabled"].as_bool()) {
                (Ok(found), Some(expected)) => assert_eq!(found, expected, "{text:?}"),
                (Err(error), None) => assert!(error.to_string().contains("ONCEGATE_DISABLED"), "{error}"),
                (found, expected) => panic!("{text:?}: {found:?}, expected {expected:?}"),
            }
        }
        assert!(!is_switched_off(None).expect("a client"));
    }
}
