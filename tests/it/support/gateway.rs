//! Gateways of this build, by their engine.

use std::path::Path;

use oncegate_testkit::gateway::Setup;

/// The binary that Cargo has built for these tests.
const PROGRAM: &str = env!("CARGO_BIN_EXE_oncegate");

/// A gateway on the engine of this URL.
pub(crate) fn on(engine: impl Into<String>) -> Setup {
    Setup::new(PROGRAM, Some(engine.into()))
}

/// A gateway on the engines that its configuration names.
pub(crate) fn on_configured() -> Setup {
    Setup::new(PROGRAM, None)
}

/// A patient gateway on the engine in memory, which always answers.
pub(crate) fn on_memory() -> Setup {
    on("memory:").patient()
}

/// A patient gateway on the engine that keeps claims in this folder.
pub(crate) fn on_disk(folder: &Path) -> Setup {
    on(format!("disk:{}", folder.display())).patient()
}
