//! Metrics: all names, labels and buckets, and handles that are looked up once.
//!
//! Label values are bounded: apps, their configured operations and a limited number of others have their own values,
//! the rest share `other`. A global ID is never a label. Series with many labels are created when first needed.

pub mod app;
pub mod breaker;
pub mod chain;
pub mod clock;
mod counters;
pub mod disk;
pub mod locks;
pub mod log;
pub mod observed;
pub mod outage;
pub mod proxy;
pub mod quota;
pub mod shards;
pub mod tenants;
pub mod tls;
pub mod traces;
pub mod unread;
pub mod waits;

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use self::counters::Counters;

/// Upper bounds of all duration buckets, in seconds: dense in the range of store latencies, and little beyond the usual
/// deadline. Each bound costs a line per series.
const BUCKETS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 5.0];

/// Defines the names of metrics, and describes them to the recorder.
macro_rules! names {
    ($($describe:ident $name:ident = $text:literal, $about:literal;)*) => {
        $(const $name: &str = $text;)*

        fn describe() {
            $($describe!($name, $about);)*
        }
    };
}

names! {
    describe_counter CLAIMS = "oncegate_claims_total", "Responses to claim calls, by result";
    describe_counter OUTCOMES = "oncegate_outcomes_total", "Responses to outcome calls, by outcome and result";
    describe_histogram CLAIM_DURATION = "oncegate_claim_duration_seconds", "Time to handle a claim call, without HTTP";
    describe_histogram HTTP_REQUEST_DURATION = "oncegate_http_request_duration_seconds",
        "Time from a request's head to its response, by endpoint and status";
    describe_histogram ENGINE_CALL_DURATION = "oncegate_engine_call_duration_seconds",
        "Duration of engine calls, by engine, call and result";
    describe_gauge ENGINE_UP = "oncegate_engine_up", "1 if the engine answered its last call or probe, else 0; of several shards, if any did";
    describe_counter ENGINE_DATA_LOST = "oncegate_engine_data_lost_total",
        "Times an engine's store returned without its data";
    describe_gauge ENGINE_SHARD_UP = "oncegate_engine_shard_up",
        "1 if the gateway is connected to the primary of the shard, else 0";
    describe_gauge ENGINE_SHARD_WARNINGS = "oncegate_engine_shard_warnings",
        "Settings of the shard that are not as the engine's URL promises";
    describe_gauge ENGINE_SHARD_BREAKER_STATE = "oncegate_engine_shard_breaker_state",
        "State of the breaker of the shard: 0 closed, 1 half-open, 2 open";
    describe_gauge BREAKER_STATE = "oncegate_breaker_state",
        "State of the engine's breaker: 0 closed, 1 half-open, 2 open; of several shards the worst";
    describe_counter RETRIES = "oncegate_retries_total",
        "Calls retried because the first try failed or its answer was lost, by result";
    describe_counter SUSPECTED_DOUBLE_EXECUTIONS = "oncegate_suspected_double_executions_total",
        "Successes and unknowns reported by attempts that no longer held their claim";
    describe_counter SUSPECTS_DROPPED = "oncegate_suspects_dropped_total",
        "Suspects that were dropped from the full list before an operator had checked them";
    describe_counter OBSERVED_CLAIMS = "oncegate_observed_claims_total",
        "Claims let through in observe mode, by the result that enforcing would have had";
    describe_counter OBSERVED_OUTCOMES = "oncegate_observed_outcomes_total",
        "Outcomes of claims let through, by the result that enforcing would have had";
    describe_counter QUOTA_EXCEEDED = "oncegate_quota_exceeded_total",
        "Requests and batch items refused because a quota of their app was used up";
    describe_gauge CLAIMS_WAITING = "oncegate_claims_waiting", "Claim calls that wait for a claim in progress";
    describe_counter CLAIM_WAITS = "oncegate_claim_waits_total",
        "Claim calls that have waited for a claim in progress, by what ended the wait";
    describe_counter LOCKS = "oncegate_locks_total", "Calls of locks, by result";
    describe_histogram LOCK_WAIT_DURATION = "oncegate_lock_wait_seconds", "Time from a request for a lock to its answer";
    describe_histogram LOCK_HOLD_DURATION = "oncegate_lock_hold_seconds", "Time from the grant of a lock to its release";
    describe_counter DEGRADED_ANSWERS = "oncegate_degraded_answers_total",
        "Answers given by an outage policy because the store was unavailable";
    describe_counter PROXY_REQUESTS = "oncegate_proxy_requests_total", "Requests to the proxy, by route and answer";
    describe_counter PROXY_OFF_ROUTE = "oncegate_proxy_off_route_total",
        "Requests to the proxy that no route takes as they are, by reason, and whether they were forwarded";
    describe_histogram PROXY_UPSTREAM_DURATION = "oncegate_proxy_upstream_duration_seconds",
        "Time until an upstream answered a protected request, by route";
    describe_counter PROXY_STORED_BYTES = "oncegate_proxy_stored_bytes_total",
        "Bytes of responses that were stored, by route";
    describe_counter PROXY_TOMBSTONES = "oncegate_proxy_tombstones_total",
        "Responses that were not stored, because they are too long or private";
    describe_counter PROXY_BOUNDS = "oncegate_proxy_bounds_reached_total",
        "Requests to the proxy that were refused or cut because a bound was reached, by bound";
    describe_counter UNREAD_RESPONSES_DROPPED = "oncegate_unread_responses_dropped_total",
        "Connections closed because unread responses took too much memory";
    describe_counter PROXY_PRIVATE = "oncegate_proxy_private_responses_total",
        "Responses that were not stored because of Cache-Control: no-store, by route";
    describe_counter OVERLAPS = "oncegate_overlaps_total",
        "Operations granted to two attempts because a store was unavailable";
    describe_gauge SPOOL_ENTRIES = "oncegate_spool_entries",
        "Grants and outcomes in the journal that are not yet delivered to the store";
    describe_gauge SPOOL_BYTES = "oncegate_spool_bytes", "Bytes of the journal that they take";
    describe_gauge SPOOL_OLDEST = "oncegate_spool_oldest_seconds", "Age of the oldest of them";
    describe_counter JOURNAL_ERRORS = "oncegate_journal_errors_total",
        "Entries that the journal did not take, or found damaged";
    describe_gauge DATA_DIR_FREE = "oncegate_data_dir_free_bytes", "Free bytes of the disk of the data folder";
    describe_gauge CHAIN_ACTIVE = "oncegate_chain_active", "1 for the engine that a chain uses, else 0";
    describe_gauge CHAIN_EPOCH = "oncegate_chain_epoch", "Times a chain was switched, as known to this gateway";
    describe_gauge CHAIN_GRANTS_FROZEN = "oncegate_chain_grants_frozen",
        "1 during a grant freeze, after the chain's store lost its data, else 0";
    describe_gauge CHAIN_REQUIREMENTS_MET = "oncegate_chain_requirements_met",
        "1 if the chain's engine has what the chain requires, else 0";
    describe_gauge CHAIN_WITNESS_UP = "oncegate_chain_witness_up",
        "1 if the witness of a chain answers and has its record, else 0";
    describe_counter CHAIN_SWITCHES = "oncegate_chain_switches_total",
        "Switches of a chain with a witness that this gateway completed, by new engine and cause";
    describe_gauge BUILD_INFO = "oncegate_build_info", "1, labelled with the gateway's version";
    describe_counter LOG_LINES_DROPPED = "oncegate_log_lines_dropped_total",
        "Log lines that were not written, by reason";
    describe_counter CLOCK_STEPS = "oncegate_clock_steps_total", "Times that the wall clock of the host was stepped";
    describe_counter AUTHENTICATION_FAILURES = "oncegate_authentication_failures_total",
        "Requests without a valid credential, by whether there were so many that the answer was delayed";
    describe_counter CONFIG_RELOADS = "oncegate_config_reloads_total", "Reloads of the configuration, by result";
    describe_gauge CONFIG_LAST_RELOAD_SUCCESS = "oncegate_config_last_reload_success",
        "1 if the configuration that was read last is in effect, else 0";
    describe_gauge REGISTRY_UP = "oncegate_registry_up", "1 if the registry of apps answered the last check, else 0";
    describe_gauge REGISTRY_COPY_AGE = "oncegate_registry_copy_age_seconds",
        "Time since the apps were last known to match the registry";
    describe_gauge REGISTRY_APPS_REFUSED = "oncegate_registry_apps_refused",
        "Apps of the registry whose settings cannot be used";
    describe_counter TLS_RELOADS = "oncegate_tls_reloads_total", "Reloads of a listener's certificate, by result";
    describe_counter TLS_HANDSHAKE_FAILURES = "oncegate_tls_handshake_failures_total",
        "Connections that ended during the TLS handshake";
    describe_gauge TLS_CERTIFICATE_EXPIRY = "oncegate_tls_certificate_expiry_timestamp_seconds",
        "Expiry of the certificate that a listener presents, in seconds since the epoch";
    describe_counter SPANS_EXPORTED = "oncegate_trace_spans_exported_total", "Spans accepted by the collector";
    describe_counter SPANS_DROPPED = "oncegate_trace_spans_dropped_total",
        "Spans lost on the way to the collector, by reason";
}

/// Metrics recorder of this process.
pub struct Metrics {
    handle: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// Installs the process's recorder. Further calls in the same process (tests) return a recorder that records
    /// nothing.
    pub fn install() -> Self {
        let builder = PrometheusBuilder::new();
        // Cannot fail: the buckets are a constant that is not empty.
        let builder = builder.set_buckets(&BUCKETS).unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::debug!("A metrics recorder is already installed");
        }
        describe();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        let process = metrics_process::Collector::default();
        process.describe();
        Self { handle, process }
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.process.collect();
        self.handle.render()
    }

    /// Moves recorded durations into their buckets. Call it about every second, or memory grows.
    pub fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Defines an enum of label values.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the labels are their own description")]
        pub enum $name { $($variant,)* }

        impl $name {
            pub(in crate::metrics) const LABELS: &[&str] = &[$($label,)*];

            /// Returns the label value.
            pub fn label(self) -> &'static str {
                Self::LABELS.get(self as usize).copied().unwrap_or_default()
            }
        }
    };
}
use labels;

labels! {
    /// Result of a claim call.
    ClaimResult {
        Granted = "granted",
        Repeated = "repeated",
        TakenOver = "taken_over",
        DuplicateInProgress = "duplicate_in_progress",
        DuplicateSucceeded = "duplicate_succeeded",
        DuplicateUnknown = "duplicate_unknown",
        ObservedDuplicate = "observed_duplicate",
        ObservedMismatch = "observed_mismatch",
        ContentsMismatch = "contents_mismatch",
        FingerprintMismatch = "fingerprint_mismatch",
        StoreUnavailable = "store_unavailable",
        StoreFull = "store_full",
        StoreIncompatible = "store_incompatible",
        OutcomeUnknown = "outcome_unknown",
    }
}

labels! {
    /// Outcome that a caller reported.
    ReportedOutcome {
        Success = "success",
        Failure = "failure",
        Unknown = "unknown",
    }
}

labels! {
    /// Result of an outcome call.
    OutcomeResult {
        Recorded = "recorded",
        Late = "late",
        Observed = "observed",
        AlreadySucceeded = "already_succeeded",
        Superseded = "superseded",
        Expired = "expired",
        Spooled = "spooled",
        StoreUnavailable = "store_unavailable",
        StoreFull = "store_full",
        StoreIncompatible = "store_incompatible",
        OutcomeUnknown = "outcome_unknown",
    }
}

labels! {
    /// Kind of an engine call.
    EngineCall {
        Claim = "claim",
        Settle = "settle",
        Renew = "renew",
        Read = "read",
        Release = "release",
        List = "list",
        Metadata = "metadata",
        Lock = "lock",
        Grants = "grants",
        Probe = "probe",
    }
}

labels! {
    /// Result of an engine call.
    EngineResult {
        Ok = "ok",
        Determinate = "determinate",
        Indeterminate = "indeterminate",
    }
}

/// Metrics of one endpoint of the HTTP API.
pub struct EndpointMetrics {
    endpoint: &'static str,
    /// By index in [`EndpointMetrics::STATUSES`]; created when first used.
    durations: [OnceLock<Histogram>; Self::STATUSES.len() + 1],
}

impl EndpointMetrics {
    /// Statuses that this gateway sends; any other is counted as `other`.
    const STATUSES: [u16; 16] = [200, 201, 202, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 500, 501, 503];

    /// Returns the metrics of the endpoint with this label.
    pub fn new(endpoint: &'static str) -> Self {
        Self { endpoint, durations: [const { OnceLock::new() }; Self::STATUSES.len() + 1] }
    }

    /// Records a response.
    pub fn answered(&self, status: u16, took: Duration) {
        let index = Self::STATUSES.iter().position(|known| *known == status).unwrap_or(Self::STATUSES.len());
        let handle = self.durations[index].get_or_init(|| {
            let status = Self::STATUSES.get(index).map_or_else(|| "other".to_owned(), u16::to_string);
            histogram!(HTTP_REQUEST_DURATION, "endpoint" => self.endpoint, "status" => status)
        });
        handle.record(took.as_secs_f64());
    }
}

/// Metrics of one engine.
pub struct EngineMetrics {
    engine: Box<str>,
    durations: [[OnceLock<Histogram>; EngineResult::LABELS.len()]; EngineCall::LABELS.len()],
    up: Gauge,
    data_lost: Counter,
}

impl EngineMetrics {
    /// Returns the metrics of the engine of this name, which counts as up until a call fails.
    pub fn new(engine: &str) -> Self {
        let metrics = Self {
            engine: engine.into(),
            durations: Default::default(),
            up: gauge!(ENGINE_UP, "engine" => engine.to_owned()),
            data_lost: counter!(ENGINE_DATA_LOST, "engine" => engine.to_owned()),
        };
        metrics.up.set(1.0);
        metrics
    }

    /// Records a call that ended.
    pub fn called(&self, call: EngineCall, result: EngineResult, took: Duration) {
        let duration = self.durations[call as usize][result as usize].get_or_init(|| {
            let (call, result) = (EngineCall::LABELS[call as usize], EngineResult::LABELS[result as usize]);
            histogram!(ENGINE_CALL_DURATION, "engine" => self.engine.to_string(), "call" => call, "result" => result)
        });
        duration.record(took.as_secs_f64());
    }

    /// Sets whether the engine answers.
    pub fn set_up(&self, up: bool) {
        self.up.set(if up { 1.0 } else { 0.0 });
    }

    /// Sets how often the store has returned without its data, in total.
    pub fn set_data_lost(&self, times: u64) {
        self.data_lost.absolute(times);
    }
}
