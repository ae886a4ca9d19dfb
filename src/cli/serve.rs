//! `oncegate serve`: loads the configuration, starts the log and the runtime, and runs the server.

use anyhow::Context as _;
use oncegate_telemetry::Telemetry;
use oncegate_telemetry::logging::Log;
use oncegate_telemetry::traces::Traces;

use super::environment;
use crate::config::{Config, Flags, Loaded};
use crate::server::{self, Source};

/// Crash point of the gateway, in tests.
#[cfg(feature = "fault-points")]
const CRASH_VARIABLE: &str = "ONCEGATE_CRASH_AT";

pub(super) fn run(flags: Flags) -> anyhow::Result<()> {
    #[cfg(feature = "fault-points")]
    if let Some((_, point)) = environment().find(|(name, _)| name == CRASH_VARIABLE) {
        oncegate_outage::crash::arm(&point.to_string_lossy())?;
    }
    // Taken before the files are read, so that a change in between is noticed.
    let known = flags.fingerprint(environment());
    let Loaded { config, origins } = Config::load_to_serve(&flags, environment())?;
    let overlooked = flags.overlooked_file(environment());
    let again = flags.clone();
    let read = move || flags.fingerprint(environment());
    let load = move || Config::load_with_origins(&again, environment());
    let source = Source { known, origins, read: Box::new(read), load: Box::new(load) };
    let (traces, layer) = Traces::new(&config.traces)?;
    let log = Log::start(&config.log, super::may_color(), layer)?;
    if let Some(file) = overlooked {
        tracing::warn!(file, "A configuration file in this folder is not read: name it with --config");
    }
    let served = serve(config, source, Telemetry { log: log.clone(), traces });
    log.flush();
    served
}

fn serve(config: Config, source: Source, telemetry: Telemetry) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(server::run(config, source, telemetry))
}
