//! Exit codes of errors.

use super::admin_client::Refusal;
use super::failure::{Cause, Failure};
use crate::config::Problems;

/// Returns the exit code of an error.
pub(super) fn exit_code(error: &anyhow::Error) -> u8 {
    cause(error).map_or(1, |cause| cause as u8)
}

/// Returns the cause of an error that has an exit code other than 1.
pub(super) fn cause(error: &anyhow::Error) -> Option<Cause> {
    if error.is::<Problems>() {
        Some(Cause::Usage)
    } else if let Some(failure) = error.downcast_ref::<Failure>() {
        Some(failure.cause)
    } else {
        error.downcast_ref::<Refusal>().and_then(Refusal::cause)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::super::failure::{state, usage};
    use super::*;

    #[test]
    fn the_exit_code_depends_on_the_cause_and_not_on_the_context() {
        assert_eq!(exit_code(&usage("wrong")), 2);
        assert_eq!(exit_code(&Err::<(), _>(state("gone")).context("more").context("and more").unwrap_err()), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("something else")), 1);
    }
}
