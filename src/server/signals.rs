//! Signals to the process.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::Context as _;
pub use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Handlers of some signals.
pub struct Signals(Vec<(unix::Signal, Signal)>);

impl Signals {
    /// Handles these signals from now on.
    ///
    /// # Errors
    /// One of them cannot be handled.
    pub fn new(signals: &[Signal]) -> anyhow::Result<Self> {
        let handler = |number: &Signal| {
            let handler = signal(SignalKind::from_raw(number.as_raw())).context("cannot listen for signals")?;
            Ok((handler, *number))
        };
        Ok(Self(signals.iter().map(handler).collect::<anyhow::Result<_>>()?))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let next = self.0.iter_mut().find_map(|(handler, number)| match handler.poll_recv(cx) {
                Poll::Ready(Some(())) => Some(*number),
                _ => None,
            });
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for the next signal that is none of these; they are ignored.
    pub async fn next_except(&mut self, ignored: &[Signal]) -> Signal {
        loop {
            let signal = self.next().await;
            if !ignored.contains(&signal) {
                return signal;
            }
        }
    }
}
