//! The options of a client.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::Metrics;
use crate::error::Harmless;
use crate::event::Event;
#[cfg(feature = "testing")]
use crate::testing::MemoryGateway;
#[cfg(feature = "tls")]
use crate::transport::TlsConfig;

/// Receives events in place of the log.
pub(crate) type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;
/// Source of the trace context of a call.
pub(crate) type Traceparent = Arc<dyn Fn() -> Option<String> + Send + Sync>;
/// Time by which the monotonic clock is ahead, in tests.
pub(crate) type Ahead = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Options of a [`crate::Client`].
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(super) credential: Option<String>,
    pub(super) timeout: Duration,
    pub(super) claim_within: Duration,
    pub(super) settle_within: Duration,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) is_enabled: bool,
    pub(super) harmless: Harmless,
    pub(super) on_event: Option<OnEvent>,
    pub(super) metrics: Option<Arc<dyn Metrics>>,
    pub(super) traceparent: Option<Traceparent>,
    pub(super) ahead: Option<Ahead>,
    #[cfg(feature = "testing")]
    pub(super) memory: Option<MemoryGateway>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConfig>,
}

/// The caller's own policy when no gateway answers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnUnavailable {
    /// Return [`crate::Error::Unavailable`].
    #[default]
    FailClosed,
    /// Run the work unprotected; `degraded` is `caller`.
    Proceed,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credential: None,
            timeout: Duration::from_secs(2),
            claim_within: Duration::from_secs(5),
            settle_within: Duration::from_secs(30),
            on_unavailable: OnUnavailable::default(),
            is_enabled: true,
            harmless: Harmless::default(),
            on_event: None,
            metrics: None,
            traceparent: None,
            ahead: None,
            #[cfg(feature = "testing")]
            memory: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl Options {
    /// Sets `<app_key>.<secret>`. An empty one is none.
    pub fn credential(mut self, credential: impl Into<String>) -> Self {
        self.credential = Some(credential.into()).filter(|text| !text.is_empty());
        self
    }

    /// Limits one HTTP call, without the time that it asks to wait. Default 2 s; longer than the gateways' deadline.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Limits all tries of one claim call, in addition to its wait. Default 5 s.
    pub fn claim_within(mut self, limit: Duration) -> Self {
        self.claim_within = limit;
        self
    }

    /// Limits all tries of one report. Default 30 s; [`crate::FOREVER`] is no limit.
    pub fn settle_within(mut self, limit: Duration) -> Self {
        self.settle_within = limit;
        self
    }

    /// Sets the caller's own policy when no gateway answers.
    pub fn on_unavailable(mut self, policy: OnUnavailable) -> Self {
        self.on_unavailable = policy;
        self
    }

    /// Switches the client off if this is false, as `ONCEGATE_DISABLED=1` in the environment does: work runs, nothing is claimed, and
    /// `degraded` is `disabled`. Locks are granted, and hold nothing. For tests and for a machine without a gateway.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.is_enabled = enabled;
        self
    }

    /// Declares errors of the work that had no effect, for all calls of `once`: see
    /// [`crate::Terms::nothing_happened_if`].
    pub fn nothing_happened_if<E: StdError + 'static>(
        mut self,
        is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.harmless.add(is_harmless);
        self
    }

    /// Replaces the log by a function that receives each event. It must not block.
    pub fn on_event(mut self, receive: impl Fn(Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(receive));
        self
    }

    /// Passes measurements on.
    pub fn metrics(mut self, metrics: impl Metrics + 'static) -> Self {
        self.metrics = Some(Arc::new(metrics));
        self
    }

    /// Sets the source of the W3C `traceparent` that is sent with each call.
    pub fn traceparent(mut self, current: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.traceparent = Some(Arc::new(current));
        self
    }

    /// Puts the monotonic clock that leases and limits are counted on ahead by this time. For tests.
    pub fn clock_ahead(mut self, ahead: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.ahead = Some(Arc::new(ahead));
        self
    }

    /// Sends the calls to a gateway in memory.
    #[cfg(feature = "testing")]
    pub(crate) fn memory(mut self, gateway: MemoryGateway) -> Self {
        self.memory = Some(gateway);
        self
    }

    /// Replaces the certificates of the system, such as by those of a private authority, or adds a client certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<rustls::ClientConfig>) -> Self {
        self.tls = Some(config);
        self
    }
}
