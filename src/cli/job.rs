//! Commands that run while a lease is held: acquire it, renew it while the command runs, and give it back. Common parts
//! of `lock run` and `once`.

mod child;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncegate_core::attempt::{Entropy, Nonce};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::terms::Span;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use self::child::Child;
use super::failure::{Cause, REPORT_TIMEOUT, because, report_within};
use super::gateway_client::{GatewayArgs, GatewayClient, NoAnswer, Response};
use crate::server::signals::{Signal, Signals};

/// Longest wait for an answer, in addition to the `wait` of the request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for repeating a request for a lease at a gateway that does not answer, if `--wait` is not longer.
const ACQUIRE_TIME: Duration = Duration::from_secs(5);

/// Longest wait of one request. A gateway may shorten it.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Signals that are passed on to the command.
const SIGNALS: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Those of them that do not stop this process while no command runs.
const FORWARDED_ONLY: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of all commands that run a command.
#[derive(Args, Debug)]
pub(super) struct JobArgs {
    /// Lease to request, such as 30s; it is renewed while the command runs [default: that of the app]
    #[arg(long, value_name = "DURATION")]
    pub(super) lease: Option<Span>,
    /// Wait for up to this long, such as 10m, while another attempt or holder is active [default: do not wait]
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
    /// What to do if another attempt or holder is still active after --wait: exit with code 75, or with 0
    #[arg(long, value_enum, value_name = "REACTION", default_value_t = IfHeld::Fail)]
    if_held: IfHeld,
    /// Send SIGKILL if the command still runs this long after the lease was lost and SIGTERM was sent [default: never]
    #[arg(long, value_name = "DURATION")]
    kill_after: Option<Span>,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum IfHeld {
    /// Exit with code 75, without running the command
    Fail,
    /// Exit with code 0, without running the command
    Skip,
}

/// One run of a command: its gateway, clock and signals.
pub(super) struct Job {
    client: GatewayClient,
    clock: SystemClock,
    signals: Signals,
}

/// Answer to a request for a lease.
pub(super) enum Acquired {
    /// Granted. Its lease counts from this instant, at the earliest.
    Granted(Response, Duration),
    /// Others hold it, and the wait is over.
    Held,
    /// The request is refused.
    Refused(Response),
    /// The user stopped it, by the signal of this number.
    Stopped(i32),
}

/// A lease, and the call that renews it.
pub(super) struct Lease {
    path: String,
    body: Value,
    fence: Option<u64>,
    length: Duration,
    ends_at: Duration,
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

impl JobArgs {
    /// Runs the steps of a command to their end, and returns its exit code.
    ///
    /// # Errors
    /// It did not run, or not to its end. The exit code of an error without a cause is 125.
    pub(super) fn run(self, steps: impl AsyncFnOnce(&mut Job, &Self) -> anyhow::Result<u8>) -> anyhow::Result<u8> {
        let run = || {
            let client = GatewayClient::new(self.gateway.clone())?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut job = Job { client, clock: SystemClock::new(), signals: Signals::new(&SIGNALS)? };
                steps(&mut job, &self).await
            })
        };
        run().map_err(|error| match super::failure::cause(&error) {
            Some(_) => error,
            None => because(Cause::Gateway, format!("{error:#}")),
        })
    }

    /// Returns how long to wait while others are at it.
    pub(super) fn wait(&self) -> Duration {
        self.wait.map_or(Duration::ZERO, |Span(wait)| wait)
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
    /// Requests a lease, again and again until the wait is over. The repeats have the same nonce. A gateway that does not answer is
    /// asked for a while in any case.
    pub(super) async fn acquire(
        &mut self,
        path: &str,
        body: &Value,
        wait: Duration,
        is_held: impl Fn(&Response) -> bool,
    ) -> anyhow::Result<Acquired> {
        let Self { client, clock, signals } = self;
        let acquire = async {
            let started = clock.monotonic();
            let mut is_uncertain = false;
            loop {
                let sent_at = clock.monotonic();
                let left = wait.saturating_sub(sent_at.saturating_sub(started));
                let asked = left.min(WAIT_MAX);
                let mut body = body.clone();
                if asked.as_millis() > 0 {
                    body["wait"] = format!("{}ms", asked.as_millis()).into();
                }
                let answer = client.post(path, &body, asked + ANSWER_TIMEOUT).await;
                let passed = clock.monotonic().saturating_sub(started);
                if let Err(error) = &answer {
                    is_uncertain |= error.downcast_ref().is_some_and(|error: &NoAnswer| error.is_uncertain);
                }
                match answer {
                    Ok(response) if response.is_success() => {
                        // The lease begins when the wait ends: at the gateway after `waited_ms`, which cannot be longer than
                        // the request took.
                        let began_at = (sent_at + response.millis("waited_ms")).min(clock.monotonic());
                        return Ok(Acquired::Granted(response, began_at));
                    }
                    Ok(response) if is_held(&response) && passed >= wait => return Ok(Acquired::Held),
                    // The wait ended without a grant, or the gateway did not let it wait.
                    Ok(response) if is_held(&response) => {
                        let has_waited = response.millis("waited_ms") >= asked / 2;
                        let pause = response.millis("retry_after_ms").clamp(Duration::from_millis(10), PAUSE);
                        sleep(if has_waited { Duration::ZERO } else { pause.min(wait.saturating_sub(passed)) }).await;
                    }
                    Ok(response) => return Ok(Acquired::Refused(response)),
                    // The last failure shows nothing about earlier requests.
                    Err(error) if error.is::<NoAnswer>() && passed >= wait.max(ACQUIRE_TIME) && is_uncertain => {
                        let advice =
                            "An earlier request may have been granted; then it blocks others until its lease has ended";
                        return Err(anyhow::anyhow!("{error:#}. {advice}"));
                    }
                    Err(error) if !error.is::<NoAnswer>() || passed >= wait.max(ACQUIRE_TIME) => return Err(error),
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        tokio::select! {
            biased;
            signal = signals.next_new_except(&FORWARDED_ONLY) => Ok(Acquired::Stopped(signal.as_raw())),
            acquired = acquire => acquired,
        }
    }

    /// Runs the command to its end, and renews the lease.
    ///
    /// # Errors
    /// The command cannot be waited for.
    pub(super) async fn run(&mut self, args: &JobArgs, mut lease: Lease) -> anyhow::Result<Ended> {
        let mut child = match Child::start(&args.command, lease.fence) {
            Ok(child) => child,
            Err(error) => return Ok(Ended::NotStarted(error)),
        };
        let why = {
            let Self { client, clock, signals } = self;
            let mut lost = std::pin::pin!(lost(client, clock, &mut lease));
            loop {
                tokio::select! {
                    biased;
                    status = child.wait() => return Ok(Ended::Exited(status?)),
                    signal = signals.next() => child.forward(signal),
                    why = &mut lost => break why,
                }
            }
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

    /// Sends a request until it is answered, for at most this time or until the user stops it.
    pub(super) async fn report(&mut self, path: &str, body: &Value, time: Duration) -> anyhow::Result<Response> {
        let Self { client, clock, signals } = self;
        let until = clock.monotonic() + time;
        let report = async {
            loop {
                let left = until.saturating_sub(clock.monotonic());
                match client.post(path, body, left.min(ANSWER_TIMEOUT)).await {
                    Err(error) if error.is::<NoAnswer>() && clock.monotonic() + PAUSE < until => sleep(PAUSE).await,
                    answer => return answer,
                }
            }
        };
        tokio::select! {
            biased;
            answer = report => answer,
            signal = signals.next_new_except(&FORWARDED_ONLY) => {
                Err(anyhow::anyhow!("stopped by signal {}", signal.as_raw()))
            }
        }
    }
}

impl Lease {
    /// Returns the lease of a grant, counted from `began_at`. `path` is that of its renewal.
    pub(super) fn new(
        granted: &Response,
        began_at: Duration,
        path: String,
        lease: Option<Span>,
    ) -> anyhow::Result<Self> {
        let mut body = serde_json::json!({ "attempt": granted.text("attempt")? });
        if let Some(lease) = lease {
            body["lease"] = lease.to_string().into();
        }
        let length = granted.millis("lease_ms");
        Ok(Self { path, body, fence: granted.body["fence"].as_u64(), length, ends_at: began_at + length })
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

/// Renews a lease until it is lost. Returns the reason.
async fn lost(client: &GatewayClient, clock: &SystemClock, lease: &mut Lease) -> String {
    let mut pause = lease.length / 3;
    let mut why = "it could not be renewed in time".to_owned();
    loop {
        sleep(pause.min(lease.ends_at.saturating_sub(clock.monotonic()))).await;
        let sent_at = clock.monotonic();
        let left = lease.ends_at.saturating_sub(sent_at);
        if left.is_zero() {
            return why;
        }
        // Half of the rest, so that a request without an answer can be repeated. The last one gets all of it.
        let time = (left / 2).clamp(PAUSE.min(left), ANSWER_TIMEOUT.max(PAUSE));
        match client.post(&lease.path, &lease.body, time).await {
            Ok(response) if response.is_success() => {
                lease.length = response.millis("lease_ms");
                lease.ends_at = sent_at + lease.length;
                pause = lease.length / 3;
            }
            Ok(response) if response.status == 409 => return response.problem(),
            failed => {
                why = failed.map_or_else(|error| format!("{error:#}"), |response| response.problem());
                pause = (lease.length / 10).min(PAUSE);
            }
        }
    }
}

/// Returns a nonce of 128 random bits.
pub(super) fn nonce(entropy: &impl Entropy) -> String {
    let half = || Nonce::from_bits(entropy.bits());
    format!("{}{}", half().as_str(), half().as_str())
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
