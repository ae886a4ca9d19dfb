//! Signals that a gateway handles.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signal handlers of the process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

pub(super) enum Request {
    /// Stop, by the signal of this name.
    Stop(&'static str),
    /// Reload the configuration.
    Reload,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.hangup.recv() => Request::Reload,
        }
    }

    /// Waits for the next signal to stop, and ignores others.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let Request::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
