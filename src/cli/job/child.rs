//! The command that is run, and the signals that are passed on to it.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Command;

use crate::config::{CREDENTIAL_VARIABLE, TOKEN_VARIABLE};

/// Fence of the lease, for the command.
const FENCE_VARIABLE: &str = "ONCEGATE_FENCE";

/// A command that runs.
pub(super) struct Child {
    process: tokio::process::Child,
    /// True if the command is a process group. False on a terminal: only the foreground group may read from it.
    has_group: bool,
}

impl Child {
    pub(super) fn start(command: &[OsString], fence: Option<i64>) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let has_group = !io::stdin().is_terminal();
        let mut command = Command::new(program);
        command.args(arguments);
        match fence {
            Some(fence) => command.env(FENCE_VARIABLE, fence.to_string()),
            None => command.env_remove(FENCE_VARIABLE),
        };
        // They are for this program. A command that calls a gateway itself needs another credential.
        for secret in [CREDENTIAL_VARIABLE, TOKEN_VARIABLE] {
            command.env_remove(secret);
        }
        if has_group {
            command.process_group(0);
        }
        Ok(Self { process: command.spawn()?, has_group })
    }

    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes a signal on. A terminal sends those of its keys to the command as well.
    pub(super) fn forward(&self, signal: Signal) {
        if self.has_group || ![Signal::INT, Signal::QUIT].contains(&signal) {
            self.send(signal);
        }
    }

    pub(super) fn terminate(&self) {
        self.send(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        // Absent once it was waited for: the number may be that of another process by then.
        let pid = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let Some(pid) = pid else { return };
        // It fails only if the command has just ended, which is noticed next.
        let _ = if self.has_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }
}
