//! Metrics of authentication, of configuration reloads and of the registry of apps.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::{
    AUTHENTICATION_FAILURES, CONFIG_LAST_RELOAD_SUCCESS, CONFIG_RELOADS, REGISTRY_APPS_REFUSED, REGISTRY_COPY_AGE,
    REGISTRY_UP,
};

/// Metrics of authentication.
pub struct AuthenticationMetrics {
    answered: Counter,
    throttled: Counter,
}

impl Default for AuthenticationMetrics {
    fn default() -> Self {
        let failures = |throttled: &'static str| counter!(AUTHENTICATION_FAILURES, "throttled" => throttled);
        Self { answered: failures("false"), throttled: failures("true") }
    }
}

impl AuthenticationMetrics {
    /// Counts a request without a valid credential.
    pub fn failed(&self, throttled: bool) {
        if throttled { &self.throttled } else { &self.answered }.increment(1);
    }
}

/// Metrics of configuration reloads.
pub struct ReloadMetrics {
    applied: Counter,
    refused: Counter,
    last_success: Gauge,
}

impl Default for ReloadMetrics {
    /// Returns the metrics. The configuration of the start counts as the one in use.
    fn default() -> Self {
        let reloads = |result: &'static str| counter!(CONFIG_RELOADS, "result" => result);
        let metrics = Self {
            applied: reloads("applied"),
            refused: reloads("refused"),
            last_success: gauge!(CONFIG_LAST_RELOAD_SUCCESS),
        };
        metrics.last_success.set(1.0);
        metrics
    }
}

impl ReloadMetrics {
    /// Counts a reload.
    pub fn reloaded(&self, applied: bool) {
        if applied { &self.applied } else { &self.refused }.increment(1);
        self.last_success.set(if applied { 1.0 } else { 0.0 });
    }
}

/// Metrics of the registry of apps.
pub struct RegistryMetrics {
    up: Gauge,
    copy_age: Gauge,
    apps_refused: Gauge,
}

impl Default for RegistryMetrics {
    /// Returns the metrics. The registry counts as unavailable until it has answered.
    fn default() -> Self {
        let metrics = Self {
            up: gauge!(REGISTRY_UP),
            copy_age: gauge!(REGISTRY_COPY_AGE),
            apps_refused: gauge!(REGISTRY_APPS_REFUSED),
        };
        metrics.up.set(0.0);
        metrics
    }
}

impl RegistryMetrics {
    /// Sets whether the registry answers, and the age of the copy in use.
    pub fn checked(&self, up: bool, copy_age: Duration) {
        self.up.set(if up { 1.0 } else { 0.0 });
        self.copy_age.set(copy_age.as_secs_f64());
    }

    /// Sets how many apps of the registry cannot be used.
    pub fn set_apps_refused(&self, apps: u32) {
        self.apps_refused.set(f64::from(apps));
    }
}
