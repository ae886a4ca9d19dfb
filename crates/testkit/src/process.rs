//! The process of a server: started without input and output, frozen and resumed by signals, and killed on drop.

use std::process::{Child, Command, Stdio};

use crate::wait::wait_until_frozen;

/// A process, whether it runs or not.
#[derive(Default)]
pub(crate) struct Process(Option<Child>);

impl Process {
    /// Starts a command. Its errors go where the command says; the rest of its output is dropped.
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(Some(child.unwrap_or_else(|why| panic!("{} does not start: {why}", command.get_program().display()))))
    }

    /// Returns the ID of the process, which runs.
    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    /// Returns whether it was started and not killed.
    pub(crate) fn is_started(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether it has exited without being killed.
    pub(crate) fn has_exited(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it, if it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Freezes it: its connections stay open, without any reply.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        wait_until_frozen(self.id());
    }

    /// Resumes it.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    /// Uses the shell, because sending a signal takes unsafe code.
    fn signal(&self, name: &str) {
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.id())).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
