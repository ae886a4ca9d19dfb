//! The command that is run, and the signals that are passed on to it.

use std::ffi::OsString;
use std::future::poll_fn;
use std::io::{self, IsTerminal as _};
use std::process::ExitStatus;
use std::task::Poll;

use anyhow::Context as _;
use rustix::process::{Pid, kill_process, kill_process_group};
use tokio::process::Command;
use tokio::signal::unix::{self, SignalKind, signal};

/// Fence of the lease, for the command.
const FENCE_VARIABLE: &str = "ONCEGATE_FENCE";

type Number = rustix::process::Signal;

/// The signals that this process gets.
pub(crate) struct Signals(Vec<(unix::Signal, Number)>);

/// A command that runs.
pub(super) struct Child {
    process: tokio::process::Child,
    /// Whether the command is a process group. Not if it is run from a terminal: only the foreground group may read from it.
    has_group: bool,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let all = [
            (SignalKind::terminate(), Number::TERM),
            (SignalKind::interrupt(), Number::INT),
            (SignalKind::hangup(), Number::HUP),
            (SignalKind::quit(), Number::QUIT),
            (SignalKind::user_defined1(), Number::USR1),
            (SignalKind::user_defined2(), Number::USR2),
        ];
        let all =
            all.into_iter().map(|(kind, number)| Ok((signal(kind).context("cannot listen for signals")?, number)));
        Ok(Self(all.collect::<anyhow::Result<_>>()?))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Number {
        poll_fn(|cx| {
            let next = self.0.iter_mut().find_map(|(signal, number)| match signal.poll_recv(cx) {
                Poll::Ready(Some(())) => Some(*number),
                _ => None,
            });
            next.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for the next signal to stop, and ignores others. Returns its number.
    pub(super) async fn stop(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if ![Number::USR1, Number::USR2].contains(&signal) {
                return signal.as_raw();
            }
        }
    }
}

impl Child {
    pub(super) fn start(command: &[OsString], fence: Option<u64>) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let has_group = !io::stdin().is_terminal();
        let mut command = Command::new(program);
        command.args(arguments);
        match fence {
            Some(fence) => command.env(FENCE_VARIABLE, fence.to_string()),
            None => command.env_remove(FENCE_VARIABLE),
        };
        if has_group {
            command.process_group(0);
        }
        Ok(Self { process: command.spawn()?, has_group })
    }

    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes a signal on. A terminal sends those of its keys to the command as well.
    pub(super) fn forward(&self, signal: Number) {
        if self.has_group || ![Number::INT, Number::QUIT].contains(&signal) {
            self.send(signal);
        }
    }

    pub(super) fn terminate(&self) {
        self.send(Number::TERM);
    }

    pub(super) fn kill(&self) {
        self.send(Number::KILL);
    }

    fn send(&self, signal: Number) {
        // Absent once it was waited for: the number may be that of another process by then.
        let pid = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let Some(pid) = pid else { return };
        // It fails only if the command has just ended, which is noticed next.
        let _ = if self.has_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }
}
