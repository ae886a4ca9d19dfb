//! `oncegate serve`: reads the configuration, starts the log and the runtime, and hands over to the server.

use anyhow::Context as _;

use super::Settings;
use crate::server;
use crate::telemetry::logging;

pub(super) fn run(settings: Settings) -> anyhow::Result<()> {
    let file = settings.file();
    let config = settings.clone().load_to_serve()?;
    let load = move || settings.clone().load();
    logging::init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(server::run(config, file, load))
}
