//! Commands that run while a lease is held: acquire it, run the command until it ends or the lease is lost, and report. Common
//! parts of `lock run` and `once`. The client renews, waits and repeats.

mod child;

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncegate_client::{Client, Error, Event, Options};
use oncegate_core::terms::Span;
use tokio::time::timeout;

use self::child::Child;
use super::failure::{Cause, REPORT_TIMEOUT, because, report_within};
use super::gateway_client::{Gateway, GatewayArgs};
use super::output::escaped;
use crate::server::signals::{Signal, Signals};

/// Time for repeating a request for a lease at a gateway that does not answer, if `--wait` is not longer.
const ACQUIRE_TIME: Duration = Duration::from_secs(5);

/// Longest time for an acquisition, in addition to `--wait`: of the last request of a wait, and its repeats.
const LAST_REQUEST_TIME: Duration = Duration::from_secs(30);

/// Longest time for giving back what an abandoned request may have got.
const WITHDRAWAL_TIME: Duration = Duration::from_secs(1);

/// Signals that are passed on to the command.
const SIGNALS: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Those of them that do not stop this process while no command runs.
const FORWARDED_ONLY: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Arguments of all commands that run a command.
#[derive(Args, Debug)]
pub(super) struct JobArgs {
    /// Lease to request, such as 30s; it is renewed while the command runs [default: that of the app]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// Wait for up to this long, such as 10m, while another attempt or holder is active [default: do not wait]
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
    /// What to do if another attempt or holder is still active after --wait: exit with code 75, or with 0
    #[arg(long, value_enum, value_name = "REACTION", default_value_t = IfHeld::Fail)]
    if_held: IfHeld,
    /// Send SIGKILL if the command still runs this long after the lease was lost and SIGTERM was sent [default: never]
    #[arg(long, value_name = "DURATION")]
    kill_after: Option<Span>,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum IfHeld {
    /// Exit with code 75, without running the command
    Fail,
    /// Exit with code 0, without running the command
    Skip,
}

/// One run of a command: its gateway and signals.
pub(super) struct Job {
    gateway: Gateway,
    signals: Signals,
    /// Last call that was repeated.
    last_failure: LastFailure,
}

/// Result of a request for a lease.
pub(super) enum Acquired<T> {
    Granted(T),
    /// Others hold it, and the wait is over.
    Held,
    /// The user stopped it, by the signal of this number.
    Stopped(i32),
}

/// The end of a command.
pub(super) enum Ended {
    /// Exited, or ended by a signal.
    Exited(ExitStatus),
    /// Stopped, since the lease was lost for this reason.
    LeaseLost(String),
    /// Could not be executed.
    NotStarted(io::Error),
}

/// Reason of the last failure of a gateway that led to a repeat of its call.
#[derive(Clone, Default)]
struct LastFailure(Arc<Mutex<Option<String>>>);

impl JobArgs {
    /// Runs the steps of a command to their end, and returns its exit code. A report is repeated for at most `settle_within`.
    ///
    /// # Errors
    /// It did not run, or not to its end. The exit code of an error without a cause is 125.
    pub(super) fn run(
        self,
        settle_within: Duration,
        steps: impl AsyncFnOnce(&mut Job, &Self) -> anyhow::Result<u8>,
    ) -> anyhow::Result<u8> {
        let run = || {
            let last_failure = LastFailure::default();
            let events = last_failure.clone();
            let options = Options::default().claim_within(self.wait().max(ACQUIRE_TIME));
            let options = options.settle_within(settle_within).on_event(move |event| events.receive(&event));
            let gateway = Gateway::new(self.gateway.clone(), options)?;
            if !gateway.client.is_enabled() {
                warn("ONCEGATE_DISABLED is set: the command runs without a claim or a lock".to_owned());
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut job = Job { gateway, signals: Signals::new(&SIGNALS)?, last_failure };
                steps(&mut job, &self).await
            })
        };
        run().map_err(|error| match super::exit_code::cause(&error) {
            Some(_) => error,
            None => because(Cause::Gateway, format!("{error:#}")),
        })
    }

    /// Returns how long to wait while others are at it.
    pub(super) fn wait(&self) -> Duration {
        self.wait.map_or(Duration::ZERO, |Span(wait)| wait)
    }

    /// Returns the lease to request, if it is not the default.
    pub(super) fn lease(&self) -> Option<Duration> {
        self.lease.map(|Span(lease)| lease)
    }

    /// Returns the exit code for a lease that others hold.
    pub(super) fn held(&self, what: &str) -> anyhow::Result<u8> {
        match self.if_held {
            IfHeld::Skip => {
                warn(format!("{what}; the command was not run"));
                Ok(0)
            }
            IfHeld::Fail => Err(because(Cause::Held, format!("{what}; the command was not run"))),
        }
    }
}

impl Job {
    /// Returns the client of its gateway.
    pub(super) fn client(&self) -> Client {
        self.gateway.client.clone()
    }

    /// Waits for the answer to a request for a lease, unless the user stops it. A request that is abandoned is withdrawn.
    pub(super) async fn acquire<T>(
        &mut self,
        args: &JobArgs,
        request: impl Future<Output = Result<T, Error>>,
    ) -> anyhow::Result<Acquired<T>> {
        let too_late = args.wait().saturating_add(LAST_REQUEST_TIME);
        let acquired = tokio::select! {
            biased;
            signal = self.signals.next_new_except(&FORWARDED_ONLY) => Ok(Acquired::Stopped(signal.as_raw())),
            answer = timeout(too_late, request) => match answer {
                Ok(Ok(granted)) => Ok(Acquired::Granted(granted)),
                Ok(Err(Error::LockNotAcquired { code, .. })) if code == "lock_held" => Ok(Acquired::Held),
                Ok(Err(error)) => Err(self.gateway.refusal(error).await),
                Err(_) => Err(because(Cause::Gateway, self.last_failure.after("no gateway has answered until the wait was over"))),
            },
        };
        if !matches!(acquired, Ok(Acquired::Granted(_))) {
            // A place in the queue, or a grant whose answer was lost, would block others.
            self.gateway.client.drain(WITHDRAWAL_TIME).await;
        }
        acquired
    }

    /// Runs the command to its end, or stops it once the lease is lost.
    ///
    /// # Errors
    /// The command cannot be waited for.
    pub(super) async fn run(
        &mut self,
        args: &JobArgs,
        fence: Option<i64>,
        until_lost: impl Future<Output = String>,
    ) -> anyhow::Result<Ended> {
        let mut child = match Child::start(&args.command, fence) {
            Ok(child) => child,
            Err(error) => return Ok(Ended::NotStarted(error)),
        };
        self.last_failure.forget();
        let mut until_lost = std::pin::pin!(until_lost);
        let code = loop {
            tokio::select! {
                biased;
                status = child.wait() => return Ok(Ended::Exited(status?)),
                signal = self.signals.next() => child.forward(signal),
                code = &mut until_lost => break code,
            }
        };
        let why = match &*code {
            "not_renewed" => self.last_failure.after("it could not be renewed in time"),
            code => format!("the gateway has answered `{}`", escaped(code)),
        };
        child.terminate();
        let mut is_killed = false;
        let grace = args.kill_after.map_or(Duration::MAX, |Span(after)| after);
        let mut grace = std::pin::pin!(timeout(grace, std::future::pending::<()>()));
        loop {
            tokio::select! {
                biased;
                status = child.wait() => {
                    status?;
                    return Ok(Ended::LeaseLost(why));
                }
                signal = self.signals.next() => child.forward(signal),
                _ = &mut grace, if !is_killed => {
                    child.kill();
                    is_killed = true;
                }
            }
        }
    }

    /// Waits for a report, unless the user stops it. Returns why it was not accepted.
    pub(super) async fn report<T, E: Display>(
        &mut self,
        report: impl Future<Output = Result<T, E>>,
    ) -> Result<(), String> {
        tokio::select! {
            biased;
            reported = report => reported.map(drop).map_err(|error| escaped(&error.to_string())),
            signal = self.signals.next_new_except(&FORWARDED_ONLY) => {
                Err(format!("stopped by signal {}", signal.as_raw()))
            }
        }
    }
}

impl LastFailure {
    fn receive(&self, event: &Event) {
        let cause = event.fields.iter().find(|(name, _)| *name == "cause");
        if let Some(detail) = cause.and_then(|(_, cause)| cause["detail"].as_str()) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(escaped(detail));
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns this text, and after it the failure.
    fn after(&self, text: &str) -> String {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => format!("{text}: {failure}"),
            None => text.to_owned(),
        }
    }
}

impl Ended {
    /// Returns the exit code.
    ///
    /// # Errors
    /// The command was stopped or not started.
    pub(super) fn code(self, args: &JobArgs) -> anyhow::Result<u8> {
        match self {
            Self::Exited(status) => Ok(code_of(status)),
            Self::LeaseLost(why) => Err(because(
                Cause::LeaseLost,
                format!("the lease was lost while the command ran, so it got SIGTERM: {why}"),
            )),
            Self::NotStarted(error) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let cause = if is_missing { Cause::NotFound } else { Cause::NotExecutable };
                let command = args.command.first().map(|command| command.to_string_lossy()).unwrap_or_default();
                Err(because(cause, format!("the command `{command}` cannot be executed: {error}")))
            }
        }
    }
}

/// Returns the exit code of a command as shells do: 128 and the number of the signal that ended it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Returns the exit code of a command that was stopped before it was run.
pub(super) fn stopped(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

/// Prints a note, if a person may read it: programs such as cron would send it by mail.
pub(super) fn note(text: &str) {
    if io::IsTerminal::is_terminal(&io::stderr()) {
        report_within(REPORT_TIMEOUT, text.to_owned(), io::stderr());
    }
}

/// Prints a warning.
pub(super) fn warn(text: String) {
    report_within(REPORT_TIMEOUT, text, io::stderr());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_command_or_of_its_signal() {
        assert_eq!(code_of(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code_of(ExitStatus::from_raw(15)), 143);
        assert_eq!(stopped(2), 130);
    }
}
