//! `oncegate once`: runs a command under a claim, and reports its outcome.

use std::io::Read;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::Retention;
use serde_json::{Value, json};

use super::failure::{Cause, because, usage};
use super::gateway_client::Response;
use super::id::{CONTENTS_HELP, read_contents};
use super::job::{Acquired, Ended, JobArgs, Lease, nonce, note, stopped, warn};

/// Longest time for the report of an outcome. It is worth more than a release: without it, the command may run again.
const REPORT_TIME: Duration = Duration::from_mins(1);

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
   76  The outcome of an earlier attempt is unknown: look its effect up, then run this with --take-over
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
    let contents = read_contents(&contents, input)?;
    let contents: Value = serde_json::from_str(contents.as_str()).map_err(|error| usage(error.to_string()))?;
    job.run(async |job, args| {
        let mut body = json!({ "operation": operation, "contents": contents, "attempt_nonce": nonce(&SystemEntropy) });
        if let Some(lease) = args.lease {
            body["lease"] = lease.to_string().into();
        }
        if let Some(retention) = retention {
            body["retention"] = retention.to_string().into();
        }
        if take_over {
            body["take_over"] = true.into();
        }
        let is_in_progress =
            |response: &Response| response.code() == "duplicate" && response.body["state"] == "in_progress";
        let acquired = job.acquire("/v1/claims", &body, args.wait(), is_in_progress).await?;
        let (granted, began_at) = match acquired {
            Acquired::Granted(granted, began_at) => (granted, began_at),
            Acquired::Held => return args.held("another attempt is doing this operation"),
            Acquired::Stopped(signal) => return Ok(stopped(signal)),
            Acquired::Refused(response) => return refused(&response),
        };
        let path = |call: &str| anyhow::Ok(format!("/v1/claims/{}/{call}", granted.text("global_id")?));
        let lease = Lease::new(&granted, began_at, path("renewal")?, args.lease)?;
        let ended = job.run(args, lease).await?;
        let outcome = outcome(&ended, on_error);
        let report = json!({ "attempt": granted.text("attempt")?, "outcome": outcome, "operation": operation });
        let reported = match job.report(&path("outcome")?, &report, REPORT_TIME).await {
            Ok(response) if response.is_success() => Ok(()),
            Ok(response) => Err(response.refusal()),
            Err(error) => Err(error),
        };
        let code = ended.code(args);
        if let Err(why) = reported {
            let why = format!("the outcome `{outcome}` could not be reported, so the command may run again: {why:#}");
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

/// Returns the outcome to report.
fn outcome(ended: &Ended, on_error: OnError) -> &'static str {
    match ended {
        Ended::Exited(status) if status.success() => "success",
        Ended::NotStarted(_) => "failure",
        Ended::Exited(_) if on_error == OnError::Failure => "failure",
        Ended::Exited(_) | Ended::LeaseLost(_) => "unknown",
    }
}

/// Returns the exit code for an operation that is not claimed.
fn refused(response: &Response) -> anyhow::Result<u8> {
    match (response.code(), response.body["state"].as_str()) {
        ("duplicate", Some("succeeded")) => {
            note("the operation has been done before; the command was not run");
            Ok(0)
        }
        ("duplicate", Some("unknown")) => Err(because(
            Cause::OutcomeUnknown,
            "the outcome of an earlier attempt is unknown; the command was not run. Look its effect up, then repeat this with \
             --take-over, or settle the claim with `oncegate claim settle`",
        )),
        _ => Err(response.refusal()),
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
        assert_eq!(outcome(&exited(0), OnError::Unknown), "success");
        assert_eq!(outcome(&exited(1), OnError::Unknown), "unknown");
        assert_eq!(outcome(&exited(1), OnError::Failure), "failure");
        assert_eq!(outcome(&Ended::LeaseLost(String::new()), OnError::Failure), "unknown");
        assert_eq!(outcome(&Ended::NotStarted(std::io::ErrorKind::NotFound.into()), OnError::Unknown), "failure");
    }
}
