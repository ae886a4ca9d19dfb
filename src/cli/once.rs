//! `oncegate once`: runs a command under a claim, and reports its outcome.

use std::io::Read;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncegate_client::{Claimed, Contents, Duplicate, FOREVER, State, Terms};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::Retention;

use super::failure::{Cause, because};
use super::id::{CONTENTS_HELP, read_contents};
use super::job::{Acquired, Ended, JobArgs, note, stopped, warn};

/// Longest time for the report of an outcome. It is worth more than a release: without it, the command may run again.
const REPORT_TIME: Duration = Duration::from_mins(1);

const UNKNOWN: &str = "the outcome of an earlier attempt is unknown; the command was not run. Look its effect up, then repeat this with \
     --take-over, or settle the claim with `oncegate claim settle`";

const EXAMPLES: &str = "\
Examples:
  oncegate once report.daily '\"2026-11-23\"' --retention 7d --if-held skip -- /usr/local/bin/report
  oncegate once invoice.send '{\"invoice\": 4711}' --on-error failure -- ./send-invoice 4711

The claim is renewed while the command runs. If the lease is lost, the command gets SIGTERM. ONCEGATE_FENCE is a number
that rises with each attempt, if the store has fences.

Exit codes: that of the command, or 128 and the number of the signal that ended it; and
    0  The operation has been done before, or is being done with --if-held skip
    2  The command line is wrong
   75  Another attempt is doing the operation
   76  The outcome of an earlier attempt is unknown: look its effect up, then run this with --take-over. Also if the
       command of a --take-over cannot be executed
  124  The lease was lost while the command ran
  125  No gateway answers, or it refuses the call; or the command succeeded, and that could not be reported
  126  The command cannot be executed
  127  The command does not exist";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct OnceArgs {
    /// Operation, such as report.daily
    operation: Operation,
    #[arg(allow_negative_numbers = true, help = CONTENTS_HELP)]
    contents: String,
    /// Retention of a success, such as 7d or forever [default: that of the operation]
    #[arg(long, value_name = "DURATION")]
    retention: Option<Retention>,
    /// Outcome to report if the exit code is not 0
    #[arg(long, value_enum, value_name = "OUTCOME", default_value_t = OnError::Unknown)]
    on_error: OnError,
    /// Run the command although the outcome of an earlier attempt is unknown
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    job: JobArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum OnError {
    /// The command may have had an effect; it is not run again without --take-over
    Unknown,
    /// The command certainly had no effect, and may run again
    Failure,
}

pub(super) fn run(args: OnceArgs, input: &mut impl Read) -> anyhow::Result<u8> {
    let OnceArgs { operation, contents, retention, on_error, take_over, job } = args;
    let contents = Contents::Json(read_contents(&contents, input)?.as_str().to_owned());
    job.run(REPORT_TIME, async |job, args| {
        let mut terms = Terms::new().wait(args.wait());
        if let Some(lease) = args.lease() {
            terms = terms.lease(lease);
        }
        if let Some(retention) = retention {
            terms = terms.retention(retention.duration().unwrap_or(FOREVER));
        }
        if take_over {
            terms = terms.take_over();
        }
        let client = job.client();
        let claim = client.claim_with(operation.as_ref(), contents, terms);
        let grant = match job.acquire(args, claim).await? {
            Acquired::Granted(Claimed::Grant(grant)) => grant,
            Acquired::Granted(Claimed::Duplicate(Duplicate { state: State::Succeeded, .. })) => {
                note("the operation has been done before; the command was not run");
                return Ok(0);
            }
            Acquired::Granted(Claimed::Duplicate(Duplicate { state: State::Unknown, .. })) => {
                return Err(because(Cause::OutcomeUnknown, UNKNOWN));
            }
            Acquired::Granted(Claimed::Duplicate(_)) | Acquired::Held => {
                return args.held("another attempt is doing this operation");
            }
            Acquired::Granted(Claimed::Mismatch(mismatch)) => {
                let why = format!("the operation was claimed with other contents ({})", mismatch.code);
                return Err(because(Cause::Usage, why));
            }
            Acquired::Stopped(signal) => return Ok(stopped(signal)),
        };
        let ended = job.run(args, grant.fence(), grant.until_lost()).await?;
        let outcome = outcome(&ended, on_error, grant.taken_over());
        let is_still_unknown = outcome == "unknown" && matches!(ended, Ended::NotStarted(_));
        let reported = match outcome {
            "success" => job.report(grant.succeed(())).await,
            "failure" => job.report(grant.fail()).await,
            _ => job.report(grant.give_up()).await,
        };
        let code = match ended.code(args) {
            Err(why) if is_still_unknown => Err(because(
                Cause::OutcomeUnknown,
                format!("{why}; the outcome of the earlier attempt is still unknown"),
            )),
            code => code,
        };
        if let Err(why) = reported {
            let why = format!("the outcome `{outcome}` could not be reported, so the command may run again: {why}");
            // The error or the exit code of the command says more than this one.
            if !matches!(code, Ok(0)) {
                warn(why);
                return code;
            }
            return Err(because(Cause::Gateway, why));
        }
        code
    })
}

/// Returns the outcome to report. That a command was not started says nothing about an earlier attempt whose claim was taken over.
fn outcome(ended: &Ended, on_error: OnError, taken_over: bool) -> &'static str {
    match ended {
        Ended::Exited(status) if status.success() => "success",
        Ended::NotStarted(_) if taken_over => "unknown",
        Ended::NotStarted(_) => "failure",
        Ended::Exited(_) if on_error == OnError::Failure => "failure",
        Ended::Exited(_) | Ended::LeaseLost(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn an_error_is_no_failure_unless_the_command_promises_that_it_had_no_effect() {
        let exited = |code: i32| Ended::Exited(ExitStatus::from_raw(code << 8));
        assert_eq!(outcome(&exited(0), OnError::Unknown, false), "success");
        assert_eq!(outcome(&exited(1), OnError::Unknown, false), "unknown");
        assert_eq!(outcome(&exited(1), OnError::Failure, false), "failure");
        assert_eq!(outcome(&Ended::LeaseLost(String::new()), OnError::Failure, false), "unknown");
    }

    #[test]
    fn a_command_that_was_not_started_leaves_an_earlier_unknown_outcome_as_it_is() {
        let not_started = Ended::NotStarted(std::io::ErrorKind::NotFound.into());
        for on_error in [OnError::Unknown, OnError::Failure] {
            assert_eq!(outcome(&not_started, on_error, false), "failure");
            assert_eq!(outcome(&not_started, on_error, true), "unknown");
        }
    }
}
