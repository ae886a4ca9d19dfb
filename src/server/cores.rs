//! One runtime per core, each on its own thread. A client's connection stays on one of them, and its calls use the
//! store connection of the same core: a claim is handled without waking another thread, which would take longer than
//! everything else.

use std::thread;

use anyhow::Context as _;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Runtimes, stopped when this is dropped.
pub(super) struct Cores {
    pub(super) handles: Vec<Handle>,
    _stop: DropGuard,
}

impl Cores {
    /// Starts one runtime per available core.
    pub(super) fn start() -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let count = thread::available_parallelism().map_or(1, usize::from);
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
            let (handle, stop) = (runtime.handle().clone(), stop.clone());
            let thread = thread::Builder::new().name(format!("core-{number}"));
            thread.spawn(move || runtime.block_on(stop.cancelled())).context("cannot start a thread")?;
            Ok(handle)
        };
        let handles = (0..count).map(start).collect::<anyhow::Result<_>>()?;
        Ok(Self { handles, _stop: stop.drop_guard() })
    }
}
