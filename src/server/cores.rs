//! A runtime for each core, each on a thread of its own. A connection stays on one of them, and so does the connection to the
//! store that its calls go over: a claim is read, asked for and answered without waking another thread, which takes longer
//! than the rest of it.

use std::thread;

use anyhow::Context as _;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The runtimes, until this is dropped.
pub(super) struct Cores {
    handles: Vec<Handle>,
    _stop: DropGuard,
}

impl Cores {
    /// As many as this process may use cores.
    ///
    /// # Errors
    /// A thread or a runtime that cannot be had.
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

    /// The runtimes.
    pub(super) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}
