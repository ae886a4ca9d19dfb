//! Metrics: all names, labels and buckets, and handles that are looked up once.
//!
//! Label values are bounded: apps, their configured operations and a limited number of others have values of their own,
//! the rest share `other`. A global ID is never a label. Series with many labels are created when first needed.

pub mod app;
pub mod breaker;
pub mod chain;
mod counters;
pub mod log;
pub mod observed;
pub mod outage;
pub mod quota;
pub mod shards;
pub mod tenants;
pub mod tls;
pub mod traces;

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

const CLAIMS: &str = "oncegate_claims_total";
const OUTCOMES: &str = "oncegate_outcomes_total";
const CLAIM_DURATION: &str = "oncegate_claim_duration_seconds";
const HTTP_REQUEST_DURATION: &str = "oncegate_http_request_duration_seconds";
const ENGINE_CALL_DURATION: &str = "oncegate_engine_call_duration_seconds";
const ENGINE_UP: &str = "oncegate_engine_up";
const ENGINE_DATA_LOST: &str = "oncegate_engine_data_lost_total";
const ENGINE_SHARD_UP: &str = "oncegate_engine_shard_up";
const ENGINE_SHARD_WARNINGS: &str = "oncegate_engine_shard_warnings";
const BREAKER_STATE: &str = "oncegate_breaker_state";
const RETRIES: &str = "oncegate_retries_total";
const SUSPECTED_DOUBLE_EXECUTIONS: &str = "oncegate_suspected_double_executions_total";
const OBSERVED_CLAIMS: &str = "oncegate_observed_claims_total";
const OBSERVED_OUTCOMES: &str = "oncegate_observed_outcomes_total";
const QUOTA_EXCEEDED: &str = "oncegate_quota_exceeded_total";
const DEGRADED_ANSWERS: &str = "oncegate_degraded_answers_total";
const OVERLAPS: &str = "oncegate_overlaps_total";
const SPOOL_ENTRIES: &str = "oncegate_spool_entries";
const SPOOL_BYTES: &str = "oncegate_spool_bytes";
const SPOOL_OLDEST: &str = "oncegate_spool_oldest_seconds";
const JOURNAL_ERRORS: &str = "oncegate_journal_errors_total";
const CHAIN_ACTIVE: &str = "oncegate_chain_active";
const CHAIN_EPOCH: &str = "oncegate_chain_epoch";
const CHAIN_HELD: &str = "oncegate_chain_held";
const CHAIN_REQUIREMENTS_MET: &str = "oncegate_chain_requirements_met";
const BUILD_INFO: &str = "oncegate_build_info";

/// Metrics recorder of this process.
pub struct Metrics {
    handle: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// Installs the process's recorder. Further calls in the same process (tests) return one that records nothing.
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

fn describe() {
    describe_counter!(CLAIMS, "Responses to claim calls, by result");
    describe_counter!(OUTCOMES, "Responses to outcome calls, by outcome and result");
    describe_histogram!(CLAIM_DURATION, "Time to handle a claim call, without HTTP");
    describe_histogram!(HTTP_REQUEST_DURATION, "Time from a request's head to its response, by endpoint and status");
    describe_histogram!(ENGINE_CALL_DURATION, "Duration of engine calls, by engine, call and result");
    describe_gauge!(ENGINE_UP, "1 if the engine answered its last call or probe, else 0");
    describe_counter!(ENGINE_DATA_LOST, "Times an engine's store returned without its data");
    describe_counter!(
        SUSPECTED_DOUBLE_EXECUTIONS,
        "Successes and unknowns reported by attempts that no longer held their claim"
    );
    breaker::describe();
    shards::describe();
    log::describe();
    tenants::describe();
    tls::describe();
    traces::describe();
    outage::describe();
    describe_counter!(
        OBSERVED_CLAIMS,
        "Claims let through in observe mode, by the result that enforcing would have had"
    );
    describe_counter!(OBSERVED_OUTCOMES, "Outcomes of claims let through, by the result that enforcing would have had");
    describe_counter!(QUOTA_EXCEEDED, "Requests and batch items refused because a quota of their app was used up");
    describe_gauge!(CHAIN_ACTIVE, "1 for the engine that a chain uses, else 0");
    describe_gauge!(CHAIN_EPOCH, "Times a chain was switched, as known to this gateway");
    describe_gauge!(CHAIN_HELD, "1 during a grant freeze, after the chain's store lost its data, else 0");
    describe_gauge!(CHAIN_REQUIREMENTS_MET, "1 if the chain's engine has what the chain requires, else 0");
    describe_gauge!(BUILD_INFO, "1, labelled with the gateway's version");
}

/// Defines an enum of label values.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the labels are their own description")]
        pub enum $name { $($variant,)* }

        impl $name {
            const LABELS: &[&str] = &[$($label,)*];

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
        Note = "note",
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
    const STATUSES: [(u16, &str); 16] = [
        (200, "200"),
        (201, "201"),
        (202, "202"),
        (400, "400"),
        (401, "401"),
        (403, "403"),
        (404, "404"),
        (405, "405"),
        (409, "409"),
        (413, "413"),
        (415, "415"),
        (422, "422"),
        (429, "429"),
        (500, "500"),
        (501, "501"),
        (503, "503"),
    ];

    /// Returns the metrics of the endpoint with this label.
    pub fn new(endpoint: &'static str) -> Self {
        Self { endpoint, durations: [const { OnceLock::new() }; Self::STATUSES.len() + 1] }
    }

    /// Records a response.
    pub fn answered(&self, status: u16, took: Duration) {
        let index = Self::STATUSES.iter().position(|(known, _)| *known == status).unwrap_or(Self::STATUSES.len());
        let handle = self.durations[index].get_or_init(|| {
            let status = Self::STATUSES.get(index).map_or("other", |(_, label)| *label);
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
