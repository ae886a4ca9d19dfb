//! Metrics of authentication, of configuration reloads and of the registry of apps.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

const AUTHENTICATION_FAILURES: &str = "oncegate_authentication_failures_total";
const CONFIG_RELOADS: &str = "oncegate_config_reloads_total";
const CONFIG_LAST_RELOAD_SUCCESS: &str = "oncegate_config_last_reload_success";
const REGISTRY_UP: &str = "oncegate_registry_up";
const REGISTRY_COPY_AGE: &str = "oncegate_registry_copy_age_seconds";
const REGISTRY_APPS_REFUSED: &str = "oncegate_registry_apps_refused";

pub(super) fn describe() {
    describe_counter!(
        AUTHENTICATION_FAILURES,
        "Requests without a valid credential, by whether there were so many that the answer was delayed"
    );
    describe_counter!(CONFIG_RELOADS, "Reloads of the configuration, by result");
    describe_gauge!(CONFIG_LAST_RELOAD_SUCCESS, "1 if the configuration that was read last is in force, else 0");
    describe_gauge!(REGISTRY_UP, "1 if the registry of apps answered the last check, else 0");
    describe_gauge!(REGISTRY_COPY_AGE, "Time since the apps were last known to match the registry");
    describe_gauge!(REGISTRY_APPS_REFUSED, "Apps of the registry whose settings cannot be used");
}

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
    /// Returns the metrics. The configuration of the start counts as in force.
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
