//! The signals that a gateway listens to.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The process's signals.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What a signal asks for.
pub(super) enum Asked {
    /// To stop, by the signal of this name.
    Stop(&'static str),
    /// To read the configuration again.
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

    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
            _ = self.hangup.recv() => Asked::Reload,
        }
    }

    /// The next signal to stop, whatever else comes before.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let Asked::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
