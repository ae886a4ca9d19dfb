//! Errors of the command line: their causes, and how they are printed. `exit_code` has the exit code of each.

use std::fmt::Display;
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Causes of an error that have their own exit code. Everything else is 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The command line or the configuration is wrong. Nothing was changed.
    Usage = 2,
    /// The stored state does not permit the command.
    State = 3,
    /// Another attempt runs the operation, or others hold the lock. The number is that of `EX_TEMPFAIL`; some codes
    /// below are those of `timeout` and `env`. A command that this program runs has exit codes as well.
    Held = 75,
    /// The outcome of an earlier attempt is unknown.
    OutcomeUnknown = 76,
    /// The lease was lost while the command ran.
    LeaseLost = 124,
    /// No gateway answers, or it refuses the call.
    Gateway = 125,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command does not exist.
    NotFound = 127,
}

/// An error with a cause.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failure {
    pub(super) cause: Cause,
    message: String,
}

/// Returns an error with the exit code of this cause.
pub(super) fn because(cause: Cause, message: impl Into<String>) -> anyhow::Error {
    Failure { cause, message: message.into() }.into()
}

/// Returns an error with exit code 2.
pub(super) fn usage(message: impl Into<String>) -> anyhow::Error {
    because(Cause::Usage, message)
}

/// Returns an error with exit code 3.
pub(super) fn state(message: impl Into<String>) -> anyhow::Error {
    because(Cause::State, message)
}

/// Longest wait for an error to be written.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes an error within a timeout: if standard error is not read, the process still ends.
pub(super) fn report_within(timeout: Duration, error: String, mut to: impl Write + Send + 'static) {
    let (done, written) = mpsc::channel();
    // Without a thread or a reader, there is no other place to report to.
    let _ = thread::Builder::new().spawn(move || {
        report(&error, &mut to);
        let _ = done.send(());
    });
    let _ = written.recv_timeout(timeout);
}

/// Writes an error as one block, in sentence case. A first word that is a name, such as a key or a URL, stays unchanged.
fn report(error: &impl Display, to: &mut impl Write) {
    let mut text = error.to_string();
    let is_word = text.split(' ').next().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic()));
    if let Some(first) = text.get_mut(..1).filter(|_| is_word) {
        first.make_ascii_uppercase();
    }
    // If standard error is closed, there is no other place to report to.
    drop(writeln!(to, "oncegate: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_block_in_sentence_case() {
        let mut shown = Vec::new();
        let error = anyhow::anyhow!("the folder is in use").context("engine `primary` cannot be opened");
        report(&format_args!("{error:#}"), &mut shown);
        assert_eq!(shown, b"oncegate: Engine `primary` cannot be opened: the folder is in use\n");
        for text in
            ["server.data_dir cannot be used", "http://[::1]:1 is not a gateway", "--engine: not a URL", "üben", ""]
        {
            let mut shown = Vec::new();
            report(&text, &mut shown);
            assert_eq!(String::from_utf8(shown).unwrap(), format!("oncegate: {text}\n"));
        }
    }

    #[test]
    fn an_unread_error_does_not_keep_the_process_alive() {
        struct Unread;
        impl Write for Unread {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                loop {
                    thread::park();
                }
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        report_within(Duration::from_millis(1), "an error".into(), Unread);
    }
}
